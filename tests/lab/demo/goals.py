"""What must be true at the end; each miss is one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from .figures import Figures
from .scenario import Scenario


@dataclass(slots=True)
class Result:
    """All that is left of one play."""

    scenario: Scenario
    seconds: float = 0.0
    """From the first request to the end of the last one."""
    before: Figures | None = None
    after: Figures | None = None
    requests: int = 0
    failed_requests: int = 0
    failures: list[str] = field(default_factory=list)
    min_in_rotation: int = 0
    restarts_per_replica: float = 0.0
    plan: str = ""
    verdict: str = ""
    message: str = ""
    foreign_writers: list[str] = field(default_factory=list)
    """Field managers other than the owner's and Kubernetes' own on the Deployment or its pods."""
    rewritten: list[str] = field(default_factory=list)
    """The Deployment and those of its first pods that anybody wrote to, by name."""
    template_changed: bool = False
    operator: dict[str, float] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the content of `summary.json`; NaN is null."""
        shown: dict[str, Any] = {
            "scenario": self.scenario.name,
            "before": _plain(self.before),
            "after": _plain(self.after),
            "requests": self.requests,
            "failed_requests": self.failed_requests,
            "failures": self.failures,
            "min_in_rotation": self.min_in_rotation,
            "replicas": self.scenario.fleet.replicas,
            "restarts_per_replica": self.restarts_per_replica,
            "plan": self.plan,
            "verdict": self.verdict,
            "message": self.message,
            "writes_to_workloads": [*self.foreign_writers, *self.rewritten],
            "operator": self.operator,
            "missed": self.missed,
            "seconds": round(self.seconds, 1),
        }
        return shown


def _plain(seen: Figures | None) -> dict[str, float | None] | None:
    if seen is None:
        return None
    return {key: None if math.isnan(value) else round(value, 4) for key, value in asdict(seen).items()}


def misses(result: Result) -> list[str]:
    """Return what was missed; empty for a good end."""
    scenario = result.scenario
    found = list(_always(result))
    wanted = scenario.goals.verdicts if scenario.expected == "Recovered" else {scenario.expected}
    if result.verdict not in wanted:
        told = " or ".join(sorted(wanted, reverse=True))
        found.append(f"the verdict is {result.verdict or 'missing'}, expected {told}")
    elif scenario.expected == "Recovered":
        found += _healed(result)
    elif scenario.expected == "Healthy":
        found += _left_alone(result)
    else:
        found += _untouched(result)
    return found


def _always(result: Result) -> Iterator[str]:
    if result.failed_requests:
        text = "; ".join(sorted(set(result.failures))[:3])
        yield f"{result.failed_requests} requests failed or were aborted, expected 0 ({text})"
    if result.min_in_rotation < result.scenario.fleet.replicas:
        replicas = result.scenario.fleet.replicas
        yield f"only {result.min_in_rotation} replicas were in rotation at some time, expected {replicas}"
    if not result.requests:
        yield "no request was answered"


def _healed(result: Result) -> Iterator[str]:
    goals, before, after = result.scenario.goals, result.before, result.after
    if result.restarts_per_replica != goals.restarts_per_replica:
        told = f"{result.restarts_per_replica:.2f} restarts per replica"
        yield f"{told}, expected {goals.restarts_per_replica:g}"
    if before is None or after is None:
        yield "figures before or after are missing"
        return
    gaps = before.longest_gap_p95 / after.longest_gap_p95 if after.longest_gap_p95 else math.inf
    if not gaps >= goals.gap_factor:
        yield f"the p95 of the longest gap is {gaps:.2f} times shorter, expected {goals.gap_factor:g}"
    throughput = after.tokens_per_second / before.tokens_per_second
    if not throughput >= goals.throughput_ratio:
        yield f"tokens/s are {throughput:.3f} of before, expected {goals.throughput_ratio:g}"
    if not after.goodput_per_second > before.goodput_per_second:
        then, now = before.goodput_per_second, after.goodput_per_second
        yield f"goodput did not rise: {then:.0f} -> {now:.0f} tokens/s"


def _left_alone(result: Result) -> Iterator[str]:
    if result.plan:
        yield f"a plan was made: {result.plan}"
    if result.foreign_writers:
        yield f"somebody wrote to the Deployment or its pods: {', '.join(result.foreign_writers)}"
    if result.rewritten:
        yield f"their resourceVersion is another than before: {', '.join(result.rewritten)}"
    yield from _same_fleet(result)


def _untouched(result: Result) -> Iterator[str]:
    if not result.plan:
        yield "no plan was made"
    yield from _same_fleet(result)


def _same_fleet(result: Result) -> Iterator[str]:
    if result.restarts_per_replica:
        yield f"{result.restarts_per_replica:.2f} restarts per replica, expected 0"
    if result.template_changed:
        yield "the Deployment is not as it was before"
