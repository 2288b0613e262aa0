"""More replicas and fewer again against a model of the controllers, in every order that luck finds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, ObjectRef, Owner, Pod
from kvmedic.model.plan import ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import DrainingPod, Intent, StepState
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.drift import Standing, target_standing
from kvmedic.rollout.moves import (
    Claim,
    Cordon,
    Failed,
    Move,
    ScaleIn,
    ScaleOut,
    Settled,
    Uncordon,
    Wait,
)
from kvmedic.rollout.scaling import Scaling, is_explained, scaling_move
from kvmedic.rollout.scaling import leave_scaling as leaving_move
from kvmedic.rollout.scaling import rest_scaling as resting_move
from kvmedic.rollout.start_failure import MAKING_LIMIT, STARTS, StartLimits
from run_builder import NOW, OLD, UID, a_fleet, a_pod, a_run, a_scaling
from worlds.model_controller import Model
from worlds.number_walk import EVENTS, EVENTS_WITH_UNREADY, MANY, NumberWalk, names

LIMITS = StartLimits(timedelta(seconds=600), timedelta(seconds=120))
A_MOMENT = timedelta(seconds=1)


def a_step(before: int, after: int, template: str = "old") -> ReplicasStep:
    return ReplicasStep(
        target=ObjectRef("Deployment", "llm"),
        container="vllm",
        before=before,
        after=after,
        template=template,
        reason=Reason.REPLICAS_ADDED,
    )


class Walker(NumberWalk):
    def __init__(self, model: Model, step: ReplicasStep) -> None:
        super().__init__(model)
        self.step = step
        self.forward = True
        self.down_before = 0

    def order(self) -> Scaling:
        begins = self.forward and self.model.committed == 0
        order = Scaling(
            self.step, self.draining_pod, self.drain(), LIMITS, begins, assigned_at=self.assigned_at
        )
        return replace(order, down_before=self.down_before)

    def move(self) -> Move:
        return scaling_move(self.model.fleet(), self.order(), self.model.now)

    def turn_back(self) -> None:
        self.step, self.draining_pods, self.ended = self.step.inverse(), (), None
        self.forward = False


@given(before=st.integers(1, 4), more=st.integers(1, 3), events=EVENTS)
@MANY
def test_more_replicas_come_and_nobody_goes(before, more, events):
    model = Model.healthy(before)
    there = names(model)
    walker = Walker(model, a_step(before, before + more))

    walker.run_to_end(events)

    assert isinstance(walker.ended, Settled)
    assert there < names(model)
    assert (model.replicas, len(model.pods)) == (before + more, before + more)
    assert all(pod.in_rotation for pod in model.pods)
    assert model.lost_in_rotation == []
    assert model.fewest >= before


@given(after=st.integers(1, 4), fewer=st.integers(1, 3), events=EVENTS)
@MANY
def test_given_back_each_replica_is_drained_and_the_newest_go(after, fewer, events):
    model = Model.healthy(after + fewer)
    oldest = sorted(names(model))[:after]
    walker = Walker(model, a_step(after + fewer, after))

    walker.run_to_end(events)

    assert isinstance(walker.ended, Settled)
    assert names(model) == set(oldest)
    assert model.replicas == after
    assert not any(pod.cordoned for pod in model.pods)
    assert model.lost_in_rotation == []
    assert model.fewest >= after


@given(
    before=st.integers(1, 4),
    change=st.integers(-3, 3).filter(bool),
    events=EVENTS,
    turn=st.integers(0, 100),
    after=EVENTS,
)
@MANY
def test_turned_back_anywhere_the_number_and_the_rotation_are_as_before(before, change, events, turn, after):
    had, desired = (before + 3, before + 3 + change) if change < 0 else (before, before + change)
    model = Model.healthy(had)
    walker = Walker(model, a_step(had, desired))
    walker.take(events[:turn])

    walker.turn_back()
    walker.run_to_end(after)
    walker.come_to_rest()

    assert isinstance(walker.ended, Settled)
    assert (model.replicas, len(model.pods)) == (had, had)
    assert not any(pod.cordoned for pod in model.pods)
    assert model.lost_in_rotation == []
    assert model.fewest >= min(had, desired)


@given(before=st.integers(1, 4), more=st.integers(1, 3), events=EVENTS, after=EVENTS)
@MANY
def test_replicas_that_do_not_start_go_and_everybody_else_stays(before, more, events, after):
    model = Model.healthy(before)
    there = names(model)
    model.broken_revisions.add("old")
    walker = Walker(model, a_step(before, before + more))

    walker.run_to_end(events)
    failed = walker.ended
    walker.turn_back()
    walker.run_to_end(after)
    walker.come_to_rest()

    assert isinstance(failed, Failed)
    assert failed.reason is Reason.CANARY_FAILED
    assert isinstance(walker.ended, Settled)
    assert names(model) == there
    assert not any(pod.cordoned for pod in model.pods)
    assert model.fewest >= before


@given(before=st.integers(2, 5), more=st.integers(1, 2), events=EVENTS, turn=st.integers(0, 100))
@MANY
def test_beside_one_that_is_down_more_come_and_the_way_back_takes_nobody_who_serves(
    before, more, events, turn
):
    model = Model.healthy(before)
    model.break_down("p01")
    walker = Walker(model, a_step(before, before + more))
    walker.down_before = 1

    walker.run_to_end(events)
    came, up = walker.ended, sum(pod.in_rotation for pod in model.pods)
    walker.turn_back()
    walker.take(events[:turn])
    walker.run_to_end([])
    walker.come_to_rest()

    assert isinstance(came, Settled)
    assert up == before - 1 + more
    assert isinstance(walker.ended, Settled)
    assert len(model.pods) == model.replicas == before
    assert model.lost_in_rotation == []
    assert model.fewest >= before - 1


@given(
    after=st.integers(1, 4),
    fewer=st.integers(1, 2),
    events=EVENTS_WITH_UNREADY,
)
@MANY
def test_whatever_pods_turn_unready_nobody_in_rotation_goes_undrained(after, fewer, events):
    model = Model.healthy(after + fewer)
    walker = Walker(model, a_step(after + fewer, after))

    walker.take(events)
    if not walker.ended:
        walker.run_to_end([])
    walker.come_to_rest()

    assert isinstance(walker.ended, Settled)
    assert model.lost_in_rotation == []
    assert (model.replicas, len(model.pods)) == (after, after)


# One look at a time.

OUT_OF_ROTATION = {"cordoned": True, "in_rotation": False}
UNREADY = {"ready_at": None, "in_rotation": False, "unready_at": NOW - A_MOMENT}
STARTING = {**UNREADY, "created_at": NOW - A_MOMENT}
NEW = {"created_at": NOW - timedelta(minutes=1)}


def a_fleet_of(*pods: Pod, replicas: int | None = None, desired: int | None = None) -> Fleet:
    count = len(pods) if replicas is None else replicas
    sets = a_fleet().replica_sets
    number = count if desired is None else desired
    return a_fleet(
        replicas=count, pods=pods, replica_sets=(replace(sets[0], desired=number, available=number),)
    )


def four(**last: object) -> Fleet:
    """Three replicas, and the one that was added: `z`."""
    return a_fleet_of(a_pod("a"), a_pod("b"), a_pod("c"), a_pod("z", **{**NEW, **last}))


def an_order(before: int, after: int, drain: Drain = Drain.UNKNOWN, **changes: object) -> Scaling:
    out = DrainingPod("z", "uid-z", NOW - timedelta(minutes=1))
    order = Scaling(a_step(before, after, OLD), out, drain, LIMITS, assigned_at=NOW - timedelta(minutes=2))
    return replace(order, **changes)


ONE_DOWN = a_fleet_of(a_pod("a", **UNREADY), a_pod("b"), a_pod("c"), a_pod("z", **NEW))
BEGIN = {"assigned_at": None, "begins": True}
REPEATED = {"begins": True}
MOVES: list[tuple[str, Fleet, Scaling, type[Move], str]] = [
    ("nothing done: the number is raised", a_fleet(), an_order(3, 4, **BEGIN), ScaleOut, ""),
    (
        "somebody decides the number",
        a_fleet(scaler=Owner(Reason.REPLICAS_AUTOSCALED, "HorizontalPodAutoscaler llm")),
        an_order(3, 4, **BEGIN),
        Blocked,
        "ReplicasAutoscaled",
    ),
    (
        "a replica is not Ready, and nobody says why: none is added",
        a_fleet_of(a_pod("a"), a_pod("b"), a_pod("c", **UNREADY)),
        an_order(3, 4, **BEGIN),
        Blocked,
        "TargetNotSettled",
    ),
    (
        "a replica is not Ready: it goes first when some are given back",
        a_fleet_of(a_pod("a", **UNREADY), a_pod("b"), a_pod("c")),
        an_order(3, 2),
        Cordon,
        "a",
    ),
    ("it was written down and never committed: again", a_fleet(), an_order(3, 4, **REPEATED), ScaleOut, ""),
    (
        "never committed, and the fleet is not whole any more: it ends",
        a_fleet_of(a_pod("a"), a_pod("b"), a_pod("c", **UNREADY)),
        an_order(3, 4, **REPEATED),
        Failed,
        "TargetNotSettled",
    ),
    ("the claim was never committed: again", four(), an_order(4, 3, **REPEATED), Claim, ""),
    (
        "not made yet",
        a_fleet_of(*a_fleet().pods, replicas=4),
        an_order(3, 4, assigned_at=NOW),
        Wait,
        "AwaitingReplica",
    ),
    ("it starts", four(**STARTING), an_order(3, 4, assigned_at=NOW), Wait, "AwaitingReplica"),
    ("all serve", four(), an_order(3, 4), Settled, ""),
    ("all serve but one that was down before", ONE_DOWN, an_order(3, 4, down_before=1), Settled, ""),
    ("one is down that was not before", ONE_DOWN, an_order(3, 4), Wait, "AwaitingReplica"),
    (
        "the one that was down came up, and the one that was added did not yet",
        four(**STARTING),
        an_order(3, 4, down_before=1, assigned_at=NOW),
        Wait,
        "AwaitingReplica",
    ),
    (
        "the one that was down came up, and none was made yet",
        a_fleet_of(*a_fleet().pods, replicas=4),
        an_order(3, 4, down_before=1, assigned_at=NOW),
        Wait,
        "AwaitingReplica",
    ),
    (
        "beside a replica that waits for a node one more is asked for",
        a_fleet_of(a_pod("a", **UNREADY, unschedulable=True), a_pod("b"), a_pod("c")),
        an_order(3, 4, **BEGIN),
        ScaleOut,
        "",
    ),
    ("Ready, and in no EndpointSlice yet", four(in_rotation=False), an_order(3, 4), Wait, "AwaitingReplica"),
    (
        "a quota keeps it from being made",
        a_fleet_of(*a_fleet().pods, replicas=4),
        an_order(3, 4, assigned_at=NOW - LIMITS.spare - A_MOMENT),
        Failed,
        "SpareUnschedulable",
    ),
    (
        "no node takes it",
        four(**{**UNREADY, "unready_at": NOW - timedelta(minutes=3), "unschedulable": True}),
        an_order(3, 4),
        Failed,
        "SpareUnschedulable",
    ),
    (
        "an old one flaps for ever",
        a_fleet_of(a_pod("a", **UNREADY), a_pod("b"), a_pod("c"), a_pod("z", **NEW)),
        an_order(3, 4, assigned_at=NOW - STARTS * LIMITS.start - A_MOMENT),
        Failed,
        "CanaryFailed",
    ),
    ("before any is drained the target is claimed", four(), an_order(4, 3, **BEGIN), Claim, ""),
    ("given back: the newest is taken out", four(), an_order(4, 3), Cordon, "z"),
    ("it still has requests", four(**OUT_OF_ROTATION), an_order(4, 3, Drain.BUSY), Wait, "Draining"),
    ("nobody says whether it is busy", four(**OUT_OF_ROTATION), an_order(4, 3), Wait, "Draining"),
    ("idle: one fewer", four(**OUT_OF_ROTATION), an_order(4, 3, Drain.IDLE), ScaleIn, "z"),
    (
        "out of rotation, by nobody's record",
        four(**OUT_OF_ROTATION),
        an_order(4, 3, Drain.IDLE, draining_pod=None),
        Cordon,
        "z",
    ),
    ("drain timed out", four(**OUT_OF_ROTATION), an_order(4, 3, Drain.TIMED_OUT), ScaleIn, "z"),
    (
        "a peer turns NotReady: it goes instead, and the drained one serves again",
        a_fleet_of(a_pod("a", **UNREADY), a_pod("b"), a_pod("c"), a_pod("z", **NEW, **OUT_OF_ROTATION)),
        an_order(4, 3, Drain.IDLE, draining_pod=DrainingPod("z", "uid-z", NOW)),
        Uncordon,
        "z",
    ),
    (
        "not removed yet",
        replace(four(**OUT_OF_ROTATION), replicas=3),
        an_order(4, 3),
        Wait,
        "AwaitingController",
    ),
    (
        "one that was never made is asked for no more",
        a_fleet_of(*a_fleet().pods, replicas=4),
        an_order(4, 3, assigned_at=NOW - MAKING_LIMIT - A_MOMENT),
        ScaleIn,
        "",
    ),
    (
        "one that may be made any moment",
        a_fleet_of(*a_fleet().pods, replicas=4),
        an_order(4, 3, assigned_at=NOW - MAKING_LIMIT),
        Wait,
        "AwaitingController",
    ),
    (
        "too few others take requests",
        a_fleet_of(a_pod("a", in_rotation=False), a_pod("b"), a_pod("c"), a_pod("z", **NEW)),
        an_order(4, 3),
        Wait,
        "AwaitingReplica",
    ),
    ("given back", a_fleet(), an_order(4, 3), Settled, ""),
    (
        "given back, and one still carries the label",
        a_fleet_of(a_pod("a", **OUT_OF_ROTATION), a_pod("b"), a_pod("c")),
        an_order(4, 3),
        Uncordon,
        "a",
    ),
]


def text_of(move: Move) -> str:
    match move:
        case Cordon(pod) | Uncordon(pod):
            return pod.name
        case ScaleIn():
            return move.pod
        case Wait(reason) | Failed(reason) | Blocked(reason):
            return str(reason)
        case _:
            return ""


@pytest.mark.parametrize(
    ("fleet", "order", "kind", "what"), [row[1:] for row in MOVES], ids=[row[0] for row in MOVES]
)
def test_the_next_move(fleet, order, kind, what):
    move = scaling_move(fleet, order, NOW)

    assert isinstance(move, kind)
    assert text_of(move) == what


def test_one_fewer_is_tested_on_how_many_are_ready():
    move = scaling_move(four(**OUT_OF_ROTATION), an_order(4, 3, Drain.IDLE), NOW)

    assert move == ScaleIn(4, 3, "z", 4)


LEAVING: list[tuple[str, Fleet, Scaling, type[Move], str]] = [
    ("what was added goes, drained", four(), an_order(3, 4), Cordon, "z"),
    ("somebody set another number: it stays", four(), an_order(3, 4, is_ours=False), Settled, ""),
    ("nothing was added yet", a_fleet(), an_order(3, 4), Settled, ""),
    ("what was being given back stays", four(), an_order(4, 3), Settled, ""),
    ("and serves again", four(**OUT_OF_ROTATION), an_order(4, 3), Uncordon, "z"),
    (
        "in somebody's rollout it waits",
        replace(four(), revision="theirs"),
        an_order(3, 4),
        Wait,
        "TargetNotSettled",
    ),
    (
        "after somebody's rollout it goes",
        replace(
            four(),
            revision="theirs",
            pods=tuple(replace(pod, revision="theirs") for pod in four().pods),
        ),
        an_order(3, 4),
        Cordon,
        "z",
    ),
    (
        "not removed yet",
        replace(four(**OUT_OF_ROTATION), replicas=3),
        an_order(3, 4),
        Wait,
        "AwaitingController",
    ),
]


@pytest.mark.parametrize(
    ("fleet", "order", "kind", "what"), [row[1:] for row in LEAVING], ids=[row[0] for row in LEAVING]
)
def test_leaving(fleet, order, kind, what):
    move = leaving_move(fleet, order, NOW)

    assert isinstance(move, kind)
    assert text_of(move) == what


def test_a_fleet_rests_with_every_replica_in_rotation():
    order = an_order(4, 3)
    assert resting_move(four(**OUT_OF_ROTATION), order, NOW) == Uncordon(four(**OUT_OF_ROTATION).pods[3])
    assert resting_move(four(), order, NOW) == Wait(
        Reason.HOLDING, "the fleet stands still with every replica in rotation"
    )
    assert text_of(resting_move(replace(four(), replicas=3), order, NOW)) == "AwaitingController"


OUT = a_scaling(1, 3, 4)


def claimed(sequence: int, replicas: int) -> Fleet:
    return a_fleet(replicas=replicas, fence=f"{UID}/20260301-025500/{sequence}")


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        (claimed(1, 4), Standing.AS_RECORDED),
        (a_fleet(replicas=3), Standing.AS_RECORDED),
        (claimed(1, 3), Standing.RESCALED),
        (claimed(1, 5), Standing.RESCALED),
        (a_fleet(replicas=4), Standing.RESCALED),
        (claimed(1, 0), Standing.SCALED_TO_ZERO),
    ],
    ids=[
        "committed",
        "not committed",
        "scaled to the number before",
        "scaled up",
        "somebody was first",
        "scaled to zero",
    ],
)
@pytest.mark.parametrize("state", [StepState.ROLLING_OUT, StepState.VERIFYING, StepState.ROLLING_BACK])
def test_a_number_that_no_assignment_explains_is_somebody_elses(fleet, expected, state):
    step = a_step(3, 4, OLD)
    run = a_run(state, OUT, step=step)

    assert target_standing(run, UID, fleet) is expected
    assert is_explained(run, UID, fleet) is (expected is Standing.AS_RECORDED)


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        (claimed(1, 4), Standing.AS_RECORDED),
        (claimed(1, 3), Standing.RESCALED),
        (claimed(1, 6), Standing.RESCALED),
    ],
    ids=["as it was", "scaled to what is desired", "scaled up"],
)
def test_while_the_first_is_drained_the_number_is_the_one_of_before(fleet, expected):
    step = a_step(4, 3, OLD)
    run = a_run(StepState.ROLLING_OUT, Intent(1, "Claim", OLD, OLD, False, NOW), step=step)

    assert target_standing(run, UID, fleet) is expected
    assert is_explained(run, UID, fleet) is (expected is Standing.AS_RECORDED)


def test_before_the_first_assignment_the_number_is_the_recorded_one():
    step = a_step(3, 4, OLD)
    run = a_run(step=step)

    assert target_standing(run, UID, a_fleet()) is Standing.AS_RECORDED
    assert target_standing(run, UID, a_fleet(replicas=4)) is Standing.RESCALED
    assert is_explained(run, UID, a_fleet())


def test_where_an_undo_took_the_claim_away_both_numbers_may_be_ours():
    step = a_step(3, 5, OLD)
    run = a_run(StepState.ROLLING_OUT, a_scaling(3, 5, 4), step=step)

    found = [is_explained(run, UID, a_fleet(replicas=n)) for n in (3, 4, 5, 6)]

    assert found == [False, True, True, False]


def test_the_inverse_of_the_inverse_is_the_step():
    step = a_step(3, 5)

    assert replace(step.inverse().inverse(), reason=step.reason) == step
    assert (step.gives_back, step.inverse().gives_back) == (False, True)
    assert step.line() == "Deployment/llm: replicas 3 -> 5"
