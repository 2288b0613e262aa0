"""The one open run of a resource: what was intended, how far it got, how it ends.

A run lives in the resource's status and nowhere else. It is written before each effect, so that
whoever reads it after a crash knows what may or may not have happened since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from kvmedic.core.fleet import Fleet, RolloutFields
from kvmedic.core.plan import Step
from kvmedic.core.reasons import Reason
from kvmedic.core.rollout import Victim
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
    baseline: Baseline
    intent: Intent | None = None
    victim: Victim | None = None
    ending: Outcome | None = None
    """Set as soon as it is known how the run ends; what remains only puts things back."""

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
        return replace(self.with_step(record), victim=None)

    def kept(self, judged: Judged) -> Run:
        """Return the run with its step judged and kept."""
        record = replace(self.current, state=StepState.KEPT, verdict=judged.verdict, message=judged.message)
        done = self.with_step(record)
        last = self.index == len(self.steps) - 1
        ends = last or judged.verdict is Verdict.RECOVERED
        return replace(done, ending=Outcome(judged.reason, judged.message)) if ends else done

    def turned_back(self, outcome: Outcome, verdict: Verdict | None) -> Run:
        """Return the run as its step begins to be taken back."""
        record = replace(self.current, state=StepState.ROLLING_BACK, verdict=verdict, message=outcome.message)
        return replace(self.with_step(record), ending=outcome, victim=None)

    def reverted(self) -> Run:
        """Return the run with its step taken back everywhere."""
        return replace(self.with_step(replace(self.current, state=StepState.REVERTED)), victim=None)

    def left(self, outcome: Outcome) -> Run:
        """Return the run as it ends where it stands."""
        record = replace(self.current, state=StepState.LEFT, message=outcome.message)
        return replace(self.with_step(record), ending=outcome, victim=None)


class Standing(StrEnum):
    """How the target stands to the run's record."""

    AS_RECORDED = "AsRecorded"
    """Nothing but what the record explains."""
    GONE = "Gone"
    """The Deployment was deleted, or another of the same name took its place."""
    DRIFTED = "Drifted"
    """Somebody else changed the pod template or the rollout's fields."""
    FENCE_LOST = "FenceLost"
    """The claim annotation is another's, or was advanced past the record."""
    SCALED_TO_ZERO = "ScaledToZero"
    """Nobody serves; the next scale-out would bring back an unjudged setting."""


def standing(run: Run, resource_uid: str, fleet: Fleet | None) -> Standing:
    """Return how the target stands to the run's record.

    The claim annotation says which assignment was committed last; the template and the rollout's
    fields must then be what that assignment made them. A person's `kubectl rollout undo` puts the
    annotations of the older ReplicaSet back with its template (kubectl 1.36, rollback.go): a claim
    that went together with the template is an edit, not another's claim.
    """
    if fleet is None or fleet.uid != run.target_uid:
        return Standing.GONE
    committed = committed_sequence(run, resource_uid, fleet.fence)
    if committed is None:
        return Standing.DRIFTED if _is_undone(run, resource_uid, fleet) else Standing.FENCE_LOST
    if _is_drifted(run, fleet, committed):
        return Standing.DRIFTED
    return Standing.SCALED_TO_ZERO if fleet.replicas == 0 else Standing.AS_RECORDED


def committed_sequence(run: Run, resource_uid: str, fence: str) -> int | None:
    """Return the sequence of the last committed assignment of this run, or None if it is not ours.

    No annotation at all counts as 0 only while nothing of the run can have been committed yet.
    """
    if not fence:
        return 0 if run.sequence <= 1 else None
    owner, _, rest = fence.partition("/")
    run_id, _, number = rest.rpartition("/")
    if owner != resource_uid or not number.isdecimal():
        return None
    if run_id != run.id:
        return 0 if run.sequence <= 1 else None
    return int(number) if int(number) <= run.sequence else None


def _is_undone(run: Run, resource_uid: str, fleet: Fleet) -> bool:
    """Return whether the claim went together with the template, and nobody else has put one there."""
    intent, owner = run.intent, fleet.fence.partition("/")[0]
    if intent is None or owner not in ("", resource_uid):
        return False
    return fleet.revision not in (intent.template_before, intent.template_after)


def _is_drifted(run: Run, fleet: Fleet, committed: int) -> bool:
    intent = run.intent
    if intent is None:
        return fleet.revision != run.current.step.before_template
    if committed < intent.sequence:
        # Not committed: whatever the assignment before it left, the template is the one before.
        return fleet.revision != intent.template_before
    if fleet.revision != intent.template_after:
        return True
    return intent.is_frozen and not fleet.fields.is_frozen
