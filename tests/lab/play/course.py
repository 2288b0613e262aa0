"""Where a play stands: which cues have come, what is due, and whether all that is expected was seen.

Knows no cluster and reads no clock: the time is an argument, in seconds since the play began.
"""

import json
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvmedic.api.status import record_from_wire
from kvmedic.model.plan import EvaluationStep, TrialStep
from kvmedic.model.trial import Answer
from lab.play.schema import Cue, Incident, Scenario, Stream

Object = dict[str, Any]
Window = tuple[float, float]
"""Seconds since and until which something counts."""
TRIALS = frozenset({TrialStep.__name__, EvaluationStep.__name__})
"""The kinds of step that change nothing of a fleet."""


@dataclass(slots=True)
class Chronicle:
    """Kept current by `learn`, which is called with each state of the status in its order."""

    status: Object = field(default_factory=dict)
    """As it is now."""
    branches: list[str] = field(default_factory=list)
    """Reasons of the diagnosis, each once per time that it was found anew since `begin`."""
    opened: dict[str, Object] = field(default_factory=dict)
    """Every run that was ever open, by id, as it was last recorded."""
    ever: set[str] = field(default_factory=set)
    """Reasons that a condition ever gave."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, status: Mapping[str, Any]) -> None:
        with self._lock:
            before = self.reason
            self.status = dict(status)
            self.ever |= self.reasons
            if self.reason not in ("", before):
                self.branches.append(self.reason)
            if run := self.run:
                self.opened[str(run["id"])] = run

    def begin(self) -> None:
        """Forget the branches of before: what is found of a fleet without traffic shows nothing of the play.

        The one that stands now is not found anew by going on to stand. A fleet that has just come up has
        no series over a whole look yet.
        """
        with self._lock:
            self.branches.clear()

    @property
    def reason(self) -> str:
        """Return the present diagnosis; empty: none yet."""
        return str((self.status.get("diagnosis") or {}).get("reason", ""))

    @property
    def found(self) -> str:
        """Return the branch that counts: that of the first run, else the present one."""
        first = next(iter(self.opened.values()), None)
        return str(first["reason"]) if first else self.reason

    @property
    def run(self) -> Object:
        """Return the open run as it is recorded; empty when there is none."""
        return dict(self.status.get("run") or {})

    @property
    def closed(self) -> list[Object]:
        return [dict(run) for run in reversed(self.status.get("history") or ())]

    @property
    def moves(self) -> list[Object]:
        """Return the steps of every run that was opened, as the status writes them."""
        return [dict(each["step"]) for run in self.opened.values() for each in run["steps"]]

    @property
    def plan(self) -> Object:
        """Return the plan that is shown; empty when there is none."""
        return dict(self.status.get("plan") or {})

    @property
    def planned(self) -> list[Object]:
        """Return the steps of the plan that is shown, as the status writes them."""
        return [dict(step) for step in (self.plan.get("exact") or {}).get("steps", ())]

    @property
    def changes_something(self) -> bool:
        """Return whether a plan is shown, or a run was opened, that is not only a trial."""
        steps = [*self.moves, *self.planned]
        is_trial = bool(steps) and all(step.get("kind") in TRIALS for step in steps)
        return bool(self.opened or self.plan) and not is_trial

    @property
    def is_trying(self) -> bool:
        return any(each["step"].get("kind") in TRIALS for each in self.run.get("steps", ()))

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Return what trials showed, the oldest first."""
        wire = {"answers": self.status.get("answers") or []}
        return tuple(reversed(record_from_wire(wire).answers))

    @property
    def has_settled(self) -> bool:
        """Return whether every replica ran what the first step of some run changed."""
        return self.settled > 0

    @property
    def settled(self) -> int:
        """Return of how many runs every replica ran what the first step changed."""
        return sum(bool(run["steps"][0].get("settledAt")) for run in self.opened.values())

    @property
    def reasons(self) -> set[str]:
        return {str(each["reason"]) for each in self.status.get("conditions", ())}

    def condition(self, kind: str) -> Object:
        """Return a condition by its type; empty when it was never written."""
        found = (each for each in self.status.get("conditions", ()) if each["type"] == kind)
        return next(found, {})

    def says(self, text: str) -> bool:
        """Return whether a text stands in a condition, the plan, the diagnosis, or a run, open or closed."""
        parts = ("conditions", "plan", "diagnosis", "history")
        content = json.dumps([*(self.status.get(part) for part in parts), self.opened], ensure_ascii=False)
        return json.dumps(text, ensure_ascii=False)[1:-1] in content


def line(step: Mapping[str, Any]) -> str:
    """Return a step, as the status writes it, in a few words for a table."""
    kind = str(step.get("kind", "?")).removesuffix("Step")
    if "knob" in step:
        return f"{step['knob']} {step.get('before') or 'default'} -> {step.get('after') or 'default'}"
    after = step.get("after") or ""
    became = after["number"] if isinstance(after, Mapping) else after
    return f"{kind} {step.get('pod') or became}".strip().lower()


@dataclass(slots=True)
class Course:
    """One play from its first request to its end."""

    scenario: Scenario
    chronicle: Chronicle
    cues: dict[Cue, float] = field(default_factory=lambda: {Cue.START: 0.0})
    """When each cue came, those that have come."""
    turned_at: float | None = None
    """When the first plan or run came that changes something, which a trial does not. There the figures of
    before end."""
    measured_from: float | None = None
    """When every replica ran the change whose figures count. There the figures of after begin."""
    burst_at: float | None = None
    """When a burst began, the first one."""
    _done: dict[int, float] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)
    _ended: set[int] = field(default_factory=set)
    _seen_at: float | None = None

    def look(self, now: float, seen: Collection[Cue] = ()) -> None:
        """Note the cues that have come since the last look; `seen`: those that only pods show."""
        chronicle = self.chronicle
        come = {
            Cue.BRANCH: chronicle.found == self.scenario.expect.branch,
            Cue.PLAN: bool(chronicle.opened or chronicle.plan),
            Cue.SETTLED: chronicle.has_settled,
            Cue.CLOSED: bool(chronicle.closed),
            **dict.fromkeys(seen, True),
        }
        for cue, has_come in come.items():
            if has_come:
                self.cues.setdefault(cue, now)
        if self.turned_at is None and chronicle.changes_something:
            self.turned_at = now
        if self.measured_from is None and chronicle.settled >= self.scenario.expect.measured_change:
            self.measured_from = now
        if not self._is_as_expected():
            self._seen_at = None
        elif self._seen_at is None:
            self._seen_at = now

    def due(self, now: float) -> Iterator[Incident]:
        """Yield the incidents that are due and were not yielded before, in the order of the file."""
        for number, incident in enumerate(self.scenario.incidents):
            at = self._next(number, incident)
            if at is not None and at <= now:
                self._done[number] = now
                yield incident

    def starting(self, now: float) -> Iterator[tuple[int, Stream]]:
        """Yield the streams of requests that begin now, each once, with their numbers."""
        for number, stream in enumerate(self.scenario.load):
            at = stream.begins.at(self.cues)
            if number not in self._begun and at is not None and at <= now:
                self._begun.add(number)
                if stream.is_burst and self.burst_at is None:
                    self.burst_at = now
                yield number, stream

    def ending(self, now: float) -> Iterator[int]:
        """Yield the numbers of the streams that end now, each once."""
        for number in sorted(self._begun - self._ended):
            ends = self.scenario.load[number].ends
            at = ends.at(self.cues) if ends else None
            if at is not None and at <= now:
                self._ended.add(number)
                yield number

    def windows(self, full_from: float) -> dict[str, Window]:
        """Return the windows whose figures count, those there are: `before`, `during` and `after`.

        What goes wrong begins with a burst, where there was one before the first plan; else with that plan.
        """
        turned, settled, span = self.turned_at, self.measured_from, self.scenario.limits.measure
        if turned is None:
            return {}
        upset = turned if self.burst_at is None else min(turned, self.burst_at)
        found = {"before": (max(full_from, upset - span), upset)}
        if settled is not None:
            found |= {"during": (upset, settled), "after": (settled, settled + span)}
        return {name: (since, until) for name, (since, until) in found.items() if since < until}

    def is_over(self, now: float) -> bool:
        """Return whether there is nothing more to wait for, for good or because a limit is passed."""
        if self.scenario.expect.runs:
            return self._has_run(now) or self._is_late(now)
        unexpected = bool(self.chronicle.opened)
        quiet = self._seen_at is not None and now - self._seen_at >= self.scenario.limits.quiet
        return unexpected or quiet or now >= self.scenario.limits.diagnosis + self.scenario.limits.quiet

    @property
    def missing_reasons(self) -> list[str]:
        """Return the reasons that conditions are to give at some time, and have not given yet."""
        return sorted(set(self.scenario.expect.reported) - self.chronicle.ever)

    def _next(self, number: int, incident: Incident) -> float | None:
        if number not in self._done:
            return incident.at.at(self.cues)
        return None if incident.every is None else self._done[number] + incident.every

    def _is_as_expected(self) -> bool:
        """Return whether branch, reason, plan and words are what is expected, where no run is."""
        expect, chronicle = self.scenario.expect, self.chronicle
        return (
            chronicle.found == expect.branch
            and (expect.held is None or expect.held in chronicle.reasons)
            and not self.missing_reasons
            and len(chronicle.planned) == len(expect.plan)
            and all(chronicle.says(text) for text in expect.says)
        )

    def _has_run(self, now: float) -> bool:
        """Return whether every expected run is closed, what must follow was seen, and all is measured."""
        if len(self.chronicle.closed) < self.scenario.expect.runs:
            return False
        expect, chronicle = self.scenario.expect, self.chronicle
        if (expect.held is not None and expect.held not in chronicle.reasons) or self.missing_reasons:
            return False
        since = self.measured_from
        compares = expect.ratios or expect.gain
        needs_figures = compares and since is not None
        return not needs_figures or now - (since or now) >= self.scenario.limits.measure

    def _is_late(self, now: float) -> bool:
        limits, planned = self.scenario.limits, self.cues.get(Cue.PLAN)
        return now >= limits.diagnosis if planned is None else now >= planned + limits.run
