"""A StatefulSet's frozen rollout against a model of its controller, in every order of events luck finds.

Killed before every write, both ways; with replicas that die, that do not start, and with people's edits.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ON_DELETE, RolloutFields
from kvmedic.rollout.moves import Failed, Settled, Uncordon, Wait
from worlds.model_set import OWN, SetModel, SetWalk

EVENTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), max_size=100)
MANY = settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
KINDS = pytest.mark.parametrize(
    ("own", "in_order", "by_keys"),
    [
        (OWN, True, False),
        (OWN, True, True),
        (OWN, False, True),
        (replace(OWN, partition=1, max_unavailable=2), True, False),
        (RolloutFields(False, 0, 1, 30, None, ON_DELETE, partition=0), True, True),
    ],
    ids=["by its label", "by its keys", "parallel", "a partition", "on delete"],
)


def a_set(replicas: int, own: RolloutFields, *, in_order: bool, by_keys: bool) -> SetModel:
    return SetModel.healthy(replicas, own, in_order=in_order, by_keys=by_keys)


def assert_runs(model: SetModel, revision: str) -> None:
    """Every replica runs one revision, all is the team's own again, and nobody was ended with requests."""
    assert [pod.revision for pod in model.pods] == [revision] * model.replicas
    assert model.fields == model.own
    assert not any(pod.cordoned or not pod.owned for pod in model.pods)
    assert model.undrained == []


@KINDS
@given(replicas=st.integers(2, 5), events=EVENTS)
@MANY
def test_it_reaches_every_replica_one_short_and_loses_nobody(own, in_order, by_keys, replicas, events):
    model = a_set(replicas, own, in_order=in_order, by_keys=by_keys)
    walk = SetWalk(model, "new")

    walk.run_to_end(events)

    assert isinstance(walk.ended, Settled)
    assert_runs(model, "new")
    assert model.fewest >= replicas - 1
    assert model.current == "new"


@KINDS
@given(replicas=st.integers(2, 5), events=EVENTS, after=EVENTS)
@MANY
def test_it_is_taken_back_from_anywhere(own, in_order, by_keys, replicas, events, after):
    model = a_set(replicas, own, in_order=in_order, by_keys=by_keys)
    forth = SetWalk(model, "new")
    forth.take(events)
    if model.revision == "old":
        return
    back = forth.another_life("old")

    back.run_to_end(after)

    assert isinstance(back.ended, Settled)
    assert_runs(model, "old")
    assert model.fewest >= replicas - 1


def the_writes(model: SetModel, toward: str, before: SetWalk | None = None) -> int:
    walk = before.another_life(toward) if before else SetWalk(model, toward)
    walk.run_to_end(())
    assert isinstance(walk.ended, Settled)
    return walk.writes


def until_killed(walk: SetWalk) -> None:
    for number in range(500):
        if walk.writes == walk.dies_at:
            return
        walk.round(number)
    raise AssertionError(f"it never came to write {walk.dies_at}")


@KINDS
def test_killed_before_every_write_it_goes_on_both_ways(own, in_order, by_keys):
    """The record says what was intended, and nothing of it was done; the controller acts for a minute."""
    model = a_set(3, own, in_order=in_order, by_keys=by_keys)
    writes = the_writes(model, "new")
    assert writes == the_writes(model, "old") > 10
    for dies_at in range(1, writes + 1):
        model = a_set(3, own, in_order=in_order, by_keys=by_keys)
        for toward in ("new", "old"):
            walk = SetWalk(model, toward)
            walk.dies_at = dies_at
            until_killed(walk)
            for number in range(60):
                for act in range(walk.ACTS):
                    model.happen(act, number)
            after = walk.another_life(toward)
            after.run_to_end(())
            assert isinstance(after.ended, Settled)
            assert_runs(model, toward)
            assert model.fewest >= 2


@KINDS
def test_turned_round_before_every_write_it_is_as_before(own, in_order, by_keys):
    for dies_at in range(1, the_writes(a_set(3, own, in_order=in_order, by_keys=by_keys), "new") + 1):
        model = a_set(3, own, in_order=in_order, by_keys=by_keys)
        forth = SetWalk(model, "new")
        forth.dies_at = dies_at
        until_killed(forth)
        if model.revision == "old":
            continue
        back = forth.another_life("old")
        back.run_to_end(())
        assert isinstance(back.ended, Settled)
        assert_runs(model, "old")
        assert model.fewest >= 2


@KINDS
def test_a_first_replica_that_does_not_start_ends_it_and_is_deleted_on_the_way_back(own, in_order, by_keys):
    """The controller would wait for it for ever (its documentation: forced rollback)."""
    model = a_set(3, own, in_order=in_order, by_keys=by_keys)
    model.broken_revisions = {"new"}
    forth = SetWalk(model, "new")

    forth.run_to_end(())

    assert isinstance(forth.ended, Failed)
    assert [pod.revision for pod in model.pods].count("new") == 1
    back = forth.another_life("old")
    back.run_to_end(())
    assert isinstance(back.ended, Settled)
    assert_runs(model, "old")
    assert model.fewest == 2


@KINDS
@given(replicas=st.integers(3, 5), events=EVENTS, after=EVENTS)
@MANY
def test_a_replica_that_is_lost_in_the_middle_comes_back_and_all_are_reached(
    own, in_order, by_keys, replicas, events, after
):
    model = a_set(replicas, own, in_order=in_order, by_keys=by_keys)
    walk = SetWalk(model, "new")
    walk.take(events)
    if walk.ended or model.revision == "old":
        return
    model.die(len(after))

    walk.run_to_end(after)

    assert isinstance(walk.ended, Settled)
    assert sorted(pod.ordinal for pod in model.pods) == list(range(replicas))
    assert_runs(model, "new")


def test_with_ordered_ready_nobody_is_taken_while_a_lower_replica_is_down_and_who_was_serves_again():
    model = a_set(3, OWN, in_order=True, by_keys=True)
    walk = SetWalk(model, "new")
    for number in range(100):
        if any(pod.cordoned for pod in model.pods):
            break
        walk.round(number)
    ill = model.pods[0]
    ill.ready, ill.in_rotation, ill.broken, ill.unready_at = False, False, True, model.now
    assert isinstance(walk.move(), Wait)
    for _ in range(25):
        model.happen(4, 0)

    assert isinstance(walk.move(), Uncordon)
    walk.tick()
    # The one that is down goes first: it comes back with the new setting, and serves.
    ill.broken = False
    walk.run_to_end(())
    assert isinstance(walk.ended, Settled)
    assert_runs(model, "new")


def test_crash_looping_replicas_are_mended_from_the_lowest_as_nothing_above_comes_back():
    model = a_set(3, OWN, in_order=True, by_keys=False)
    for pod in model.pods:
        pod.ready, pod.in_rotation, pod.broken, pod.unready_at = False, False, True, model.now
    walk = SetWalk(model, "new", mends=True, served=0)

    walk.run_to_end(())

    assert isinstance(walk.ended, Settled)
    assert_runs(model, "new")
    assert [pod.uid for pod in model.pods] == ["llm-0#4", "llm-1#5", "llm-2#6"]


def test_a_drain_that_times_out_lets_others_go_first_and_nobody_with_requests():
    model = a_set(3, OWN, in_order=True, by_keys=True)
    model.pods[2].stubborn = True
    walk = SetWalk(model, "new")

    walk.run_to_end(())

    assert isinstance(walk.stands, Wait)
    assert [pod.revision for pod in sorted(model.pods, key=lambda pod: pod.ordinal)] == ["new", "new", "old"]
    assert model.undrained == []


def test_a_released_replica_that_is_gone_is_asked_for_again_before_its_controller_would():
    model = a_set(3, OWN, in_order=True, by_keys=True)
    walk = SetWalk(model, "new")
    model.pods[2].stubborn = True
    for number in range(200):
        walk.held = frozenset()
        walk.round(number)
        if model.pods[2].cordoned and model.retry.total_seconds() > 60:
            break
    model.pods[2].stubborn = False
    before = model.now

    for number in range(20):
        walk.round(number)

    assert (model.now - before).total_seconds() == 20
    assert any(pod.revision == "new" for pod in model.pods)


def test_a_single_replica_is_never_begun_with():
    walk = SetWalk(a_set(1, OWN, in_order=True, by_keys=False), "new")
    walk.run_to_end(())
    assert isinstance(walk.ended, Blocked)
    assert "spec.replicas" in walk.ended.message
