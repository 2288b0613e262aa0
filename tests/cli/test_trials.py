"""What `kvmedic explain` shows of trials, of fixes after a method, and of a switch between the runbooks."""

import json
from dataclasses import replace
from datetime import timedelta

from api.records import switched_record
from builders import NOW
from kvmedic.api.status import record_from_wire, record_to_wire
from kvmedic.cli.explain import Place, as_json, explain_resource, fixes_of, report_tried, trial_of
from kvmedic.model.compression import Keep, Scattered, used_blocks
from kvmedic.model.devices import MIB
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Fix
from kvmedic.model.status import Attempt, Record, Resource, ShownDiagnosis, TurnedOff, Wish, failed_fix
from kvmedic.model.trial import Answer, EvaluationResult, Growth, Prompt, Question, Reclaim, Sample, Score
from run_builder import NEW, OLD, UID, a_failure

PLACE = Place("kvmedic-system", "kvmedic-stop")
NO_FIXES = fixes_of(None, OLD, 1)
KEEP = Keep(share=0.1)
ANSWER = Answer(
    Question.RECLAMATION,
    OLD,
    "on a trial pod 16384 tokens left 19% of their blocks free",
    NOW,
    1,
    Reclaim.SCATTERED,
    tuple(Sample(count, used_blocks(count, 16, KEEP, Scattered())) for count in (4096, 8192, 16_384)),
    16,
    KEEP,
)
SENTENCE = (
    "Trial of 2026-03-01T03:00:00Z on this pod template: Scattered: on a trial pod 16384 tokens left 19% of "
    "their blocks free."
)


def lines(*answers: Answer, template: str = OLD) -> list[str]:
    """What is explained of a resource that remembers these answers."""
    record = Record(diagnosis=ShownDiagnosis(Reason.BLOCKS_NOT_FREED, "few", "Any", NOW), answers=answers)
    trial = trial_of(record, template)
    return list(explain_resource(a_resource(record), PLACE, trial.as_text() if trial else ()))


def a_resource(record: Record) -> Resource:
    return Resource("serving", "llm", UID, "1", 1, Wish.NONE, False, None, None, record)


def test_a_trial_is_shown_and_drawn_between_what_is_seen_and_what_to_type():
    said = lines(ANSWER)

    at = said.index(SENTENCE)
    assert said[:2] == ["KVRemediation serving/llm: Unseen.", "No run is open."]
    assert said[at - 2].startswith("It sees BlocksNotFreed")
    assert said[at + 1].startswith("  blocks that came back (")
    assert said[at + 18] == (
        "  16384 tokens fill 1024 blocks: 190 came back; predicted: Reclaims 921, Scattered 190, None 0"
    )
    assert all(each.startswith("To ") for each in said[at + 19 :])


def test_the_newest_trial_of_the_present_template_is_shown():
    newer = replace(ANSWER, at=NOW + timedelta(hours=1), message="the newest")
    newest = replace(ANSWER, template=NEW, at=NOW + timedelta(hours=2), message="elsewhere")

    said = "\n".join(lines(newest, newer, ANSWER))

    assert "the newest" in said
    assert "elsewhere" not in said
    assert said.count("Trial of") == 1


def test_of_another_template_the_message_is_shown_and_nothing_is_drawn():
    said = lines(ANSWER, template=NEW)

    assert SENTENCE.replace("this", "another", 1) in said
    assert not [line for line in said if "blocks that came back" in line]


def test_a_status_of_an_older_version_has_no_readings_and_only_the_message_is_shown():
    wire = record_to_wire(Record(answers=(ANSWER,)), "")
    for field in ("seen", "blockTokens", "keep"):
        del wire["answers"][0][field]
    [old] = record_from_wire(wire).answers

    assert lines(old)[:5] == [*lines()[:4], SENTENCE]
    assert not [line for line in lines(old) if "blocks that came back" in line]


def test_a_trial_that_showed_nothing_is_of_no_class():
    said = lines(replace(ANSWER, reclaim=None, message="on a trial pod 90 tokens showed nothing: few"))

    assert (
        "Trial of 2026-03-01T03:00:00Z on this pod template: on a trial pod 90 tokens showed nothing: few."
        in said
    )


def test_without_a_trial_none_is_shown():
    assert not [line for line in lines() if "rial" in line]
    assert trial_of(None, OLD) is None


PROMPTS = Answer(
    Question.PROMPTS,
    OLD,
    "on a trial pod prompts of 2048, 16384 tokens took 16384 MiB more",
    NOW + timedelta(hours=1),
    1,
    growth=Growth.SQUARE,
    prompts=(Prompt(2048, 41_216.0 * MIB), Prompt(16_384, 57_344.0 * MIB)),
    memory_before=40_960.0 * MIB,
)


def test_what_was_shown_with_the_method_off_is_printed_beside_it():
    half = replace(
        PROMPTS,
        template=NEW,
        beside=OLD,
        message="on a trial pod without Mine prompts of 2048, 16384 tokens left device memory as it was",
        growth=Growth.NONE,
        prompts=(Prompt(2048, 40_960.0 * MIB), Prompt(16_384, 40_960.0 * MIB)),
        backends=("FLASH_ATTN",),
    )
    record = Record(answers=(half, PROMPTS))
    trial = trial_of(record, OLD)
    assert trial is not None

    said = lines(half, PROMPTS)
    fields = as_json(a_resource(record), PLACE, trial, NO_FIXES)["trial"]

    at = said.index(f"With the method off, at 2026-03-01T04:00:00Z: {half.message}.")
    assert [line.split() for line in said[at + 2 : at + 5]] == [
        ["0", "40960", "0"],
        ["2048", "40960", "0"],
        ["16384", "40960", "0"],
    ]
    assert fields["growth"] == "Square"
    assert (fields["without"]["growth"], fields["without"]["backends"]) == ("None", ["FLASH_ATTN"])
    assert fields["without"]["prompts"][-1] == {"tokens": 16_384, "deviceMemory": 40_960.0 * MIB}


def test_a_start_with_the_method_off_is_shown_by_itself():
    text = "on a trial pod without fp8 there are 299 blocks; attention by FLASH_ATTN"
    start = Answer(Question.START, NEW, text, NOW, 1, beside=OLD, blocks=299)

    assert f"Trial of 2026-03-01T03:00:00Z on another pod template: {text}." in lines(start)


def test_prompts_are_shown_in_a_table():
    said = lines(PROMPTS, ANSWER)

    at = next(at for at, line in enumerate(said) if line.startswith("Trial of"))
    assert said[at].startswith("Trial of 2026-03-01T04:00:00Z on this pod template: Square: on a trial pod")
    assert said[at + 1 : at + 5] == [
        "  prompt tokens device memory, MiB more than before",
        "              0              40960                0",
        "           2048              41216              256",
        "          16384              57344            16384",
    ]
    assert said[at + 5].startswith("To ")
    assert not [line for line in lines(PROMPTS, template=NEW) if "prompt tokens" in line]


def test_a_program_gets_every_prompt():
    record = record_from_wire(record_to_wire(Record(answers=(PROMPTS,)), ""))

    fields = as_json(a_resource(record), PLACE, trial_of(record, OLD), NO_FIXES)["trial"]

    assert (fields["question"], fields["reclaim"], fields["growth"]) == ("Prompts", None, "Square")
    assert fields["memoryBefore"] == PROMPTS.memory_before
    assert fields["prompts"] == [{"tokens": e.tokens, "deviceMemory": e.used} for e in PROMPTS.prompts]
    assert fields["readings"] == []


def test_a_program_gets_every_reading_and_no_picture():
    record = Record(answers=(ANSWER,))

    document = json.loads(json.dumps(as_json(a_resource(record), PLACE, trial_of(record, OLD), NO_FIXES)))

    assert (document["namespace"], document["name"]) == ("serving", "llm")
    assert SENTENCE in document["sentences"]
    assert not [line for line in document["sentences"] if "blocks that came back" in line]
    assert document["trial"] | {"readings": []} == {
        "question": "Reclamation",
        "at": "2026-03-01T03:00:00Z",
        "template": OLD,
        "isOfPresentTemplate": True,
        "reclaim": "Scattered",
        "growth": None,
        "message": ANSWER.message,
        "blockTokens": 16,
        "readings": [],
        "memoryBefore": None,
        "prompts": [],
        "blocks": None,
        "backends": [],
        "without": None,
    }
    assert [each["tokens"] for each in document["trial"]["readings"]] == [4096, 8192, 16_384]
    assert document["trial"]["readings"][-1] == {
        "tokens": 16_384,
        "usedBlocks": ANSWER.seen[-1].used,
        "blocksThatCameBack": 189.68,
        "predicted": {"None": 0.0, "PerHead": 0.0, "Scattered": 189.68, "Reclaims": 921.0},
    }


def test_a_program_gets_no_trial_where_there_was_none_and_no_reading_where_none_is_on_record():
    bare = Record(answers=(replace(ANSWER, seen=(), reclaim=None),))

    without = as_json(a_resource(Record()), PLACE, None, NO_FIXES)
    unread = as_json(a_resource(bare), PLACE, trial_of(bare, NEW), NO_FIXES)

    assert without["trial"] is None
    assert (unread["trial"]["readings"], unread["trial"]["reclaim"]) == ([], None)
    assert unread["trial"]["isOfPresentTemplate"] is False


def in_brief(record: Record) -> list[str]:
    """What is explained where nobody asked for all of it."""
    tried = report_tried(trial_of(record, OLD), fixes_of(record, OLD, 1), whole=False)
    return list(explain_resource(a_resource(record), PLACE, tried, whole=False))


def test_on_what_it_rests_is_shown_where_it_is_asked_for():
    lost = a_failure(Attempt.TURN_LEVER, change="maxNumSeqs 64 -> 16")
    brief = in_brief(replace(RECORD, failed_attempts=(*FAILED, lost), answers=(ANSWER,)))

    assert SENTENCE in brief
    assert "  CompactingMethod failed: a loss; the spec was edited since, so it may be tried again." in brief
    assert "With -v also: changes that did not help, readings of trials, scores." in brief
    assert not [each for each in brief if "came back" in each or "Accuracy" in each or "was tried" in each]
    assert not [each for each in in_brief(replace(RECORD, scores=())) if "-v" in each]


PASSED = EvaluationResult(
    OLD, "e1e1", "CronJob/aime24 on a trial pod with fp8: 0.870 over 200 samples", NOW, 1
)
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


def describe_fixes(record: Record, template: str = OLD) -> list[str]:
    shown = fixes_of(record, template, generation=1)
    said = list(explain_resource(a_resource(record), PLACE, shown.as_text()))
    return [each for each in said[said.index("Its spec is invalid.") + 1 :] if not each.startswith("To ")]


def test_what_was_turned_off_is_shown_with_the_wall_and_with_what_failed_since():
    said = describe_fixes(replace(RECORD, scores=()))

    assert said[0].startswith("Theirs was turned off (2026-03-01T02:00:00Z): BlocksNotFreed: KV compression ")
    assert said[1:] == [
        "  Fp8KVCache failed: fp8: the engine refuses it on this hardware: kv_cache_dtype not supported.",
        "  CompactingMethod failed: a loss; the spec was edited since, so it may be tried again.",
    ]


def test_scores_are_shown_the_newest_first_each_with_its_template():
    assert describe_fixes(replace(RECORD, turned_off=None)) == [
        "Accuracy not shown on another pod template (2026-03-01T04:00:00Z): fp8: the engine refuses it on "
        "this hardware: kv_cache_dtype not supported.",
        "Accuracy 0.870 over 200 samples on this pod template (2026-03-01T03:00:00Z): CronJob/aime24 on a "
        "trial pod with fp8: 0.870 over 200 samples.",
    ]


def test_a_template_that_is_not_known_is_not_called_another():
    [said] = describe_fixes(Record(scores=(SCORED,)), template="")

    assert said.startswith(f"Accuracy 0.870 over 200 samples on pod template {OLD} (")


def test_without_a_record_of_it_nothing_is_shown():
    assert describe_fixes(Record()) == []
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


def test_a_program_sees_that_there_is_nothing():
    found = as_json(a_resource(Record()), PLACE, None, fixes_of(Record(), "", 1))

    assert (found["turnedOff"], found["scores"]) == (None, [])
    assert fixes_of(Record(scores=(SCORED,)), "", 1).scores_as_json()[0]["isOfPresentTemplate"] is None


SWITCHED = replace(switched_record(), run=None)
LINE = (
    "CompressionWithoutSavings handed the fleet to PreemptionThrash (2026-03-01T03:00:00Z, pod "
    "template 0123456789abcdef): blocks come back; PreemptionThrash goes on: FleetWideDemand."
)


def facts(record: Record) -> object:
    found = json.loads(json.dumps(as_json(a_resource(record), PLACE, None, fixes_of(record, "", 1))))
    return found["runbookSwitch"]


def test_the_newest_switch_is_shown_after_the_diagnosis():
    newer, older = SWITCHED.runbook_switches[0], replace(SWITCHED.runbook_switches[0], template="0" * 16)

    said = list(explain_resource(a_resource(replace(SWITCHED, runbook_switches=(newer, older))), PLACE))

    at = said.index(LINE)
    assert said[at - 2].startswith("It sees FleetWideDemand")
    assert [line for line in said if "handed the fleet" in line] == [LINE]


def test_a_program_gets_the_same_facts_of_a_switch():
    assert facts(SWITCHED) == {
        "from": "CompressionWithoutSavings",
        "to": "PreemptionThrash",
        "reason": "PressedThoughCompressed",
        "template": "0123456789abcdef",
        "generation": 3,
        "at": "2026-03-01T03:00:00Z",
        "message": "blocks come back; PreemptionThrash goes on: FleetWideDemand",
    }


def test_where_no_runbook_left_the_fleet_nothing_is_shown():
    assert facts(Record()) is None
    assert not [line for line in explain_resource(a_resource(Record()), PLACE) if "handed the fleet" in line]
