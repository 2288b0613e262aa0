"""The one open run of a resource: what was intended, how far it got, how it ends.

A run lives in the resource's status and nowhere else. It is written before each effect, so that
whoever reads it after a crash knows what may or may not have happened since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from kvmedic.core.bundle import BundleStep
from kvmedic.core.diagnosis import COMPARED, Goal
from kvmedic.core.draining import TimedOut, Victim
from kvmedic.core.fleet import Fleet, RolloutFields
from kvmedic.core.gating import GateStep
from kvmedic.core.plan import AutoscalerStep, ConfigStep, FlagStep, ReplaceStep, RevisionStep, ScaleStep, Step
from kvmedic.core.policy import OnDrainTimeout, RotationLabel
from kvmedic.core.quantity import parse_count
from kvmedic.core.reasons import Reason
from kvmedic.core.spending import Footing, Spending, spent
from kvmedic.core.trialling import TrialStep
from kvmedic.core.verdict import Baseline, Judged, Verdict


class StepState(StrEnum):
    """How far a step got."""

    PENDING = "Pending"
    """Recorded; nothing was done for it yet."""
    ROLLING_OUT = "RollingOut"
    """Its change is on its way through the fleet."""
    VERIFYING = "Verifying"
    """Every replica runs it; the sustained window is open."""
    KEPT = "Kept"
    """Judged and kept."""
    ROLLING_BACK = "RollingBack"
    """Its change is being taken back."""
    REVERTED = "Reverted"
    """The recorded value is back everywhere."""
    LEFT = "Left"
    """Ended where it stood, because the template is somebody else's now."""


WALKING = frozenset({StepState.PENDING, StepState.ROLLING_OUT, StepState.ROLLING_BACK})
"""States of a step that is not settled."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ends."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the plan and how far it got."""

    step: Step
    state: StepState = StepState.PENDING
    settled_at: datetime | None = None
    """When the last replica with the change was Ready: the sustained window starts here."""
    verdict: Verdict | None = None
    message: str = ""
    after: Baseline | None = None
    """The figures that it was judged by; None where it was not, or not by figures."""


@dataclass(frozen=True, slots=True)
class Intent:
    """The last assignment to the target that was written down before it was sent.

    The target's claim annotation carries the sequence of the last assignment that was committed,
    in the same patch: equal to `sequence`, this one was; below, it was not.
    """

    sequence: int
    move: str
    """Name of the move."""
    template_before: str
    template_after: str
    """Hash of the pod template once the assignment is committed."""
    is_frozen: bool
    """The assignment leaves the rollout frozen."""
    at: datetime
    was_frozen: bool | None = None
    """The rollout was frozen before the assignment. None: written by a version that did not say."""
    replicas_before: int | None = None
    replicas_after: int | None = None
    """The number of replicas before and after the assignment; None where it sets none."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What of the spec a run was begun on, so that it can be ended whatever becomes of the spec."""

    rotation_label: RotationLabel
    drain_timeout: timedelta
    on_drain_timeout: OnDrainTimeout = OnDrainTimeout.HOLD


@dataclass(frozen=True, slots=True)
class Approved:
    """The approval that a run was opened on; it counts for no other run, though it still exists."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Run:
    """One open run."""

    id: str
    """Unique among the runs of the resource; sortable by start."""
    target_uid: str
    digest: str
    """The plan's digest."""
    reason: Reason
    """The branch that was found."""
    message: str
    """One sentence with the numbers behind the plan."""
    spec_generation: int
    started_at: datetime
    steps: tuple[StepRecord, ...]
    recorded: RolloutFields
    """The target's own fields before the first effect."""
    replicas: int
    in_rotation: int
    """Replicas that took requests before the first effect."""
    blocks: int | None
    """Usable KV-cache blocks of a replica before the first effect; None when unknown."""
    baseline: Baseline | None
    """The fleet before the change; None where it could not be measured and the goal does not need it."""
    intent: Intent | None = None
    victim: Victim | None = None
    ending: Outcome | None = None
    """Set as soon as it is known how the run ends; what remains only puts things back."""
    terms: Terms | None = None
    """None: written by a version that did not say; the spec's own count then."""
    goal: Goal = Goal.RELIEF
    """By what the change is judged."""
    approval: Approved | None = None
    """None: the mode asked for none."""
    gpus: int | None = None
    """GPUs of a replica; None where its pod template asks for none."""
    spending: Spending | None = None
    """None: nothing was counted yet."""
    timed_out: tuple[TimedOut, ...] = ()
    """Replicas that were put back into rotation because their drain timed out, since the last one went."""

    def __post_init__(self) -> None:
        """Refuse a run that could never be judged.

        Raises:
            ValueError: it is to be compared with figures that it does not have.
        """
        if self.baseline is None and self.goal in COMPARED:
            raise ValueError(f"a run whose goal is {self.goal} needs the baseline that it is compared with")

    @property
    def index(self) -> int:
        """Return the position of the step that is under way, or of the last one."""
        for i, record in enumerate(self.steps):
            if record.state is not StepState.KEPT:
                return i
        return len(self.steps) - 1

    @property
    def current(self) -> StepRecord:
        """Return the step that is under way, or the last one."""
        return self.steps[self.index]

    def spent(self, fleet: Fleet, now: datetime) -> Spending:
        """Return what the run has cost up to now."""
        footing = Footing(self.current.step, self.replicas, self.started_at)
        return spent(self.spending, footing, fleet, now)

    @property
    def sequence(self) -> int:
        """Return the sequence of the last intended assignment; 0 before the first."""
        return self.intent.sequence if self.intent else 0

    def claim(self, resource_uid: str, sequence: int) -> str:
        """Return the value of the claim annotation after the assignment of a sequence."""
        return f"{self.claims(resource_uid)}{sequence}"

    def claims(self, resource_uid: str) -> str:
        """Return how every claim of this run begins."""
        return f"{resource_uid}/{self.id}/"

    def with_step(self, record: StepRecord) -> Run:
        """Return the run with the step under way replaced."""
        i = self.index
        return replace(self, steps=(*self.steps[:i], record, *self.steps[i + 1 :]))

    def settled(self, now: datetime) -> Run:
        """Return the run as its sustained window opens."""
        record = replace(self.current, state=StepState.VERIFYING, settled_at=now)
        return replace(self.with_step(record), victim=None, timed_out=())

    def kept(self, judged: Judged) -> Run:
        """Return the run with its step judged and kept."""
        record = replace(
            self.current,
            state=StepState.KEPT,
            verdict=judged.verdict,
            message=judged.message,
            after=judged.after,
        )
        done = self.with_step(record)
        last = self.index == len(self.steps) - 1
        ends = last or judged.verdict in (Verdict.RECOVERED, Verdict.INCONCLUSIVE)
        return replace(done, ending=Outcome(judged.reason, judged.message)) if ends else done

    def turned_back(self, outcome: Outcome, verdict: Verdict | None, after: Baseline | None = None) -> Run:
        """Return the run as its step begins to be taken back."""
        record = replace(
            self.current,
            state=StepState.ROLLING_BACK,
            verdict=verdict,
            message=outcome.message,
            after=after,
        )
        return replace(self.with_step(record), ending=outcome, victim=None, timed_out=())

    def answered(self, outcome: Outcome) -> Run:
        """Return the run with the question of its step answered: it ends."""
        record = replace(self.current, state=StepState.KEPT, message=outcome.message)
        return replace(self.with_step(record), ending=outcome)

    def reverted(self) -> Run:
        """Return the run with its step taken back everywhere."""
        done = self.with_step(replace(self.current, state=StepState.REVERTED))
        return replace(done, victim=None, timed_out=())

    def left(self, outcome: Outcome) -> Run:
        """Return the run as it ends where it stands."""
        record = replace(self.current, state=StepState.LEFT, message=outcome.message)
        return replace(self.with_step(record), ending=outcome, victim=None, timed_out=())


class Standing(StrEnum):
    """How the target stands to the run's record."""

    AS_RECORDED = "AsRecorded"
    """Nothing but what the record explains."""
    GONE = "Gone"
    """The Deployment was deleted, or another of the same name took its place."""
    DRIFTED = "Drifted"
    """Somebody else changed the pod template, the rollout's fields or the claim on them."""
    REVERTED = "Reverted"
    """Somebody else put the pod template from before the run back."""
    FENCE_LOST = "FenceLost"
    """The claim annotation is another run's that is open, or was advanced past the record."""
    SCALED_TO_ZERO = "ScaledToZero"
    """Nobody serves; the next scale-out would bring back an unjudged setting."""
    SOURCE_CHANGED = "SourceChanged"
    """Somebody else changed the ConfigMap that the change was copied from: the copy hides that."""
    RESCALED = "Rescaled"
    """Somebody else changed the number of replicas while a step counts on it."""


def standing(run: Run, resource_uid: str, fleet: Fleet | None, *, rivalled: bool = False) -> Standing:
    """Return how the target stands to the run's record.

    The claim annotation says which assignment was committed last; the template and the rollout's
    fields must then be what that assignment made them. A person's `kubectl rollout undo` puts the
    annotations of the older ReplicaSet back with its template (kubectl 1.36, rollback.go), so a claim
    may be gone, or be one of long ago: that is an edit like any other. Only a claim whose run is open
    (`rivalled`), or that is ahead of the record, says that another moves the target.
    """
    if fleet is None or fleet.uid != run.target_uid:
        return Standing.GONE
    if rivalled or _is_ahead(run, resource_uid, fleet.fence):
        return Standing.FENCE_LOST
    committed = committed_sequence(run, resource_uid, fleet.fence)
    if committed is None or _is_drifted(run, fleet, committed):
        return Standing.REVERTED if _is_reverted(run, fleet) else Standing.DRIFTED
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


def _is_ahead(run: Run, resource_uid: str, fence: str) -> bool:
    number = _sequence_in(fence, run.claims(resource_uid))
    return number is not None and number > run.sequence


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


def _is_drifted(run: Run, fleet: Fleet, committed: int) -> bool:
    intent, frozen = run.intent, fleet.fields.is_frozen
    if intent is None:
        return fleet.revision != run.current.step.before_template
    if committed < intent.sequence:
        # Not committed, or undone since: then the template is the one before, and the fields are not.
        return fleet.revision != intent.template_before or intent.was_frozen not in (None, frozen)
    return fleet.revision != intent.template_after or (intent.is_frozen and not frozen)
