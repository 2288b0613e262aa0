"""The status on the wire and back."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from api.records import (
    baseline_record,
    doubtful_record,
    full_record,
    holding_record,
    switched_record,
    urgent_record,
)
from kvmedic.api.resource import RunUnreadable
from kvmedic.api.status import (
    FINDINGS_LENGTH,
    MESSAGE_LENGTH,
    newest_change,
    record_from_wire,
    record_to_wire,
)
from kvmedic.model.edits import EnvEdit, TokenEdit
from kvmedic.model.engine import Knob
from kvmedic.model.reasons import Reason
from kvmedic.model.redaction import without_controls
from kvmedic.model.run import Run, StepRecord, StepState
from kvmedic.model.status import (
    HISTORY_LENGTH,
    Attempt,
    Condition,
    ConditionType,
    OomShare,
    Record,
    ShownDiagnosis,
    ShownPlan,
    Truth,
)
from run_builder import NEW, NOW, OLD, STEP, a_failure, a_run

GOLDEN = Path(__file__).parent / "data" / "status-v1alpha1.json"
TIMES = st.datetimes(timezones=st.just(UTC))
SPANS = st.timedeltas(timedelta(0), timedelta(days=365))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).map(without_controls)
"""What steers a terminal is taken out of what people read before it is stored."""
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = {
    str: TEXTS,
    int: st.integers(),
    float: NUMBERS,
    bool: st.booleans(),
    datetime: TIMES,
    timedelta: SPANS,
}


MOST_DRAWS = 5
"""Of the fields of an object before it is given up: those of a run may contradict each other."""


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return any value of a core type, so that a new kind of step is tried without a change here."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if kind is types.NoneType:
        return st.none()
    if origin in (Union, types.UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if origin is tuple:
        return st.lists(values(arguments[0]), min_size=1, max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXTS, TEXTS, max_size=3)
    if origin is Literal:
        return st.sampled_from(arguments)
    if issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    return built(kind)


@st.composite
def built(draw: st.DrawFn, kind: Any) -> Any:
    """Return any object of a kind that may be; its strategy is named by the kind, not written out."""
    found = None
    for _ in range(MOST_DRAWS):
        found = _possible(kind, draw(_fields(kind)))
        if found is not None:
            break
    assume(found is not None)
    return found


@cache
def _fields(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    hints = get_type_hints(kind)
    fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(kind)}
    if kind in (TokenEdit, EnvEdit):
        fields |= {"index": st.integers(0, 99), "container_index": st.integers(0, 9)}
    if kind is TokenEdit:
        fields["at"] = st.none() | st.integers(0, 9999)
    return st.fixed_dictionaries(fields)


def _possible(kind: Any, fields: dict[str, Any]) -> Any:
    try:
        return kind(**fields)
    except ValueError:
        return None


def stored(record: Record, phase: str = "Watching") -> dict[str, Any]:
    """Return the status as it comes back from the API server."""
    read: dict[str, Any] = json.loads(json.dumps(record_to_wire(record, phase)))
    return read


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(values(Record))
def test_every_record_survives_being_stored(record: Record) -> None:
    assert record_from_wire(stored(record)) == record


def test_a_new_resource_has_an_empty_record() -> None:
    assert record_from_wire({}) == Record()


def test_a_healthy_record_is_short() -> None:
    assert stored(Record(observed_generation=1)) == {"observedGeneration": 1, "phase": "Watching"}


def test_a_status_of_the_first_version_still_reads() -> None:
    """Stored records outlive operators: this file only ever gets company, it never changes."""
    record = record_from_wire(json.loads(GOLDEN.read_text()))

    assert record == full_record()


def test_a_status_with_an_urgency_and_a_counted_run_still_reads() -> None:
    assert record_from_wire(json.loads((GOLDEN.parent / "status-v1alpha1-urgent.json").read_text())) == (
        urgent_record()
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [(("sized", "at"), "soon"), (("sized", "cap"), None), (("run", "costSoFar", "above"), "many")],
)
def test_a_status_of_which_a_part_cannot_be_read_is_no_record(
    path: tuple[str | int, ...], value: Any
) -> None:
    with pytest.raises(RunUnreadable):
        record_from_wire(broken(stored(urgent_record()), *path, value=value))


@pytest.mark.parametrize("record", [baseline_record(), doubtful_record()])
def test_a_baseline_survives_being_stored(record: Record) -> None:
    assert record_from_wire(stored(record)) == record


def test_figures_of_before_have_the_names_that_the_spec_gives_them() -> None:
    assert stored(baseline_record())["baseline"]["figures"] == {
        "requestsPerSecond": 20.0,
        "tokensPerSecond": 3800.0,
        "preemptionsPerRequest": 0.1,
        "kvCacheUsage": 0.9,
        "e2eP95": 9.5,
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [(("baseline", "revision"), None), (("baseline", "figures"), None), (("baseline", "seenAt"), "once")],
)
def test_a_broken_baseline_is_never_taken_for_none(path: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(RunUnreadable):
        record_from_wire(broken(stored(baseline_record()), *path, value=value))


def test_a_switch_of_runbooks_is_written_in_the_words_of_the_diagnosis() -> None:
    assert stored(switched_record())["runbookSwitches"] == [
        {
            "fromRunbook": "CompressionWithoutSavings",
            "toRunbook": "PreemptionThrash",
            "reason": "PressedThoughCompressed",
            "message": "blocks come back; PreemptionThrash goes on: FleetWideDemand",
            "template": "0123456789abcdef",
            "generation": 3,
            "at": "2026-03-01T03:00:00Z",
        }
    ]


@pytest.mark.parametrize(
    ("field", "value"), [("template", None), ("generation", "x"), ("reason", "Elysium"), ("at", "once")]
)
def test_a_switch_of_runbooks_is_never_taken_for_none(field: str, value: Any) -> None:
    with pytest.raises(RunUnreadable):
        record_from_wire(broken(stored(switched_record()), "runbookSwitches", 0, field, value=value))


def test_times_are_written_in_utc_and_conditions_in_kubernetes_words() -> None:
    assert stored(full_record())["conditions"][0] == {
        "type": "Ready",
        "status": "True",
        "reason": "TargetFound",
        "message": "found",
        "lastTransitionTime": "2026-03-01T03:00:00Z",
        "observedGeneration": 3,
    }


def test_what_was_unknown_is_left_out_and_reads_as_unknown() -> None:
    status = stored(replace(full_record(), run=replace(a_run(), blocks=None)))

    assert "blocks" not in status["run"]
    read = record_from_wire(status).run
    assert read.blocks is None


def test_fields_of_a_newer_operator_are_ignored() -> None:
    status = stored(full_record()) | {"forecast": {"calm": True}}
    status["run"]["mood"] = "good"

    assert record_from_wire(status) == full_record()


def broken(status: dict[str, Any], *path: str | int, value: Any = None) -> dict[str, Any]:
    """Return a status with one value replaced, or with None removed."""
    inner: Any = status
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return status


UNREADABLE = {
    "a run that is no object": (("run",), "yes"),
    "a run without its target": (("run", "targetUid"), None),
    "a run without its fields": (("run", "recorded"), None),
    "a run without a baseline": (("run", "baseline"), None),
    "a run of an unknown reason": (("run", "reason"), "Telepathy"),
    "a step of an unknown kind": (("run", "steps", 0, "step", "kind"), "PrayerStep"),
    "a step in an unknown state": (("run", "steps", 0, "state"), "Levitating"),
    "a step without its edit": (("run", "steps", 0, "step", "edit"), None),
    "an edit of nothing": (("run", "steps", 0, "step", "edit", "index"), -1),
    "a time without a zone": (("run", "startedAt"), "2026-03-01T03:00:00"),
    "a time that is none": (("run", "intent", "at"), "soon"),
    "a number that is none": (("run", "baseline", "windowSeconds"), "NaN"),
    "a run without a step": (("run", "steps"), []),
    "a history that is no list": (("history",), {"id": "1"}),
    "a closed run without an end": (("history", 0, "endedAt"), None),
    "a closed run of an unknown outcome": (("history", 0, "outcome"), "Bliss"),
    "an attempt of an unknown kind": (("failedAttempts", 0, "attempt"), "volume"),
    "a good revision without replicas": (("lastGood", "replicas"), None),
}


@pytest.mark.parametrize(("path", "value"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_record_that_cannot_be_read_is_never_taken_for_none(
    path: tuple[str | int, ...], value: Any
) -> None:
    status = broken(stored(full_record()), *path, value=value)

    with pytest.raises(RunUnreadable) as error:
        record_from_wire(status)

    assert all(problem.startswith(f"status.{path[0]}") for problem in error.value.problems)


@pytest.mark.parametrize(
    ("path", "value", "is_damaged"),
    [
        (("run", "steps"), [], True),
        (("run", "steps"), None, True),
        (("run", "targetUid"), None, True),
        (("run",), {}, True),
        (("run",), "yes", True),
        (("run", "steps", 0, "state"), "Teleporting", False),
        (("history",), {"id": "1"}, False),
    ],
)
def test_a_run_that_somebody_damaged_is_distinguished_from_one_of_another_version(
    path: tuple[str | int, ...], value: Any, *, is_damaged: bool
) -> None:
    with pytest.raises(RunUnreadable) as error:
        record_from_wire(broken(stored(full_record()), *path, value=value))

    assert error.value.is_damaged is is_damaged


def test_what_is_for_people_is_dropped_when_it_cannot_be_read() -> None:
    status = stored(full_record())
    status["diagnosis"] = {"reason": "Telepathy"}
    status["plan"] = "none"
    status["observedGeneration"] = "three"

    assert record_from_wire(status) == replace(
        full_record(), diagnosis=None, plan=None, observed_generation=0
    )


def test_a_foreign_condition_does_not_take_the_others_with_it() -> None:
    status = stored(full_record())
    status["conditions"].insert(0, {"type": "Blessed", "status": "True"})

    assert record_from_wire(status) == full_record()


def test_conditions_that_are_no_list_are_dropped() -> None:
    status = stored(full_record()) | {"conditions": "fine"}

    assert record_from_wire(status) == replace(full_record(), conditions=())


def test_a_run_that_would_not_read_back_is_never_written() -> None:
    unlike = replace(a_run(), baseline=replace(a_run().baseline, kv_cache_usage_ratio=float("nan")))

    with pytest.raises(ValueError, match="would not be readable"):
        record_to_wire(Record(run=unlike), "RollingOut")


def test_a_value_of_another_type_is_never_written() -> None:
    unlike = replace(a_run(), blocks="149")  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="blocks"):
        record_to_wire(Record(run=unlike), "RollingOut")


def test_a_time_without_a_zone_is_never_written() -> None:
    """A time without a zone would be read in whatever zone the next operator assumes."""
    unlike = replace(a_run(), started_at=NOW.replace(tzinfo=None))

    with pytest.raises(ValueError, match="would not be readable"):
        record_to_wire(Record(run=unlike), "RollingOut")


def test_the_status_stays_small_whatever_happens() -> None:
    long = "€" * 10_000
    closed = replace(full_record().history[0], message=long, steps=(long,) * 9)
    record = replace(
        full_record(),
        conditions=tuple(Condition(kind, Truth.TRUE, Reason.HEALTHY, long, NOW, 1) for kind in ConditionType),
        diagnosis=ShownDiagnosis(Reason.HEALTHY, long, "PreemptionThrash", NOW, (long,) * 1000),
        plan=ShownPlan("0", Reason.HEALTHY, long, (long,) * 9, NOW),
        history=(closed,) * HISTORY_LENGTH,
    )

    status = record_to_wire(record, "Watching")

    assert len(json.dumps(status, ensure_ascii=False).encode()) < 512 * 1024
    assert len(status["diagnosis"]["findings"]) == FINDINGS_LENGTH
    assert len(status["history"][0]["message"]) == MESSAGE_LENGTH
    assert len(record_from_wire(status).history) == HISTORY_LENGTH


def two_steps() -> Run:
    kept = StepRecord(STEP, StepState.KEPT)
    again = StepRecord(replace(STEP, before="16", after="8", before_template=NEW, after_template="c"))
    return replace(a_run(), steps=(kept, again))


CHANGES = {
    "nothing yet": (Record(), ""),
    "planned": (replace(full_record(), run=None), "maxNumSeqs 64 -> 16"),
    "under way, not the one before": (replace(full_record(), run=two_steps()), "maxNumSeqs 16 -> 8"),
    "done": (replace(full_record(), run=None, plan=None), "maxNumSeqs 64 -> 16: Kept"),
}


@pytest.mark.parametrize(("record", "change"), CHANGES.values(), ids=CHANGES)
def test_the_newest_change_is_one_line(record: Record, change: str) -> None:
    assert newest_change(record) == change


def test_what_turns_of_the_supply_leave_behind_is_stored_and_read() -> None:
    record = replace(
        full_record(),
        failed_attempts=(a_failure(Attempt.RAISE_MEMORY, Knob.GPU_MEMORY_UTILIZATION, blocks=149),),
        oom_shares=(OomShare(0.92, OLD, NOW),),
        temporary=holding_record().temporary,
    )

    status = stored(record)

    assert status["failedAttempts"][0]["attempt"] == "RaiseMemory"
    assert status["oomShares"] == [{"share": 0.92, "body": OLD, "at": "2026-03-01T03:00:00Z"}]
    assert record_from_wire(status) == record


@pytest.mark.parametrize("path", [("oomShares", 0, "share"), ("temporary", 0, "step")])
def test_what_was_too_much_is_a_record_and_never_started_anew(path: tuple[str | int, ...]) -> None:
    record = replace(
        full_record(),
        oom_shares=(OomShare(0.92, OLD, NOW),),
        temporary=holding_record().temporary,
    )

    with pytest.raises(RunUnreadable):
        record_from_wire(broken(stored(record), *path, value={}))


def test_what_is_held_for_a_while_is_read_as_it_was_written() -> None:
    record = holding_record()

    status = stored(record)

    assert record_from_wire(status) == record
    held = status["temporary"][0]
    assert (held["step"]["before"], held["step"]["after"]) == (3, 4)
    assert held["calmSince"] == "2026-03-01T02:00:00Z"
    assert status["run"]["steps"][0]["step"]["kind"] == "ReplicasStep"


@pytest.mark.parametrize("field", ["temporary", "failedAttempts"])
def test_what_is_held_and_cannot_be_read_is_never_forgotten(field: str) -> None:
    with pytest.raises(RunUnreadable):
        record_from_wire(stored(holding_record()) | {field: "fine"})


def _each_text(part: Any, change: Callable[[str], str]) -> Any:
    match part:
        case str():
            return change(part)
        case list():
            return [_each_text(item, change) for item in part]
        case dict():
            return {key: _each_text(item, change) for key, item in part.items()}
    return part


def test_a_status_of_a_version_with_short_digests_is_the_same_record_as_with_whole_ones() -> None:
    wire = record_to_wire(full_record(), "Healing")
    whole = _each_text(wire, lambda text: text * 2 if re.fullmatch("[0-9a-f]{16}", text) else text)

    old, new = record_from_wire(wire), record_from_wire(whole)

    assert whole != wire
    assert old == new
    assert old.run is not None
    assert new.run is not None
    assert len({old.run.current.step.after_template, new.run.current.step.after_template}) == 1
    assert record_to_wire(new, "Healing") == whole
