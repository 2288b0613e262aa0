"""What passes the accuracy gate, and all that does not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.model.trial import JobEnd, Score
from kvmedic.runbooks.compression.accuracy import (
    MESSAGE_LENGTH,
    Evaluation,
    NotPassed,
    NotYetKnown,
    Passed,
    ScoreComparison,
    can_show,
    compare_scores,
    samples_needed,
    score_of,
)

BUDGET = 2048
REFERENCE, MAX_LOSS = Score(0.80, 1000), 0.05
GOOD = Evaluation(JobEnd.SUCCEEDED, '{"score": 0.79, "samples": 1000}', 1000, 9000.0)


def judged(seen: Evaluation, budget: int | None = BUDGET) -> ScoreComparison:
    score = score_of(seen, budget)
    return score if isinstance(score, NotPassed) else compare_scores(REFERENCE, score, MAX_LOSS)


def refused(found: ScoreComparison) -> str:
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
        (
            {"message": f'{{"right": "{MESSAGE_LENGTH * "1"}", "score": 0.79, "samples": 1000}}'},
            "left no score",
        ),
        ({"message": '{"samples": 1000}'}, "no number from 0 to 1"),
        ({"message": '{"score": 0.79}'}, "number of samples"),
        ({"message": '{"score": 0.79, "samples": 0}'}, "number of samples"),
        ({"message": '{"score": 0.79, "samples": 10.5}'}, "number of samples"),
        ({"message": '{"score": 0.70, "samples": 1000}'}, "a loss of 0.100"),
        ({"message": '{"score": 0.79, "samples": 1000, "right": "101"}'}, '"right" is not one 1 or 0'),
        ({"message": '{"score": 0.79, "samples": 1000, "right": [1]}'}, '"right" is not one 1 or 0'),
        ({"message": f'{{"score": 0.79, "samples": 1000, "right": "{"1" * 1000}"}}'}, '"right" is not one 1'),
        ({"message": f'{{"score": 0.5, "samples": 1000, "right": "{"1x" * 500}"}}'}, '"right" is not one 1'),
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

    assert not isinstance(found, Passed) or found.loss < MAX_LOSS


@pytest.mark.parametrize("samples", [1, 2, 5, 20])
def test_a_few_answers_that_are_all_right_are_no_proof(samples: int) -> None:
    found = compare_scores(Score(1.0, 1000), Score(1.0, samples), MAX_LOSS - 0.01)

    assert isinstance(found, NotYetKnown)


@pytest.mark.parametrize("right", range(31))
def test_thirty_samples_never_show_two_hundredths(right: int) -> None:
    """Not that they are kept, and hardly that they are lost: only where nearly all is."""
    reference, found = Score(27 / 30, 30), compare_scores(Score(27 / 30, 30), Score(right / 30, 30), 0.02)

    assert not can_show(reference, 0.02)
    assert not isinstance(found, Passed)
    assert isinstance(found, NotYetKnown) or right < 22
    if isinstance(found, NotYetKnown):
        assert found.samples > 30
        assert f"about {found.samples} samples, {found.samples - 30} more" in found.why


@pytest.mark.parametrize(
    ("before", "after", "samples", "kind"),
    [
        (0.80, 0.76, 1000, NotYetKnown),
        (0.80, 0.74, 1000, NotYetKnown),
        (0.80, 0.70, 1000, NotPassed),
        (0.80, 0.79, 50, NotYetKnown),
        (0.80, 0.64, 50, NotYetKnown),
        (0.80, 0.30, 50, NotPassed),
        (0.80, 0.80, 1000, Passed),
    ],
)
def test_what_too_few_samples_say_is_neither_kept_nor_lost(
    before: float, after: float, samples: int, kind: type[ScoreComparison]
) -> None:
    assert isinstance(compare_scores(Score(before, samples), Score(after, samples), MAX_LOSS), kind)


def test_a_loss_as_large_as_what_is_accepted_is_shown_by_no_number_of_samples() -> None:
    found = compare_scores(Score(0.80, 100_000), Score(0.75, 100_000), 0.05)

    assert isinstance(found, NotYetKnown)
    assert found.samples == 0
    assert "no number of samples" in found.why


@pytest.mark.parametrize(("accuracy", "max_loss", "needed"), [(0.87, 0.02, 1917), (0.5, 0.01, 16950)])
def test_so_many_samples_as_are_said_to_be_needed_pass_where_nothing_is_lost(
    accuracy: float, max_loss: float, needed: int
) -> None:
    found = samples_needed(Score(accuracy, 100_000), max_loss)

    assert found == pytest.approx(needed, rel=0.01)
    same = Score(accuracy, found)
    assert isinstance(compare_scores(same, same, max_loss), Passed)


def paired(*groups: tuple[int, str]) -> Score:
    right = "".join(digit * count for count, digit in groups)
    return Score(right.count("1") / len(right), len(right), right)


def test_paired_results_show_with_fewer_samples_what_single_scores_do_not() -> None:
    before, after = paired((174, "1"), (26, "0")), paired((172, "1"), (2, "0"), (2, "1"), (24, "0"))

    both = compare_scores(before, after, 0.02)
    alone = compare_scores(replace(before, right=""), after, 0.02)

    assert isinstance(both, Passed)
    assert both.error == pytest.approx(sqrt(5) / 202, rel=0.01)
    assert "over 200 paired samples" in both.message
    assert isinstance(alone, NotYetKnown)


def test_pairs_of_which_none_differs_are_no_certainty() -> None:
    found = compare_scores(paired((30, "1")), paired((30, "1")), 0.02)

    assert isinstance(found, NotYetKnown)


def test_results_of_another_number_of_samples_are_not_paired() -> None:
    found = compare_scores(paired((100, "1")), paired((200, "1")), 0.1)

    assert isinstance(found, Passed)
    assert "paired" not in found.message


def test_the_documented_example_passes() -> None:
    page = (Path(__file__).parents[3] / "docs/runbooks/compression-without-savings.md").read_text()
    section = page[page.index("**The accuracy gate.**") :]
    accepted = re.search(r"maxLoss: ([0-9.]+)", page)
    before, after = re.findall(r'^\{"score": .*\}$', section, re.MULTILINE)
    program = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    scores = []
    for message in (before, after):
        samples = json.loads(message)["samples"]
        score = score_of(Evaluation(JobEnd.SUCCEEDED, message, samples, 9000.0), BUDGET)
        assert isinstance(score, Score), score
        scores.append(score)

    found = compare_scores(scores[0], scores[1], float(accepted[1]))
    assert isinstance(found, Passed), found
    assert samples_needed(scores[0], float(accepted[1])) <= scores[0].samples

    given: dict[str, Any] = {"answers_rightly": bool, "samples": [1, 0, 1, 1]}
    exec(program[1], given)
    score = score_of(Evaluation(JobEnd.SUCCEEDED, given["message"], 4, 9000.0), BUDGET)
    assert score == Score(0.75, 4, "1011")
