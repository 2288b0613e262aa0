"""What a run costs: replicas beyond the recorded number by the second, and replicas that start anew."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import Step
from kvmedic.model.run import CostSoFar, Footing, devices_of, update_cost_so_far
from run_builder import NEW, NOW, REPLACE, STEP, a_fleet, a_pod

BEGAN = NOW - timedelta(minutes=10)


def fleet(old: int = 3, new: int = 0, terminating: int = 0) -> Fleet:
    pods = [a_pod(f"o{i}") for i in range(old)]
    pods += [a_pod(f"n{i}", NEW) for i in range(new)]
    pods += [a_pod(f"t{i}", terminating=True) for i in range(terminating)]
    return a_fleet(pods=tuple(pods))


def through(*looks: tuple[float, Fleet], step: Step = STEP) -> CostSoFar:
    """Return the cost after looks so many seconds after the start, each stored."""
    cost_so_far: CostSoFar | None = None
    for seconds, seen in looks:
        cost_so_far = update_cost_so_far(
            cost_so_far, Footing(step, 3, BEGAN), seen, BEGAN + timedelta(seconds=seconds)
        )
    assert cost_so_far is not None
    return cost_so_far


def test_a_fleet_with_no_more_than_its_replicas_costs_nothing() -> None:
    assert through((0, fleet()), (600, fleet())).replica_seconds == 0


def test_a_spare_costs_from_when_it_was_seen_until_it_is_gone() -> None:
    found = through((0, fleet()), (10, fleet(3, 1)), (70, fleet(2, 1)), (600, fleet(0, 3)))

    assert found.replica_seconds == 60
    assert found.above == 0


def test_a_replica_that_terminates_holds_its_gpus_until_it_is_gone() -> None:
    found = through((0, fleet()), (10, fleet(3, 1)), (20, fleet(2, 2, terminating=1)), (25, fleet(2, 1)))

    assert found.replica_seconds == 10 * 1 + 5 * 2


def test_looking_twice_at_one_moment_or_a_clock_that_goes_back_changes_nothing() -> None:
    once = through((0, fleet()), (10, fleet(3, 1)), (20, fleet(3, 1)))

    assert through((0, fleet()), (10, fleet(3, 1)), (20, fleet(3, 1)), (20, fleet(3, 1))) == once
    assert through((0, fleet()), (10, fleet(3, 1)), (20, fleet(3, 1)), (5, fleet(3, 1))) == once


def test_an_hour_without_a_look_is_charged() -> None:
    assert through((0, fleet(3, 1)), (3600, fleet(3, 1))).replica_seconds == 3600


@pytest.mark.parametrize(
    ("looks", "changed", "unchanged"),
    [
        ((fleet(3), fleet(3, 1), fleet(0, 3)), 3, 0),
        ((fleet(3, 1), fleet(2, 2), fleet(3, 1), fleet(3)), 2, 2),
        ((fleet(3, 1), fleet(3)), 1, 3),
        ((fleet(5, 1),), 1, 3),
    ],
    ids=["all the way", "half way and back", "the canary alone", "somebody scaled out"],
)
def test_replicas_that_began_anew_are_counted(looks: tuple[Fleet, ...], changed: int, unchanged: int) -> None:
    found = through(*((10.0 * i, seen) for i, seen in enumerate(looks)))

    assert (found.most_changed, found.fewest_unchanged) == (changed, unchanged)


def test_a_replacement_starts_its_spare() -> None:
    found = through((0, fleet(3)), (10, fleet(4)), (20, fleet(3)), step=REPLACE)

    assert (found.most_changed, found.replica_seconds) == (1, 10)


def template(*containers: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers)}}


@pytest.mark.parametrize(
    ("given", "gpus"),
    [
        (template(), None),
        (template({}), None),
        (template({"resources": {"requests": {"nvidia.com/gpu": 1}}}), None),
        (template({"resources": {"limits": {"nvidia.com/gpu": 4, "memory": "1Gi", "cpu": "8"}}}), 4),
        (
            template(
                {"resources": {"limits": {"nvidia.com/gpu": "2"}}},
                {"resources": {"limits": {"amd.com/gpu": 1}}},
            ),
            3,
        ),
        (template({"resources": {"limits": {"nvidia.com/mig-1g.5gb": 2}}}), 2),
        (template({"resources": {"limits": {"nvidia.com/gpu": "lots"}}}), None),
        ({"spec": "none"}, None),
    ],
    ids=[
        "no container",
        "no limits",
        "requests alone",
        "four",
        "two containers",
        "parts",
        "no number",
        "odd",
    ],
)
def test_gpus_of_a_replica(given: Any, gpus: int | None) -> None:
    assert devices_of(given) == gpus
