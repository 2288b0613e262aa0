"""How the target of an open run stands to the run's record: as the record explains it, or who moved what.

What a rollout changed for a while is restored only where that starts no ordinary rollout. So it matters which
part was moved: the claim, one of the temporary fields, the pod template back to what it was, or the pod
template to something of somebody's own.

The freeze of a rollout in the middle of its walk, after somebody took a part of it off.

While replicas with two settings are there, the frozen fields are all that keeps the controller from
replacing the rest undrained. So they are put back, each for itself, and what somebody set in the meantime is
kept for the end: it is what they want of their Deployment. Who sets them again and again is not fought
for ever: the rollout is then held paused, and a person reads who it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from kvmedic.model.compression import parse_count
from kvmedic.model.config_edits import EditedTemplate
from kvmedic.model.fleet import (
    FROZEN_MIN_READY_SECONDS,
    FROZEN_PROGRESS_DEADLINE_SECONDS,
    ROLLING,
    STILL,
    SURGE,
    Fleet,
    RolloutFields,
    hold_by_partition,
)
from kvmedic.model.plan import ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import WALKING, Outcome, Run, StepState
from kvmedic.rollout.draining import stray_move
from kvmedic.rollout.moves import (
    Move,
    Pause,
    Regain,
    Release,
    Revert,
    Settled,
    Wait,
    kubectl_name,
    largest_wave,
)


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


def target_standing(run: Run, resource_uid: str, fleet: Fleet | None, *, rivalled: bool = False) -> Standing:
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
        return _classify_foreign_change(run, resource_uid, fleet)
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
    if not isinstance(step, ReplicasStep) or step.holder is None:
        return True
    if found is None or found.uid != step.holder.uid:
        return False
    marked = _sequence_in(found.mark, run.claims(resource_uid))
    return found.number == (step.before if marked is None else marked)


def is_foreign(resource_uid: str, fence: str) -> bool:
    """Return whether a claim names another resource."""
    return bool(fence) and fence.partition("/")[0] != resource_uid


def committed_sequence(run: Run, resource_uid: str, fence: str) -> int | None:
    """Return the sequence of the last committed assignment of this run, or None if the claim does not say.

    Record and claim are never more than one apart. No claim of this run counts as 0 only while
    nothing of the run can have been committed yet: nobody is drained before.
    """
    number = _sequence_in(fence, run.claims(resource_uid))
    if number is None:
        return 0 if run.sequence <= 1 and not run.draining_pods else None
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
    assigned = intent.fields_after if is_done else intent.fields_before
    permit = fleet.fields.max_unavailable if isinstance(fleet.fields.max_unavailable, int) else 0
    held = assigned or replace(STILL, max_unavailable=permit)
    return held if held.is_frozen else STILL


def is_thawed(run: Run, resource_uid: str, fleet: Fleet) -> bool:
    """Return whether replicas of two templates are there, or may come, and the rollout is not held.

    Where every replica runs the template in force and nothing of ours is left, nothing is to be held. What is
    left is held once more, so that all of it is given back at once.
    """
    desired = _held_fields(run, resource_uid, fleet)
    is_ours = fleet.fields.is_frozen or (fleet.fields.paused and not run.recorded.paused)
    is_ours = is_ours or PERMIT in find_overwritten_fields(run, resource_uid, fleet)
    return desired is not None and not _is_held(fleet, desired) and (is_ours or is_mixed(fleet))


def find_overwritten_fields(run: Run, resource_uid: str, fleet: Fleet) -> tuple[str, ...]:
    """Return which of the rollout's fields have another value than was assigned, by their names."""
    desired = _held_fields(run, resource_uid, fleet)
    if desired is None:
        return ()
    seen = fleet.fields
    found = {
        "maxSurge": seen.max_surge != desired.max_surge,
        "maxUnavailable": seen.max_unavailable != desired.max_unavailable,
        "minReadySeconds": seen.min_ready_seconds != desired.min_ready_seconds,
        "progressDeadlineSeconds": seen.progress_deadline_seconds != desired.progress_deadline_seconds,
        "strategy": fleet.strategy != desired.strategy,
        PERMIT: seen.permits != desired.permits and fleet.strategy == desired.strategy,
        "partition": seen.partition != desired.partition,
    }
    return tuple(name for name, differs in found.items() if differs)


def _held_fields(run: Run, resource_uid: str, fleet: Fleet) -> RolloutFields | None:
    committed = committed_sequence(run, resource_uid, fleet.fence)
    if committed is None and run.intent and not run.intent.is_frozen and not fleet.fields.is_frozen:
        return None  # the last assignment gave the fields back, and so they are
    tried = _list_sequences(run) if committed is None else (committed,)
    found = [desired for each in tried if (desired := expected_fields(run, fleet, each))]
    return next((each for each in found if _is_held(fleet, each)), found[0] if found else None)


def _is_held(fleet: Fleet, desired: RolloutFields) -> bool:
    """Return whether the rollout is held as assigned. A pause, or its end, is the walk's own business."""
    seen = replace(fleet.fields, paused=desired.paused)
    return fleet.strategy == desired.strategy and seen == desired


def is_mixed(fleet: Fleet) -> bool:
    """Return whether a replica runs, or is to run, another template than the one in force."""
    others = any(rs.desired for rs in fleet.replica_sets if rs.revision != fleet.revision)
    return others or any(pod.revision != fleet.revision for pod in fleet.live)


def _classify_foreign_change(run: Run, resource_uid: str, fleet: Fleet) -> Standing:
    if _is_reverted(run, fleet):
        is_ours = fleet.fields.is_frozen or _held_fields(run, resource_uid, fleet) is not None
        is_left = fleet.fields.paused and not fleet.fields.is_frozen and not run.recorded.paused
        return Standing.TURNED if is_ours and (is_left or is_mixed(fleet)) else Standing.REVERTED
    if run.intent is None and fleet.fence.startswith(run.claims(resource_uid)):
        # The record lost its intents: the target still has one of the two templates, or is somebody's.
        return Standing.SHIFTED if fleet.revision in _templates(run) else Standing.DRIFTED
    if fleet.revision in _expected_templates(run, resource_uid, fleet):
        rescaled = all(_is_rescaled(run, fleet, each) for each in _list_sequences(run))
        return Standing.RESCALED if rescaled else Standing.SHIFTED
    return Standing.DRIFTED


def _templates(run: Run) -> frozenset[str]:
    return frozenset({run.current.step.before_template, run.current.step.after_template})


def _expected_templates(run: Run, resource_uid: str, fleet: Fleet) -> frozenset[str]:
    """Return the pod templates that the record explains: of a record that is behind its target, both."""
    intent, number = run.intent, _sequence_in(fleet.fence, run.claims(resource_uid))
    step = run.current.step
    if intent is None:
        return _templates(run) if fleet.fields.is_frozen else frozenset({step.before_template})
    if number is not None and number > run.sequence:
        return _templates(run)
    back = {step.before_template} if run.current.state is StepState.ROLLING_BACK else set()
    begun = intent.was_frozen is False and fleet.fields.is_frozen
    if number == run.sequence:
        return frozenset({intent.template_after, *back})
    if number == run.sequence - 1:
        return frozenset(back if begun else {intent.template_before, *back})
    return frozenset({intent.template_after, *back, *(() if begun else (intent.template_before,))})


def _list_sequences(run: Run) -> tuple[int, ...]:
    return run.sequence, max(0, run.sequence - 1)


def _sequence_in(fence: str, claims: str) -> int | None:
    number = fence.removeprefix(claims)
    return parse_count(number) if number != fence else None


def _is_rescaled(run: Run, fleet: Fleet, committed: int) -> bool:
    """Return whether the number of replicas is not the one that the record explains.

    A replacement counts on it while its spare is one more, and a scaling as long as the run is open: its
    number is what is judged. A rollout counts its replicas anew, and so does a replacement without a number.
    """
    step, intent, state = run.current.step, run.intent, run.current.state
    recorded = step.counts_on
    counts = state in WALKING or (state is StepState.VERIFYING and step.is_a_number)
    if recorded is None or not counts:
        return False
    if intent is None:
        return fleet.replicas != recorded
    expected = intent.replicas_after if committed == intent.sequence else intent.replicas_before
    if expected is None and not step.is_a_number:
        return False
    return fleet.replicas != (recorded if expected is None else expected)


def _is_reverted(run: Run, fleet: Fleet) -> bool:
    """Return whether a target that drifted has the very template from before the change again."""
    intent, current = run.intent, run.current
    forward = current.state in (StepState.ROLLING_OUT, StepState.VERIFYING)
    if intent is None or not forward or current.step.template_change is None:
        return False
    had = current.step.after_template in (intent.template_before, intent.template_after)
    return had and fleet.revision == current.step.before_template


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
    desired = expected_fields(run, fleet, committed)
    if desired is not None:
        return _is_held(fleet, desired)
    return is_done or intent.was_frozen is None or not fleet.fields.is_frozen


PERMIT = "the permit to make anew what is deleted"
"""The mark of a StatefulSet's strategy `OnDelete` that distinguishes ours from the team's."""
MOST_REGAINS = 2
"""A person's edit comes once, and may come once more where it met ours; what comes a third time is a tool."""
TRUCE = timedelta(minutes=10)
"""How long a contested rollout is held before its fields are put back once more. A GitOps tool applies every
three to ten minutes (Argo CD 3 min, Flux 10 min by default): by then it shows whether somebody stopped it."""


@dataclass(frozen=True, slots=True)
class Regaining:
    """What comes next for a target that somebody shifted."""

    run: Run
    """With what is to be put back at the end as it is desired now."""
    move: Regain | Release | Pause | Wait
    outcome: Outcome
    """What was seen, and by whom."""


def regain_freeze(run: Run, resource_uid: str, fleet: Fleet, now: datetime) -> Regaining:
    """Return how the claim and the frozen fields come back; or the pause that holds what is contested.

    Where every replica runs the template in force, nothing is to be held: what is left of ours is given back.
    """
    others = find_overwritten_fields(run, resource_uid, fleet)
    doing = Reason.ROLLING_BACK if run.current.state is StepState.ROLLING_BACK else Reason.ROLLING_OUT
    edit = run.current.step.template_change
    if not others or not is_thawed(run, resource_uid, fleet):
        text = f"the claim on {kubectl_name(fleet)} was taken off{_by(fleet)}; it is put back"
        return Regaining(run, Regain(edit, run.recorded, None), Outcome(doing, text))
    seen = ", ".join(_field_setter(fleet, name) for name in others)
    if not is_mixed(fleet) and PERMIT not in others:
        ours = released_fields(fleet, run.recorded, run.may_lack)
        left = replace(ours, paused=run.recorded.paused)
        return Regaining(run, Release(left), Outcome(doing, f"{seen}, and every replica runs one template"))
    lately = run.regained_at is not None and now - run.regained_at <= TRUCE
    if run.regains >= MOST_REGAINS and lately:
        return _hold_paused(run, fleet, seen)
    desired = _fields_to_restore(run.recorded, fleet, others)
    kept = replace(run, recorded=desired, regains=run.regains + 1, regained_at=now)
    text = f"in the middle of the rollout {seen}; the rollout is frozen again"
    return Regaining(kept, Regain(edit, desired, fleet.hold_fields(run.may_lack)), Outcome(doing, text))


def _hold_paused(run: Run, fleet: Fleet, seen: str) -> Regaining:
    minutes = int(TRUCE.total_seconds() // 60)
    fields, held = (
        ("rolloutStrategy" if fleet.groups else "updateStrategy", hold_by_partition(fleet.fields))
        if fleet.is_stateful
        else (
            "strategy, minReadySeconds, progressDeadlineSeconds and paused",
            replace(fleet.fields, paused=True),
        )
    )
    text = (
        f"again and again {seen}: the rollout of {kubectl_name(fleet)} is held paused, replicas of both "
        "settings serve, and nothing of it is given back, as that would cut requests. Have that "
        f"manager leave {fields} alone (who it is: "
        f"kubectl -n {fleet.namespace} get {fleet.kind.lower()} {fleet.name} --show-managed-fields -o yaml); "
        f"the run goes on by itself within {minutes} minutes"
    )
    outcome = Outcome(Reason.ROLLOUT_CONTESTED, text)
    if not fleet.fields.paused:
        return Regaining(run, Pause(held), outcome)
    return Regaining(run, Wait(outcome.reason, outcome.message), outcome)


def _fields_to_restore(recorded: RolloutFields, fleet: Fleet, others: Iterable[str]) -> RolloutFields:
    """Return the fields to be put back at the end, with those that somebody set in the meantime.

    One that a policy altered on our own patch's way in is nobody's wish. Numbers that the API server would
    refuse together are not kept.
    """
    seen, kept = fleet.fields, recorded
    theirs = {name for name in others if not ((edit := fleet.edits.get(name)) and edit.is_ours)}
    if fleet.strategy != ROLLING:
        theirs -= {"maxSurge", "maxUnavailable", "partition"}
    values: dict[str, dict[str, Any]] = {
        "strategy": {"strategy": fleet.strategy},
        "maxSurge": {"max_surge": seen.max_surge},
        "maxUnavailable": {"max_unavailable": seen.max_unavailable},
        "minReadySeconds": {"min_ready_seconds": seen.min_ready_seconds},
        "partition": {"partition": seen.partition},
        "progressDeadlineSeconds": {"progress_deadline_seconds": seen.progress_deadline_seconds},
    }
    for name in theirs & values.keys():
        kept = replace(kept, **values[name])
    if kept.strategy == ROLLING and {kept.max_surge, kept.max_unavailable} <= {0, "0%"}:
        return recorded
    deadline = kept.progress_deadline_seconds
    return kept if deadline is None or deadline > kept.min_ready_seconds else recorded


def _field_setter(fleet: Fleet, name: str) -> str:
    if name == PERMIT:
        return f"{PERMIT} was taken off{_by(fleet)}"
    seen, edit = fleet.fields, fleet.edits.get(name)
    value = {
        "maxSurge": seen.max_surge,
        "maxUnavailable": seen.max_unavailable,
        "minReadySeconds": seen.min_ready_seconds,
        "progressDeadlineSeconds": seen.progress_deadline_seconds,
        "strategy": fleet.strategy,
        "partition": seen.partition,
    }[name]
    if edit is not None and edit.is_ours:
        return f"an admission policy altered {name} of our own patch to {value}"
    return f"{name} was set to {value}{f' by {edit}' if edit else _by(fleet)}"


def _by(fleet: Fleet) -> str:
    last = fleet.edits.get("")
    return f" (the last other writer was {last})" if last else ""


def releasing_move(
    fleet: Fleet,
    recorded: RolloutFields,
    without_ours: Mapping[str, object] | None = None,
    may_lack: int = 0,
) -> Move:
    """Return the next move toward a fleet without anything of ours but its template.

    Cordoned pods go back into rotation before the rollout is let go, so that whatever the
    controller does then, it does to a whole fleet.
    """
    if back := stray_move(fleet, fleet.pods):
        return back
    ours = released_fields(fleet, recorded, may_lack)
    if without_ours is not None:
        return Revert(EditedTemplate(without_ours), ours)
    return Settled() if ours == fleet.fields else Release(ours)


def released_fields(fleet: Fleet, recorded: RolloutFields, may_lack: int = 0) -> RolloutFields:
    """Return the fields with each one that still holds a frozen rollout's value put back.

    A field that somebody else set meanwhile is theirs and stays. `may_lack`: replicas that may be missing, so
    that a surge of 0 is ours.
    """
    seen = fleet.fields
    if fleet.is_stateful:
        own = replace(recorded, min_ready_seconds=seen.min_ready_seconds)
        return own if seen.is_frozen else seen
    held = seen.min_ready_seconds == FROZEN_MIN_READY_SECONDS
    dated = seen.progress_deadline_seconds == FROZEN_PROGRESS_DEADLINE_SECONDS
    if not held and not dated:
        return seen
    surges = range(0 if fleet.rotation.orphan or may_lack else SURGE, largest_wave(fleet.replicas) + 1)
    ours = isinstance(seen.max_unavailable, int) and seen.max_surge in surges
    return RolloutFields(
        paused=recorded.paused,
        max_surge=recorded.max_surge if ours else seen.max_surge,
        max_unavailable=recorded.max_unavailable if ours else seen.max_unavailable,
        min_ready_seconds=recorded.min_ready_seconds if held else seen.min_ready_seconds,
        progress_deadline_seconds=(
            recorded.progress_deadline_seconds if dated else seen.progress_deadline_seconds
        ),
        strategy=recorded.strategy if ours and seen.strategy == ROLLING else seen.strategy,
    )
