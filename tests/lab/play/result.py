"""All that is left of one play, and what must be true of it; each miss is one sentence."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab.cluster import usage
from lab.play.course import line
from lab.play.figures import Figures
from lab.play.schema import Apply, Move, Scenario, Writes

Object = dict[str, Any]


@dataclass(slots=True)
class Result:
    """What was seen; `missed` is what should have been otherwise."""

    scenario: Scenario
    seconds: float = 0.0
    """From the start of the play to the end of its last request."""
    before: Figures | None = None
    during: Figures | None = None
    """From the burst, or the plan where there was none, until every replica ran the change."""
    after: Figures | None = None
    unhealed: dict[str, float] = field(default_factory=dict)
    """Tokens per second served in time by the fleet as it was, simulated on the same arrivals, by window."""
    requests: int = 0
    failed_requests: int = 0
    """Of those that opened a connection for themselves."""
    kept_requests: int = 0
    """Those on a connection that its client keeps."""
    failed_kept_requests: int = 0
    failures: list[str] = field(default_factory=list)
    min_in_rotation: int = 0
    most_pods: int = 0
    """That the fleet had at any moment."""
    expired: int = 0
    """Released replicas that the kubelet ended at their deadline."""
    restarts_per_replica: float = 0.0
    branch: str = ""
    """Of the first run, else the one that was diagnosed at the end."""
    branches: list[str] = field(default_factory=list)
    """All that were diagnosed, in their order."""
    reasons: list[str] = field(default_factory=list)
    """Of all conditions at the end."""
    missing_reasons: list[str] = field(default_factory=list)
    """Reasons that a condition should have given at some time and did not."""
    planned: list[Object] = field(default_factory=list)
    """Steps of the plan that is shown at the end."""
    moves: list[Object] = field(default_factory=list)
    """Steps of all runs."""
    ended: list[str] = field(default_factory=list)
    """Steps of all closed runs as people read them, with what became of each."""
    verdicts: list[str] = field(default_factory=list)
    """How each run ended, oldest first."""
    message: str = ""
    """Of the last run, else why there was none."""
    unsaid: list[str] = field(default_factory=list)
    """Texts that should stand in the status and do not."""
    foreign_writers: list[str] = field(default_factory=list)
    """Field managers other than the owner's and Kubernetes' own on the workload or its pods."""
    rewritten: list[str] = field(default_factory=list)
    """The workload and those of its first pods that anybody wrote to, by name."""
    template_changed: bool = False
    operator: dict[str, float] = field(default_factory=dict)
    trouble: str = ""
    """Why it could not be played to its end."""
    missed: list[str] = field(default_factory=list)

    @property
    def plan(self) -> str:
        """Return what was done, or the plan that is shown, in one line."""
        return "; ".join(self.ended or (line(step) for step in self.moves or self.planned))

    @property
    def verdict(self) -> str:
        """Return how it ended in one or two words: the verdicts, else what keeps a run from being opened."""
        return ", ".join(self.verdicts) or str(self.scenario.expect.held or self.branch)

    def as_json(self) -> dict[str, Any]:
        """Return the content of a summary; NaN is null."""
        return {
            "scenario": self.scenario.name,
            "branch": self.branch,
            "branches": self.branches,
            "before": _plain(self.before),
            "during": _plain(self.during),
            "after": _plain(self.after),
            "without_the_operator": {name: round(value, 1) for name, value in self.unhealed.items()},
            "requests": self.requests,
            "failed_requests": self.failed_requests,
            "kept_requests": self.kept_requests,
            "failed_kept_requests": self.failed_kept_requests,
            "failures": self.failures,
            "min_in_rotation": self.min_in_rotation,
            "replicas": self.scenario.fleet.replicas,
            "most_pods": self.most_pods,
            "expired": self.expired,
            "restarts_per_replica": self.restarts_per_replica,
            "plan": self.plan,
            "moves": [line(step) for step in self.moves],
            "verdict": self.verdict,
            "reasons": self.reasons,
            "message": self.message,
            "writes_to_workloads": [*self.foreign_writers, *self.rewritten],
            "operator": self.operator,
            "trouble": self.trouble,
            "missed": self.missed,
            "seconds": round(self.seconds, 1),
        }


def _plain(seen: Figures | None) -> dict[str, float | None] | None:
    if seen is None:
        return None
    return {key: None if math.isnan(value) else round(value, 4) for key, value in asdict(seen).items()}


def misses(result: Result, forbidden: frozenset[str] = frozenset()) -> list[str]:
    """Return what was missed; empty for a good end.

    Args:
        result: what was seen.
        forbidden: branches of the scenarios whose near twin this one is: they must not have been found, but
            for the one that is expected.
    """
    if result.trouble:
        return [f"it could not be played to its end: {result.trouble}"]
    found = [*_said(result), *_moved(result), *_served(result), *_written(result), *_compared(result)]
    found += _gained(result)
    fired = (forbidden & set(result.branches)) - {result.scenario.expect.branch}
    return [*found, *(f"{each} was found, which only its twin must find" for each in sorted(fired))]


def _said(result: Result) -> Iterator[str]:
    expect = result.scenario.expect
    if result.branch != expect.branch:
        branch = f"{result.branch or 'no branch'} was found"
        yield f"{branch}, expected {expect.branch}: {result.message}"
    if expect.held is not None and expect.held not in result.reasons:
        yield f"no condition says {expect.held}; there are {', '.join(result.reasons) or 'none'}"
    for reason in result.missing_reasons:
        yield f"no condition said {reason} at any time"
    for text in result.unsaid:
        yield f"nothing in the status says {text!r}"


def _moved(result: Result) -> Iterator[str]:
    expect = result.scenario.expect
    yield from _steps("the plan", expect.plan, result.planned) if not result.moves else ()
    yield from _steps("the runs", expect.moves, result.moves)
    if expect.verdicts or result.verdicts:
        yield from _ended(result)


def _steps(whose: str, expected: Sequence[Move], seen: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    agree = [move.is_met_by(dict(step)) for move, step in zip(expected, seen, strict=False)]
    if len(expected) != len(seen) or not all(agree):
        steps = ", ".join(line(step) for step in seen) or "no step"
        asked = ", ".join(str(move) for move in expected) or "none"
        yield f"{whose} had {steps}; expected {asked}"


def _ended(result: Result) -> Iterator[str]:
    expected, seen = result.scenario.expect.verdicts, result.verdicts
    choices = [(each,) if isinstance(each, str) else each for each in expected]
    agree = [verdict in allowed for verdict, allowed in zip(seen, choices, strict=False)]
    if len(seen) != len(choices) or not all(agree):
        asked = ", ".join(" or ".join(each) for each in choices) or "no run"
        verdicts = ", ".join(seen) or "no run ended"
        yield f"runs ended as {verdicts}, expected {asked}: {result.message}"


def _served(result: Result) -> Iterator[str]:
    expect, replicas = result.scenario.expect, result.scenario.fleet.replicas
    for failed, most, where in (
        (result.failed_requests, expect.failed_requests, ""),
        (result.failed_kept_requests, expect.failed_kept_requests, " on kept connections"),
    ):
        if most != "any" and failed > most:
            text = "; ".join(sorted(set(result.failures))[:3])
            yield f"{failed} requests{where} failed or were cut, expected {most} ({text})"
    least = replicas if expect.min_in_rotation == "all" else expect.min_in_rotation
    if least != "any" and result.min_in_rotation < least:
        yield f"only {result.min_in_rotation} replicas were in rotation at some time, expected {least}"
    if expect.pods_at_once is not None and not expect.pods_at_once.holds(result.most_pods):
        yield f"{result.most_pods} pods were there at once, expected {expect.pods_at_once}"
    if expect.expired is not None and result.expired != expect.expired:
        yield f"{result.expired} released replicas ended at their deadline, expected {expect.expired}"
    restarts = expect.restarts_per_replica
    if restarts is not None and result.restarts_per_replica > restarts:
        yield f"{result.restarts_per_replica:.2f} restarts per replica, expected {restarts:g} at most"
    if not result.requests:
        yield "no request was answered"


def _written(result: Result) -> Iterator[str]:
    expect = result.scenario.expect
    if expect.writes is not Writes.ANY and result.foreign_writers:
        yield f"somebody wrote to the workload or its pods: {', '.join(result.foreign_writers)}"
    if expect.writes is Writes.UNTOUCHED and result.rewritten:
        yield f"their resourceVersion is another than before: {', '.join(result.rewritten)}"
    is_applied = any(isinstance(each, Apply) for each in result.scenario.incidents)
    is_same = expect.writes is Writes.UNTOUCHED or (expect.writes is Writes.NONE and not is_applied)
    same = expect.template == "same" or is_same
    if same and result.template_changed:
        yield "the workload is not as it was before"


def _compared(result: Result) -> Iterator[str]:
    ratios = result.scenario.expect.ratios
    if ratios and (result.before is None or result.after is None):
        yield "figures before or after are missing"
        return
    for name, bound in ratios.items():
        then, now = getattr(result.before, name), getattr(result.after, name)
        ratio = now / then if then else (math.inf if now else 1.0)
        if not bound.holds(ratio):
            yield f"{name} is {ratio:.3f} of before ({then:.4g} -> {now:.4g}), expected {bound}"


def _gained(result: Result) -> Iterator[str]:
    gain = result.scenario.expect.gain
    if gain is None:
        return
    if result.after is None or "after" not in result.unhealed:
        yield "what the fleet would have served without the operator is not known"
        return
    now, without = result.after.in_time_per_second, result.unhealed["after"]
    if now < gain * without:
        text = f"{now:.0f} tokens/s are served in time and {without:.0f} without the operator"
        yield f"{text}, expected {gain:g} times as many"


COMMAND = b"/opt/kvmedic/bin/kvmedic"
"""Program of the operator's container (Containerfile)."""
MIB = 2**20


@dataclass(slots=True)
class Footprint:
    """Memory and CPU of the operator since `start`; nothing where its process can't be seen."""

    _at: float = 0.0
    _cpu: dict[int, float] = field(default_factory=dict)

    def start(self) -> None:
        """Note what it has used so far."""
        self._at = time.monotonic()
        self._cpu = {pid: usage.cpu_seconds(pid) for pid in _processes()}

    def measured(self) -> dict[str, float]:
        """Return `rss_mib`, the most there ever was, and `cpu_share` of one core since `start`."""
        found = _processes()
        if not found:
            return {}
        used = sum(usage.cpu_seconds(pid) - self._cpu.get(pid, 0.0) for pid in found)
        memory = sum(usage.peak_bytes(pid) for pid in found) / MIB
        return {"rss_mib": round(memory, 1), "cpu_share": round(used / (time.monotonic() - self._at), 4)}


def _processes() -> list[int]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if COMMAND in (directory / "cmdline").read_bytes().split(b"\0"):
                found.append(int(directory.name))
    return found
