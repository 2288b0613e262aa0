"""What people do to a StatefulSet in the middle of a run, and its runs that change no template.

A change of a flag, the replacement of a replica, more replicas and fewer: on the model of its controller,
killed before every effect, and with every deed at every phase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from kvmedic.model.fleet import ON_DELETE, ROLLING, RolloutFields
from kvmedic.model.plan import Step
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Outcome, StepState
from kvmedic.rollout import row_of
from kvmedic.rollout.drift import MOST_REGAINS, regain_freeze
from kvmedic.rollout.moves import Pause, Uncordon, Wait
from kvmedic.rollout.preconditions import Purpose
from run_builder import UID
from worlds.model_groups import GroupModel
from worlds.model_set import OWN, SetModel, SetPod
from worlds.set_operator import FEWER, FLAG, MORE, REPLACEMENT, WITH_OURS, SetOperator

SETS = {
    "by its label": {"in_order": True, "by_keys": False},
    "by its keys": {"in_order": True, "by_keys": True},
    "parallel": {"in_order": False, "by_keys": True},
}
GROUPS = {"groups": {"grouped": True}}
"""A LeaderWorkerSet: it is neither made in order nor drained by taking a leader from its controller."""
REPLICAS = {FLAG: 3, REPLACEMENT: 3, MORE: 3, FEWER: 4}
NAMES = {FLAG: "a flag", REPLACEMENT: "a replacement", MORE: "more replicas", FEWER: "fewer replicas"}


def begun(step: Step, way: dict[str, bool], dies_at: int = 0, own: RolloutFields = OWN) -> SetOperator:
    kind = GroupModel if way.get("grouped") else SetModel
    more = {name: value for name, value in way.items() if name != "grouped"}
    return SetOperator(kind.healthy(REPLICAS[step], own, **more), step, dies_at)


def out(op: SetOperator) -> list[SetPod]:
    return [pod for pod in op.model.pods if pod.cordoned and not pod.terminating]


def assert_whole(op: SetOperator, replicas: int, revision: str, own: RolloutFields = OWN) -> None:
    """All replicas serve with one template, and nothing of the run is left."""
    model = op.model
    assert [pod.revision for pod in model.pods] == [revision] * replicas
    assert sorted(pod.ordinal for pod in model.pods) == list(range(replicas))
    assert all(pod.in_rotation for pod in model.pods)
    assert model.replicas == replicas
    assert model.fields == own
    assert not any(pod.cordoned or not pod.owned for pod in model.pods)


AFTER = {FLAG: (3, "new"), REPLACEMENT: (3, "old"), MORE: (4, "old"), FEWER: (3, "old")}


WHOLE = [
    pytest.param(step, way, id=f"{NAMES[step]}-{name}")
    for name, way in {**SETS, **GROUPS}.items()
    for step in NAMES
    if name in SETS or step in (FLAG, REPLACEMENT)
]


@pytest.mark.parametrize(("step", "way"), WHOLE)
def test_killed_before_every_effect_the_run_ends_as_it_would_have(step, way):
    whole = begun(step, way)
    whole.until(SetOperator.is_over)
    assert whole.writes > (1 if step is MORE else 2) or step is MORE

    for dies_at in range(1, whole.writes + 1):
        op = begun(step, way, dies_at)
        op.until(lambda op, at=dies_at: op.writes == at)
        op.come_to_rest()
        op.until(SetOperator.is_over)
        op.come_to_rest()

        assert op.state is StepState.VERIFYING
        assert_whole(op, *AFTER[step])
        assert op.model.undrained == []
        assert op.model.fewest >= (3 if step in (MORE, FEWER) else 2)
        assert {pod.uid for pod in op.model.pods} & {"llm-1#2"} == (
            set() if step in (FLAG, REPLACEMENT) else {"llm-1#2"}
        )


@pytest.mark.parametrize(("step", "way"), WHOLE)
def test_taken_back_before_every_effect_all_is_as_it_was(step, way):
    whole = begun(step, way)
    whole.until(SetOperator.is_over)

    for dies_at in range(2, whole.writes + 1):
        op = begun(step, way, dies_at)
        op.until(lambda op, at=dies_at: op.writes == at)
        op.run = op.run.turn_step_back(Outcome(Reason.NOT_RECOVERED, "worse"), None)
        op.until(SetOperator.is_over)
        op.come_to_rest()

        assert op.ended is not None
        assert_whole(op, REPLICAS[step], "old")
        assert op.model.undrained == []
        assert op.model.fewest >= (3 if step in (MORE, FEWER) else 2)


# What people do.


def edit(revision: str) -> Callable[[SetOperator], None]:
    return lambda op: op.model.edit(revision)


def undo(op: SetOperator) -> None:
    """Put back the template from before, as `kubectl rollout undo` does; no annotation of a StatefulSet."""
    op.model.edit("old")


def apply_manifest(op: SetOperator) -> None:
    """Apply the team's whole manifest, with the strategy and the template from before, and without marks."""
    op.model.fields = op.model.own
    op.model.fence = ""
    op.model.edit("old")


def set_strategy(strategy: str = ROLLING, partition: int = 0) -> Callable[[SetOperator], None]:
    """Set the whole strategy; the mark of a permit goes with it, which counts beside `OnDelete` alone."""

    def act(op: SetOperator) -> None:
        own = replace(op.model.fields, strategy=strategy, partition=partition, paused=False, permits=False)
        op.model.fields = own
        op.model.observed, op.model.wakes = False, True

    return act


def remove_claim(op: SetOperator) -> None:
    op.model.fence = ""


def remove_annotations(op: SetOperator) -> None:
    remove_claim(op)
    op.model.fields = replace(op.model.fields, permits=False)


def scale(replicas: int) -> Callable[[SetOperator], None]:
    return lambda op: op.model.scale(replicas)


def delete(which: Callable[[SetOperator], list[SetPod]]) -> Callable[[SetOperator], None]:
    def act(op: SetOperator) -> None:
        for pod in which(op)[:1]:
            op.model._end(pod)
            op.model.wakes = True

    return act


def lowest(op: SetOperator) -> list[SetPod]:
    return sorted((pod for pod in op.model.pods if not pod.cordoned), key=lambda pod: pod.ordinal)


def newest(op: SetOperator) -> list[SetPod]:
    return sorted((pod for pod in op.model.pods if not pod.cordoned), key=lambda pod: -pod.number)


@dataclass(frozen=True)
class Deed:
    """What somebody does, and what must come of it."""

    act: Callable[[SetOperator], None]
    ends: tuple[str, ...] = ("",)
    """Reasons of the run's end; empty: it goes on and may be judged."""
    revision: str = ""
    """What all replicas run afterwards; empty: what the run wants."""
    replicas: int = 0
    """How many there are; 0: as many as the run wants."""
    own: RolloutFields = OWN
    lost: int = 0
    """Replicas that may go with requests: the deed's own share."""
    missing: int = 1
    """Replicas that may be out of rotation at once."""
    thaws: bool = False
    """By it the controller replaces replicas undrained until the operator looks: a dead one does not."""


ALL = 4
"""An edit is rolled out by the StatefulSet's own strategy, undrained, as it would be without us."""
PARTITION, DELETES = replace(OWN, partition=1), replace(OWN, strategy=ON_DELETE)
DRIFTED, REVERTED, RESCALED = ("FlagDrifted",), ("ChangeReverted",), ("ReplicasChanged",)
FLAG_DEEDS = {
    "edits the flag": Deed(edit("theirs"), DRIFTED, "theirs", lost=ALL, missing=2),
    "sets a variable": Deed(edit(WITH_OURS), DRIFTED, "theirs", lost=ALL, missing=2),
    "undoes": Deed(undo, REVERTED, "old"),
    "applies the manifest": Deed(apply_manifest, REVERTED, "old", thaws=True),
    "takes the claim off": Deed(remove_claim),
    "sets the partition to 0": Deed(set_strategy(), thaws=True),
    "sets a partition": Deed(set_strategy(partition=1), own=PARTITION, thaws=True),
    "sets OnDelete": Deed(set_strategy(ON_DELETE), own=DELETES),
    "takes all annotations off": Deed(remove_annotations),
    "scales up": Deed(scale(5), replicas=5),
    "scales down": Deed(scale(2), replicas=2, lost=1, missing=2),
    "scales to zero": Deed(scale(0), ("ScaledToZero",), "old", lost=3, missing=3),
    "deletes the lowest": Deed(delete(lowest), lost=1, missing=2),
    "deletes the newest": Deed(delete(newest), lost=1, missing=2),
    "deletes the drained one": Deed(delete(out), lost=1),
}
FLAG_PHASES: dict[str, Callable[[SetOperator], bool]] = {
    "frozen": lambda op: op.model.fields.is_frozen and op.model.revision == "new" and not out(op),
    "drain": lambda op: any(pod.busy and not pod.in_rotation for pod in out(op)),
    "permit": lambda op: op.model.fields.permits,
    "deleted": lambda op: op.model.fields.permits and any(pod.terminating for pod in op.model.pods),
    "made": lambda op: any(pod.revision == "new" and not pod.ready for pod in op.model.pods),
    "between": lambda op: sum(pod.revision == "new" and pod.in_rotation for pod in op.model.pods) == 2,
    "last": lambda op: op.model.fields.is_frozen and all(p.revision == "new" for p in op.model.pods),
}


FLAG_CASES = [
    pytest.param(deed, phase, way, id=f"{deed}, {phase}-{name}")
    for name, way in {**SETS, **GROUPS}.items()
    for deed in FLAG_DEEDS
    for phase in FLAG_PHASES
    if (deed, phase) != ("applies the manifest", "frozen")
    and (deed != "sets OnDelete" or way not in GROUPS.values())
]
"""Who puts everything back at once before anybody was drained leaves no sign that the change was made. A
LeaderWorkerSet has one type of strategy alone."""


def act_and_walk_on(op: SetOperator, made: Deed, *, is_dead: bool) -> None:
    made.act(op)
    if is_dead:
        op.come_to_rest()
    op.tick()
    op.until(SetOperator.is_over)
    op.come_to_rest()


def while_let_go(made: Deed, op: SetOperator, *, is_dead: bool) -> Deed:
    """Return a deed that meets groups while one of them is let go, and so are those above it.

    By their own strategy these go undrained; and the same partition of theirs looks like ours.
    """
    if op.model.fields.partition == made.own.partition:
        made = replace(made, own=OWN)
    return replace(made, lost=2 * ALL, missing=2) if is_dead else made


def assert_survived(op: SetOperator, made: Deed, replicas: int, revision: str) -> None:
    """The run ended as it may, the set is whole, and no more was lost or missing than people took."""
    replicas = 0 if "ScaledToZero" in made.ends else replicas
    assert (op.ended.reason if op.ended else "") in made.ends
    assert_whole(op, replicas, revision, made.own)
    assert len(op.model.undrained) <= made.lost
    assert op.model.fewest >= min(3, replicas) - made.missing


DEAD = pytest.mark.parametrize("is_dead", [False, True], ids=["at once", "after a minute without operator"])


@DEAD
@pytest.mark.parametrize(("deed", "phase", "way"), FLAG_CASES)
def test_a_change_of_a_flag_survives_people(deed, phase, way, is_dead):
    made, op = FLAG_DEEDS[deed], begun(FLAG, way)
    op.until(FLAG_PHASES[phase])
    if made.own is DELETES and op.model.fields.permits:
        made = replace(made, own=OWN)  # nothing distinguishes theirs from ours, which is there just now

    if made.thaws and is_dead:
        made = replace(made, lost=ALL, missing=2)
    if op.model.fields.permits and way in GROUPS.values():
        made = while_let_go(made, op, is_dead=is_dead)

    act_and_walk_on(op, made, is_dead=is_dead)

    assert_survived(op, made, replicas=made.replicas or 3, revision=made.revision or "new")


NUMBER_DEEDS = {
    "edits the flag": Deed(edit("theirs"), DRIFTED, "theirs", lost=ALL, missing=2),
    "takes the claim off": Deed(remove_claim),
    "sets a partition": Deed(set_strategy(partition=1), own=PARTITION),
    "scales up": Deed(scale(6), RESCALED, replicas=6),
    "scales to two": Deed(scale(2), RESCALED, replicas=2, lost=2, missing=2),
    "scales to zero": Deed(scale(0), ("ScaledToZero",), lost=4, missing=3),
    "deletes the lowest": Deed(delete(lowest), lost=1, missing=2),
    "deletes the newest": Deed(delete(newest), lost=1, missing=2),
    "deletes the drained one": Deed(delete(out), lost=1, missing=1),
}
DRAIN: Callable[[SetOperator], bool] = lambda op: any(pod.busy and not pod.in_rotation for pod in out(op))  # noqa: E731
NUMBER_PHASES = {
    "a replacement, drain": (REPLACEMENT, DRAIN),
    "a replacement, gone": (REPLACEMENT, lambda op: len(op.model.pods) < 3),
    "a replacement, made": (REPLACEMENT, lambda op: not all(p.ready for p in op.model.pods)),
    "more replicas, asked": (MORE, lambda op: op.model.replicas == 4),
    "more replicas, made": (MORE, lambda op: len(op.model.pods) == 4),
    "fewer replicas, drain": (FEWER, DRAIN),
    "fewer replicas, lowered": (FEWER, lambda op: op.model.replicas == 3),
}
NUMBER_CASES = [
    pytest.param(deed, step, phase, way, id=f"{deed}, {when}-{name}")
    for name, way in {**SETS, **GROUPS}.items()
    for deed in NUMBER_DEEDS
    for when, (step, phase) in NUMBER_PHASES.items()
    if name in SETS or step is REPLACEMENT
]
"""How many groups a LeaderWorkerSet has is not changed."""


@DEAD
@pytest.mark.parametrize(("deed", "step", "phase", "way"), NUMBER_CASES)
def test_a_change_of_replicas_survives_people(deed, step, phase, way, is_dead):
    made, op = NUMBER_DEEDS[deed], begun(step, way)
    op.until(phase)
    if step is REPLACEMENT and made.ends == RESCALED:
        made = replace(made, ends=("",))  # it counts its replicas anew
    if step is MORE and made.act is remove_claim:
        made = replace(made, ends=RESCALED, replicas=4)  # nothing says whose number it is, so it stays

    act_and_walk_on(op, made, is_dead=is_dead)

    assert_survived(op, made, replicas=made.replicas or op.model.replicas, revision=made.revision or "old")


@pytest.mark.parametrize(("uid", "reason"), [("llm-1#2", None), ("llm-1#1", Reason.TARGET_NOT_SETTLED)])
def test_a_replica_that_was_made_anew_meanwhile_is_not_replaced(uid: str, reason: Reason | None) -> None:
    step = replace(REPLACEMENT, uid=uid)

    blocked = row_of(step).find_blocker(
        begun(REPLACEMENT, SETS["by its label"]).model.fleet(), Purpose.RELIEF
    )

    assert (blocked.reason if blocked else None) is reason


@pytest.mark.parametrize("way", [SETS["by its label"], GROUPS["groups"]], ids=["a set", "groups"])
def test_a_run_at_rest_puts_a_replica_back_and_lets_nobody_go(way: dict[str, bool]) -> None:
    op = begun(FLAG, way)
    op.until(lambda op: bool(out(op)))
    back = row_of(FLAG).rest(op.model.fleet(), op.known())
    op.until(lambda op: not op.model.fields.paused)
    op.come_to_rest()
    hold = row_of(FLAG).rest(op.model.fleet(), op.known())

    assert isinstance(back, Uncordon)
    assert isinstance(hold, Pause)


def test_a_run_at_rest_waits_for_a_replica_that_is_being_made() -> None:
    op = begun(FLAG, SETS["by its label"])
    op.until(lambda op: len(op.model.pods) < REPLICAS[FLAG])

    move = row_of(FLAG).rest(op.model.fleet(), op.known())

    assert isinstance(move, Wait)
    assert move.reason is Reason.AWAITING_CONTROLLER


@pytest.mark.parametrize(
    ("way", "field"), [(SETS["by its label"], "updateStrategy"), (GROUPS["groups"], "rolloutStrategy")]
)
def test_a_field_that_somebody_sets_again_and_again_is_named(way: dict[str, bool], field: str) -> None:
    op = begun(FLAG, way)
    op.until(lambda op: bool(out(op)))
    for _ in range(MOST_REGAINS + 1):
        op.model.fields = op.model.own
        found = regain_freeze(op.run, UID, op.model.fleet(), op.model.now)
        op.run = found.run

    assert found.outcome.reason is Reason.ROLLOUT_CONTESTED
    assert f"leave {field} alone" in found.outcome.message
