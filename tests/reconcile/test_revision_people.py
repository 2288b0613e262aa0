"""What people do while a revision is being rolled back: the run ends, and what they did stays."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from lab.scripted.proxy import Fate, Write
from reconcile.deploying import ALLOWED, CALM_CAP, RAISED_CAP, cap, deploy, earlier, numbers, patch_args
from reconcile.phases import PATIENCE_SECONDS, VERIFY_WINDOW, drained, let_go
from reconcile.test_owners import annotated, patched
from reconcile.test_people import FIELDS
from reconcile.test_unusable import told
from reconcile.world import Eye, World

TICKS_SECONDS = 3.0
EDITED = "--max-num-seqs=32"


def borrowed(world: World) -> dict[str, Any]:
    spec = world.deployment()["spec"]
    return {name: spec.get(name) for name in FIELDS}


def draining(world: World) -> None:
    """Start the operator and wait until a replica is out of rotation with a request on it."""
    world.rewrite(inFlight=1)
    world.start()
    world.wait(lambda: bool(drained(world)), PATIENCE_SECONDS, "a replica is drained")


def verifying(world: World) -> None:
    world.start()
    world.wait(lambda: world.step_state() == "Verifying", PATIENCE_SECONDS, "the sustained window opens")


def closes(world: World) -> None:
    let_go(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
    world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")


def edit(world: World) -> None:
    patch_args(world, lambda args: [EDITED if arg.startswith("--max-num-seqs") else arg for arg in args])


def ask_back(world: World) -> None:
    world.kubectl("annotate", "kvr", "llm", f"kvmedic.io/rollback={world.status()['run']['id']}")


def undo(world: World) -> None:
    world.kubectl("rollout", "undo", "deployment/llm")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("phase", "deed", "outcome", "left"),
    [
        pytest.param(draining, edit, "FlagDrifted", EDITED, id="somebody edits the template"),
        pytest.param(draining, ask_back, "RolledBackByHand", RAISED_CAP, id="somebody wants the new one"),
        pytest.param(verifying, undo, "ChangeReverted", RAISED_CAP, id="somebody undoes it"),
        pytest.param(verifying, edit, "FlagDrifted", EDITED, id="somebody edits it once it is done"),
    ],
)
def test_a_rollback_survives_people(
    a_world: Callable[..., World],
    phase: Callable[[World], None],
    deed: Callable[[World], None],
    outcome: str,
    left: str,
) -> None:
    world = a_world(2, spec={**ALLOWED, "verify": {"for": VERIFY_WINDOW}})
    deploy(world)
    before = borrowed(world)

    phase(world)
    deed(world)
    closes(world)

    assert world.outcomes() == [outcome]
    assert cap(world) == left
    assert borrowed(world) == before
    assert world.traces() == []


@pytest.mark.timeout(240)
def test_a_revision_that_is_collected_between_plan_and_act_is_not_put(a_world: Callable[..., World]) -> None:
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


@pytest.mark.timeout(240)
def test_a_template_that_was_edited_between_look_and_patch_is_not_put(a_world: Callable[..., World]) -> None:
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


@pytest.mark.timeout(240)
def test_without_a_way_back_the_fleet_stays_on_what_it_has(a_world: Callable[..., World]) -> None:
    world = a_world(2, spec={**ALLOWED, "verify": {"for": VERIFY_WINDOW}})
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


@pytest.mark.timeout(240)
def test_a_claim_of_long_ago_does_not_come_back_with_its_revision(
    a_world: Callable[..., World],
) -> None:
    world = a_world(2, spec=ALLOWED)
    stale = "11111111-2222-3333-4444-555555555555/20250101-000000/9"
    note = {"metadata": {"annotations": {"kvmedic.io/run": stale}}}
    world.cluster.api.patch("ReplicaSet", next(iter(numbers(world))), note, world.namespace)
    deploy(world)

    world.start()
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert world.traces() == []
    assert stale not in json.dumps(world.deployment())


ARGO = {"argocd.argoproj.io__tracking-id": "prod:apps/Deployment:ns/llm"}
HELM = {"meta.helm.sh__release-name": "chat"}


@pytest.mark.timeout(240)
def test_an_owner_is_given_the_exact_revert(a_world: Callable[..., World]) -> None:
    world = a_world(2, spec=ALLOWED)
    before = world.deployment()["spec"]["template"]
    deploy(world)
    annotated(**ARGO)(world)
    generation = world.deployment()["metadata"]["generation"]

    world.start()
    asked = ("True", "ManagedByGitOps")
    world.wait(lambda: world.condition("ActionRequired") == asked, PATIENCE_SECONDS, "a person is asked")
    time.sleep(TICKS_SECONDS)

    text = told(world, "ActionRequired")
    (entry,) = yaml.safe_load(text[text.index("patches:") :])["patches"]
    assert "revert the commit behind it in the source of the application, then `argocd app sync prod`" in text
    assert patched(world, yaml.safe_load(entry["patch"]))["spec"]["template"] == before
    assert world.deployment()["metadata"]["generation"] == generation
    assert world.outcomes() == []


@pytest.mark.timeout(240)
def test_a_release_is_rolled_back_by_its_tool(a_world: Callable[..., World]) -> None:
    world = a_world(2, spec=ALLOWED)
    deploy(world)
    annotated(**HELM)(world)

    world.start()
    asked = ("True", "ManagedByHelm")
    world.wait(lambda: world.condition("ActionRequired") == asked, PATIENCE_SECONDS, "a person is asked")

    text = told(world, "ActionRequired")
    assert "helm rollback chat" in text
    assert "revision 2 back to 1: maxNumSeqs 256 -> 64" in text
    assert len(text.encode()) <= 1024
