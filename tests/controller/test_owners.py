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
from worlds.command_line import kvmedic
from worlds.owned import annotated, patched
from worlds.people import OLD, cap
from worlds.phases import PATIENCE_SECONDS
from worlds.telling import events, told
from worlds.world import World, deployment

TICKS_SECONDS = 3.0
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
    sentence = told(world, "ActionRequired")
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

        assert "field manager platform" in told(world, "ActionRequired")
        sentence = told(world, "ActionRequired")
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
        sentence = told(world, "ActionRequired")
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
