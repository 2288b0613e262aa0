"""What is played: the fleet, the load on it, what the operator may do, and what counts as a good end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from . import vllm

NAMESPACE = "serving"
FLEET = "inference-llm"
"""Name of the Deployment, of its Service and of the KVRemediation that looks after it."""
CONTAINER = "vllm"
PORT = 8000
MODEL = "tiny"


class Engine(StrEnum):
    """What serves in the pods."""

    LAB = "lab"
    """vLLM's scheduler, flags and metrics without a model."""
    VLLM = "vllm"
    """Real vLLM on CPU with a small model of random weights."""


@dataclass(frozen=True, slots=True)
class Load:
    """Closed-loop clients, each over fresh connections."""

    clients: int
    lengths: str
    """A table of `lab.loadgen`, or `PROMPT+OUTPUT`."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Goals:
    """Bounds that a healed fleet must keep; ratios are after over before."""

    verdicts: frozenset[str] = frozenset({"Recovered"})
    """The operator's verdicts that count as healed."""
    gap_factor: float = 4.0
    """The p95 of the longest gap is at least this many times shorter."""
    throughput_ratio: float = 0.95
    restarts_per_replica: float = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each part of the play may take, in seconds. Each is several times what was measured."""

    ready: float = 180.0
    """Until the fleet serves and the operator has looked at it."""
    calm: float = 90.0
    """How long a healthy fleet is watched."""
    diagnosis: float = 240.0
    """From the first request to the plan."""
    run: float = 900.0
    """From the plan to its end."""
    measure: float = 60.0
    """Of the figures before and after."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines of one scenario."""

    replicas: int
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    engine: Engine = Engine.LAB

    @property
    def gpus(self) -> int:
        """Of the node: one more than replicas is the spare."""
        return self.replicas + 1

    @property
    def cap(self) -> int:
        """Value of --max-num-seqs that the fleet starts with."""
        return int(self.args[self.args.index("--max-num-seqs") + 1])


@dataclass(frozen=True, slots=True)
class Scenario:
    """One play."""

    name: str
    title: str
    fleet: Fleet
    load: Load
    expected: str
    """How the play must end: `Recovered`, `CanaryFailed`, or `Healthy` for no run at all."""
    spec: Mapping[str, Any]
    goals: Goals = Goals()
    limits: Limits = Limits()


ARGS = (
    "serve",
    "lab/model",
    "--served-model-name",
    MODEL,
    "--port",
    str(PORT),
    "--max-model-len",
    "2048",
    "--block-size",
    "32",
    "--num-gpu-blocks-override",
    "150",
    "--max-num-seqs",
    "64",
    "--shutdown-timeout",
    "30",
)
"""vLLM's command line: a pool of 149 usable blocks of 32 tokens, as in the measured incident, and a cap that
lets far more requests run than fit into it."""

ROTATION_LABEL: Mapping[str, str] = MappingProxyType({"key": "serving", "draining": "draining"})
"""The label that takes a replica out of the Service."""

SPEC: Mapping[str, Any] = MappingProxyType(
    {
        "targetRef": {"kind": "Deployment", "name": FLEET, "container": CONTAINER},
        "mode": "Auto",
        "trigger": {"preemptionsPerRequest": 0.5, "kvCacheUsage": 0.8, "window": "1m", "for": "1m"},
        "sizing": {"window": "1m"},
        "nodeHealth": "IfAvailable",
        "levers": [{"name": "maxNumSeqs", "min": 4}],
        "rollout": {"drainTimeout": "2m", "rotationLabel": dict(ROTATION_LABEL)},
        "verify": {"for": "1m", "onInconclusive": "RollBack"},
        "limits": {"cooldown": "5m", "minHealthyReplicas": 2},
    }
)
"""What the fleet's owner wrote. The windows are the shortest there are, so that a minute of trouble is
enough; a real fleet keeps the defaults (5m, 30m, 10m). The lab has no GPUs, so nothing tells of their
health."""

CROWD = 192
"""Clients of three replicas. kube-proxy picks a replica at random for each request, so that the numbers of
requests at the replicas drift apart, and a replica with few of them is calm. With so many, every replica
thrashed through the whole first minute in 59 of 60 runs in simulated time."""

THRASH = Scenario(
    name="thrash",
    title="three replicas thrash on KV cache and are healed",
    fleet=Fleet(3, ARGS, {"LAB_STARTUP_SECONDS": "3"}),
    load=Load(clients=CROWD, lengths="spread"),
    expected="Recovered",
    spec=SPEC,
)

HEALTHY = replace(
    THRASH,
    name="healthy",
    title="three calm replicas are left alone",
    load=Load(clients=12, lengths="spread"),
    expected="Healthy",
)

BAD_CANARY = replace(
    THRASH,
    name="bad-canary",
    title="the new setting crashes the engine, and the old fleet stays untouched",
    fleet=replace(THRASH.fleet, env={**THRASH.fleet.env, "LAB_FAULT_CRASH_BELOW_SEQS": "64"}),
    expected="CanaryFailed",
)

SCENARIOS = MappingProxyType({each.name: each for each in (THRASH, HEALTHY, BAD_CANARY)})

REAL = replace(
    THRASH,
    name="thrash",
    title="two replicas of real vLLM thrash on KV cache and are healed",
    fleet=Fleet(
        2,
        ("serve", str(vllm.MODEL), *ARGS[2:], "--load-format", "dummy", "--enforce-eager"),
        engine=Engine.VLLM,
    ),
    load=Load(clients=144, lengths="spread"),
    spec={
        **SPEC,
        "trigger": {**SPEC["trigger"], "window": "2m"},
        "sizing": {"window": "2m"},
        "verify": {**SPEC["verify"], "for": "2m"},
        "limits": {**SPEC["limits"], "minHealthyReplicas": 1},
    },
    goals=Goals(frozenset({"Recovered", "Improved"}), gap_factor=2.0, throughput_ratio=0.85),
    limits=Limits(ready=900.0, diagnosis=600.0, run=2400.0, measure=120.0),
)
"""Two servers and the spare are what two cores carry; the spare needs minutes to be Ready beside a load. The
windows are longer than the lab engine's, because such a server answers four requests a second, and one that
ends takes a core from the others for seconds. Its goals are looser for the same reason: the same setting gave
600 and 524 tokens/s in two runs on such a machine."""


def scenario(name: str, engine: str) -> Scenario:
    """Return a scenario.

    Raises:
        ValueError: none has that name, or there is none with that engine.
    """
    if name not in SCENARIOS:
        raise ValueError(f"SCENARIO={name}: there are {', '.join(SCENARIOS)}")
    if engine not in tuple(Engine):
        raise ValueError(f"ENGINE={engine}: there are {', '.join(Engine)}")
    if engine == Engine.LAB:
        return SCENARIOS[name]
    if name != REAL.name:
        raise ValueError(f"SCENARIO={name} has no variant with ENGINE={engine}; {REAL.name} has")
    return REAL
