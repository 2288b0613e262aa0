"""Which replica serves for a trial, and when none does."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from core.test_drained_trial import STEP as ON_A_REPLICA
from core.test_drained_trial import with_pod
from core.test_trial_moves import STEP as ON_A_POD
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import CompressionPolicy, Policy, ProbePolicy
from kvmedic.model.status import ClosedRun
from kvmedic.model.trial import Question, TrialStep
from kvmedic.runbooks.compression.fixes import Past, on_a_replica
from kvmedic.runbooks.planning import Fault
from run_builder import BUNDLE, NOW, STEP, a_fleet
from runbooks.test_enabling import a_policy

FLEET = a_fleet()
TRIAL = replace(ON_A_POD, template=FLEET.revision)
PLAN = Plan((TRIAL,), FLEET.uid, FLEET.revision, 1, Reason.RECLAMATION_PROBED, "nobody knows")
ENDED = NOW - timedelta(hours=1)
NO_ROOM = ClosedRun(
    "1",
    Reason.COMPRESSION_UNPROVEN,
    Reason.SPARE_UNSCHEDULABLE,
    "",
    (),
    ENDED,
    ENDED,
    template=FLEET.revision,
)


def allowing(least: int = 1, *, drains: bool = True) -> Policy:
    policy = a_policy(CompressionPolicy(probe=ProbePolicy(drains_replica=drains)))
    return replace(policy, limits=replace(policy.limits, min_healthy_replicas=least))


def planned(
    plan: Plan = PLAN, fleet: Fleet = FLEET, policy: Policy | None = None, past: ClosedRun | None = NO_ROOM
) -> Plan:
    history = (past,) if past else ()
    found = on_a_replica(plan, fleet, policy or allowing(), Past(history, Reason.COMPRESSION_UNPROVEN, NOW))
    assert isinstance(found, Plan)
    return found


def test_where_a_trial_pod_found_no_room_the_first_replica_serves() -> None:
    plan = planned()

    (step,) = plan.steps
    assert isinstance(step, TrialStep)
    assert (step.replica, step.replica_uid) == (ON_A_REPLICA.replica, ON_A_REPLICA.replica_uid)
    assert step.line() == ("Deployment/llm: replica a, drained for it, generates 16384 tokens with Mine")
    assert plan.message == "no node took a trial pod, so a is drained and serves for it; nobody knows"
    assert plan.digest != PLAN.digest


def test_a_replica_that_does_not_serve_is_passed_over() -> None:
    (step,) = planned(fleet=with_pod("a", in_rotation=False)).steps

    assert isinstance(step, TrialStep)
    assert step.replica == "b"


@pytest.mark.parametrize(
    "past",
    [
        None,
        replace(NO_ROOM, outcome=Reason.TRIAL_UNANSWERED),
        replace(NO_ROOM, template="another"),
        replace(NO_ROOM, reason=Reason.FLEET_WIDE_DEMAND),
        replace(NO_ROOM, ended_at=NOW - timedelta(days=1)),
    ],
    ids=["none", "room", "another template", "another cause", "long ago"],
)
def test_a_trial_pod_is_asked_first(past: ClosedRun | None) -> None:
    assert planned(past=past) == PLAN


@pytest.mark.parametrize(
    ("policy", "fleet"),
    [
        (allowing(least=3), FLEET),
        (allowing(least=2), with_pod("c", ready_at=None)),
        (allowing(least=0), replace(FLEET, pods=FLEET.pods[:1])),
    ],
    ids=["all are demanded", "one is down", "the only one"],
)
def test_where_no_replica_can_be_spared_nothing_is_asked_for_a_day(policy: Policy, fleet: Fleet) -> None:
    refused = on_a_replica(PLAN, fleet, policy, Past((NO_ROOM,), Reason.COMPRESSION_UNPROVEN, NOW))

    assert isinstance(refused, Fault)
    assert refused.reason is Reason.SPARE_UNSCHEDULABLE


def test_without_leave_a_replica_serves_for_none() -> None:
    assert planned(policy=allowing(drains=False)) == PLAN


@pytest.mark.parametrize(
    "step",
    [replace(TRIAL, change=BUNDLE.edit), replace(TRIAL, question=Question.PROMPTS), STEP],
    ids=["another setting", "prompts", "a change"],
)
def test_nothing_else_is_tried_on_a_replica(step: TrialStep) -> None:
    plan = replace(PLAN, steps=(step,))

    assert planned(plan) == plan
