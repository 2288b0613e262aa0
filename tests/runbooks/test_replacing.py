"""From the advice to replace one replica to its plan."""

from __future__ import annotations

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.plan import Plan, ReplaceStep
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import TargetRef
from kvmedic.runbooks.branches import Relief
from kvmedic.runbooks.planning import fleet_plan
from run_builder import OLD, a_fleet, a_pod

TARGET = TargetRef("Deployment", "llm", "vllm")


def advice(pod: str) -> Relief:
    return Relief(pod, Reason.ONE_REPLICA_PRESSURED, "b: 2.00 preemptions per request, limit 0.5")


def test_a_plan_names_the_pod_by_its_uid_and_the_number_that_comes_back() -> None:
    plan = fleet_plan(TARGET, a_fleet(), advice("b"), 7)

    assert isinstance(plan, Plan)
    (step,) = plan.steps
    assert step == ReplaceStep(
        ObjectRef("Deployment", "llm"), "vllm", "b", "uid-b", 3, OLD, Reason.ONE_REPLICA_PRESSURED
    )
    assert (plan.target_uid, plan.template, plan.spec_generation) == ("uid-1", OLD, 7)
    assert plan.message == advice("b").message


def test_a_plan_for_another_pod_of_the_same_name_is_another_plan() -> None:
    again = a_fleet(pods=(a_pod("a"), a_pod("b", uid="another"), a_pod("c")))

    plans = [fleet_plan(TARGET, fleet, advice("b"), 7) for fleet in (a_fleet(), again)]

    assert all(isinstance(plan, Plan) for plan in plans)
    assert len({plan.digest for plan in plans if isinstance(plan, Plan)}) == 2


def test_a_pod_that_is_gone_or_going_is_not_planned_for() -> None:
    going = a_fleet(pods=(a_pod("a"), a_pod("b", terminating=True), a_pod("c")))

    for fleet, name in ((a_fleet(), "z"), (going, "b")):
        found = fleet_plan(TARGET, fleet, advice(name), 7)
        assert isinstance(found, Blocked)
        assert found.reason is Reason.TARGET_NOT_SETTLED
