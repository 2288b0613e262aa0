"""`kvmedic report`: one run: what happened, when, on which evidence, at what cost, and how to undo it.

Facts come from the resource, its Events (which a cluster keeps for an hour by default) and its metrics
source. Each of them may be gone: then its place says so.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvmedic.cli.access import Name, finish_look, load_body, name_in, open_client
from kvmedic.cli.app import REFUSED, USAGE, end_command
from kvmedic.cli.live.history import NOT_KEPT, describe_cost, summary_for
from kvmedic.cli.live.past_figures import Asked, PastFigures, read_figures
from kvmedic.cli.live.report_page import report_as_page
from kvmedic.cli.live.report_text import report_as_markdown
from kvmedic.cli.live.rows import whole_seconds
from kvmedic.cli.plan import settings_with
from kvmedic.cli.report import flag_name
from kvmedic.kube.errors import Refused
from kvmedic.kube.kubeconfig import ClusterChoice
from kvmedic.kube.objects import EVENTS, JsonObject, moment, section
from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.redaction import without_controls
from kvmedic.model.run import Baseline, Run, StepState
from kvmedic.model.status import ClosedRun, Record, Resource
from kvmedic.record.store import resource_of
from kvmedic.settings import Settings

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

SCHEMA = "kvmedic.io/report/v1"
AROUND = timedelta(minutes=20)
"""Before and after the run: long enough for the trouble that it began on, and for what followed."""
FIGURES = (
    ("served_in_time_per_second", "servedInTimePerSecond"),
    ("in_time_share", "servedInTime"),
    ("stalls_per_request", "stallsPerRequest"),
    ("preemptions_per_request", "preemptionsPerRequest"),
    ("time_to_first_token_p95_seconds", "timeToFirstTokenP95Seconds"),
    ("end_to_end_p95_seconds", "endToEndP95Seconds"),
    ("generated_tokens_per_second", "tokensPerSecond"),
    ("kv_cache_usage_ratio", "kvCacheUsage"),
    ("waiting_mean", "waiting"),
)
"""Of an open run's baseline: field, and its name in the report."""


def command(
    name: str, run: str, output: str, prometheus: str, namespace: str, context: str, kubeconfig: str
) -> None:
    """Write the report on a run."""
    write = _writer(output)
    settings, cluster = settings_with(prometheus), ClusterChoice(kubeconfig, context)

    async def look() -> dict[str, Any] | Blocked:
        async with open_client(cluster) as client:
            return await gather(client, settings, name_in(cluster, namespace, name), run)

    found = finish_look(look())
    if isinstance(found, Blocked):
        end_command(found.message, REFUSED)
    text = write(found)
    if output in FORMS:
        sys.stdout.write(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        end_command(f"--output {output}: {error.strerror}; correct the path", USAGE)
    print(f"wrote {output}")


def _json_text(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=2) + "\n"


FORMS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "md": report_as_markdown,
    "json": _json_text,
    "html": report_as_page,
}
"""How a report is written, by what it is called and how a file's name ends."""


def _writer(output: str) -> Callable[[Mapping[str, Any]], str]:
    """Return how a report is written; a name that says no form ends the command."""
    found = FORMS.get(output) or FORMS.get(output.rpartition(".")[2] if "." in output else "")
    if found is None:
        end_command(f"--output {output}: name a file and end it in .md, .json or .html", USAGE)
    return found


async def gather(client: Client, settings: Settings, which: Name, run: str) -> dict[str, Any] | Blocked:
    """Return the facts about a run; without an id the open one, else the newest that ended.

    Raises:
        NotThere: there is no such resource.
    """
    resource = resource_of(await load_body(client, which))
    record = resource.record
    if record is None:
        why = resource.problem.message if resource.problem else "its status cannot be read"
        return Blocked(Reason.RUN_UNREADABLE, why)
    reported = chosen_run(record, run)
    if isinstance(reported, Blocked):
        return reported
    now = client.clock.now()
    stretch = reported.started_at - AROUND, min(now, (reported.ended_at or now) + AROUND)
    events = await _events(client, resource, stretch)
    figures = PastFigures("", (), "the spec cannot be followed, so no metrics source is known")
    if resource.policy is not None:
        asked = Asked(*stretch, reported.started_at, reported.is_taken_back)
        figures = await read_figures(settings, resource.namespace, resource.policy, asked)
    return facts_of(resource, reported, events, figures, now)


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run, open or ended."""

    run: Run | ClosedRun

    @property
    def started_at(self) -> datetime:
        """Return when it was opened."""
        return self.run.started_at

    @property
    def ended_at(self) -> datetime | None:
        """Return when it ended; None: it is open."""
        return self.run.ended_at if isinstance(self.run, ClosedRun) else None

    @property
    def is_taken_back(self) -> bool:
        """Return whether a change of it was taken back, or is being."""
        if isinstance(self.run, ClosedRun):
            return Trait.KEPT not in self.run.outcome.traits
        return any(each.state in (StepState.ROLLING_BACK, StepState.REVERTED) for each in self.run.steps)


def chosen_run(record: Record, run_id: str) -> ReportedRun | Blocked:
    """Return the run that is meant, or why there is none."""
    runs: list[Run | ClosedRun] = [record.run] if record.run else []
    runs += record.history
    if not runs:
        return Blocked(Reason.NO_RUN, "no run was made yet, so there is nothing to report")
    found = [each for each in runs if run_id in ("", each.id)]
    if not found:
        known = ", ".join(each.id for each in runs)
        return Blocked(Reason.NO_RUN, f"no run {run_id} is on record; there are {known}")
    return ReportedRun(found[0])


async def _events(
    client: Client, resource: Resource, stretch: tuple[datetime, datetime]
) -> Sequence[JsonObject] | str:
    """Return the operator's Events on a resource within a stretch of time, or why they are not known."""
    try:
        bodies = await client.list(EVENTS, resource.namespace, fields=f"regarding.name={resource.name}")
    except Refused as error:
        return f"Events may not be listed: {error}"
    first, last = stretch
    ours = [each for each in bodies if section(each, "regarding").get("uid") == resource.uid]
    timed = [each for each in ours if each.get("eventTime")]
    return [each for each in timed if first <= moment(str(each["eventTime"])) <= last]


def facts_of(
    resource: Resource,
    reported: ReportedRun,
    events: Sequence[JsonObject] | str,
    figures: PastFigures,
    now: datetime,
) -> dict[str, Any]:
    """Return all that is known of a run; what is not known is null and has its reason in `unknown`."""
    record, run, policy = resource.record or Record(), reported.run, resource.policy
    summary = summary_for(record, run) if isinstance(run, ClosedRun) else None
    before_after = _shifts(run, record)
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "at": _moment_of(now),
        "namespace": resource.namespace,
        "name": resource.name,
        "target": {"kind": policy.target.kind, "name": policy.target.name} if policy else None,
        "run": _describe(run, reported.ended_at, now),
        "sentences": list(_sentences(resource, run, summary.sentence if summary else "")),
        "timeline": list(_timeline(reported, events)),
        "decisions": [without_controls(each) for each in _decisions(run, record)],
        "figures": before_after or None,
        "cost": describe_cost(summary.cost) if summary else None,
        "series": figures.describe_series(),
        "undo": [{"command": command, "for": purpose} for command, purpose in _undo(resource, run)],
    }
    why = {
        "target": "the spec cannot be followed",
        "figures": NOT_KEPT if isinstance(run, ClosedRun) else "the run's goal needs no figures",
        "cost": NOT_KEPT if isinstance(run, ClosedRun) else "the run is open",
        "series": figures.trouble,
    }
    unknown = {field: why[field] for field in why if found[field] is None}
    if figures.sides_trouble:
        unknown["servedInTimeOfNew"] = figures.sides_trouble
    if isinstance(events, str) or not events:
        why_none = (
            events if isinstance(events, str) else "no Event of it is left; a cluster keeps them an hour"
        )
        unknown["timeline"] = f"only begin and end: {why_none}"
    return {**found, "unknown": unknown}


def _describe(run: Run | ClosedRun, ended_at: datetime | None, now: datetime) -> dict[str, Any]:
    common = {
        "id": run.id,
        "state": "open" if ended_at is None else "ended",
        "reason": str(run.reason),
        "message": without_controls(run.message),
        "startedAt": _moment_of(run.started_at),
        "endedAt": _moment_of(ended_at) if ended_at else None,
        "seconds": whole_seconds(run.started_at, ended_at or now),
    }
    if isinstance(run, ClosedRun):
        kept = Trait.KEPT in run.outcome.traits
        steps = [{"change": without_controls(each), "state": None} for each in run.steps]
        return {**common, "outcome": str(run.outcome), "kept": kept, "steps": steps}
    steps = [{"change": without_controls(each.step.line()), "state": str(each.state)} for each in run.steps]
    return {**common, "outcome": None, "kept": None, "steps": steps}


def _sentences(resource: Resource, run: Run | ClosedRun, result: str) -> Iterator[str]:
    """Yield what happened in three sentences: what was seen, what was changed, what came of it."""
    place = f"{resource.namespace}/{resource.name}"
    yield f"On {place} the operator saw {run.reason}: {run.reason.sentence}"
    if isinstance(run, ClosedRun):
        changed = "; ".join(without_controls(each) for each in run.steps) or "nothing"
        yield f"It changed: {changed}."
        yield without_controls(
            f"It ended as {run.outcome}: {run.outcome.sentence} {result or run.message}"
        ).strip()
        return
    changed = "; ".join(without_controls(f"{each.step.line()} ({each.state})") for each in run.steps)
    yield f"It changes: {changed}."
    ending = (
        f"It will end as {run.ending.reason}: {run.ending.message}"
        if run.ending
        else "No verdict is made yet."
    )
    yield without_controls(ending)


def _timeline(reported: ReportedRun, events: Sequence[JsonObject] | str) -> Iterator[dict[str, str]]:
    """Yield what happened when, the earliest first."""
    run = reported.run
    listed = () if isinstance(events, str) else events
    found = [
        (run.started_at, "Opened", run.reason.sentence if isinstance(run, ClosedRun) else run.message),
        *((moment(e["eventTime"]), str(e.get("reason", "")), str(e.get("note", ""))) for e in listed),
    ]
    if isinstance(run, ClosedRun):
        found.append((run.ended_at, str(run.outcome), run.message))
    for at, what, message in sorted(found, key=lambda each: each[0]):
        yield {"at": _moment_of(at), "what": what, "message": " ".join(without_controls(message).split())}


def _decisions(run: Run | ClosedRun, record: Record) -> Iterator[str]:
    """Yield the evidence and the arithmetic behind each decision, as the operator wrote it."""
    if isinstance(run, ClosedRun):
        yield f"{run.reason}: {run.reason.sentence}"
        yield f"{run.outcome}: {run.message}"
        return
    yield f"{run.reason}: {run.message}"
    shown = record.diagnosis
    yield from (f"finding: {each}" for each in (shown.findings if shown else ()))
    for step in run.steps:
        if step.comparison is not None:
            yield f"beside old replicas, {step.comparison.state}: {step.comparison.message}"
        if step.message:
            yield f"{step.step.line()}, {step.verdict or step.state}: {step.message}"


def _shifts(run: Run | ClosedRun, record: Record) -> list[dict[str, Any]]:
    """Return the figures before and after; `after` is null while they are not there."""
    if isinstance(run, ClosedRun):
        summary = summary_for(record, run)
        shifts = summary.brought if summary else ()
        return [{"name": each.name, "before": each.before, "after": each.after} for each in shifts]
    before, after = run.baseline, run.current.after
    if before is None:
        return []
    return [
        {"name": name, "before": _figure(before, field), "after": _figure(after, field) if after else None}
        for field, name in FIGURES
    ]


def _figure(baseline: Baseline, field: str) -> float:
    return round(float(getattr(baseline, field)), 4)


_CHANGE = re.compile(r"(?:[A-Za-z]+/\S+: )?(\w+) (\S+) -> (\S+?)(?:: \w+)?(?: \(.*\))?")


def _undo(resource: Resource, run: Run | ClosedRun) -> Iterator[tuple[str, str]]:
    """Yield the commands that take back what was changed."""
    place = f"{resource.name} -n {resource.namespace}"
    if isinstance(run, Run):
        yield f"kvmedic rollback {place} --run {run.id}", "take the open change back, drained"
        return
    if Trait.KEPT not in run.outcome.traits:
        return
    yield f"kvmedic suspend {place}", "keep the operator from changing it again meanwhile"
    target = resource.policy.target if resource.policy else None
    for step in run.steps:
        found = _CHANGE.fullmatch(step)
        flag = flag_name(found[1]) if found else None
        if not found or not flag or target is None or found[2].startswith("("):
            continue
        kind, setting = target.kind.lower(), f"{flag.strip('-').replace('-', '_')}={found[2]}"
        owner = "; its owner would set that back, so change it there" if run.owner_patch else ""
        yield (
            f"kubectl -n {resource.namespace} get {kind} {target.name} -o yaml | "
            f"kvmedic flags set {setting} -f - | kubectl replace -f -",
            f"set {found[1]} back to {found[2]}; replicas go as your own strategy says, undrained{owner}",
        )


def _moment_of(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
