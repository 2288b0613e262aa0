"""The table of `make bench-recall`, with fewer scores: what is scored is what survives."""

import pytest

from lab.bench.recall import score
from lab.engine.eviction import Eviction, Survival


@pytest.mark.parametrize("survival", [Survival.SCATTERED, Survival.RUNS, Survival.PER_HEAD])
@pytest.mark.parametrize(("keep", "salience"), [(0.5, 0.0), (0.1, 0.9)])
def test_a_score_is_near_what_arithmetic_says(survival, keep, salience):
    found = score(Eviction(survival, keep=keep, salience=salience, heads=4), samples=120)

    assert found.right == pytest.approx(found.expected, abs=0.14)  # three standard errors of 120 samples


def test_who_keeps_all_scores_exactly_what_the_model_understands():
    found = score(Eviction(keep=1, salience=0), samples=60)

    assert found.right == found.expected
