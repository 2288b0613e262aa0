"""What is done about KV compression, and why nothing is."""

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.engines.engine_log import Started
from kvmedic.model.compression import Keep
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import CompressionPolicy, ProbePolicy
from kvmedic.model.trial import Growth, Question, Reclaim
from kvmedic.runbooks.branches import NoChange, Setting, Try, TurnOff
from kvmedic.runbooks.compression.branches import (
    blocks_not_freed,
    message_without,
    replace_stale,
    report_unexplained,
)
from kvmedic.runbooks.compression.methods import DECLARED
from kvmedic.runbooks.compression.savings import Brought, Worth
from kvmedic.runbooks.compression.trial_plans import (
    LONGEST_PROMPT,
    PROMPT_ROOM,
    probe_first,
    probe_prompts,
    turn_off,
)
from worlds.compression_incidents import (
    CALM_FLEET,
    EVICTS,
    FELL_BACK,
    FEWER_BITS,
    ONE_STALE,
    THRASH,
    answered,
    began,
    compressed,
    grew,
    unfused,
)

KNOWN = Setting(None, ())
SQUARE = replace(FELL_BACK, grown=grew(Growth.SQUARE))
SCATTERED = replace(EVICTS, answer=answered(Reclaim.SCATTERED))


def asked(method=EVICTS):
    return probe_first(compressed(THRASH, method), KNOWN)


def turned_off(method=SCATTERED):
    return turn_off(compressed(THRASH, method), KNOWN)


def test_a_trial_generates_what_the_spec_says_or_four_budgets():
    short, long = asked(), asked(replace(EVICTS, keep=Keep(8192)))

    assert isinstance(short, Try)
    assert isinstance(long, Try)
    assert (short.tokens, long.tokens) == (16_384, 4 * 8192)
    assert (short.keep, short.limit) == (Keep(2048), timedelta(minutes=30))


def test_the_spec_sets_a_trials_length_and_limit():
    policy = CompressionPolicy(probe=ProbePolicy(20_000, timedelta(minutes=5)))

    found = asked(replace(EVICTS, policy=policy, keep=Keep(share=0.1)))

    assert isinstance(found, Try)
    assert (found.tokens, found.limit) == (20_000, timedelta(minutes=5))


@pytest.mark.parametrize(
    ("longest", "fits"), [(16_384 + PROMPT_ROOM, True), (16_384 + PROMPT_ROOM - 1, False), (None, True)]
)
def test_a_trial_needs_an_engine_that_takes_a_request_of_that_length(longest, fits):
    found = asked(replace(EVICTS, longest_request=longest))

    assert isinstance(found, Try) is fits
    assert fits or (isinstance(found, NoChange) and found.reason is Reason.TRIAL_IMPOSSIBLE)


def test_a_trial_cannot_be_judged_without_knowing_what_is_kept():
    found = asked(replace(EVICTS, keep=None))

    assert isinstance(found, NoChange)
    assert found.reason is Reason.METHOD_UNKNOWN
    assert "spec.compression.keepTokens" in found.message


@pytest.mark.parametrize(
    ("longest", "tokens"), [(None, LONGEST_PROMPT), (131_072, LONGEST_PROMPT), (4096, 4095), (2048, None)]
)
def test_prompts_are_as_long_as_the_engine_takes_and_no_longer_than_shows_more(longest, tokens):
    found = probe_prompts(compressed(CALM_FLEET, replace(EVICTS, keep=None, longest_request=longest)), KNOWN)

    if tokens is None:
        assert isinstance(found, NoChange)
        assert found.reason is Reason.TRIAL_IMPOSSIBLE
        return
    assert isinstance(found, Try)
    assert (found.question, found.tokens, found.limit) == (Question.PROMPTS, tokens, timedelta(minutes=30))


def test_prompts_that_showed_a_square_are_tried_with_the_method_off():
    first = probe_prompts(compressed(CALM_FLEET, replace(FELL_BACK, longest_request=4096)), KNOWN)
    second = probe_prompts(compressed(CALM_FLEET, replace(SQUARE, longest_request=4096)), KNOWN)

    assert isinstance(first, Try)
    assert isinstance(second, Try)
    assert (first.off, second.off) == ((), EVICTS.settings)
    assert (second.question, second.tokens) == (first.question, first.tokens) == (Question.PROMPTS, 4095)
    assert second.reason is Reason.TRIAL_RUNNING


def test_of_fewer_bits_a_start_without_them_is_tried():
    found = asked(
        replace(FEWER_BITS, policy=CompressionPolicy(probe=ProbePolicy(20_000, timedelta(minutes=5))))
    )

    assert isinstance(found, Try)
    assert (found.question, found.off) == (Question.START, FEWER_BITS.settings)
    assert (found.limit, found.reason) == (timedelta(minutes=5), Reason.TRIAL_RUNNING)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (began(4096), "; on a trial pod without fp8 there are 4096 blocks; whether attention fell back"),
        (
            unfused(FELL_BACK, Growth.SQUARE),
            "without TriAttention it is not either, so that turning it off would not help",
        ),
    ],
)
def test_what_a_comparison_leaves_open_is_for_a_person(method, says):
    found = report_unexplained(method, Brought(Worth.COSTS_TIME, "tokens per second 5 -> 4"))

    assert found.reason is Reason.BASELINE_MISSING
    assert says in found.message


def test_a_start_that_showed_nothing_is_tried_again_after_a_day():
    found = report_unexplained(began(None), Brought(Worth.NOTHING, ""))

    assert found.reason is Reason.TRIAL_UNANSWERED
    assert "tried again after" in found.message


def test_the_attention_backend_of_before_is_shown():
    policy = CompressionPolicy(attention_backend="FLASH_ATTN")

    assert message_without(replace(EVICTS, policy=policy)) == (
        "attention without TriAttention by FLASH_ATTN (spec.compression.baseline.attentionBackend)"
    )
    assert message_without(EVICTS) == ""


def test_a_method_that_made_attention_fall_back_goes_for_that():
    found = turned_off(SQUARE)

    assert isinstance(found, TurnOff)
    assert found.message.startswith("TriAttention goes: on a trial pod prompts of")


@pytest.mark.parametrize(
    ("is_confirmed", "says"),
    [(True, "the engine itself says that it is on"), (False, "or nothing is evicted at all")],
)
def test_where_no_block_comes_back_an_engines_own_word_says_whether_it_evicts(is_confirmed, says):
    method = replace(EVICTS, answer=answered(Reclaim.NONE), is_confirmed=is_confirmed)

    [finding] = blocks_not_freed(compressed(THRASH, method))

    assert says in finding.text


def test_few_blocks_that_come_back_are_proof_enough():
    [finding] = blocks_not_freed(compressed(THRASH, SCATTERED))

    assert finding.text.endswith(SCATTERED.answer.message)


def test_a_method_goes_with_all_that_turned_it_on():
    found = turned_off()

    assert isinstance(found, TurnOff)
    assert found.settings == EVICTS.settings
    assert found.message.startswith("TriAttention goes: on a trial pod")


@pytest.mark.parametrize(
    ("method", "reason", "says"),
    [
        (replace(SCATTERED, policy=CompressionPolicy(fixes=())), Reason.FIXES_EXHAUSTED, "allowedFixes"),
        (replace(SCATTERED, settings=()), Reason.METHOD_UNKNOWN, "spec.compression.settings"),
    ],
)
def test_a_method_stays_where(method, reason, says):
    found = turned_off(method)

    assert isinstance(found, NoChange)
    assert found.reason is reason
    assert says in found.message


def test_a_replica_that_is_older_than_its_file_is_replaced():
    found = replace_stale(compressed(ONE_STALE, replace(FEWER_BITS, type_is_in_file=True)), KNOWN)

    assert getattr(found, "pod", None) == "llm-2"


def test_a_type_on_a_replicas_own_command_line_that_it_ignores_is_for_a_person():
    found = replace_stale(compressed(ONE_STALE, FEWER_BITS), KNOWN)

    assert isinstance(found, NoChange)
    assert found.reason is Reason.COMPRESSION_NOT_APPLIED
    assert "a wrapper" in found.message


def test_a_declared_type_that_nothing_asks_for_is_for_a_person():
    declared = replace(FEWER_BITS, asks_for_type="", known_by=DECLARED)
    evidence = replace(compressed(CALM_FLEET, declared), started={"llm-0": Started(is_whole=True)})

    found = replace_stale(evidence, KNOWN)

    assert isinstance(found, NoChange)
    assert found.reason is Reason.COMPRESSION_NOT_APPLIED
    assert "correct spec.compression" in found.message


def test_where_a_new_replica_did_not_help_none_is_replaced_again():
    method = replace(FEWER_BITS, type_is_in_file=True)

    found = replace_stale(compressed(ONE_STALE, method), replace(KNOWN, replacing_failed=True))

    assert isinstance(found, NoChange)
    assert "is ignored by llm-2 and would be by a new replica" in found.message


def test_a_pool_that_is_no_larger_is_for_a_person():
    found = replace_stale(compressed(CALM_FLEET, None), KNOWN)

    assert isinstance(found, NoChange)
    assert "scales for each head" in found.message
