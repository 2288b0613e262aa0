"""The table of the kinds of steps: where each goes, stands still, and leaves a fleet."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import Step
from kvmedic.rollout import row_of
from kvmedic.rollout.moves import Freeze, Move, ScaleOut, Settled, Uncordon, Wait
from kvmedic.rollout.steps import StepInput
from run_builder import BUNDLE, CONFIG, NOW, REPLACE, ROLLBACK, SCALE, STEP, UID, a_fleet, a_pod, a_run
from worlds.steps import GATE, LIMITS, MINIMUM, TRIAL

CALM = a_fleet()
CORDONED = a_fleet(pods=(a_pod("a", in_rotation=False, cordoned=True), a_pod("b"), a_pod("c")))
"""A replica is out of rotation, and the run did not name it."""


def known(step: Step) -> StepInput:
    return StepInput(a_run(step=step), UID, {}, LIMITS, timedelta(minutes=5), NOW)


@pytest.mark.parametrize(
    ("step", "counted", "begins"),
    [
        (STEP, False, Freeze),
        (CONFIG, False, Freeze),
        (BUNDLE, False, Freeze),
        (ROLLBACK, False, Blocked),  # no ReplicaSet keeps the template any more
        (REPLACE, True, ScaleOut),
        (SCALE, True, ScaleOut),
        (MINIMUM, False, Blocked),  # the autoscaler is gone
    ],
    ids=["flag", "file", "bundle", "revision", "replacement", "replicas", "minimum"],
)
class TestEachKindThatChangesAFleet:
    def test_begins_with_one_move(self, step: Step, begins: type[Move], *, counted: bool):
        assert isinstance(row_of(step).next_move(CALM, known(step)), begins)

    @pytest.mark.parametrize("way", ["rest", "leave"])
    def test_puts_a_replica_back_before_it_rests_or_leaves(
        self, step: Step, begins: type[Move], way: str, *, counted: bool
    ):
        move = getattr(row_of(step), way)(CORDONED, known(step))

        assert isinstance(move, Uncordon)
        assert move.pod.name == "a"

    def test_leaves_a_calm_fleet_at_once(self, step: Step, begins: type[Move], *, counted: bool):
        assert row_of(step).leave(CALM, known(step)) == Settled()
        assert isinstance(row_of(step).rest(CALM, known(step)), Wait)

    def test_counts_requests_before_it_leaves_only_where_it_may_take_a_replica(
        self, step: Step, begins: type[Move], *, counted: bool
    ):
        assert row_of(step).drains_to_leave is counted


@pytest.mark.parametrize("step", [TRIAL, GATE], ids=["trial", "evaluation"])
@pytest.mark.parametrize("fleet", [CALM, CORDONED], ids=["calm", "cordoned"])
def test_a_trial_never_moves_the_fleet(step: Step, fleet: Fleet):
    row = row_of(step)

    assert row.next_move(fleet, known(step)) == row.rest(fleet, known(step)) == Settled()
    assert row.leave(fleet, known(step)) == Settled()
    assert not row.drains_to_leave
