"""Several replicas released at once, and when a replica counts as one that may serve soon."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmedic.model.fleet import Fleet
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.moves import Effect, Pulse, ReleasePod, Settled, largest_wave
from kvmedic.rollout.orphan_drain import FOLLOWED_WITHIN, can_adopt, may_serve_soon, release_before_turning
from worlds.model_controller import OWN_FIELDS
from worlds.orphan_model import START_TAKES, OrphanModel, OrphanWalk

MINUTE = timedelta(minutes=1)
EVENTS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 20)), max_size=60)
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class InWaves(OrphanWalk):
    """A walk whose first new replica did no worse than the old ones."""

    spare_limit = timedelta(seconds=20)

    def __init__(self, model: OrphanModel, toward: str = "new") -> None:
        super().__init__(model, toward, largest_wave(model.replicas) if toward == "new" else 1)
        self.most, self.slow = 0, False
        """Replicas that were released at the same time, at most."""
        self.added: list[int] = []
        """Spares that were asked for, pulse by pulse."""

    def drains(self) -> dict[str, Drain]:
        """Unless requests end at once, they do a minute after their replica was taken out of rotation."""
        found = super().drains()
        out = {v.uid: self.model.now - v.cordoned_at for v in self.draining_pods}
        return {uid: Drain.BUSY if self.slow and out[uid] < MINUTE else each for uid, each in found.items()}

    def apply(self, effect: Effect) -> None:
        super().apply(effect)
        self.most = max(self.most, len(self.plain.orphans))
        if isinstance(effect, Pulse) and not effect.pods_to_remove:
            self.added.append(int(effect.fields.max_surge))


def assert_whole(model: OrphanModel, replicas: int, revision: str = "new") -> None:
    assert [pod.revision for pod in model.pods] == [revision] * replicas
    assert (model.orphans, model.fields, model.lost_in_rotation) == ([], OWN_FIELDS, [])
    assert model.fewest >= replicas


@pytest.mark.parametrize(
    ("replicas", "most", "added"), [(4, 1, [1, 1, 1]), (8, 2, [2, 2, 2, 2]), (20, 5, [5, 5, 5, 5])]
)
def test_a_quarter_is_drained_at_once_and_as_many_are_made_then(replicas, most, added) -> None:
    model = OrphanModel.healthy(replicas)
    walk = InWaves(model)
    walk.slow = True

    walk.run_to_end([])

    assert (walk.most, walk.added) == (most, added)
    assert_whole(model, replicas)


@given(replicas=st.sampled_from([5, 8]), events=EVENTS)
@FEW
def test_in_waves_every_replica_is_reached_and_nobody_is_lost(replicas, events) -> None:
    model = OrphanModel.healthy(replicas)
    walk = InWaves(model)

    walk.run_to_end(events)

    assert isinstance(walk.ended, Settled)
    assert_whole(model, replicas)


@given(replicas=st.sampled_from([5, 8]), rounds=st.integers(0, 120), events=EVENTS, after=EVENTS)
@FEW
def test_a_wave_is_turned_round_anywhere_and_goes_back_one_by_one(replicas, rounds, events, after) -> None:
    model = OrphanModel.healthy(replicas)
    walk = InWaves(model)
    walk.take(events)
    for number in range(rounds):
        if not walk.ended:
            walk.round(number)
    if walk.ended or model.revision == "old":
        return
    back = walk.another_life("old")

    back.run_to_end(after)

    assert_whole(model, replicas, "old")


@given(replicas=st.sampled_from([5, 8]), spares=st.integers(1, 2), events=EVENTS)
@FEW
def test_spares_without_room_are_no_more_than_that(replicas, spares, events) -> None:
    model = OrphanModel.healthy(replicas)
    model.devices = replicas + spares
    walk = InWaves(model)

    walk.run_to_end(events)

    assert isinstance(walk.ended, Settled)
    assert_whole(model, replicas)


def starting(age: timedelta, *, runs: bool = True) -> tuple[Fleet, OrphanModel]:
    """Three old replicas and a new one that has been there for a while and is not Ready."""
    model = OrphanModel.healthy(3)
    walk = OrphanWalk(model, "new")
    while len(model.pods) < 4:
        walk.round(0)
    model.made_at[model.pods[-1].name] = model.now - age
    fleet = model.fleet()
    made = fleet.pods[-1]
    began = made.created_at if runs else None
    changed = replace(made, runs_since=began, unready_at=made.created_at, is_stopped=not runs)
    return replace(fleet, pods=(*fleet.pods[:-1], changed)), model


SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("age", "runs", "soon"),
    [
        (START_TAKES - FOLLOWED_WITHIN, True, False),
        (START_TAKES - FOLLOWED_WITHIN + SECOND, True, True),
        (START_TAKES, False, False),
        (timedelta(hours=1), False, False),
    ],
    ids=["just made", "its engine runs for a while", "its engine does not run", "it never did"],
)
def test_a_new_replica_that_may_serve_soon_is_released_before_the_template_is_put_back(age, runs, soon):
    """The controller takes it as soon as the template is back: it would go undrained."""
    fleet, model = starting(age, runs=runs)
    new = fleet.pods[-1]

    found = release_before_turning(fleet, (new,), "old", model.now)

    assert may_serve_soon(fleet, new, model.now) is soon
    assert found == (ReleasePod(new) if soon else None)


@pytest.mark.parametrize(
    ("quickest", "oldest"),
    [(1, 2), (3, 2), (5, 4), (10, 9), (16, 15), (20, 15), (30, 15), (120, 60), (None, 15)],
    ids=lambda value: f"{value}s",
)
def test_how_old_a_replica_may_be_that_is_let_go_follows_from_how_soon_others_served(quickest, oldest):
    """One of three took so many seconds to start, the others longer; or of none it is known."""
    fleet, model = starting(oldest * SECOND)
    *served, made = fleet.pods
    took = [None if quickest is None else (quickest + more) * SECOND for more in (0, 1, 300)]
    pods = [replace(p, ready_at=each and p.created_at + each) for p, each in zip(served, took, strict=True)]
    fleet = replace(fleet, pods=(*pods, made))
    older = replace(made, created_at=made.created_at - SECOND)

    assert not may_serve_soon(fleet, made, model.now)
    assert may_serve_soon(fleet, older, model.now)


def test_a_released_replica_goes_back_only_while_its_stand_in_cannot_serve() -> None:
    model = OrphanModel.healthy(2)
    walk = OrphanWalk(model, "new")
    number = 0
    while not model.orphans:
        walk.round(number := number + 1)
    model.replica_set_controller("old")
    for which in range(len(model.pods)):
        model.kubelet(which)
    (orphan,) = model.fleet().orphans

    assert can_adopt(model.fleet(), orphan, model.now)
    assert not can_adopt(model.fleet(), orphan, model.now + START_TAKES)
    scaled = replace(model.fleet(), replica_sets=())
    assert not can_adopt(scaled, orphan, model.now)
