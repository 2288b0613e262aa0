"""What a user writes: the spec of `KVRemediation`, with each bound and the reason for each default.

The docstring under a field is its description in the CustomResourceDefinition, in `kubectl explain`
and in the reference. What a version cannot do yet is refused by `kvmedic.api.resource`, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from kvmedic.api.compression import CompressionSpec
from kvmedic.api.rules import (
    DURATION_LENGTH,
    OneOf,
    Rule,
    Wire,
    dns_subdomain,
    duration,
    in_order,
    make_unique_check,
    number_between,
    parse_duration,
    pattern,
    whole,
)
from kvmedic.engines import ENGINES
from kvmedic.model.devices import NodeHealth
from kvmedic.model.spec import (
    Fix,
    Mode,
    OnDrainTimeout,
    OnInconclusive,
    Ownership,
    RotationWay,
    Runbook,
    SideBySide,
    Spare,
    Waves,
)
from kvmedic.model.status import HISTORY_LENGTH


class LeverName(StrEnum):
    """A thing that may be turned, in the words of the resource."""

    MAX_NUM_SEQS = "maxNumSeqs"
    WATERMARK = "watermark"
    MAX_MODEL_LEN = "maxModelLen"
    MAX_NUM_BATCHED_TOKENS = "maxNumBatchedTokens"
    GPU_MEMORY_UTILIZATION = "gpuMemoryUtilization"
    PREFIX_CACHING = "prefixCaching"
    CHUNKED_PREFILL = "chunkedPrefill"
    CPU_OFFLOAD = "cpuOffload"
    SCALE_OUT = "scaleOut"
    REVISION_ROLLBACK = "revisionRollback"


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a lever's bound may have, both ends included."""

    low: float
    high: float
    is_whole: bool = False

    def holds(self, value: float) -> bool:
        """Return whether a value lies in the range."""
        return self.low <= value <= self.high and (not self.is_whole or value == int(value))

    def cel(self, field: str) -> str:
        """Return the same condition for the API server."""
        within = f"self.{field} >= {float(self.low)} && self.{field} <= {float(self.high)}"
        return f"{within} && self.{field} == double(int(self.{field}))" if self.is_whole else within

    def words(self) -> str:
        """Return the range for a message."""
        return f"a {'whole ' if self.is_whole else ''}number from {self.low:.10g} to {self.high:.10g}"


SEQUENCES = Range(1, 65536, is_whole=True)
"""From the least with which an engine serves to 64 times the largest default of vLLM 0.32 (1024)."""

TOKENS = Range(1, 16777216, is_whole=True)
"""To 16 times the longest context that vLLM 0.32 knows a model for (1 Mi tokens)."""

UTILIZATION = Range(0.1, 1)
"""vLLM 0.32 takes (0, 1]; under a tenth of the device no model serves."""

LEVERS: Mapping[LeverName, Mapping[str, Range | None]] = MappingProxyType(
    {
        LeverName.MAX_NUM_SEQS: {"min": SEQUENCES, "max": SEQUENCES},
        LeverName.WATERMARK: {"max": Range(0.001, 0.5)},
        LeverName.MAX_MODEL_LEN: {"min": TOKENS},
        LeverName.MAX_NUM_BATCHED_TOKENS: {"min": TOKENS},
        LeverName.GPU_MEMORY_UTILIZATION: {"min": UTILIZATION, "max": UTILIZATION, "step": Range(0.001, 0.1)},
        LeverName.PREFIX_CACHING: {},
        LeverName.CHUNKED_PREFILL: {},
        LeverName.CPU_OFFLOAD: {"maxGiB": None, "restoreAfter": None},
        LeverName.SCALE_OUT: {
            "maxReplicas": None,
            "step": Range(1, 100, is_whole=True),
            "restoreAfter": None,
        },
        LeverName.REVISION_ROLLBACK: {"within": None},
    }
)
"""The bounds that each lever takes, by field. None: the field's own bounds are enough."""


def _belongs(field: str) -> Rule[LeverSpec]:
    owners = [name for name, bounds in LEVERS.items() if field in bounds]
    return Rule(
        cel=f"!has(self.{field}) || self.name in {[str(name) for name in owners]}",
        message=f"{field} belongs to {', '.join(owners)}: remove it from this lever",
        holds=lambda lever: field not in lever.bounds() or lever.name in owners,
        path=f".{field}",
        forbids=True,
    )


def _ranges(name: LeverName, field: str, allowed: Range) -> Rule[LeverSpec]:
    return Rule(
        cel=f"self.name != '{name}' || !has(self.{field}) || ({allowed.cel(field)})",
        message=f"{field} of {name}: use {allowed.words()}",
        holds=lambda lever: lever.name is not name or allowed.holds(lever.bounds().get(field, allowed.low)),
        path=f".{field}",
    )


def _lever_rules() -> tuple[Rule[LeverSpec], ...]:
    fields = dict.fromkeys(field for bounds in LEVERS.values() for field in bounds)
    return (
        *(_belongs(field) for field in fields),
        *(
            _ranges(name, field, allowed)
            for name, bounds in LEVERS.items()
            for field, allowed in bounds.items()
            if allowed is not None
        ),
        Rule(
            cel="!has(self.min) || !has(self.max) || self.min <= self.max",
            message="min must not exceed max: lower min or raise max",
            holds=lambda lever: (
                lever.minimum is None or lever.maximum is None or lever.minimum <= lever.maximum
            ),
            path=".min",
        ),
    )


class LeverSpec(Wire):
    """A lever that kvmedic may use, with its bounds. Each lever has its own bounds."""

    rules = _lever_rules()

    name: Annotated[LeverName, Field(json_schema_extra={"maxLength": max(map(len, LeverName))})]
    """Name of the lever."""
    minimum: Annotated[float, Field(strict=True)] | None = Field(default=None, alias="min")
    """Least value, for maxNumSeqs (1 to 65536), maxModelLen and maxNumBatchedTokens (1 to 16777216) and
    gpuMemoryUtilization (0.1 to 1). Absent: no bound beyond the engine's own."""
    maximum: Annotated[float, Field(strict=True)] | None = Field(default=None, alias="max")
    """Greatest value, for maxNumSeqs (1 to 65536), watermark (0.001 to 0.5) and gpuMemoryUtilization (0.1 to
    1), which is raised only where a max is given. Without it maxNumSeqs is raised no higher than it was
    before kvmedic lowered it. The other levers with a value are only ever lowered."""
    step: Annotated[float, Field(strict=True)] | None = None
    """Greatest change at once, for gpuMemoryUtilization (0.001 to 0.1) and scaleOut (1 to 100 replicas;
    absent: 1)."""
    max_gib: Annotated[int, Field(strict=True), whole(1, 65536)] | None = Field(default=None, alias="maxGiB")
    """Host memory for KV blocks per replica, over all its engines and GPUs (GiB), for cpuOffload. From 1 to
    65536. It is refused if the container's memory limit does not cover it."""
    max_replicas: Annotated[int, Field(strict=True), whole(1, 10000)] | None = None
    """Most replicas, for scaleOut. From 1 to 10000. Absent: one step more than before."""
    restore_after: Annotated[str, Field(max_length=DURATION_LENGTH), duration("1m", "168h")] | None = None
    """How long the fleet must be calm before added replicas or host memory are released, for scaleOut and
    cpuOffload. From 1m to 168h. Absent: 1h."""

    within: Annotated[str, Field(max_length=DURATION_LENGTH), duration("5m", "24h")] | None = None
    """How long after its rollout a revision may be rolled back, for revisionRollback. From 5m to 24h.
    Absent: 1h, enough to roll out ten replicas that start in five minutes and for the trigger to hold."""

    def bounds(self) -> dict[str, float]:
        """Return the bounds that are given, by field; a duration counts as 0."""
        written = self.model_dump(by_alias=True, exclude_none=True, exclude={"name"})
        return {field: v if isinstance(v, int | float) else 0 for field, v in written.items()}


Window: TypeAlias = Literal["1m", "2m", "5m", "10m", "30m", "1h"]
"""How far a query looks back. An enumeration, so that one query serves all resources of a source."""

Hold: TypeAlias = Literal["0s", "30s", "1m", "2m", "5m", "10m"]
"""How long a condition must have held. An enumeration for the same reason."""

Text: TypeAlias = Annotated[str, Field(max_length=DURATION_LENGTH)]

DNS_LABEL = pattern(
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "use lower-case letters, digits and dashes, such as vllm"
)
LABEL_KEY = pattern(
    "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    "use a label key, such as serving or example.com/serving",
)
LABEL_VALUE = pattern(
    "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    "use a label value: letters, digits, dashes, underscores and dots, such as draining",
)


class TargetRef(Wire):
    """The workload to watch, in the resource's own namespace. Immutable."""

    kind: Literal["Deployment", "StatefulSet", "LeaderWorkerSet"] = "Deployment"
    """Kind of the workload. A StatefulSet is changed one ordinal after the other, and a LeaderWorkerSet one
    group after the other by its leader. Both are one replica short for each drain and start: that needs
    `rollout.spare: BestEffort` or `None`."""
    name: Annotated[str, Field(max_length=253), dns_subdomain("Deployment")]
    """Name of the workload, in the resource's own namespace."""
    container: Annotated[str, Field(max_length=63), DNS_LABEL] | None = None
    """Name of the engine's container in the pod template. Optional if exactly one of the template's
    containers runs a known engine; otherwise `ActionRequired` asks for it."""
    engine: Annotated[str, OneOf(tuple(each.name for each in ENGINES))] | None = None
    """The engine that the container runs. Needed only where neither the image's name nor the command line
    says so, as with an image of your own that is given `args` alone: these are read as the engine's flags
    then. Where the pod has several containers, name the engine's in `container` too."""
    port: Annotated[int, Field(strict=True), whole(1, 65535)] | None = None
    """TCP port at which each replica serves `/metrics`. From 1 to 65535. Absent: the engine's `--port`, else
    the port of its container that is named `metrics` or `http`, else its only port, else the annotation
    `prometheus.io/port` of the pod, else the only port that its Services lead to, else that of the operator's
    configuration (8000)."""
    ports: (
        Annotated[
            list[Annotated[int, Field(strict=True)]],
            Field(min_length=2, max_length=64),
            Rule(
                cel="self.all(port, port >= 1 && port <= 65535)",
                message="use whole numbers from 1 to 65535",
                holds=lambda ports: all(1 <= port <= 65535 for port in ports),
            ),
            make_unique_check(),
        ]
        | None
    ) = Field(default=None, json_schema_extra={"x-kubernetes-list-type": "set"})
    """TCP ports at which the engines of a replica serve `/metrics`, where each has its own, as ranks of data
    parallelism behind an external balancer do. 2 to 64, each from 1 to 65535. A replica is idle once all of
    them are. Absent: the `targetPorts` of an InferencePool that leads to the pods, else `port`."""


class Metrics(Wire):
    """The source of the metrics."""

    source: Annotated[
        str,
        Field(max_length=63),
        pattern(
            "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            "use the name of a metrics source in the operator's configuration, such as default, never a URL",
        ),
    ] = "default"
    """Name of a metrics source in the operator's configuration. Never a URL, so that a resource cannot make
    the operator call any address. Every installation has `default`."""


class Objectives(Wire):
    """Service levels that a change must not break and a recovery must reach. Each is optional."""

    rules = (
        Rule(
            cel="!has(self.ttftP95) || !has(self.e2eP95) || " + in_order("self.ttftP95", "self.e2eP95"),
            message="ttftP95 is part of e2eP95: lower ttftP95 or raise e2eP95",
            holds=lambda o: _in_order(o.ttft_p95, o.e2e_p95),
            path=".ttftP95",
        ),
    )

    inter_token_p95: Annotated[Text, duration("1ms", "1m")] | None = Field(
        default=None, alias="interTokenP95"
    )
    """95th percentile of the time between two tokens of one request, at most. From 1ms to 1m. Preemption
    shows here first: a preempted request stalls in the middle of its answer."""
    e2e_p95: Annotated[Text, duration("10ms", "24h")] | None = Field(default=None, alias="e2eP95")
    """95th percentile of a request's whole time, at most. From 10ms to 24h."""
    ttft_p95: Annotated[Text, duration("1ms", "24h")] | None = Field(default=None, alias="ttftP95")
    """95th percentile of the time to the first token, at most. From 1ms to 24h. A lower cap on running
    sequences raises it, because requests then wait before the engine instead of inside it. A change that
    breaks it is rolled back. Without it, a first token that takes clearly longer than before may not exceed
    30s."""


class Trigger(Wire):
    """When a replica counts as pressured: it preempts, its answers hang, or it keeps users waiting."""

    preemptions_per_request: Annotated[float, Field(strict=True), number_between(0.01, 100)] = 0.5
    """Preemptions per finished request of one replica, at least. From 0.01 to 100. 0.5 lies above what
    well-sized replicas show: 0.05 to 0.4 remain at the best setting, so a rate near 0 is not the goal."""
    kv_cache_usage: Annotated[float, Field(strict=True), number_between(0, 1)] = 0.85
    """KV-cache usage of that replica over the window, at least (ratio 0 to 1). It only supports the rate:
    thrashing replicas averaged 0.87 to 0.94, and a healthy one reached 0.97 (vLLM 0.32)."""
    silent_seconds: Annotated[float, Field(strict=True), number_between(0.1, 3600)] | None = None
    """Seconds that a request waits in all, on average over one replica, at least: for its first token, and
    while it is preempted. From 0.1 to 3600. Absent: half of objectives.ttftP95, or 5 without it."""
    stalls_per_request: Annotated[float, Field(strict=True), number_between(0.001, 100)] = 0.05
    """Gaps of more than 2.5 s between two tokens, per finished request of one replica, at least. From 0.001
    to 100."""
    window: Window = "5m"
    """How far back the rates look: what they exceed has held that long on average. 5m spans several requests
    of ordinary length and at least five scrapes at a one-minute interval."""
    hold: Hold = Field(default="2m", alias="for")
    """How long every look, each over `window`, must have exceeded the trigger. A change restarts every
    replica, which takes minutes, so a burst shorter than 2m is not worth it."""


class Sizing(Wire):
    """The window from which the size of a change is computed."""

    window: Window = "30m"
    """How far back lengths and load are measured. At least trigger.window and the p99 of a request's whole
    time, or no size is computed. 30m covers long requests."""


class RotationLabel(Wire):
    """The pod label that takes a replica out of rotation.

    A replica leaves when its pod's label is set to `draining`, and comes back when the label is set to
    the value of the Deployment's own pod template. So the template must have the label with a value other
    than `draining`, and the Services must select that value. Otherwise `rollout.rotation` says what happens.
    """

    key: Annotated[
        str,
        Field(max_length=317),
        LABEL_KEY,
        Rule(
            cel="self != 'pod-template-hash'",
            message="pod-template-hash belongs to the ReplicaSet: use a label that only Services select",
            holds=lambda key: key != "pod-template-hash",
        ),
    ] = "serving"
    """Key of the label. It must not be part of the Deployment's selector. The runbook uses `serving`."""
    draining: Annotated[str, Field(max_length=63), LABEL_VALUE] = "draining"
    """Value of a draining replica. No Service and no policy (PodDisruptionBudget, NetworkPolicy) may select
    it; otherwise nothing is changed, with the reason `RotationLabelUnusable`. The runbook uses `draining`."""


class Router(Wire):
    """A router that finds pods by their labels itself, without a Service or an InferencePool."""

    match_labels: Annotated[
        dict[Annotated[str, Field(max_length=317)], Annotated[str, Field(max_length=63)]],
        Field(min_length=1, max_length=8),
    ]
    """The labels that it selects by, such as those of its `--k8s-label-selector`."""


class Rollout(Wire):
    """How a change moves through the fleet: the spare first, and one replica at a time or in waves."""

    spare: Spare = Spare.REQUIRED
    """Required: one new replica starts beside all old ones before the first old one is drained. That needs
    one free device, and capacity never falls. BestEffort: without room for it the fleet is one replica short
    for each drain and start, but only where its figures predict that the others carry the load. None: no
    spare is ever made, and the fleet is one replica short whatever the load is. A fleet of one replica
    and a replacement need the spare. Required is the default, because a thrashing fleet has no spare
    capacity."""
    spare_limit: Annotated[Text, duration("10s", "24h")] | None = None
    """How long the spare may wait for a node before it is taken back, from 10s to 24h. Set it where an
    autoscaler adds nodes: without room the spare is tried then, and waits for one. Unset, the operator's
    `pace.spareLimit` (15m) counts, and no room is said before anything is changed, unless nodes show that
    Karpenter or the cluster autoscaler looks after them."""
    waves: Waves = Waves.ONE_BY_ONE
    """How many replicas are replaced at once after the first new ones were compared with the old ones and the
    rollout goes on. OneByOne: one. Quarter: a quarter of the fleet, rounded up, as with a maxSurge of 25%. It
    needs as many free devices; if fewer spares find a node, fewer replicas go at once. Capacity never falls.
    A rollout that is not compared, and every rollback, goes one by one. OneByOne is the default, because
    spare devices are rare."""
    drain_timeout: Annotated[Text, duration("10s", "24h")] = "10m"
    """How long a replica out of rotation may finish its requests. From 10s, because two readings at least
    5s apart confirm idleness, to 24h. After it, `onDrainTimeout` decides. Almost any request takes less
    than 10m."""
    on_drain_timeout: OnDrainTimeout = OnDrainTimeout.HOLD
    """What happens to a replica that still has requests, or whose engines do not all report them, when its
    drain times out. Hold: it goes back into rotation and another one is drained. If none can go, the run
    waits with every replica in rotation, and ActionRequired says so (DrainTimedOut). Proceed: it is
    removed, and vLLM aborts its requests unless it runs with --shutdown-timeout. Hold is the default,
    because an aborted request is lost. In either case the operator does not wait for a replica that is
    down. A replica that a Service still sends requests to goes back into rotation, and the message names
    the Service."""
    start_timeout: Annotated[Text, duration("1m", "24h")] | None = None
    """How long a new replica may take to become Ready before it counts as one that does not start, from 1m
    to 24h. The operator waits at least the Deployment's progressDeadlineSeconds (10m if it has none), and
    at least twice the slowest start in the fleet. Set it if a model loads for longer."""
    rotation_label: RotationLabel = RotationLabel()
    rotation: RotationWay = RotationWay.AUTO
    """How a replica is taken out of rotation. Label: by `rotationLabel` alone; where that takes it out of no
    Service, nothing is changed, with the reason `RotationLabelWithoutEffect`. Orphan: it is released from its
    ReplicaSet while it serves, and then the labels change that Services, InferencePools and routers select
    it by; it never comes back, and nobody needs to add a label. Where that is not safe, nothing is changed,
    with the reason `DrainImpossible`. Auto: Label where the label works, else Orphan."""
    settle: Annotated[Text, duration("0s", "10m")] = "15s"
    """How long a released replica must have been out of rotation before its requests are counted, from 0s to
    10m. Raise it for load balancers that let go of a pod late. 15s, because kube-proxy of a busy node took up
    to some seconds more than 5s to follow."""
    routers: Annotated[list[Router], Field(max_length=8)] | None = None
    """Routers that find the pods by labels, without a Service. Those of production-stack, AIBrix and llm-d
    are recognised by the labels that their charts give the pods."""


class Verify(Wire):
    """How a change is judged."""

    window: Window = Field(default="10m", alias="for")
    """The sustained window. It begins when the last replica with the change is Ready, and is compared with
    the time before at comparable load. At least trigger.window. 10m is two default trigger windows."""
    on_inconclusive: OnInconclusive = OnInconclusive.HOLD
    """What happens while there is no verdict. Hold: keep looking for holdAtMost, then roll the change back.
    Keep: keep looking as long, then keep the change. RollBack: roll it back at once. Hold is the default,
    because evidence often comes with the next requests, and a change without a verdict should not stay."""
    hold_at_most: Annotated[Text, duration("0s", "168h")] = "2h"
    """How long a change without a verdict is held, from 0s to 168h, after the verdict was due. Until then,
    the annotation kvmedic.io/keep with the run's id as its value keeps the change. 2h is longer than the
    quiet after most peaks."""
    side_by_side: SideBySide = SideBySide.AUTO
    """Whether the first new replicas are compared with the old ones while both serve. Auto: the rollout
    pauses for 12 minutes or more, and harm is taken back with one or two replicas changed. Never: the rollout
    does not pause, and the fleet is compared with the time before once every replica has the change."""


def _check_zone(name: str) -> str:
    """Return the name of a time zone that there is; the API server cannot check it."""
    try:
        ZoneInfo(name)
    except (OSError, ValueError, ZoneInfoNotFoundError) as error:
        text = "no such time zone: use a name of the IANA database, such as Europe/Berlin or UTC"
        raise PydanticCustomError("rule", text) from error
    return name


class MaintenanceWindow(Wire):
    """A time of the week in which runs may be opened. A run that is open at its end continues."""

    days: Annotated[
        list[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]], Field(min_length=1, max_length=7)
    ] = Field(json_schema_extra={"x-kubernetes-list-type": "set"})
    """Days of the week."""
    start: Annotated[str, Field(max_length=5), pattern("^([01][0-9]|2[0-3]):[0-5][0-9]$", "use HH:MM")]
    """First minute, as HH:MM."""
    end: Annotated[str, Field(max_length=5), pattern("^([01][0-9]|2[0-3]):[0-5][0-9]$", "use HH:MM")]
    """Minute after the last, as HH:MM. If it is not after `start`, it is on the next day."""
    time_zone: Annotated[str, Field(max_length=64), AfterValidator(_check_zone)] = "UTC"
    """Name of a time zone in the IANA database. UTC, because it has no daylight-saving time."""


class Limits(Wire):
    """Conditions for opening a run. Rolling back is never limited."""

    cooldown: Annotated[Text, duration("0s", "168h")] = "30m"
    """Least time between the end of a run and the start of the next. From 0s to 168h. After 30m the default
    sizing window has no data from before the last change."""
    max_runs_per_day: Annotated[int, Field(strict=True), whole(1, HISTORY_LENGTH)] = 4
    """Runs started within any 24 hours, at most. From 1 to 10, as many as the history keeps. To stop all
    runs use suspend. A fleet that needs more than 4 changes a day has a problem that settings cannot
    solve."""
    min_healthy_replicas: Annotated[int, Field(strict=True), whole(1, 10000)] = 1
    """Fewest Ready replicas for opening a run. From 1 to 10000. 1 is enough, because the spare starts
    before the first replica goes. A run against GPU out-of-memory counts the replicas that ran out, if no
    other replica is down."""
    windows: Annotated[list[MaintenanceWindow], Field(max_length=16)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """When runs may be opened; absent: always."""
    approval_max_age: Annotated[Text, duration("1m", "24h")] = "1h"
    """How long an approval counts in mode Approve. From 1m to 24h, because the history is sure to keep a
    used approval for that long. 1h is two default sizing windows: after it, the plan rests on none of the
    data that the approver saw. Set more if plans are approved before a maintenance window."""


def _in_order(first: str | None, second: str | None) -> bool:
    return first is None or second is None or parse_duration(first) <= parse_duration(second)


def _lever_name(lever: LeverSpec) -> LeverName:
    return lever.name


class KVRemediationSpec(Wire):
    """What to watch, how far kvmedic may go, and when."""

    rules = (
        Rule(
            cel=in_order("self.trigger.window", "self.sizing.window"),
            message="sizing.window must not be shorter than trigger.window: raise sizing.window",
            holds=lambda s: _in_order(s.trigger.window, s.sizing.window),
            path=".sizing.window",
        ),
        Rule(
            cel=in_order("self.trigger.window", "self.verify.__for__"),
            message="verify.for must not be shorter than trigger.window, or a change is judged on less than"
            " what led to it: raise verify.for",
            holds=lambda s: _in_order(s.trigger.window, s.verify.window),
            path=".verify.for",
        ),
        Rule(
            cel="self.mode == 'Observe' || size(self.levers) > 0",
            message="no lever is allowed, so nothing could be changed: add one, such as {name: maxNumSeqs},"
            " or use mode Observe",
            holds=lambda s: s.mode is Mode.OBSERVE or bool(s.levers),
            path=".levers",
        ),
        Rule(
            cel=f"!has(self.compression) || !('{Fix.DEMAND_CAPS}' in self.compression.allowedFixes) || "
            f"'{Runbook.PREEMPTION_THRASH}' in self.runbooks",
            message=f"{Fix.DEMAND_CAPS} hands the fleet to {Runbook.PREEMPTION_THRASH}: add it to runbooks",
            holds=lambda s: (
                s.compression is None
                or Fix.DEMAND_CAPS not in s.compression.allowed_fixes
                or Runbook.PREEMPTION_THRASH in s.runbooks
            ),
            path=".runbooks",
        ),
    )

    target_ref: Annotated[
        TargetRef,
        Rule(
            cel="self == oldSelf",
            message="targetRef is immutable, because a run's record belongs to one workload: delete this"
            " KVRemediation and create a new one",
            holds=None,
        ),
        Rule(
            cel="!has(self.port) || !has(self.ports)",
            message="ports names the port of each engine, so port has nothing to add: remove one of them",
            holds=lambda target: target.port is None or target.ports is None,
            path=".ports",
            forbids=True,
        ),
    ]
    mode: Mode = Mode.OBSERVE
    """Observe: diagnose and show the plan, change nothing. Approve: carry a plan out once it is approved.
    Auto: carry it out. Observe, so that a new resource shows what it would do before it does anything."""
    suspend: Annotated[bool, Field(strict=True)] = False
    """true stops every forward move within one tick; every replica then stays in rotation. A change can
    still be rolled back."""
    ownership: Ownership = Ownership.RESPECT
    """What happens where Helm, Argo CD, Flux or another applier owns the Deployment. Respect: nothing of its
    template is changed, and ActionRequired has the exact change for its owner. Apply: the operator changes
    it. With this a person says that the owner leaves the run's fields alone, or that a revert is fine. One
    revert ends it: nothing more is tried then, and ActionRequired says so (TemplateContested). Of what
    KServe, OME or production-stack render, the one field of their own object that has the flag is changed,
    where that is certain; what another controller renders never is. Respect is the default, because a
    revert in the middle of a rollout costs replicas."""
    runbooks: Annotated[
        list[Runbook],
        Field(max_length=len(Runbook)),
        Rule(
            cel="size(self) > 0",
            message="name at least one runbook, such as PreemptionThrash; to stop everything use suspend",
            holds=lambda names: len(names) > 0,
        ),
        make_unique_check(),
    ] = Field(default=[Runbook.PREEMPTION_THRASH], json_schema_extra={"x-kubernetes-list-type": "set"})
    """The runbooks to apply. Every engine's metrics can show PreemptionThrash."""
    metrics: Metrics = Metrics()
    objectives: Objectives | None = None
    trigger: Trigger = Trigger()
    sizing: Sizing = Sizing()
    node_health: NodeHealth = NodeHealth.IF_AVAILABLE
    """What happens if the health of a replica's GPUs is unknown. IfAvailable: unknown health does not stop
    a change; a known fault always does. Required: nothing is changed, and the diagnosis names the missing
    series of the DCGM exporter. IfAvailable is the default, because the exporter's default counters do not
    include all that Required needs. One slow GPU alone is not mistaken for demand."""
    levers: Annotated[list[LeverSpec], Field(max_length=len(LEVERS)), make_unique_check(_lever_name)] = Field(
        default=[LeverSpec(name=LeverName.MAX_NUM_SEQS)],
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """The levers that kvmedic may use, in the order of trying. A lever that is not in the list is not
    allowed. By default only the cap on running sequences: it helps most often, and each try of another
    lever restarts the fleet. gpuMemoryUtilization is lowered after an out-of-memory and then needs `min`
    and `step`. It is raised if memory stays free, with `max` and `step`."""
    rollout: Rollout = Rollout()
    verify: Verify = Verify()
    limits: Limits = Limits()
    compression: CompressionSpec | None = None
