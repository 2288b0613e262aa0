"""What `kvmedic explain` tells of changes that did not help."""

from __future__ import annotations

from dataclasses import replace

from api.records import holding_record
from kvmedic.cli.explain import Place, explained
from kvmedic.core.decide import Wish
from kvmedic.core.engine import Knob
from kvmedic.core.record import Record, TriedLever, TriedReplacement
from kvmedic.core.resource import Resource
from kvmedic.core.verdict import Verdict
from run_builder import NOW, OLD, REPLACE, UID, a_run

PLACE = Place("kvmedic-system", "kvmedic-stop")


def lines(record: Record) -> list[str]:
    resource = Resource(
        namespace="serving",
        name="llm",
        uid=UID,
        resource_version="1",
        generation=1,
        wish=Wish.NONE,
        finalized=False,
        policy=None,
        problem=None,
        record=record,
    )
    return list(explained(resource, PLACE))


def test_a_replacement_that_did_not_help_is_told_with_what_it_rests_on() -> None:
    tried = TriedReplacement("llm-a", OLD, 3, Verdict.NOT_RECOVERED, NOW)
    lever = TriedLever(Knob.MAX_NUM_SEQS, OLD, 149, Verdict.NOT_RECOVERED, NOW)

    said = lines(Record(replacements=(tried,), levers=(lever,)))

    assert (
        "Replica llm-a was replaced (2026-03-01T03:00:00Z): NotRecovered; no other of 3 replicas with this "
        "template is." in said
    )
    assert any(line.startswith("maxNumSeqs was tried") for line in said)


def test_an_open_replacement_names_the_replica() -> None:
    assert any("replica a -> a new one: Pending" in line for line in lines(Record(run=a_run(step=REPLACE))))


def test_what_is_held_for_a_while_is_told_with_what_it_waits_for() -> None:
    said = lines(replace(holding_record(), run=None))

    assert (
        "For a while it holds replicas 3 -> 4 since 2026-03-01T01:00:00Z (run 20260301-020000); calm since "
        "2026-03-01T02:00:00Z." in said
    )
    assert "  Would fewer do (2026-03-01T03:00:00Z)? 3 replicas would run 9.1 sequences each." in said
    assert any(line.startswith("Replicas 4 -> 5 was tried") for line in said)


def test_what_is_held_and_was_never_calm_says_so() -> None:
    record = holding_record()
    assert record.footprint is not None

    said = lines(replace(record, footprint=replace(record.footprint, calm_since=None, outlook="")))

    assert any(line.endswith("; not calm yet.") for line in said)
    assert not any("Would fewer do" in line for line in said)
