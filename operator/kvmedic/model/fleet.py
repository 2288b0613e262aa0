"""The Kubernetes side of a serving fleet as it was observed at one moment: plain facts, no judgement.

A pod template is identified by its hash; its owner must make a change of it instead of kvmedic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from kvmedic.model.devices import ContainerEnd, Instance
from kvmedic.model.edits import Digest, EditState, FieldEdit
from kvmedic.model.reasons import Reason

POD_TEMPLATE_HASH = "pod-template-hash"
"""Label that the deployment controller adds to a ReplicaSet's template (apps/v1)."""


def template_hash(template: Mapping[str, object]) -> Digest:
    """Return the hash of a pod template.

    As the API server returns it, defaults filled in, the same template always hashes the same, and without
    the controller's own label a ReplicaSet's like its Deployment's. In one that was read from a manifest's
    text, scalars that are no strings in YAML keep their spelling, and hash by it.
    """
    body = json.loads(json.dumps(template, default=str))
    ((body.get("metadata") or {}).get("labels") or {}).pop(POD_TEMPLATE_HASH, None)
    return Digest.of(body)


def own_template(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ReplicaSet's pod template as the Deployment has it: without the controller's own label."""
    metadata = template.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(labels := metadata.get("labels"), Mapping):
        return dict(template)
    own = {key: text for key, text in labels.items() if key != POD_TEMPLATE_HASH}
    return {**template, "metadata": {**metadata, "labels": own}}


def body_hash(template: Mapping[str, object]) -> Digest:
    """Return the hash of what a pod template is beside its metadata, command lines and variables.

    Image, devices, volumes and nodes decide how much memory there is; no flag or restart changes them, so
    what is known of one template still counts for the next.
    """
    body = json.loads(json.dumps(template, default=str)).get("spec") or {}
    for container in body.get("containers") or ():
        for name in ("command", "args", "env"):
            container.pop(name, None)
    return Digest.of(body)


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One Kubernetes object in the resource's own namespace."""

    kind: str
    name: str


class OwnerKind(StrEnum):
    """What kind of owner decides a pod template."""

    INFERENCE_SERVICE = "KServe InferenceService"
    LLM_INFERENCE_SERVICE = "KServe LLMInferenceService"
    OME = "OME InferenceService"
    LEADER_WORKER_SET = "LeaderWorkerSet"
    VLLM_RUNTIME = "production-stack VLLMRuntime"
    CONTROLLER = "controller"
    ARGO_CD = "Argo CD Application"
    FLUX_KUSTOMIZATION = "Flux Kustomization"
    FLUX_HELM = "Flux HelmRelease"
    APPLIER = "applier"
    """Something else that applies a manifest again and again; only its name is known."""
    PRODUCTION_STACK = "production-stack Helm release"
    HELM = "Helm release"


@dataclass(frozen=True, slots=True)
class TemplateOwner:
    """The owner of a pod template, who must make a change of it instead of kvmedic."""

    kind: OwnerKind
    name: str
    namespace: str = ""
    """Where the owner is, where its marks say; empty: where the workload is."""
    part: str = ""
    """What of the owner the workload is: a model of a release, the kind of a controller's object."""

    def __str__(self) -> str:
        if self.kind is OwnerKind.APPLIER:
            return self.name
        kind = self.part if self.kind is OwnerKind.CONTROLLER else self.kind
        return f"{kind} {self.namespace}/{self.name}" if self.namespace else f"{kind} {self.name}"


FROZEN_MIN_READY_SECONDS = 2147483646
"""No pod is ever Available: the largest 32-bit integer but one, because `progressDeadlineSeconds`
must be larger (Kubernetes apps/v1 validation)."""

FROZEN_PROGRESS_DEADLINE_SECONDS = 2147483647
"""No progress deadline: the deployment controller reads this value as "none" (apps/v1, 1.36)."""

CRASH_LOOP = "CrashLoopBackOff"
"""The kubelet waits, up to five minutes, before it starts a container again that keeps ending."""

ROLLING = "RollingUpdate"
"""The type of strategy that replaces replicas a few at a time."""

ON_DELETE = "OnDelete"
FROZEN_PARTITION = 2147483646
"""A StatefulSet's `partition` below which all replicas are, so that none is replaced: nobody else sets it."""
DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET = "Deployment", "StatefulSet", "LeaderWorkerSet"

SURGE = 1
"""One spare: it needs one free device, and capacity in rotation never falls below what it was."""


@dataclass(frozen=True, slots=True)
class RolloutFields:
    """The fields of a workload that a frozen rollout changes for a while. None: the field is absent."""

    paused: bool
    max_surge: int | str
    max_unavailable: int | str
    min_ready_seconds: int
    progress_deadline_seconds: int | None
    strategy: str = ROLLING
    """Type of the strategy. One that ends every replica at once has no numbers, which count as 0 then."""
    partition: int | None = None
    """Of a StatefulSet or a LeaderWorkerSet, 0 where it has none. None: a Deployment."""
    permits: bool = False
    """A run has one of these make what is deleted anew from the present template."""

    @property
    def is_frozen(self) -> bool:
        """Return whether no replica is replaced by these fields but by a run."""
        if self.partition is not None:
            return self.permits or self.partition == FROZEN_PARTITION
        return (
            self.min_ready_seconds == FROZEN_MIN_READY_SECONDS
            and self.progress_deadline_seconds == FROZEN_PROGRESS_DEADLINE_SECONDS
        )

    def may_lack(self, replicas: int) -> int:
        """Return how many of some replicas a rolling update by these fields may leave missing (Kubernetes
        1.36, deployment/util, ResolveFenceposts)."""
        most = self.max_unavailable
        least = most if isinstance(most, int) else replicas * int(most.rstrip("%")) // 100
        return 1 if least == 0 and self.max_surge in (0, "0", "0%") else least


def freeze_fields(*, max_unavailable: int, paused: bool, surge: int = SURGE) -> RolloutFields:
    """Return the fields of a frozen rollout, with one spare or several."""
    return RolloutFields(
        paused=paused,
        max_surge=surge,
        max_unavailable=max_unavailable,
        min_ready_seconds=FROZEN_MIN_READY_SECONDS,
        progress_deadline_seconds=FROZEN_PROGRESS_DEADLINE_SECONDS,
    )


def hold_by_partition(fields: RolloutFields, *, permits: bool = False) -> RolloutFields:
    """Return the fields by which a StatefulSet stands still, or makes anew what is deleted of it.

    A LeaderWorkerSet stands still by the same ones.
    """
    kind, partition = (ON_DELETE, 0) if permits else (ROLLING, FROZEN_PARTITION)
    own = replace(fields, strategy=kind, partition=partition, permits=permits, max_surge=0)
    return replace(own, max_unavailable=1, paused=not permits)


STILL = freeze_fields(max_unavailable=0, paused=True)
"""The rollout's fields while nothing may be added or removed."""

STILL_WITHOUT_SPARE = freeze_fields(surge=0, max_unavailable=1, paused=True)
"""The same while no pod beside the replicas is there: a paused controller makes one where the surge allows
it, and takes one where it does not (Kubernetes 1.36, deployment sync.go, scale; seen on it). A resume takes
nobody, as one pod at least counts as unavailable."""

ADDING = freeze_fields(max_unavailable=0, paused=False)
"""The rollout's fields while what is missing may be added, and nothing removed."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the target, terminating ones included."""

    name: str
    uid: str
    resource_version: str
    revision: str
    """Hash of the pod template of the ReplicaSet that owns it."""
    address: str
    """Its IP address; empty before it has one."""
    created_at: datetime
    ready_at: datetime | None
    """Since when it is Ready; None while it is not."""
    terminating: bool
    unschedulable: bool
    in_rotation: bool
    """Some Service's EndpointSlice lists it as ready and not terminating."""
    cordoned: bool
    """It carries the rotation label's draining value and a deletion cost below its peers'."""
    restarts: int
    """Restarts of the engine's container."""
    waiting_reason: str
    """Why the engine's container does not run, in the kubelet's words; empty when it runs."""
    node: str = ""
    last_end: ContainerEnd | None = None
    """The newest end of the engine's container; None where it never ended, or is not known."""
    unready_at: datetime | None = None
    """Since when it is not Ready; None while it is, and before anybody said."""
    image: str = ""
    """What the engine's container runs, as the kubelet found it: with its digest, also where the template
    names a tag. Empty before it runs, or where the container is not known."""
    runs_since: datetime | None = None
    """Since when the engine's container runs; None: it does not, or nobody said."""
    is_stopped: bool = False
    """The kubelet says that the engine's container does not run."""
    ports: tuple[int, ...] = ()
    """TCP ports that its containers declare, sorted."""
    port: int | None = None
    """Where its engine serves its metrics; None: nothing shows it."""
    engine_ports: tuple[int, ...] = ()
    """Its ports that are declared to lead to one engine each, where they are several."""
    only_port: int | None = None
    """The engine's port, where other containers run engines too; 0: nobody knows it. None: no other does."""
    is_released: bool = False
    """It was released from its ReplicaSet, to be drained."""
    is_stand_in: bool = False
    """Its ReplicaSet made it when another one was released, and it is the first of its revision to go."""
    half_cordoned: bool = False
    """Out of rotation by our label, without our deletion cost: it is neither drained nor left out."""
    unready_for: timedelta | None = None
    """How long this process has seen it not Ready without a break; None: it is, or nobody counts."""
    listed_by: tuple[str, ...] = ()
    """The Services whose EndpointSlices list it as ready, and such slices of no Service, sorted."""
    stuck_in: tuple[str, ...] = ()
    """Those that did not let go of it until its last drain timed out."""
    ordinal: int | None = None
    """Its place in a StatefulSet, or that of its group, from 0; None: a Deployment's replicas have none."""

    @property
    def ready(self) -> bool:
        """Return whether the pod is Ready."""
        return self.ready_at is not None

    @property
    def has_ended(self) -> bool:
        """Return whether the engine's container ended and was not started again yet."""
        if self.last_end is None:
            return False
        return self.last_end.instance is Instance.PRESENT or self.waiting_reason != ""

    @property
    def ends(self) -> int:
        """Return how often the engine's container has ended so far, started again since or not."""
        return self.restarts + self.has_ended

    @property
    def is_down(self) -> bool:
        """Return whether the engine was not Ready at any time since its container last ended."""
        if self.ready or self.last_end is None:
            return False
        never = self.unready_at is not None and self.unready_at <= self.last_end.ended_at
        return self.has_ended or never

    @property
    def is_unreached(self) -> bool:
        """Return whether no Service can have led a request to the engine since its container was started.

        It does not run, or it was not Ready at any time since. What it counts can only come from somebody who
        goes past the Services.
        """
        if self.ready:
            return False
        began = self.runs_since
        never = began is not None and self.unready_at is not None and self.unready_at <= began
        return self.is_down or self.is_stopped or not self.address or never

    @property
    def keeps_ending(self) -> bool:
        """Return whether it is down for no other reason than that its container ended."""
        return self.is_down and self.waiting_reason in ("", CRASH_LOOP)


@dataclass(frozen=True, slots=True)
class Cordoned:
    """A pod that carries our note of a cordon, under any owner."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    deployment: str
    """Uid of the Deployment that it was cordoned for."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A replica that was released from its ReplicaSet, so that it can be drained while another goes.

    Its `revision` is that of the ReplicaSet from which it was released, and it is `cordoned` once a label was
    changed by which requests are led to it. It is none of the fleet's pods: no controller counts it.
    """

    pod: Pod
    is_owned: bool
    """Its ReplicaSet has not seen yet that it was released."""
    has_ended: bool
    """The kubelet ended it, at the deadline that it got with its cordon."""
    led_by: tuple[str, ...] = ()
    """Labels by which requests are led to it still, of those that are to be changed now."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """One ReplicaSet of the target."""

    name: str
    revision: str
    """Hash of its pod template, without the label that the controller adds."""
    number: int
    """The rollout revision that kubectl shows."""
    desired: int
    available: int
    min_ready_seconds: int
    observed: bool
    """Its controller has seen its newest spec."""
    created_at: datetime | None = None
    """When it was made: the first time that its revision was rolled out. None: not known."""
    reachable: bool = True
    """Every Service that selects the Deployment's own pods selects its pods too."""
    earlier_numbers: tuple[int, ...] = ()
    """Numbers that it had before its revision was rolled out again."""
    failure: str = ""
    """Why its controller cannot make a pod of it, in the API server's words; empty where it can."""

    @property
    def first_number(self) -> int:
        """Return the number under which its revision was rolled out for the first time."""
        return min((self.number, *self.earlier_numbers))


@dataclass(frozen=True, slots=True)
class Rotation:
    """How pods of the target are taken into and out of rotation."""

    label: str
    draining: str
    """The label's value that takes a pod out of rotation."""
    services: tuple[str, ...]
    """Services that select the target's pods, sorted."""
    effective: bool
    """Every one of these Services selects by the label, so a pod with the draining value leaves all; and no
    other takes it in."""
    in_selector: bool
    """The label is part of the Deployment's own selector, so changing it would orphan the pod."""
    rivals: tuple[str, ...] = ()
    """Other Services that select a pod with the draining value: it would get their requests."""
    orphan: OrphanDrain | None = None
    """None: replicas are drained by the label."""
    relabel: OrphanDrain | None = None
    """The same of a StatefulSet: nobody takes its place."""


@dataclass(frozen=True, slots=True)
class LabelFront:
    """What leads requests to pods by their labels and is no Service, so that no EndpointSlice shows it."""

    name: str
    """For people: `InferencePool llm`."""
    selector: Mapping[str, str]
    ports: tuple[int, ...] = ()
    """Ports of the pods that it leads requests to; several are several engines, such as ranks."""

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Return whether pods with these labels get requests."""
        return bool(self.selector) and self.selector.items() <= labels.items()


@dataclass(frozen=True, slots=True)
class OrphanDrain:
    """How a replica is drained where no label of its own does it: released, then relabelled."""

    keys: tuple[str, ...]
    """The labels to change: all that leads requests to the pods goes by one of them, at least."""
    blocked: str = ""
    """Why it cannot be done on this fleet, and what can; empty where it can."""
    has_device: bool = True
    """A pod asks for a device, so that one which takes a released pod's place rarely finds one at once."""
    fronts: tuple[LabelFront, ...] = ()
    """What leads requests to the pods beside their Services."""
    services: tuple[LabelFront, ...] = ()
    """The Services that lead requests to the pods by their labels."""
    is_whole: bool = True
    """False: only a quick look was taken, and what policies and pickers do with the pods was not read."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Somebody else who decides what the Deployment looks like."""

    reason: Reason
    name: str
    """Who, in words that a person can search for."""
    template: TemplateOwner | None = None
    """Who has to be given a change of the pod template."""
    gives_way: bool = False
    """A person said that it leaves a run's fields alone, or that a revert is fine (`spec.ownership`)."""

    @property
    def is_release(self) -> bool:
        """Return whether it applies when a person upgrades it, and not by itself."""
        return self.reason is Reason.MANAGED_BY_HELM

    @property
    def is_controller(self) -> bool:
        """Return whether it renders the object from one of its own, and reverts a change within seconds."""
        return self.reason is Reason.OWNED_BY_CONTROLLER


@dataclass(frozen=True, slots=True)
class Minimum:
    """The fewest replicas that an autoscaler of the target keeps."""

    kind: str
    name: str
    uid: str
    resource_version: str
    number: int
    """As given, else what the kind's default is."""
    is_given: bool
    """It stands in the object; without it the default counts."""
    most: int
    """Replicas, at most, by the same object."""
    mark: str = ""
    """Value of the claim annotation on the object; empty when there is none."""


@dataclass(frozen=True, slots=True)
class OwnerObject:
    """The object that the target is rendered from, as it was looked at."""

    uid: str
    generation: int
    """Of its spec."""
    state: EditState
    """Whether an open step's field of it has the value from before the step, or after it."""
    owner: Owner | None = None
    """Who applies it; None: nobody is known to."""


@dataclass(frozen=True, slots=True)
class Groups:
    """What is known of a LeaderWorkerSet beside its leaders, which are the fleet's pods."""

    obeyed: int | None
    """The partition that the controller of its leaders goes by; None: not known yet."""
    comes_back: str
    """Hash of the template from which a leader below that partition is made anew; empty: not known."""
    unfit: str = ""
    """Why groups like these are not changed, and what helps; empty where they are."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A workload with its ReplicaSets or revisions, and its pods, read within one tick.

    Hashes of pod templates are over canonical JSON of the template as the API server returns it.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    observed: bool
    """The deployment controller has seen the newest spec."""
    replicas: int
    strategy: str
    fields: RolloutFields
    revision: str
    """Hash of the pod template."""
    status_replicas: int
    updated_replicas: int
    fence: str
    """Value of the claim annotation; empty when there is none."""
    replica_sets: tuple[ReplicaSet, ...]
    pods: tuple[Pod, ...]
    rotation: Rotation
    owner: Owner | None
    recorded: Mapping[str, str]
    """Other annotations of ours on the Deployment, by name."""
    scaler: Owner | None = None
    """Somebody else who decides the number of replicas; None where nobody is known to."""
    editor: str = ""
    """Field manager that wrote the pod template last, ourselves left out; empty where none is noted."""
    minimum: Minimum | None = None
    """Of the autoscaler that was asked for; None where nobody asked, or it is not there."""
    rendered_from: OwnerObject | None = None
    """The same of the owner's object."""
    edits: Mapping[str, FieldEdit] = field(default_factory=dict)
    """Who last set the fields that a rollout changes for a while, by their names, and `template`; empty name:
    any field, ourselves left out. A field that was removed has nobody."""
    orphans: tuple[Orphan, ...] = ()
    """Replicas that were released to be drained, by name; none of them is among the pods."""
    looked_at: datetime | None = None
    """The API server's time, by which its pods were made, as this was read; None: not known."""
    kept_by: tuple[str, ...] = ()
    """The finalizers that keep a Deployment which is being deleted; empty: it is not being deleted."""
    kind: str = DEPLOYMENT
    """Of a StatefulSet also whether replicas are made in order, and whether its last rollout is complete."""
    in_order: bool = False
    is_complete: bool = True
    groups: Groups | None = None
    """Of a LeaderWorkerSet; None: another kind."""

    @property
    def is_stateful(self) -> bool:
        """Return whether it is held by a partition, and its replicas have places."""
        return self.kind in (STATEFUL_SET, LEADER_WORKER_SET)

    def list_pods(self, revision: str) -> tuple[Pod, ...]:
        """Return the pods of a revision that are not terminating, by name."""
        return tuple(
            sorted(
                (p for p in self.pods if p.revision == revision and not p.terminating),
                key=lambda p: p.name,
            )
        )

    def count_desired(self, revision: str) -> int:
        """Return how many pods the ReplicaSets of a revision should have."""
        return sum(rs.desired for rs in self.replica_sets if rs.revision == revision)

    def is_saturated(self, revision: str) -> bool:
        """Return whether the ReplicaSets of a revision should have every replica."""
        return self.count_desired(revision) >= self.replicas

    @property
    def total_desired(self) -> int:
        """Return how many pods all ReplicaSets together should have."""
        return sum(rs.desired for rs in self.replica_sets)

    @property
    def spares(self) -> int:
        """Return how many pods the ReplicaSets should have beyond the replicas, at least one.

        That is the surge with which a paused controller adds and removes nothing.
        """
        return max(SURGE, self.total_desired - self.replicas)

    def hold_fields(self, may_lack: int = 0) -> RolloutFields:
        """Return the fields with which the rollout may stay paused: they fit the number of pods.

        `may_lack`: replicas that may be missing, so that no spare is there.
        """
        if self.is_stateful:
            return hold_by_partition(self.fields)
        may_be_bare = self.rotation.orphan is not None or may_lack > 0
        is_bare = may_be_bare and self.total_desired <= self.replicas
        return STILL_WITHOUT_SPARE if is_bare else replace(STILL, max_surge=self.spares)

    @property
    def live(self) -> tuple[Pod, ...]:
        """Return the pods that are not terminating, by name."""
        return tuple(sorted((pod for pod in self.pods if not pod.terminating), key=lambda p: p.name))

    @property
    def is_losing(self) -> bool:
        """Return whether a pod goes that may still serve. One that is not Ready may linger for as long as its
        node does not answer, and is no replica any more."""
        return any(pod.terminating and pod.ready for pod in self.pods)

    @property
    def in_rotation(self) -> int:
        """Return how many replicas take requests."""
        return sum(pod.in_rotation for pod in self.pods)

    @property
    def ready(self) -> int:
        """Return how many pods are Ready and not terminating."""
        return sum(pod.ready and not pod.terminating for pod in self.pods)
