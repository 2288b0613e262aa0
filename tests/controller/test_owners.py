"""A target that somebody else owns is not changed: a person is given the exact change to make there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest
import yaml

from lab.cluster.api import ApiError
from worlds import scaling
from worlds.command_line import kvmedic
from worlds.conditions import events, message_of
from worlds.owned import annotated, applied_once, patched
from worlds.people import NEW, OLD, cap
from worlds.people import untouched as fields_of
from worlds.phases import PATIENCE_SECONDS, Phase, conditions, let_go, reach
from worlds.replacing import names, press_one
from worlds.world import Eye, World, deployment

TICKS_SECONDS = 3.0
UNDRAINED_BY_THEM = 3
"""Replicas that their own rollout takes undrained, as it would without us, and its spare."""
ARGUMENT = 2
"""Place of the cap in the fleet's arguments."""


def owned(world: World) -> None:
    """Let an object that exists control the Deployment, so that it is not collected as garbage."""
    world.kubectl("create", "configmap", "owner")
    owner = world.cluster.api.get("ConfigMap", "owner", world.namespace)["metadata"]
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["uid"],
        "controller": True,
    }
    world.cluster.api.patch(
        "Deployment", "llm", {"metadata": {"ownerReferences": [reference]}}, world.namespace
    )


OWNERS = {
    "a controller": (owned, "OwnedByController", "its ConfigMap renders the template"),
    "Argo CD": (
        annotated(**{"argocd.argoproj.io__tracking-id": "prod:apps/Deployment:ns/llm"}),
        "ManagedByGitOps",
        "argocd app sync prod",
    ),
    "Flux": (
        annotated(**{"kustomize.toolkit.fluxcd.io__name": "apps"}),
        "ManagedByGitOps",
        "flux reconcile kustomization apps",
    ),
    "Helm": (
        annotated(**{"meta.helm.sh__release-name": "chat"}),
        "ManagedByHelm",
        "helm upgrade chat CHART -f VALUES",
    ),
}


def untouched(world: World, generation: int) -> bool:
    marks = world.deployment()["metadata"].get("annotations", {})
    ours = [name for name in marks if name.startswith("kvmedic.io/")]
    return world.deployment()["metadata"]["generation"] == generation and not ours


@pytest.mark.parametrize("who", OWNERS)
def test_an_owner_is_given_the_exact_change_and_nothing_is_touched(a_world, who):
    mark, reason, words = OWNERS[who]
    world = a_world(2)
    mark(world)
    generation = world.deployment()["metadata"]["generation"]

    world.start()
    said = lambda: world.condition("ActionRequired") == ("True", reason)  # noqa: E731
    world.wait(said, PATIENCE_SECONDS, "a person is asked")
    sentence = message_of(world, "ActionRequired")
    time.sleep(TICKS_SECONDS)

    after = world.status()["change"].rpartition(" -> ")[2]
    assert words in sentence
    assert f"--max-num-seqs={after}" in sentence
    assert len(sentence.encode()) <= 1024
    assert len(events(world, reason)) == 1
    assert events(world, reason)[0] == f"[page] {sentence}"
    assert untouched(world, generation)
    assert world.outcomes() == []
    if who == "Argo CD":
        changes_the_one_token(world, sentence)


def changes_the_one_token(world: World, text: str) -> None:
    (entry,) = yaml.safe_load(text[text.index("patches:") :])["patches"]
    before = world.deployment()["spec"]
    after = patched(world, yaml.safe_load(entry["patch"]))["spec"]
    old, new = (each["template"]["spec"]["containers"][0]["args"] for each in (before, after))
    assert entry["target"] == {"kind": "Deployment", "name": "llm", "namespace": world.namespace}
    assert [i for i, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]] == [ARGUMENT]
    assert new[ARGUMENT] == f"--max-num-seqs={world.status()['change'].rpartition(' -> ')[2]}"


@contextmanager
def applied_every_second(world: World, manager: str) -> Iterator[threading.Event]:
    """Apply the fleet's manifest server-side again and again; set the event to end it earlier."""
    ended = threading.Event()
    manifest = deployment(2)

    def again() -> None:
        while not ended.is_set():
            with suppress(ApiError, httpx.HTTPError):
                world.cluster.api.apply(manifest, world.namespace, manager)
            ended.wait(1)

    world.cluster.api.apply(manifest, world.namespace, manager)
    thread = threading.Thread(target=again, daemon=True)
    thread.start()
    try:
        yield ended
    finally:
        ended.set()
        thread.join(5)


def test_an_applier_that_leaves_a_mark_is_noticed_before_the_first_effect(a_world):
    world = a_world(2)

    with applied_every_second(world, "platform"):
        generation = world.deployment()["metadata"]["generation"]
        world.start()
        world.wait(
            lambda: world.condition("ActionRequired") == ("True", "ManagedByGitOps"),
            PATIENCE_SECONDS,
            "a person is asked",
        )
        time.sleep(TICKS_SECONDS)

        assert "field manager platform" in message_of(world, "ActionRequired")
        sentence = message_of(world, "ActionRequired")
        assert "commit this to what it applies; replicas are then replaced undrained" in sentence
        assert "\npatches:" in sentence
        assert untouched(world, generation)


def contested(world: World) -> bool:
    return world.condition("ActionRequired") == ("True", "TemplateContested")


def test_after_one_revert_nothing_more_is_tried_until_a_person_says_so_or_the_template_is_another(a_world):
    limits = {"cooldown": "0s", "maxRunsPerDay": 10}
    world = a_world(2, spec={"limits": limits})

    with applied_every_second(world, "kubectl") as ended:
        world.start()
        world.wait(
            lambda: contested(world), PATIENCE_SECONDS, "the change is reverted, and a person is asked"
        )
        sentence = message_of(world, "ActionRequired")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")
        time.sleep(TICKS_SECONDS)
        assert world.outcomes() == ["ChangeReverted"]
        assert "patches:" in sentence
        assert events(world, "TemplateContested") == [f"[page] {sentence}"]
        assert "field manager kubectl put the old setting back" in sentence
        assert cap(world) == OLD
        assert world.traces() == []

        shown = kvmedic(world, "explain", "llm")
        assert "TemplateContested" in shown.stdout

        command = sentence.partition("Try again: kubectl ")[2].partition(". Or")[0]
        world.cluster.kubectl(*command.split())
        world.wait(lambda: len(world.outcomes()) == 2, PATIENCE_SECONDS, "it is tried once more")
        world.wait(lambda: contested(world), PATIENCE_SECONDS, "and reverted again")
        assert world.outcomes() == ["ChangeReverted", "ChangeReverted"]
        ended.set()

    time.sleep(TICKS_SECONDS)
    assert len(world.outcomes()) == 2, "that the applier is gone is not known"
    world.kubectl("set", "env", "deployment/llm", "ANOTHER=template")
    world.wait(world.is_settled, PATIENCE_SECONDS, "another template is rolled out")
    world.rewrite(revision=world.revision())
    world.wait(lambda: len(world.outcomes()) == 3, PATIENCE_SECONDS, "another template is another case")

    assert world.outcomes()[0] == "Recovered"
    assert world.traces() == []


APPLY = {"ownership": "Apply"}
HELM = annotated(**{"meta.helm.sh__release-name": "chat"})


@pytest.mark.parametrize("who", [name for name in OWNERS if name != "a controller"])
def test_with_apply_it_is_changed_and_what_keeps_it_is_shown(a_world, who):
    mark, _, words = OWNERS[who]
    world = a_world(2, spec=APPLY)
    mark(world)
    before = world.deployment()["spec"]

    world.start()
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert cap(world) == NEW
    assert fields_of(world.deployment()["spec"]) == fields_of(before)
    assert world.traces() == []
    (run,) = world.status()["history"]
    assert words in run["ownerPatch"]
    assert NEW in run["ownerPatch"]
    assert "undrained" not in run["ownerPatch"]
    assert run["ownerPatch"].rpartition("\n")[2] in events(world, "Recovered")[0]
    planned = "puts it back" if who == "Helm" else "cannot be read; one revert ends it"
    assert planned in events(world, "Planned")[0], "said before the first write"


def test_with_apply_a_controller_is_not_fought(a_world):
    world = a_world(2, spec=APPLY)
    owned(world)
    generation = world.deployment()["metadata"]["generation"]

    world.start()
    said = ("True", "OwnedByController")
    world.wait(lambda: world.condition("ActionRequired") == said, PATIENCE_SECONDS, "a person is asked")
    time.sleep(TICKS_SECONDS)

    assert untouched(world, generation)


APPLIED_IN = {
    Phase.CANARY: ({"ChangeReverted"}, 0),
    Phase.COMPARE: ({"ChangeReverted"}, 1),
    Phase.DRAIN: ({"ChangeReverted"}, 1),
    Phase.VERIFY: ({"ChangeReverted"}, UNDRAINED_BY_THEM),
}


@pytest.mark.parametrize("phase", APPLIED_IN)
def test_with_apply_one_revert_in_the_middle_ends_it(a_world, phase):
    outcomes, lost = APPLIED_IN[phase]
    given = conditions(phase)
    spec = {**given.pop("spec", {}), **APPLY, "limits": {"cooldown": "0s", "maxRunsPerDay": 10}}
    world = a_world(2, spec=spec, **given)
    HELM(world)

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, phase)
        applied_once(world)
        let_go(world)
        world.wait(lambda: bool(world.outcomes()), PATIENCE_SECONDS, "the run closes")
        world.wait(lambda: contested(world), PATIENCE_SECONDS, "a person is asked")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")
    time.sleep(TICKS_SECONDS)

    assert set(world.outcomes()) <= outcomes
    assert len(world.outcomes()) == 1, "nothing more is tried"
    assert cap(world) == OLD
    assert world.traces() == []
    assert len(eye.lost) <= lost, eye.lost
    assert "helm upgrade chat" in message_of(world, "ActionRequired")


def test_with_apply_a_revert_after_the_run_is_not_fought_until_a_person_says_so(a_world):
    world = a_world(2, spec={**APPLY, "limits": {"cooldown": "0s", "maxRunsPerDay": 10}})
    HELM(world)

    world.start()
    world.wait(lambda: world.outcomes() == ["Recovered"], PATIENCE_SECONDS, "the change is kept")
    applied_once(world)
    world.wait(lambda: contested(world), PATIENCE_SECONDS, "a person is asked")
    world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")
    time.sleep(TICKS_SECONDS)

    sentence = message_of(world, "ActionRequired")
    first = world.status()["history"][0]["id"]
    assert world.outcomes() == ["Recovered"]
    assert f"field manager helm put the old setting back after run {first}" in sentence
    assert "helm upgrade chat CHART" in sentence
    assert cap(world) == OLD

    world.kubectl("annotate", "--overwrite", "kvr", "llm", f"kvmedic.io/try-again={first}")
    world.wait(lambda: len(world.outcomes()) == 2, PATIENCE_SECONDS, "it is tried once more")

    assert world.outcomes() == ["Recovered", "Recovered"]
    assert cap(world) == NEW


def test_with_apply_one_who_keeps_applying_is_not_fought(a_world):
    world = a_world(2, spec={**APPLY, "limits": {"cooldown": "0s", "maxRunsPerDay": 10}})

    with applied_every_second(world, "platform"):
        world.start()
        world.wait(lambda: contested(world), PATIENCE_SECONDS, "a person is asked")
        time.sleep(TICKS_SECONDS)

    world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")
    assert world.outcomes() == ["ChangeReverted"]
    assert cap(world) == OLD
    assert world.traces() == []


def test_with_apply_an_applier_that_respects_its_rules_is_no_matter(a_world):
    """What a tool that ignores the fields of a run goes on applying: everything else of the manifest."""
    world = a_world(2, spec=APPLY)
    rest = deployment(2)
    fields = {
        "kind": rest["kind"],
        "apiVersion": rest["apiVersion"],
        "metadata": {"name": "llm", "labels": {"a": "b"}},
    }
    annotated(**{"argocd.argoproj.io__tracking-id": "prod:apps/Deployment:ns/llm"})(world)

    world.start()
    while not world.outcomes():
        world.cluster.api.apply(fields, world.namespace, "argocd-controller")
        time.sleep(0.3)

    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
    assert world.outcomes() == ["Recovered"]
    assert cap(world) == NEW


def test_a_replica_of_a_helm_release_is_replaced_though_its_template_is_respected(a_world):
    world = a_world(3)
    HELM(world)
    before = world.deployment()["spec"]
    pressured = press_one(world)

    with Eye(world.cluster, world.namespace, 3) as eye:
        world.start()
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert world.deployment()["spec"] == before
    assert pressured not in names(world)
    assert eye.lost == []


def test_replicas_of_a_helm_release_are_added_though_its_template_is_respected(a_world):
    world = a_world(scaling.REPLICAS, spec=scaling.spec())
    HELM(world)
    scaling.press(world)

    world.start()
    world.wait(lambda: bool(scaling.held(world)), PATIENCE_SECONDS, "they are kept for a while")

    assert world.replicas() == scaling.MORE
