"""What two hundred fleets cost one operator, as a process of its own against a real API server.

Ratios within one run, and counts: how long anything takes is the machine's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lab.bench.scale import BUDGET, ROUND_SECONDS, SPEC, Calm, Scale, seconds_between_looks, watch_calm, world
from lab.bench.scale_poison import BOUND, SETTLING_SECONDS, poisoned, react, write_workloads
from lab.bench.scale_runs import Opened, open_runs

FLEETS = 200
COLD_SECONDS = 400.0
"""For the first look at all, beside other tests."""
REUSE_SECONDS = 11.0
"""For 10 s looks share what they read (docs/explanation/scale.md)."""
pytestmark = [pytest.mark.light, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cold() -> Iterator[Scale]:
    with world(FLEETS, 2, None) as scale:
        scale.start()
        looked = scale.wait(lambda seen: len(seen.looked_at) == FLEETS, COLD_SECONDS)
        assert looked is not None, (
            f"{len(scale.witness.looked_at)} of {FLEETS}: {scale.log.read_text()[-2000:]}"
        )
        yield scale


@pytest.fixture(scope="module")
def first_look(cold: Scale) -> float:
    """CPU seconds that the first look at each fleet took."""
    return cold.cpu_seconds() / FLEETS


@pytest.fixture(scope="module")
def calm(cold: Scale, first_look: float) -> Calm:
    return watch_calm(cold, 1.5 * ROUND_SECONDS)


def sicken(scale: Scale, count: int) -> Opened:
    """Make so many more fleets sick, and have them looked at as soon as their figures are asked for anew."""
    some = scale.next_sick(count)

    def begin() -> None:
        scale.make_sick(scale.sick + count)
        time.sleep(REUSE_SECONDS)
        scale.wake(some)

    return open_runs(scale.witness, begin, count, BUDGET, COLD_SECONDS)


def test_calm_fleets_are_looked_at_for_a_fraction_of_the_first_look(first_look: float, calm: Calm) -> None:
    assert calm.spent.looks >= FLEETS
    assert calm.cpu_per_look < first_look / 3
    assert calm.writes == 0
    assert sum(calm.requests.values()) / calm.spent.wall < 5
    # Two queries at each moment of looks, and what was under way before; six at most in a round.
    assert calm.spent.queries <= 8 * (calm.rounds + 1)
    assert calm.spent.received / FLEETS / calm.rounds < 1500


def test_an_open_run_is_looked_at_far_more_often_than_a_calm_fleet_and_reads_less_than_a_round(
    cold: Scale, calm: Calm
) -> None:
    before = cold.spent()

    opened = sicken(cold, 1)
    gap = seconds_between_looks(cold, 10)
    spent = cold.spent().since(before)
    cold.let_all_go(COLD_SECONDS)

    assert opened.first_move is not None
    assert gap < ROUND_SECONDS / 5
    looks = spent.requests["GET kvremediations"]
    assert spent.received / looks < calm.spent.received / calm.rounds


def test_runs_are_open_up_to_the_budget_and_every_sick_fleet_has_its_turn(cold: Scale) -> None:
    opened = sicken(cold, 2 * BUDGET)
    cold.wait(lambda seen: not seen.open_now, COLD_SECONDS)

    assert opened.most_open == BUDGET
    assert len(opened.waits) == 2 * BUDGET


def test_dear_templates_of_one_tenant_leave_the_reaction_of_others(cold: Scale) -> None:
    poison = write_workloads(cold, FLEETS // 8)
    alone, beside = [], []

    for _ in range(3):  # other tests come and go beside this one: a pair that they spoil is measured again
        alone.append(react(cold, BUDGET, COLD_SECONDS))
        with poisoned(cold, poison, SPEC):
            time.sleep(SETTLING_SECONDS)
            beside.append(react(cold, BUDGET, COLD_SECONDS))
        assert None not in (*alone, *beside), (
            f"not all of {BUDGET} moved within {COLD_SECONDS:.0f} s: {alone}, {beside}"
        )
        fastest = [min(each.seconds for each in some) for some in (beside, alone)]
        if fastest[0] < BOUND * fastest[1]:
            break
    assert fastest[0] < BOUND * fastest[1], (beside, alone)
