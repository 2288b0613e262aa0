"""What a change is judged against: figures of the fleet under pressure, not of the quiet before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from builders import THRASHING, an_evidence, an_observation
from kvmedic.api.resource import policy_of, spec_from_wire
from kvmedic.controller.evidence import Survey
from kvmedic.controller.verify import pressed_baseline
from kvmedic.model.evidence import Inconclusive, Look, Observation, Signal
from kvmedic.model.fleet import Pod
from kvmedic.model.plan import Goal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline
from kvmedic.model.spec import Policy
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import diagnose
from kvmedic.runbooks.workload import View
from run_builder import a_fleet, a_pod

MINUTE = timedelta(minutes=1)
RATE = THRASHING.finished / 300
"""Requests that one replica finishes in a second under load."""


@dataclass
class Since:
    """Metrics of a fleet on which the load began some time ago; nothing ran before."""

    ago: timedelta
    looks: list[Look] = field(default_factory=list)
    preempts: bool = True

    async def look(self, source: str, pods: Sequence[Pod], namespace: str, look: Look) -> Observation:
        self.looks.append(look)
        return self.over(look.window, len(pods))

    def over(self, window: timedelta, pods: int = 2) -> Observation:
        loaded = min(window, self.ago).total_seconds()
        share = loaded / 300
        one = replace(
            THRASHING,
            finished=THRASHING.finished * share,
            preemptions=THRASHING.preemptions * share * self.preempts,
            stalls=THRASHING.stalls * share,
        )
        return an_observation(*[one] * pods, window_seconds=window.total_seconds())


def a_policy(**trigger: str) -> Policy:
    spec = {"targetRef": {"name": "llm"}, "trigger": trigger or {"window": "5m", "for": "2m"}}
    return policy_of(spec_from_wire(spec))


async def figures(metrics: Since, policy: Policy, goal: Goal = Goal.RELIEF) -> Baseline | Inconclusive | None:
    burn = metrics.over(policy.windows.trigger)
    evidence = replace(an_evidence(*[THRASHING] * 2), burn=burn)
    diagnosis = diagnose(RUNBOOKS["PreemptionThrash"], an_evidence(*[THRASHING] * 2))
    diagnosis = replace(diagnosis, branch=replace(diagnosis.branch, goal=goal))
    fleet = a_fleet(pods=(a_pod("llm-0"), a_pod("llm-1")), replicas=2)
    found = Survey(View(fleet, {}), evidence, diagnosis, "PreemptionThrash", None, None)
    return await pressed_baseline(found, policy, "serving", metrics)


@pytest.mark.parametrize(
    ("minutes", "window"),
    [(2.5, 120), (3, 120), (4, 180), (5, 240), (6, 300), (60, 300)],
)
async def test_the_figures_are_of_the_time_under_load_alone(minutes: float, window: float) -> None:
    found = await figures(Since(minutes * MINUTE), a_policy())

    assert isinstance(found, Baseline)
    assert found.window_seconds == window
    assert found.requests_per_second == pytest.approx(2 * RATE)


async def test_the_whole_window_would_have_shown_half_the_throughput() -> None:
    """This is what makes a harmful change look harmless; the figures above do not have it."""
    metrics = Since(2.5 * MINUTE)

    whole = await figures(metrics, a_policy(window="5m", **{"for": "5m"}))

    assert isinstance(whole, Baseline)
    assert whole.requests_per_second == pytest.approx(RATE)
    assert metrics.looks == [], "the trigger held for a whole window, so nobody asks since when"


@pytest.mark.parametrize("minutes", [0.5, 1, 2])
async def test_pressure_that_just_began_gives_no_figures_yet(minutes: float) -> None:
    found = await figures(Since(minutes * MINUTE), a_policy())

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.TOO_FEW_REQUESTS
    assert "began less than 120 s ago" in found.message


async def test_a_window_as_short_as_the_shortest_is_taken_as_it_is() -> None:
    metrics = Since(MINUTE)

    found = await figures(metrics, a_policy(window="2m", **{"for": "0s"}))

    assert isinstance(found, Baseline)
    assert metrics.looks == []


async def test_a_fleet_whose_users_wait_without_preemptions_is_measured_over_the_whole_window() -> None:
    metrics = Since(60 * MINUTE, preempts=False)

    found = await figures(metrics, a_policy())

    assert isinstance(found, Baseline)
    assert found.window_seconds == 300
    assert metrics.looks == []


async def test_a_change_that_is_not_judged_by_figures_asks_for_none() -> None:
    metrics = Since(MINUTE)

    assert await figures(metrics, a_policy(), Goal.STAYS_UP) is not None
    assert metrics.looks == []


async def test_finding_when_it_began_asks_for_one_signal_alone() -> None:
    metrics = Since(60 * MINUTE)

    await figures(metrics, a_policy())

    assert [(look.window / MINUTE, look.signals) for look in metrics.looks] == [
        (6, {Signal.PREEMPTIONS}),
        (5, {Signal.PREEMPTIONS}),
    ]
