"""A flag that is changed through the object of the Deployment's owner: killed at every write, both ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvmedic.model.config_edits import Roller
from kvmedic.model.fleet import RolloutFields
from kvmedic.model.reasons import Reason
from kvmedic.model.run import StepState, Verdict
from kvmedic.model.status import Wish
from kvmedic.rollout.owners.field import field_standing
from kvmedic.rollout.preconditions import find_owner_rollout_blocker
from run_builder import UID
from worlds.owner_model import FIELD, OTHERS, OWN, Habit, OwnedFleet

MOST_WRITES = 60
WAYS = {
    "KServe rolls": (Habit.RENDERS, Roller.OWNER),
    "kvmedic rolls": (Habit.IDLES, Roller.KVMEDIC),
    "kvmedic would roll, and its controller does": (Habit.RENDERS, Roller.KVMEDIC),
}
VERDICTS = {Verdict.RECOVERED: ("16", "new"), Verdict.NOT_RECOVERED: ("64", "old")}


def ended_well(op: OwnedFleet, verdict: Verdict) -> None:
    value, revision = VERDICTS[verdict]
    assert op.ended is not None
    assert op.ended.reason.name == verdict.name
    op.come_to_rest()
    assert (op.value, op.model.revision, op.runs()) == (value, revision, {revision})
    assert op.model.fields == OWN, "nothing of the rollout's fields is ours any more"
    assert op.model.fewest >= op.model.replicas
    if op.habit is Habit.IDLES:
        assert (op.model.lost_in_rotation, op.model.undrained) == ([], [])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verdict", VERDICTS)
def test_killed_before_every_write_it_comes_to_the_same_end(way: str, verdict: Verdict) -> None:
    def run(killed_at: int | None) -> OwnedFleet:
        op = OwnedFleet(*WAYS[way])
        op.verdict, op.killed_at = verdict, killed_at
        op.until(OwnedFleet.is_over)
        ended_well(op, verdict)
        return op

    undisturbed = run(None)
    written = undisturbed.writes.count("SetOwnerField")

    assert written == (1 if verdict is Verdict.RECOVERED else 2)
    assert len(undisturbed.writes) < MOST_WRITES
    for write in range(len(undisturbed.writes)):
        again = run(write)
        lost = undisturbed.writes[write] == "SetOwnerField"
        assert again.writes.count("SetOwnerField") == written + lost, "a lost write is made once more"


def test_what_the_owner_rolls_is_never_frozen() -> None:
    op = OwnedFleet()
    op.verdict = Verdict.NOT_RECOVERED
    op.until(OwnedFleet.is_over)

    assert op.writes == ["Claim", "SetOwnerField", "SetOwnerField"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rounds", range(12))
def test_a_revert_by_the_tool_above_ends_it_and_is_not_fought(way: str, rounds: int) -> None:
    op = OwnedFleet(*WAYS[way])
    op.until(lambda it: it.value == "16")
    for number in range(rounds):
        for act in range(9):
            op.happen(act, number)
        op.tick()
    op.set_value("64")
    before = op.writes.count("SetOwnerField")
    op.until(OwnedFleet.is_over)
    op.come_to_rest()

    assert op.ended.reason is Reason.CHANGE_REVERTED
    assert op.writes.count("SetOwnerField") == before
    assert (op.value, op.runs(), op.model.fields) == ("64", {"old"}, OWN)
    assert op.model.fewest >= op.model.replicas
    if op.habit is Habit.IDLES:
        assert op.model.undrained == []


def test_a_controller_that_renders_it_otherwise_gets_the_old_value_back_once() -> None:
    op = OwnedFleet(Habit.RENDERS_OTHERWISE)
    op.until(OwnedFleet.is_over)
    op.come_to_rest()

    assert op.ended.reason is Reason.CHANGE_REVERTED, "so that it is not tried on this template again"
    assert op.writes == ["Claim", "SetOwnerField", "SetOwnerField"]
    assert (op.value, op.runs()) == ("64", {"old"})


def test_a_controller_that_does_nothing_gets_the_old_value_back() -> None:
    op = OwnedFleet(Habit.IDLES)
    op.until(OwnedFleet.is_over)

    assert op.ended.reason is Reason.OWNER_IDLE
    assert (op.value, op.runs()) == ("64", {"old"})


@pytest.mark.parametrize("way", WAYS)
def test_a_replica_that_does_not_start_is_taken_back(way: str) -> None:
    op = OwnedFleet(*WAYS[way])
    op.model.broken_revisions = {"new"}
    op.until(OwnedFleet.is_over)
    op.come_to_rest()

    assert op.ended.reason is Reason.CANARY_FAILED
    assert (op.value, op.runs(), op.model.fewest) == ("64", {"old"}, 3)


def edit_another_field(op: OwnedFleet) -> None:
    """Somebody changes the owner's object, beside our field: its controller renders a third template."""
    op.generation += 1
    op.model.revision, op.model.observed = OTHERS, False
    op.habit = Habit.IDLES


DEEDS: dict[str, tuple[Callable[[OwnedFleet], None], Reason, str]] = {
    "sets a value of their own": (lambda op: op.set_value("32"), Reason.FLAG_DRIFTED, "32"),
    "changes another field": (edit_another_field, Reason.FLAG_DRIFTED, "64"),
    "abandons it": (lambda op: setattr(op, "wish", Wish.ABANDON), Reason.ABANDONED, "16"),
    "asks for a rollback": (lambda op: setattr(op, "wish", Wish.ROLL_BACK), Reason.ROLLED_BACK_BY_HAND, "64"),
    "deletes the resource": (lambda op: setattr(op, "wish", Wish.DELETE), Reason.RESOURCE_DELETED, "64"),
}


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("rounds", [0, 3, 40])
def test_what_people_do_in_the_middle(deed: str, rounds: int) -> None:
    act, reason, value = DEEDS[deed]
    op = OwnedFleet()
    op.until(lambda it: it.value == "16")
    for number in range(rounds):
        for each in range(9):
            op.happen(each, number)
        op.tick()
    act(op)
    op.until(OwnedFleet.is_over)

    assert (op.ended.reason, op.value) == (reason, value)


def test_an_object_of_another_uid_is_left_alone() -> None:
    op = OwnedFleet()
    op.until(lambda it: it.value == "16")
    other = replace(op.fleet(), rendered_from=replace(op.fleet().rendered_from, uid="another"))

    assert field_standing(op.run, UID, other).value == "Drifted"
    assert FIELD.inverse().inverse() == FIELD


def test_before_the_first_write_a_value_that_somebody_sets_is_theirs() -> None:
    op = OwnedFleet()
    op.tick()
    assert op.run.current.state is StepState.ROLLING_OUT
    op.set_value("16")
    op.until(OwnedFleet.is_over)

    assert op.ended.reason is Reason.FLAG_DRIFTED
    assert (op.value, op.writes) == ("16", ["Claim"])


@pytest.mark.parametrize(
    ("fields", "replicas", "words"),
    [
        (OWN, 3, ""),
        (RolloutFields(False, "25%", "25%", 0, 600), 3, ""),
        (
            RolloutFields(False, "25%", "25%", 0, 600),
            4,
            "lets 1 of 4 replicas be missing (maxUnavailable 25%)",
        ),
        (RolloutFields(False, 0, 0, 0, 600), 3, "lets 1 of 3 replicas be missing"),
        (
            RolloutFields(False, 0, 0, 0, 600, "Recreate"),
            3,
            "it ends every replica at once (strategy Recreate)",
        ),
        (OWN, 1, "there is only one"),
    ],
)
def test_an_owners_rollout_is_set_off_only_where_as_many_serve(
    fields: RolloutFields, replicas: int, words: str
) -> None:
    op = OwnedFleet(replicas=replicas)
    fleet = replace(op.fleet(), fields=fields, strategy=fields.strategy)
    refused = find_owner_rollout_blocker(fleet)

    assert (refused is None) is (words == "")
    assert refused is None or words in refused.message
