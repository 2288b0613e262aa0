"""What `kvmedic explain` tells of the fix after the method: turned off, failed, scored."""

import json
from dataclasses import replace
from datetime import timedelta

from builders import NOW
from cli.test_trials import PLACE, a_resource
from kvmedic.api.status import record_from_wire, record_to_wire
from kvmedic.cli.explain import as_json, explain_resource, fixes_of
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Fix
from kvmedic.model.status import Record, TurnedOff, failed_fix
from kvmedic.model.trial import Score, Scored
from run_builder import NEW, OLD

PASSED = Scored(OLD, "e1e1", "CronJob/aime24 on a trial pod with fp8: 0.870 over 200 samples", NOW, 1)
SCORED = replace(PASSED, score=Score(0.87, 200))
REFUSED = replace(
    PASSED,
    configuration=NEW,
    message="fp8: the engine refuses it on this hardware: kv_cache_dtype not supported",
    at=NOW + timedelta(hours=1),
    refused=True,
)
OFF = TurnedOff(
    "Theirs",
    Reason.BLOCKS_NOT_FREED,
    NOW - timedelta(hours=1),
)
FAILED = (
    failed_fix(Fix.FP8_KV_CACHE, REFUSED.message, 1, NOW),
    failed_fix(Fix.COMPACTING_METHOD, "a loss", 0, NOW),
)
RECORD = Record(turned_off=OFF, failed_attempts=FAILED, scores=(SCORED, REFUSED))


def told(record: Record, template: str = OLD) -> list[str]:
    shown = fixes_of(record, template, generation=1)
    said = list(explain_resource(a_resource(record), PLACE, shown.as_text()))
    return said[2 : said.index("No run is open.")]


def test_what_was_turned_off_is_told_with_the_wall_and_with_what_failed_since():
    said = told(replace(RECORD, scores=()))

    assert said[0].startswith("Theirs was turned off (2026-03-01T02:00:00Z): BlocksNotFreed: KV compression ")
    assert said[1:] == [
        "  Fp8KVCache failed: fp8: the engine refuses it on this hardware: kv_cache_dtype not supported.",
        "  CompactingMethod failed: a loss; the spec was edited since, so it may be tried anew.",
    ]


def test_scores_are_told_the_newest_first_each_with_its_template():
    assert told(replace(RECORD, turned_off=None)) == [
        "Accuracy not shown on another pod template (2026-03-01T04:00:00Z): fp8: the engine refuses it on "
        "this hardware: kv_cache_dtype not supported.",
        "Accuracy 0.870 over 200 samples on this pod template (2026-03-01T03:00:00Z): CronJob/aime24 on a "
        "trial pod with fp8: 0.870 over 200 samples.",
    ]


def test_a_template_that_is_not_known_is_not_called_another():
    [said] = told(Record(scores=(SCORED,)), template="")

    assert said.startswith(f"Accuracy 0.870 over 200 samples on pod template {OLD} (")


def test_without_a_record_of_it_nothing_is_told():
    assert told(Record()) == []
    assert list(fixes_of(None, OLD, 1).as_text()) == []


def test_a_program_gets_the_same_facts():
    record = record_from_wire(record_to_wire(RECORD, ""))

    found = json.loads(json.dumps(as_json(a_resource(record), PLACE, None, fixes_of(record, OLD, 1))))

    assert found["turnedOff"] == {
        "method": "Theirs",
        "wall": "BlocksNotFreed",
        "at": "2026-03-01T02:00:00Z",
        "failed": [
            {"fix": "Fp8KVCache", "why": REFUSED.message, "isOfPresentSpec": True},
            {"fix": "CompactingMethod", "why": "a loss", "isOfPresentSpec": False},
        ],
    }
    assert found["scores"] == [
        {
            "at": "2026-03-01T04:00:00Z",
            "template": NEW,
            "isOfPresentTemplate": False,
            "evaluation": "e1e1",
            "accuracy": None,
            "samples": None,
            "refused": True,
            "message": REFUSED.message,
        },
        {
            "at": "2026-03-01T03:00:00Z",
            "template": OLD,
            "isOfPresentTemplate": True,
            "evaluation": "e1e1",
            "accuracy": 0.87,
            "samples": 200,
            "refused": False,
            "message": SCORED.message,
        },
    ]
    assert any(line.startswith("Accuracy 0.870") for line in found["sentences"])


def test_a_program_is_told_that_there_is_nothing():
    found = as_json(a_resource(Record()), PLACE, None, fixes_of(Record(), "", 1))

    assert (found["turnedOff"], found["scores"]) == (None, [])
    assert fixes_of(Record(scores=(SCORED,)), "", 1).scores_as_json()[0]["isOfPresentTemplate"] is None
