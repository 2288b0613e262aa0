"""Replacing one replica, and giving replicas back, without a label: every order of events in the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, ObjectRef, OrphanDrain, Owner
from kvmedic.model.plan import PodToRemove, ReplaceStep, ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.moves import (
    AdoptPod,
    Claim,
    CordonOrphan,
    DeletePod,
    Effect,
    Failed,
    Move,
    ReleasePod,
    ScaleIn,
    Settled,
    Wait,
)
from kvmedic.rollout.preconditions import find_halfway_blocker, find_replacement_blocker, find_scaling_blocker
from kvmedic.rollout.replacement import (
    Replacement,
    Scaled,
    leave_replacement,
    replacing_move,
    rest_replacement,
)
from kvmedic.rollout.scaling import Scaling, leave_scaling, rest_scaling, scaling_move
from worlds.number_walk import EVENTS, NumberWalk, names
from worlds.orphan_model import POD_MOVES, OrphanModel, drains_of, note_released, orphans_of
from worlds.steps import LIMITS

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMED = "p01"
DRAIN_LIMIT = LIMITS.start


def replacing(replicas: int) -> ReplaceStep:
    target, reason = ObjectRef("Deployment", "llm"), Reason.ONE_REPLICA_PRESSURED
    return ReplaceStep(target, "vllm", NAMED, NAMED, replicas, "old", reason)


def scaling(before: int, after: int) -> ReplicasStep:
    target, reason = ObjectRef("Deployment", "llm"), Reason.REPLICAS_GIVEN_BACK
    return ReplicasStep(target, None, before=before, after=after, template="old", reason=reason)


class Released(NumberWalk):
    """The operator's side of a change to one revision's pods, released where they go."""

    begins = True
    resting = leaving = False
    wrote: tuple[type, ...] = ()

    def drains(self) -> dict[str, Drain]:
        return drains_of(self)

    def write_down(self, effect: Effect) -> None:
        self.wrote = (*self.wrote, type(effect))
        before = self.assigned_at
        super().write_down(effect)
        note_released(self, effect)
        self.assigned_at = before if isinstance(effect, POD_MOVES) else self.assigned_at
        self.begins = self.begins and isinstance(effect, POD_MOVES)


class Replacing(Released):
    def __init__(self, model: OrphanModel) -> None:
        super().__init__(model)
        self.step = replacing(model.replicas)

    def order(self) -> Replacement:
        order = Replacement(
            self.step, Scaled.NOT_YET, self.draining_pod, self.drain(), LIMITS, DRAIN_LIMIT, self.assigned_at
        )
        return replace(
            order,
            begins=self.begins and self.step.pod_to_remove is not PodToRemove.SPARE,
            orphans=orphans_of(self),
        )

    def move(self) -> Move:
        fleet, order = self.model.fleet(), self.order()
        if self.resting:
            return rest_replacement(fleet, order, self.model.now)
        follow = leave_replacement if self.leaving else replacing_move
        return follow(fleet, order, self.model.now)

    def turn_back(self) -> None:
        self.step, self.ended = self.step.inverse(), None


class GivingBack(Released):
    def __init__(self, model: OrphanModel, after: int) -> None:
        super().__init__(model)
        self.step = scaling(model.replicas, after)
        self.is_back = False

    def order(self) -> Scaling:
        order = Scaling(self.step, self.draining_pod, self.drain(), LIMITS)
        begins = self.begins and not self.is_back
        return replace(
            order,
            begins=begins,
            assigned_at=self.assigned_at,
            replicas=self.step.before,
            orphans=orphans_of(self),
        )

    def move(self) -> Move:
        fleet, order = self.model.fleet(), self.order()
        if self.resting:
            return rest_scaling(fleet, order, self.model.now)
        return (leave_scaling if self.leaving else scaling_move)(fleet, order, self.model.now)

    def turn_back(self) -> None:
        self.step, self.ended, self.is_back = self.step.inverse(), None, True


def assert_nobody_lost(model: OrphanModel, replicas: int) -> None:
    assert (model.replicas, len(model.pods), model.orphans) == (replicas, replicas, [])
    assert model.lost_in_rotation == []
    assert model.fewest >= replicas


def settle(walk: Released, events: Iterable[tuple[int, int]] = ()) -> None:
    walk.run_to_end(events)
    assert isinstance(walk.ended, Settled)
    walk.come_to_rest()


@given(replicas=st.integers(1, 5), events=EVENTS)
@FEW
def test_the_named_replica_goes_and_as_many_serve_at_any_moment(replicas, events) -> None:
    model = OrphanModel.healthy(replicas)
    before = names(model)

    settle(Replacing(model), events)

    assert before - names(model) == {NAMED}
    assert_nobody_lost(model, replicas)


@given(replicas=st.integers(1, 4), events=EVENTS, after=EVENTS)
@FEW
def test_turned_back_anywhere_a_replica_stays_that_was_not_out_of_rotation(replicas, events, after) -> None:
    model = OrphanModel.healthy(replicas)
    walk = Replacing(model)
    walk.take(events)
    went = NAMED not in names(model) and not any(pod.name == NAMED for pod in model.orphans)
    went = went or any(pod.cordoned for pod in model.orphans)

    walk.turn_back()
    settle(walk, after)

    assert went or NAMED in names(model)
    assert_nobody_lost(model, replicas)


@given(replicas=st.integers(1, 4), events=EVENTS, after=EVENTS, quick=st.booleans())
@FEW
def test_left_anywhere_no_released_replica_stays_and_nobody_is_lost(replicas, events, after, quick) -> None:
    model = OrphanModel.healthy(replicas)
    walk = Replacing(model)
    walk.take(events)

    walk.leaving, walk.ended = True, None
    settle(walk, after)

    assert_nobody_lost(model, replicas)


@given(replicas=st.integers(1, 4), events=EVENTS, rest=EVENTS, after=EVENTS)
@FEW
def test_stopped_anywhere_it_stands_still_and_goes_on_later(replicas, events, rest, after) -> None:
    model = OrphanModel.healthy(replicas)
    walk = Replacing(model)
    walk.take(events)
    if walk.ended:
        return
    walk.resting = True
    walk.take(rest)
    for number in range(60):
        walk.round(number)
    assert isinstance(walk.move(), Wait)

    walk.resting = False
    settle(walk, after)

    assert_nobody_lost(model, replicas)


@given(desired=st.integers(1, 4), more=st.integers(1, 2), events=EVENTS)
@FEW
def test_replicas_are_given_back_one_by_one_and_each_is_drained(desired, more, events) -> None:
    model = OrphanModel.healthy(desired + more)
    walk = GivingBack(model, desired)

    settle(walk, events)

    assert_nobody_lost(model, desired)


@given(desired=st.integers(1, 4), more=st.integers(1, 2), events=EVENTS, after=EVENTS)
@FEW
def test_giving_back_is_turned_anywhere_and_nobody_is_lost(desired, more, events, after) -> None:
    model = OrphanModel.healthy(desired + more)
    walk = GivingBack(model, desired)
    walk.take(events)

    walk.turn_back()
    settle(walk, after)

    assert (model.replicas, len(model.pods), model.orphans) == (desired + more, desired + more, [])
    assert model.lost_in_rotation == []
    assert model.fewest >= desired


@given(desired=st.integers(1, 4), more=st.integers(1, 2), events=EVENTS, after=EVENTS)
@FEW
def test_giving_back_is_left_anywhere_and_nobody_is_lost(desired, more, events, after) -> None:
    model = OrphanModel.healthy(desired + more)
    walk = GivingBack(model, desired)
    walk.take(events)

    walk.leaving, walk.ended = True, None
    settle(walk, after)

    assert (len(model.pods), model.orphans) == (model.replicas, [])
    assert model.lost_in_rotation == []
    assert model.fewest >= desired


@given(desired=st.integers(1, 4), events=EVENTS)
@FEW
def test_a_replica_that_did_not_help_is_taken_away_again_drained(desired, events) -> None:
    model = OrphanModel.healthy(desired + 1)
    walk = GivingBack(model, desired)
    walk.step, walk.begins = replace(walk.step, reason=Reason.ROLLING_BACK), False

    settle(walk, events)

    assert_nobody_lost(model, desired)


@given(replicas=st.integers(1, 3), events=EVENTS, after=EVENTS)
@FEW
def test_a_spare_that_does_not_start_goes_and_the_named_one_serves_on(replicas, events, after) -> None:
    model = OrphanModel.healthy(replicas)
    before = names(model)
    model.broken_revisions.add("old")
    walk = Replacing(model)

    walk.run_to_end(events)
    failed = walk.ended
    walk.turn_back()
    settle(walk, after)

    assert isinstance(failed, Failed)
    assert names(model) == before
    assert_nobody_lost(model, replicas)


HEALTHY = OrphanModel.healthy(3).fleet()
SCALER = Owner(Reason.REPLICAS_AUTOSCALED, "HorizontalPodAutoscaler llm")


def with_way(**changes: object) -> Fleet:
    way = replace(OrphanDrain(("app",)), **changes)
    return replace(HEALTHY, rotation=replace(HEALTHY.rotation, orphan=way))


def test_an_autoscaler_keeps_no_replica_from_being_replaced_where_no_number_is_assigned() -> None:
    behind = replace(HEALTHY, scaler=SCALER)

    assert find_replacement_blocker(behind, replacing(3)) is None
    order = Replacement(replacing(3), Scaled.NOT_YET, None, Drain.UNKNOWN, LIMITS, DRAIN_LIMIT, begins=True)
    assert isinstance(replacing_move(behind, order, OrphanModel.healthy(3).now), Claim)
    by_label = replace(behind, rotation=replace(HEALTHY.rotation, orphan=None, effective=True))
    refused = find_replacement_blocker(by_label, replacing(3))
    assert refused is not None
    assert refused.reason is Reason.REPLICAS_AUTOSCALED


@pytest.mark.parametrize(
    "refuse",
    [
        lambda fleet: find_replacement_blocker(fleet, replacing(3)),
        lambda fleet: find_scaling_blocker(fleet, scaling(3, 4)),
        lambda fleet: find_scaling_blocker(fleet, scaling(3, 2)),
    ],
    ids=["a replacement", "one more", "one fewer"],
)
def test_what_keeps_a_replica_from_being_released_keeps_any_step_from_beginning(refuse) -> None:
    refused = refuse(with_way(blocked="NetworkPolicy n would"))

    assert isinstance(refused, Blocked)
    assert refused.reason is Reason.DRAIN_IMPOSSIBLE
    assert refuse(with_way()) is None


def test_an_autoscaler_that_takes_one_away_meanwhile_is_followed() -> None:
    """Whom it takes is its controller's choice, which is the stand-in while it does not serve."""
    model = OrphanModel.healthy(3)
    walk = Replacing(model)
    while not model.orphans:
        walk.round(0)
    model.replicas, model.observed = 2, False

    settle(walk)

    assert (len(model.pods), model.orphans, model.lost_in_rotation) == (2, [], [])
    assert model.fewest >= 2


def test_where_the_stand_in_serves_the_number_is_not_lowered() -> None:
    model = OrphanModel.healthy(3)
    walk = GivingBack(model, 2)
    while not model.orphans:
        walk.round(0)
    model.now += LIMITS.start
    model.replica_set_controller("old")
    model.now += LIMITS.start
    for index in range(4):
        model.kubelet(index)
    model.endpoints()

    found = [walk.move()]
    walk.apply(found[0])
    found.append(walk.move())

    assert isinstance(found[-1], CordonOrphan)
    assert not any(isinstance(each, ScaleIn) for each in found)


def test_on_the_way_back_a_spare_that_serves_changes_places_with_the_named_one() -> None:
    model = OrphanModel.healthy(2)
    walk = Replacing(model)
    while not model.orphans or len(names(model)) < 2 or not all(pod.ready for pod in model.pods):
        walk.happen(1, 0), walk.happen(2, len(model.pods) - 1), walk.happen(3, 0), walk.happen(5, 0)
        if not model.orphans:
            walk.tick()
    walk.turn_back()
    wrote = len(walk.wrote)
    settle(walk)

    assert NAMED in names(model)
    assert_nobody_lost(model, 2)
    assert walk.wrote[wrote:] == (ReleasePod, AdoptPod, CordonOrphan, DeletePod)


def test_somebodys_rollout_is_turned_without_a_label_too() -> None:
    refused = find_halfway_blocker(HEALTHY, "old")

    assert refused is not None
    assert refused.reason is not Reason.ROTATION_LABEL_WITHOUT_EFFECT
    blocked = find_halfway_blocker(with_way(blocked="NetworkPolicy n would"), "old")
    assert blocked is not None
    assert blocked.reason is Reason.DRAIN_IMPOSSIBLE
