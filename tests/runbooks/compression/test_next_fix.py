"""The fix after a method that saved nothing: each stage follows from what is on record, from nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from builders import NOW
from kvmedic.model.compression import BundleSetting as Setting
from kvmedic.model.compression import Keep, MethodClass
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import template_hash
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import CompressionPolicy, Fix, GatePolicy, Reference, Replacement
from kvmedic.model.status import Attempt, TurnedOff
from kvmedic.model.trial import AGAIN, Answer, EvaluationResult, Question, Reclaim, Score
from kvmedic.runbooks.branches import Compressed, Evaluate, NoChange, Try, TurnOn
from kvmedic.runbooks.compression.next_fix import Case, fixes_behind_gate, next_fix
from run_builder import a_failure
from worlds.bundles import a_template, a_workload

TEMPLATE = a_template(["vllm", "serve", "some/model"])
PRESENT = template_hash(TEMPLATE)
MINE = Replacement("Mine", keep_tokens=2048, settings=(Setting(env="MINE", on="1", off=None),))
GATE = GatePolicy("aime24", max_loss=0.05)
EVALUATION = "e1e1"
ALL = (Fix.REVERT_BUNDLE, Fix.COMPACTING_METHOD, Fix.FP8_KV_CACHE)
CASE = Case(
    workload=a_workload(TEMPLATE),
    policy=CompressionPolicy(fixes=ALL, replacement=MINE, gate=GATE),
    turned_off=TurnedOff("Theirs", Reason.BLOCKS_NOT_FREED, NOW - timedelta(hours=1)),
    method=None,
    answers=(),
    scores=(),
    failed=(),
    evaluation=EVALUATION,
    generation=3,
    now=NOW,
)
QUEST = Compressed("Quest", MethodClass.PAGE_SELECTION, "spec.compression")


def found_for(case: Case) -> Try | Evaluate | TurnOn | NoChange | None:
    return next_fix(case).move


def with_policy(case: Case = CASE, **changed: object) -> Case:
    return replace(case, policy=replace(case.policy, **changed))  # type: ignore[arg-type]


def tried(case: Case = CASE) -> str:
    """Return the hash of the pod template with the next fix that is to be tried."""
    found = found_for(case)
    assert isinstance(found, Try | Evaluate), found
    return found.tried


def answered(reclaim: Reclaim | None, case: Case = CASE) -> Case:
    answer = Answer(Question.RECLAMATION, tried(case), "on a trial pod", NOW, case.generation, reclaim)
    return replace(case, answers=(answer,))


def with_score(configuration: str, accuracy: float | None, case: Case) -> Case:
    score = None if accuracy is None else Score(accuracy, 400)
    one = EvaluationResult(configuration, EVALUATION, "CronJob/aime24", NOW, case.generation, score)
    return replace(case, scores=(*case.scores, one))


def waits(found: object, reason: Reason) -> str:
    assert isinstance(found, NoChange), found
    assert found.reason is reason
    return found.message


RECLAIMED = answered(Reclaim.RECLAIMS)
REFERRED = with_score(PRESENT, 0.80, RECLAIMED)
CHANGED = tried(REFERRED)


def test_blocks_are_asked_for_first_on_a_pod_with_the_change() -> None:
    found = found_for(CASE)

    assert isinstance(found, Try)
    assert (found.question, found.method, found.keep) == (Question.RECLAMATION, "Mine", Keep(2048))
    changed = found.change.apply(TEMPLATE)
    assert changed["spec"]["containers"][1]["env"] == [{"name": "MINE", "value": "1"}]  # type: ignore[index]
    assert found.tried == template_hash(changed) != PRESENT


def test_then_the_present_setting_is_scored_then_the_change_then_it_is_turned_on() -> None:
    reference = found_for(RECLAIMED)
    assert isinstance(reference, Evaluate)
    assert (reference.change, reference.tried, reference.budget) == (None, PRESENT, None)

    candidate = found_for(REFERRED)
    assert isinstance(candidate, Evaluate)
    assert (candidate.tried, candidate.budget, candidate.evaluation) == (tried(), 2048, EVALUATION)

    found = found_for(with_score(CHANGED, 0.79, REFERRED))
    assert isinstance(found, TurnOn)
    assert (found.fix, found.method, found.after) == (Fix.COMPACTING_METHOD, "Mine", "on (MINE=1)")
    assert template_hash(found.change.apply(TEMPLATE)) == CHANGED
    assert "a loss of 0.010" in found.message


def test_after_the_reference_it_is_said_how_many_samples_are_needed() -> None:
    asked, few = found_for(REFERRED), with_score(PRESENT, 0.80, RECLAIMED)
    assert isinstance(asked, Evaluate)
    assert "at 0.800 without it, a maxLoss of 0.05 needs about 437 samples (400 now)" in asked.message
    few = with_policy(few, gate=replace(GATE, max_loss=0.02))

    message = waits(found_for(few), Reason.ACCURACY_NOT_YET_KNOWN)

    assert "400 samples can never show a maxLoss of 0.02" in message
    assert "needs about 2729 samples (400 now)" in message


def test_too_few_samples_neither_fail_a_fix_nor_turn_it_on() -> None:
    found = next_fix(with_score(CHANGED, 0.76, REFERRED))

    assert found.failed == ()
    message = waits(found.move, Reason.ACCURACY_NOT_YET_KNOWN)
    assert "not yet known" in message
    assert "more" in message


def test_fewer_bits_need_no_trial_of_blocks_and_must_show_in_the_type() -> None:
    fp8 = with_policy(with_score(PRESENT, 0.8, CASE), fixes=(Fix.REVERT_BUNDLE, Fix.FP8_KV_CACHE))

    found = found_for(fp8)

    assert isinstance(found, Evaluate)
    assert (found.subject, found.budget) == ("fp8", None)
    assert "fp8".startswith(found.cache_types)


@pytest.mark.parametrize("reclaim", [Reclaim.IN_PART, Reclaim.SCATTERED, Reclaim.PER_HEAD, Reclaim.NONE])
def test_a_method_whose_blocks_do_not_come_back_makes_room_for_the_found_for(reclaim: Reclaim) -> None:
    found = found_for(answered(reclaim))

    assert isinstance(found, Evaluate)
    assert (found.subject, found.tried) == ("the present setting", PRESENT)


def test_an_engine_that_refuses_fewer_bits_leaves_nothing_to_wait_for_that_day() -> None:
    fp8 = with_policy(with_score(PRESENT, 0.8, CASE), fixes=(Fix.REVERT_BUNDLE, Fix.FP8_KV_CACHE))
    asked = found_for(fp8)
    assert isinstance(asked, Evaluate)
    no = EvaluationResult(asked.tried, "another", "fp8: the engine refuses it", NOW, 3, refused=True)
    refused = replace(fp8, scores=(*fp8.scores, no))

    assert "the engine refuses it" in waits(found_for(refused), Reason.FIXES_EXHAUSTED)
    assert [each.key for each in next_fix(refused).failed] == [Fix.FP8_KV_CACHE]
    assert isinstance(found_for(replace(refused, now=NOW + timedelta(days=1))), Evaluate)
    assert isinstance(found_for(replace(refused, generation=4)), Evaluate)


def test_an_engine_that_refuses_a_method_makes_room_for_the_next_fix_at_once() -> None:
    answer = Answer(Question.RECLAMATION, tried(), "the engine refuses it", NOW, 3, refused=True)

    found = next_fix(replace(CASE, answers=(answer,)))

    assert isinstance(found.move, Evaluate)
    assert found.move.subject == "the present setting"
    assert [(each.key, each.why) for each in found.failed] == [
        (Fix.COMPACTING_METHOD, "Mine: the engine refuses it")
    ]


def test_a_loss_of_accuracy_makes_room_for_the_found_for() -> None:
    found = found_for(with_score(CHANGED, 0.7, REFERRED))

    assert isinstance(found, Evaluate)
    assert found.subject == "fp8"


def test_nothing_left_says_why_of_each() -> None:
    only = with_policy(with_score(CHANGED, 0.7, REFERRED), fixes=ALL[:2])

    assert "a loss of 0.100" in waits(found_for(only), Reason.FIXES_EXHAUSTED)


def test_what_failed_stays_failed_on_another_template_until_the_spec_is_edited() -> None:
    lost = with_score(CHANGED, 0.7, REFERRED)
    failed = next_fix(lost).failed
    assert [(each.key, each.generation) for each in failed] == [(Fix.COMPACTING_METHOD, 3)]
    capped = a_workload(a_template(["vllm", "serve", "some/model", "--max-num-seqs=8"]))

    after = replace(CASE, workload=capped, failed=failed)

    found = next_fix(after)
    assert isinstance(found.move, Evaluate)
    assert found.failed == failed
    assert isinstance(found_for(replace(after, generation=4)), Try)


def test_caps_at_the_end_leave_the_rest_to_the_other_runbook() -> None:
    only = with_policy(with_score(CHANGED, 0.7, REFERRED), fixes=(*ALL[:2], Fix.DEMAND_CAPS))

    assert found_for(only) is None


@pytest.mark.parametrize(
    ("case", "reason", "named"),
    [
        (with_policy(RECLAIMED, gate=None), Reason.GATE_MISSING, "spec.compression.accuracyGate"),
        (
            replace(RECLAIMED, evaluation=Blocked(Reason.GATE_MISSING, "there is none")),
            Reason.GATE_MISSING,
            "there is none",
        ),
        (replace(RECLAIMED, evaluation=None), Reason.GATE_MISSING, "not looked at yet"),
        (answered(None), Reason.TRIAL_UNANSWERED, "tried again after"),
        (with_score(PRESENT, None, RECLAIMED), Reason.TRIAL_UNANSWERED, "tried again after"),
        (with_score(CHANGED, None, REFERRED), Reason.TRIAL_UNANSWERED, "tried again after"),
        (with_policy(replacement=None), Reason.METHOD_UNKNOWN, "spec.compression.replacement"),
        (with_policy(replacement=replace(MINE, settings=())), Reason.METHOD_UNKNOWN, "replacement.settings"),
        (with_policy(replacement=replace(MINE, keep_tokens=None)), Reason.METHOD_UNKNOWN, "keepTokens"),
        (
            with_policy(replacement=replace(MINE, settings=(Setting(flag="--mine", on="1", off=None),))),
            Reason.FLAG_UNKNOWN_TO_ENGINE,
            "cannot be turned on as a whole",
        ),
    ],
)
def test_what_is_not_known_waits_and_says_for_what(case: Case, reason: Reason, named: str) -> None:
    assert named in waits(found_for(case), reason)


def test_from_the_day_to_close_by_a_better_method_is_not_waited_for() -> None:
    waiting = with_policy(replacement=replace(MINE, keep_tokens=None), close_by=NOW)

    assert isinstance(found_for(with_policy(waiting, close_by=NOW + timedelta(seconds=1))), NoChange)
    found = found_for(waiting)
    assert isinstance(found, Evaluate)
    assert found.tried == PRESENT


def test_a_method_that_proved_itself_is_turned_on_after_that_day_too() -> None:
    proved = with_policy(with_score(CHANGED, 0.79, REFERRED), close_by=NOW - timedelta(days=1))

    assert isinstance(found_for(proved), TurnOn)


def test_what_showed_nothing_is_tried_again_after_a_day_or_under_another_spec() -> None:
    nothing = with_score(CHANGED, None, REFERRED)

    for again in (replace(nothing, now=NOW + AGAIN), replace(nothing, generation=4)):
        found = found_for(again)
        assert isinstance(found, Evaluate)
        assert found.tried == CHANGED


def test_scores_of_another_evaluation_compare_with_nothing() -> None:
    edited = replace(with_score(CHANGED, 0.79, REFERRED), evaluation="f2f2")

    found = found_for(edited)

    assert isinstance(found, Evaluate)
    assert (found.tried, found.evaluation) == (PRESENT, "f2f2")


def test_a_score_of_the_spec_counts_for_the_template_that_it_is_of() -> None:
    known = with_policy(RECLAIMED, gate=replace(GATE, reference=Reference(0.80, PRESENT)))
    stale = with_policy(RECLAIMED, gate=replace(GATE, reference=Reference(0.80, "0123")))

    assert tried(known) == CHANGED
    assert isinstance(found_for(with_score(CHANGED, 0.79, known)), TurnOn)
    assert isinstance(found_for(with_score(CHANGED, 0.70, known)), Evaluate)
    measured = found_for(stale)
    assert isinstance(measured, Evaluate)
    assert measured.tried == PRESENT
    assert f"is of 0123, and this is {PRESENT}" in measured.message


def test_what_had_to_be_turned_off_again_on_this_template_is_not_turned_on_once_more() -> None:
    proved = with_score(CHANGED, 0.79, REFERRED)
    failed = a_failure(Attempt.SWITCH_METHOD, "Mine", PRESENT)

    found = found_for(replace(proved, failed=(failed,)))

    assert isinstance(found, Evaluate)
    assert found.subject == "fp8"
    assert isinstance(found_for(replace(proved, failed=(replace(failed, template="0123"),))), TurnOn)


def test_after_the_first_wall_no_method_that_needs_attention_scores_is_turned_on() -> None:
    named = Replacement("KV-Compress", keep_tokens=2048, settings=MINE.settings)
    walled = replace(with_policy(replacement=named), turned_off=TurnedOff("H2O", Reason.EAGER_FALLBACK, NOW))

    assert isinstance(found_for(with_policy(replacement=named)), Try)
    found = found_for(walled)
    assert isinstance(found, Evaluate)


def test_a_known_method_that_gives_no_blocks_back_is_none() -> None:
    quest = with_policy(
        replacement=Replacement("Quest", keep_tokens=1, settings=MINE.settings), fixes=ALL[:2]
    )

    assert "Quest gives no blocks back" in waits(found_for(quest), Reason.FIXES_EXHAUSTED)


STATISTICS = Setting(env="TRIATTN_RUNTIME_SPARSE_STATS_PATH", on="/models/stats.pt", off=None)


@pytest.mark.parametrize("older", [False, True])
def test_a_known_method_without_what_only_its_installation_can_say_waits_and_says_what(older: bool) -> None:
    case = with_policy(replacement=Replacement("triattention"))
    template = a_template(["vllm", "serve", "some/model"])
    name = "TRIATTENTION_STATS_PATH" if older else "TRIATTN_RUNTIME_SPARSE_STATS_PATH"
    template["spec"]["containers"][1]["env"] = [{"name": name, "value": "/models/stats.pt"}]  # type: ignore[index]

    message = waits(found_for(case), Reason.METHOD_UNKNOWN)

    assert "{env: TRIATTN_RUNTIME_SPARSE_STATS_PATH, after: VALUE}" in message
    assert isinstance(found_for(replace(case, workload=a_workload(template))), Try)


def test_a_known_method_brings_its_own_settings_in_their_order() -> None:
    known = with_policy(replacement=Replacement("triattention", settings=(STATISTICS,)))

    found = found_for(known)

    assert isinstance(found, Try)
    assert found.method == "TriAttention"
    container = found.change.apply(TEMPLATE)["spec"]["containers"][1]  # type: ignore[index]
    assert "--no-enable-prefix-caching" in container["args"]
    assert container["env"][0] == {"name": STATISTICS.env, "value": STATISTICS.on}
    assert container["env"][-1] == {"name": "ENABLE_TRIATTENTION", "value": "1"}


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (CASE, list(ALL[1:])),
        (replace(CASE, turned_off=None), []),
        (replace(CASE, method=QUEST), [Fix.FP8_KV_CACHE]),
        (replace(CASE, turned_off=None, method=QUEST), [Fix.FP8_KV_CACHE]),
        (with_policy(replace(CASE, turned_off=None), method="fp8"), [Fix.FP8_KV_CACHE]),
        (with_policy(replace(CASE, turned_off=None), method="fp8", fixes=ALL[:2]), []),
        (with_policy(fixes=ALL[:1]), []),
        (replace(CASE, method=replace(QUEST, method_class=MethodClass.COMPACTING_EVICTION)), []),
    ],
)
def test_a_fix_is_asked_for_by_what_was_turned_off_or_by_what_can_save_nothing(
    case: Case, expected: list[Fix]
) -> None:
    assert fixes_behind_gate(case.policy, case.turned_off, case.method) == expected
