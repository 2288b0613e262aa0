"""What each kind of step needs to know before it leaves a fleet."""

from __future__ import annotations

import pytest

from kvmedic.model.plan import Step
from kvmedic.rollout import row_of
from run_builder import BUNDLE, CONFIG, RECALL, REPLACE, SCALE, STEP
from worlds.steps import GATE, MINIMUM, TRIAL


@pytest.mark.parametrize(
    ("step", "counted"),
    [
        (STEP, False),
        (CONFIG, False),
        (BUNDLE, False),
        (RECALL, False),
        (REPLACE, True),
        (SCALE, True),
        (MINIMUM, False),
        (TRIAL, False),
        (GATE, False),
    ],
    ids=["flag", "file", "bundle", "revision", "replacement", "replicas", "minimum", "trial", "evaluation"],
)
def test_only_what_may_take_a_replica_counts_its_requests_before_it_leaves(step: Step, *, counted: bool):
    assert row_of(step).drains_to_leave is counted
