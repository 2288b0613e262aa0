"""Where a play stands: which cues have come, what is due, and whether all that is expected was seen.

Knows no cluster and reads no clock: the time is an argument, in seconds since the play began.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lab.play.chronicle import Chronicle
from lab.play.moments import Cue
from lab.play.schema import Incident, Scenario, Stream


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
    _done: dict[int, float] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)
    _ended: set[int] = field(default_factory=set)
    _seen_at: float | None = None

    def look(self, now: float) -> None:
        """Note the cues that have come since the last look."""
        told = self.chronicle
        come = {
            Cue.BRANCH: told.found == self.scenario.expect.branch,
            Cue.PLAN: bool(told.opened or told.plan),
            Cue.SETTLED: told.has_settled,
            Cue.CLOSED: bool(told.closed),
        }
        for cue, has_come in come.items():
            if has_come:
                self.cues.setdefault(cue, now)
        if self.turned_at is None and told.changes_something:
            self.turned_at = now
        if self.measured_from is None and told.settled >= self.scenario.expect.measured_change:
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
                yield number, stream

    def ending(self, now: float) -> Iterator[int]:
        """Yield the numbers of the streams that end now, each once."""
        for number in sorted(self._begun - self._ended):
            ends = self.scenario.load[number].ends
            at = ends.at(self.cues) if ends else None
            if at is not None and at <= now:
                self._ended.add(number)
                yield number

    def is_over(self, now: float) -> bool:
        """Return whether there is nothing more to wait for, for good or because a limit is passed."""
        if self.scenario.expect.runs:
            return self._has_run(now) or self._is_late(now)
        unexpected = bool(self.chronicle.opened)
        quiet = self._seen_at is not None and now - self._seen_at >= self.scenario.limits.quiet
        return unexpected or quiet or now >= self.scenario.limits.diagnosis + self.scenario.limits.quiet

    def _next(self, number: int, incident: Incident) -> float | None:
        if number not in self._done:
            return incident.at.at(self.cues)
        return None if incident.every is None else self._done[number] + incident.every

    def _is_as_expected(self) -> bool:
        """Return whether branch, reason, plan and words are what is expected, where no run is."""
        wanted, told = self.scenario.expect, self.chronicle
        return (
            told.found == wanted.branch
            and (wanted.held is None or wanted.held in told.reasons)
            and len(told.planned) == len(wanted.plan)
            and all(told.says(text) for text in wanted.says)
        )

    def _has_run(self, now: float) -> bool:
        """Return whether every expected run is closed, what must follow was seen, and all is measured."""
        if len(self.chronicle.closed) < self.scenario.expect.runs:
            return False
        held = self.scenario.expect.held
        if held is not None and held not in self.chronicle.reasons:
            return False
        since = self.measured_from
        wanted = self.scenario.expect.ratios and since is not None
        return not wanted or now - (since or now) >= self.scenario.limits.measure

    def _is_late(self, now: float) -> bool:
        limits, planned = self.scenario.limits, self.cues.get(Cue.PLAN)
        return now >= limits.diagnosis if planned is None else now >= planned + limits.run
