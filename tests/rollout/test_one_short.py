"""A frozen rollout that makes no spare: one replica is missing for each drain and start, and never two.

The same walk as with a spare, against the same model of the controllers, in any order of events. Beside it
the walk of a Deployment that is recreated otherwise, with a spare and without.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmedic.model.fleet import STILL_WITHOUT_SPARE, RolloutFields
from kvmedic.rollout.drift import released_fields, releasing_move
from kvmedic.rollout.frozen_rollout import next_template_move, rest_template
from kvmedic.rollout.moves import Cordon, Failed, Freeze, Hold, Release, Settled, Uncordon, Wait
from worlds.model_controller import OWN_FIELDS, Model
from worlds.model_walk import ACTS, Walker

EVENTS = st.lists(st.tuples(st.integers(0, ACTS), st.integers(0, 7)), max_size=120)
MANY = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
RECREATED = RolloutFields(False, 0, 0, 0, 600, "Recreate")
OWN = RolloutFields(False, "50%", 2, 30, 900)
"""A team's own numbers."""
FIELDS = pytest.mark.parametrize("own", [OWN_FIELDS, OWN, RECREATED], ids=["usual", "own", "recreated"])


def a_short_walk(replicas: int, own: RolloutFields = OWN_FIELDS) -> tuple[Model, Walker]:
    """A fleet with as many devices as replicas."""
    model = Model.healthy(replicas, own)
    model.devices = replicas
    return model, Walker(model, "new", may_lack=1)


def assert_nobody_lost(model: Model, fewest: int) -> None:
    assert model.lost_in_rotation == []
    assert model.undrained == []
    assert model.fewest >= fewest


@FIELDS
@given(replicas=st.integers(2, 5), events=EVENTS)
@MANY
def test_it_reaches_every_replica_with_one_missing_at_most(own, replicas, events):
    model, walker = a_short_walk(replicas, own)

    walker.run_to_end(events)

    assert isinstance(walker.ended, Settled)
    assert [pod.revision for pod in model.pods] == ["new"] * replicas
    assert (model.fields, model.strategy) == (own, own.strategy)
    assert_nobody_lost(model, replicas - 1)
    assert model.most <= replicas + 1, "one that is made while the pod that it replaces still ends"


@FIELDS
@given(replicas=st.integers(2, 5), events=EVENTS, turn=st.integers(0, 120), after=EVENTS)
@MANY
def test_it_is_taken_back_from_anywhere_by_a_process_that_knows_the_record(
    own, replicas, events, turn, after
):
    model, forth = a_short_walk(replicas, own)
    forth.take(events[:turn])
    back = forth.back()
    back.draining_pods = forth.draining_pods
    if model.revision == "old" and not model.fields.is_frozen:
        return

    back.run_to_end(after)

    assert isinstance(back.ended, Settled)
    assert [pod.revision for pod in model.pods] == ["old"] * replicas
    assert (model.fields, model.strategy) == (own, own.strategy)
    assert not any(pod.cordoned for pod in model.pods)
    assert_nobody_lost(model, replicas - 1)


@given(replicas=st.integers(2, 5), events=EVENTS, after=EVENTS)
@MANY
def test_a_new_replica_that_does_not_start_ends_it_after_one(replicas, events, after):
    model, forth = a_short_walk(replicas)
    model.broken_revisions = {"new"}
    forth.run_to_end(events)
    back = forth.back()

    back.run_to_end(after)

    assert isinstance(forth.ended, Failed)
    assert isinstance(back.ended, Settled)
    assert [pod.revision for pod in model.pods] == ["old"] * replicas
    assert model.fields == OWN_FIELDS
    assert_nobody_lost(model, replicas - 1)


@given(replicas=st.integers(2, 4), events=EVENTS, after=EVENTS)
@MANY
def test_what_all_replicas_run_is_taken_back_one_short_too(replicas, events, after):
    model, forth = a_short_walk(replicas)
    forth.run_to_end(events)
    back = forth.back()

    back.run_to_end(after)

    assert isinstance(back.ended, Settled)
    assert [pod.revision for pod in model.pods] == ["old"] * replicas
    assert_nobody_lost(model, replicas - 1)


@pytest.mark.parametrize("own", [OWN_FIELDS, RECREATED], ids=["usual", "recreated"])
@given(replicas=st.integers(1, 5), events=EVENTS, turn=st.integers(0, 120), after=EVENTS)
@MANY
def test_a_recreated_fleet_with_a_spare_never_lacks_a_replica(own, replicas, events, turn, after):
    model = Model.healthy(replicas, own)
    forth = Walker(model, "new")
    forth.take(events[:turn])
    back = forth.back()
    back.draining_pods = forth.draining_pods

    if model.revision == "new" or model.fields.is_frozen:
        back.run_to_end(after)
        assert isinstance(back.ended, Settled)
        assert [pod.revision for pod in model.pods] == ["old"] * replicas

    if not model.fields.is_frozen:
        assert (model.fields, model.strategy) == (own, own.strategy)
    assert_nobody_lost(model, replicas)


def test_it_freezes_paused_without_a_surge_and_drains_before_anything_is_made() -> None:
    model, walker = a_short_walk(3)

    first = walker.move()
    walker.apply(first)
    model.deployment_controller()
    then = walker.move()

    assert isinstance(first, Freeze)
    assert first.fields == STILL_WITHOUT_SPARE
    assert isinstance(then, Cordon)
    assert len(model.pods) == 3


def test_the_only_replica_is_never_missing() -> None:
    model, walker = a_short_walk(1)
    model.devices = 2

    walker.run_to_end([])

    assert isinstance(walker.ended, Settled)
    assert_nobody_lost(model, 1)


def test_at_rest_the_draining_pod_serves_again() -> None:
    model, walker = a_short_walk(2)
    while not any(pod.cordoned for pod in model.pods):
        walker.tick()

    rest = rest_template(model.fleet(), model.now, walker.assigned_at, 1)

    assert isinstance(rest, Uncordon)


def test_a_surge_of_none_is_given_back_as_ours_where_no_spare_is_made() -> None:
    model, walker = a_short_walk(2, RECREATED)
    walker.tick()
    fleet = model.fleet()

    ours = released_fields(fleet, RECREATED, 1)

    assert ours == RECREATED
    assert isinstance(releasing_move(fleet, RECREATED, may_lack=1), Release)
    assert released_fields(fleet, RECREATED) == replace(
        fleet.fields, paused=False, min_ready_seconds=0, progress_deadline_seconds=600
    ), "with a spare it is somebody's"


def test_one_that_is_scaled_to_one_in_the_middle_waits_for_a_spare() -> None:
    model, walker = a_short_walk(2)
    walker.tick()
    model.replicas = 1
    model.sets["old"].desired = 1
    model.pods.pop()
    fleet = model.fleet()

    move = next_template_move(fleet, walker.order(), model.now)

    assert not isinstance(move, Cordon | Hold | Wait)
