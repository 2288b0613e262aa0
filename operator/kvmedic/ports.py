"""What the reconcile loop needs from the world. Adapters fit these shapes; they do not inherit them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from kvmedic.core.approval import Approval, Unreadable
from kvmedic.core.config_map import FileEdit, Sight
from kvmedic.core.copying import Files
from kvmedic.core.driver import Answer
from kvmedic.core.evidence import Look, Observation, Pool, Reading
from kvmedic.core.fleet import Cordoned, Fleet, Pod
from kvmedic.core.gates import Blocked, Stop
from kvmedic.core.logged_pool import LogForms, LoggedSize
from kvmedic.core.moves import Effect
from kvmedic.core.neighbours import Neighbours
from kvmedic.core.plan import ObjectRef
from kvmedic.core.policy import Policy
from kvmedic.core.recalled import Alone
from kvmedic.core.record import ConfigCopy, Record
from kvmedic.core.resource import Key, Resource
from kvmedic.core.run import Outcome
from kvmedic.core.started import Start, StartForms
from kvmedic.core.version import Version
from kvmedic.core.vitals import Device, EngineEnd
from kvmedic.kube.clock import Stopwatch
from kvmedic.trial_ports import Evaluations, NoEvaluations, NoProbes, NoTrials, Probes, Trials


class View(Protocol):
    """A target as it was read in one tick."""

    @property
    def fleet(self) -> Fleet:
        """Return what was observed."""

    @property
    def template(self) -> Mapping[str, object]:
        """Return the Deployment's `spec.template`. It may hold secrets: never print it, never store it."""

    @property
    def templates(self) -> Mapping[str, Mapping[str, object]]:
        """Return the pod template of each of its ReplicaSets, by its name. The same holds for these."""

    @property
    def config_maps(self) -> Mapping[str, Sight]:
        """Return the ConfigMaps that this template's engines and those of the one before read, by name."""


class Store(Protocol):
    """The resource itself."""

    async def load(self, key: Key) -> Resource | None:
        """Return the resource, or None when it is gone or another of the same name took its place."""

    async def save(self, resource: Resource, record: Record) -> Resource:
        """Write the status with the loaded resourceVersion. Raises Conflict when it moved."""

    async def complain(self, resource: Resource, problem: Outcome) -> tuple[Record, Record] | None:
        """Write conditions that tell a problem, and leave the rest of the status as it is.

        Returns the conditions before and after, or None where they said so already.
        """

    async def is_open(self, namespace: str, claim: str) -> bool:
        """Return whether a resource exists whose open run made a claim on a target."""

    async def is_ending(self, namespace: str) -> bool:
        """Return whether a namespace is being deleted, as far as we may know."""

    async def finalize(self, resource: Resource, present: bool) -> None:  # noqa: FBT001 - the wanted state
        """Put our finalizer on the resource, or take it off."""


class Logs(Protocol):
    """What engines' logs tell: how they ended, and what they said when they started."""

    async def ends(self, namespace: str, pods: Sequence[Pod], since: datetime) -> Mapping[str, EngineEnd]:
        """Return the last end of each engine that ended since a moment, by pod; it reads their logs."""

    async def logged_pools(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: LogForms
    ) -> Mapping[str, LoggedSize]:
        """Return the pools that the present logs of replicas tell, by pod; who tells none is not there."""

    async def starts(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: StartForms
    ) -> Mapping[str, Start]:
        """Return what the present logs of replicas tell of their start, by pod; unreadable is a value."""


class Target(Logs, Protocol):
    """The workload, and what its engines write."""

    async def look(self, namespace: str, policy: Policy) -> View | None:
        """Return the target as it is now, or None when the Deployment does not exist."""

    async def with_minimum(self, view: View, holder: ObjectRef) -> View:
        """Return the target with the minimum that an autoscaler has for it now."""

    async def neighbours(self, view: View) -> Neighbours:
        """Return who else has a say in the target's replicas and pods."""

    async def apply(self, fleet: Fleet, effect: Effect, claim: str) -> None:
        """Carry out one effect on the fleet as it was viewed. Raises Conflict when it moved."""

    async def unclaim(self, fleet: Fleet) -> None:
        """Remove our annotations while the claim is the one that was looked at; nothing without a claim."""

    async def left_cordoned(self, namespace: str) -> tuple[Cordoned, ...]:
        """Return the pods that carry a note of ours, whoever owns them; an empty namespace means all."""

    async def free(self, found: Cordoned) -> None:
        """Put a pod back into rotation that no fleet has any more. Raises Conflict when it changed."""


class Copies(Protocol):
    """Copies of ConfigMaps."""

    async def stand(self, fleet: Fleet, file: FileEdit) -> Files:
        """Return how the ConfigMap of an open step and its copy stand to the step."""

    async def make(self, fleet: Fleet, file: FileEdit) -> str:
        """Make a step's copy; return why it cannot be made, or nothing. Raises Conflict when it moved."""

    async def sweep(self, fleet: Fleet, copies: Sequence[ConfigCopy]) -> tuple[ConfigCopy, ...]:
        """Remove those copies that nothing refers to any more; return the others."""


class Metrics(Protocol):
    """What the replicas export."""

    async def observe(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta, hold: timedelta
    ) -> Observation:
        """Return one look at the named replicas; what is not known is a reading that says so."""

    async def look(self, source: str, pods: Sequence[Pod], namespace: str, look: Look) -> Observation:
        """Return the same of some signals alone: a source computes no others for it."""

    async def past(
        self, source: str, namespace: str, replica_set: str, at: datetime, look: Look
    ) -> Reading[Observation]:
        """Return a look at the replicas that a ReplicaSet had at a moment of the past.

        Which they were, the source says: the pods themselves may be long gone.
        """

    async def last_alone(self, source: str, namespace: str, sought: Alone, at: datetime) -> Reading[datetime]:
        """Return the last moment before some time at which a ReplicaSet was alone in its fleet."""

    async def past_devices(
        self, source: str, namespace: str, pods: Iterable[str], at: datetime, window: timedelta
    ) -> Mapping[str, Reading[tuple[Device, ...]]]:
        """Return the devices that replicas had at a moment of the past, by the replicas' names."""

    async def devices(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta
    ) -> Mapping[str, Reading[tuple[Device, ...]]]:
        """Return the devices of the named replicas; one without a series has a reading that says so."""

    async def peaks(self, source: str, pods: Sequence[Pod], namespace: str) -> Mapping[str, Reading[float]]:
        """Return the most tokens per second that the named replicas were asked for over the last day."""

    async def in_flight(self, source: str, namespace: str, pod: Pod) -> Reading[float]:
        """Return running plus waiting requests of all engines that a source knows, asked of the replica."""

    async def pool(self, namespace: str, pod: Pod) -> Reading[Pool]:
        """Return the KV-cache pool, asked of the replica itself."""

    async def version(self, namespace: str, pod: Pod) -> Reading[Version]:
        """Return the version of the engine, asked of the replica itself."""


class Drivers(Protocol):
    """What the GPU drivers under replicas say, where no series tells."""

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
class Senses:
    """What a look at a fleet without an open run is made with."""

    metrics: Metrics
    logs: Logs
    now: datetime | None = None
    """The operator's own time; None: that of the look."""
    drivers: Drivers = NotAllowed()
    evaluations: Evaluations = field(default_factory=NoEvaluations)


class Reporter(Protocol):
    """What people find beside the status: Events, log lines, metrics."""

    def seen(self, resource: Resource) -> None:
        """Count a resource as it was loaded."""

    async def saved(self, resource: Resource, before: Record | None, after: Record) -> None:
        """Tell what changed between two saved records. Called after a save, never before."""


class Roster(Protocol):
    """Which resources look after which target."""

    def elder(self, key: Key) -> Key | None:
        """Return the oldest resource of the same target, if that is another one."""


class Crowd(Protocol):
    """All resources together: how many runs may be open, and whether new ones may be."""

    async def heed(self, now: datetime) -> None:
        """Read the administrator's word while too many runs ended badly."""

    def has_tripped(self, now: datetime) -> bool:
        """Return whether that keeps new runs from being opened, by his word as it was last read."""

    async def hint(self, uid: str, now: datetime) -> Blocked | None:
        """Return what speaks against opening a run of a resource, as far as the watch has told."""

    def place(self, uid: str, now: datetime) -> AbstractAsyncContextManager[Blocked | None]:
        """Give the turn to open a run, with what speaks against it after all."""

    async def confirmed(self, uid: str, now: datetime) -> Blocked | None:
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


class Approvals(Protocol):
    """What people approved."""

    async def of(self, namespace: str, name: str) -> Sequence[Approval] | Unreadable:
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
    crowd: Crowd
    pace: Pace
    drivers: Drivers = NotAllowed()
    trials: Trials = field(default_factory=NoTrials)
    probes: Probes = field(default_factory=NoProbes)
    evaluations: Evaluations = field(default_factory=NoEvaluations)
    watch: Stopwatch = field(default_factory=Stopwatch)
    """How long this process has seen what runs wait for."""
