"""What keeps a resource from opening a run, beside what its survey found; nothing is changed here.

A change that the owner of a target makes instead of kvmedic is shown with its exact patch or command, where
that fits into a condition; else it is left out whole, as half a patch is none, and `kvmedic plan` prints it.

Whether one run more may be open beside those of all other resources: only the leader opens runs, one at a
time. Under one lock it lists every resource as it is stored, judges, and saves the run. So of two that want
the last place one gets it, and the next process finds the same by the same list. The roster spares
that list where there is no place anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import assert_never

from kvmedic.controller.evidence import Survey, engine_of
from kvmedic.controller.plans import find_step_blocker
from kvmedic.controller.ports import Ports, Target
from kvmedic.manifests.engine_file import file_remarks, owner_of_file
from kvmedic.manifests.flags import Setting, setting_of
from kvmedic.manifests.proposals import (
    DesiredSetting,
    Proposal,
    Reverted,
    bundle_proposal_for,
    field_proposal_for,
    operations_between,
    proposal_for,
    revert_for,
)
from kvmedic.model.config_edits import OwnerField, Roller
from kvmedic.model.devices import Cause
from kvmedic.model.edits import TokenEdit
from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.fleet import Fleet, Owner, OwnerKind, TemplateOwner
from kvmedic.model.plan import (
    BundleStep,
    EvaluationStep,
    FlagStep,
    Goal,
    OnTrial,
    Plan,
    ReplaceStep,
    ReplicasStep,
    RevisionStep,
    TrialStep,
)
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Approved
from kvmedic.model.spec import Mode, Ownership, Policy, TargetRef
from kvmedic.model.status import ClosedRun, Record, Resource
from kvmedic.record.runs import MESSAGE_BYTES
from kvmedic.rollout.drift import is_foreign
from kvmedic.rollout.gates.approval import Request, find_approval
from kvmedic.rollout.gates.one_resource_per_target import Roster, find_older_claim
from kvmedic.rollout.gates.opening import Health, forward_gate, opening_gate
from kvmedic.rollout.gates.runs_at_once import Budgets, Peer, find_full_budget
from kvmedic.rollout.gates.storm_breaker import Breaker, Trip, find_any_trip, find_trip, report_trip
from kvmedic.rollout.preconditions import (
    Neighbours,
    find_blocker,
    find_reversion_blocker,
    frozen_message,
    remarks,
    via_autoscaler,
)
from kvmedic.runbooks.node_health import ended_engines
from kvmedic.runbooks.planning import drain_remark, end_of_requests
from kvmedic.runbooks.revisions import differences, options_of_interest
from kvmedic.runbooks.workload import View, Workload


def propose_plan(
    owner: TemplateOwner, namespace: str, workload: Workload, plan: Plan, view: View
) -> Proposal | None:
    """Return what to give to an owner so that a plan's change is made; None where it is no template's.

    Args:
        owner: who writes the pod template.
        namespace: of the target.
        workload: the engine in the target's pod template.
        plan: what would be done if nobody owned the template.
        view: the target.
    """
    match plan.steps[0]:
        case FlagStep() as step:
            return _propose_flag(owner, namespace, workload, step)
        case BundleStep() as step:
            return bundle_proposal_for(owner, namespace, step)
        case RevisionStep() as step:
            return _propose_revision(owner, namespace, workload, step, view)
        case ReplaceStep() | ReplicasStep() | TrialStep() | EvaluationStep():
            return None
        case other:
            assert_never(other)


def _propose_flag(
    owner: TemplateOwner, namespace: str, workload: Workload, step: FlagStep
) -> Proposal | None:
    flag = workload.engine.profile.flag(step.knob)
    desired = None if flag is None or step.after is None else setting_of(flag, step.after, workload.engine)
    edit = step.edit if isinstance(step.edit, TokenEdit) else step.file_of
    if edit is None or not isinstance(desired, Setting):
        return None
    target = step.target
    return proposal_for(owner, DesiredSetting(target.kind, namespace, target.name, desired, edit))


def _propose_revision(
    owner: TemplateOwner,
    namespace: str,
    workload: Workload,
    step: RevisionStep,
    view: View,
) -> Proposal | None:
    target, container = step.target, str(workload.container.get("name"))
    earlier = view.templates.get(step.after.replica_set)
    if earlier is None:
        return None
    named = TargetRef(target.kind, target.name, container, workload.engine.profile.name)
    changed = differences(view, named, step.after.replica_set)
    if isinstance(changed, Inconclusive):
        return None
    names = options_of_interest(workload.engine.profile)
    patch = operations_between(workload.template, earlier, workload.container_index, names)
    reverted = Reverted(target.kind, namespace, target.name, step.before, step.after, changed, patch)
    return revert_for(owner, reverted)


def advice(why: str, proposal: Proposal | None, command: str) -> str:
    """Return a sentence with the exact change behind it, in as many bytes as an Event may have.

    Args:
        why: the sentence.
        proposal: the change; None: there is none to show.
        command: prints the change where it does not fit.
    """
    if proposal is None:
        return why
    whole = f"{why}: {proposal.how}\n{proposal.text}"
    return whole if len(whole.encode()) <= MESSAGE_BYTES else f"{why}; {command} prints the exact change"


def report_missing_target(resource: Resource, policy: Policy) -> Blocked:
    """Return that there is nothing to look after."""
    name, namespace = policy.target.name, resource.namespace
    return Blocked(
        Reason.TARGET_NOT_FOUND,
        f"{policy.target.kind} {name} does not exist in namespace {namespace}: create it, or delete this "
        "resource",
    )


def find_target_blocker(resource: Resource, policy: Policy, view: View, ports: Ports) -> Blocked | None:
    """Return why the target is not one that this resource can look after."""
    if (older := find_older_claim(ports.roster, resource, policy.target)) is not None:
        return older
    if view.fleet.kept_by:
        return _report_departing(view.fleet)
    frozen = view.fleet.fields.is_frozen
    return Blocked(Reason.CLAIMED_BY_ANOTHER, frozen_message(view.fleet)) if frozen else None


def _report_departing(fleet: Fleet) -> Blocked:
    """Return that the Deployment is being deleted, and who keeps it from going."""
    removal = """'[{"op":"remove","path":"/metadata/finalizers"}]'"""
    kubectl = f"kubectl -n {fleet.namespace} patch {fleet.kind.lower()} {fleet.name} --type=json -p {removal}"
    return Blocked(
        Reason.TARGET_NOT_FOUND,
        f"{fleet.kind} {fleet.name} is being deleted and kept by {', '.join(fleet.kept_by)}: let it go once "
        f"the one who set that is done ({kubectl}), and create it anew or delete this resource",
    )


def report_unrecognised(policy: Policy, view: View) -> Blocked | None:
    """Return that no engine is recognised in the target; to be known before the fleet is in trouble."""
    engine = engine_of(view, policy)
    early = (Reason.ENGINE_UNRECOGNISED, Reason.ENGINE_NOT_SUPPORTED, Reason.TARGET_NOT_FOUND)
    return engine if isinstance(engine, Blocked) and engine.reason in early else None


async def check_ownership(found: Survey, resource: Resource, policy: Policy, target: Target) -> Survey:
    """Return a survey that knows the target's other masters: who owns it, who scales it.

    They are asked only where there is a plan that changes something of it. A blocker that was found before
    stays.
    """
    plan = found.plan
    if plan is None or isinstance(step := plan.steps[0], OnTrial):
        return found
    neighbours = await target.neighbours(found.view, step)
    if found.blocked is None:
        found = replace(found, blocked=find_reversion_blocker(neighbours, found.view.fleet))
    found, plan = await _use_autoscaler(found, plan, neighbours, target)
    found, plan = await _use_owner_field(found, plan, policy, target)
    if plan.steps[0].holder:
        neighbours = replace(neighbours, reversion=None)  # nothing of the owner's is changed
    owned = propose_to_owner(found, resource, policy)
    files = file_remarks(found.view.template, found.view.config_maps, found.view.fleet.live)
    plan = replace(plan, message="; ".join((plan.message, *remarks(neighbours), *files)))
    blocked = owned.blocked or find_blocker(neighbours, found.view.fleet)
    return replace(owned, plan=plan, blocked=blocked)


async def _use_autoscaler(
    found: Survey, plan: Plan, neighbours: Neighbours, target: Target
) -> tuple[Survey, Plan]:
    """Return a survey and its plan, which goes through the autoscaler where one decides the number."""
    step = plan.steps[0]
    if not isinstance(step, ReplicasStep) or step.holder or not neighbours.autoscalers:
        return found, plan
    through = via_autoscaler(step, neighbours, found.view.fleet)
    if isinstance(through, Blocked):
        return replace(found, blocked=through), plan
    view = await target.with_minimum(found.view, through.number_in)
    plan = replace(plan, steps=(through,))
    blocked = find_step_blocker(through, view.fleet, Goal.RELIEF)
    return replace(found, view=view, plan=plan, blocked=blocked), plan


async def _use_owner_field(found: Survey, plan: Plan, policy: Policy, target: Target) -> tuple[Survey, Plan]:
    """Return a survey and its plan, which goes through the object that the owner's controller renders.

    Where a person lets it, and the field is certain. Else the change is proposed, with what is in the way.
    """
    step, owner, why = plan.steps[0], found.view.fleet.owner, found.blocked
    if owner is None or not owner.is_controller or policy.ownership is not Ownership.APPLY:
        return found, plan
    if not isinstance(step, FlagStep) or why is None or why.reason is not owner.reason or len(plan.steps) > 1:
        return found, plan
    step = replace(step, through=None)
    field = await target.owner_field(found.view, step)
    if isinstance(field, str):
        named = Blocked(why.reason, f"{why.message} ({field})")
        return replace(found, blocked=named), replace(plan, steps=(step,))
    view = await target.with_owner_object(found.view, field)
    through = replace(step, through=field)
    above = view.fleet.rendered_from.owner if view.fleet.rendered_from else None
    given = field_proposal_for(above.template, field) if above and above.template else None
    blocked = find_step_blocker(through, view.fleet, found.goal)
    plan = replace(plan, steps=(through,), message=_field_message(found, plan, policy, field, above))
    return replace(found, view=view, plan=plan, blocked=blocked, proposal=given), plan


def _field_message(found: Survey, plan: Plan, policy: Policy, field: OwnerField, above: Owner | None) -> str:
    """Return a plan's message with who replaces the replicas, and who may put the field back."""
    engine, said, parts = found.engine(policy), plan.message, [f"it is written to {field}"]
    if field.rolled_by is Roller.OWNER:
        end = "what becomes of requests in flight is not known"
        if isinstance(engine, Workload):
            end = end_of_requests(engine)
            said = said.removesuffix(f"; {drain_remark(engine, policy.rollout, plan.steps[0])}")
        parts.append(
            f"its controller then replaces the replicas, which kvmedic can neither drain nor hold: {end}"
        )
    else:
        parts.append("its controller does not carry that over by itself: kvmedic replaces the replicas")
    if above is not None:
        parts.append(
            f"{above.name} applies that object, and may put the old value back until it has this one"
        )
    return "; ".join((said, *parts))


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a look planned, to be given to an owner."""

    found: Survey
    plan: Plan
    workload: Workload | None
    """None: the engine is not recognised, and nothing exact is given."""

    def to(self, owner: TemplateOwner) -> Proposal | None:
        """Return what to give to an owner; None where it is no template's change, or not known exactly."""
        view = self.found.view
        if self.workload is None:
            return None
        return propose_plan(owner, view.fleet.namespace, self.workload, self.plan, view)


def propose_to_owner(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return a survey with the exact change for the owner of the target, where somebody owns it."""
    refused, fleet, plan = found.blocked, found.view.fleet, found.plan
    if plan is None:
        return found
    engine = found.engine(policy)
    offer = _Offer(found, plan, None if isinstance(engine, Blocked) else engine)
    if refused is None:
        return (
            _propose_to_file_owner(offer, resource)
            or _refuse_contested(offer, resource)
            or _propose_for_keeping(offer)
        )
    if fleet.owner is None or fleet.owner.template is None or refused.reason is not fleet.owner.reason:
        return found
    proposal = offer.to(fleet.owner.template)
    message = advice(refused.message, proposal, _resource_reference(resource))
    return replace(found, blocked=Blocked(refused.reason, message), proposal=proposal)


def _propose_to_file_owner(offer: _Offer, resource: Resource) -> Survey | None:
    """Return a survey with the exact change for who decides what is in the ConfigMap; None: nobody does."""
    found = offer.found
    owner = owner_of_file(offer.plan, found.view.config_maps)
    if owner is None or owner.template is None:
        return None
    proposal = offer.to(owner.template)
    why = (
        f"{owner.name} decides what is in the ConfigMap, and a copy would hide its next change from the "
        "fleet: make the change there"
    )
    blocked = Blocked(owner.reason, advice(why, proposal, _resource_reference(resource)))
    return replace(found, blocked=blocked, proposal=proposal)


def _propose_for_keeping(offer: _Offer) -> Survey:
    """Return a survey with what the owner of the target is to be given, so that the change stays."""
    owner = offer.found.view.fleet.owner
    if owner is None or owner.template is None or not owner.gives_way:
        return offer.found
    given = offer.to(owner.template)
    return replace(offer.found, proposal=given and given.for_keeping())


def owner_patch_of(found: Survey) -> str:
    """Return what the owner of a target needs so that a plan's change stays; empty: nobody owns it.

    It is kept with the run, and shown when the change is kept. Half a patch is none: one that is too long is
    left out.
    """
    if found.proposal is None:
        return ""
    whole = str(found.proposal)
    return whole if len(whole.encode()) <= MESSAGE_BYTES else whole.partition("\n")[0]


def _refuse_contested(offer: _Offer, resource: Resource) -> Survey | None:
    """Return a survey that knows whether somebody took back what a run had changed; None: nobody did.

    That counts until the template is another one, or a person names the run.
    """
    fleet, history = offer.found.view.fleet, resource.record.history if resource.record else ()
    last = _find_reverted_number(history, fleet, offer.plan) or find_reverted_run(history, fleet.revision)
    if last is None or resource.retried == last.id:
        return None
    who = f"field manager {fleet.editor}" if fleet.editor else "someone else"
    applier = TemplateOwner(OwnerKind.APPLIER, who)
    owner = fleet.owner.template if fleet.owner and fleet.owner.template else applier
    proposal = offer.to(owner)
    if last.outcome is Reason.CHANGE_REVERTED:
        did = f"{who} put the old setting back in run {last.id}"
    elif last.outcome is Reason.REPLICAS_CHANGED:
        did = f"someone else set another number of replicas in run {last.id}"
    else:
        did = f"{who} put the old setting back after run {last.id}"
    why = (
        f"{did}; nothing more is tried on this template. "
        f"Try again: kubectl -n {resource.namespace} annotate --overwrite kvr {resource.name} "
        f"kvmedic.io/try-again={last.id}. Or make the change there"
    )
    blocked = Blocked(Reason.TEMPLATE_CONTESTED, advice(why, proposal, _resource_reference(resource)))
    return replace(offer.found, blocked=blocked, proposal=proposal)


def find_reverted_run(history: Sequence[ClosedRun], revision: str) -> ClosedRun | None:
    """Return the run whose change of the template somebody else took back; None: nobody did.

    In the middle of a run its end says so. Afterwards the last run that kept a change of the template does:
    what was there before it is there again.
    """
    kept = next((run for run in history if run.template_after), None)
    taken_back = (run for run in history if run is kept or run.outcome is Reason.CHANGE_REVERTED)
    return next((run for run in taken_back if run.template == revision), None)


def _find_reverted_number(history: Sequence[ClosedRun], fleet: Fleet, plan: Plan) -> ClosedRun | None:
    """Return the run in which an owner that applies again and again set its own number of replicas.

    Anybody else's number is a person's, or an upgrade's, and comes once.
    """
    applies = fleet.owner is not None and not fleet.owner.is_release
    if not applies or plan.steps[0].template_change is not None or plan.steps[0].holder:
        return None
    ended = (run for run in history if run.outcome is Reason.REPLICAS_CHANGED)
    return next((run for run in ended if run.template == fleet.revision), None)


def _resource_reference(resource: Resource) -> str:
    return f"kvmedic plan {resource.name} -n {resource.namespace}"


async def find_foreign_claim(resource: Resource, found: Survey, ports: Ports) -> Blocked | None:
    """Return whose claim is on the target, when it is one of another resource's open run.

    Any other is one of long ago: `kubectl rollout undo` brings it back with an older ReplicaSet.
    """
    fence = found.view.fleet.fence
    if found.plan is None or not is_foreign(resource.uid, fence):
        return None
    if not await ports.store.is_open(resource.namespace, fence):
        return None
    text = f"the open run of another resource claims the target ({fence}); wait for its end, or delete one"
    return Blocked(Reason.CLAIMED_BY_ANOTHER, text)


async def gate(policy: Policy, record: Record, found: Survey, ports: Ports, now: datetime) -> Blocked | None:
    """Return what speaks against opening a run for the plan that was made."""
    if found.plan is None:
        return None
    blocked = forward_gate(policy, await ports.stop.read())
    blocked = blocked or await ports.namespaces.refuse_unlabelled(found.view.fleet.namespace)
    return blocked or opening_gate(policy.limits, record.history, health_of(found), now)


def health_of(found: Survey) -> Health:
    """Return how a fleet fares in view of the plan that was made for it.

    A replica that is not there at all, or about whose end nothing is known, is one of the others.
    """
    fleet, ends = found.view.fleet, ended_engines(found.evidence, frozenset({Cause.DEVICE_MEMORY}))
    mended = found.plan is not None and found.plan.steps[0].reason is Reason.MEMORY_STEPPED_DOWN
    mendable = sum(mended and pod.keeps_ending and pod.name in ends for pod in fleet.live)
    desired = max(fleet.replicas, len(fleet.live))
    return Health(fleet.ready, mendable, desired - fleet.ready - mendable)


async def consent(
    resource: Resource, policy: Policy, plan: Plan, ports: Ports, now: datetime
) -> Approved | Blocked | None:
    """Return the approval that the mode asks for; None where it asks for none; or why there is none."""
    if policy.mode is not Mode.APPROVE:
        return None
    record = resource.record or Record()
    shown = record.plan
    request = Request(
        namespace=resource.namespace,
        name=resource.name,
        uid=resource.uid,
        digest=plan.digest,
        shown_at=shown.at if shown and shown.digest == plan.digest else None,
        used=frozenset(run.approval.uid for run in record.history if run.approval),
        max_age=policy.limits.approval_max_age,
    )
    return find_approval(
        request, await ports.approvals.list_approvals(resource.namespace, resource.name), now
    )


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the operator's configuration says about all resources together."""

    budgets: Budgets
    breaker: Breaker
    over: str
    """What an administrator types when a storm is over."""
    reread: timedelta
    """How long the administrator's last word counts before it is read again."""


@dataclass(slots=True)
class RunLimits:
    """All resources of this operator."""

    bounds: Bounds
    roster: Roster
    census: Callable[[], Awaitable[Sequence[Peer]]]
    """Lists every resource as it is stored."""
    storm_over_at: Callable[[], Awaitable[datetime | None]]
    """Reads when an administrator last said that a storm is over."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _over_at: datetime | None = None
    _read_at: datetime | None = None
    _refreshed_at: datetime | None = None

    async def hint(self, uid: str, now: datetime) -> Blocked | None:
        """Return what speaks against opening a run, as far as the watch has reported."""
        return await self._judge_limits(self.roster.peers(), uid, now)

    @asynccontextmanager
    async def reserve(self, uid: str, now: datetime) -> AsyncIterator[Blocked | None]:
        """Give the turn to open a run; nobody else has it until the context ends.

        Yields what speaks against it after all, by every resource as it is stored.
        """
        async with self._turn:
            blocked = await self.hint(uid, now)
            yield blocked or await self._judge_limits(await self.census(), uid, now)

    async def recheck_limits(self, uid: str, now: datetime) -> Blocked | None:
        """Return what speaks against beginning a run that was opened, by every resource as it is stored.

        Two processes may open runs within one breath, when what one of them sent before it lost the
        leadership arrives late: then one of the two has no place.
        """
        return await self._judge_limits(await self.census(), uid, now)

    async def refresh(self, now: datetime) -> None:
        """Read the administrator's word while the breaker has tripped, so that the metrics show it.

        It is called on every look at any resource, and does something now and then.
        """
        if self._refreshed_at is None or not timedelta(0) <= now - self._refreshed_at < self.bounds.reread:
            self._refreshed_at = now
            await self._read_word(find_any_trip(self.bounds.breaker, self.roster.peers(), None, now), now)

    def has_tripped(self, now: datetime) -> bool:
        """Return whether the breaker has tripped for some namespace, by the administrator's last word."""
        return find_any_trip(self.bounds.breaker, self.roster.peers(), self._over_at, now) is not None

    async def _judge_limits(self, peers: Sequence[Peer], uid: str, now: datetime) -> Blocked | None:
        namespace = next((peer.namespace for peer in peers if peer.uid == uid), "")
        found = await self._trip(peers, namespace, now)
        if found is not None:
            return report_trip(found, self.bounds.over)
        return find_full_budget(self.bounds.budgets, peers, uid)

    async def _trip(self, peers: Sequence[Peer], namespace: str, now: datetime) -> Trip | None:
        """Return the trip that counts for a namespace; the administrator is only asked where there is one."""
        found = find_trip(self.bounds.breaker, peers, None, now, namespace)
        if found is None:
            return None
        await self._read_word(found, now)
        return find_trip(self.bounds.breaker, peers, self._over_at, now, namespace)

    async def _read_word(self, found: Trip | None, now: datetime) -> None:
        """Read when the administrator last said that a storm is over, where there is one, now and then."""
        if found is None:
            return
        if self._read_at is None or not timedelta(0) <= now - self._read_at < self.bounds.reread:
            self._over_at, self._read_at = await self.storm_over_at(), now
