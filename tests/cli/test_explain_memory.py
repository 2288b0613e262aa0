"""What `kvmedic explain` tells of changes that did not help."""

from __future__ import annotations

from kvmedic.cli.explain import Place, explained
from kvmedic.core.decide import Wish
from kvmedic.core.engine import Knob
from kvmedic.core.record import Borrowed, OutgrownShare, Record, TriedLever, TriedReplacement
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


def test_a_share_that_was_too_much_and_what_is_borrowed_are_told() -> None:
    record = Record(
        outgrown=(OutgrownShare(0.92, OLD, NOW),),
        borrowed=(Borrowed(Knob.KV_OFFLOADING_SIZE, None, "32", OLD, NOW),),
    )

    said = lines(record)

    assert any("A GPU ran out of memory at a share of 0.92" in line for line in said)
    assert any("kvOffloadingSize 32 is meant for a time" in line for line in said)


def test_an_open_replacement_names_the_replica() -> None:
    assert any("replica a -> a new one: Pending" in line for line in lines(Record(run=a_run(step=REPLACE))))
