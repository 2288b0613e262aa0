"""The moves of an evaluation: pod, Job, score; and all that is no score."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from builders import NOW
from kvmedic.model.fleet import Pod
from kvmedic.model.plan import EvaluationStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import StepState
from kvmedic.model.trial import Counted, EvaluationResult, JobEnd, JobSight, Score, Served
from kvmedic.rollout.moves import Failed, Wait
from kvmedic.rollout.trial import (
    Evaluated,
    EvaluationMove,
    EvaluationSight,
    LastWords,
    MakeJob,
    MakeTrial,
    evaluation_move,
)
from run_builder import a_run
from worlds.steps import CHANGE, LIMITS, POD, STARTING, an_end
from worlds.steps import GATE as STEP

BEFORE = Counted(1, 34.0)
SERVED = Served("http://10.0.0.9:8000", "chat", "auto", BEFORE)
DONE = replace(SERVED, counted=Counted(201, 34.0 + 200 * 3000))
UNDERWAY = JobSight(None, "", BEFORE)
ENDED = JobSight(JobEnd.SUCCEEDED, '{"score": 0.8, "samples": 200}', BEFORE)


def moved(
    pod: Pod | None = POD,
    served: Served | str | None = SERVED,
    job: JobSight | None = None,
    step: EvaluationStep = STEP,
    began: timedelta = timedelta(minutes=3),
) -> EvaluationMove:
    run = replace(a_run(StepState.PENDING), started_at=NOW - began)
    return evaluation_move(EvaluationSight(pod, served, job), step, run, LIMITS, NOW)


def ended(words: LastWords, step: EvaluationStep = STEP, reason: str = "Error") -> EvaluationResult:
    """Return what is put on record of a trial pod that ended by itself."""
    pod = replace(STARTING, last_end=an_end(reason))
    move = evaluation_move(
        EvaluationSight(pod, None, None, words), step, a_run(StepState.PENDING), LIMITS, NOW
    )
    assert isinstance(move, Evaluated), move
    return move.result


def unscored(move: EvaluationMove) -> str:
    assert isinstance(move, Evaluated), move
    assert move.result.score is None
    return move.result.message


def test_first_the_pod_then_the_job() -> None:
    assert moved(None, None) == MakeTrial()
    assert isinstance(moved(STARTING, None), Wait)
    assert moved() == MakeJob(SERVED, STEP)


def test_a_pod_that_cannot_be_read_yet_gets_no_job() -> None:
    assert isinstance(moved(served="the engine's metrics cannot be read"), Wait)


def test_the_message_of_a_job_under_way_changes_seldom() -> None:
    waits = {
        moved(served=replace(SERVED, counted=Counted(1 + done, 0.0)), job=UNDERWAY) for done in range(1, 100)
    }

    assert all(isinstance(each, Wait) for each in waits)
    assert len(waits) == 18


def test_a_score_stands_beside_the_configuration_that_it_is_of() -> None:
    move = moved(served=DONE, job=ENDED)

    assert isinstance(move, Evaluated)
    assert (move.result.configuration, move.result.evaluation) == ("4567", "e1e1")
    assert move.result.score == Score(0.8, 200)
    assert "0.800 over 200 samples" in move.result.message


@pytest.mark.parametrize(
    ("served", "job", "named"),
    [
        (DONE, replace(ENDED, end=JobEnd.FAILED), "the evaluation failed"),
        (DONE, replace(ENDED, end=JobEnd.LATE), "was not done in time"),
        (DONE, replace(ENDED, message="oops"), "left no score"),
        (SERVED, ENDED, "finished 0 requests"),
        (replace(DONE, counted=Counted(202, 1e9)), ENDED, "finished 201 requests"),
        (replace(DONE, counted=Counted(201, 34.0 + 200 * 100)), ENDED, "too short (mean of 100 tokens)"),
        (replace(DONE, counted=Counted(201, float("nan"))), ENDED, "too short"),
        (DONE, replace(ENDED, before=Counted(0, 0.0)), "finished 201 requests"),
    ],
)
def test_what_is_no_score_is_on_record_as_none(served: Served, job: JobSight, named: str) -> None:
    assert named in unscored(moved(served=served, job=job))


def test_a_setting_that_keeps_all_is_scored_by_requests_of_any_length() -> None:
    short = replace(DONE, counted=Counted(201, 34.0 + 200 * 10))

    move = moved(served=short, job=ENDED, step=replace(STEP, budget=None))

    assert isinstance(move, Evaluated)
    assert move.result.score is not None


def test_time_that_is_over_is_an_evaluation_that_showed_nothing() -> None:
    assert "not done in time" in unscored(moved(job=UNDERWAY, began=timedelta(hours=3)))


@pytest.mark.parametrize("stored", ["auto", ""])
def test_a_pod_that_does_not_store_as_was_asked_ends_the_run(stored: str) -> None:
    fp8 = replace(STEP, subject="fp8", cache_types=("fp8",))

    move = moved(served=replace(SERVED, cache_type=stored), step=fp8)

    assert isinstance(move, Failed)
    assert move.reason is Reason.TRIAL_UNANSWERED
    assert moved(served=replace(SERVED, cache_type="fp8_e4m3"), step=fp8) == MakeJob(
        replace(SERVED, cache_type="fp8_e4m3"), fp8
    )


def test_a_pod_that_went_ends_the_run() -> None:
    assert isinstance(moved(replace(POD, terminating=True), None, UNDERWAY), Failed)


PHRASE = "FlashAttention does not support fp8 kv-cache on this device"
EIGHT = replace(STEP, subject="fp8", change=CHANGE)


def test_an_engine_that_refuses_a_change_is_on_record_with_its_phrase() -> None:
    result = ended(LastWords(PHRASE), EIGHT)

    assert result.message == f"fp8: the engine refuses it on this hardware: {PHRASE}"
    assert (result.configuration, result.evaluation) == (EIGHT.tried, EIGHT.evaluation)
    assert result.refused
    assert result.is_conclusive
    assert result.score is None


@pytest.mark.parametrize(
    ("words", "step", "reason", "message"),
    [
        (LastWords(), EIGHT, "OOMKilled", "fp8: the trial pod ended by itself (exit code 1, OOMKilled)"),
        (LastWords(), EIGHT, "", "fp8: the trial pod ended by itself (exit code 1, no reason given)"),
        (LastWords(PHRASE), STEP, "Error", "Mine: the trial pod ended by itself (exit code 1, Error)"),
        (
            LastWords(trouble="403 Forbidden"),
            EIGHT,
            "Error",
            "fp8: the trial pod ended by itself (exit code 1, Error); its log cannot be read: 403 Forbidden",
        ),
    ],
    ids=["out of memory", "no reason", "the present setting", "no log"],
)
def test_any_other_end_by_itself_is_an_evaluation_that_showed_nothing(
    words: LastWords, step: EvaluationStep, reason: str, message: str
) -> None:
    result = ended(words, step, reason)

    assert result.message == message
    assert not result.is_conclusive


def test_a_pod_that_ends_because_somebody_deletes_it_is_not_on_record() -> None:
    assert isinstance(moved(replace(STARTING, last_end=an_end(), terminating=True), None), Failed)
