"""The status on the wire: `kvmedic.core.record.Record` as JSON and back, without loss.

The JSON follows from the core's own types: fields in camelCase, times in RFC 3339, enumerations by
value, what is None or empty left out. So a new kind of step needs nothing here; a renamed field does,
because records that are stored must stay readable (`tests/api/data`).

Two kinds of fields live side by side. *Records* (`RECORDS`: `run`, `history`, `failedAttempts` and more) are
what the operator itself relies on after a restart: one that cannot be read raises `RunUnreadable`, because
starting from empty would forget a change under way or hand out a used-up budget. All other fields are for
people, are computed anew, and are dropped when they cannot be read.
Unknown fields are ignored everywhere, so that an older operator can read what a newer one wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import SchemaValidator, core_schema

from kvmedic.api.resource import RunUnreadable, problems_of
from kvmedic.model.edits import DIGITS, EARLIER_DIGITS, Digest
from kvmedic.model.redaction import redact
from kvmedic.model.run import Run, Summary
from kvmedic.model.status import (
    ClosedRun,
    Condition,
    ConfigCopy,
    FailedAttempt,
    LastGood,
    MethodBaseline,
    OomShare,
    Record,
    RunbookSwitch,
    ShownDiagnosis,
    ShownPlan,
    SizedCap,
    TemporaryChange,
    TurnedOff,
    Urgency,
)
from kvmedic.model.trial import Answer, EvaluationResult

MESSAGE_LENGTH = 1024
"""Characters of a text for people, at most: as many as Kubernetes allows in an Event's note. With it ten
closed runs stay far below the 1 MiB that an object may have."""

FINDINGS_LENGTH = 20
"""Findings of a diagnosis that are kept: enough to see the pattern, also in a fleet of hundreds."""

RECORDS = frozenset(
    {
        "run",
        "failedAttempts",
        "answers",
        "scores",
        "turnedOff",
        "copies",
        "oomShares",
        "temporary",
        "history",
        "lastGood",
        "sized",
        "baseline",
        "runbookSwitches",
    }
)
"""The fields that the operator relies upon after a restart."""

OPEN = RECORDS | {"plan"}
"""The fields that keep what an older CustomResourceDefinition does not name: a plan without a part of it
would be another one each time that it is read."""

UNKNOWN = frozenset({"enum", "literal_error"})
"""Kinds of errors that a value of another version makes (pydantic's own names)."""

_DIGEST = re.compile(rf"[0-9a-f]{{{EARLIER_DIGITS}}}(?:[0-9a-f]{{{DIGITS - EARLIER_DIGITS}}})?")

RENAMED = {"changed_at": "lastTransitionTime", "e2e_p95": "e2eP95"}
"""Names that Kubernetes (`metav1.Condition`) and the spec give."""


def wire_name(field: str) -> str:
    """Return a core field's name on the wire."""
    return RENAMED.get(field) or to_camel(field)


class KVRemediationStatus(BaseModel):
    """What kvmedic saw, is doing and did."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        alias_generator=wire_name,
        populate_by_name=True,
        allow_inf_nan=False,
    )
    # The texts beneath the fields are read from the sources where the schema is written, and nowhere else
    # (`api/crd.py`): that takes a second of a processor, which every process would spend when it starts.

    observed_generation: int = 0
    """Generation of the spec that this status describes."""
    phase: str = ""
    """The state in one word, for people. The operator never reads it back."""
    change: str = ""
    """The newest change in one line, for people: planned, under way or done. The operator never reads it
    back."""
    conditions: tuple[Condition, ...] = Field(
        default=(),
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Aspects of the state. Ready stays True during an incident; other conditions report the incident."""
    diagnosis: ShownDiagnosis | None = None
    """The last diagnosis, and the findings behind it."""
    plan: ShownPlan | None = None
    """The plan: what the operator would change."""
    last_good: LastGood | None = None
    """The fleet at its last healthy look under load, with the figures of that time. A record: do not edit
    it."""
    run: Run | None = Field(default=None, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    """The one open run, written before each effect. A record: do not edit it."""
    failed_attempts: tuple[FailedAttempt, ...] = Field(
        default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Attempts that did not help, newest first. None is repeated on the same evidence. A record: do not
    edit it."""
    answers: tuple[Answer, ...] = Field(default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"})
    """Results of trial pods, newest first. A record: do not edit it."""
    copies: tuple[ConfigCopy, ...] = Field(default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"})
    """Copies of ConfigMaps that closed runs made and that may still be needed. A record: do not edit it."""
    oom_shares: tuple[OomShare, ...] = Field(
        default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Shares of GPU memory at which a replica ran out of memory. No run sets one of them again. A record:
    do not edit it."""
    temporary: tuple[TemporaryChange, ...] = Field(
        default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Temporary changes (added replicas, a flag): the values before, and since when the fleet is calm. A
    record: do not edit it."""
    history: tuple[ClosedRun, ...] = Field(default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"})
    """The last 10 closed runs, newest first. A record: do not edit it."""
    urgency: Urgency | None = None
    """How urgent the trouble is: `page` while an objective of the spec is breached, else `ticket`."""
    sized: SizedCap | None = None
    """The cap that a run computed and kept last. A record: do not edit it."""
    summary: Summary | None = None
    """The last run that changed the fleet: its changes, their effect and their cost."""
    scores: tuple[EvaluationResult, ...] = Field(
        default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Results of evaluations, each with its pod template, newest first. A record: do not edit it."""
    turned_off: TurnedOff | None = None
    """The method that was turned off because it saved nothing. A record: do not edit it."""
    baseline: MethodBaseline | None = None
    """The last healthy figures of the fleet before KV compression was turned on. A record: do not edit it."""
    runbook_switches: tuple[RunbookSwitch, ...] = Field(
        default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """When one runbook handed the fleet to the other, newest first. Each way happens once per pod template
    and generation of the spec. A record: do not edit it."""


def record_to_wire(record: Record, phase: str) -> dict[str, Any]:
    """Return a record as the value of `status`.

    Args:
        record: what is to be stored.
        phase: one word for the printer column.

    Raises:
        ValueError: a field has a value of another type, or the run would not be readable afterwards;
            either way it must not be stored.
    """
    held = {field.name: getattr(record, field.name) for field in fields(record)}
    holder = KVRemediationStatus.model_construct(**held, phase=phase, change=newest_change(record))
    written = holder.model_dump(mode="json", by_alias=True, exclude_none=True, warnings="error")
    _refuse_unreadable(record.run, written.get("run"))
    return {
        field: value if field == "run" else _show_field(field, value)
        for field, value in written.items()
        if value not in ("", [], {})
    }


def record_from_wire(status: Mapping[str, object]) -> Record:
    """Return the record that a status holds; an empty mapping is a new resource's.

    Raises:
        RunUnreadable: one of the records has a field that is missing, of another type or has a value
            that is not known here.
    """
    try:
        return _with_a_step(_read_field(status))
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
        broken = [detail["loc"] for detail in details]
        if any(not location or location[0] in RECORDS for location in broken):
            damaged = all(each["loc"][:1] == ("run",) and each["type"] not in UNKNOWN for each in details)
            raise RunUnreadable(problems_of(error, "status"), is_damaged=damaged) from error
    return _with_a_step(_read_field(_without_broken(status, broken)))


def _with_a_step(record: Record) -> Record:
    if record.run is not None and not record.run.steps:
        raise RunUnreadable(("status.run.steps: empty, but every run has a step",), is_damaged=True)
    return record


def newest_change(record: Record) -> str:
    """Return the newest change in one line: of the open run, else planned, else of the last closed run.

    The object that it was made on is left out, because the resource names its target already.
    """
    lines: Iterable[str] = ()
    if record.run is not None:
        lines = (record.run.current.step.line(),)
    elif record.plan is not None:
        lines = record.plan.steps
    elif record.history:
        lines = record.history[0].steps
    return "; ".join(line.partition(": ")[2] or line for line in lines)


def _make_lenient(schema: Any) -> Any:
    """Return a schema in which what may be None may be absent, times have a zone, and digests are such."""
    if isinstance(schema, list | tuple):
        return type(schema)(_make_lenient(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    read = {key: _make_lenient(part) for key, part in schema.items()}
    if read.get("type") == "str":
        return core_schema.no_info_after_validator_function(_as_digest, read)
    if read.get("type") == "datetime":
        read["tz_constraint"] = "aware"
    inner = read.get("schema")
    if read.get("type") == "dataclass-field" and isinstance(inner, dict) and inner["type"] == "nullable":
        read["schema"] = core_schema.with_default_schema(inner, default=None)
    return read


def _as_digest(text: str) -> str:
    """Return what may be a digest as one, so that one of an earlier version is compared by what it has."""
    return Digest(text) if _DIGEST.fullmatch(text) else text


def _reader() -> SchemaValidator:
    """Return the reader of the status' fields.

    Of the fields, not of the model: for a class that has a validator pydantic takes that one, whatever
    schema it is given.
    """
    schema = _make_lenient(KVRemediationStatus.__pydantic_core_schema__)
    of_fields = {**schema, "schema": schema["schema"]["schema"]}
    return SchemaValidator(of_fields, core_schema.CoreConfig(allow_inf_nan=False))


_READER = _reader()


def _read_field(status: Mapping[str, object]) -> Record:
    read, _, _ = _READER.validate_python(dict(status))
    return Record(**{field.name: read[field.name] for field in fields(Record)})


def _refuse_unreadable(run: Run | None, wire: object) -> None:
    if run is None:
        return
    try:
        _read_field({"run": wire})
    except ValidationError as error:
        raise ValueError(f"run {run.id} would not be readable: {error}") from error


def _show_field(field: str, value: Any) -> Any:
    """Return a field as people read it; what a plan sets, and later sets back, is exact."""
    if field != "plan" or "exact" not in value:
        return _clip_texts(value)
    readable = {key: each for key, each in value.items() if key != "exact"}
    return {**_clip_texts(readable), "exact": value["exact"]}


def _clip_texts(part: Any) -> Any:
    """Return a part of the status with its texts cut to what people read, and without secrets."""
    match part:
        case str():
            text = redact(part)
            return text if len(text) <= MESSAGE_LENGTH else f"{text[: MESSAGE_LENGTH - 1]}…"
        case list():
            return [_clip_texts(item) for item in part]
        case dict():
            cut = {key: _clip_texts(item) for key, item in part.items()}
            return cut | {"findings": cut["findings"][:FINDINGS_LENGTH]} if "findings" in cut else cut
        case _:
            return part


def _without_broken(
    status: Mapping[str, object], broken: Iterable[tuple[int | str, ...]]
) -> dict[str, object]:
    """Return a status without what cannot be read: single conditions, and otherwise whole fields."""
    conditions = {location[1] for location in broken if location[0] == "conditions" and len(location) > 1}
    dropped = {location[0] for location in broken if location[0] != "conditions" or len(location) == 1}
    kept = {field: value for field, value in status.items() if field not in dropped}
    listed = kept.get("conditions")
    if isinstance(listed, list):
        kept["conditions"] = [c for i, c in enumerate(listed) if i not in conditions]
    return kept
