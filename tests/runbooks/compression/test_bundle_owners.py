"""From the advice to turn a method off to its plan, its report, its way back and the owner's patch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonpatch
import pytest
import yaml

from builders import THRASHING, an_evidence
from kvmedic.cli.diagnose import policy_in
from kvmedic.cli.report import change_of, report_of_consultation
from kvmedic.cli.saved import consult
from kvmedic.controller.blockers import propose_plan
from kvmedic.controller.evidence import Survey
from kvmedic.controller.plans import with_plan
from kvmedic.model.edits import BundleEdit, EnvEdit, Field, TokenEdit
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import OwnerKind, TemplateOwner, template_hash
from kvmedic.model.plan import BundleStep, Goal, Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Runbook
from kvmedic.model.status import Attempt, Record
from kvmedic.rollout.gates.approval import is_plan_current
from kvmedic.runbooks import order
from kvmedic.runbooks.branches import Branch, Diagnosed, TurnOff
from kvmedic.runbooks.compression.bundle import bundle_plan
from kvmedic.runbooks.workload import View, Workload
from run_builder import BUNDLE, NEW, OLD, a_failure, a_fleet
from worlds.asked import a_resource
from worlds.bundles import FLAG, SWITCH, TRI, TUNED, a_template, a_workload

ON = a_template(["m", FLAG, "--api-key=s3cret"], TUNED)
ADVISED = Branch(
    Reason.COMPRESSION_REVERTED,
    section="",
    signals=frozenset(),
    when=lambda _: (),
    then=lambda _, known: TRI,
    goal=Goal.NO_WORSE,
)


def surveyed(template: dict[str, Any], record: Record | None = None) -> Survey:
    """Return what a look leads to at which the method is to be turned off."""
    resource = replace(a_resource(), record=record or Record())
    fleet = a_fleet(revision=template_hash(template))
    view = View(fleet, template)
    found = Survey(view, an_evidence(THRASHING), Diagnosed(ADVISED, ()), "", None, None)
    policy = replace(resource.policy, target=replace(resource.policy.target, container="vllm"))
    return with_plan(found, resource, policy)


def test_the_advice_becomes_a_plan_that_is_to_be_no_worse() -> None:
    found = surveyed(ON)

    (step,) = found.plan.steps
    assert isinstance(step, BundleStep)
    assert (step.method, found.goal) == ("TriAttention", Goal.NO_WORSE)


def test_a_method_that_had_to_be_turned_on_again_stays_on() -> None:
    tried = a_failure(Attempt.SWITCH_METHOD, "TriAttention", template_hash(ON))

    again = surveyed(ON, Record(failed_attempts=(tried,)))
    other = surveyed(ON, Record(failed_attempts=(replace(tried, template=NEW), replace(tried, key="fp8"))))

    assert again.plan is None
    assert again.blocked.reason is Reason.LEVER_EXHAUSTED
    assert other.plan is not None


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (a_template(["m"], [{"name": SWITCH, "valueFrom": {}}]), Reason.FLAG_NOT_EDITABLE),
        (a_template(["sleep", "1"], command=["sh"]), Reason.ENGINE_UNRECOGNISED),
    ],
    ids=["a setting that cannot be edited", "no engine"],
)
def test_what_stands_in_the_way_is_named(template: dict[str, Any], reason: Reason) -> None:
    found = surveyed(template)

    assert found.plan is None
    assert found.blocked.reason is reason


def test_the_inverse_turns_it_on_again_as_it_was() -> None:
    back = BUNDLE.inverse()

    assert (back.before_template, back.after_template) == (NEW, OLD)
    assert (back.before, back.after) == (BUNDLE.after, BUNDLE.before)
    assert back.reason is Reason.ROLLING_BACK
    assert back.edit.inverse() == BUNDLE.edit
    assert (BUNDLE.before_template, BUNDLE.is_revocable, BUNDLE.gives_back) == (OLD, True, False)


def test_the_same_plan_stands_and_another_budget_is_another_plan() -> None:
    shown, other = (
        bundle_plan(a_workload(a_template(["m", FLAG], variables)), TRI, 1)
        for variables in (TUNED, [{**TUNED[0], "value": "512"}, *TUNED[1:]])
    )
    assert isinstance(shown, Plan)
    assert isinstance(other, Plan)

    assert is_plan_current(shown, replace(shown, message="other words"))
    assert not is_plan_current(shown, other)
    assert shown.digest != other.digest


def test_a_report_names_the_method() -> None:
    assert change_of(BUNDLE).line("?").startswith(f"Deployment/llm: TriAttention {FLAG}, ")
    assert change_of(BUNDLE).line("?").endswith(f"-> off ({SWITCH}=0)")


@pytest.fixture
def advising(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one runbook advises to turn the method off, whatever it sees."""
    monkeypatch.setattr(order, "RUNBOOKS", {**order.RUNBOOKS, "PreemptionThrash": (ADVISED,)})


UNKNOWN = Blocked(Reason.ENGINE_UNRECOGNISED, "no engine")
CONSULTED: dict[str, tuple[Workload | Blocked | None, str | None, str | None]] = {
    "a workload": (a_workload(ON), f"off ({SWITCH}=0)", None),
    "no workload": (None, "off", None),
    "one that cannot be read": (
        UNKNOWN,
        None,
        "TriAttention cannot be turned off: no engine",
    ),
    "one with a setting out of reach": (
        a_workload(a_template(["m"], [{"name": SWITCH, "valueFrom": {}}])),
        None,
        "TriAttention cannot be turned off as a whole",
    ),
}


@pytest.mark.usefixtures("advising")
@pytest.mark.parametrize(("workload", "after", "blocked"), CONSULTED.values(), ids=CONSULTED)
def test_collected_evidence_leads_to_the_same_advice(
    workload: Workload | Blocked | None, after: str | None, blocked: str | None
) -> None:
    alone = replace(policy_in(""), runbooks=(Runbook.PREEMPTION_THRASH,))
    found = consult(an_evidence(THRASHING), alone, workload)

    report = report_of_consultation(found, {})
    assert [change.after for change in report.changes] == ([after] if after else [])
    assert isinstance(found.advice, TurnOff)
    assert (found.blocked.message if found.blocked else "").startswith(blocked or "")
    assert (found.blocked is None) is (blocked is None)


GIT = [OwnerKind.ARGO_CD, OwnerKind.FLUX_KUSTOMIZATION, OwnerKind.FLUX_HELM, OwnerKind.APPLIER]


@pytest.mark.parametrize("kind", list(OwnerKind))
def test_an_owner_is_given_the_whole_method_and_no_more(kind: OwnerKind) -> None:
    workload = a_workload(ON)
    plan = bundle_plan(workload, TRI, 1)
    assert isinstance(plan, Plan)
    view = View(a_fleet(), ON)

    proposal = propose_plan(TemplateOwner(kind, "prod", part="m"), "ml", workload, plan, view)

    assert "s3cret" not in str(proposal)
    if kind not in GIT:
        assert "(all of it in one change)" in proposal.text
        return
    (patch,) = yaml.safe_load(proposal.text)["patches"]
    operations = [json.loads(line.removeprefix("- ")) for line in patch["patch"].splitlines()]
    assert patch["target"] == {"kind": "Deployment", "name": "chat", "namespace": "ml"}
    (step,) = plan.steps
    assert isinstance(step, BundleStep)
    patched = jsonpatch.apply_patch({"spec": {"template": ON}}, operations)
    assert patched == {"spec": {"template": step.edit.apply(ON)}}


ADDED = EnvEdit("vllm", 1, "A", 0, None, "1")
SHARED = TokenEdit("vllm", 1, Field.ARGS, 0, " --x", None, 5)
OWNER = TemplateOwner(OwnerKind.APPLIER, "helmfile")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (BundleEdit((ADDED,)), '"path": "/spec/template/spec/containers/1/env", "value": [{"name": "A"'),
        (
            BundleEdit((replace(ADDED, index=2),)),
            '"path": "/spec/template/spec/containers/1/env/2", "value": {"name',
        ),
        (BundleEdit((ADDED, SHARED)), "(all of it in one change)"),
    ],
    ids=["the first variable", "one more variable", "within a longer text, which may be secret"],
)
def test_a_setting_that_is_added_or_within_a_text(edit: BundleEdit, words: str) -> None:
    workload = a_workload(ON)
    step = replace(BUNDLE, edit=edit)
    plan = Plan((step,), "uid-1", OLD, 1, Reason.COMPRESSION_REVERTED)
    view = View(a_fleet(), ON)

    proposal = propose_plan(OWNER, "ml", workload, plan, view)

    assert words in proposal.text
