"""The one open run of a resource: what was intended, how far it got, how it ends.

A run lives in the resource's status and nowhere else. It is written before each effect, so that
the process that reads it after a crash knows what may or may not have happened since.

What an open run goes by: the spec as it is now, or its own record where the spec cannot be followed.

Whatever becomes of the spec, an open run must be able to end: what it changed for a while is on the target,
and its resource's finalizer waits for it.

What a run costs while it goes: replicas beyond the recorded number, and replicas that start anew.

Counted from what is observed at each look and stored with whatever else is written, so that a run that
was left alone for an hour, by a crash for instance, is charged for that hour. Between two writes the
number that was stored counts; every move of a run is a write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from kvmedic.model.compression import whole_amount
from kvmedic.model.edits import containers_of
from kvmedic.model.fleet import Fleet, RolloutFields
from kvmedic.model.plan import COMPARED, Goal, Step
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy, RunSpec, TargetRef, without_spec


@dataclass(frozen=True, slots=True)
class Shift:
    """One figure of the fleet, before the change and over the sustained window after it."""

    name: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What was paid."""

    replicas_started: int
    """Replicas that started. A large model loads for minutes each time."""
    spare_replica_seconds: float
    """Extra replicas, times how long they existed."""
    spare_gpu_seconds: float | None = None
    """The same in GPUs. Absent if the pod template requests none."""
    time_to_first_token_p95_seconds: Shift | None = None
    """Time to the first token before and after. Absent if it was not measured after the change."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One run that is over."""

    run: str
    """Its id."""
    at: datetime
    outcome: Reason
    sentence: str
    changed: tuple[str, ...]
    """Each step and how it ended."""
    cost: Cost
    brought: tuple[Shift, ...] = ()
    """The figures before and after. Empty if there was no sustained window to measure."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The fleet as it was before the change; written to the status."""

    window_seconds: float
    replicas: int
    preemptions_per_request: float
    requests_per_second: float
    """Arrivals of the whole fleet: (finished + aborted + change of running and waiting) / window."""
    prompt_tokens_mean: float
    output_tokens_mean: float
    generated_tokens_per_second: float
    """Of the whole fleet."""
    inter_token_p95_seconds: float
    inter_token_tail_seconds: float
    """The gap between two tokens that one request in twenty exceeds once: where stalls by preemption show."""
    stalls_per_request: float
    """Gaps of over 2 s between two tokens, per as many tokens as a request generates."""
    time_to_first_token_p95_seconds: float
    first_token_limit_seconds: float
    """Up to here a first token is in time: `objectives.ttftP95`, or 30 s where that names none. If the same
    clients send again and again, and wait for longer, twice what 95 % of them wait."""
    in_time_share: float
    """Requests whose first token came in time, of all that came (0-1). Those that ended without an answer,
    and those that have waited for longer, came too late."""
    served_in_time_per_second: float
    """Tokens of the whole fleet, of requests whose first token came in time and that never hung for 2 s."""
    end_to_end_p95_seconds: float
    kv_cache_usage_ratio: float
    waiting_mean: float
    """Waiting requests of the whole fleet, on average."""
    restarts: int
    models: tuple[str, ...] = ()
    """Names under which the replicas serve, sorted; empty: written by a version that did not say."""
    aborted_share: float | None = None
    """Requests that ended without an answer, of all that ended (0-1). None: a replica does not report it."""
    memory_free_mib: float | None = None
    """The least that was free on a GPU. None: no exporter reports it."""
    running_mean: float | None = None
    """Running sequences of the whole fleet, on average. None: not measured, or written by a version that
    did not say."""
    up_seconds: float | None = None
    """How long the replicas had been there, together: `restarts` came in that time. None: not known."""
    ended_at_memory_limit: bool = False
    """A replica's engine had ended last at its container's memory limit."""
    peak_tokens_per_second: float | None = None
    """The most that a replica was asked for over ten minutes of the day before. None: no history shows it."""

    @property
    def requests(self) -> float:
        """Return how many requests came in the window."""
        return self.requests_per_second * self.window_seconds


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How many requests an engine has been given since it was started, as seen since it left rotation."""

    first: float
    """What ended and what is there, when it was counted first."""
    since: datetime
    """When that was, after the time to settle."""
    latest: float
    """The same when it was last seen to be more."""
    at: datetime
    rises: int = 0
    """How often it was more than before."""


@dataclass(frozen=True, slots=True)
class DrainingPod:
    """A pod that is being taken out of rotation and drained."""

    name: str
    uid: str
    cordoned_at: datetime
    out_at: datetime | None = None
    """When the EndpointSlices were first seen without it."""
    arrivals: Arrivals | None = None
    """Requests that came to it all the same; None: not counted yet."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A replica that still had requests, or did not report them, when its drain timed out."""

    name: str
    uid: str
    after: timedelta
    """The time-out; a longer one gives it another try."""
    listed_by: tuple[str, ...] = ()
    """Services that led requests to it all the time, whatever its label was; empty: it left all of them."""


class Verdict(StrEnum):
    """The judgement of one step over its sustained window."""

    RECOVERED = "Recovered"
    IMPROVED = "Improved"
    NOT_RECOVERED = "NotRecovered"
    INCONCLUSIVE = "Inconclusive"


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict with its reason and the numbers in one sentence."""

    verdict: Verdict
    reason: Reason
    message: str
    after: Baseline | None = None
    """The figures that it rests on; None where there are none."""


WHOLE_DEVICE = "nvidia.com/gpu"
"""The extended resource of NVIDIA's device plugin. Parts of a GPU have other names (`nvidia.com/mig-…`), or
this one too, where every GPU of a node is cut into equal parts."""


@dataclass(frozen=True, slots=True)
class CostSoFar:
    """What a run has cost up to a moment."""

    at: datetime
    above: int
    """Replicas beyond the recorded number then; terminating ones count, as they hold their GPUs."""
    replica_seconds: float
    """Seconds of such replicas up to then."""
    most_changed: int
    """Most replicas seen that began with the change."""
    fewest_unchanged: int
    """Fewest replicas seen that run as before it."""


@dataclass(frozen=True, slots=True)
class Footing:
    """What a run's cost is counted against."""

    step: Step
    replicas: int
    """Of the fleet before the first effect."""
    started_at: datetime


def update_cost_so_far(before: CostSoFar | None, footing: Footing, fleet: Fleet, now: datetime) -> CostSoFar:
    """Return a run's cost up to now; looking twice at one moment changes nothing."""
    known = before or CostSoFar(footing.started_at, 0, 0.0, 0, footing.replicas)
    seconds = max(0.0, (now - known.at).total_seconds())
    above = max(0, len(fleet.pods) - footing.replicas)
    return CostSoFar(
        at=max(now, known.at),
        above=above,
        replica_seconds=known.replica_seconds + known.above * seconds,
        most_changed=max(known.most_changed, _has_changed(footing, fleet)),
        fewest_unchanged=min(known.fewest_unchanged, _is_unchanged(footing, fleet)),
    )


def _has_changed(footing: Footing, fleet: Fleet) -> int:
    step = footing.step
    if step.before_template == step.after_template:
        return max(0, len(fleet.live) - footing.replicas)
    return len(fleet.list_pods(step.after_template))


def _is_unchanged(footing: Footing, fleet: Fleet) -> int:
    return min(footing.replicas, len(fleet.list_pods(footing.step.before_template)))


def devices_of(template: Mapping[str, object]) -> int | None:
    """Return how many GPUs a replica of a pod template holds; None where it names none.

    Whole devices (`nvidia.com/gpu`, `amd.com/gpu`) and parts of one (`nvidia.com/mig-…`) count alike:
    both are extended resources, whose limits are whole numbers.
    """
    return sum(_device_claims(container) for container in containers_of(template)) or None


def whole_devices_of(container: Mapping[str, object]) -> int:
    """Return how many whole NVIDIA GPUs a container is given; 0 where it names none, or parts of one."""
    return sum(whole_amount(amount) or 0 for name, amount in _limits(container) if name == WHOLE_DEVICE)


def _device_claims(container: Mapping[str, object]) -> int:
    return sum(whole_amount(amount) or 0 for name, amount in _limits(container) if _is_device(name))


def _limits(container: Mapping[str, object]) -> list[tuple[str, object]]:
    resources = container.get("resources")
    return _items(resources.get("limits") if isinstance(resources, Mapping) else None)


def _items(limits: object) -> list[tuple[str, object]]:
    return [(str(name), amount) for name, amount in limits.items()] if isinstance(limits, Mapping) else []


def _is_device(name: str) -> bool:
    return name.endswith("/gpu") or "/mig-" in name


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


class ComparisonState(StrEnum):
    """What new replicas came to beside old ones."""

    WATCHING = "Watching"
    """Not enough was seen yet, or evidence is missing."""
    GO_ON = "GoOn"
    """No worse: the rest of the fleet follows."""
    NOT_COMPARABLE = "NotComparable"
    """The rest follows, and the fleet is judged by before and after alone."""
    ROLL_BACK = "RollBack"
    """Worse: the change is taken back from the replicas that have it."""
    UNJUDGED = "Unjudged"
    """There was no verdict in time, and spec.verify takes the change back then."""


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """The replicas of one side, over the time in which both were watched."""

    replicas: int
    served_in_time_per_second: float
    """Tokens per second of one replica, of requests whose first token came in time and that did not hang."""
    in_time_share: float
    """Of the requests that came, the share that was served in time (0-1)."""
    first_tokens: float
    """Of all replicas of the side."""


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """New replicas beside old ones, while the rollout waits and both serve."""

    since: datetime
    """When the new replicas were first seen in rotation."""
    pods: tuple[str, ...]
    """The new replicas. With another one the comparison begins anew."""
    state: ComparisonState = ComparisonState.WATCHING
    message: str = ""
    minutes: int = 0
    """Whole minutes over which both sides were compared last. 0: not yet."""
    routing: str = ""
    """How requests seem to find a replica. Empty: not known yet."""
    old: ComparedSide | None = None
    new: ComparedSide | None = None

    @property
    def is_decided(self) -> bool:
        """Return whether the rollout waits for it no longer."""
        return self.state is not ComparisonState.WATCHING


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
    comparison: ReplicaComparison | None = None
    """New replicas beside old ones. None: not compared."""


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
    owner_generation: int | None = None
    """Generation of the owner's object before its field was written last. None: it was not."""


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
    draining_pods: tuple[DrainingPod, ...] = ()
    """The pods that are being taken out of rotation and drained: one, or those of a wave."""
    ending: Outcome | None = None
    """Set as soon as it is known how the run ends; what remains only puts things back."""
    run_spec: RunSpec | None = None
    """None: written by a version that did not say; the spec's own count then."""
    goal: Goal = Goal.RELIEF
    """By what the change is judged."""
    approval: Approved | None = None
    """None: the mode asked for none."""
    gpus: int | None = None
    """GPUs of a replica; None where its pod template asks for none."""
    cost_so_far: CostSoFar | None = None
    """None: nothing was counted yet."""
    timed_out: tuple[TimedOut, ...] = ()
    """Replicas that were put back into rotation because their drain timed out, since the last one went."""
    regains: int = 0
    """How often the rollout's fields were put back because somebody else had set them."""
    regained_at: datetime | None = None
    """When that was last."""
    owner_patch: str = ""
    """What the owner of the target needs so that the change stays: a value or a patch. Empty: nobody's."""
    may_lack: int = 0
    """Replicas that may be missing while it walks: 1 where no spare is made, else 0."""

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

    def count_cost(self, fleet: Fleet, now: datetime) -> CostSoFar:
        """Return what the run has cost up to now."""
        footing = Footing(self.current.step, self.replicas, self.started_at)
        return update_cost_so_far(self.cost_so_far, footing, fleet, now)

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

    def open_verification(self, now: datetime) -> Run:
        """Return the run as its sustained window opens."""
        record = replace(self.current, state=StepState.VERIFYING, settled_at=now)
        return replace(self.with_step(record), draining_pods=(), timed_out=())

    def keep_step(self, judged: Judged) -> Run:
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

    def turn_step_back(self, outcome: Outcome, verdict: Verdict | None, after: Baseline | None = None) -> Run:
        """Return the run as its step begins to be taken back."""
        record = replace(
            self.current,
            state=StepState.ROLLING_BACK,
            verdict=verdict,
            message=outcome.message,
            after=after,
        )
        return replace(self.with_step(record), ending=outcome, draining_pods=(), timed_out=())

    def end_answered(self, outcome: Outcome) -> Run:
        """Return the run with the question of its step answered: it ends."""
        record = replace(self.current, state=StepState.KEPT, message=outcome.message)
        return replace(self.with_step(record), ending=outcome)

    def end_reverted(self) -> Run:
        """Return the run with its step taken back everywhere."""
        done = self.with_step(replace(self.current, state=StepState.REVERTED))
        return replace(done, draining_pods=(), timed_out=())

    def leave_target(self, outcome: Outcome) -> Run:
        """Return the run as it ends where it stands."""
        record = replace(self.current, state=StepState.LEFT, message=outcome.message)
        return replace(self.with_step(record), ending=outcome, draining_pods=(), timed_out=())


def policy_during(run: Run, policy: Policy | None) -> Policy | None:
    """Return what an open run goes by; None where neither the spec nor the record says enough.

    How replicas are drained is always as the run began with: some may carry its marks.
    """
    if run.run_spec is None:
        return policy
    if policy is None:
        return policy_from(run.current.step, run.run_spec)
    begun, own = run.run_spec, policy.rollout
    rollout = replace(own, rotation_label=begun.rotation_label, rotation=begun.rotation)
    return replace(policy, rollout=rollout)


def policy_from(step: Step, run_spec: RunSpec) -> Policy:
    """Return a policy with which a step can be taken back, and nothing else can be done."""
    return without_spec(TargetRef(step.target.kind, step.target.name, step.container), run_spec)
