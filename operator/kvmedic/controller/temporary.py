"""What was added or lent for a while, from look to look: noted, and forgotten where it is somebody else's.

A resource that is deleted while something is there for a while: it is given back first.

No gate blocks that. A setting is put back by the same rollout as ever, and tried once.

Shares of the devices' memory that were too much, as surveys and runs come upon them.

What becomes of the copy of a ConfigMap in one tick of a run, and after it.

The copy is named in the run's record before it is made, so whoever reads the record after a crash
knows of it. It is removed only once nothing refers to it: a ReplicaSet that is kept for
`kubectl rollout undo` would give replicas that cannot start.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.api.resource import GROUP, PLURAL
from kvmedic.controller.evidence import Survey, engine_of
from kvmedic.controller.next_move import Tick, resting_move
from kvmedic.controller.plans import obstacle_to
from kvmedic.controller.ports import Ports, Target, save
from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import Goal, Plan, file_copied_by
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Run, StepState, without_spec
from kvmedic.model.sentences import SENTENCES
from kvmedic.model.spec import Policy, ScaleBound, TargetRef
from kvmedic.model.status import Borrowed, ConfigCopy, Footprint, Record, Resource
from kvmedic.record.runs import open_run, with_outgrown
from kvmedic.record.surveys import REFRESH, complaint
from kvmedic.rollout.config_copy import SourceState, await_config_map, copying_move, hindrance, needs_source
from kvmedic.rollout.decide import Decision, Direction, Walk, Watch
from kvmedic.rollout.drift import Standing
from kvmedic.rollout.moves import Failed, MakeCopy, Move, Refused, Wait
from kvmedic.runbooks.branches import Diagnosed
from kvmedic.runbooks.preemption.give_back import loan_return, restore_after, tenure
from kvmedic.runbooks.preemption.loans import Tenure, in_calm, is_held, returning_step, with_outlook
from kvmedic.runbooks.preemption.present import memory_share
from kvmedic.runbooks.workload import View, Workload
from kvmedic.verdict.summary import Measure, run_of


def note_temporary(record: Record, found: Survey, policy: Policy, now: datetime) -> Record:
    """Return the record with what a look says of the replicas that were added, and the memory that was lent.

    The same number or value set by somebody else in between is not told apart, and counts as ours.
    """
    calm = isinstance(found.diagnosis, Diagnosed) and found.diagnosis.reason is Reason.HEALTHY
    since, held = now if calm else None, record.footprint
    if held is not None and is_held(held, found.view.fleet):
        held = with_outlook(in_calm(held, since), found.outlook, now, REFRESH)
        return replace(record, footprint=held, borrowed=_remaining_loans(record, found, policy, since, ""))
    return replace(
        record, footprint=None, borrowed=_remaining_loans(record, found, policy, since, found.outlook)
    )


def _remaining_loans(
    record: Record, found: Survey, policy: Policy, since: datetime | None, outlook: str
) -> tuple[Borrowed, ...]:
    """Return what is still lent; what nobody can read now stays, and was not calm."""
    if not record.borrowed:
        return ()
    workload, uid = engine_of(found.view, policy), found.view.fleet.uid
    whose = [(lent, tenure(lent, uid, workload)) for lent in record.borrowed]
    now = since or found.burn.at
    return tuple(
        with_outlook(in_calm(lent, since if of is Tenure.OURS else None), outlook, now, REFRESH)
        for lent, of in whose
        if of is not Tenure.THEIRS
    )


async def with_holder(view: View, held: Footprint | None, target: Target) -> View:
    """Return the target with what is held for it, where that is an autoscaler's."""
    if held is None or held.holder == held.target:
        return view
    return await target.with_minimum(view, held.holder)


def why_still_held(record: Record, policy: Policy) -> Blocked | None:
    """Return why what was added or lent for a while is still there; None where there is nothing."""
    held, bound = record.footprint, policy.scale_out
    if held is not None:
        after = (bound or ScaleBound()).restore_after
        text = (
            f"{held.line()}; they are given back after {after.total_seconds() / 60:.0f} minutes of calm, "
            "once fewer are predicted to carry the load (status.footprint)"
        )
        return Blocked(Reason.FOOTPRINT_HELD, text)
    if not record.borrowed:
        return None
    lent = record.borrowed[0]
    text = (
        f"{lent.line()}; it is given back after {restore_after(policy).total_seconds() / 60:.0f} minutes of "
        "calm, once the fleet is predicted to carry the load without it (status.borrowed)"
    )
    return Blocked(Reason.LOAN_HELD, text)


async def give_back(resource: Resource, record: Record, ports: Ports, now: datetime) -> timedelta | None:
    """Open the run that gives back what is there for a while.

    Returns when to look again, or None where nothing is left to give back.
    """
    for held in (record.footprint, *record.borrowed):
        again = None if held is None else await _given_back(resource, record, held, ports, now)
        if again is not None:
            return again
    return None


async def _given_back(
    resource: Resource, record: Record, held: Footprint | Borrowed, ports: Ports, now: datetime
) -> timedelta | None:
    policy = _policy(resource, held)
    view = await ports.target.look(resource.namespace, policy) if policy is not None else None
    if policy is None or view is None:
        return None
    if isinstance(held, Footprint):
        view = await with_holder(view, held, ports.target)
    plan = _plan_return(resource, held, view, policy)
    if plan is None:
        return None
    if isinstance(plan, Blocked):
        why = Blocked(plan.reason, f"{plan.message}; it is deleted once {held.line()} is given back")
        await save(resource, complaint(record, why, resource.generation, now), ports)
        return ports.pace.idle
    run = replace(run_of(plan, view.fleet, view.template, Measure(Goal.CALM), now), terms=held.terms)
    await save(resource, open_run(record, run, resource.generation, now), ports)
    return timedelta(0)


def _policy(resource: Resource, held: Footprint | Borrowed) -> Policy | None:
    """Return what giving back goes by, also where the spec cannot be followed; None: nothing says enough."""
    if resource.policy is not None or held.terms is None:
        return resource.policy
    return without_spec(TargetRef(held.target.kind, held.target.name, held.container), held.terms)


def _plan_return(
    resource: Resource, held: Footprint | Borrowed, view: View, policy: Policy
) -> Plan | Blocked | None:
    """Return the plan that gives something back, or why it cannot begin; None: it is somebody else's now."""
    match held:
        case Footprint():
            plan: Plan | Blocked | None = _fewer(resource, held, view)
        case Borrowed():
            plan = _plan_flag_return(resource, held, view, policy)
    match plan:
        case None:
            return None
        case Blocked():
            return plan
        case Plan(steps=steps, reason=reason):
            message = f"the resource is deleted: {SENTENCES[reason]}"
            deleting = replace(plan, reason=Reason.RESOURCE_DELETED, message=message)
            return obstacle_to(steps[0], view.fleet, Goal.CALM) or deleting


def _fewer(resource: Resource, held: Footprint, view: View) -> Plan | None:
    """Return the plan that takes added replicas away; None where the number is somebody else's now."""
    fleet = view.fleet
    if not is_held(held, fleet):
        return None
    step = returning_step(held, held.fewest, fleet.revision)
    return Plan((step,), fleet.uid, fleet.revision, resource.generation, step.reason)


def _plan_flag_return(
    resource: Resource, lent: Borrowed, view: View, policy: Policy
) -> Plan | Blocked | None:
    """Return the plan that puts a lent flag's value back, or why there is none; None: it is not ours now."""
    workload = engine_of(view, policy)
    whose = tenure(lent, view.fleet.uid, workload)
    if whose is Tenure.THEIRS:
        return None
    if isinstance(workload, Blocked):
        return workload
    if whose is Tenure.UNKNOWN:
        return Blocked(Reason.FLAG_NOT_EDITABLE, "the file with the engine's flags cannot be read")
    return loan_return(workload, lent, "", resource.generation)


def abandon_command(resource: Resource) -> str:
    """Return what lets a resource go as it is, as it is typed."""
    kind = f"{PLURAL}.{GROUP}"
    return f"kubectl -n {resource.namespace} annotate {kind} {resource.name} {GROUP}/abandon=true"


async def remove_finalizer(resource: Resource, ports: Ports, record: Record | None = None) -> None:
    """Take the finalizer off; not while something of a record has to be put or given back before the end."""
    if resource.finalized and (record is None or not _is_owing(record)):
        await ports.store.finalize(resource, present=False)


def _is_owing(record: Record) -> bool:
    """Return whether something of ours is on the target although no run is open."""
    return record.footprint is not None or bool(record.borrowed)


def with_known_limit(record: Record, found: Survey, policy: Policy, now: datetime) -> Record:
    """Return the record with the share at which a replica ran out of its GPU's memory, where one just did.

    Written down with the diagnosis, in every mode: whoever lowers the share, it is not raised to there again.
    """
    if isinstance(found.diagnosis, Inconclusive) or found.diagnosis.reason is not Reason.CUDA_OUT_OF_MEMORY:
        return record
    workload = found.engine(policy)
    share = memory_share(workload) if isinstance(workload, Workload) else None
    if share is None or share.ratio is None or share.fixed_by or share.unread:
        return record
    return with_outgrown(record, share.ratio, found.view.template, now)


FORWARD = frozenset({StepState.PENDING, StepState.ROLLING_OUT, StepState.VERIFYING})
"""States in which the change is what is wanted."""


async def with_files(tick: Tick, fleet: Fleet) -> Tick:
    """Return the tick with how the step's ConfigMap and its copy stand; as it is where the step has none."""
    file = file_copied_by(tick.run.current.step)
    return tick if file is None else replace(tick, files=await tick.ports.copies.stand(fleet, file))


def overtaken(tick: Tick, stands: Standing) -> Standing:
    """Return how the target stands to the record, where somebody may have changed the ConfigMap."""
    changed = tick.files is not None and tick.files.source is SourceState.CHANGED
    forward = tick.run.current.state in FORWARD
    return Standing.SOURCE_CHANGED if changed and forward and stands is Standing.AS_RECORDED else stands


def unavailable(tick: Tick) -> Blocked | None:
    """Return why nothing can be built on the ConfigMap now; None where there is none, or it is as planned."""
    file = file_copied_by(tick.run.current.step)
    text = hindrance(file, tick.files) if file and tick.files else ""
    return Blocked(Reason.CONFIG_MAP_UNAVAILABLE, text) if text else None


def copy_first(tick: Tick, decision: Decision) -> MakeCopy | Failed | Refused | None:
    """Return what has to happen to the copy before a decision is carried out; None: nothing."""
    file = file_copied_by(tick.run.current.step)
    forward = isinstance(decision, Watch) or decision == Walk(Direction.FORWARD)
    if file is None or tick.files is None or not forward:
        return None
    return copying_move(file, tick.files, begun=tick.run.intent is not None)


def held_back(tick: Tick, fleet: Fleet, move: Move) -> Move:
    """Return a move of the way back, or what keeps replicas serving where there is nothing to go back to."""
    file = file_copied_by(tick.run.current.step)
    if file is None or tick.files is None or tick.files.source is not SourceState.GONE:
        return move
    if not needs_source(move):
        return move
    rest = resting_move(tick, fleet)
    return await_config_map(file, tick.files) if isinstance(rest, Wait) else rest


async def swept(record: Record, run: Run | None, fleet: Fleet | None, ports: Ports) -> Record:
    """Return the record without those copies that nothing refers to any more; they are removed.

    Args:
        record: with the copies of closed runs.
        run: that is being closed, with what it may have made; None: no run is open.
        fleet: the target; None: it is gone, and its copies go with it.
        ports: the world.
    """
    steps = (each.step for each in run.steps) if run else ()
    made = (ConfigCopy(file.copy, s.after_template) for s in steps if (file := file_copied_by(s)))
    copies = tuple(dict.fromkeys((*record.copies, *made)))
    if copies and fleet is not None and ports.leader.is_held():
        copies = await ports.copies.sweep(fleet, copies)
    return record if copies == record.copies else replace(record, copies=copies)
