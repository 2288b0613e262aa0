"""What resources of one tenant cost the others, where he makes them as dear as he can.

Each poisonous fleet has a pod template that takes all of the steps that reading one may, or nearly all, and
it is rewritten again and again, so that no answer can be remembered. No source knows its replicas.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from statistics import median
from typing import TYPE_CHECKING, Any

from lab.bench.scale_fleets import ScaleFleet, create_all, create_resource, create_workload
from lab.bench.scale_runs import Opened, open_runs
from lab.cluster.api import ApiError

if TYPE_CHECKING:
    from lab.bench.scale import Scale

TENANT = "poison"
REWRITES_PER_SECOND = 5.0
"""Of all poisonous fleets together."""
HALF_A_ROUND_SECONDS = 15.0
SETTLING_SECONDS = 20.0
"""Until the poison's looks have a price."""
BOUND = 1.5
"""Reaction beside poison over that without it, at most."""
_SERVE = "vllm serve m --max-num-seqs 64"


def _script(text: str) -> dict[str, Any]:
    return {"command": ["bash", "-c"], "args": [text]}


def _arguments(*args: str, **env: str) -> dict[str, Any]:
    given = [{"name": name, "value": value} for name, value in env.items()]
    return {"command": ["vllm", "serve", "m"], "args": list(args), "env": given}


DEAREST: tuple[dict[str, Any], ...] = (
    # The first four are followed to the end, as near to the limit as texts of their kind come: CPU seconds
    # for one reading 0.02, 0.004, 0.006 and 0.05, and to pack and unpack 0.013 of the second and 0.04 of the
    # fourth. The others are refused after 0.001, 0.01 and less than 0.001 (measured).
    # tests/manifests/test_size_limits.py has more of them.
    _script("true;" * 300 + _SERVE),
    _arguments(*["--max-num-seqs=64"] * 390),
    _script("A=1\n" * 300 + _SERVE),
    _script(f'{_SERVE} --served-model-name="' + 'a\\"' * 4_000 + '"'),
    _arguments(*["$(A)" * 100] * 20, A="x" * 600),
    _arguments(*["--max-num-seqs=64"] * 4_000),
    _script("a|" * 32_000 + _SERVE),
)


@dataclass(frozen=True, slots=True)
class PoisonousFleet(ScaleFleet):
    """A fleet of the tenant whose templates are dear to read."""

    version: int = 0

    @property
    def namespace(self) -> str:
        return TENANT

    @property
    def name(self) -> str:
        return f"dear-{self.number}"

    def engine(self) -> dict[str, Any]:
        """One of the dearest, which differs from its last version in a variable."""
        dear = DEAREST[self.number % len(DEAREST)]
        return {**dear, "env": [*dear.get("env", []), {"name": "VERSION", "value": str(self.version)}]}


def write_workloads(scale: Scale, fleets: int) -> tuple[PoisonousFleet, ...]:
    """Write poisonous fleets, which nobody looks after yet."""
    first, replicas = len(scale.fleets), scale.fleets[0].replicas
    poison = tuple(PoisonousFleet(first + number, replicas) for number in range(fleets))
    create_all(scale.cluster.api, poison, partial(create_workload, scale.cluster.api))
    return poison


@contextmanager
def poisoned(scale: Scale, poison: Sequence[PoisonousFleet], spec: dict[str, Any]) -> Iterator[None]:
    """Have the tenant's fleets looked after, and one after the other get another template."""
    api, ends = scale.cluster.api, threading.Event()

    def rewrite() -> None:
        for version, each in zip(count(1), cycle(poison), strict=False):
            if ends.wait(1 / REWRITES_PER_SECOND):
                return
            newer = PoisonousFleet(each.number, each.replicas, version)
            with suppress(ApiError):
                patch = {"spec": {"template": newer.template()}}
                generation = api.patch("Deployment", each.name, patch, TENANT)["metadata"]["generation"]
                seen = {"status": {"observedGeneration": generation}}
                api.patch("Deployment", each.name, seen, TENANT, "status")

    for each in poison:
        create_resource(api, each, spec)
    thread = threading.Thread(target=rewrite, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        for each in poison:
            api.delete("KVRemediation", each.name, TENANT)


@dataclass(frozen=True, slots=True)
class Reaction:
    """How soon some fleets that became sick were moved, and what the operator spent until all were."""

    seconds: float
    """Median, from sick to the first move."""
    cpu_seconds: float
    cores: float


def react(scale: Scale, count_sick: int, limit: float, while_open_seconds: float = 0.0) -> Reaction | None:
    """Make some more fleets sick, one of each namespace, half a round after their last look.

    All at once, and no more than may have an open run: none waits for another one. How long a fleet waits for
    its next look is the same each time, so that two reactions can be compared. None: not all were in time.
    """
    scale.wake(scale.next_sick(count_sick))
    time.sleep(HALF_A_ROUND_SECONDS)
    began, before = time.monotonic(), scale.cpu_seconds()
    total = scale.sick + count_sick
    opened: Opened = open_runs(scale.witness, lambda: scale.make_sick(total), count_sick, count_sick, limit)
    spent, wall = scale.cpu_seconds() - before, time.monotonic() - began
    scale.wait(lambda seen: not seen.open_now, limit)
    if opened.all_moved is None:
        return None
    return Reaction(median(opened.waits), spent, spent / wall)
