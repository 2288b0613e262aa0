"""Which rule judges a change, and in which order it is overruled."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from builders import CALM, TRIGGER, an_observation
from kvmedic.model.devices import Cause
from kvmedic.model.plan import (
    BundleStep,
    Change,
    FlagStep,
    Goal,
    ReplaceStep,
    ReplicasStep,
    RevisionStep,
)
from kvmedic.model.run import Baseline, Verdict
from kvmedic.model.spec import Objectives
from kvmedic.verdict.baseline import baseline_of
from kvmedic.verdict.goals import (
    RULES,
    judge,
    judge_fewer,
    judge_more,
    judge_parity,
    judge_relief,
    judge_replacement,
    judge_steadiness,
    judge_without,
)
from kvmedic.verdict.vetoes import LEAST_FREE_MIB, VerdictInput
from run_builder import a_run
from worlds.vitals_builder import an_end

STEP = a_run().current.step
GIVEN = VerdictInput(None, an_observation(CALM, CALM), Objectives(), TRIGGER)
TEMPLATE, NUMBER = (FlagStep, BundleStep, RevisionStep), (ReplicasStep,)
EXPECTED = {
    **{(Goal.STEADINESS, kind): judge_steadiness for kind in get_args(Change)},
    **{(Goal.PARITY, kind): judge_parity for kind in get_args(Change)},
    (Goal.CALM, FlagStep): judge_without,
    **{(Goal.CALM, kind): judge_fewer for kind in NUMBER},
    **{(Goal.RELIEF, kind): judge_relief for kind in TEMPLATE},
    **{(Goal.RELIEF, kind): judge_more for kind in NUMBER},
    (Goal.RELIEF, ReplaceStep): judge_replacement,
}


@pytest.mark.parametrize(("goal", "kind"), EXPECTED, ids=[f"{g}, {k.__name__}" for g, k in EXPECTED])
def test_a_change_is_judged_by_the_rule_of_its_goal_and_kind(goal: Goal, kind: type[Change]) -> None:
    rules = [rule for rule in RULES if rule.goal is goal and kind in rule.steps]

    assert rules[0].judge is EXPECTED[goal, kind]


@pytest.mark.parametrize("goal", [goal for goal in Goal if goal is not Goal.ANSWER])
def test_each_goal_has_a_rule_for_every_kind_of_change(goal: Goal) -> None:
    covered = {kind for rule in RULES if rule.goal is goal for kind in rule.steps}

    assert covered == set(get_args(Change))


@pytest.mark.parametrize("goal", [Goal.RELIEF, Goal.PARITY])
def test_without_figures_of_before_it_is_judged_by_whether_replicas_stay_up(goal: Goal) -> None:
    assert judge(goal, STEP, GIVEN) == judge_steadiness(GIVEN)


def test_full_memory_overrules_a_good_verdict() -> None:
    before = baseline_of(GIVEN.looked, 0)
    assert isinstance(before, Baseline)
    full = replace(GIVEN, before=before, free_mib=LEAST_FREE_MIB - 1)

    assert judge(Goal.PARITY, STEP, replace(full, free_mib=LEAST_FREE_MIB)).verdict is Verdict.RECOVERED
    assert judge(Goal.PARITY, STEP, full).verdict is Verdict.IMPROVED


def test_what_speaks_for_the_only_replicas_that_are_up_is_asked_last() -> None:
    ended = replace(GIVEN, restarts=1, ends={"a": an_end(Cause.HOST_MEMORY)}, free_mib=0.0, first_up=1)

    found = judge(Goal.STEADINESS, STEP, ended)

    assert found.verdict is Verdict.IMPROVED
    assert found.message == (
        "1 restarts of replicas that run the change; a (exit code 137): it was ended at its container's "
        "memory limit; 1 replicas are up, none was before the change, so it stays"
    )
