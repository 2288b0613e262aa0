"""What an open run writes down before an effect: which pod it takes, or what it assigns to the Deployment.

Nothing is changed here. Moves on pods are recomputed from what is observed; an assignment has a number,
by which the claim on the target tells afterwards whether it was committed.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from kvmedic.core.draining import TimedOut, Victim
from kvmedic.core.fleet import Fleet, Pod, RolloutFields
from kvmedic.core.moves import (
    Claim,
    Cordon,
    DeletePod,
    DeploymentMove,
    Effect,
    Freeze,
    Hold,
    Pause,
    Pulse,
    Regain,
    Retarget,
    Revert,
    ScaleIn,
    ScaleOut,
    SetMinimum,
    Uncordon,
)
from kvmedic.core.run import Intent, Run, StepState
from kvmedic.core.standing import claimed_sequence, committed_sequence
from kvmedic.core.swap import EditedTemplate
from kvmedic.core.template import template_hash
from kvmedic.walks import Tick


def intended(tick: Tick, fleet: Fleet, effect: Effect) -> Run:
    """Return the run with the effect written down."""
    run = tick.run
    match effect:
        case Cordon(pod):
            known = run.victim is not None and run.victim.uid == pod.uid
            return run if known else replace(run, victim=Victim(pod.name, pod.uid, tick.now))
        case Uncordon(pod, timed_out):
            return _put_back(run, pod, tick.policy.rollout.drain_timeout if timed_out else None)
        case DeletePod() | SetMinimum():
            return run
        case _:
            return _assigned(tick, fleet, effect)


def _put_back(run: Run, pod: Pod, after: timedelta | None) -> Run:
    """Return the run with a replica back in rotation; `after`: the time-out that its drain came to, if any.

    Whoever dies before it is back finds it cordoned and not named: then it is put back as any stray one.
    """
    if after is not None:
        others = tuple(one for one in run.timed_out if one.uid != pod.uid)
        run = replace(run, timed_out=(*others, TimedOut(pod.name, pod.uid, after, pod.listed_by)))
    same = run.victim is not None and run.victim.uid == pod.uid
    return replace(run, victim=None) if same else run


def _assigned(tick: Tick, fleet: Fleet, effect: DeploymentMove) -> Run:
    """Return the run with an assignment to the Deployment written down.

    An assignment that was written down and never committed gives its number to the next one, so the
    claim and the record can never be more than one apart.
    """
    run = tick.run
    if run.current.state is StepState.PENDING:
        run = run.with_step(replace(run.current, state=StepState.ROLLING_OUT))
    if isinstance(effect, Freeze | Hold):
        run = replace(run, recorded=fleet.fields)
    if isinstance(effect, Pulse | ScaleIn | Retarget):
        # One goes: whoever was put back before gets another try.
        run = replace(run, timed_out=())
    uid = tick.resource.uid
    committed = committed_sequence(run, uid, fleet.fence)
    before, after = _fields(fleet, effect)
    fewest, most = _numbers(run, fleet, effect)
    intent = Intent(
        sequence=(claimed_sequence(run, uid, fleet.fence) if committed is None else committed) + 1,
        move=type(effect).__name__,
        template_before=fleet.revision,
        template_after=_template_after(run, fleet, effect),
        is_frozen=_freezes(effect, after),
        at=tick.now,
        was_frozen=before.is_frozen,
        replicas_before=fewest,
        replicas_after=most,
        fields_before=before,
        fields_after=after,
    )
    return replace(run, intent=intent)


def _freezes(effect: DeploymentMove, after: RolloutFields) -> bool:
    """Return whether an assignment leaves the rollout frozen."""
    if isinstance(effect, Regain):
        return after.is_frozen
    return isinstance(effect, Freeze | Hold | Retarget | Pause | Pulse)


def _fields(fleet: Fleet, effect: DeploymentMove) -> tuple[RolloutFields, RolloutFields]:
    """Return the rollout's fields before and after an assignment.

    What is regained was frozen before as well: until that is committed the target is not as it should be.
    """
    match effect:
        case Regain(fields=fields):
            wanted = fields or fleet.fields
            return wanted, wanted
        case ScaleOut() | ScaleIn() | Claim():
            return fleet.fields, fleet.fields
        case _:
            return fleet.fields, effect.fields


def _numbers(run: Run, fleet: Fleet, effect: DeploymentMove) -> tuple[int | None, int | None]:
    """Return the numbers of replicas before and after an assignment; None where it does not matter."""
    match effect:
        case ScaleOut(before, after) | ScaleIn(before, after):
            return before, after
        case Regain() if run.intent is not None and run.intent.replicas_after is not None:
            return fleet.replicas, fleet.replicas
        case _:
            return None, None


def _template_after(run: Run, fleet: Fleet, effect: DeploymentMove) -> str:
    """Return the hash of the pod template after an assignment."""
    step = run.current.step
    match effect:
        case Revert(EditedTemplate(template)):
            return template_hash(template)
        case Freeze() | Retarget() | Revert():
            return step.after_template if fleet.revision == step.before_template else step.before_template
        case _:
            return fleet.revision
