"""Draining without a label and without a spare: one replica is missing at a time, and never two.

The cluster has as many devices as replicas, or a quota for as many pods. The released replica holds one
until it is gone, so neither its stand-in nor the replica that comes after it can serve before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmedic.model.fleet import STILL_WITHOUT_SPARE, freeze_fields
from kvmedic.rollout.frozen_rollout import rest_template
from kvmedic.rollout.moves import (
    AdoptPod,
    CordonOrphan,
    DeletePod,
    Effect,
    Failed,
    Freeze,
    MarkStandIn,
    Move,
    Pause,
    Pulse,
    ReleasePod,
    Restore,
    Settled,
    Wait,
)
from kvmedic.rollout.orphan_drain import orphan_move
from worlds.model_controller import OWN_FIELDS
from worlds.orphan_model import OrphanModel, OrphanWalk, orphans_of

EVENTS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=120)
MANY = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FULL = pytest.mark.parametrize("scarce", ["devices", "quota"])


def a_full_fleet(replicas: int, scarce: str = "devices") -> OrphanModel:
    model = OrphanModel.healthy(replicas)
    setattr(model, scarce, replicas)
    return model


def a_short_walk(replicas: int, scarce: str = "devices") -> tuple[OrphanModel, OrphanWalk]:
    model = a_full_fleet(replicas, scarce)
    return model, OrphanWalk(model, "new", may_lack=1)


def assert_whole(model: OrphanModel, revision: str, fewest: int) -> None:
    assert [pod.revision for pod in model.pods] == [revision] * model.replicas
    assert model.orphans == []
    assert model.fields == OWN_FIELDS
    assert model.lost_in_rotation == []
    assert model.fewest >= fewest


@FULL
@given(replicas=st.integers(2, 5), events=EVENTS)
@MANY
def test_it_reaches_every_replica_with_one_missing_at_most(scarce, replicas, events) -> None:
    model, walk = a_short_walk(replicas, scarce)

    walk.run_to_end(events)

    assert isinstance(walk.ended, Settled)
    assert_whole(model, "new", replicas - 1)


@FULL
@given(replicas=st.integers(2, 4), first=EVENTS, second=EVENTS, back=st.booleans(), knows=st.booleans())
@MANY
def test_another_process_ends_it_either_way(scarce, replicas, first, second, back, knows) -> None:
    model, walk = a_short_walk(replicas, scarce)
    walk.take(first)
    next_life = walk.another_life("old" if back else "new")
    next_life.draining_pods = walk.draining_pods if knows else ()

    next_life.run_to_end(second)

    assert isinstance(next_life.ended, Settled)
    assert_whole(model, "old" if back else "new", replicas - 1)


@FULL
@given(replicas=st.integers(2, 4), events=EVENTS, after=EVENTS)
@MANY
def test_a_new_replica_that_does_not_start_is_taken_back(scarce, replicas, events, after) -> None:
    model, walk = a_short_walk(replicas, scarce)
    model.broken_revisions = {"new"}
    walk.run_to_end(events)
    back = walk.another_life("old")

    back.run_to_end(after)

    assert isinstance(walk.ended, Failed)
    assert isinstance(back.ended, Settled)
    assert_whole(model, "old", replicas - 1)


@given(replicas=st.integers(2, 4), events=EVENTS, free=st.integers(1, 2), at=st.integers(0, 100))
@MANY
def test_devices_that_become_free_in_the_middle_are_used_and_nobody_is_lost(
    replicas, events, free, at
) -> None:
    model, walk = a_short_walk(replicas)
    walk.take(events[:at])
    model.devices += free

    walk.run_to_end(events[at:])

    assert isinstance(walk.ended, Settled)
    assert_whole(model, "new", replicas - 1)


def scale(count: int) -> Callable[[OrphanModel], None]:
    def act(model: OrphanModel) -> None:
        model.replicas, model.observed = count, False

    return act


def delete_released(model: OrphanModel) -> None:
    model.orphans.clear()


def delete_a_peer(model: OrphanModel) -> None:
    peer = next(pod for pod in model.pods if pod.ready)
    model.pods.remove(peer)
    model.fewest = model.replicas


DEEDS = {
    "scales up": scale(4),
    "scales down": scale(2),
    "scales to one": scale(1),
    "deletes the released replica": delete_released,
    "deletes a peer": delete_a_peer,
}


@pytest.mark.parametrize("toward", ["new", "old"])
@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
@given(events=EVENTS, after=EVENTS)
@settings(MANY, max_examples=8)
def test_it_ends_whatever_people_do_in_the_middle(deed, toward, events, after) -> None:
    model, walk = a_short_walk(3)
    number = 0
    while not model.orphans:
        walk.round(number := number + 1)
    walk.take(events)
    deed(model)
    model.devices = max(model.devices, model.replicas)
    next_life = walk.another_life(toward)
    next_life.draining_pods = walk.draining_pods

    next_life.run_to_end(after)

    assert isinstance(next_life.ended, Settled)
    assert [pod.revision for pod in model.pods] == [toward] * model.replicas
    assert (model.orphans, model.fields) == ([], OWN_FIELDS)


def writes_of(model: OrphanModel, walk: OrphanWalk) -> list[Effect]:
    """Let everything happen in turn, and return what was written."""
    seen: list[Effect] = []
    apply = walk.apply

    def note(effect: Effect) -> None:
        seen.append(effect)
        apply(effect)

    walk.apply = note  # type: ignore[method-assign]
    walk.run_to_end([])
    return seen


@FULL
def test_the_order_of_writes_for_one_replica(scarce: str) -> None:
    model, walk = a_short_walk(2, scarce)

    kinds = [type(each) for each in writes_of(model, walk)]

    stand_in = [MarkStandIn] if scarce == "devices" else []
    one = [ReleasePod, *stand_in, Pulse, Pause, CordonOrphan, DeletePod]
    assert kinds == [Freeze, *one, *one, Restore]


def reach(model: OrphanModel, walk: OrphanWalk, kind: type[Effect]) -> Effect:
    """Let everything happen in turn until the next write is of a kind; return it, not written yet."""
    for number in range(500):
        for act in range(walk.ACTS):
            walk.happen(act, number)
        move = walk.move()
        if isinstance(move, kind):
            return move
        walk.tick()
    raise AssertionError(f"no {kind.__name__}")


def test_it_is_frozen_paused_without_a_surge_and_the_first_write_after_it_releases_one() -> None:
    model, walk = a_short_walk(3)

    first = walk.move()
    walk.apply(first)  # type: ignore[arg-type]
    model.deployment_controller()
    then = walk.move()

    assert isinstance(first, Freeze)
    assert first.fields == STILL_WITHOUT_SPARE
    assert isinstance(then, ReleasePod)


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_the_permit_takes_the_stand_in_alone_and_one_is_made_in_its_place(changed: int) -> None:
    model, walk = a_short_walk(3)
    for _ in range(changed):
        reach(model, walk, DeletePod)
        walk.tick()

    pulse = reach(model, walk, Pulse)

    (stand_in,) = (pod.name for pod in model.pods if not pod.ready)
    permit = freeze_fields(surge=0, max_unavailable=changed + 1, paused=False)
    assert pulse == Pulse((stand_in,), permit)


def test_it_leaves_rotation_only_while_all_but_one_serve_beside_it() -> None:
    model, walk = a_short_walk(3)
    cordon = reach(model, walk, CordonOrphan)
    peer = next(pod for pod in model.pods if pod.ready)
    peer.ready = peer.in_rotation = False

    assert isinstance(cordon, CordonOrphan)
    assert isinstance(walk.move(), Wait)


def test_turned_back_before_the_drain_it_returns_and_nothing_was_missing() -> None:
    for kind in (Pulse, Pause, CordonOrphan):
        model, walk = a_short_walk(3)
        reach(model, walk, ReleasePod)
        walk.tick()
        reach(model, walk, kind)
        back = walk.another_life("old")
        back.draining_pods = walk.draining_pods

        kinds = {type(each) for each in writes_of(model, back)}

        assert AdoptPod in kinds, kind
        assert CordonOrphan not in kinds, kind
        assert_whole(model, "old", 3)


def test_at_rest_it_returns_before_the_pulse_and_serves_on_after_it() -> None:
    def rest(kind: type[Effect]) -> Move:
        model, walk = a_short_walk(3)
        reach(model, walk, kind)
        return rest_template(model.fleet(), model.now, walk.assigned_at, 1, orphans_of(walk))

    assert isinstance(rest(Pulse), AdoptPod)
    assert isinstance(rest(CordonOrphan), Wait)


def test_a_peer_that_is_not_ready_for_a_moment_does_not_go_in_the_stand_ins_place() -> None:
    """Not even where the new replica found a device meanwhile and serves."""
    model, walk = a_short_walk(3)
    reach(model, walk, CordonOrphan)
    fleet = model.fleet()
    flaps = next(pod.name for pod in fleet.pods if pod.revision == "old")
    ready = {pod.name: None if pod.name == flaps else model.now for pod in fleet.pods}
    pods = tuple(
        replace(pod, ready_at=(at := ready[pod.name]), unready_at=model.now, in_rotation=at is not None)
        for pod in fleet.pods
    )
    known = replace(orphans_of(walk), toward="new", needed=2, may_lack=1)

    move = orphan_move(replace(fleet, pods=pods), known, model.now)

    assert isinstance(move, CordonOrphan)


def test_one_that_a_quota_refused_is_asked_for_once_more_when_the_released_one_is_gone() -> None:
    model, walk = a_short_walk(3, "quota")
    reach(model, walk, DeletePod)
    assert isinstance(walk.move(), DeletePod), "not before"
    walk.tick()

    again = walk.move()
    walk.apply(again)  # type: ignore[arg-type]
    model.deployment_controller()
    pause = walk.move()
    walk.apply(pause)  # type: ignore[arg-type]

    assert again == Pulse((), replace(STILL_WITHOUT_SPARE, paused=False))
    assert pause == Pause(STILL_WITHOUT_SPARE)
    assert (model.sets["old"].desired, model.sets["new"].desired) == (2, 1), "nothing goes by it"
    assert isinstance(walk.move(), Wait)


def test_a_fleet_that_is_scaled_to_one_waits_for_a_spare() -> None:
    model, walk = a_short_walk(2)
    walk.tick()
    model.replicas, model.sets["old"].desired = 1, 1
    model.pods.pop()

    move = walk.move()

    assert isinstance(move, Pulse)
    assert move.pods_to_remove == ()
