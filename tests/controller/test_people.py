"""What people do to a fleet while a run is open on it, on the real deployment controller.

Whatever they do, the run ends, nothing of it is left behind, and no more replicas with requests in
flight go than would have gone without it, plus one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from kvmedic.cluster.ownership import CORDON_COST
from worlds import replacing, scaling
from worlds.deploying import RAISED_CAP
from worlds.people import (
    BRAKES,
    EDITED,
    NEW,
    OLD,
    a_pod,
    abandon_resource,
    cap,
    delete_pod,
    delete_resource,
    draining_pod,
    edit_flag,
    is_gone,
    pause_and_resume,
    refused,
    rollout,
    scale,
    set_env,
    stands_still,
    stop,
    suspend,
    untouched,
)
from worlds.phases import PATIENCE_SECONDS, Phase, conditions, drained, let_go, reach
from worlds.runs import FILE, FLAG, RECREATED, REPLACEMENT, REVISION, SCALING, SHORT, nothing, recreate
from worlds.world import DRAINING, Eye, World


@dataclass(frozen=True, slots=True)
class Deed:
    """What a person does, and what must come of it."""

    act: Callable[[World, str], None]
    """Takes the pod that the run is about; empty where it is about none."""
    outcomes: frozenset[str]
    """One of these comes of the run."""
    cap: str = OLD
    replicas: frozenset[int] = frozenset({3})
    """What the fleet may have once the run is closed."""
    lost: int = 0
    """Replicas that may go with requests in flight: the deed's own share, plus one for the run."""


def simply(act: Callable[[World], None]) -> Callable[[World, str], None]:
    return lambda world, _: act(world)


def ends(*outcomes: str) -> frozenset[str]:
    return frozenset(outcomes)


def by_age(world: World, but: str = "") -> list[str]:
    pods = sorted((pod["metadata"] for pod in world.pods()), key=lambda each: each["creationTimestamp"])
    return [str(each["name"]) for each in pods if each["name"] != but]


def delete(which: Callable[[World, str], str]) -> Callable[[World, str], None]:
    return lambda world, pod: delete_pod(lambda world: which(world, pod))(world)


def ask_back(world: World) -> None:
    world.kubectl("annotate", "kvr", "llm", f"kvmedic.io/rollback={world.status()['run']['id']}")


ONLY = {number: frozenset({number}) for number in range(6)}
edit, set_variable, restart = simply(edit_flag), simply(set_env), simply(rollout("restart"))
AN_EDIT, ANOTHER_NUMBER = ends("FlagDrifted"), ends("ReplicasChanged")
THEIR_ROLLOUT = 4
"""An edit replaces every replica and a spare in the ordinary way, undrained, as it would without us."""
WITH_OURS = 3
"""Replicas that an edit's rollout may have made with the run's change in it, before that was taken out."""


def meddle_without_effect(world: World) -> None:
    """Try what kubectl refuses on a paused Deployment, and pause and resume it."""
    refused("undo")(world)
    refused("restart")(world)
    pause_and_resume(world)


def delete_old_and_drained(world: World) -> None:
    delete_pod(a_pod(OLD))(world)
    delete_pod(draining_pod)(world)


def one_after_the_other(*acts: Callable[[World], None]) -> Callable[[World, str], None]:
    """Do to one run what it goes on after; what ends a run needs one of its own."""

    def act_on(world: World, _: str) -> None:
        for act in acts:
            act(world)

    return act_on


FLAG_DEEDS = {
    Phase.CANARY: {
        "edits the flag": Deed(edit, AN_EDIT, EDITED, lost=THEIR_ROLLOUT),
        "scales down and deletes the new pod": Deed(
            one_after_the_other(scale(2), delete_pod(a_pod(NEW))), ends("Recovered"), NEW, ONLY[2], lost=3
        ),
    },
    Phase.COMPARE: {
        "deletes an old pod and the new one": Deed(
            one_after_the_other(delete_pod(a_pod(OLD)), delete_pod(a_pod(NEW))),
            ends("Recovered"),
            NEW,
            lost=2,
        ),
    },
    Phase.DRAIN: {
        "edits the flag": Deed(edit, AN_EDIT, EDITED, lost=THEIR_ROLLOUT),
        "sets an environment variable": Deed(set_variable, AN_EDIT, lost=THEIR_ROLLOUT),
        "scales to zero": Deed(simply(scale(0)), ends("ScaledToZero"), OLD, ONLY[0], lost=4),
        "tries to undo and to restart, pauses and resumes, deletes an old pod and the drained one, "
        "and scales up": Deed(
            one_after_the_other(meddle_without_effect, delete_old_and_drained, scale(5)),
            ends("Recovered"),
            NEW,
            ONLY[5],
            lost=2,
        ),
    },
    Phase.VERIFY: {
        "undoes": Deed(simply(rollout("undo")), ends("ChangeReverted"), lost=THEIR_ROLLOUT),
        "restarts": Deed(restart, AN_EDIT, lost=THEIR_ROLLOUT + WITH_OURS),
    },
}
SHORT_DEEDS = {
    Phase.DRAIN: {
        "edits the flag": FLAG_DEEDS[Phase.DRAIN]["edits the flag"],
        "deletes an old pod and the drained one, pauses and resumes, and scales up": Deed(
            one_after_the_other(delete_old_and_drained, pause_and_resume, scale(5)),
            ends("Recovered"),
            NEW,
            ONLY[5],
            lost=2,
        ),
        "scales to one": Deed(simply(scale(1)), ends("Recovered"), NEW, ONLY[1], lost=3),
    },
}
RECREATED_DEEDS = {
    Phase.DRAIN: {
        "edits the flag": FLAG_DEEDS[Phase.DRAIN]["edits the flag"],
        "pauses and resumes": Deed(simply(pause_and_resume), ends("Recovered"), NEW),
        "has it recreated again": Deed(simply(recreate), ends("Recovered"), NEW),
    },
}
REVISION_DEEDS = {
    Phase.DRAIN: {
        "edits the template": Deed(edit, AN_EDIT, EDITED, ONLY[2], THEIR_ROLLOUT),
        "wants the new one": Deed(simply(ask_back), ends("RolledBackByHand"), RAISED_CAP, ONLY[2]),
    },
    Phase.VERIFY: {
        "undoes it": Deed(
            simply(rollout("undo")), ends("ChangeReverted"), RAISED_CAP, ONLY[2], THEIR_ROLLOUT
        ),
    },
}
EITHER = ends("Recovered", "ReplacementCalledOff")


def pause_and_delete(world: World, pod: str) -> None:
    pause_and_resume(world)
    delete_pod(lambda _: pod)(world)


REPLACEMENT_DEEDS = {
    replacing.Phase.SPARE: {
        "edits the flag": Deed(edit, AN_EDIT, EDITED, lost=THEIR_ROLLOUT),
        "deletes the spare": Deed(delete(lambda world, pod: by_age(world, pod)[-1]), EITHER, lost=1),
    },
    replacing.Phase.DRAIN: {
        "scales down": Deed(simply(scale(2)), ANOTHER_NUMBER, replicas=ONLY[2], lost=2),
        "scales to the number before": Deed(simply(scale(3)), ANOTHER_NUMBER, lost=1),
        "pauses, resumes and deletes the pressured pod": Deed(pause_and_delete, ends("Recovered"), lost=1),
        "deletes a peer": Deed(delete(lambda world, pod: by_age(world, pod)[0]), EITHER, lost=1),
    },
    replacing.Phase.VERIFY: {
        "restarts": Deed(restart, AN_EDIT, lost=THEIR_ROLLOUT),
        "scales to zero": Deed(simply(scale(0)), ends("ScaledToZero"), replicas=ONLY[0], lost=4),
    },
}
BOTH = frozenset({2, 3})
AS_IT_WENT = ends("Recovered", "NotRecovered", "CanaryFailed")
delete_newest = delete_pod(lambda world: by_age(world)[-1])
SCALING_DEEDS = {
    scaling.Phase.START: {
        "edits the flag": Deed(edit, AN_EDIT, EDITED, BOTH, THEIR_ROLLOUT),
        "pauses and resumes, and deletes the new pod": Deed(
            one_after_the_other(pause_and_resume, delete_newest), AS_IT_WENT, OLD, BOTH, 1
        ),
    },
    scaling.Phase.VERIFY: {
        "scales down": Deed(simply(scale(1)), ANOTHER_NUMBER, OLD, ONLY[1], 2),
    },
    scaling.Phase.TURNED: {
        "scales to the number before": Deed(simply(scale(2)), ANOTHER_NUMBER, OLD, ONLY[2], 1),
        "deletes an old pod": Deed(delete(lambda world, _: by_age(world)[0]), AS_IT_WENT, OLD, BOTH, 1),
    },
    scaling.Phase.DRAIN: {
        "sets an environment variable": Deed(set_variable, AN_EDIT, OLD, BOTH, THEIR_ROLLOUT),
        "deletes the new pod": Deed(simply(delete_newest), AS_IT_WENT, OLD, BOTH, 1),
        "scales to zero": Deed(simply(scale(0)), ends("ScaledToZero"), OLD, ONLY[0], 3),
    },
    scaling.Phase.CHECKED: {
        "scales up": Deed(simply(scale(5)), ANOTHER_NUMBER, OLD, ONLY[5]),
    },
}
MATRIX = [
    pytest.param(kind, phase, deed, id=f"{what}, {phase}: somebody {name}")
    for what, kind, phases in (
        ("a flag", FLAG, FLAG_DEEDS),
        ("one short", SHORT, SHORT_DEEDS),
        ("recreated", RECREATED, RECREATED_DEEDS),
        ("a revision", REVISION, REVISION_DEEDS),
        ("a replacement", REPLACEMENT, REPLACEMENT_DEEDS),
        ("a scaling", SCALING, SCALING_DEEDS),
    )
    for phase, deeds in phases.items()
    for name, deed in deeds.items()
]
"""Each deed at a moment or two of each kind of run, those that a run goes on after one after the other;
what ends the run is cleaned up alike at all of them, which the deletion of the resource shows phase by phase.
The pure worlds (`tests/rollout`) have the other moments."""


@pytest.mark.parametrize(("kind", "phase", "deed"), MATRIX)
def test_a_run_survives_people(a_world, kind, phase, deed):
    world = a_world(kind.replicas, **kind.conditions(phase))
    kind.prepare(world)
    before = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, kind.replicas) as eye:
        pod = kind.hold(world, phase)
        deed.act(world, pod)
        let_go(world)
        kind.end(world, phase)

    assert kind.outcomes(world, phase) <= deed.outcomes
    assert cap(world) == deed.cap
    assert world.replicas() in deed.replicas
    assert untouched(world.deployment()["spec"]) == untouched(before)
    assert world.traces() == []
    assert len(eye.lost) <= deed.lost, eye.lost


EVERY_PHASE = [
    *(pytest.param(FLAG, phase, id=f"a flag, {phase}") for phase in Phase),
    pytest.param(FILE, Phase.DRAIN, id="a flag in a file, drain"),
    *(pytest.param(SHORT, phase, id=f"one short, {phase}") for phase in (Phase.DRAIN, Phase.WAY_BACK)),
    pytest.param(RECREATED, Phase.DRAIN, id="recreated, drain"),
    *(pytest.param(REPLACEMENT, phase, id=f"a replacement, {phase}") for phase in replacing.Phase),
    *(
        pytest.param(SCALING, phase, id=f"a scaling, {phase}")
        for phase in (scaling.Phase.START, scaling.Phase.TURNED, scaling.Phase.DRAIN)
    ),
]


@pytest.mark.parametrize(("kind", "phase"), EVERY_PHASE)
def test_deleting_the_resource_takes_its_run_back(a_world, kind, phase):
    world = a_world(kind.replicas, **kind.conditions(phase))
    kind.prepare(world)
    before, pods = world.deployment()["spec"], replacing.names(world)

    with Eye(world.cluster, world.namespace, kind.replicas) as eye:
        pod = kind.hold(world, phase)
        delete_resource(world)
        let_go(world)
        world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert world.deployment()["spec"] == before
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= kind.replicas - kind.short
    if kind in (REPLACEMENT, SCALING):
        assert pods - replacing.names(world) == ({pod} if phase is replacing.Phase.VERIFY else set())


@pytest.mark.parametrize("phase", [Phase.COMPARE, Phase.DRAIN])
def test_abandoning_the_resource_leaves_the_template(a_world, phase):
    world = a_world(2, **conditions(phase))
    before = world.deployment()["spec"]

    reach(world, phase)
    abandon_resource(world)
    world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")
    world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert cap(world) == NEW
    assert untouched(world.deployment()["spec"]) == untouched(before)
    assert world.traces() == []


FOREIGN = json.dumps({"metadata": {"finalizers": ["example.com/keep"]}})
UNKEPT = json.dumps({"metadata": {"finalizers": None}})


def orphan(world: World) -> None:
    """Delete the target and leave its replicas; of one that drains somebody took the labels off before."""
    world.kubectl("label", "pod", drained(world)[0], "app-")
    world.kubectl("delete", "deployment", "llm", "--cascade=orphan", "--wait=false")


def keep_by_finalizer(world: World) -> None:
    world.kubectl("patch", "deployment", "llm", "-p", FOREIGN)
    world.kubectl("delete", "deployment", "llm", "--wait=false")


def marked(world: World) -> list[str]:
    """Return the pods, whosever they are, on which something of ours is left."""
    left = []
    for pod in world.cluster.api.list("Pod", world.namespace):
        metadata = pod["metadata"]
        text = json.dumps([metadata.get("labels"), metadata.get("annotations")])
        signs = any(sign in text for sign in ("kvmedic.io/", CORDON_COST, f'"{DRAINING}"'))
        left += [metadata["name"]] if signs and "deletionTimestamp" not in metadata else []
    return left


@pytest.mark.parametrize(
    ("deed", "words"), [(orphan, "does not exist"), (keep_by_finalizer, "kept by example.com/keep")]
)
def test_deleting_the_target_ends_the_run_and_leaves_nobody_out_of_rotation(a_world, deed, words):
    world = a_world(2)

    reach(world, Phase.DRAIN)
    assert marked(world)
    deed(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes and the finalizer goes")
    asked = ("True", "TargetNotFound")
    world.wait(lambda: world.condition("ActionRequired") == asked, PATIENCE_SECONDS, "a person is asked")
    message = next(c["message"] for c in world.status()["conditions"] if c["type"] == "ActionRequired")
    left = marked(world)
    if deed is keep_by_finalizer:
        world.kubectl("patch", "deployment", "llm", "-p", UNKEPT)

    assert world.outcomes() == ["TargetDeleted"]
    assert words in message
    assert left == []


def test_a_namespace_that_is_deleted_in_the_middle_of_a_run_goes(a_world):
    """The Lease goes with it and cannot be made anew, so nobody leads who could take the run back."""
    world = a_world(2)

    reach(world, Phase.DRAIN)
    world.kubectl("delete", "namespace", world.namespace, "--wait=false")

    def is_away() -> bool:
        names = [each["metadata"]["name"] for each in world.cluster.api.list("Namespace")]
        return world.namespace not in names

    world.wait(is_away, PATIENCE_SECONDS, "the namespace goes")


STOPPED = [
    (FLAG, Phase.DRAIN, tuple(BRAKES)),
    (FLAG, Phase.COMPARE, ("spec.suspend",)),
    (REPLACEMENT, replacing.Phase.DRAIN, ("mode: Observe",)),
    (SCALING, scaling.Phase.START, ("spec.suspend",)),
    (SCALING, scaling.Phase.DRAIN, ("the operator-wide stop",)),
]


def brake(world: World, brakes: Iterable[str], progressing: str, meanwhile: Callable[[], None]) -> None:
    """Hold a run by one brake after the other, so that one always holds; then let it go."""
    release: Callable[[World], None] = nothing
    for name in brakes:
        hold, release_next, reason = BRAKES[name]
        hold(world)
        release(world)
        stopped = (progressing, reason)
        world.wait(
            lambda stopped=stopped: world.condition("Progressing") == stopped,  # type: ignore[misc]
            PATIENCE_SECONDS,
            "the stop is reported",
        )
        meanwhile()
        stands_still(world)
        release = release_next
    release(world)


@pytest.mark.parametrize(("kind", "phase", "brakes"), STOPPED)
def test_a_run_that_is_stopped_stands_still_with_all_its_replicas_and_goes_on(a_world, kind, phase, brakes):
    world = a_world(kind.replicas, **kind.conditions(phase))

    def stay_whole() -> None:
        let_go(world)
        world.wait(lambda: drained(world) == [], PATIENCE_SECONDS, "every replica is in rotation again")
        held = world.deployment()
        assert len(world.pods()) == kind.replicas + 1
        assert kind is not FLAG or held["spec"]["paused"]
        assert kind is not FLAG or "kvmedic.io/run" in held["metadata"]["annotations"]

    with Eye(world.cluster, world.namespace, kind.replicas) as eye:
        kind.hold(world, phase)
        brake(world, brakes, "True", stay_whole)
        kind.end(world, phase)

    assert kind.outcomes(world, phase) == {"Recovered"}
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= kind.replicas


def test_a_stop_before_a_run_opens_none(a_world):
    world = a_world(2)
    first = next(iter(BRAKES))
    BRAKES[first][0](world)

    def open_none() -> None:
        assert world.step_state() == ""

    world.start()
    brake(world, BRAKES, "False", open_none)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]


def test_a_way_back_is_open_while_everything_is_stopped(a_world):
    world = a_world(2)
    before = world.deployment()["spec"]

    reach(world, Phase.WAY_BACK)
    stop(world)
    suspend(world)
    let_go(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert world.traces() == []
