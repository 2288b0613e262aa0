"""How the target of an open run stands to the run's record: as the record explains it, or who moved what.

What a rollout borrowed is given back only where that starts no ordinary rollout. So it matters which part was
moved: the claim, one of the borrowed fields, the pod template back to what it was, or the pod template to
something of somebody's own.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import assert_never

from kvmedic.core.bundle import BundleStep
from kvmedic.core.fleet import ROLLING, STILL, Fleet, RolloutFields
from kvmedic.core.gating import GateStep
from kvmedic.core.plan import AutoscalerStep, ConfigStep, FlagStep, ReplaceStep, RevisionStep, ScaleStep, Step
from kvmedic.core.quantity import parse_count
from kvmedic.core.run import WALKING, Run, StepState
from kvmedic.core.trialling import TrialStep


class Standing(StrEnum):
    """How the target stands to the run's record."""

    AS_RECORDED = "AsRecorded"
    """Nothing but what the record explains."""
    GONE = "Gone"
    """The Deployment was deleted, or is kept by somebody's finalizer alone, which its controller does nothing
    for any more; or another of the same name took its place."""
    DRIFTED = "Drifted"
    """Somebody else changed the pod template to something of their own."""
    REVERTED = "Reverted"
    """Somebody else put the pod template from before the run back, and nothing is frozen."""
    TURNED = "Turned"
    """The same in the middle of the walk: replicas with both settings are there."""
    SHIFTED = "Shifted"
    """The pod template is as recorded; the claim or the rollout's fields are not."""
    FENCE_LOST = "FenceLost"
    """The claim annotation is another run's that is open."""
    SCALED_TO_ZERO = "ScaledToZero"
    """Nobody serves; the next scale-out would bring back an unjudged setting."""
    SOURCE_CHANGED = "SourceChanged"
    """Somebody else changed the ConfigMap that the change was copied from: the copy hides that."""
    RESCALED = "Rescaled"
    """Somebody else changed the number of replicas while a step counts on it."""


def standing(run: Run, resource_uid: str, fleet: Fleet | None, *, rivalled: bool = False) -> Standing:
    """Return how the target stands to the run's record.

    The claim annotation says which assignment was committed last; the template and the rollout's
    fields must then be what that assignment made them. Annotations may go at any time (a tool prunes
    them, `kubectl rollout undo` puts those of an older ReplicaSet back: kubectl 1.36, rollback.go), and a
    status may be older than its target (edited, or restored). Then what either assignment explains is
    still ours. Only a claim whose run is open (`rivalled`) says that another moves the target.
    """
    if fleet is None or fleet.uid != run.target_uid or fleet.kept_by:
        return Standing.GONE
    if rivalled:
        return Standing.FENCE_LOST
    committed = committed_sequence(run, resource_uid, fleet.fence)
    if committed is None or not _explains(run, fleet, committed):
        return _moved(run, resource_uid, fleet)
    if fleet.replicas == 0:
        return Standing.SCALED_TO_ZERO
    if _is_rescaled(run, fleet, committed) or not is_kept(run, resource_uid, fleet):
        return Standing.RESCALED
    return Standing.AS_RECORDED


def is_kept(run: Run, resource_uid: str, fleet: Fleet) -> bool:
    """Return whether the autoscaler that a step goes through has the minimum that the record explains.

    The mark on it, set in the same patch, has the number that was set last. Without a mark of this run
    nothing was set yet: the number must be the one that the step begins with. True for other steps.
    """
    step, found = run.current.step, fleet.minimum
    if not isinstance(step, AutoscalerStep):
        return True
    if found is None or found.uid != step.holder_uid:
        return False
    marked = _sequence_in(found.mark, run.claims(resource_uid))
    return found.number == (step.before if marked is None else marked)


def is_foreign(resource_uid: str, fence: str) -> bool:
    """Return whether a claim names another resource."""
    return bool(fence) and fence.partition("/")[0] != resource_uid


def committed_sequence(run: Run, resource_uid: str, fence: str) -> int | None:
    """Return the sequence of the last committed assignment of this run, or None if the claim does not say.

    Record and claim are never more than one apart. No claim of this run counts as 0 only while
    nothing of the run can have been committed yet.
    """
    number = _sequence_in(fence, run.claims(resource_uid))
    if number is None:
        return 0 if run.sequence <= 1 else None
    return number if run.sequence - 1 <= number <= run.sequence else None


def claimed_sequence(run: Run, resource_uid: str, fence: str) -> int:
    """Return the sequence that the next assignment must be above: of the record or the claim."""
    return max(run.sequence, _sequence_in(fence, run.claims(resource_uid)) or 0)


def expected_fields(run: Run, fleet: Fleet, committed: int) -> RolloutFields | None:
    """Return the frozen fields that the target should have; None where it should not be frozen.

    A record of a version that did not say what it assigned has one of two: whatever number of replicas may
    be missing was ours.
    """
    intent = run.intent
    if intent is None:
        return None
    is_done = committed >= intent.sequence
    if not (intent.is_frozen if is_done else intent.was_frozen):
        return None
    told = intent.fields_after if is_done else intent.fields_before
    permit = fleet.fields.max_unavailable if isinstance(fleet.fields.max_unavailable, int) else 0
    held = told or replace(STILL, max_unavailable=permit)
    return held if held.is_frozen else STILL


def is_thawed(run: Run, resource_uid: str, fleet: Fleet) -> bool:
    """Return whether replicas of two templates are there, or may come, and the rollout is not held.

    Where every replica runs the template in force and nothing of ours is left, nothing is to be held. What is
    left is held once more, so that all of it is given back at once.
    """
    wanted = _held(run, resource_uid, fleet)
    is_ours = fleet.fields.is_frozen or (fleet.fields.paused and not run.recorded.paused)
    return wanted is not None and not _is_held(fleet, wanted) and (is_ours or is_mixed(fleet))


def set_by_others(run: Run, resource_uid: str, fleet: Fleet) -> tuple[str, ...]:
    """Return which of the rollout's fields have another value than was assigned, by their names."""
    wanted = _held(run, resource_uid, fleet)
    if wanted is None:
        return ()
    seen = fleet.fields
    found = {
        "maxSurge": seen.max_surge != wanted.max_surge,
        "maxUnavailable": seen.max_unavailable != wanted.max_unavailable,
        "minReadySeconds": seen.min_ready_seconds != wanted.min_ready_seconds,
        "progressDeadlineSeconds": seen.progress_deadline_seconds != wanted.progress_deadline_seconds,
        "strategy": fleet.strategy != ROLLING,
    }
    return tuple(name for name, differs in found.items() if differs)


def _held(run: Run, resource_uid: str, fleet: Fleet) -> RolloutFields | None:
    committed = committed_sequence(run, resource_uid, fleet.fence)
    if committed is None and run.intent and not run.intent.is_frozen and not fleet.fields.is_frozen:
        return None  # the last assignment gave the fields back, and so they are
    tried = _either(run) if committed is None else (committed,)
    found = [wanted for each in tried if (wanted := expected_fields(run, fleet, each))]
    return next((each for each in found if _is_held(fleet, each)), found[0] if found else None)


def _is_held(fleet: Fleet, wanted: RolloutFields) -> bool:
    """Return whether the rollout is held as assigned. A pause, or its end, is the walk's own business."""
    seen = replace(fleet.fields, paused=wanted.paused)
    return fleet.strategy == ROLLING and seen == wanted


def is_mixed(fleet: Fleet) -> bool:
    """Return whether a replica runs, or is told to run, another template than the one in force."""
    others = any(rs.desired for rs in fleet.replica_sets if rs.revision != fleet.revision)
    return others or any(pod.revision != fleet.revision for pod in fleet.live)


def _moved(run: Run, resource_uid: str, fleet: Fleet) -> Standing:
    """Return what somebody else moved, where claim and record do not explain the target."""
    if _is_reverted(run, fleet):
        is_ours = fleet.fields.is_frozen or _held(run, resource_uid, fleet) is not None
        is_left = fleet.fields.paused and not fleet.fields.is_frozen and not run.recorded.paused
        return Standing.TURNED if is_ours and (is_left or is_mixed(fleet)) else Standing.REVERTED
    if run.intent is None and fleet.fence.startswith(run.claims(resource_uid)):
        # The record lost its intents: the target still has one of the two templates, or is somebody's.
        return Standing.SHIFTED if fleet.revision in _templates(run) else Standing.DRIFTED
    if fleet.revision in _expected(run, resource_uid, fleet):
        return Standing.SHIFTED if _is_counted(run, fleet) else Standing.RESCALED
    return Standing.DRIFTED


def _is_counted(run: Run, fleet: Fleet) -> bool:
    """Return whether the number of replicas is one that the record explains, whatever was committed."""
    return not all(_is_rescaled(run, fleet, each) for each in _either(run))


def _templates(run: Run) -> frozenset[str]:
    return frozenset({run.current.step.before_template, run.current.step.after_template})


def _expected(run: Run, resource_uid: str, fleet: Fleet) -> frozenset[str]:
    """Return the pod templates that the record explains: of a record that is behind its target, both."""
    intent, number = run.intent, _sequence_in(fleet.fence, run.claims(resource_uid))
    if intent is None:
        return _templates(run) if fleet.fields.is_frozen else frozenset({run.current.step.before_template})
    if number is not None and number > run.sequence:
        return _templates(run)
    back = {run.current.step.before_template} if run.current.state is StepState.ROLLING_BACK else set()
    begun = intent.was_frozen is False and fleet.fields.is_frozen
    if number == run.sequence:
        return frozenset({intent.template_after, *back})
    if number == run.sequence - 1:
        return frozenset(back if begun else {intent.template_before, *back})
    return frozenset({intent.template_after, *back, *(() if begun else (intent.template_before,))})


def _either(run: Run) -> tuple[int, ...]:
    return run.sequence, max(0, run.sequence - 1)


def _sequence_in(fence: str, claims: str) -> int | None:
    """Return the sequence in a claim that begins as given; None for any other text."""
    number = fence.removeprefix(claims)
    return parse_count(number) if number != fence else None


def _is_rescaled(run: Run, fleet: Fleet, committed: int) -> bool:
    """Return whether the number of replicas is not the one that the record explains.

    A replacement counts on it while it is under way, and a scaling as long as the run is open: its
    number is what is judged. A rollout counts its replicas anew.
    """
    step, intent, state = run.current.step, run.intent, run.current.state
    match step:
        case BundleStep() | FlagStep() | ConfigStep() | RevisionStep() | AutoscalerStep():
            return False
        case TrialStep() | GateStep():
            return False
        case ReplaceStep():
            counts, recorded = state in WALKING, step.replicas
        case ScaleStep():
            counts, recorded = state in WALKING or state is StepState.VERIFYING, step.before
        case _:
            assert_never(step)
    if not counts:
        return False
    if intent is None:
        return fleet.replicas != recorded
    told = intent.replicas_after if committed == intent.sequence else intent.replicas_before
    return fleet.replicas != (recorded if told is None else told)


def _is_reverted(run: Run, fleet: Fleet) -> bool:
    """Return whether a target that drifted has the very template from before the change again."""
    intent, current = run.intent, run.current
    forward = current.state in (StepState.ROLLING_OUT, StepState.VERIFYING)
    if intent is None or not forward or _keeps_template(current.step):
        return False
    had = current.step.after_template in (intent.template_before, intent.template_after)
    return had and fleet.revision == current.step.before_template


def _keeps_template(step: Step) -> bool:
    return step.before_template == step.after_template


def _explains(run: Run, fleet: Fleet, committed: int) -> bool:
    """Return whether an assignment makes the template and the rollout's fields what they are.

    One that was not committed, or was undone since, leaves the template and the fields of before.
    """
    intent = run.intent
    if intent is None:
        return fleet.revision == run.current.step.before_template and not fleet.fields.is_frozen
    is_done = committed >= intent.sequence
    if fleet.revision != (intent.template_after if is_done else intent.template_before):
        return False
    wanted = expected_fields(run, fleet, committed)
    if wanted is not None:
        return _is_held(fleet, wanted)
    return is_done or intent.was_frozen is None or not fleet.fields.is_frozen
