"""A scenario as a file: fleet, load, what the operator may do, what happens meanwhile, how it must end.

The docstring under a field is its description, also on the page that says how to add a scenario
(docs/howto/add-a-scenario.md). What a file leaves out comes from `lab/scenarios/defaults.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from kvmedic.api.resource import find_unimplemented
from kvmedic.api.rules import parse_duration
from kvmedic.api.spec import KVRemediationSpec
from kvmedic.model.engine import Knob
from kvmedic.model.plan import Step
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Waves
from kvmedic.rollout.moves import largest_wave
from lab.loadgen import lengths
from lab.loadgen.record import FIRST_TOKEN_SECONDS
from lab.play.figures import Figures

KINDS = tuple(kind.__name__ for kind in get_args(Step))
"""Every kind of step that the operator can take."""
FIGURES = tuple(field.name for field in fields(Figures))
"""Figures of a window; each may be bounded as after over before."""
Written: TypeAlias = str | tuple[float, float]


class Writes(StrEnum):
    """What may be written to the workload and its pods by others than their owner and Kubernetes."""

    ANY = "any"
    NONE = "none"
    """No field manager of others ever appears, and the workload ends as its owner wrote it last."""
    UNTOUCHED = "untouched"
    """Nobody at all writes: the same resourceVersions at the end as at the beginning."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Move(_Part):
    """One step of a run, or of a plan that is shown."""

    kind: str = "FlagStep"
    """Kind of the step."""
    knob: Knob | None = None
    """The lever, where the step has one."""
    config_map: str | None = None
    """The ConfigMap whose file the lever is set in; None: wherever it is set."""
    number_in: str | None = None
    """Kind of the object that has the number of replicas: `Deployment`, or an autoscaler's; None: any."""
    after: Written | None = None
    """The value that it sets: a text, or the least and the greatest number."""

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in KINDS:
            raise ValueError(f"there is no step {kind}: use one of {', '.join(KINDS)}")
        return kind

    def is_met_by(self, step: dict[str, Any]) -> bool:
        if step.get("kind") != self.kind or (self.knob and step.get("knob") != self.knob):
            return False
        if self.config_map and (step.get("fileOf") or {}).get("configMap") != self.config_map:
            return False
        holder = step.get("holder") or {"object": step.get("target", {})}
        if self.number_in and holder["object"].get("kind") != self.number_in:
            return False
        written = str(step.get("after", ""))
        if isinstance(self.after, tuple):
            return _is_number(written) and self.after[0] <= float(written) <= self.after[1]
        return self.after is None or self.after == written

    def __str__(self) -> str:
        low_high = "{:g} to {:g}".format(*self.after) if isinstance(self.after, tuple) else self.after
        return " ".join(filter(None, (self.kind, self.knob, low_high and f"-> {low_high}")))


class Bound(_Part):
    """Bounds of a figure after the change over the same before; at least one of the two."""

    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Bound:
        if self.at_least is None and self.at_most is None:
            raise ValueError("give at_least or at_most")
        return self

    def holds(self, ratio: float) -> bool:
        """Return whether a ratio lies within; NaN does not."""
        low = -float("inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return low <= ratio <= high

    def __str__(self) -> str:
        given = (("at least", self.at_least), ("at most", self.at_most))
        return " and ".join(f"{word} {value:g}" for word, value in given if value is not None)


class Expectation(_Part):
    """How the play must end. What is left out of it may be as it likes."""

    branch: Reason
    """Reason of the diagnosis that must be found: that of the first run, else the one at the end."""
    held: Reason | None = None
    """Reason of a condition at the end: why no run was opened, or what a person is asked to do."""
    plan: tuple[Move, ...] = ()
    """Steps of the plan that is shown at the end and not carried out."""
    moves: tuple[Move, ...] = ()
    """Steps of all runs that were opened, in their order; empty: no run at all."""
    verdicts: tuple[Reason | tuple[Reason, ...], ...] = ()
    """How each run ended, oldest first; of several reasons any will do."""
    writes: Writes = Writes.ANY
    """any, none, or untouched."""
    template: Literal["any", "same"] = "any"
    """same: at the end the workload is what it was, also where it was changed meanwhile."""
    failed_requests: int | Literal["any"] = 0
    """Requests that failed or were cut, at most. any: the incident itself makes requests fail."""
    failed_kept_requests: int | Literal["any"] = 0
    """The same of those on connections that their clients keep, which `failed_requests` does not count."""
    min_in_rotation: int | Literal["all", "any"] = "all"
    """Replicas in rotation at every moment, at least. all: as many as the fleet has."""
    pods_at_once: Bound | None = None
    """Bounds of the most pods that the fleet had at any moment, spares and draining ones with it."""
    expired: int | None = None
    """Released replicas that the kubelet ends at their deadline, exactly."""
    restarts_per_replica: float | None = None
    """How often each replica was swapped or restarted, at most."""
    ratios: dict[str, Bound] = Field(default_factory=dict)
    """Bounds of figures after the change over before it, or over before the burst where there is one."""
    gain: float | None = None
    """Tokens served in time after the change, over those of the same arrivals at the fleet as it was,
    simulated: at least."""
    measured_change: int = Field(default=1, ge=1)
    """Which of the changes that settle begins the figures of after, from 1."""
    reported: tuple[Reason, ...] = ()
    """Reasons that a condition gave at some time of the play."""
    says: tuple[str, ...] = ()
    """Texts that stand in a condition, a plan or a closed run at the end."""

    @field_validator("ratios")
    @classmethod
    def _figures(cls, ratios: dict[str, Bound]) -> dict[str, Bound]:
        for name in ratios:
            if name not in FIGURES:
                raise ValueError(f"there is no figure {name}: use one of {', '.join(FIGURES)}")
        return ratios

    @model_validator(mode="after")
    def _agrees(self) -> Expectation:
        if self.verdicts and not self.moves:
            raise ValueError("verdicts are of runs, and moves names none: add the moves, or remove verdicts")
        if self.moves and not self.verdicts:
            raise ValueError("moves are of runs, and verdicts does not say how they end: add verdicts")
        if (self.ratios or self.gain) and not self.verdicts:
            raise ValueError("ratios and gain are about a run: add verdicts, or remove them")
        if self.moves and self.writes is not Writes.ANY:
            raise ValueError("moves are writes: remove moves, or use writes: any")
        return self

    @property
    def runs(self) -> int:
        """Return how many runs must be closed before the play ends."""
        return len(self.verdicts)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Cue(StrEnum):
    """What a moment is counted from. Each happens once in a play, or never."""

    START = "start"
    """The fleet is whole, and the play begins."""
    BRANCH = "branch"
    """The operator has found the branch that is expected."""
    PLAN = "plan"
    """A plan is shown, or a run was opened."""
    RELEASED = "released"
    """A replica is released from its ReplicaSet, and serves on."""
    DRAINING = "draining"
    """A replica is out of rotation, and finishes its requests."""
    SETTLED = "settled"
    """Every replica runs what the first step changed."""
    CLOSED = "closed"
    """The first run is closed."""


_MOMENT = re.compile(rf"(?P<cue>{'|'.join(Cue)})(?:\s*\+\s*(?P<after>\S+))?")
_HELP = f"write a duration such as 30s, or one of {', '.join(Cue)}, with or without one: plan+5s"


@dataclass(frozen=True, slots=True)
class Moment:
    """So many seconds after a cue."""

    cue: Cue
    seconds: float

    def at(self, cues: Mapping[Cue, float]) -> float | None:
        """Return when it is, in the seconds of the given cues; None while its cue has not come."""
        began = cues.get(self.cue)
        return None if began is None else began + self.seconds

    def __str__(self) -> str:
        after = f"{self.seconds:g}s"
        return after if self.cue is Cue.START else f"{self.cue}+{after}"


def moment(text: object) -> Moment:
    """Return the moment that a file names: `30s`, `plan`, `plan+5s`."""
    if isinstance(text, Moment):
        return text
    stripped = str(text).strip()
    named = _MOMENT.fullmatch(stripped)
    try:
        if named is None:
            return Moment(Cue.START, seconds(stripped))
        return Moment(Cue(named["cue"]), seconds(named["after"] or "0s"))
    except ValueError:
        raise ValueError(f"{stripped!r} is no moment: {_HELP}") from None


def seconds(text: object) -> float:
    """Return a duration of a file, such as `90s` or `2m`, in seconds.

    Raises:
        ValueError: it is none; the message says how to write one.
    """
    return parse_duration(text).total_seconds() if isinstance(text, str) else _refused(text)


def _refused(value: object) -> float:
    raise ValueError(f"{value!r} has no unit: write a duration such as 90s or 2m")


NAME = r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$"
"""A scenario's name is that of its file, and of the namespace that it is played in."""
FLEET = "inference-llm"
"""Name of the workload, of its Service and of the KVRemediation that looks after it."""
CONTAINER = "vllm"
EVALUATION = "accuracy"
"""Name of the CronJob that evaluates an engine, and of its container."""
MOST_RANKS = 4
CAP = "max-num-seqs"
"""The flag that limits the running requests of an engine."""
LENGTH = "max-model-len"
"""The flag that limits the tokens of a prompt and its answer."""
DEVICE_MEMORY = "LAB_DEVICE_MEMORY_MIB"
"""The variable that makes the lab engine one on a GPU."""
MEMORY_SERIES = "DCGM_FI_DEV_FB_"
"""How the names of series of a GPU's memory begin."""

Seconds: TypeAlias = Annotated[float, BeforeValidator(seconds)]
When: TypeAlias = Annotated[Moment, BeforeValidator(moment)]
Flag: TypeAlias = str | int | float | bool | None


class Part(BaseModel):
    """Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Engine(StrEnum):
    """What serves in the pods."""

    LAB = "lab"
    """vLLM's scheduler, flags and metrics without a model."""
    VLLM = "vllm"
    """Real vLLM on CPU with a small model of random weights."""


class Pool(StrEnum):
    """Which API an InferencePool is of."""

    RELEASED = "v1"
    OLDER = "v1alpha2"
    """The group of before, which clusters still serve."""


class Fleet(Part):
    """The engines and what stands around them."""

    engine: Engine = Engine.LAB
    """lab: vLLM's scheduler without a model. vllm: real vLLM on CPU, for the demo only."""
    replicas: int = Field(ge=1, le=20)
    """Replicas of the workload. Two cores carry 6 of the default engines; more must be slower ones."""
    flags: dict[str, Flag] = Field(default_factory=dict)
    """vLLM's flags without dashes, as `max-num-seqs: 64`; true is a flag without a value, null takes one of
    the defaults away."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment of the engine's container: LAB_* and LAB_FAULT_* of the lab engine."""
    container: dict[str, Any] = Field(default_factory=dict)
    """JSON merge patch of the engine's container, such as its resources."""
    deployment: dict[str, Any] = Field(default_factory=dict)
    """JSON merge patch of the Deployment, such as annotations or its strategy."""
    stateful_set: dict[str, Any] | None = None
    """JSON merge patch of the StatefulSet that stands in place of the Deployment, with a headless Service
    beside the other; {}: as it is made. Absent: a Deployment."""
    groups: dict[str, Any] | None = None
    """JSON merge patch of the LeaderWorkerSet that stands in place of the Deployment, for which the real one
    is built and run: the engines are its leaders, and each has a worker that waits; {}: as it is made."""
    objects: tuple[dict[str, Any], ...] = ()
    """Further objects of the namespace: a HorizontalPodAutoscaler, a PodDisruptionBudget, a ConfigMap; a
    ScaledObject, for which real KEDA is built and run."""
    devices: dict[str, float] | None = None
    """Series of the DCGM exporter and their value for the GPU of every replica; null: no exporter."""
    device_memory: bool = False
    """Whether the DCGM exporter reports how much of its GPU's memory each engine holds; needs
    LAB_DEVICE_MEMORY_MIB."""
    plain: bool = False
    """Whether the pods have no label beside those of the Deployment's selector, by which the Service selects
    them too, and a second container: so it is with most fleets."""
    pool: Pool | None = None
    """An InferencePool of this API in place of the Service; a picker of the lab follows it."""
    router: dict[str, str] | None = None
    """Labels by which a router of the lab finds the pods, in place of the Service. The pods have them."""
    ranks: int = Field(default=1, ge=1, le=MOST_RANKS)
    """Engines in each pod, with a port each behind an InferencePool: vLLM's data-parallel ranks."""
    registry: bool = False
    """Whether the image is pulled at each start, from a registry of the lab."""
    serves: bool = True
    """Whether the play waits until every replica is in rotation; false for engines that do not come up."""

    @field_validator("objects")
    @classmethod
    def _whole(cls, objects: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for each in objects:
            if not {"apiVersion", "kind", "metadata"} <= each.keys() or "name" not in each["metadata"]:
                raise ValueError("an object needs apiVersion, kind and metadata.name: add them")
        return objects

    @model_validator(mode="after")
    def _one_workload(self) -> Fleet:
        if self.stateful_set is not None and self.groups is not None:
            raise ValueError("a fleet is either a StatefulSet or a LeaderWorkerSet: remove one of them")
        if self.deployment and self.kind != "Deployment":
            field = "groups" if self.stateful_set is None else "stateful_set"
            raise ValueError(f"deployment is a patch of what a {self.kind} stands for: move it to {field}")
        return self

    @property
    def kind(self) -> str:
        """Return the kind of the workload."""
        if self.groups is not None:
            return "LeaderWorkerSet"
        return "Deployment" if self.stateful_set is None else "StatefulSet"

    @model_validator(mode="after")
    def _one_front(self) -> Fleet:
        if self.pool is not None and self.router is not None:
            raise ValueError("pool and router both stand in place of the Service: remove one of them")
        if self.ranks > 1 and self.pool is not Pool.RELEASED:
            raise ValueError("only an InferencePool leads requests to several ports: add pool: v1")
        return self

    @model_validator(mode="after")
    def _measurable(self) -> Fleet:
        if self.device_memory and DEVICE_MEMORY not in self.environment:
            raise ValueError(f"device_memory is that of a GPU: add environment.{DEVICE_MEMORY}")
        if self.device_memory and any(name.startswith(MEMORY_SERIES) for name in self.devices or ()):
            raise ValueError(f"device_memory reports what devices names too: remove {MEMORY_SERIES}*")
        return self

    @property
    def cap(self) -> str:
        """Return the cap on running requests that the fleet starts with, as people read it."""
        return str(self.flags.get(CAP, "the engine's default"))


class Route(StrEnum):
    """Where a stream's requests go."""

    SERVICE = "service"
    """To the Service, which picks a replica at random for each connection, or to what stands in its place."""
    REPLICA = "replica"
    """All of them to the first replica, past the Service, as a router with affinity would lead them."""
    REPLICA_FIRST = "replica-first"
    """The first request of each client to the first replica, all others to the Service."""
    STICKY = "sticky"
    """By keys, past the Service: all requests of a key to the same replica of those in rotation."""


class Stream(Part):
    """Clients of one kind. Either `clients` (a closed loop) or `rate` (an open one)."""

    clients: int = Field(default=0, ge=0, le=512)
    """Clients that each send the next request when the last has ended."""
    rate: float = Field(default=0, ge=0, le=200)
    """Requests per second that arrive whatever the fleet does."""
    requests: int | None = Field(default=None, ge=1)
    """The stream ends after so many; one that begins later is a burst: figures of before end there."""
    lengths: str
    """A table of `lab/loadgen/lengths.json`, or PROMPT+OUTPUT tokens, such as 64+512."""
    shared: int = Field(default=0, ge=0, le=4096)
    """Tokens with which prompts begin alike, before those of `lengths`."""
    groups: int = Field(default=1, ge=1, le=2000)
    """Ways in which they begin, in turn; with very many no two that are served together begin alike."""
    kept: int = Field(default=0, ge=0)
    """Clients of the closed loop that keep their connection; the others open one for each request."""
    keep_alive: bool = False
    """Requests of an open stream share connections that are kept, as a gateway's do; else each opens one."""
    patience: Seconds | None = None
    """A client that has seen no token for so long leaves; absent: none does."""
    timeout: Seconds = 180.0
    """A request that has not ended after so long counts as failed."""
    to: Route = Route.SERVICE
    """service, replica, replica-first or sticky."""
    keys: int = Field(default=60, ge=1, le=1000)
    """Keys of a sticky stream; the first ones are the popular ones."""
    begins: When = moment("0s")
    """Moment of the first request."""
    ends: When | None = None
    """Moment of the last one; absent: at the end of the play."""
    seed: int = 1
    """The same seed sends the same lengths in the same order."""

    @field_validator("lengths")
    @classmethod
    def _known(cls, text: str) -> str:
        lengths.parse(text)
        return text

    @model_validator(mode="after")
    def _one_kind(self) -> Stream:
        if (self.clients > 0) == (self.rate > 0):
            raise ValueError("give clients for a closed loop or rate for an open one, and not both")
        if self.kept > self.clients:
            raise ValueError("kept is a part of clients: lower it, or raise clients")
        if self.keep_alive and not self.rate:
            raise ValueError("keep_alive is of an open stream: give rate, or say how many clients are kept")
        return self

    def __str__(self) -> str:
        if self.clients:
            return f"{self.clients} clients"
        text = f"{self.rate:g} requests a second"
        if self.requests is not None:
            text = f"{self.requests} requests at {self.rate:g} a second"
        if self.keep_alive:
            text += " over kept connections"
        leave = "" if self.patience is None else f" (clients leave after {self.patience:g} s of silence)"
        return text + leave

    @property
    def is_burst(self) -> bool:
        """Return whether it comes on top of what comes anyway, and is soon over."""
        return self.requests is not None and self.begins != moment("0s")


class Evaluation(Part):
    """A suspended CronJob `accuracy` in the fleet's namespace, of which a Job evaluates an engine: needles
    in haystacks, each asked once."""

    samples: int = Field(default=200, ge=1, le=5000)
    """Questions."""
    prompt_tokens: int = Field(default=400, ge=3)
    """Tokens of each prompt."""
    output_tokens: int = Field(default=200, ge=1)
    """Tokens of each answer: more than from one pass of a method to the next, or it evicts nothing before the
    answer's end."""
    concurrency: int = Field(default=16, ge=1, le=64)
    """Questions under way at once."""


class On(StrEnum):
    """Which replicas something happens to, by their age when the play began."""

    FIRST = "first"
    OTHERS = "others"
    ALL = "all"


class _Happening(Part):
    at: When
    """Moment at which it happens; one whose cue never comes does not happen."""
    every: Seconds | None = None
    """Pause after which it happens again, until the play ends; absent: once."""


class Devices(_Happening):
    """The DCGM exporter reports another value of some GPUs."""

    do: Literal["devices"]
    on: On = On.FIRST
    """first, others or all replicas, by age."""
    series: dict[str, float]
    """Value by name of the series."""


class Patch(_Happening):
    """Somebody edits an object with kubectl."""

    do: Literal["patch"]
    kind: str
    """Kind of the object."""
    name: str = FLEET
    """Its name; absent: that of the fleet, its Service and its KVRemediation."""
    patch: dict[str, Any]
    """JSON merge patch."""


class Slow(_Happening):
    """A replica's device becomes slow and says nothing of it; only the lab engine can."""

    do: Literal["slow"]
    on: On = On.FIRST
    """first, others or all replicas, by age."""
    factor: float = Field(gt=0, le=100)
    """How many times as long each step takes from then on."""


class Kill(_Happening):
    """Somebody deletes a pod of the fleet."""

    do: Literal["kill"]
    on: On = On.FIRST
    """first, others or all replicas, by age."""


class Apply(_Happening):
    """The owner of the fleet applies its manifest, as it was at the beginning or with other flags."""

    do: Literal["apply"]
    manager: str = "kubectl"
    """Field manager of the server-side apply."""
    flags: dict[str, Flag] = Field(default_factory=dict)
    """Flags that are another value from now on: a new revision."""


class Create(_Happening):
    """Somebody creates an object."""

    do: Literal["create"]
    object: dict[str, Any]
    """The whole object, without namespace."""


class Stop(_Happening):
    """Somebody stops the operator as a whole; no other play is on meanwhile."""

    do: Literal["stop"]


class Resume(_Happening):
    """Somebody takes the operator-wide stop away."""

    do: Literal["resume"]


class Crash(_Happening):
    """The operator is killed, and nobody starts it again; no other play is on meanwhile."""

    do: Literal["crash"]


class Restart(_Happening):
    """The operator is started again."""

    do: Literal["restart"]


class ReleaseAction(StrEnum):
    """What an administrator does with the operator's release."""

    UPGRADE = "upgrade"
    ROLL_BACK = "roll-back"
    UNINSTALL = "uninstall"
    INSTALL = "install"


class Release(_Happening):
    """The operator's release is changed by helm; no other play is on meanwhile."""

    do: Literal["release"]
    action: ReleaseAction
    """`upgrade`, `roll-back`, `uninstall`, or `install` with the values that it had."""


class Registry(_Happening):
    """The registry refuses to answer, or answers again."""

    do: Literal["registry"]
    refuses: bool
    """Whether it refuses from then on."""


class Approve(_Happening):
    """Somebody approves the plan that is shown, whichever it is."""

    do: Literal["approve"]


Incident: TypeAlias = Annotated[
    (Devices | Slow | Patch | Kill | Apply | Create | Approve | Stop | Resume | Crash | Restart)
    | (Release | Registry),
    Field(discriminator="do"),
]
"""Everything that may happen. Another kind joins here and in `lab/play/hands.py`."""


class Limits(Part):
    """How long each part of the play may take. Each default is several times what was measured."""

    ready: Seconds = 180.0
    """Until the fleet serves and the operator has looked at it."""
    diagnosis: Seconds = 240.0
    """From the start until the expected branch is found."""
    quiet: Seconds = 15.0
    """Where no run is expected: how long it is watched, after all that is expected was seen, that none comes.
    Where nothing is to be found this is the whole play."""
    run: Seconds = 900.0
    """From the first plan until every expected run is closed."""
    measure: Seconds = 60.0
    """Of the figures before the plan and after the change settled."""


class Scenario(Part):
    """One play."""

    name: str = Field(pattern=NAME)
    """Name of the file."""
    title: str = Field(min_length=1, max_length=100)
    """One line for people."""
    twin: str | None = None
    """Name of the near twin: nearly the same, and this one's branch or change must not come."""
    fleet: Fleet
    load: tuple[Stream, ...]
    """Streams of requests, side by side or one after the other."""
    remediation: dict[str, Any]
    """The spec of the KVRemediation."""
    incidents: tuple[Incident, ...] = ()
    """What happens meanwhile."""
    evaluation: Evaluation | None = None
    """The fleet's own accuracy evaluation; absent: it has none."""
    expect: Expectation
    limits: Limits = Limits()

    @field_validator("load")
    @classmethod
    def _some(cls, load: tuple[Stream, ...]) -> tuple[Stream, ...]:
        if not load:
            raise ValueError("nobody sends requests: add a stream, such as {clients: 8, lengths: spread}")
        return load

    @field_validator("remediation")
    @classmethod
    def _understood(cls, spec: dict[str, Any]) -> dict[str, Any]:
        pending = find_unimplemented(KVRemediationSpec.model_validate(spec))
        if pending:
            raise ValueError("; ".join(pending))
        return spec

    @property
    def first_token_limit(self) -> float:
        """Return within how many seconds a first token is in time: the objective's, else the usual."""
        objectives = KVRemediationSpec.model_validate(self.remediation).objectives
        promised = objectives and objectives.ttft_p95
        return FIRST_TOKEN_SECONDS if promised is None else seconds(promised)

    @property
    def stops_everything(self) -> bool:
        """Return whether the operator is stopped as a whole or is away, so that no other play may be on."""
        return any(isinstance(each, Stop | Crash | Release) for each in self.incidents)

    @property
    def gpus(self) -> int:
        """Return the GPUs that its fleet may have at once: those of all replicas, also of added ones, and
        one of a spare, or those of a wave."""
        spec = KVRemediationSpec.model_validate(self.remediation)
        added = (int(each.get("maxReplicas", 0)) for each in self.remediation.get("levers", ()))
        in_waves = spec.rollout.waves is Waves.QUARTER
        spares = largest_wave(self.fleet.replicas) if in_waves else 1
        return max(self.fleet.replicas, *added, 0) + spares

    @model_validator(mode="after")
    def _possible(self) -> Scenario:
        if not self.fleet.devices and any(isinstance(each, Devices) for each in self.incidents):
            raise ValueError("incidents change devices and fleet.devices names no series: add them there")
        if not self.fleet.registry and any(isinstance(each, Registry) for each in self.incidents):
            raise ValueError("incidents are of a registry, and no image comes from one: add fleet.registry")
        kind = self.remediation["targetRef"]["kind"]
        if kind != self.fleet.kind:
            raise ValueError(f"remediation.targetRef.kind is {kind}: name the fleet's, {self.fleet.kind}")
        has_service = self.fleet.pool is None and self.fleet.router is None
        if not has_service and any(each.to is Route.REPLICA_FIRST for each in self.load):
            raise ValueError("replica-first goes on to the Service, and there is none: use another route")
        if self.expect.verdicts and len(self.expect.moves) < len(self.expect.verdicts):
            raise ValueError("expect.verdicts has more entries than expect.moves: name the moves of each run")
        return self

    @model_validator(mode="after")
    def _evaluable(self) -> Scenario:
        if self.evaluation is None:
            return self
        if self.fleet.engine is not Engine.LAB:
            raise ValueError("only the lab engine knows needles: remove evaluation, or use engine: lab")
        asked = self.evaluation.prompt_tokens + self.evaluation.output_tokens
        most = self.fleet.flags.get(LENGTH)
        if isinstance(most, int) and asked > most:
            raise ValueError(f"evaluation asks for {asked} tokens and {LENGTH} is {most}: lower its tokens")
        return self
