"""What a diagnosis looks like on a terminal and as JSON, wherever its evidence came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, assert_never

from kvmedic.cli.compression import Account, account_of
from kvmedic.cli.terminal import Form
from kvmedic.cli.vitals import absence, vitals_as_json, vitals_as_text
from kvmedic.core.bundle import BundleStep
from kvmedic.core.diagnosis import Assignment, Beyond, Diagnosis, Inconclusive, Relief, Resize, RollBack
from kvmedic.core.evidence import HISTOGRAMS, Measured, Observation, PodReadings, Pool
from kvmedic.core.fixing import Evaluate, Try, TurnOff, TurnOn
from kvmedic.core.gating import GateStep
from kvmedic.core.plan import (
    AutoscalerStep,
    ConfigStep,
    FlagStep,
    OnTrial,
    ReplaceStep,
    RevisionStep,
    ScaleStep,
    Step,
)
from kvmedic.core.run import Outcome
from kvmedic.core.trialling import Question, TrialStep
from kvmedic.core.vitals import Vitals
from kvmedic.engines.vllm import VLLM
from kvmedic.findings import Survey
from kvmedic.offline import Consultation

REPLICA = "replica"
REVISION = "revision"
REPLICAS = "replicas"
MINIMUM = "minimum of replicas"
TRIAL = "trial pod"
A_NEW_ONE = "a new one"
OFF = "off"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that would be changed: a setting of the engine, or which pod a replica is."""

    knob: str
    """`REPLICA` where a replica is replaced, `REVISION` where the whole pod template is another, `REPLICAS`
    and `MINIMUM` where their number changes, a method's name where it is turned off, `TRIAL` where nothing
    is changed and a trial pod answers a question."""
    before: str | None
    """None: not given on the command line, so the engine's default, or not known."""
    after: str | None
    target: str
    """`Kind/name`; empty where nobody said which."""

    def line(self, unknown: str) -> str:
        """Return the change as one line; `unknown` stands for a value that is not there."""
        where = f"{self.target}: " if self.target else ""
        if self.knob == TRIAL:
            return f"{where}{self.knob}: {self.after}"
        return f"{where}{self.knob} {self.before or unknown} -> {self.after or unknown}"

    def as_json(self) -> dict[str, Any]:
        """Return the change as JSON has it."""
        return {
            "knob": self.knob,
            "flag": flag_name(self.knob),
            "before": self.before,
            "after": self.after,
            "object": self.target.partition("/")[2] or None,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """One look, ready to be printed."""

    target: Mapping[str, Any]
    runbook: str
    observation: Observation
    diagnosis: Diagnosis
    changes: tuple[Change, ...]
    because: str
    """The numbers behind the plan; empty without one."""
    obstacle: Outcome | None
    notes: tuple[str, ...] = ()
    """What a reader must know about the evidence."""
    unknown: str = "(engine default)"
    """What a value that is not there stands for."""
    vitals: Mapping[str, Vitals] = field(default_factory=dict)
    compression: Account | None = None
    """None where no method is known to be on and nobody gave a log."""

    @property
    def is_inconclusive(self) -> bool:
        """Return whether no branch could be named."""
        return isinstance(self.diagnosis, Inconclusive)

    def printed(self, form: Form) -> str:
        """Return the whole report."""
        return json.dumps(self.as_json(), indent=2) if form is Form.JSON else self.as_text()

    def as_text(self) -> str:
        """Return the report for a person: one fact a line, each with what it is."""
        lines = [f"target     {'/'.join(str(part) for part in self.target.values())}"]
        for pod, readings in sorted(self.observation.pods.items()):
            values = ", ".join(f"{name}={value}" for name, value in numbers_of(readings).items())
            lines.append(f"evidence   {pod}: {values}")
        lines += [f"vitals     {line}" for line in vitals_as_text(self.vitals)]
        lines += [f"note       {note}" for note in self.notes]
        lines += self.compression.lines() if self.compression else ()
        lines.append(f"diagnosis  {self.diagnosis.line()}")
        lines += [f"plan       {change.line(self.unknown)}" for change in self.changes]
        if self.because:
            lines.append(f"because    {self.because}")
        if self.obstacle is not None:
            lines.append(f"but        {self.obstacle.reason}: {self.obstacle.message}")
        if not self.changes:
            lines.append("plan       nothing would be changed")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the report for a program."""
        branch = None if self.is_inconclusive else str(self.diagnosis.reason)
        pods = sorted(self.observation.pods.items())
        window = self.observation.window_seconds
        return {
            "target": dict(self.target),
            "runbook": self.runbook,
            "branch": branch,
            "reason": str(self.obstacle.reason if self.obstacle else self.diagnosis.reason),
            "message": self.diagnosis.line(),
            "obstacle": self.obstacle.message if self.obstacle else None,
            "plan": [change.as_json() for change in self.changes],
            "because": self.because or None,
            "notes": list(self.notes),
            "windowSeconds": round(window, 1) if isfinite(window) else None,
            "evidence": {pod: numbers_of(readings) for pod, readings in pods},
            "vitals": vitals_as_json(self.vitals),
            "compression": self.compression.as_json() if self.compression else None,
        }


def report_of_survey(found: Survey) -> Report:
    """Return the report on a live fleet."""
    fleet, plan = found.view.fleet, found.plan
    return Report(
        target={"namespace": fleet.namespace, "name": fleet.name},
        runbook=found.runbook,
        observation=found.burn,
        diagnosis=found.diagnosis,
        changes=tuple(change_of(step) for step in plan.steps) if plan else (),
        because=plan.message if plan else "",
        obstacle=found.obstacle,
        vitals=found.evidence.vitals,
        compression=account_of(found.evidence),
    )


def report_of_consultation(
    found: Consultation,
    target: Mapping[str, Any],
    notes: tuple[str, ...] = (),
    doubt: Inconclusive | None = None,
) -> Report:
    """Return the report on collected evidence.

    Args:
        found: what it says.
        target: whose it is.
        notes: what a reader must know of it.
        doubt: why it says nothing at all.
    """
    changes: tuple[Change, ...] = ()
    unknown = "(engine default)"
    if found.plan is not None:
        changes = tuple(change_of(step) for step in found.plan.steps)
    elif found.advice is not None and found.obstacle is None:
        changes = (_advised(found.advice),)
        unknown = "(unknown without --manifest)"
    return Report(
        target=target,
        runbook=found.runbook,
        observation=found.evidence.burn,
        diagnosis=found.diagnosis,
        changes=changes,
        because=_because(found),
        obstacle=found.obstacle,
        notes=notes,
        unknown=unknown,
        vitals=found.evidence.vitals,
        compression=account_of(found.evidence, doubt),
    )


def _because(found: Consultation) -> str:
    numbers = found.plan or found.advice
    return numbers.message if numbers else ""


def _asked_of(step: OnTrial) -> str:
    """Return what a trial pod is asked, for a person."""
    if isinstance(step, GateStep):
        return f"CronJob/{step.cron_job} with {step.subject}"
    where = f" on {step.replica}, drained for it" if step.replica else ""
    return f"{_test(step.question, step.tokens)} {'without' if step.without else 'with'} {step.method}{where}"


def change_of(step: Step) -> Change:
    """Return a step as people see it."""
    target = f"{step.target.kind}/{step.target.name}"
    match step:
        case FlagStep() | ConfigStep():
            return Change(str(step.knob), step.before, step.after, target)
        case BundleStep():
            return Change(step.method, step.before, step.after, target)
        case ReplaceStep():
            return Change(REPLICA, step.pod, A_NEW_ONE, target)
        case RevisionStep():
            return Change(REVISION, str(step.before.number), str(step.after.number), target)
        case ScaleStep():
            return Change(REPLICAS, str(step.before), str(step.after), target)
        case TrialStep() | GateStep():
            return Change(TRIAL, None, _asked_of(step), target)
        case AutoscalerStep():
            holder = f"{step.holder.kind}/{step.holder.name}"
            return Change(MINIMUM, str(step.before), str(step.after), holder)
        case _:
            assert_never(step)


def flag_name(knob: str) -> str | None:
    """Return how the engine spells a knob, or None where it has none."""
    return next((flag.name for flag in VLLM.flags if flag.knob == knob), None)


def _wanted(advice: Try | Evaluate) -> str:
    """Return what a trial pod should be asked, for a person."""
    if isinstance(advice, Evaluate):
        return f"CronJob/{advice.cron_job} with {advice.subject}"
    return f"{_test(advice.question, advice.tokens)} {'without' if advice.off else 'with'} {advice.method}"


def _test(question: Question, tokens: int) -> str:
    return {
        Question.RECLAMATION: f"{tokens} tokens",
        Question.PROMPTS: f"prompts of up to {tokens} tokens",
        Question.START: "a start",
    }[question]


def _advised(advice: Assignment | Beyond) -> Change:
    match advice:
        case Relief():
            return Change(REPLICA, advice.pod, A_NEW_ONE, "")
        case RollBack():
            return Change(REVISION, str(advice.before.number), str(advice.after.number), "")
        case Resize():
            return Change(REPLICAS, None, str(advice.replicas), "")
        case TurnOff():
            return Change(advice.method, None, OFF, "")
        case TurnOn():
            return Change(advice.method, advice.before, advice.after, "")
        case Try() | Evaluate():
            return Change(TRIAL, None, _wanted(advice), "")
        case Assignment():
            return Change(str(advice.knob), None, str(advice.value), "")
        case _:
            assert_never(advice)


def numbers_of(readings: PodReadings) -> dict[str, float | str]:
    """Return what is known of each number and of each histogram's mean; what is not known says so."""
    found: dict[str, float | str] = {}
    for signal, reading in readings.numbers.items():
        found[str(signal)] = round(reading.value, 4) if isinstance(reading, Measured) else absence(reading)
    for signal in sorted(HISTOGRAMS):
        histogram = readings.histogram(signal)
        if isinstance(histogram, Measured) and histogram.value.count:
            found[f"{signal}Mean"] = round(histogram.value.mean, 4)
    if isinstance(readings.pool, Measured):
        found |= _pool(readings.pool.value)
    return found


def _pool(pool: Pool) -> dict[str, float | str]:
    return {"poolBlocks": pool.blocks, "blockTokens": pool.block_tokens}
