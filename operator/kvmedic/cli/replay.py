"""What kvmedic would have done of late: its own looks, diagnosis, plan and gates, over a source's history.

Nothing is judged here. Each moment of the past is looked at as the operator looks at the present, by the same
functions. What history does not show never acts: it is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from kvmedic.api.rules import format_duration
from kvmedic.cli.report import change_of
from kvmedic.controller.blockers import health_of
from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import SurveyInput
from kvmedic.controller.survey import survey
from kvmedic.controller.verify import pressed_baseline
from kvmedic.doctor.examine import Seen
from kvmedic.doctor.past_fleet import PastView, view_at
from kvmedic.engines.engine_log import Start, StartForms
from kvmedic.metrics.history import History, Life
from kvmedic.metrics.prometheus import Spent
from kvmedic.metrics.series import Unanswered
from kvmedic.model.devices import EngineEnd
from kvmedic.model.evidence import Blocked, Inconclusive, LogForms, LoggedSize
from kvmedic.model.fleet import Pod
from kvmedic.model.plan import OnTrial
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Mode, Policy
from kvmedic.model.status import ClosedRun, Record, Resource
from kvmedic.rollout.gates.opening import opening_gate
from kvmedic.runbooks.branches import Diagnosed, Diagnosis, is_content

IN_TROUBLE = timedelta(minutes=5)
"""Between two looks once trouble has lasted for `SETTLING`: such looks ask for histograms. A run that a gate
kept back is found up to so much late."""
SETTLING = timedelta(minutes=10)
"""For so long trouble is looked at as often as the operator does it: the first evidence may not be enough."""
MOST_QUERIES, MOST_BYTES = 5000, 512 << 20
"""Where a replay stops, and says so. Ten replicas in trouble every night take a tenth of it in three days."""
SILENCE = 3
"""Looks in a row that a source leaves without an answer before the replay ends."""
SHOWN = 12
"""Runs that are shown as text; all are in the JSON."""


class Found(StrEnum):
    """What a look at a moment of the past comes to."""

    CALM = "Calm"
    RUN = "Run"
    """Every gate was open: a run would have been opened."""
    HELD = "Held"
    """Trouble, and something kept a run from being opened."""
    COOLDOWN = "Cooldown"
    """Trouble went on in history while such a run would have walked, or cooled down."""
    UNKNOWN = "Unknown"
    """It could not be determined whether there was trouble."""
    NOBODY = "Nobody"
    """No replica is known of that time."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A run that would have been opened."""

    at: datetime
    runbook: str
    diagnosis: Diagnosis
    survey: Survey = field(repr=False)


@dataclass(slots=True)
class Stretch:
    """Looks one after the other that came to the same."""

    found: Found
    reason: Reason | None
    message: str
    """Of the first of them."""
    first: datetime
    last: datetime
    """When the next one came to something else."""

    @property
    def length(self) -> timedelta:
        """Return how long it lasted."""
        return self.last - self.first


@dataclass(slots=True)
class Replay:
    """What a replay found."""

    first: datetime
    last: datetime
    """Up to where it looked."""
    pace: timedelta
    openings: list[Opening] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What history did not show."""
    ended: str = ""
    """Why it did not look up to now; empty: it did."""
    spent: Spent = field(default_factory=Spent)

    def total(self, found: Found) -> timedelta:
        """Return how long looks came to something."""
        return sum((each.length for each in self.stretches if each.found is found), timedelta(0))

    def trouble_until(self, at: datetime) -> datetime:
        """Return until when it was not calm again after a moment, as far as it was looked."""
        later = (each.first for each in self.stretches if each.first > at and each.found is Found.CALM)
        return min(later, default=self.last)

    def add(self, found: Found, why: Blocked | Inconclusive | None, at: datetime, until: datetime) -> None:
        """Add a look that stands for the time until the next one."""
        newest, reason = self.stretches[-1] if self.stretches else None, why.reason if why else None
        if newest is not None and (newest.found, newest.reason) == (found, reason):
            newest.last = until
        else:
            self.stretches.append(Stretch(found, reason, why.message if why else "", at, until))
        self.last = until


@dataclass(frozen=True, slots=True)
class NoLogs:
    """Nobody keeps what engines logged in the past."""

    async def last_ends(
        self, namespace: str, pods: Sequence[Pod], since: datetime
    ) -> Mapping[str, EngineEnd]:
        """Return nothing."""
        del namespace, pods, since
        return {}

    async def logged_pools(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: LogForms
    ) -> Mapping[str, LoggedSize]:
        """Return nothing."""
        del namespace, pods, container, forms
        return {}

    async def starts(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: StartForms
    ) -> Mapping[str, Start]:
        """Return nothing."""
        del namespace, pods, container, forms
        return {}


@dataclass(frozen=True, slots=True)
class _Case:
    """One target and how it is looked at."""

    resource: Resource
    policy: Policy
    """In mode Auto and not suspended: what it would do if it may."""
    past: tuple[ClosedRun, ...]
    """Runs that kvmedic really made."""
    history: History


async def replay(
    seen: Seen, resource: Resource, history: History, stretch: tuple[datetime, datetime], pace: timedelta
) -> Replay:
    """Return what kvmedic would have done with a target between two moments, in mode Auto.

    Args:
        seen: the target today.
        resource: its own, or one as it would be.
        history: what the source reports.
        stretch: the moments.
        pace: between two looks at a calm fleet.
    """
    first, last = stretch
    result = Replay(first, first, pace, spent=history.spent)
    lives = await history.lives(first, last)
    if isinstance(lives, Unanswered):
        result.ended = f"the source {lives.trouble}"
        return result
    real = tuple(run for run in (resource.record or Record()).history if run.ended_at >= first)
    policy = replace(seen.policy, mode=Mode.AUTO, suspended=False)
    case = _Case(replace(resource, policy=policy), policy, real, history)
    result.notes += _notes(seen, lives, first, real)
    at = first
    while at < last:
        if ended := _find_exceeded_bound(history):
            result.ended = ended
            break
        step = _step(result, at)
        then = view_at(seen.view, lives, at)
        if then is None:
            result.add(Found.NOBODY, None, at, at + step)
        else:
            found, why = await _look(case, then, result, at, (step, last))
            result.add(found, why, at, at + step)
        at += step
    return result


def _find_exceeded_bound(history: History) -> str:
    """Return why nothing more is asked; empty: it may be."""
    spent = history.spent
    if history.silent >= SILENCE:
        return f"{history.trouble}, {SILENCE} looks in a row"
    if spent.queries >= MOST_QUERIES or spent.received_bytes >= MOST_BYTES:
        shown = f"{spent.queries} queries and {spent.received_bytes >> 20} MiB"
        return f"its bound is reached ({shown}; at most {MOST_QUERIES} and {MOST_BYTES >> 20}): ask for less"
    return ""


def _step(result: Replay, at: datetime) -> timedelta:
    """Return until when a look stands: trouble that lasts is looked at less often."""
    began = at
    for each in reversed(result.stretches):
        if each.found in (Found.CALM, Found.NOBODY):
            break
        began = each.first
    return max(result.pace, IN_TROUBLE) if at - began >= SETTLING else result.pace


async def _look(
    case: _Case, then: PastView, result: Replay, at: datetime, pace: tuple[timedelta, datetime]
) -> tuple[Found, Blocked | Inconclusive | None]:
    """Return what a look comes to, and note the run that it would have opened."""
    metrics, policy = case.history.at(at, *pace), case.policy
    real = tuple(run for run in case.past if run.started_at <= at)
    runs = (*(_as_run(each, policy) for each in reversed(result.openings)), *real)
    resource = replace(case.resource, record=Record(history=runs))
    found = await survey(resource, policy, then.view, SurveyInput(metrics, NoLogs(), at))
    if found.plan is None:
        return _without_plan(found, then)
    why: Blocked | Inconclusive | None = found.blocked or _find_plan_blocker(found, then)
    why = why or opening_gate(policy.limits, runs, health_of(found), at)
    if why is None:
        baseline = await pressed_baseline(found, policy, resource.namespace, metrics)
        why = baseline if isinstance(baseline, Inconclusive) else None
    if why is not None:
        is_own = why.reason is Reason.IN_COOLDOWN and bool(result.openings)
        return Found.COOLDOWN if is_own else Found.HELD, why
    result.openings.append(Opening(at, found.runbook, found.diagnosis, found))
    return Found.RUN, None


def _without_plan(found: Survey, then: PastView) -> tuple[Found, Blocked | Inconclusive | None]:
    """Return what a look without a plan comes to."""
    if isinstance(found.diagnosis, Inconclusive):
        return Found.UNKNOWN, found.diagnosis
    if is_content(found.diagnosis):
        return Found.CALM, None
    why = found.blocked and (_find_plan_blocker(found, then) or found.blocked)
    return Found.HELD, why or Blocked(found.diagnosis.reason, found.diagnosis.line())


def _find_plan_blocker(found: Survey, then: PastView) -> Blocked | None:
    """Return why no plan of then is known although trouble is."""
    if then.unknown:
        text = f"{found.diagnosis.line()}; no plan is known: {then.unknown}"
        return Blocked(Reason.REVISION_UNREADABLE, text)
    if found.plan is not None and isinstance(found.plan.steps[0], OnTrial):
        text = f"it would have asked a trial pod first, whose answer no history has: {found.plan.message}"
        return Blocked(Reason.TRIAL_RUNNING, text)
    return None


def _as_run(opening: Opening, policy: Policy) -> ClosedRun:
    """Return a run that would have been opened as gates count it: it takes its sustained window at least."""
    return ClosedRun(
        id=f"replay-{opening.at:%Y%m%dT%H%M%S}",
        reason=opening.diagnosis.reason,
        outcome=Reason.INCONCLUSIVE,
        message="",
        steps=(),
        started_at=opening.at,
        ended_at=opening.at + policy.windows.verify,
    )


def _notes(
    seen: Seen, lives: Mapping[str, Life], first: datetime, real: Sequence[ClosedRun]
) -> Iterator[str]:
    """Yield what cannot be known of this target's past."""
    oldest = min((each.first for each in lives.values()), default=None)
    if oldest is None:
        yield f"the source knows no replica of {seen.view.fleet.name} since {_text(first)}: see row metrics"
    elif oldest > first + timedelta(minutes=10):
        yield f"the source knows no replica before {_text(oldest)}"
    if real:
        listed = ", ".join(f"{run.id} ({run.outcome})" for run in reversed(real))
        yield f"runs that kvmedic really made are part of this history: {listed}"
    if seen.view.config_maps:
        yield "a ConfigMap with the engine's configuration is read as it is today"
    yield (
        "no history shows what engines logged when they ended, or which nodes and owners there were: "
        "no log counts, the others as today, and replicas with samples count as Ready"
    )


def replay_as_text(result: Replay, command: str) -> Iterator[str]:
    """Yield the verdict, each run, what only held, and what is not known.

    Args:
        result: what was found.
        command: prints one moment in full, without the time.
    """
    if result.first == result.last:
        yield f"replay     not looked: {result.ended}"
        return
    yield _verdict(result)
    if result.ended:
        yield f"  ended    {_text(result.last)}: {result.ended}"
    for each in result.openings[:SHOWN]:
        yield from _opening_as_text(each, result)
    for found in (Found.HELD, Found.UNKNOWN, Found.NOBODY):
        yield from _stretches_as_text(found, result)
    runs = len(result.openings)
    more = [f"{runs - SHOWN} more runs: -o json has all"] if runs > SHOWN else []
    later = ["each later run counts as if those before it had changed nothing"] if runs > 1 else []
    for note in (*more, *later, *result.notes):
        yield f"  note     {note}"
    if result.openings:
        yield f"  one look {command} --at {_text(result.openings[0].at)}"


def _verdict(result: Replay) -> str:
    runs, held = len(result.openings), result.total(Found.HELD)
    opened = "no run" if not runs else "1 run" if runs == 1 else f"{runs} runs"
    also = f", and held for {_long(held)}" if held else ""
    spent = f"{result.spent.queries} queries, {result.spent.received_bytes / 2**20:.1f} MiB"
    span = f"{_text(result.first)} to {_text(result.last)}, every {format_duration(result.pace)}, {spent}"
    return f"replay     would have opened {opened} in mode Auto{also} ({span})"


def _opening_as_text(opening: Opening, result: Replay) -> Iterator[str]:
    plan, diagnosis = opening.survey.plan, opening.diagnosis
    yield f"  RUN      {_text(opening.at)}  {opening.runbook}, {diagnosis.line()}"
    for step in plan.steps if plan else ():
        yield f"{'':11}plan:    {change_of(step).line('its default')}"
    if plan:
        yield f"{'':11}because: {plan.message}"
    until = result.trouble_until(opening.at)
    yield f"{'':11}trouble: for {_long(until - opening.at)} more, with the fleet as it was"


def _stretches_as_text(found: Found, result: Replay) -> Iterator[str]:
    """Yield a line per reason: how often, how long altogether, and its first time in full."""
    by_reason: dict[Reason | None, list[Stretch]] = {}
    for each in result.stretches:
        if each.found is found:
            by_reason.setdefault(each.reason, []).append(each)
    for reason, many in by_reason.items():
        length, times = sum((each.length for each in many), timedelta(0)), len(many)
        often = f"{times} times, {_long(length)} altogether" if times > 1 else f"for {_long(length)}"
        said = f"{reason}: {many[0].message}" if reason else "no replica is known of that time"
        yield f"  {found.lower():8} {_text(many[0].first)}  {often}: {said}"


def replay_as_json(result: Replay) -> dict[str, Any]:
    """Return the same for a pipeline; times are RFC 3339, lengths are seconds."""
    return {
        "from": _text(result.first),
        "to": _text(result.last),
        "paceSeconds": result.pace.total_seconds(),
        "complete": not result.ended,
        "ended": result.ended or None,
        "runs": [
            {**_opening_as_json(each), "troubleUntil": _text(result.trouble_until(each.at))}
            for each in result.openings
        ],
        "stretches": [
            {
                "found": each.found,
                "reason": each.reason,
                "message": each.message or None,
                "from": _text(each.first),
                "seconds": each.length.total_seconds(),
            }
            for each in result.stretches
        ],
        "secondsHeld": result.total(Found.HELD).total_seconds(),
        "secondsUnknown": result.total(Found.UNKNOWN).total_seconds(),
        "notes": result.notes,
        "queries": result.spent.queries,
        "bytes": result.spent.received_bytes,
    }


def _opening_as_json(opening: Opening) -> dict[str, Any]:
    plan, diagnosis = opening.survey.plan, opening.diagnosis
    findings = diagnosis.findings if isinstance(diagnosis, Diagnosed) else ()
    return {
        "at": _text(opening.at),
        "runbook": opening.runbook,
        "branch": diagnosis.reason,
        "plan": [change_of(step).as_json() for step in plan.steps] if plan else [],
        "because": plan.message if plan else "",
        "findings": [
            {"subject": each.subject, "observed": each.observed, "limit": each.limit, "text": each.text}
            for each in findings
        ],
        "replicas": opening.survey.view.fleet.replicas,
    }


def _long(length: timedelta) -> str:
    """Return a length of time for a person, in whole minutes once it has one."""
    minute = timedelta(minutes=1)
    return format_duration(length // minute * minute if length >= minute else length)


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
