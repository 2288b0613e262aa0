"""What `kvmedic explain` tells of changes that did not help."""

from __future__ import annotations

from kvmedic.cli.explain import Place, explained
from kvmedic.core.decide import Wish
from kvmedic.core.engine import Knob
from kvmedic.core.record import ConfigCopy, Record, TriedLever, TriedReplacement
from kvmedic.core.resource import Resource
from kvmedic.core.verdict import Verdict
from run_builder import CONFIG, NOW, OLD, REPLACE, UID, a_run

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


def test_a_change_in_a_file_names_the_file_and_a_copy_that_is_left_is_told() -> None:
    said = lines(Record(run=a_run(step=CONFIG), copies=(ConfigCopy("limits-0123456789", OLD),)))

    assert any("maxNumSeqs 64 -> 16 (ConfigMap/limits, engine.yaml): Pending" in line for line in said)
    assert any(line.startswith("ConfigMap limits-0123456789 is a copy of ours") for line in said)
