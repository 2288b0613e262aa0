"""Replacing one replica against a model of the controllers, in every order of events that luck finds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, ObjectRef, Owner
from kvmedic.model.plan import PodToRemove, ReplaceStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import DrainingPod, Intent, StepRecord, StepState
from kvmedic.rollout.draining import PEER_GRACE, Drain
from kvmedic.rollout.moves import (
    Cordon,
    DeletePod,
    Failed,
    Move,
    ScaleIn,
    ScaleOut,
    Settled,
    Uncordon,
    Wait,
)
from kvmedic.rollout.replacement import Replacement, Scaled, find_last_scaling, replacing_move, spare_of
from kvmedic.rollout.replacement import leave_replacement as leaving_move
from kvmedic.rollout.replacement import rest_replacement as resting_move
from kvmedic.rollout.start_failure import StartLimits
from run_builder import NOW, OLD, UID, a_fleet, a_pod, a_run, a_scaling
from worlds.model_controller import Model
from worlds.number_walk import EVENTS, EVENTS_WITH_UNREADY, MANY, NumberWalk, names

NAMED = "p01"
LIMITS = StartLimits(timedelta(seconds=600), timedelta(seconds=120))
DRAIN_LIMIT = timedelta(seconds=300)
A_MOMENT = timedelta(seconds=1)


def a_step(replicas: int, pod: str = NAMED, template: str = "old") -> ReplaceStep:
    return ReplaceStep(
        target=ObjectRef("Deployment", "llm"),
        container="vllm",
        pod=pod,
        uid=pod,
        replicas=replicas,
        template=template,
        reason=Reason.ONE_REPLICA_PRESSURED,
    )


class Walker(NumberWalk):
    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.step = a_step(model.replicas)
        self.down_before = sum(not pod.ready for pod in model.pods)

    def order(self) -> Replacement:
        scaled = (Scaled.NOT_YET, Scaled.OUT, Scaled.BACK)[self.model.committed]
        order = Replacement(
            self.step, scaled, self.draining_pod, self.drain(), LIMITS, DRAIN_LIMIT, self.assigned_at
        )
        return replace(order, down_before=self.down_before)

    def move(self) -> Move:
        return replacing_move(self.model.fleet(), self.order(), self.model.now)

    def turn_back(self) -> None:
        self.step, self.draining_pods, self.ended = self.step.inverse(), (), None


@given(replicas=st.integers(2, 5), events=EVENTS)
@MANY
def test_exactly_the_named_replica_goes_and_nobody_who_takes_requests(replicas, events):
    model = Model.healthy(replicas)
    before = names(model)
    walker = Walker(model)

    walker.run_to_end(events)

    assert isinstance(walker.ended, Settled)
    assert before - names(model) == {NAMED}
    assert (model.replicas, len(model.pods)) == (replicas, replicas)
    assert not any(pod.cordoned for pod in model.pods)
    assert model.lost_in_rotation == []
    assert model.fewest >= replicas


@given(replicas=st.integers(2, 5), down=st.sampled_from([NAMED, "p02"]), events=EVENTS)
@MANY
def test_beside_one_that_is_down_the_named_replica_goes_and_nobody_who_takes_requests(replicas, down, events):
    model = Model.healthy(replicas)
    model.break_down(down)
    walker = Walker(model)

    walker.run_to_end(events)
    walker.come_to_rest()

    assert isinstance(walker.ended, Settled)
    assert NAMED not in names(model)
    assert model.replicas == len(model.pods) == replicas
    assert not any(pod.cordoned for pod in model.pods)
    assert model.lost_in_rotation == []
    assert model.fewest >= replicas - 1


@given(replicas=st.integers(2, 5), down=st.booleans(), events=EVENTS, turn=st.integers(0, 100), after=EVENTS)
@MANY
def test_turned_back_anywhere_the_number_and_the_rotation_are_as_before(replicas, down, events, turn, after):
    model = Model.healthy(replicas)
    if down:
        model.break_down("p02")
    walker = Walker(model)
    walker.take(events[:turn])
    went = NAMED not in names(model) or model.committed == 2

    walker.turn_back()
    walker.run_to_end(after)
    walker.come_to_rest()

    assert isinstance(walker.ended, Settled)
    assert (model.replicas, len(model.pods)) == (replicas, replicas)
    assert not any(pod.cordoned for pod in model.pods)
    assert went or NAMED in names(model)
    assert model.lost_in_rotation == []
    assert model.fewest >= replicas - down


@given(replicas=st.integers(2, 4), events=EVENTS, after=EVENTS)
@MANY
def test_a_spare_that_does_not_start_goes_and_everybody_else_stays(replicas, events, after):
    model = Model.healthy(replicas)
    before = names(model)
    model.broken_revisions.add("old")
    walker = Walker(model)

    walker.run_to_end(events)
    failed = walker.ended
    walker.turn_back()
    walker.run_to_end(after)

    assert isinstance(failed, Failed)
    assert failed.reason is Reason.CANARY_FAILED
    assert isinstance(walker.ended, Settled)
    assert names(model) == before
    assert not any(pod.cordoned for pod in model.pods)
    assert model.fewest >= replicas


@given(replicas=st.integers(2, 4), events=EVENTS_WITH_UNREADY)
@MANY
def test_whatever_pods_turn_unready_nobody_in_rotation_goes_undrained(replicas, events):
    model = Model.healthy(replicas)
    walker = Walker(model)

    walker.take(events)
    if not isinstance(walker.ended, Settled):
        walker.turn_back()
        walker.run_to_end([])

    assert model.lost_in_rotation == []
    assert (model.replicas, len(model.pods)) == (replicas, replicas)


# One look at a time.


def a_surged_fleet(**named: object) -> Fleet:
    """Three replicas and a spare; the named one is `a`."""
    pods = (
        a_pod("a", **named),
        a_pod("b"),
        a_pod("c"),
        a_pod("z", created_at=NOW - timedelta(minutes=1)),
    )
    sets = a_fleet().replica_sets
    return a_fleet(replicas=4, pods=pods, replica_sets=(replace(sets[0], desired=4, available=4),))


RECORDED = DrainingPod("a", "uid-a", NOW - timedelta(minutes=1))
"""The drained one by the record, as it mostly is."""


def an_order(scaled: Scaled = Scaled.OUT, **changes: object) -> Replacement:
    step = a_step(3, "uid-a", OLD)
    order = Replacement(
        replace(step, pod="a"),
        scaled,
        RECORDED,
        Drain.UNKNOWN,
        LIMITS,
        DRAIN_LIMIT,
        NOW - timedelta(minutes=2),
    )
    return replace(order, **changes)


def with_pod(fleet: Fleet, name: str, **changes: object) -> Fleet:
    pods = tuple(replace(pod, **changes) if pod.name == name else pod for pod in fleet.pods)
    return replace(fleet, pods=pods)


def without_pod(fleet: Fleet, name: str) -> Fleet:
    return replace(fleet, pods=tuple(pod for pod in fleet.pods if pod.name != name))


OUT_OF_ROTATION = {"cordoned": True, "in_rotation": False}
UNREADY = {"ready_at": None, "in_rotation": False, "unready_at": NOW - A_MOMENT}
CRASHES = {**UNREADY, "waiting_reason": "CrashLoopBackOff"}
LONG_UNREADY = {**UNREADY, "unready_at": NOW - PEER_GRACE - A_MOMENT}
IDLE = {"drain": Drain.IDLE}
CORDONED = a_surged_fleet(**OUT_OF_ROTATION)

MOVES: list[tuple[str, Fleet, Replacement, type[Move], str]] = [
    ("nothing done: the spare comes first", a_fleet(), an_order(Scaled.NOT_YET), ScaleOut, ""),
    ("spare in rotation: the named one is cordoned", a_surged_fleet(), an_order(), Cordon, "a"),
    ("no spare yet", without_pod(a_surged_fleet(), "z"), an_order(assigned_at=NOW), Wait, "AwaitingCanary"),
    ("the spare starts", with_pod(a_surged_fleet(), "z", **UNREADY), an_order(), Wait, "AwaitingCanary"),
    (
        "the spare is Ready and in no EndpointSlice yet",
        with_pod(a_surged_fleet(), "z", in_rotation=False),
        an_order(),
        Wait,
        "AwaitingCanary",
    ),
    ("a peer is NotReady", with_pod(a_surged_fleet(), "b", **UNREADY), an_order(), Wait, "AwaitingReplica"),
    (
        "a peer is NotReady for a moment while the named one drains",
        with_pod(CORDONED, "b", **UNREADY),
        an_order(**IDLE),
        Wait,
        "AwaitingReplica",
    ),
    (
        "a peer is NotReady for long: the named one serves again",
        with_pod(CORDONED, "b", **LONG_UNREADY),
        an_order(**IDLE),
        Uncordon,
        "a",
    ),
    ("a stray cordon", with_pod(a_surged_fleet(), "b", cordoned=True), an_order(), Uncordon, "b"),
    (
        "a peer that is down, as before, and is explained is not waited for",
        with_pod(a_surged_fleet(), "b", **CRASHES),
        an_order(down_before=1),
        Cordon,
        "a",
    ),
    (
        "the controller would take it, so the drained one goes by name",
        with_pod(CORDONED, "b", **CRASHES),
        an_order(**IDLE, down_before=1),
        DeletePod,
        "a",
    ),
    (
        "down as before, and nobody says why: too few for a quorum",
        with_pod(a_surged_fleet(), "b", **UNREADY),
        an_order(down_before=1),
        Wait,
        "AwaitingReplica",
    ),
    (
        "the spare does not serve yet, no matter who else does",
        with_pod(a_surged_fleet(), "z", **UNREADY),
        an_order(down_before=1),
        Wait,
        "AwaitingCanary",
    ),
    ("busy", CORDONED, an_order(drain=Drain.BUSY), Wait, "Draining"),
    ("nobody says whether it is busy", CORDONED, an_order(), Wait, "Draining"),
    ("idle: the recorded number", CORDONED, an_order(**IDLE), ScaleIn, "a"),
    ("drain timed out", CORDONED, an_order(drain=Drain.TIMED_OUT), ScaleIn, "a"),
    ("out of rotation, by nobody's record", CORDONED, an_order(draining_pod=None), Cordon, "a"),
    (
        "idle is another one that went meanwhile",
        CORDONED,
        an_order(**IDLE, draining_pod=replace(RECORDED, uid="uid-gone")),
        Cordon,
        "a",
    ),
    (
        "the named one is dead: it goes first anyway",
        with_pod(CORDONED, "a", ready_at=None),
        an_order(drain=Drain.DOWN),
        ScaleIn,
        "a",
    ),
    (
        "it is not Ready, and nobody knows of its requests",
        with_pod(CORDONED, "a", ready_at=None),
        an_order(drain=Drain.UNKNOWN),
        Wait,
        "Draining",
    ),
    ("its drain timed out: it serves again", CORDONED, an_order(drain=Drain.HELD), Uncordon, "a"),
    (
        "it serves again, and a person is asked, however long that takes",
        a_surged_fleet(),
        an_order(held=frozenset({"uid-a"}), assigned_at=NOW - timedelta(days=1)),
        Wait,
        "DrainTimedOut",
    ),
    (
        "somebody deleted the named one: the newest goes in its place",
        without_pod(with_pod(a_surged_fleet(), "z", **UNREADY), "a"),
        an_order(),
        ScaleIn,
        "",
    ),
    (
        "not removed yet",
        replace(CORDONED, replicas=3),
        an_order(Scaled.BACK),
        Wait,
        "AwaitingController",
    ),
    (
        "a spare that finds no node",
        with_pod(
            a_surged_fleet(),
            "z",
            **UNREADY | {"unready_at": NOW - LIMITS.spare - A_MOMENT},
            unschedulable=True,
        ),
        an_order(),
        Failed,
        "SpareUnschedulable",
    ),
    (
        "no spare is made: a quota",
        without_pod(a_surged_fleet(), "z"),
        an_order(assigned_at=NOW - LIMITS.spare - A_MOMENT),
        Failed,
        "SpareUnschedulable",
    ),
    (
        "a spare that crashes",
        with_pod(a_surged_fleet(), "z", **UNREADY, restarts=2),
        an_order(),
        Failed,
        "CanaryFailed",
    ),
    (
        "at the limit it goes on",
        a_surged_fleet(),
        an_order(assigned_at=NOW - 2 * LIMITS.start - DRAIN_LIMIT),
        Cordon,
        "a",
    ),
    (
        "over the limit it is called off",
        a_surged_fleet(),
        an_order(assigned_at=NOW - 2 * LIMITS.start - DRAIN_LIMIT - A_MOMENT),
        Failed,
        "ReplacementCalledOff",
    ),
]


def said(move: Move) -> str:
    match move:
        case Cordon(pod) | Uncordon(pod) | DeletePod(pod):
            return pod.name
        case ScaleIn(_, _, pod, _):
            return pod
        case Wait(reason, _) | Failed(reason, _) | Blocked(reason, _):
            return str(reason)
        case _:
            return ""


@pytest.mark.parametrize(
    ("fleet", "order", "kind", "text"), [row[1:] for row in MOVES], ids=[row[0] for row in MOVES]
)
def test_the_next_move(fleet: Fleet, order: Replacement, kind: type[Move], text: str) -> None:
    move = replacing_move(fleet, order, NOW)

    assert isinstance(move, kind), move
    if kind is not ScaleIn or text:
        assert said(move) == text


def test_the_numbers_are_absolute_and_the_patch_says_how_many_are_ready() -> None:
    assert replacing_move(a_fleet(), an_order(Scaled.NOT_YET), NOW) == ScaleOut(3, 4, "a")
    assert replacing_move(CORDONED, an_order(**IDLE), NOW) == ScaleIn(4, 3, "a", 4)
    dead = with_pod(CORDONED, "a", ready_at=None)
    assert replacing_move(dead, an_order(drain=Drain.DOWN), NOW) == ScaleIn(4, 3, "a", 3)


def test_a_finished_replacement_is_settled_and_one_that_took_another_is_not() -> None:
    replica_set = replace(a_fleet().replica_sets[0], desired=3)
    done = replace(without_pod(CORDONED, "a"), replicas=3, replica_sets=(replica_set,))
    other = replace(without_pod(a_surged_fleet(), "b"), replicas=3, replica_sets=(replica_set,))
    order = an_order(Scaled.BACK)

    assert isinstance(replacing_move(done, order, NOW), Settled)
    assert said(replacing_move(with_pod(done, "z", **UNREADY), order, NOW)) == "AwaitingReplica"
    assert said(replacing_move(other, order, NOW)) == "ReplacementCalledOff"


HPA = Owner(Reason.REPLICAS_AUTOSCALED, "HorizontalPodAutoscaler llm")
GONE = without_pod(a_fleet(), "a")
REFUSALS: list[tuple[str, Fleet, Reason]] = [
    ("an autoscaler", a_fleet(scaler=HPA), Reason.REPLICAS_AUTOSCALED),
    ("a replica is not Ready", with_pod(a_fleet(), "b", **UNREADY), Reason.TARGET_NOT_SETTLED),
    (
        "the replica is gone, another came",
        replace(GONE, pods=(*GONE.pods, a_pod("d"))),
        Reason.TARGET_NOT_SETTLED,
    ),
]


@pytest.mark.parametrize(("fleet", "reason"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_what_keeps_a_replacement_from_beginning(fleet: Fleet, reason: Reason) -> None:
    fresh = replacing_move(fleet, an_order(Scaled.NOT_YET, assigned_at=None), NOW)
    begun = replacing_move(fleet, an_order(Scaled.NOT_YET), NOW)

    assert isinstance(fresh, Blocked)
    assert isinstance(begun, Failed), "a run whose intent was written down is ended as one that had begun"
    assert (fresh.reason, begun.reason) == (reason, reason)


def test_recreate_blocks_nothing_as_nothing_is_rolled_out() -> None:
    fleet = a_fleet(strategy="Recreate")

    assert isinstance(replacing_move(fleet, an_order(Scaled.NOT_YET), NOW), ScaleOut)


BACKWARD = {"step": replace(an_order().step, pod_to_remove=PodToRemove.SPARE)}
BACK_MOVES: list[tuple[str, Fleet, Replacement, type[Move], str]] = [
    ("nothing was done", a_fleet(), an_order(Scaled.NOT_YET, **BACKWARD), Settled, ""),
    ("the named one serves again first", CORDONED, an_order(**BACKWARD), Uncordon, "a"),
    ("then the spare is drained", a_surged_fleet(), an_order(**BACKWARD), Cordon, "z"),
    (
        "a spare that does not start goes at once",
        with_pod(a_surged_fleet(), "z", **UNREADY, cordoned=True),
        an_order(**BACKWARD, drain=Drain.DOWN, draining_pod=DrainingPod("z", "uid-z", NOW)),
        ScaleIn,
        "z",
    ),
    (
        "a spare whose drain timed out is not the next that is drained",
        a_surged_fleet(),
        an_order(**BACKWARD, held=frozenset({"uid-z"})),
        Cordon,
        "b",
    ),
    (
        "while one that is held is not Ready the controller would take that",
        with_pod(a_surged_fleet(), "z", **UNREADY),
        an_order(**BACKWARD, held=frozenset({"uid-z"})),
        Wait,
        "DrainTimedOut",
    ),
    (
        "a dead peer goes before a spare that serves",
        with_pod(a_surged_fleet(), "b", **UNREADY),
        an_order(**BACKWARD),
        Cordon,
        "b",
    ),
    ("no spare was made", without_pod(a_surged_fleet(), "z"), an_order(**BACKWARD), ScaleIn, ""),
]


@pytest.mark.parametrize(
    ("fleet", "order", "kind", "text"), [row[1:] for row in BACK_MOVES], ids=[row[0] for row in BACK_MOVES]
)
def test_the_next_move_back(fleet: Fleet, order: Replacement, kind: type[Move], text: str) -> None:
    move = replacing_move(fleet, order, NOW)

    assert isinstance(move, kind), move
    assert said(move) == text


def test_a_fleet_at_rest_has_everybody_in_rotation_and_keeps_the_spare() -> None:
    assert said(resting_move(CORDONED, an_order(), NOW)) == "a"
    assert said(resting_move(a_surged_fleet(), an_order(), NOW)) == "Holding"


def test_marks_stay_while_the_controller_has_the_drained_pod_still_to_take() -> None:
    shrinking = replace(CORDONED, replicas=3)

    assert said(resting_move(shrinking, an_order(Scaled.BACK), NOW)) == "AwaitingController"
    assert said(leaving_move(shrinking, an_order(Scaled.BACK), NOW)) == "AwaitingController"


THEIRS = "c" * 16
EDITED = replace(CORDONED, revision=THEIRS)
ROLLED = replace(
    EDITED,
    pods=tuple(replace(pod, revision=THEIRS, cordoned=False, in_rotation=True) for pod in EDITED.pods),
    replica_sets=(replace(EDITED.replica_sets[0], revision=THEIRS),),
)
LEAVING: list[tuple[str, Fleet, Replacement, type[Move], str]] = [
    ("nothing done", a_fleet(), an_order(Scaled.NOT_YET), Settled, ""),
    ("done", a_fleet(), an_order(Scaled.BACK), Settled, ""),
    ("their number: our cordon goes", replace(CORDONED, replicas=6), an_order(), Uncordon, "a"),
    ("their number stays", replace(a_surged_fleet(), replicas=6), an_order(), Settled, ""),
    ("their template: our cordon goes first", EDITED, an_order(), Uncordon, "a"),
    (
        "their rollout is waited for",
        replace(EDITED, pods=a_surged_fleet().pods),
        an_order(),
        Wait,
        "TargetNotSettled",
    ),
    ("their rollout is complete: our number goes back, drained", ROLLED, an_order(), Cordon, "z"),
    (
        "one that was out of rotation before it was theirs is taken out again, by the record",
        with_pod(ROLLED, "z", **OUT_OF_ROTATION),
        an_order(draining_pod=None),
        Cordon,
        "z",
    ),
    ("abandoned: the spare is drained", a_surged_fleet(), an_order(), Cordon, "z"),
    ("scaled to zero", a_fleet(replicas=0, pods=()), an_order(), Settled, ""),
]


@pytest.mark.parametrize(
    ("fleet", "order", "kind", "text"), [row[1:] for row in LEAVING], ids=[row[0] for row in LEAVING]
)
def test_what_is_left_to_somebody_else(fleet: Fleet, order: Replacement, kind: type[Move], text: str) -> None:
    move = leaving_move(fleet, order, NOW)

    assert isinstance(move, kind), move
    assert said(move) == text


# Which of our numbers was committed.


def claimed(number: int) -> str:
    return a_run().claim(UID, number)


OUTWARD, INWARD = a_scaling(1, 3, 4), a_scaling(2, 4, 3)
COMMITTED: list[tuple[str, Intent | None, Fleet, Scaled]] = [
    ("no intent", None, a_fleet(), Scaled.NOT_YET),
    ("out, not committed", OUTWARD, a_fleet(), Scaled.NOT_YET),
    ("out, committed", OUTWARD, a_fleet(replicas=4, fence=claimed(1)), Scaled.OUT),
    ("in, not committed", INWARD, a_fleet(replicas=4, fence=claimed(1)), Scaled.OUT),
    ("in, committed", INWARD, a_fleet(fence=claimed(2)), Scaled.BACK),
    ("out, and an undo took the claim", OUTWARD, a_fleet(replicas=4, revision=THEIRS), Scaled.OUT),
    ("out, and an edit before it was committed", OUTWARD, a_fleet(revision=THEIRS), Scaled.NOT_YET),
    ("in, and an undo took the claim", INWARD, a_fleet(revision=THEIRS), Scaled.BACK),
]


@pytest.mark.parametrize(
    ("intent", "fleet", "scaled"), [row[1:] for row in COMMITTED], ids=[row[0] for row in COMMITTED]
)
def test_the_claim_says_which_number_is_ours(intent: Intent | None, fleet: Fleet, scaled: Scaled) -> None:
    step = an_order().step
    run = replace(a_run(), steps=(StepRecord(step, StepState.ROLLING_OUT),), intent=intent)

    assert find_last_scaling(run, step, UID, fleet) is scaled


def test_the_spare_is_the_newest_of_one_too_many() -> None:
    spare = spare_of(a_surged_fleet(), an_order().step)

    assert spare.name == "z"
    assert spare_of(a_fleet(), an_order().step) is None


def test_a_step_says_what_it_does_and_its_inverse_who_stays() -> None:
    step = an_order().step

    assert step.line() == "Deployment/llm: replica a -> a new one"
    assert step.inverse().line() == "Deployment/llm: replica a stays"
    assert step.inverse().inverse() == replace(step, reason=Reason.ROLLING_BACK)
    assert (step.before_template, step.after_template) == (OLD, OLD)
