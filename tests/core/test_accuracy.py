"""What passes the accuracy gate, and all that does not."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.core.accuracy import (
    Evaluation,
    Gated,
    JobEnd,
    NotPassed,
    Passed,
    Score,
    compare_scores,
    score_of,
)

BUDGET = 2048
REFERENCE, MAX_LOSS = Score(0.80, 1000), 0.05
GOOD = Evaluation(JobEnd.SUCCEEDED, '{"score": 0.79, "samples": 1000}', 1000, 9000.0)


def judged(seen: Evaluation, budget: int | None = BUDGET) -> Gated:
    score = score_of(seen, budget)
    return score if isinstance(score, NotPassed) else compare_scores(REFERENCE, score, MAX_LOSS)


def refused(found: Gated) -> str:
    assert isinstance(found, NotPassed), found
    return found.why


def test_a_small_loss_that_is_well_known_passes_with_its_error() -> None:
    found = judged(GOOD)

    assert isinstance(found, Passed)
    assert found.loss == pytest.approx(0.01)
    assert found.error == pytest.approx(sqrt((0.79 * 0.21 + 0.8 * 0.2) / 1000), rel=0.005)
    assert "over 1000 samples" in found.message


def test_a_better_score_than_before_passes() -> None:
    assert isinstance(judged(replace(GOOD, message='{"score": 1, "samples": 1000}')), Passed)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"end": JobEnd.FAILED}, "the evaluation failed"),
        ({"end": JobEnd.LATE}, "was not done in time"),
        ({"message": ""}, "left no score"),
        ({"message": "0.79"}, "no number from 0 to 1"),
        ({"message": "[0.79, 1000]"}, "no number from 0 to 1"),
        ({"message": '{"score": NaN, "samples": 1000}'}, "no number from 0 to 1"),
        ({"message": '{"score": Infinity, "samples": 1000}'}, "no number from 0 to 1"),
        ({"message": '{"score": 79, "samples": 1000}'}, "no number from 0 to 1"),
        ({"message": '{"score": "0.79", "samples": 1000}'}, "no number from 0 to 1"),
        ({"message": '{"score": true, "samples": 1000}'}, "no number from 0 to 1"),
        ({"message": '{"score": 1' + 400 * "0" + ', "samples": 1000}'}, "no number from 0 to 1"),
        ({"message": 4096 * "["}, "left no score"),
        ({"message": '{"samples": 1000}'}, "no number from 0 to 1"),
        ({"message": '{"score": 0.79}'}, "number of samples"),
        ({"message": '{"score": 0.79, "samples": 0}'}, "number of samples"),
        ({"message": '{"score": 0.79, "samples": 10.5}'}, "number of samples"),
        ({"message": '{"score": 0.70, "samples": 1000}'}, "a loss of 0.100"),
        ({"message": '{"score": 0.76, "samples": 1000}'}, "a loss of 0.040 give or take 0.019"),
        ({"message": '{"score": 0.79, "samples": 50}', "requests": 50}, "give or take 0.059"),
        ({"requests": None}, "could not be read"),
        ({"requests": 0}, "the trial pod finished 0 requests"),
        ({"requests": 1001}, "the trial pod finished 1001 requests"),
        ({"mean_tokens": 2048.0}, "too short (mean of 2048 tokens)"),
        ({"mean_tokens": float("nan")}, "too short"),
        ({"mean_tokens": None}, "mean of unknown tokens"),
    ],
)
def test_what_is_lost_or_not_known_does_not_pass(changed: dict[str, object], named: str) -> None:
    assert named in refused(judged(replace(GOOD, **changed)))  # type: ignore[arg-type]


def test_a_method_that_keeps_every_token_has_no_budget_to_go_beyond() -> None:
    found = judged(replace(GOOD, mean_tokens=100.0), None)

    assert isinstance(found, Passed)


@given(message=st.text(max_size=60) | st.floats().map(lambda value: f'{{"score": {value}, "samples": 1000}}'))
def test_no_message_passes_by_accident(message: str) -> None:
    found = judged(replace(GOOD, message=message))

    assert isinstance(found, NotPassed) or found.loss < MAX_LOSS


@pytest.mark.parametrize("samples", [1, 2, 5, 20])
def test_a_few_answers_that_are_all_right_are_no_proof(samples: int) -> None:
    found = compare_scores(Score(1.0, 1000), Score(1.0, samples), MAX_LOSS - 0.01)

    assert isinstance(found, NotPassed)
