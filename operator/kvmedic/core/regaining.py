"""The freeze of a rollout in the middle of its walk, after somebody took a part of it off.

While replicas with two settings are there, the frozen fields are all that keeps the controller from
replacing the rest undrained. So they are put back, each for itself, and what somebody set in the meantime is
kept for the end: it is what they want of their Deployment. Whoever sets them again and again is not fought
for ever: the rollout is then held paused, and a person is told who it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from kvmedic.core.bundle import BundleStep
from kvmedic.core.fleet import ROLLING, STILL, Fleet, RolloutFields
from kvmedic.core.gating import GateStep
from kvmedic.core.moves import Pause, Regain, Release, Wait
from kvmedic.core.plan import AutoscalerStep, ConfigStep, FlagStep, ReplaceStep, RevisionStep, ScaleStep, Step
from kvmedic.core.reasons import Reason
from kvmedic.core.release import released
from kvmedic.core.run import Outcome, Run, StepState
from kvmedic.core.standing import is_mixed, is_thawed, set_by_others
from kvmedic.core.swap import TemplateChange
from kvmedic.core.trialling import TrialStep

MOST_REGAINS = 2
"""A person's edit comes once, and may come once more where it met ours; what comes a third time is a tool."""
TRUCE = timedelta(minutes=10)
"""How long a contested rollout is held before its fields are put back once more. A GitOps tool applies every
three to ten minutes (Argo CD 3 min, Flux 10 min by default): by then it shows whether it was told to stop."""


@dataclass(frozen=True, slots=True)
class Regaining:
    """What comes next for a target that somebody shifted."""

    run: Run
    """With what is to be put back at the end as it is wanted now."""
    move: Regain | Release | Pause | Wait
    told: Outcome
    """What was seen, and by whom."""


def regaining(run: Run, resource_uid: str, fleet: Fleet, now: datetime) -> Regaining:
    """Return how the claim and the frozen fields come back; or the pause that holds what is contested.

    Where every replica runs the template in force, nothing is to be held: what is left of ours is given back.
    """
    others = set_by_others(run, resource_uid, fleet)
    doing = Reason.ROLLING_BACK if run.current.state is StepState.ROLLING_BACK else Reason.ROLLING_OUT
    edit = change_of(run.current.step)
    if not others or not is_thawed(run, resource_uid, fleet):
        text = f"the claim on deployment/{fleet.name} was taken off{_by(fleet)}; it is put back"
        return Regaining(run, Regain(edit, run.recorded, None), Outcome(doing, text))
    seen = ", ".join(_told(fleet, name) for name in others)
    if not is_mixed(fleet):
        left = replace(released(fleet.fields, run.recorded), paused=run.recorded.paused)
        return Regaining(run, Release(left), Outcome(doing, f"{seen}, and every replica runs one template"))
    if _is_contested(run, now):
        return _held(run, fleet, seen)
    wanted = _wanted(run.recorded, fleet, others)
    kept = replace(run, recorded=wanted, regains=run.regains + 1, regained_at=now)
    text = f"in the middle of the rollout {seen}; the rollout is frozen again"
    return Regaining(kept, Regain(edit, wanted, STILL), Outcome(doing, text))


def change_of(step: Step) -> TemplateChange | None:
    """Return what a step changes of the pod template; None: nothing."""
    match step:
        case BundleStep() | FlagStep() | ConfigStep():
            return step.edit
        case RevisionStep():
            return step.swap
        case ReplaceStep() | ScaleStep() | AutoscalerStep() | TrialStep() | GateStep():
            return None
        case _:
            assert_never(step)


def _is_contested(run: Run, now: datetime) -> bool:
    if run.regains < MOST_REGAINS or run.regained_at is None:
        return False
    return now - run.regained_at <= TRUCE


def _held(run: Run, fleet: Fleet, seen: str) -> Regaining:
    minutes = int(TRUCE.total_seconds() // 60)
    text = (
        f"again and again {seen}: the rollout of deployment/{fleet.name} is held paused, replicas of both "
        "settings serve, and nothing of it is given back, as that would cut requests. Have that "
        "manager leave strategy, minReadySeconds, progressDeadlineSeconds and paused alone (who it is: "
        f"kubectl -n {fleet.namespace} get deployment {fleet.name} --show-managed-fields -o yaml); the run "
        f"goes on by itself within {minutes} minutes"
    )
    told = Outcome(Reason.ROLLOUT_CONTESTED, text)
    if not fleet.fields.paused:
        return Regaining(run, Pause(replace(fleet.fields, paused=True)), told)
    return Regaining(run, Wait(told.reason, told.message), told)


def _wanted(recorded: RolloutFields, fleet: Fleet, others: Iterable[str]) -> RolloutFields:
    """Return the fields to be put back at the end, with those that somebody set in the meantime.

    One that a policy altered on our own patch's way in is nobody's wish. Numbers that the API server would
    refuse together are not kept.
    """
    seen, kept = fleet.fields, recorded
    theirs = {name for name in others if not _is_ours(fleet, name)}
    if fleet.strategy != ROLLING:
        theirs -= {"maxSurge", "maxUnavailable"}
    if "maxSurge" in theirs:
        kept = replace(kept, max_surge=seen.max_surge)
    if "maxUnavailable" in theirs:
        kept = replace(kept, max_unavailable=seen.max_unavailable)
    if "minReadySeconds" in theirs:
        kept = replace(kept, min_ready_seconds=seen.min_ready_seconds)
    if "progressDeadlineSeconds" in theirs:
        kept = replace(kept, progress_deadline_seconds=seen.progress_deadline_seconds)
    if {kept.max_surge, kept.max_unavailable} <= {0, "0%"}:
        return recorded
    deadline = kept.progress_deadline_seconds
    return kept if deadline is None or deadline > kept.min_ready_seconds else recorded


def _is_ours(fleet: Fleet, name: str) -> bool:
    edit = fleet.edits.get(name)
    return edit is not None and edit.is_ours


def _told(fleet: Fleet, name: str) -> str:
    """Return who set a field, and to what."""
    edit, value = fleet.edits.get(name), _value(fleet, name)
    if edit is not None and edit.is_ours:
        return f"an admission policy altered {name} of our own patch to {value}"
    return f"{name} was set to {value}{f' by {edit}' if edit else _by(fleet)}"


def _value(fleet: Fleet, name: str) -> str:
    seen = fleet.fields
    values: dict[str, int | str | None] = {
        "maxSurge": seen.max_surge,
        "maxUnavailable": seen.max_unavailable,
        "minReadySeconds": seen.min_ready_seconds,
        "progressDeadlineSeconds": seen.progress_deadline_seconds,
        "strategy": fleet.strategy,
    }
    return str(values[name])


def _by(fleet: Fleet) -> str:
    last = fleet.edits.get("")
    return f" (the last other writer was {last})" if last else ""
