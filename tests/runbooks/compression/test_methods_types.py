"""Types of KV caches: labels before logs, and what is open where neither shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import CALM, NO_SERIES, Replica, an_evidence
from kvmedic.engines.engine_log import Start, Started, Unread
from kvmedic.model.evidence import Inconclusive, LoggedSize, SizeUnit
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Runbook
from kvmedic.model.trial import Reclaim
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Diagnosed, Evidence, NoChange, Relief, Setting, diagnose
from kvmedic.runbooks.compression.branches import replace_stale
from kvmedic.runbooks.compression.methods import (
    DECLARED,
    explain_unknown_types,
    find_stale_replicas,
    find_untyped_pods,
    logs_to_read,
)
from worlds.compression_incidents import EIGHT, EVICTS, FEWER_BITS, PAGES, answered, compressed

WHOLE = Started(size=LoggedSize(4800, SizeUnit.TOKENS), is_whole=True)
EIGHT_BITS = replace(WHOLE, cache_type="fp8", methods=("Using fp8 data type to store kv cache",))
CUT = Started()
FORBIDDEN = Unread("pods is forbidden")
BY_SPEC = replace(FEWER_BITS, known_by=DECLARED, asks_for_type="")
BY_CHECKPOINT = replace(BY_SPEC, is_confirmed=True)
BY_ITSELF = replace(FEWER_BITS, known_by="start-up log: Using fp8", asks_for_type="", is_confirmed=True)
FLOATS = replace(CALM, pool=replace(CALM.pool, cache_dtype="bfloat16"))
EIGHT_REPLICA = replace(CALM, pool=EIGHT)


def fleet(*replicas: tuple[Replica, Start | None]) -> Evidence:
    evidence = an_evidence(*[replica for replica, _ in replicas])
    starts = zip(evidence.burn.pods, [start for _, start in replicas], strict=True)
    return replace(evidence, started={name: start for name, start in starts if start})


NAMES = tuple(fleet((CALM, None), (CALM, None)).burn.pods)
FIRST, SECOND = NAMES

ROWS = [
    ("the label has it", FEWER_BITS, EIGHT_REPLICA, None, "has"),
    ("the log has it, asked for", FEWER_BITS, CALM, EIGHT_BITS, "has"),
    ("the log has it, declared", BY_SPEC, CALM, EIGHT_BITS, "has"),
    ("asked for, nobody looked", FEWER_BITS, CALM, None, "has not"),
    ("asked for, the log cannot be read", FEWER_BITS, CALM, FORBIDDEN, "has not"),
    ("asked for, the log is whole without it", FEWER_BITS, CALM, WHOLE, "has not"),
    ("declared, nobody looked", BY_SPEC, CALM, None, "open"),
    ("declared, the log cannot be read", BY_SPEC, CALM, FORBIDDEN, "open"),
    ("declared, the beginning of the log is gone", BY_SPEC, CALM, CUT, "open"),
    ("declared, the log is whole without it", BY_SPEC, CALM, WHOLE, "has not"),
    ("the label is of another type, whatever the log says", BY_SPEC, FLOATS, EIGHT_BITS, "has not"),
    ("a peer has it from the same checkpoint", BY_CHECKPOINT, CALM, FORBIDDEN, "has"),
    ("a peer has it, and this one's log denies it", BY_CHECKPOINT, CALM, WHOLE, "has not"),
    ("nothing asks for it", BY_ITSELF, CALM, WHOLE, "has"),
    ("a method that leaves types alone", EVICTS, CALM, None, "has"),
]


@pytest.mark.parametrize(
    ("method", "replica", "start", "answer"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_replica_has_the_type_or_has_it_not_or_nobody_knows(
    method: object, replica: Replica, start: Start | None, answer: str
) -> None:
    evidence = fleet((replica, start), (EIGHT_REPLICA, None))

    missing, proven = find_untyped_pods(method, evidence), find_stale_replicas(method, evidence)

    assert (missing, proven) == {
        "has": ((), ()),
        "has not": ((FIRST,), (FIRST,)),
        "open": ((FIRST,), ()),
    }[answer]


def of(method: object, evidence: Evidence) -> Diagnosed | Inconclusive:
    return diagnose(RUNBOOKS[Runbook.COMPRESSION_WITHOUT_SAVINGS], compressed(evidence, method))


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (FORBIDDEN, "cannot be read (pods is forbidden)"),
        (CUT, "the beginning of its log is gone"),
        (None, "was not read"),
    ],
)
def test_a_log_that_cannot_be_read_is_no_evidence_and_the_message_says_what_would_help(
    start: Start | None, why: str
) -> None:
    found = of(BY_SPEC, fleet((CALM, start), (EIGHT_REPLICA, None)))

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.LOG_UNREADABLE
    assert f"{FIRST}: " in found.message
    assert why in found.message
    assert "started anew" in found.message


def test_one_that_is_proven_speaks_though_another_is_open() -> None:
    found = of(BY_SPEC, fleet((CALM, FORBIDDEN), (CALM, WHOLE)))

    assert found.reason is Reason.COMPRESSION_NOT_APPLIED
    assert isinstance(found, Diagnosed)
    assert [each.subject for each in found.findings] == [SECOND]
    assert "its start-up log names no type; the spec says so" in found.findings[0].text


def test_a_type_that_the_checkpoint_brings_is_applied() -> None:
    found = of(FEWER_BITS, fleet((CALM, EIGHT_BITS), (CALM, EIGHT_BITS)))

    assert found.reason is Reason.COMPRESSION_UNDOUBTED


def test_a_replica_is_replaced_only_where_a_file_asks_for_what_it_has_not() -> None:
    evidence = fleet((CALM, EIGHT_BITS), (CALM, FORBIDDEN))
    in_file = compressed(evidence, replace(FEWER_BITS, type_is_in_file=True))
    by_spec = compressed(fleet((CALM, FORBIDDEN), (CALM, WHOLE)), BY_SPEC)

    relief, advice = replace_stale(in_file, Setting(None, ())), replace_stale(by_spec, Setting(None, ()))

    assert isinstance(relief, Relief)
    assert relief.pod == SECOND
    assert isinstance(advice, NoChange)
    assert "spec.compression says fp8" in advice.message


def test_without_pools_no_type_is_missing() -> None:
    evidence = an_evidence(replace(CALM.readings(), pool=NO_SERIES))

    assert (find_untyped_pods(FEWER_BITS, evidence), find_stale_replicas(FEWER_BITS, evidence)) == ((), ())


def test_a_large_fleet_is_counted() -> None:
    evidence = fleet(*[(CALM, FORBIDDEN)] * 9)

    assert "; and 6 more" in explain_unknown_types(BY_SPEC, evidence)


def test_logs_are_needed_only_where_settings_and_labels_leave_it_open() -> None:
    seen = fleet((CALM, None), (EIGHT_REPLICA, None)).burn
    unknown = an_evidence(replace(CALM.readings(), pool=NO_SERIES)).burn

    assert logs_to_read(None, seen) == NAMES
    assert logs_to_read(FEWER_BITS, seen) == (FIRST,)
    assert logs_to_read(BY_SPEC, seen) == (FIRST,)
    assert logs_to_read(EVICTS, seen) == NAMES
    assert logs_to_read(replace(EVICTS, is_confirmed=True), seen) == logs_to_read(PAGES, seen) == ()
    assert logs_to_read(replace(EVICTS, answer=answered(Reclaim.NONE)), seen) == NAMES
    assert logs_to_read(replace(EVICTS, answer=answered(Reclaim.SCATTERED)), seen) == ()
    assert logs_to_read(FEWER_BITS, unknown) == ()
