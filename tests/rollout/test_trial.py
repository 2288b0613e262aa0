"""The moves of a trial: made, begun, waited for, answered, given up."""

import re
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from builders import NOW
from kvmedic.model.compression import Compacted, Pattern, Scattered, used_blocks
from kvmedic.model.devices import ContainerEnd, Instance
from kvmedic.model.fleet import Pod
from kvmedic.model.plan import TrialStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import StepState
from kvmedic.model.trial import (
    Begun,
    Growth,
    Interrupted,
    Progress,
    Prompt,
    Prompted,
    Question,
    Reclaim,
    Sample,
    Underway,
    Watched,
)
from kvmedic.rollout.moves import Failed, Wait
from kvmedic.rollout.trial import (
    Answered,
    BeginTest,
    LastWords,
    MakeTrial,
    TrialMove,
    TrialSight,
    thin_readings,
    trial_move,
)
from run_builder import a_run
from worlds.steps import CHANGE, KEEP, LIMITS, POD, STARTING, an_end
from worlds.steps import TRIAL as STEP

GIB = 1 << 30


def moved(
    pod: Pod | None, progress: Progress | None = None, began: timedelta = timedelta(minutes=3)
) -> TrialMove:
    run = replace(a_run(StepState.PENDING), started_at=NOW - began)
    return trial_move(TrialSight(pod, progress), STEP, run, LIMITS, NOW)


def watched(pattern: Pattern | None, tokens: int = 16_384) -> Watched:
    counts = range(256, tokens + 1, 128)
    return Watched(
        tuple(Sample(c, used_blocks(c, 16, KEEP, pattern) if pattern else c / 16) for c in counts),
        tokens,
        16,
        4000,
    )


def reason_of(move: TrialMove) -> Reason:
    assert isinstance(move, Wait | Failed), move
    return move.reason


def test_a_trial_without_a_pod_makes_one():
    assert moved(None) == MakeTrial()


def test_a_pod_that_starts_is_waited_for():
    assert reason_of(moved(STARTING)) is Reason.AWAITING_REPLICA
    assert reason_of(moved(replace(STARTING, unschedulable=True))) is Reason.AWAITING_REPLICA


@pytest.mark.parametrize(
    "pod",
    [
        replace(STARTING, created_at=NOW - timedelta(minutes=11)),
        replace(STARTING, waiting_reason="InvalidImageName"),
        replace(POD, terminating=True),
        replace(STARTING, last_end=ContainerEnd("vllm", 1, "Error", POD.created_at, NOW, Instance.PRESENT)),
    ],
    ids=["too slow", "no image", "somebody deletes it", "its engine ended"],
)
def test_a_pod_that_does_not_come_up_is_given_up(pod):
    move = moved(pod)

    assert isinstance(move, Failed)
    assert move.reason is Reason.TRIAL_UNANSWERED
    assert move.message


def test_a_pod_that_no_node_takes_is_reported_as_such():
    late = replace(STARTING, unschedulable=True, created_at=NOW - timedelta(minutes=6))

    assert reason_of(moved(late)) is Reason.SPARE_UNSCHEDULABLE


def test_a_test_begins_on_a_pod_that_is_ready_and_goes_on():
    assert moved(POD) == BeginTest(POD, STEP)
    assert moved(POD, Underway(8192, 16_384)) == Wait(
        Reason.TRIAL_RUNNING, "llm-trial-1 generates: 50 % of 16384 tokens"
    )


def test_a_test_that_has_just_begun_is_reported_as_such():
    assert moved(POD, Underway(100, 16_384)) == Wait(
        Reason.TRIAL_RUNNING, "llm-trial-1 generates: 0 % of 16384 tokens"
    )


def test_a_test_that_is_over_time_is_given_up_whatever_it_does():
    for pod, progress in ((None, None), (STARTING, None), (POD, Underway(5, 16_384))):
        move = moved(pod, progress, began=timedelta(seconds=1801))

        assert reason_of(move) is Reason.TRIAL_UNANSWERED
    assert moved(POD, Underway(5, 16_384), began=timedelta(seconds=1800)) != move


def test_an_engine_that_breaks_off_ends_it():
    move = moved(POD, Interrupted("the engine answered 400"))

    assert isinstance(move, Failed)
    assert "answered 400" in move.message


@pytest.mark.parametrize(
    ("pattern", "reclaim"),
    [(Compacted(), Reclaim.RECLAIMS), (Scattered(), Reclaim.SCATTERED), (None, Reclaim.NONE)],
)
def test_what_was_seen_is_reported_with_its_numbers(pattern, reclaim):
    move = moved(POD, watched(pattern))

    assert isinstance(move, Answered)
    assert move.answer.reclaim is reclaim
    assert move.answer.template == STEP.template
    assert "16384 tokens" in move.answer.message


SCORES = tuple(Prompt(count, 40.0 * GIB + 64 * count**2) for count in (2048, 4096, 8192, 16_384))
SQUARE = Prompted(40.0 * GIB, SCORES, in_chunks=False)
"""Attention that holds its scores."""


def prompted(progress: Progress, pod: Pod = POD) -> TrialMove:
    step = replace(STEP, question=Question.PROMPTS, reason=Reason.TRIAL_RUNNING)
    run = replace(a_run(StepState.PENDING), started_at=NOW)
    return trial_move(TrialSight(pod, progress), step, run, LIMITS, NOW)


def level(seen: Prompted, per_token: float) -> Prompted:
    """Return the same prompts with memory that grows in proportion."""
    prompts = (Prompt(each.tokens, seen.before + per_token * each.tokens) for each in seen.prompts)
    return replace(seen, prompts=tuple(prompts))


@pytest.mark.parametrize(
    ("seen", "growth", "says"),
    [
        (SQUARE, Growth.SQUARE, "took 16384 MiB more of device memory, which grows with the power 2.00"),
        (
            level(SQUARE, 65_536),
            Growth.LINEAR,
            "which grows with the power 1.00",
        ),
        (level(SQUARE, 0), Growth.NONE, "left device memory as it was (0 MiB more)"),
        (replace(SQUARE, in_chunks=True), None, "showed nothing: prompts are computed in chunks"),
        (
            replace(SQUARE, prompts=SCORES[:2]),
            None,
            "showed nothing: 2 prompts were sent, 3 are needed",
        ),
    ],
)
def test_what_prompts_showed_is_reported_with_its_numbers(seen, growth, says):
    move = prompted(seen)

    assert isinstance(move, Answered)
    assert (move.answer.question, move.answer.growth, move.answer.reclaim) == (Question.PROMPTS, growth, None)
    assert (move.answer.template, move.answer.prompts) == (STEP.template, seen.prompts)
    assert move.answer.memory_before == seen.before
    assert move.answer.is_conclusive is (growth is not None)
    assert says in move.answer.message
    assert move.answer.message.startswith("on a trial pod prompts of 2048, 4096")


OFF = replace(STEP, change=CHANGE, tried="4567", without=True)
"""The same trial pod with the method off."""


def compared(progress: Progress | None, step: TrialStep, pod: Pod | None = POD) -> TrialMove:
    run = replace(a_run(StepState.PENDING), started_at=NOW)
    return trial_move(TrialSight(pod, progress), step, run, LIMITS, NOW)


def test_a_start_shows_blocks_type_and_what_computes_attention():
    step = replace(OFF, question=Question.START, tokens=1)

    move = compared(Begun(299, "bfloat16", ("FLASH_ATTN",)), step)

    assert isinstance(move, Answered)
    answer = move.answer
    assert (answer.template, answer.beside) == ("4567", STEP.template)
    assert (answer.blocks, answer.cache_type, answer.backends) == (299, "bfloat16", ("FLASH_ATTN",))
    assert answer.is_conclusive
    assert answer.message == (
        "on a trial pod without Mine there are 299 blocks, stored as bfloat16; attention by FLASH_ATTN"
    )
    assert step.line() == "Deployment/llm: a trial pod starts without Mine"


def test_a_start_that_goes_on_is_reported_as_such():
    step = replace(OFF, question=Question.START, tokens=1)

    assert compared(Underway(0, 1), step) == Wait(
        STEP.reason, "llm-trial-1 started; its log and its metrics are read"
    )


def test_prompts_with_the_method_off_are_the_other_half():
    step = replace(OFF, question=Question.PROMPTS)

    move = compared(replace(level(SQUARE, 0), backends=("FLASH_ATTN",)), step)

    assert isinstance(move, Answered)
    assert (move.answer.template, move.answer.beside) == ("4567", STEP.template)
    assert move.answer.growth is Growth.NONE
    assert move.answer.message.startswith("on a trial pod without Mine prompts of 2048, 4096")
    assert move.answer.message.endswith("; attention by FLASH_ATTN")


@pytest.mark.parametrize(
    ("progress", "pod", "says"),
    [
        (Interrupted("the engine answered 400"), POD, "llm-trial-1: the engine answered 400"),
        (None, replace(POD, terminating=True), "ended by itself, or someone deleted it"),
        (None, replace(STARTING, unschedulable=True, created_at=NOW - timedelta(hours=1)), "no node took"),
    ],
)
def test_the_other_half_that_fails_is_on_record_and_holds_nothing_up(progress, pod, says):
    step = replace(OFF, question=Question.PROMPTS)

    half, first = compared(progress, step, pod), compared(progress, replace(step, without=False), pod)

    assert isinstance(half, Answered)
    assert says in half.answer.message
    assert (half.answer.beside, half.answer.is_conclusive) == (STEP.template, False)
    assert isinstance(first, Failed)


def test_the_end_of_a_pod_that_computed_prompts_is_recorded_of_the_targets_template():
    step = replace(STEP, question=Question.PROMPTS, change=CHANGE, tried="4567")

    move = compared(None, step, replace(STARTING, last_end=an_end()))

    assert isinstance(move, Answered)
    assert (move.answer.template, move.answer.beside) == (STEP.template, "")


def test_prompts_that_go_on_are_reported_as_such():
    assert prompted(Underway(2048, 30_720)) == Wait(
        Reason.TRIAL_RUNNING, "llm-trial-1 computes prompts: 0 % of 30720 tokens"
    )


def test_a_test_that_came_to_its_end_counts_though_its_engine_ended():
    ended = replace(POD, terminating=True, ready_at=None)

    assert isinstance(prompted(SQUARE, ended), Answered)
    assert isinstance(prompted(Underway(2048, 30_720), ended), Failed)


def test_blocks_that_come_back_in_part_are_reported_with_ratio_and_budget():
    run = watched(Compacted())
    anew = tuple(Sample(each.tokens, min(each.tokens / 16, 3.4 * each.used)) for each in run.samples)

    move = moved(POD, replace(run, samples=anew))

    assert isinstance(move, Answered)
    assert move.answer.reclaim is Reclaim.IN_PART
    assert re.search(r"uses 3\.\d times \(\d\.\d\d to \d\.\d\d\) the blocks that", move.answer.message)
    assert "spec.compression.keepTokens" in move.answer.message
    assert "confidence 1.00" not in move.answer.message


def test_a_models_own_window_is_named_in_the_answer():
    move = moved(POD, replace(watched(Compacted()), window="sliding_window is 4096"))

    assert isinstance(move, Answered)
    assert move.answer.reclaim is None
    assert "showed nothing: sliding_window is 4096" in move.answer.message


def test_what_shows_nothing_is_an_answer_without_a_class():
    move = moved(POD, watched(Scattered(), tokens=8192))

    assert isinstance(move, Answered)
    assert move.answer.reclaim is None
    assert "showed nothing" in move.answer.message
    assert isinstance(move.answer.at, datetime)


@pytest.mark.parametrize(("count", "kept"), [(0, 0), (1, 1), (24, 24), (25, 13), (120, 24)])
def test_some_readings_stay_on_record_over_the_whole_course(count, kept):
    samples = tuple(Sample(at, float(at)) for at in range(count))

    found = thin_readings(samples)

    assert len(found) == kept
    assert found == tuple(sorted(found, key=lambda sample: sample.tokens))
    assert found[-1:] == samples[-1:]


@pytest.mark.parametrize(
    ("words", "message", "refused"),
    [
        (LastWords(), "the trial pod ended by itself (exit code 1, Error)", False),
        (LastWords("no such type"), "the engine refuses it on this hardware: no such type", True),
    ],
)
def test_an_end_by_itself_under_a_change_is_on_record(words, message, refused):
    step = replace(STEP, change=CHANGE, tried="4567")
    pod = replace(STARTING, last_end=an_end())

    move = trial_move(TrialSight(pod, None, words), step, a_run(StepState.PENDING), LIMITS, NOW)

    assert isinstance(move, Answered)
    answer = move.answer
    assert (answer.template, answer.message, answer.refused) == ("4567", message, refused)
    assert not answer.is_conclusive
