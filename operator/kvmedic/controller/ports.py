"""What the reconcile loop needs from the world. Adapters fit these shapes; they do not inherit them.

What tests on trial pods need from the world. Adapters fit these shapes; they do not inherit them.

One write of a resource's status, and after it the report of the change to people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from kvmedic.doctor.eligibility import Examiner
from kvmedic.engines.engine_log import Start, StartForms
from kvmedic.kube.clock import Stopwatch
from kvmedic.manifests.trial_pod import Evaluation, Trial
from kvmedic.model.config_edits import FileEdit, OwnerField
from kvmedic.model.devices import Answer, Device, EngineEnd
from kvmedic.model.engine import Version
from kvmedic.model.evidence import (
    Blocked,
    LogForms,
    LoggedSize,
    Look,
    LookSeries,
    Observation,
    PastLengths,
    Pool,
    Reading,
)
from kvmedic.model.fleet import Cordoned, Fleet, ObjectRef, Pod
from kvmedic.model.plan import FlagStep, Step, TrialStep
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy, TargetRef
from kvmedic.model.status import ConfigCopy, Key, Record, Resource
from kvmedic.model.trial import Interrupted, JobSight, Progress, Served
from kvmedic.rollout.config_copy import Files
from kvmedic.rollout.gates.approval import Approval
from kvmedic.rollout.gates.one_resource_per_target import Roster
from kvmedic.rollout.gates.opening import Stop
from kvmedic.rollout.moves import Effect
from kvmedic.rollout.preconditions import Neighbours
from kvmedic.rollout.spares.room import Finding
from kvmedic.rollout.trial import LastWords
from kvmedic.runbooks.workload import View


class Probes(Protocol):
    """Tests on trial pods. They go on beside the ticks and end with the process, which loses only time:
    the next process begins them anew."""

    def progress(self, pod: Pod) -> Progress | None:
        """Return how far the test on a pod is; None: this process began none."""

    def begin(self, namespace: str, pod: Pod, template: Mapping[str, object], step: TrialStep) -> None:
        """Begin what a step asks of a pod, whose template this is; nothing where that was begun."""

    def forget(self, pod: Pod) -> None:
        """End the test on a pod and forget what it came to."""

    def forget_all(self) -> None:
        """End every test and forget it: another process may lead, and begins them anew."""

    async def read_served(self, namespace: str, pod: Pod) -> Served | str:
        """Return what a pod's engine says of itself and of its work so far, or why it cannot be read."""


@dataclass(frozen=True, slots=True)
class NoProbes:
    """No test is made: nobody here can."""

    def progress(self, pod: Pod) -> Progress | None:
        """Return that the test shows nothing."""
        del pod
        return Interrupted("no tests are made here")

    def begin(self, namespace: str, pod: Pod, template: Mapping[str, object], step: TrialStep) -> None:
        """Begin nothing."""

    def forget(self, pod: Pod) -> None:
        """Forget nothing."""

    def forget_all(self) -> None:
        """Forget nothing."""

    async def read_served(self, namespace: str, pod: Pod) -> Served | str:
        """Return that nothing is read here."""
        del namespace, pod
        return "no tests are made here"


class Trials(Protocol):
    """Trial pods: made, looked at, and removed for the one resource that owns them."""

    def explain_refusal(self) -> str:
        """Return why no trial pods are made at all; nothing where they are."""

    async def look(self, trial: Trial, target: TargetRef) -> Pod | None:
        """Return the pod of a trial, None where there is none; `target` names the engine's container.

        Raises Conflict where a pod of that name is somebody else's.
        """

    async def last_words(self, namespace: str, pod: Pod, refusals: Sequence[re.Pattern[str]]) -> LastWords:
        """Return what the log of a trial pod that ended says of it.

        Nothing of the log is kept but a phrase of `refusals`; that it cannot be read is a value.
        """

    async def make(self, trial: Trial, manifest: dict[str, Any]) -> str:
        """Make a trial's pod, unless it is there; return why it cannot be made, or nothing.

        Raises Conflict where a pod of that name is somebody else's.
        """

    async def delete_trials(self, namespace: str, owner_uid: str, but: str = "") -> tuple[str, ...]:
        """Remove all trial pods of a resource but one; return the names of those that were there."""

    async def held_claims(self, namespace: str, template: Mapping[str, object]) -> frozenset[str]:
        """Return those PersistentVolumeClaims of a template that a second pod may not get."""


@dataclass(frozen=True, slots=True)
class NoTrials:
    """No trial pod is made: the administrator did not allow it."""

    def explain_refusal(self) -> str:
        """Return what the administrator would set."""
        return "trial pods are not allowed here: set probe.trialPods in the operator's configuration"

    async def look(self, trial: Trial, target: TargetRef) -> Pod | None:
        """Return that there is none."""
        del trial, target
        return None

    async def last_words(self, namespace: str, pod: Pod, refusals: Sequence[re.Pattern[str]]) -> LastWords:
        """Return that nothing is read here."""
        del namespace, pod, refusals
        return LastWords()

    async def make(self, trial: Trial, manifest: dict[str, Any]) -> str:
        """Return why there is none."""
        del trial, manifest
        return self.explain_refusal()

    async def delete_trials(self, namespace: str, owner_uid: str, but: str = "") -> tuple[str, ...]:
        """Remove nothing: those of a time when they were allowed end by their deadline."""
        del namespace, owner_uid, but
        return ()

    async def held_claims(self, namespace: str, template: Mapping[str, object]) -> frozenset[str]:
        """Return none: nobody may look."""
        del namespace, template
        return frozenset()


class Evaluations(Protocol):
    """Jobs that evaluate trial pods: made of a team's own CronJobs, looked at, and removed."""

    def explain_refusal(self) -> str:
        """Return why no evaluations are made at all; nothing where they are."""

    async def evaluation_digest(self, namespace: str, cron_job: str) -> str | Blocked:
        """Return the digest of a CronJob's Job template, or why no evaluation can be made of it."""

    async def look(self, evaluation: Evaluation) -> JobSight | None:
        """Return how an evaluation's Job stands, None where there is none.

        Raises Conflict where a Job of that name is somebody else's.
        """

    async def make(self, evaluation: Evaluation, subject: Served) -> str:
        """Make an evaluation's Job, unless it is there; return why it cannot be made, or nothing.

        It is given the subject's address, and keeps what the subject had done before. Raises Conflict where
        a Job of that name is somebody else's.
        """

    async def delete_evaluations(self, namespace: str, owner_uid: str) -> tuple[str, ...]:
        """Remove all evaluations of a resource with their pods; return the names of those that were there."""


@dataclass(frozen=True, slots=True)
class NoEvaluations:
    """No evaluation is made: the administrator did not allow it."""

    def explain_refusal(self) -> str:
        """Return what the administrator would set."""
        return "evaluations are not allowed here: set probe.evaluations in the operator's configuration"

    async def evaluation_digest(self, namespace: str, cron_job: str) -> str | Blocked:
        """Return why there is none."""
        del namespace, cron_job
        return Blocked(Reason.GATE_MISSING, self.explain_refusal())

    async def look(self, evaluation: Evaluation) -> JobSight | None:
        """Return that there is none."""
        del evaluation
        return None

    async def make(self, evaluation: Evaluation, subject: Served) -> str:
        """Return why there is none."""
        del evaluation, subject
        return self.explain_refusal()

    async def delete_evaluations(self, namespace: str, owner_uid: str) -> tuple[str, ...]:
        """Remove nothing: those of a time when they were allowed end by their deadline."""
        del namespace, owner_uid
        return ()


class Store(Protocol):
    """The resource itself."""

    async def load(self, key: Key) -> Resource | None:
        """Return the resource, or None when it is gone or another of the same name took its place."""

    async def load_last_seen(self, key: Key) -> Resource | None:
        """Return the resource as it was a moment ago; what is written onto it is refused if it moved."""

    async def save(self, resource: Resource, record: Record) -> Resource:
        """Write the status with the loaded resourceVersion. Raises Conflict when it moved."""

    async def report_problem(self, resource: Resource, problem: Blocked) -> tuple[Record, Record] | None:
        """Write conditions that report a problem, and leave the rest of the status as it is.

        Returns the conditions before and after, or None where they said so already.
        """

    async def is_open(self, namespace: str, claim: str) -> bool:
        """Return whether a resource exists whose open run made a claim on a target."""

    async def is_ending(self, namespace: str) -> bool:
        """Return whether a namespace is being deleted, as far as we may know."""

    async def finalize(self, resource: Resource, present: bool) -> None:  # noqa: FBT001 - the desired state
        """Put our finalizer on the resource, or take it off."""


class Logs(Protocol):
    """What engines' logs say: how they ended, and what they said when they started."""

    async def last_ends(
        self, namespace: str, pods: Sequence[Pod], since: datetime
    ) -> Mapping[str, EngineEnd]:
        """Return the last end of each engine that ended since a moment, by pod; it reads their logs."""

    async def logged_pools(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: LogForms
    ) -> Mapping[str, LoggedSize]:
        """Return the pools in the present logs of replicas, by pod; one without any is not there."""

    async def starts(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: StartForms
    ) -> Mapping[str, Start]:
        """Return what the present logs of replicas say of their start, by pod; unreadable is a value."""


class Target(Logs, Protocol):
    """The workload, and what its engines write."""

    async def look(self, namespace: str, policy: Policy) -> View | None:
        """Return the target as it is now, or None when the Deployment does not exist."""

    async def quick_look(self, namespace: str, policy: Policy) -> View | None:
        """Return the target as it was a moment ago, without what only draining depends on.

        None when it does not exist. It may cost the API server nothing, so nothing is decided on it but
        whether the fleet is calm.
        """

    async def with_minimum(self, view: View, holder: ObjectRef) -> View:
        """Return the target with the minimum that an autoscaler has for it now."""

    async def owner_field(self, view: View, step: FlagStep) -> OwnerField | str:
        """Return the field of the owner's object that a step's token is rendered from, or why none is."""

    async def with_owner_object(self, view: View, field: OwnerField) -> View:
        """Return the target with the object that it is rendered from, as it is now."""

    async def neighbours(self, view: View, step: Step | None = None) -> Neighbours:
        """Return who else has a say in the target's replicas and pods, and in a step's change of it."""

    async def room_for(self, view: View) -> Finding:
        """Return whether one pod more of the target finds a place now."""

    async def apply(self, fleet: Fleet, effect: Effect, claim: str) -> None:
        """Carry out one effect on the fleet as it was viewed. Raises Conflict when it moved."""

    async def unclaim(self, fleet: Fleet) -> None:
        """Remove our annotations while the claim is the one that was looked at; nothing without a claim."""

    async def find_cordoned_pods(self, namespace: str) -> tuple[Cordoned, ...]:
        """Return the pods that carry a note of ours, under any owner; an empty namespace means all."""

    async def free(self, found: Cordoned) -> None:
        """Put a pod back into rotation that no fleet has any more. Raises Conflict when it changed."""


class Copies(Protocol):
    """Copies of ConfigMaps."""

    async def stand(self, fleet: Fleet, file: FileEdit) -> Files:
        """Return how the ConfigMap of an open step and its copy stand to the step."""

    async def make(self, fleet: Fleet, file: FileEdit) -> str:
        """Make a step's copy; return why it cannot be made, or nothing. Raises Conflict when it moved."""

    async def delete_unused(self, fleet: Fleet, copies: Sequence[ConfigCopy]) -> tuple[ConfigCopy, ...]:
        """Remove those copies that nothing refers to any more; return the others."""


class Metrics(Protocol):
    """What the replicas export."""

    async def observe(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta, hold: timedelta
    ) -> Observation:
        """Return one look at the named replicas; what is not known is a reading that says so."""

    async def look(self, source: str, pods: Sequence[Pod], namespace: str, look: Look) -> Observation:
        """Return the same of some signals alone: a source computes no others for it."""

    async def look_series(
        self, source: str, pods: Sequence[Pod], namespace: str, series: LookSeries
    ) -> Sequence[Observation]:
        """Return looks one after the other, oldest first, for the price of one."""

    async def observe_past(
        self, source: str, namespace: str, replica_set: str, at: datetime, look: Look
    ) -> Reading[Observation]:
        """Return a look at the replicas that a ReplicaSet had at a moment of the past.

        Which they were, the source says: the pods themselves may be long gone.
        """

    async def devices(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta
    ) -> Mapping[str, Reading[tuple[Device, ...]]]:
        """Return the devices of the named replicas; one without a series has a reading that says so."""

    async def peaks(self, source: str, pods: Sequence[Pod], namespace: str) -> Mapping[str, Reading[float]]:
        """Return the most tokens per second that the named replicas were asked for over the last day."""

    async def past_lengths(self, source: str, pods: Sequence[Pod], namespace: str) -> tuple[PastLengths, ...]:
        """Return the lengths of their requests together, by half hours of the last day, oldest first."""

    async def count_in_flight(self, source: str, namespace: str, pod: Pod, out: timedelta) -> Reading[float]:
        """Return running plus waiting requests of all engines that a source knows, asked of the replica.

        `out`: for how long it has surely got no request, so that a source's own samples of that time count
        where the replica cannot be reached.
        """

    async def count_received(self, source: str, namespace: str, pod: Pod) -> Reading[float]:
        """Return how many requests a replica was given since its engines were started."""

    async def pool(self, source: str, namespace: str, pod: Pod) -> Reading[Pool]:
        """Return the KV-cache pool, asked of the replica itself, or of the source if out of reach."""

    async def version(self, namespace: str, pod: Pod) -> Reading[Version]:
        """Return the version of the engine, asked of the replica itself."""


class Drivers(Protocol):
    """What the GPU drivers under replicas say, where no series does."""

    async def ask(self, namespace: str, pods: Sequence[Pod], container: str) -> Mapping[str, Answer]:
        """Return each replica's answer by pod name; one who is not there was not asked."""


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """No driver is asked: the administrator did not allow it."""

    async def ask(self, namespace: str, pods: Sequence[Pod], container: str) -> Mapping[str, Answer]:
        """Return nothing."""
        del namespace, pods, container
        return {}


@dataclass(frozen=True, slots=True)
class SurveyInput:
    """The sources that a look at a fleet without an open run asks, and its time."""

    metrics: Metrics
    logs: Logs
    now: datetime | None = None
    """The operator's own time; None: that of the look."""
    drivers: Drivers = NotAllowed()
    evaluations: Evaluations = field(default_factory=NoEvaluations)
    target: Target | None = None
    """Looks at the target as a whole where a quick look does not do; None: it was looked at as a whole."""


class Reporter(Protocol):
    """What people find beside the status: Events, log lines, metrics."""

    def count_resource(self, resource: Resource) -> None:
        """Count a resource as it was loaded."""

    async def report_changes(self, resource: Resource, before: Record | None, after: Record) -> None:
        """Report what changed between two saved records. Called after a save, never before."""


class RunLimits(Protocol):
    """All resources together: how many runs may be open, and whether new ones may be."""

    async def refresh(self, now: datetime) -> None:
        """Read the administrator's word while too many runs ended badly."""

    def has_tripped(self, now: datetime) -> bool:
        """Return whether that keeps new runs from being opened, by his word as it was last read."""

    async def hint(self, uid: str, now: datetime) -> Blocked | None:
        """Return what speaks against opening a run of a resource, as far as the watch has reported."""

    def reserve(self, uid: str, now: datetime) -> AbstractAsyncContextManager[Blocked | None]:
        """Give the turn to open a run, with what speaks against it after all."""

    async def recheck_limits(self, uid: str, now: datetime) -> Blocked | None:
        """Return what speaks against beginning a run that was opened."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How soon the next look follows. All are settings, so that tests can shorten them."""

    idle: timedelta
    """While no run is open."""
    verifying: timedelta
    """While the sustained window is open or its evidence is not enough."""
    replica: timedelta
    """While a replica starts or drains."""
    controller: timedelta
    """Right after an effect, while a controller acts on it."""
    drain_quiet: timedelta
    """How long after a replica left rotation its requests are first counted."""
    drain_interval: timedelta
    """Between the two counts of a drain."""
    spare_limit: timedelta
    """How long a new replica may stay unschedulable."""


class StopSwitch(Protocol):
    """The operator-wide stop."""

    async def read(self) -> Stop:
        """Return the stop as it is now; unreadable is a value."""


class NamespaceGate(Protocol):
    """Whether fleets of a namespace may be changed at all."""

    async def refuse_unlabelled(self, namespace: str) -> Blocked | None:
        """Return what the namespace lacks; None: its fleets may be changed."""


@dataclass(frozen=True, slots=True)
class EveryNamespace:
    """Nothing is asked of a namespace."""

    async def refuse_unlabelled(self, namespace: str) -> Blocked | None:
        """Return nothing."""
        del namespace
        return None


class Approvals(Protocol):
    """What people approved."""

    async def list_approvals(self, namespace: str, name: str) -> Sequence[Approval] | Blocked:
        """Return the approvals for a resource as they are now; that they cannot be read is a value."""


class Leader(Protocol):
    """Whether this process is the one that acts."""

    def is_held(self) -> bool:
        """Return whether the leadership is held right now, by a clock that pauses cannot fool."""

    def is_over(self) -> bool:
        """Return whether nobody can lead any more, as the namespace of the Lease is being deleted."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything that one tick talks to."""

    store: Store
    target: Target
    copies: Copies
    metrics: Metrics
    reporter: Reporter
    stop: StopSwitch
    approvals: Approvals
    leader: Leader
    roster: Roster
    run_limits: RunLimits
    pace: Pace
    drivers: Drivers = NotAllowed()
    trials: Trials = field(default_factory=NoTrials)
    probes: Probes = field(default_factory=NoProbes)
    evaluations: Evaluations = field(default_factory=NoEvaluations)
    namespaces: NamespaceGate = EveryNamespace()
    examiner: Examiner = field(default_factory=Examiner)
    """Examines now and then whether a change could begin."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    """How long this process has seen what runs wait for."""


async def save(resource: Resource, after: Record, ports: Ports) -> Resource:
    """Write a record down, then report what changed; nothing where it is what was loaded.

    Dying between the two loses the report, never the record.

    Raises:
        Conflict: the resource moved since it was loaded; nothing was written or reported.
    """
    if after == resource.record:
        return resource
    saved = await ports.store.save(resource, after)
    await ports.reporter.report_changes(resource, resource.record, after)
    return saved
