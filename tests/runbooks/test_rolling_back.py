"""From the advice to roll a revision back to its plan, its report and its way back."""

from __future__ import annotations

from kvmedic.cli.report import change_of
from kvmedic.model.config_edits import Revision
from kvmedic.model.plan import Plan, RevisionStep
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import TargetRef
from kvmedic.rollout.gates import stands
from kvmedic.runbooks.branches import RollBack
from kvmedic.runbooks.planning import fleet_plan
from run_builder import NEW, OLD, RECALL, a_fleet

TARGET = TargetRef("Deployment", "llm", "vllm")


def planned(after: Revision = RECALL.after, message: str = "about 6 min") -> Plan:
    advice = RollBack(RECALL.before, after, Reason.DEPLOY_CORRELATED, message)
    return fleet_plan(TARGET, a_fleet(), advice, 7)


def test_a_plan_names_both_revisions_by_what_keeps_them_and_by_hash() -> None:
    plan = planned()

    assert plan.steps == (RECALL,)
    assert (plan.target_uid, plan.template, plan.spec_generation) == ("uid-1", OLD, 7)
    assert plan.message == "about 6 min"


def test_the_same_plan_stands_whatever_time_it_says() -> None:
    assert stands(planned(), planned(message="about 7 min"))
    assert planned().digest == planned(message="about 7 min").digest


def test_another_revision_is_another_plan() -> None:
    other = planned(Revision(5, "llm-5d", "c" * 16))

    assert not stands(planned(), other)
    assert planned().digest != other.digest


def test_the_inverse_puts_the_newer_revision_back() -> None:
    back = RECALL.inverse()

    assert isinstance(back, RevisionStep)
    assert (back.before_template, back.after_template) == (NEW, OLD)
    assert back.reason is Reason.ROLLING_BACK
    assert back.template_change == RECALL.template_change.inverse()
    assert RECALL.before_template == OLD
    assert RECALL.is_revocable


def test_a_report_names_the_revisions() -> None:
    change = change_of(RECALL)

    assert change.line("?") == "Deployment/llm: revision 7 -> 6"
    assert RECALL.line() == "Deployment/llm: pod template of revision 7 -> of revision 6"
