"""The one open run of a resource: what was intended, how far it got, how it ends.

A run lives in the resource's status and nowhere else. It is written before each effect, so that
whoever reads it after a crash knows what may or may not have happened since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from kvmedic.core.diagnosis import COMPARED, Goal
from kvmedic.core.draining import TimedOut, Victim
from kvmedic.core.fleet import Fleet, RolloutFields
from kvmedic.core.plan import Step
from kvmedic.core.policy import OnDrainTimeout, RotationLabel
from kvmedic.core.reasons import Reason
from kvmedic.core.spending import Footing, Spending, spent
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
    fields_before: RolloutFields | None = None
    fields_after: RolloutFields | None = None
    """The rollout's fields before and after it. None: written by a version that did not say."""


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
    regains: int = 0
    """How often the rollout's fields were put back because somebody else had set them."""
    regained_at: datetime | None = None
    """When that was last."""

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
