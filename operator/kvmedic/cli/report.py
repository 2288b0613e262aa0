"""What `kvmedic diagnose` and `plan` print, as text and as JSON, wherever the evidence came from.

A report has the readings of each replica, its GPUs and engine exits, what is known of KV compression and what
is missing, the diagnosis and the changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import isfinite
from shutil import get_terminal_size
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, assert_never

from kvmedic.cli.app import Form, show_text
from kvmedic.cli.saved import Consultation
from kvmedic.engines import ENGINES
from kvmedic.engines.engine_log import Start, Started
from kvmedic.model.compression import Figures, MethodClass
from kvmedic.model.devices import FILLED, NVIDIA_SMI_ERRORS, PROGRAM, SHOWN, Device, EngineEnd, Vital, Vitals
from kvmedic.model.evidence import (
    HISTOGRAMS,
    Blocked,
    Inconclusive,
    Measured,
    Missing,
    Observation,
    PodReadings,
    Reading,
    Signal,
    Stale,
    Unsupported,
)
from kvmedic.model.plan import A_NEW_ONE, REPLICA, REPLICAS, REVISION, TRIAL, Step, asked_text
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Runbook
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import (
    Assignment,
    Beyond,
    Compressed,
    Diagnosis,
    Evaluate,
    Evidence,
    Relief,
    Resize,
    RollBack,
    Try,
    TurnOff,
    TurnOn,
    diagnose,
)
from kvmedic.runbooks.compression.savings import EVICTING, Worth, figures_of, weigh_figures

if TYPE_CHECKING:  # the controller loads what asks a cluster, and reports on saved pages need nothing of it
    from kvmedic.controller.evidence import Survey

WALLS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.COMPRESSION_SAVES: "none: it saves what it should, at comparable load",
        Reason.COMPRESSION_UNDOUBTED: "none: no evidence is against it",
        Reason.COMPRESSION_NOT_APPLIED: "none yet: it is configured, but running engines do not have it on",
        Reason.EAGER_FALLBACK: "wall 1: attention falls back to an eager kernel",
        Reason.PAGE_SELECTION: "none: it frees no memory by design",
        Reason.BLOCKS_NOT_FREED: "wall 2: evicted tokens free too few blocks or none",
        Reason.FIX_WAITS: "none any more: what saved nothing is off, and the fix after it waits",
        Reason.FIX_DUE: "none any more: what saved nothing is off, and the fix after it is due",
        Reason.PRESSED_THOUGH_COMPRESSED: "none: it does what it can, and demand is beyond that",
        Reason.ATTENTION_UNPROVEN: "unknown: a trial must show whether attention fell back (wall 1)",
        Reason.ATTENTION_UNCOMPARED: "wall 1, unless attention is not fused without the method either",
        Reason.COMPRESSION_UNPROVEN: "unknown: a trial must show whether blocks come back (wall 2)",
    }
)
"""What each branch of the runbook says of the two walls: attention that is not fused any more, and survivors
that keep their blocks."""

_IN_FILE = "(with saved evidence: in --spec FILE)"


@dataclass(frozen=True, slots=True)
class Account:
    """What is known of a fleet's KV compression."""

    method: Compressed | None
    finding: Diagnosis | None
    """Of the runbook on compression; None without a method."""
    missing: tuple[str, ...] = ()
    """What would show more, and how to provide it."""
    started: Mapping[str, Start] = field(default_factory=dict)

    @property
    def wall(self) -> str:
        """Return which wall the evidence shows."""
        if self.finding is None or isinstance(self.finding, Inconclusive):
            return f"unknown: {self.finding.message}" if self.finding else ""
        return WALLS.get(self.finding.reason, "")

    def lines(self) -> Iterator[str]:
        """Yield the account for a person, one fact a line."""
        for name, start in sorted(self.started.items()):
            yield f"log        {name}: {_line(start)}"
        method = self.method
        if method is None:
            yield "method     none is known to be on"
            return
        by = f"{method.known_by}{'' if method.is_confirmed else ', which no engine confirms'}"
        yield f"method     {method.name}, {method.method_class or 'of no known class'}, known by {by}"
        if method.method_class is not None:
            yield f"blocks     {method.method_class.frees}"
        yield f"wall       {self.wall}"
        yield from (f"missing    {each}" for each in self.missing)

    def as_json(self) -> dict[str, Any]:
        """Return the account for a program."""
        method = self.method
        return {
            "method": method.name if method else None,
            "class": str(method.method_class) if method and method.method_class else None,
            "knownBy": method.known_by if method else None,
            "isConfirmed": method.is_confirmed if method else None,
            "blocks": method.method_class.frees if method and method.method_class else None,
            "reason": str(self.finding.reason) if self.finding else None,
            "wall": self.wall or None,
            "missing": list(self.missing),
            "startLogs": {name: _as_json(start) for name, start in sorted(self.started.items())},
        }


def account_of(evidence: Evidence, doubt: Inconclusive | None = None) -> Account | None:
    """Return what evidence shows of KV compression; None where nobody asked and nothing shows any.

    Args:
        doubt: why the evidence says nothing at all.
    """
    method = evidence.compression
    if method is None:
        return Account(None, None, started=evidence.started) if evidence.started else None
    finding = doubt or diagnose(RUNBOOKS[Runbook.COMPRESSION_WITHOUT_SAVINGS], evidence)
    return Account(method, finding, tuple(_list_missing(method, evidence)), evidence.started)


def _list_missing(method: Compressed, evidence: Evidence) -> Iterator[str]:
    """Yield what would show more of a method."""
    present, without = figures_of(evidence), method.without
    if method.method_class is None:
        yield "what it does to blocks: spec.compression.class"
    if not method.is_confirmed and not evidence.started:
        yield "confirmation by the engine: its start-up log (with saved pages --log FILE)"
    if not isfinite(evidence.burn.window_seconds):
        yield "the time between the pages, to compare loads: --interval"
    worth = weigh_figures(without, present)
    if without == Figures():
        yield f"figures of the fleet without it: spec.compression.baseline {_IN_FILE}"
    elif worth.worth is Worth.UNKNOWN:
        yield f"figures to compare: {worth.message}"
    yield from _missing_of_class(method, present)


def _missing_of_class(method: Compressed, present: Figures) -> Iterator[str]:
    if method.method_class is MethodClass.QUANTIZATION and method.blocks_without is None:
        yield f"the blocks of a replica without it: spec.compression.baseline.blocks {_IN_FILE}"
    if method.method_class not in EVICTING:
        return
    if method.without.device_memory is None or present.device_memory is None:
        yield (
            "device memory with it and without it, which shows wall 1: spec.compression.baseline."
            "deviceMemory, and a Prometheus with the DCGM exporter's series (--prometheus URL --at TIME)"
        )
    if method.answer is None:
        yield (
            "whether evicted tokens free blocks (wall 2): a long generation on a trial pod shows it, on "
            "a cluster that allows trial pods (kvmedic diagnose NAME)"
        )


def _line(start: Start) -> str:
    if not isinstance(start, Started):
        return f"could not be read ({start.why})"
    parts = [
        f"method by: {'; '.join(start.methods)}" if start.methods else "",
        f"keys and values as {start.cache_type}" if start.cache_type else "",
        f"attention backend {', '.join(start.backends)} (decides nothing by itself)"
        if start.backends
        else "",
        f"pool of {start.size.amount:,} {start.size.unit}" if start.size else "",
        "" if start.is_whole else "not the whole start",
    ]
    return ", ".join(each for each in parts if each)


def _as_json(start: Start) -> dict[str, Any]:
    if not isinstance(start, Started):
        return {"unread": start.why}
    return {
        "methods": list(start.methods),
        "cacheType": start.cache_type or None,
        "attentionBackends": list(start.backends),
        "pool": {str(start.size.unit): start.size.amount} if start.size else None,
        "isWhole": start.is_whole,
    }


def vitals_as_json(vitals: Mapping[str, Vitals]) -> dict[str, Any]:
    """Return what was looked at, by replica; empty where nobody looked."""
    return {name: _replica(one) for name, one in sorted(vitals.items()) if _was_looked_at(one)}


def vitals_as_text(vitals: Mapping[str, Vitals]) -> Iterator[str]:
    """Yield one line per replica that was looked at."""
    for name, one in sorted(vitals.items()):
        if _was_looked_at(one):
            node = f" on {one.node}" if one.node else ""
            yield f"{name}{node}: {'; '.join(_facts(one))}"


def absence(reading: Reading[Any]) -> str:
    """Return why a reading has no value."""
    match reading:
        case Missing(reason):
            return f"missing ({reason})"
        case Stale(at):
            return f"stale since {at:%H:%M:%SZ}"
        case _:
            return "not known"


def _was_looked_at(vitals: Vitals) -> bool:
    return vitals.end is not None or not isinstance(vitals.devices, Unsupported)


def _replica(vitals: Vitals) -> dict[str, Any]:
    devices = vitals.devices
    by_device = (
        {device.name: _device(device) for device in devices.value}
        if isinstance(devices, Measured)
        else absence(devices)
    )
    driver = {"nvidiaSmi": str(vitals.nvidia_smi_error)} if vitals.nvidia_smi_error else {}
    return {"node": vitals.node or None, "devices": by_device, **driver, "ended": _end(vitals.end)}


def _device(device: Device) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    if device.asked:
        known = isinstance(device.reading(Vital.LAST_XID), Measured)
        found["toldBy"] = f"DCGM exporter and {PROGRAM}" if known else PROGRAM
    for vital in (*SHOWN, *(vital for vital in FILLED if vital in device.asked.difference(SHOWN))):
        value = device.value(vital)
        found[str(vital)] = absence(device.reading(vital)) if value is None else value
    used = device.ratio(Vital.MEMORY_IN_USE)
    return found if used is None else {**found, str(Vital.MEMORY_IN_USE): round(used, 3)}


def _end(end: EngineEnd | None) -> dict[str, Any] | None:
    if end is None:
        return None
    return {
        "cause": str(end.cause),
        "exitCode": end.exit_code,
        "at": f"{end.ended_at:%Y-%m-%dT%H:%M:%SZ}",
        "restarts": end.restarts,
    }


def _facts(vitals: Vitals) -> Iterator[str]:
    devices, end = vitals.devices, vitals.end
    if isinstance(devices, Measured):
        for device in devices.value:
            yield f"{device.name} {' '.join(f'{key}={value}' for key, value in _device(device).items())}"
    else:
        yield f"GPUs {absence(devices)}"
    if vitals.nvidia_smi_error is not None:
        yield f"{PROGRAM} {vitals.nvidia_smi_error}: {NVIDIA_SMI_ERRORS[vitals.nvidia_smi_error]}"
    if end is not None:
        yield (
            f"ended {end.ended_at:%H:%M:%SZ} with exit code {end.exit_code}, cause {end.cause}, "
            f"{end.restarts} restarts so far"
        )


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

    @property
    def knob_flag(self) -> str:
        """Return how `kvmedic flags` names what is set; empty where it is no flag."""
        flag = flag_name(self.knob)
        return flag.strip("-").replace("-", "_") if flag else ""

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
    blocked: Blocked | None
    notes: tuple[str, ...] = ()
    """What a reader must know about the evidence."""
    unknown: str = "(engine default)"
    """What a value that is not there stands for."""
    vitals: Mapping[str, Vitals] = field(default_factory=dict)
    compression: Account | None = None
    """None where no method is known to be on and nobody gave a log."""
    next_command: str = ""
    """What a person types next."""

    @property
    def is_inconclusive(self) -> bool:
        """Return whether no branch could be named."""
        return isinstance(self.diagnosis, Inconclusive)

    def show(self, form: Form, with_evidence: bool) -> None:
        """Print the whole report; a text has every reading only where it is asked for."""
        if form is Form.JSON:
            print(json.dumps(self.as_json(), indent=2))
        else:
            show_text((*self._verdict(), *self._evidence(with_evidence), *self._next()))

    def _verdict(self) -> Iterator[str]:
        """Yield what was found, what would be changed, and why: one fact a line, each with what it is."""
        yield f"diagnosis  {self.diagnosis.line()}"
        yield from (f"plan       {change.line(self.unknown)}" for change in self.changes)
        if not self.changes:
            yield "plan       nothing would be changed"
        if self.because:
            yield f"because    {self.because}"
        if self.blocked is not None:
            yield f"but        {self.blocked.reason}: {self.blocked.message}"

    def _evidence(self, whole: bool) -> Iterator[str]:
        """Yield on what it rests: of each replica the figures that matter most, or all of them."""
        yield f"target     {'/'.join(str(part) for part in self.target.values())}"
        yield from (f"replicas   {line}" for line in table_of_replicas(self.observation))
        if whole:
            for pod, readings in sorted(self.observation.pods.items()):
                values = ", ".join(f"{name}={value}" for name, value in numbers_of(readings).items())
                yield f"evidence   {pod}: {values}"
        yield from (f"vitals     {line}" for line in vitals_as_text(self.vitals))
        yield from (f"note       {note}" for note in self.notes)
        yield from self.compression.lines() if self.compression else ()

    def _next(self) -> Iterator[str]:
        if self.next_command:
            yield f"next       {self.next_command}"

    def as_json(self) -> dict[str, Any]:
        """Return the report for a program."""
        branch = None if self.is_inconclusive else str(self.diagnosis.reason)
        pods = sorted(self.observation.pods.items())
        window = self.observation.window_seconds
        return {
            "target": dict(self.target),
            "runbook": self.runbook,
            "branch": branch,
            "reason": str(self.blocked.reason if self.blocked else self.diagnosis.reason),
            "message": self.diagnosis.line(),
            "blocked": self.blocked.message if self.blocked else None,
            "plan": [change.as_json() for change in self.changes],
            "because": self.because or None,
            "notes": list(self.notes),
            "windowSeconds": round(window, 1) if isfinite(window) else None,
            "evidence": {pod: numbers_of(readings) for pod, readings in pods},
            "vitals": vitals_as_json(self.vitals),
            "compression": self.compression.as_json() if self.compression else None,
        }


SHOWN_OF_REPLICAS = (
    ("running", Signal.RUNNING_MEAN),
    ("waiting", Signal.WAITING_MEAN),
    ("KV usage", Signal.KV_CACHE_USAGE_MEAN),
    ("preemptions/request", Signal.PREEMPTIONS_PER_REQUEST_HELD),
    ("stalls/request", Signal.STALLS_PER_REQUEST_HELD),
    ("first token s", Signal.TIME_TO_FIRST_TOKEN_SECONDS),
)
"""Columns of the table of replicas, the most important first: a narrow terminal has fewer."""
LABEL = 11
"""Characters before what a line of the report says."""
ANY_WIDTH = (1000, 24)
"""Of an output that is no terminal."""


def table_of_replicas(seen: Observation) -> Iterator[str]:
    """Yield one line for each replica, as wide as the terminal; `-` is a figure that is not known."""
    head = ("", *(name for name, _ in SHOWN_OF_REPLICAS))
    rows = [head, *((pod, *_cells_of(readings)) for pod, readings in sorted(seen.pods.items()))]
    if len(rows) == 1:
        return
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    left = get_terminal_size(ANY_WIDTH).columns - LABEL - widths[0]
    many = sum(total <= left for total in accumulate(2 + width for width in widths[1:]))
    for row in rows:
        cells = (f"  {cell:>{width}}" for cell, width in zip(row[1 : many + 1], widths[1:], strict=False))
        yield f"{row[0]:<{widths[0]}}{''.join(cells)}"


def _cells_of(readings: PodReadings) -> Iterator[str]:
    for _, signal in SHOWN_OF_REPLICAS:
        if signal in HISTOGRAMS:
            counted = readings.histogram(signal)
            known = isinstance(counted, Measured) and counted.value.count > 0
            yield f"{counted.value.mean:.2f}" if known and isinstance(counted, Measured) else "-"
        else:
            number = readings.number(signal)
            yield f"{number.value:.2f}" if isinstance(number, Measured) else "-"


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
        blocked=found.blocked,
        vitals=found.evidence.vitals,
        compression=account_of(found.evidence),
    )


def report_of_consultation(
    found: Consultation,
    target: Mapping[str, Any],
    notes: tuple[str, ...] = (),
    doubt: Inconclusive | None = None,
) -> Report:
    """Return the report on collected evidence."""
    changes: tuple[Change, ...] = ()
    unknown, numbers = "(engine default)", found.plan or found.advice
    if found.plan is not None:
        changes = tuple(change_of(step) for step in found.plan.steps)
    elif found.advice is not None and found.blocked is None:
        changes = (_describe_advice(found.advice),)
        unknown = "(unknown without --manifest)"
    return Report(
        target=target,
        runbook=found.runbook,
        observation=found.evidence.burn,
        diagnosis=found.diagnosis,
        changes=changes,
        because=numbers.message if numbers else "",
        blocked=found.blocked,
        notes=notes,
        unknown=unknown,
        vitals=found.evidence.vitals,
        compression=account_of(found.evidence, doubt),
    )


def _asked_text(advice: Try | Evaluate) -> str:
    if isinstance(advice, Evaluate):
        return f"CronJob/{advice.cron_job} with {advice.subject}"
    return asked_text(advice.question, advice.tokens, advice.method, bool(advice.off))


def change_of(step: Step) -> Change:
    """Return a step as people see it."""
    shown, changed = step.shown, step.holder.object if step.holder else step.target
    return Change(shown.what, shown.before, shown.after, f"{changed.kind}/{changed.name}")


def flag_name(knob: str) -> str | None:
    """Return how the engine spells a knob, or None where it has none."""
    return next((flag.name for each in ENGINES for flag in each.flags if flag.knob == knob), None)


def _describe_advice(advice: Assignment | Beyond) -> Change:
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
            return Change(TRIAL, None, _asked_text(advice), "")
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
        pool = readings.pool.value
        found |= {"poolBlocks": pool.blocks, "blockTokens": pool.block_tokens}
    return found
