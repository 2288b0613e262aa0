"""The rest of a frozen rollout in waves: several replicas at once, as far as spares serve beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmedic.model.reasons import Reason
from kvmedic.model.run import ComparisonState, ReplicaComparison, StepState
from kvmedic.model.spec import Waves
from kvmedic.rollout.drift import releasing_move
from kvmedic.rollout.frozen_rollout import Order, template_row
from kvmedic.rollout.moves import Effect, Pulse, Settled, Uncordon, Wait, largest_wave
from kvmedic.rollout.steps import StepInput
from run_builder import NOW, STEP, UID, a_run, an_intent
from worlds.model_controller import OWN_FIELDS, Model, ModelPod
from worlds.model_walk import ACTS, Walker
from worlds.steps import LIMITS

FLEETS = [5, 8, 20]
COMPARED = 2
"""New replicas that serve beside the old ones before the rest may go."""
SPARE_LIMIT = timedelta(seconds=20)
EVENTS = st.lists(st.tuples(st.integers(0, ACTS), st.integers(0, 30)), max_size=200)
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class InWaves(Walker):
    """A walk whose new replicas did no worse than the old ones; its process may die at a write."""

    def __init__(self, model: Model, toward: str = "new", dies_at: int = -1) -> None:
        super().__init__(model, toward, repairs=toward == "old")
        self.dies_at, self.writes, self.went_on = dies_at, 0, False
        self.waves: list[int] = []
        """How many were let go, pulse by pulse."""

    def order(self) -> Order:
        ready = sum(pod.ready for pod in self.model.pods if pod.revision == "new")
        self.went_on = self.went_on or (ready >= COMPARED and not self.repairs)
        wave = largest_wave(self.model.replicas) if self.went_on else 1
        return replace(super().order(), wave=wave, compared=COMPARED, spare_limit=SPARE_LIMIT)

    def apply(self, effect: Effect) -> None:
        self.writes += 1
        if isinstance(effect, Pulse) and effect.pods_to_remove:
            self.waves.append(len(effect.pods_to_remove))
        if self.writes == self.dies_at:
            self.write_down(effect)
        else:
            super().apply(effect)

    def back(self, dies_at: int = -1) -> InWaves:
        back = InWaves(self.model, "old", dies_at)
        back.assigned_at = self.assigned_at
        return back

    def until(self, claim: Callable[[Model], bool]) -> None:
        for number in range(200):
            for act in range(ACTS):
                self.happen(act, number)
            if claim(self.model):
                return
            self.tick()
        raise AssertionError("it does not come so far")


def out(model: Model) -> list[ModelPod]:
    return [pod for pod in model.pods if pod.cordoned]


def two_new(model: Model) -> bool:
    """Both are Ready, and the controllers know of nothing else."""
    new = [pod for pod in model.pods if pod.revision == "new"]
    return (
        len(new) == COMPARED and model.fields.paused and len(model.pods) == sum(p.ready for p in model.pods)
    )


def assert_nobody_lost(model: Model, replicas: int, revision: str = "new") -> None:
    assert [pod.revision for pod in model.pods] == [revision] * replicas
    assert model.fields == OWN_FIELDS
    assert model.lost_in_rotation == []
    assert model.undrained == []
    assert model.fewest >= replicas
    assert out(model) == []


@pytest.mark.parametrize(
    ("replicas", "waves"),
    [
        (4, [1, 1, 1, 1]),
        (5, [1, 2, 2]),
        (8, [1, 2, 2, 2, 1]),
        (20, [1, 5, 5, 5, 4]),
    ],
)
def test_once_two_new_replicas_went_on_a_quarter_goes_at_once(replicas: int, waves: list[int]) -> None:
    model = Model.healthy(replicas)
    walker = InWaves(model)

    walker.run_to_end([])

    assert walker.waves == waves
    assert_nobody_lost(model, replicas)


@given(replicas=st.sampled_from(FLEETS), events=EVENTS)
@MANY
def test_a_walk_in_waves_reaches_every_replica_and_endpoints_never_fall_below_it(replicas, events):
    model = Model.healthy(replicas)
    walker = InWaves(model)

    walker.run_to_end(events)

    assert isinstance(walker.ended, Settled)
    assert_nobody_lost(model, replicas)


FULL_ROUNDS = [(act, number) for number in range(40) for act in range(ACTS)]
"""Everything happens in turn: enough for the first waves."""


@given(
    replicas=st.sampled_from(FLEETS), events=EVENTS, turn=st.integers(0, len(FULL_ROUNDS) + 200), after=EVENTS
)
@MANY
def test_a_walk_in_waves_is_turned_round_anywhere_and_goes_back_one_by_one(replicas, events, turn, after):
    model = Model.healthy(replicas)
    walker = InWaves(model)
    walker.take((events + FULL_ROUNDS)[:turn])
    back = walker.back()
    if model.revision == "old" or walker.ended:
        return

    back.run_to_end(after)

    assert_nobody_lost(model, replicas, "old")
    assert set(back.waves) <= {1}


def writes_of(replicas: int) -> int:
    walker = InWaves(Model.healthy(replicas))
    walker.run_to_end([])
    return walker.writes


KILLED = [(replicas, write) for replicas in FLEETS for write in range(1, writes_of(replicas) + 1)]


@pytest.mark.parametrize(("replicas", "write"), KILLED)
def test_killed_between_the_record_and_any_write_a_walk_in_waves_goes_on(replicas: int, write: int) -> None:
    model = Model.healthy(replicas)
    walker = InWaves(model, dies_at=write)

    walker.run_to_end([])

    assert isinstance(walker.ended, Settled)
    assert_nobody_lost(model, replicas)


def in_a_wave(replicas: int) -> InWaves:
    """A walk with a whole wave out of rotation."""
    walker = InWaves(Model.healthy(replicas))
    walker.until(lambda model: len(out(model)) == largest_wave(replicas))
    return walker


@pytest.mark.parametrize("write", range(1, 30))
@pytest.mark.parametrize("replicas", [5, 8])
def test_killed_at_any_write_on_the_way_back_from_a_wave_all_is_taken_back(replicas: int, write: int) -> None:
    back = in_a_wave(replicas).back(dies_at=write)

    back.run_to_end([])

    assert isinstance(back.ended, Settled)
    assert_nobody_lost(back.model, replicas, "old")


@pytest.mark.parametrize("replicas", FLEETS)
def test_turned_round_in_a_wave_those_that_are_out_serve_again_before_any_new_one_goes(replicas: int) -> None:
    walker = in_a_wave(replicas)
    back, old = walker.back(), {pod.name for pod in out(walker.model)}

    back.run_to_end([])

    assert old <= {pod.name for pod in walker.model.pods}
    assert_nobody_lost(walker.model, replicas, "old")


@pytest.mark.parametrize("short", ["devices", "quota"])
@pytest.mark.parametrize(("replicas", "spares"), [(8, 1), (20, 1), (20, 2), (20, 4)])
def test_as_many_go_at_once_as_spares_find_a_node(replicas: int, spares: int, short: str) -> None:
    model = Model.healthy(replicas)
    setattr(model, short, replicas + spares)
    walker = InWaves(model)

    walker.run_to_end([])

    assert max(walker.waves) == spares
    assert_nobody_lost(model, replicas)


@given(replicas=st.sampled_from(FLEETS), spares=st.integers(1, 5), events=EVENTS)
@MANY
def test_in_whatever_order_spares_without_a_node_keep_no_other_from_going(replicas, spares, events):
    model = Model.healthy(replicas)
    model.devices = replicas + spares
    walker = InWaves(model)

    walker.run_to_end(events)

    assert isinstance(walker.ended, Settled)
    assert_nobody_lost(model, replicas)


def test_one_that_is_on_its_way_out_counts_as_out_whatever_its_slice_still_says() -> None:
    model = Model.healthy(20)
    model.devices = 20 + 2
    walker = InWaves(model)
    walker.until(lambda model: len(model.pods) == 25 and bool(out(model)))

    for _ in range(6):
        walker.tick()  # and no EndpointSlice follows

    assert len(out(model)) == 2


def test_nobody_of_a_wave_is_taken_out_before_all_its_spares_serve() -> None:
    walker = InWaves(Model.healthy(20))
    walker.until(lambda model: len(model.pods) == 25)
    walker.until(lambda model: bool(out(model)))

    assert all(pod.ready and pod.in_rotation for pod in walker.model.pods if not pod.cordoned)


@given(replicas=st.sampled_from(FLEETS), stubborn=st.sets(st.integers(1, 30), min_size=1), events=EVENTS)
@MANY
def test_in_a_wave_only_those_go_whose_requests_ended(replicas, stubborn, events):
    model = Model.healthy(replicas)
    model.stubborn_numbers = stubborn
    for pod in model.pods:
        pod.stubborn = pod.number in stubborn
    walker = InWaves(model)

    walker.run_to_end(events)

    left = [pod for pod in model.pods if pod.revision == "old"]
    assert all(pod.stubborn for pod in left)
    assert isinstance(walker.stands if left else walker.ended, Wait if left else Settled)
    assert (model.lost_in_rotation, model.undrained, out(model)) == ([], [], [])
    assert model.fewest >= replicas


def test_one_of_a_wave_that_times_out_serves_again_and_another_takes_its_place() -> None:
    walker = in_a_wave(20)
    late, *others = out(walker.model)
    late.stubborn = True

    back = walker.move()
    walker.tick()
    walker.until(lambda model: len(out(model)) == 5)

    assert isinstance(back, Uncordon)
    assert back.pod.name == late.name
    assert late not in out(walker.model)
    assert {pod.name for pod in others} < {pod.name for pod in out(walker.model)}


@given(
    replicas=st.sampled_from(FLEETS),
    events=EVENTS,
    fails=st.integers(0, len(FULL_ROUNDS)),
    which=st.integers(0, 19),
    after=EVENTS,
)
@MANY
def test_a_peer_that_fails_beside_a_wave_is_drained_like_any_other(replicas, events, fails, which, after):
    model = Model.healthy(replicas)
    walker = InWaves(model)
    walker.take((events + FULL_ROUNDS)[:fails])
    if not walker.break_peer(which):
        return

    walker.run_to_end(after)

    assert isinstance(walker.ended, Settled)
    assert [pod.revision for pod in model.pods] == ["new"] * replicas
    assert model.undrained == []


@pytest.mark.parametrize("crashes", [1, 2])
def test_spares_of_a_wave_that_crash_speak_against_the_change_from_two_on(crashes: int) -> None:
    walker = InWaves(Model.healthy(20))
    walker.until(lambda model: len(model.pods) == 25)
    for pod in walker.model.pods[-crashes:]:
        pod.broken, pod.ready, pod.in_rotation = True, False, False
    walker.until(lambda model: model.fields.paused)

    move = walker.move()

    expected = Reason.REPLICA_NOT_STARTING if crashes == 1 else Reason.CANARY_FAILED
    assert move.reason is expected


@pytest.mark.parametrize("after", [19, 21])
def test_scaled_in_the_middle_of_a_wave_only_the_scaling_takes_its_share(after: int) -> None:
    walker = in_a_wave(20)
    model = walker.model
    model.replicas, model.observed = after, False
    model.deployment_controller()
    taken = 25 - sum(each.desired for each in model.sets.values())

    walker.run_to_end([])

    assert len(model.undrained) <= max(0, taken)
    assert [pod.revision for pod in model.pods] == ["new"] * after
    assert model.fewest >= min(20, after)
    assert model.fields == OWN_FIELDS


def test_left_in_a_wave_the_fields_are_given_back_and_those_that_are_out_serve_again() -> None:
    walker = in_a_wave(20)
    model = walker.model
    moves = []
    while not isinstance(move := releasing_move(model.fleet(), OWN_FIELDS), Settled):
        moves.append(move)
        model.apply(move)

    assert [type(move).__name__ for move in moves] == [*["Uncordon"] * 5, "Release"]
    assert model.fields == OWN_FIELDS


GO_ON = ReplicaComparison(NOW, ("p21", "p22"), ComparisonState.GO_ON)


@pytest.mark.parametrize(
    ("comparison", "waves", "way_back", "surge"),
    [
        (GO_ON, Waves.QUARTER, False, 5),
        (GO_ON, Waves.ONE_BY_ONE, False, None),
        (None, Waves.QUARTER, False, None),
        (replace(GO_ON, state=ComparisonState.NOT_COMPARABLE), Waves.QUARTER, False, None),
        (replace(GO_ON, pods=("p21",)), Waves.QUARTER, False, None),
        (GO_ON, Waves.QUARTER, True, None),
    ],
    ids=[
        "went on",
        "one by one by the spec",
        "never compared",
        "not comparable",
        "gone on since",
        "way back",
    ],
)
def test_spares_for_waves_are_asked_for_once_and_only_where_the_comparison_went_on(
    comparison: ReplicaComparison | None, waves: Waves, surge: int | None, *, way_back: bool
) -> None:
    walker = InWaves(Model.healthy(20))
    walker.until(two_new)
    fleet = walker.model.fleet()
    step = replace(STEP, before_template="old", after_template="new")
    run = a_run(StepState.ROLLING_OUT, an_intent(), step=step)
    run = run.with_step(replace(run.current, comparison=comparison))
    known = StepInput(run, UID, {}, LIMITS, LIMITS.start, NOW, waves=waves, is_back=way_back)

    move = template_row(step).next_move(fleet, known)

    asked = move.fields.max_surge if isinstance(move, Pulse) else None
    assert asked == surge
