"""What a plan meets beside the fleet itself: owners, neighbours, what somebody put back."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvmedic.cli import plan as live
from kvmedic.cli.app import Form
from kvmedic.cli.plan import _of_survey
from kvmedic.controller.blockers import check_ownership, owner_patch_of
from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import NotAllowed, SurveyInput
from kvmedic.controller.survey import examine
from kvmedic.kube.errors import Call, Refused
from kvmedic.model.config_edits import OwnerField, Roller
from kvmedic.model.edits import EditState
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import STILL, Owner, OwnerKind, OwnerObject, TemplateOwner
from kvmedic.model.plan import FlagStep
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Ownership
from kvmedic.model.status import ClosedRun, ConditionType, Record, Resource
from kvmedic.record.surveys import REFRESH, record_plan
from kvmedic.rollout.owners.reversion import Reversion
from kvmedic.rollout.preconditions import Autoscaler, Neighbours, VerticalAutoscaler
from kvmedic.runbooks.workload import View
from lab.scripted.readings import State
from run_builder import NOW
from worlds.asked import Asked, a_resource
from worlds.settled import REVISION, TEMPLATE, Town, a_settled_fleet

HPA = Autoscaler("HorizontalPodAutoscaler", "llm", 1, 8)
ARGO = Owner(Reason.MANAGED_BY_GITOPS, "Argo CD Application prod", TemplateOwner(OwnerKind.ARGO_CD, "prod"))


async def looked(
    *,
    resource: Resource | None = None,
    town: Town | None = None,
    metrics: Asked | None = None,
    state: State = State.THRASH,
    **fleet: Any,
) -> Survey:
    resource = resource or a_resource()
    view = View(fleet=a_settled_fleet(**fleet), template=TEMPLATE, templates={})
    metrics = metrics or Asked(state)
    found = await examine(resource, resource.policy, view, SurveyInput(metrics, metrics))
    return await check_ownership(found, resource, resource.policy, town or Town(Neighbours()))


async def test_alone_nothing_stands_in_the_way() -> None:
    found = await looked()

    assert found.plan is not None
    assert (found.blocked, found.proposal) == (None, None)


async def test_a_calm_fleets_neighbours_are_not_asked() -> None:
    town = Town(Neighbours())

    found = await looked(town=town, state=State.RECOVERED)

    assert (found.plan, town.asked) == (None, 0)


async def test_neighbours_that_do_no_harm_are_named_in_the_plan_which_stays_the_same() -> None:
    alone, beside = await looked(), await looked(town=Town(Neighbours(autoscalers=(HPA,))))

    assert beside.blocked is None
    assert beside.plan.message.startswith(f"{alone.plan.message}; HorizontalPodAutoscaler llm")
    assert beside.plan.digest == alone.plan.digest


async def test_an_owner_comes_before_a_neighbour_and_has_its_patch() -> None:
    town = Town(Neighbours(vertical=(VerticalAutoscaler("llm", "Auto"),)))

    owned, free = await looked(owner=ARGO, town=town), await looked(town=town)

    assert free.blocked.reason is Reason.MANAGED_BY_VPA
    assert owned.blocked.reason is Reason.MANAGED_BY_GITOPS
    assert owned.blocked.message.endswith(owned.proposal.text)


async def test_another_blocker_than_the_owner_brings_no_patch() -> None:
    found = await looked(owner=ARGO, fields=STILL)

    assert found.blocked.reason is Reason.CLAIMED_BY_ANOTHER
    assert found.proposal is None


def reverted(id_: str, outcome: Reason = Reason.CHANGE_REVERTED, template: str = REVISION) -> ClosedRun:
    return ClosedRun(id_, Reason.FLEET_WIDE_DEMAND, outcome, "", (), NOW, NOW, template=template)


@pytest.mark.parametrize(
    ("history", "retried", "contested"),
    [
        ((reverted("2"),), "", "2"),
        ((reverted("2"),), "1", "2"),
        ((reverted("2"),), "2", ""),
        ((reverted("2"), reverted("1")), "2", ""),
        ((reverted("2"), reverted("1")), "1", "2"),
        ((reverted("3", Reason.RECOVERED), reverted("2")), "", "2"),
        ((reverted("2", template="another"),), "", ""),
        ((reverted("2", template=""),), "", ""),
        ((reverted("2", Reason.FLAG_DRIFTED),), "", ""),
    ],
    ids=[
        "reverted",
        "another run may be tried again",
        "a person wants it tried again",
        "and that counts for what came before",
        "a word about the run before does not count",
        "what came after does not heal it",
        "another template",
        "written by a version that did not say",
        "another edit",
    ],
)
async def test_what_somebody_put_back_is_not_tried_again(
    history: tuple[ClosedRun, ...], retried: str, contested: str
) -> None:
    resource = replace(a_resource(), record=Record(history=history), retried=retried)

    found = await looked(resource=resource, editor="argocd-thing")

    assert (found.blocked is not None) is bool(contested)
    if found.blocked is not None:
        assert found.blocked.reason is Reason.TEMPLATE_CONTESTED
        assert f"kvmedic.io/try-again={contested}." in found.blocked.message
        assert "field manager argocd-thing put the old setting back" in found.blocked.message
        assert found.proposal is not None


def kept(id_: str, before: str, after: str) -> ClosedRun:
    return replace(reverted(id_, Reason.RECOVERED, before), template_after=after)


@pytest.mark.parametrize(
    ("history", "contested"),
    [
        ((kept("2", REVISION, "ours"),), "2"),
        ((kept("3", "changed", REVISION), kept("2", REVISION, "changed")), ""),
        ((kept("3", "ours", "another"), kept("2", REVISION, "ours")), ""),
        ((reverted("3", Reason.NOT_RECOVERED), kept("2", REVISION, "ours")), "2"),
        ((kept("3", "a", "b"), reverted("2")), "2"),
        ((kept("2", "older", REVISION),), ""),
        ((reverted("2", Reason.RECOVERED),), ""),
    ],
    ids=[
        "what was there before is there again",
        "a run of ours put it back",
        "a later run is what counts",
        "one that came to nothing is no later run",
        "a revert in the middle counts however long ago",
        "our change is there",
        "nothing of the template was kept",
    ],
)
async def test_what_somebody_put_back_after_a_run_is_not_tried_again(
    history: tuple[ClosedRun, ...], contested: str
) -> None:
    resource = replace(a_resource(), record=Record(history=history))

    found = await looked(resource=resource, editor="helm", owner=replace(HELM, gives_way=True))

    assert (found.blocked is not None) is bool(contested)
    if found.blocked is not None:
        assert found.blocked.reason is Reason.TEMPLATE_CONTESTED
        assert f"kvmedic.io/try-again={contested}." in found.blocked.message
        assert "helm upgrade chat CHART" in found.blocked.message, "the owner's own way"


HELM = Owner(Reason.MANAGED_BY_HELM, "Helm release chat", TemplateOwner(OwnerKind.HELM, "chat"))
YIELDING = replace(HELM, gives_way=True)


async def test_an_owner_that_gives_way_is_given_what_keeps_the_change() -> None:
    message = "the next upgrade of Helm release chat puts it back unless its values have it"
    town = Town(Neighbours(reversion=Reversion(at_once=False, message=message)))

    found = await looked(owner=YIELDING, town=town)

    assert found.blocked is None
    assert found.plan.message.endswith(f"; {message}"), "said before the first write"
    given = owner_patch_of(found)
    assert given.startswith("Helm release chat: set it in the release's values")
    assert "undrained" not in given, "the change is there already"
    assert "--max-num-seqs=" in given


async def test_what_keeps_the_change_is_printed() -> None:
    found = await looked(owner=YIELDING)

    printed = _of_survey(a_resource(), found)

    assert f"to keep it {found.proposal}" in printed.render_plan(Form.TEXT)
    body = json.loads(printed.render_plan(Form.JSON))
    assert (body["proposal"], body["toKeep"]["change"]) == (None, found.proposal.text)


async def test_half_a_patch_is_no_owner_patch() -> None:
    found = await looked(owner=YIELDING)
    long = replace(found, proposal=replace(found.proposal, text="x" * 1000))

    assert owner_patch_of(long) == f"Helm release chat: {found.proposal.how}"


async def test_a_change_that_is_known_to_be_put_back_at_once_is_not_begun() -> None:
    town = Town(Neighbours(reversion=Reversion(at_once=True, message="Argo CD heals itself: add a rule")))

    found = await looked(owner=replace(ARGO, gives_way=True), town=town)

    assert found.blocked.reason is Reason.MANAGED_BY_GITOPS
    assert found.blocked.message.startswith("Argo CD heals itself: add a rule")
    assert found.blocked.message.endswith(found.proposal.text)


@pytest.mark.parametrize(
    ("owner", "contested"), [(replace(ARGO, gives_way=True), True), (YIELDING, False), (None, False)]
)
async def test_an_applier_that_sets_its_own_number_of_replicas_is_not_fought(
    owner: Owner | None, contested: bool
) -> None:
    resource = replace(a_resource(), record=Record(history=(reverted("2", Reason.REPLICAS_CHANGED),)))

    one = a_settled_fleet().live[0].name
    pressed = Asked(State.RECOVERED, named={one: State.THRASH})

    found = await looked(resource=resource, owner=owner, metrics=pressed)

    assert found.plan.steps[0].kind == "ReplaceStep"
    assert (found.blocked is not None) is contested
    if found.blocked is not None:
        assert "someone else set another number of replicas in run 2" in found.blocked.message


async def test_the_command_prints_the_change_for_the_owner() -> None:
    found = await looked(owner=ARGO)

    printed = _of_survey(a_resource(), found)

    assert f"propose    {found.proposal}" in printed.render_plan(Form.TEXT)
    proposal = json.loads(printed.render_plan(Form.JSON))["proposal"]
    assert proposal == {
        "owner": "Argo CD Application prod",
        "how": found.proposal.how,
        "change": found.proposal.text,
    }


async def test_a_person_who_may_not_read_neighbours_is_shown_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed:
        async def look(self, namespace: str, policy: Any) -> Any:
            return View(fleet=a_settled_fleet(owner=ARGO), template=TEMPLATE, templates={})

        async def last_ends(self, *_: Any) -> dict[str, Any]:
            return {}

        async def neighbours(self, view: Any, step: Any = None) -> Neighbours:
            raise Refused(Call("list", "/apis/keda.sh/v1alpha1/scaledobjects"), 403, "Forbidden")

    monkeypatch.setattr(live, "target_of", lambda world: Closed())

    world = SimpleNamespace(client=None, metrics=Asked(State.THRASH), drivers=NotAllowed())
    found = await live.survey_target(world, a_resource())

    assert found.plan is not None
    assert found.proposal is not None
    assert "left out: list /apis/keda.sh/v1alpha1/scaledobjects: 403 Forbidden" in capsys.readouterr().err


async def test_a_patch_in_a_condition_follows_the_plan_that_is_shown() -> None:
    found = await looked()
    assert found.plan is not None
    other = replace(found.plan, spec_generation=99)
    later = NOW + REFRESH
    first = record_plan(Record(), found.plan, Blocked(Reason.MANAGED_BY_GITOPS, "set 16"), 1, NOW)

    same = record_plan(
        first, found.plan, Blocked(Reason.MANAGED_BY_GITOPS, "set 16, in other words"), 1, later
    )
    fresh = record_plan(first, other, Blocked(Reason.MANAGED_BY_GITOPS, "set 14"), 1, later)

    assert same == first, "nothing is written for the sake of words"
    condition = fresh.condition(ConditionType.ACTION_REQUIRED)
    assert (condition.message, condition.changed_at) == ("set 14", NOW)


FIELD = OwnerField(
    "serving.kserve.io/v1beta1",
    "InferenceService",
    "chat",
    "isvc-1",
    "/spec/predictor/model/args/0",
    "--max-num-seqs=64",
    "--max-num-seqs=14",
    Roller.OWNER,
)
KSERVE = Owner(
    Reason.OWNED_BY_CONTROLLER,
    "KServe InferenceService chat",
    TemplateOwner(OwnerKind.INFERENCE_SERVICE, "chat", part="InferenceService"),
)
APPLY = replace(a_resource(), policy=replace(a_resource().policy, ownership=Ownership.APPLY))


@dataclass
class Rendered(Town):
    """A target that is rendered from an object, with a field that is certain or not."""

    field: OwnerField | str = FIELD
    above: Owner | None = None

    async def owner_field(self, view: View, step: FlagStep) -> OwnerField | str:
        assert step.through is None
        return self.field

    async def with_owner_object(self, view: View, field: OwnerField) -> View:
        seen = OwnerObject(field.uid, 1, EditState.BEFORE, self.above)
        return replace(view, fleet=replace(view.fleet, rendered_from=seen))


async def test_a_plan_goes_through_the_field_of_an_owner_where_a_person_lets_it() -> None:
    town = Rendered(Neighbours())

    found = await looked(owner=KSERVE, resource=APPLY, town=town)
    ours = await looked(
        owner=KSERVE, resource=APPLY, town=replace(town, field=replace(FIELD, rolled_by=Roller.KVMEDIC))
    )

    assert (found.blocked, found.proposal) == (None, None)
    assert found.plan.steps[0].through == FIELD
    assert "which kvmedic can neither drain nor hold: the engine aborts" in found.plan.message
    assert "onDrainTimeout" not in found.plan.message
    assert "kvmedic replaces the replicas" in ours.plan.message
    assert "onDrainTimeout" in ours.plan.message


async def test_who_applies_the_owners_object_is_named_and_gets_the_value() -> None:
    found = await looked(owner=KSERVE, resource=APPLY, town=Rendered(Neighbours(), above=ARGO))

    assert found.blocked is None
    assert "Argo CD Application prod applies that object" in found.plan.message
    assert "argocd app sync prod" in str(found.proposal)
    assert "InferenceService/chat" in str(found.proposal)


@pytest.mark.parametrize(
    ("resource", "field", "fleet", "words"),
    [
        (a_resource(), FIELD, {}, "would revert a change: make the change there, or see spec.ownership"),
        (APPLY, "no field of it has 64", {}, "(no field of it has 64)"),
        (APPLY, FIELD, {"strategy": "Recreate"}, "it ends every replica at once (strategy Recreate)"),
    ],
    ids=["nobody lets it", "it is not certain", "its rollout would leave too few"],
)
async def test_else_the_change_is_proposed_with_what_is_in_the_way(
    resource: Resource, field: OwnerField | str, fleet: dict[str, Any], words: str
) -> None:
    found = await looked(owner=KSERVE, resource=resource, town=Rendered(Neighbours(), field=field), **fleet)

    assert found.blocked.reason is Reason.OWNED_BY_CONTROLLER
    assert words in found.blocked.message
    assert "kubectl -n serving patch inferenceservice chat" in found.proposal.text
