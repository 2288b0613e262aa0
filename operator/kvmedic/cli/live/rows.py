"""One fleet as a row: its state, why, what is under way and for how long.

Everything is read from the resource as the operator last wrote it. What is not known is null and has its
reason in `unknown`. The JSON is versioned by `SCHEMA`: fields are added, none changes its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvmedic.kube.objects import JsonObject, moment, section
from kvmedic.model.redaction import without_controls
from kvmedic.model.run import Run, StepRecord
from kvmedic.model.status import Condition, ConditionType, Record, Resource, Truth, phase
from kvmedic.record.store import resource_of

SCHEMA = "kvmedic.io/get/v1"
NO_RUN = "no run is open, and the operator records it for a run; kvmedic diagnose asks the metrics source"
NOT_MEASURED = "the run had no figures before it, and it was not judged by figures yet"
NOT_LOOKED = "the operator has not looked at this resource yet"


@dataclass(frozen=True, slots=True)
class Served:
    """The share of requests that were served in time (0-1), and of which moment that is."""

    share: float
    of: str
    """`beside`: new replicas beside old ones, `after` or `before` the change."""


@dataclass(frozen=True, slots=True)
class FleetRow:
    """A resource at one moment."""

    resource: Resource
    created_at: datetime | None
    spec_target: str
    """`Kind/name` as the spec names it, also where the spec cannot be followed."""
    now: datetime

    @property
    def record(self) -> Record:
        """Return what the operator wrote; empty where it wrote nothing, or it cannot be read."""
        return self.resource.record or Record()

    @property
    def open_run(self) -> Run | None:
        """Return the open run."""
        return self.record.run

    @property
    def state(self) -> str:
        """Return the state in one word."""
        return state_of(self.resource)

    @property
    def reason(self) -> str | None:
        """Return the reason of the state; None: nobody looked yet."""
        why = self.resource.problem or self._why
        return str(why.reason) if why else None

    @property
    def message(self) -> str | None:
        """Return the state's sentence with its numbers; None: nobody looked yet."""
        why = self.resource.problem or self._why
        return without_controls(why.message) if why else None

    @property
    def _why(self) -> Condition | None:
        """Return the condition that says most: what a person must do, what a run does, else the diagnosis."""
        record = self.record
        action, ready = record.condition(ConditionType.ACTION_REQUIRED), record.condition(ConditionType.READY)
        if action is not None and action.status is Truth.TRUE:
            return action
        if ready is not None and ready.status is not Truth.TRUE:
            return ready
        if record.run is not None or record.plan is not None:
            return record.condition(ConditionType.PROGRESSING)
        return record.condition(ConditionType.DIAGNOSED)

    @property
    def served(self) -> Served | str:
        """Return the newest share on record, or why there is none."""
        run = self.open_run
        if run is None:
            return NO_RUN if self.record.conditions else NOT_LOOKED
        step = run.current
        if step.after is not None:
            return Served(step.after.in_time_share, "after")
        if step.comparison is not None and step.comparison.new is not None:
            return Served(step.comparison.new.in_time_share, "beside")
        return Served(run.baseline.in_time_share, "before") if run.baseline else NOT_MEASURED

    @property
    def age_seconds(self) -> int | None:
        """Return for how long the resource exists."""
        return None if self.created_at is None else whole_seconds(self.created_at, self.now)

    def describe_row(self) -> dict[str, Any]:
        """Return the row for a program."""
        policy, urgency, served = self.resource.policy, self.record.urgency, self.served
        eligible = self.record.condition(ConditionType.ELIGIBLE)
        kind, _, name = self.spec_target.partition("/")
        found: dict[str, Any] = {
            "namespace": self.resource.namespace,
            "name": self.resource.name,
            "target": {"kind": kind, "name": name},
            "mode": str(policy.mode) if policy else None,
            "suspended": policy.suspended if policy else None,
            "state": self.state,
            "reason": self.reason,
            "message": self.message,
            "severity": str(urgency.severity) if urgency else "none",
            "eligible": _truth_of(eligible),
            "servedInTime": round(served.share, 4) if isinstance(served, Served) else None,
            "servedInTimeOf": served.of if isinstance(served, Served) else None,
            "run": describe_run(self.open_run, self.now) if self.open_run else None,
            "ageSeconds": self.age_seconds,
        }
        return {**found, "unknown": self._unknown(found)}

    def _unknown(self, found: dict[str, Any]) -> dict[str, str]:
        """Return why each field is null that could have a value."""
        problem, served = self.resource.problem, self.served
        spec = f"{problem.reason}: the spec cannot be followed" if problem else NOT_LOOKED
        why = {
            "mode": spec,
            "suspended": spec,
            "reason": NOT_LOOKED,
            "message": NOT_LOOKED,
            "eligible": "it is looked at while there is no plan and no run"
            if self.record.conditions
            else NOT_LOOKED,
            "servedInTime": served if isinstance(served, str) else "",
            "servedInTimeOf": served if isinstance(served, str) else "",
            "run": NOT_LOOKED if not self.record.conditions else "no run is open",
            "ageSeconds": "the API server did not say when it was created",
        }
        return {field: text for field, text in why.items() if found[field] is None}


def state_of(resource: Resource) -> str:
    """Return a resource's state in one word."""
    if resource.problem is not None:
        return "NotReady"
    record = resource.record
    return phase(record) if record is not None and record.conditions else "Unseen"


def row_from(body: JsonObject, now: datetime) -> FleetRow:
    """Return the row of a resource as the API server has it."""
    target, created = section(body, "spec", "targetRef"), section(body, "metadata").get("creationTimestamp")
    return FleetRow(
        resource=resource_of(body),
        created_at=moment(str(created)) if created else None,
        spec_target=without_controls(f"{target.get('kind', 'Deployment')}/{target.get('name', '')}"),
        now=now,
    )


def describe_run(run: Run, now: datetime) -> dict[str, Any]:
    """Return an open run for a program."""
    record = run.current
    return {
        "id": run.id,
        "reason": str(run.reason),
        "startedAt": f"{run.started_at:%Y-%m-%dT%H:%M:%SZ}",
        "seconds": whole_seconds(run.started_at, now),
        "step": run.index + 1,
        "steps": len(run.steps),
        "stepState": str(record.state),
        "change": change_line(record),
        "replicas": run.replicas,
        "replicasChanged": changed_replicas(run),
        "ending": str(run.ending.reason) if run.ending else None,
    }


def changed_replicas(run: Run) -> int:
    """Return the most replicas that were seen with the change."""
    return run.cost_so_far.most_changed if run.cost_so_far else 0


def change_line(record: StepRecord) -> str:
    """Return what a step changes, without the object, which the row names already."""
    line = without_controls(record.step.line())
    return line.partition(": ")[2] or line


def whole_seconds(since: datetime, now: datetime) -> int:
    """Return how many seconds passed; 0 where the clocks disagree."""
    return max(0, round((now - since).total_seconds()))


def short_time(seconds: float | None) -> str:
    """Return a length of time as kubectl shows an age: `45s`, `12m`, `5h`, `3d`."""
    if seconds is None:
        return "-"
    for unit, size, most in (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48)):
        if seconds < size * most:
            return f"{max(0, seconds) / size:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def _truth_of(condition: Condition | None) -> bool | None:
    if condition is None or condition.status is Truth.UNKNOWN:
        return None
    return condition.status is Truth.TRUE
