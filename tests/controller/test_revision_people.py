"""What people do while a revision is being rolled back: the run ends, and what they did stays."""

from __future__ import annotations

import json
import time

import yaml

from lab.scripted.proxy import Fate, Write
from worlds.conditions import message_of
from worlds.deploying import ALLOWED, CALM_CAP, cap, deploy, earlier, numbers
from worlds.owned import annotated, patched
from worlds.phases import PATIENCE_SECONDS, held_open
from worlds.world import Eye, World

TICKS_SECONDS = 3.0


def verifying(world: World) -> None:
    world.start()
    world.wait(lambda: world.step_state() == "Verifying", PATIENCE_SECONDS, "the sustained window opens")


def test_a_revision_that_is_collected_between_plan_and_act_is_not_put(a_world):
    killed: list[Write] = []

    def before_the_first_effect(write: Write) -> Fate:
        if write.object != "deployments" or killed:
            return Fate.PASS
        killed.append(write)
        return Fate.KILL_BEFORE

    world = a_world(2, decide=before_the_first_effect, spec=ALLOWED)
    deploy(world)
    spec, pods = world.deployment()["spec"], {pod["metadata"]["name"] for pod in world.pods()}

    world.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not killed and time.monotonic() < deadline:
        time.sleep(0.05)
    assert world.status()["run"]["intent"]["move"] == "Freeze"
    world.kubectl("delete", "replicaset", earlier(world))
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["RevisionGone"]
    assert world.condition("Remediated") == ("False", "RevisionGone")
    assert world.deployment()["spec"] == spec
    assert {pod["metadata"]["name"] for pod in world.pods()} == pods
    assert world.traces() == []


def test_a_template_that_was_edited_between_look_and_patch_is_not_put(a_world):
    world = a_world(2, spec={**ALLOWED, "mode": "Approve"})
    deploy(world)
    world.start()
    world.wait(lambda: "plan" in world.status(), PATIENCE_SECONDS, "a plan is shown")
    digest = world.status()["plan"]["digest"]

    patch = {"spec": {"template": {"metadata": {"annotations": {"somebody": "edited"}}}}}
    world.cluster.api.patch("ReplicaSet", earlier(world), patch, world.namespace)
    world.wait(
        lambda: world.status().get("plan", {}).get("digest", digest) != digest,
        PATIENCE_SECONDS,
        "another plan is shown, which nobody approved",
    )

    assert world.outcomes() == []


def test_without_a_way_back_the_fleet_stays_on_what_it_has(a_world):
    world = a_world(2, **held_open(**ALLOWED))
    before = world.deployment()["spec"]
    deploy(world, new="worse")

    with Eye(world.cluster, world.namespace, 2) as eye:
        verifying(world)
        world.kubectl("delete", "replicaset", earlier(world))
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["RevisionGone"]
    assert world.condition("Remediated") == ("False", "RevisionGone")
    assert world.status()["history"][0]["steps"][0].endswith(": Left")
    assert cap(world) == CALM_CAP
    assert world.deployment()["spec"] == before
    assert world.traces() == []
    assert eye.lost == []


def test_a_revision_is_rolled_back_and_a_claim_of_long_ago_does_not_come_back_with_it(a_world):
    world = a_world(2, spec=ALLOWED)
    stale = "11111111-2222-3333-4444-555555555555/20250101-000000/9"
    note = {"metadata": {"annotations": {"kvmedic.io/run": stale}}}
    world.cluster.api.patch("ReplicaSet", next(iter(numbers(world))), note, world.namespace)
    world.kubectl("annotate", "deployment", "llm", "kubernetes.io/change-cause=first")
    before, kept = world.deployment()["spec"], set(numbers(world))
    world.kubectl("annotate", "--overwrite", "deployment", "llm", "kubernetes.io/change-cause=second")
    deploy(world)

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    (run,) = world.status()["history"]
    assert (run["reason"], run["outcome"]) == ("DeployCorrelated", "Recovered")
    assert run["steps"] == ["Deployment/llm: pod template of revision 2 -> of revision 1: Kept"]
    assert world.deployment()["spec"] == before
    assert world.deployment()["metadata"]["annotations"]["kubernetes.io/change-cause"] == "second"
    assert len(numbers(world)) == 2, "the earlier ReplicaSet is used again"
    assert max(numbers(world), key=lambda name: numbers(world)[name]) in kept
    assert world.traces() == []
    assert stale not in json.dumps(world.deployment())
    assert (eye.lost, eye.fewest >= 2) == ([], True)
    assert len(eye.seen) == 4, "each replica was replaced once"


ARGO = {"argocd.argoproj.io__tracking-id": "prod:apps/Deployment:ns/llm"}
HELM = {"meta.helm.sh__release-name": "chat"}


def test_an_owner_is_given_the_exact_revert(a_world):
    world = a_world(2, spec=ALLOWED)
    before = world.deployment()["spec"]["template"]
    deploy(world)
    annotated(**ARGO)(world)
    generation = world.deployment()["metadata"]["generation"]

    world.start()
    asked = ("True", "ManagedByGitOps")
    world.wait(lambda: world.condition("ActionRequired") == asked, PATIENCE_SECONDS, "a person is asked")
    time.sleep(TICKS_SECONDS)

    text = message_of(world, "ActionRequired")
    (entry,) = yaml.safe_load(text[text.index("patches:") :])["patches"]
    assert "revert the commit behind it in the source of the application, then `argocd app sync prod`" in text
    assert patched(world, yaml.safe_load(entry["patch"]))["spec"]["template"] == before
    assert world.deployment()["metadata"]["generation"] == generation
    assert world.outcomes() == []


def test_a_release_is_rolled_back_by_its_tool(a_world):
    world = a_world(2, spec=ALLOWED)
    deploy(world)
    annotated(**HELM)(world)

    world.start()
    asked = ("True", "ManagedByHelm")
    world.wait(lambda: world.condition("ActionRequired") == asked, PATIENCE_SECONDS, "a person is asked")

    text = message_of(world, "ActionRequired")
    assert "helm rollback chat" in text
    assert "revision 2 back to 1: maxNumSeqs 256 -> 64" in text
    assert len(text.encode()) <= 1024
