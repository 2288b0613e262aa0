"""From advice to a plan."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders import THRASHING, an_evidence
from kvmedic.cli.report import change_of
from kvmedic.engines.vllm import VLLM
from kvmedic.model.config_edits import Revision
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.plan import Plan, ReplaceStep, RevisionStep
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound, OnDrainTimeout, RolloutPolicy, RotationLabel, Spare, TargetRef
from kvmedic.model.status import Record
from kvmedic.rollout.gates.approval import is_plan_current
from kvmedic.runbooks.branches import Advice, Assignment, Evidence, NoChange, Relief, RollBack, Setting
from kvmedic.runbooks.planning import drain_remark, end_of_requests, fleet_plan, proposal
from kvmedic.runbooks.preemption.levers import present_setting
from kvmedic.runbooks.workload import Workload, workload_of
from run_builder import NEW, OLD, REPLACE, ROLLBACK, STEP, a_fleet, a_pod
from worlds.steps import GATE, TRIAL
from worlds.workloads import a_workload
from worlds.world import deployment

EVIDENCE = an_evidence(THRASHING)
MARK, STEP_TOKENS, CAP = Knob.WATERMARK, Knob.MAX_NUM_BATCHED_TOKENS, Knob.MAX_NUM_SEQS
VALUES = {MARK: 0.02, STEP_TOKENS: 1024, CAP: 16}


def advise(_: Evidence, known: Setting) -> Advice:
    """Propose the first allowed lever that was not refused."""
    free = [lever.knob for lever in known.levers if lever.knob not in known.refused]
    if free:
        return Assignment(free[0], VALUES[free[0]], Reason.CAP_RIGHT_SIZED, "why")
    return NoChange(Reason.NO_LEVER_LEFT, "; ".join(each.message for each in known.refused.values()))


def known(workload: Workload, *knobs: Knob) -> Setting:
    return present_setting(workload, tuple(LeverBound(knob) for knob in knobs), Record(), EVIDENCE)


def proposed(workload: Workload, *knobs: Knob) -> Plan | NoChange:
    return proposal(workload, advise, EVIDENCE, known(workload, *knobs), 1)


def changed(plan: Plan | NoChange) -> tuple[Knob, str | None]:
    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    return step.knob, step.after


@pytest.mark.parametrize(
    ("image", "knob"),
    [
        ("vllm/vllm-openai:v0.24.0", MARK),
        ("vllm/vllm-openai:v0.32.0", MARK),
        ("vllm/vllm-openai:v0.23.0", STEP_TOKENS),
        ("vllm/vllm-openai:latest", STEP_TOKENS),
    ],
    ids=["the first that has it", "a newer one", "one that has it not", "nobody knows"],
)
def test_a_flag_is_added_only_to_an_engine_that_is_known_to_have_it(image: str, knob: Knob) -> None:
    plan = proposed(a_workload("--max-num-batched-tokens=8192", image=image), MARK, STEP_TOKENS)

    assert changed(plan)[0] is knob


def test_where_no_lever_can_be_set_each_says_why() -> None:
    found = proposed(a_workload("--config", "/etc/vllm.yaml", image="vllm/vllm-openai:v0.23.0"), CAP, MARK)

    assert isinstance(found, NoChange)
    assert "maxNumSeqs 16 cannot be set: " in found.message
    assert "watermark 0.02 cannot be set: vLLM 0.23.0 does not have --watermark" in found.message


def test_an_adviser_that_insists_is_not_asked_for_ever() -> None:
    workload = a_workload(image="vllm/vllm-openai:v0.23.0")
    stubborn = Assignment(MARK, 0.02, Reason.CAP_RIGHT_SIZED, "why")

    found = proposal(workload, lambda _, __: stubborn, EVIDENCE, known(workload, MARK), 1)

    assert isinstance(found, NoChange)
    assert found.reason is Reason.FLAG_UNKNOWN_TO_ENGINE


@pytest.mark.parametrize(
    ("args", "image", "chunks"),
    [
        ((), "vllm/vllm-openai:v0.32.0", True),
        ((), "vllm/vllm-openai:v0.11.0", True),
        ((), "vllm/vllm-openai:v0.10.2", None),
        ((), "vllm/vllm-openai:latest", None),
        (("--enable-chunked-prefill",), "vllm/vllm-openai:v0.10.2", True),
        (("--no-enable-chunked-prefill",), "vllm/vllm-openai:v0.32.0", False),
        (("--enable-chunked-prefill=False",), "vllm/vllm-openai:v0.7.3", False),
    ],
)
def test_whether_prefills_are_chunked_is_known_or_not(
    args: tuple[str, ...], image: str, *, chunks: bool | None
) -> None:
    assert known(a_workload(*args, image=image)).chunks_prefill is chunks


def test_the_cap_that_may_be_in_force_is_the_given_one_or_the_largest_default() -> None:
    assert known(a_workload("--max-num-seqs", "64")).most_sequences == 64
    assert known(a_workload()).most_sequences == 2048


def test_what_a_file_may_give_is_not_known() -> None:
    assert known(a_workload("--config", "/etc/vllm.yaml")).given is None
    assert known(a_workload("--max-model-len", "8k")).given == {Knob.MAX_MODEL_LEN: 8000}


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


def planned(after: Revision = ROLLBACK.after, message: str = "about 6 min") -> Plan:
    advice = RollBack(ROLLBACK.before, after, Reason.DEPLOY_CORRELATED, message)
    return fleet_plan(TARGET, a_fleet(), advice, 7)


def test_a_plan_names_both_revisions_by_what_keeps_them_and_by_hash() -> None:
    plan = planned()

    assert plan.steps == (ROLLBACK,)
    assert (plan.target_uid, plan.template, plan.spec_generation) == ("uid-1", OLD, 7)
    assert plan.message == "about 6 min"


def test_the_same_plan_stands_whatever_time_it_says() -> None:
    assert is_plan_current(planned(), planned(message="about 7 min"))
    assert planned().digest == planned(message="about 7 min").digest


def test_another_revision_is_another_plan() -> None:
    other = planned(Revision(5, "llm-5d", "c" * 16))

    assert not is_plan_current(planned(), other)
    assert planned().digest != other.digest


def test_the_inverse_puts_the_newer_revision_back() -> None:
    back = ROLLBACK.inverse()

    assert isinstance(back, RevisionStep)
    assert (back.before_template, back.after_template) == (NEW, OLD)
    assert back.reason is Reason.ROLLING_BACK
    assert back.template_change == ROLLBACK.template_change.inverse()
    assert ROLLBACK.before_template == OLD
    assert ROLLBACK.is_revocable


def test_a_report_names_the_revisions() -> None:
    change = change_of(ROLLBACK)

    assert change.line("?") == "Deployment/llm: revision 7 -> 6"
    assert ROLLBACK.line() == "Deployment/llm: pod template of revision 7 -> of revision 6"


def a_container(
    *arguments: str, image: str = "v0.32.0", grace: int | None = None, **container: Any
) -> Workload:
    template = deployment(1)["spec"]["template"]
    [vllm] = template["spec"]["containers"]
    vllm["args"] += arguments
    vllm["image"] = f"vllm/vllm-openai:{image}"
    vllm.update(container)
    template["spec"].pop("terminationGracePeriodSeconds")
    if grace is not None:
        template["spec"]["terminationGracePeriodSeconds"] = grace
    found = workload_of(ObjectRef("Deployment", "llm"), "uid-1", template, "vllm", (VLLM,))
    assert isinstance(found, Workload)
    return found


def sleeps(seconds: int) -> dict[str, Any]:
    return {"lifecycle": {"preStop": {"sleep": {"seconds": seconds}}}}


EXEC = {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}}}


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (a_container(), "aborts requests in flight"),
        (a_container("--shutdown-timeout=0"), "aborts requests in flight"),
        (a_container(image="v0.17.1"), "it has no --shutdown-timeout"),
        (a_container(image="nightly"), "--shutdown-timeout is not given"),
        (a_container("--shutdown-timeout=29", image="nightly"), "finishes requests in flight for 29 s"),
        (a_container("--shutdown-timeout=29"), "finishes requests in flight for 29 s"),
        (a_container("--shutdown-timeout", "30"), "may be cut off"),
        (a_container("--shutdown-timeout=50", grace=60, **sleeps(9)), "finishes requests in flight for 50 s"),
        (
            a_container("--shutdown-timeout=50", grace=60, **sleeps(10)),
            "10 s + --shutdown-timeout 50 s do not",
        ),
        (a_container("--shutdown-timeout=50", grace=60, **EXEC), "if preStop leaves them"),
    ],
    ids=[
        "not given",
        "none",
        "unknown to the engine",
        "of a version that no tag shows",
        "given to such a version",
        "within the grace period",
        "as long as the grace period",
        "both within it",
        "both as long",
        "a hook that takes its own time",
    ],
)
def test_it_is_known_whether_an_engine_would_abort_requests(workload: Workload, said: str) -> None:
    assert said in end_of_requests(workload)


@pytest.mark.parametrize(
    ("way", "said"),
    [(OnDrainTimeout.HOLD, "is not ended"), (OnDrainTimeout.PROCEED, "is ended all the same")],
)
def test_a_plan_says_what_becomes_of_a_replica_whose_drain_times_out(way: OnDrainTimeout, said: str) -> None:
    rollout = RolloutPolicy(
        Spare.REQUIRED, timedelta(minutes=10), RotationLabel("a", "b"), on_drain_timeout=way
    )

    for step in (STEP, REPLACE):
        remark = drain_remark(a_container(), rollout, step)
        assert said in remark
        assert "aborts requests in flight" in remark
    for step in (TRIAL, GATE):
        assert drain_remark(a_container(), rollout, step) == ""
