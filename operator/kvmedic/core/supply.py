"""What is known of the memory that a fleet's KV cache could have beside what it has: pure figures."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from kvmedic.core.engine import Knob

GIB = 1 << 30
ROUNDING = 2
"""Bytes taken over bytes asked for, at most, on engines that allocate pinned tensors: torch rounds each up to
a power of two. 1.92 was measured on four GB200 GPUs (vLLM issue 53042)."""
KEPT_BY_ENGINE = 0.25
"""Share of a container's memory limit that stays with the engine at least. A choice, not a measurement: what
an engine itself takes of its host is in none of its metrics. Where the container's request is larger, and
under the limit, that counts."""


@dataclass(frozen=True, slots=True)
class HostTerms:
    """On which terms a replica's engines could keep KV blocks in the memory of their host."""

    knob: Knob | None
    """What sizes it: per engine over all its devices, or per device (swap space); None: nothing does."""
    why_not: str = ""
    """Why nothing does, in one clause; empty where something does."""
    devices: int = 1
    """Of one engine."""
    engines: int = 1
    """In one replica's pod."""
    limit_bytes: int | None = None
    """The container's memory limit; None: it has none."""
    request_bytes: int = 0
    """The container's memory request; 0: it has none."""
    shared_bytes: float | None = None
    """What `/dev/shm` may hold; infinite: as much as the limit allows. None: no more than by default."""
    uses_shared: bool = False
    """This release may keep the blocks in `/dev/shm`."""
    rounds_up: bool = False
    """This release may take up to `ROUNDING` times what it was told."""

    def value_for(self, gib: int) -> int:
        """Return what the flag says for a replica to be told to take that much in all, rounded down (GiB)."""
        return max(0, gib // self._parts)

    def told_bytes(self, value: float) -> int:
        """Return what all engines of a replica are told to take, for a value of the flag."""
        return round(value * self._parts * GIB)

    def taken_bytes(self, value: float) -> int:
        """Return what they may take then, at most."""
        return self.told_bytes(value) * (ROUNDING if self.rounds_up else 1)

    @property
    def free_bytes(self) -> int:
        """Return what the container's limit leaves beside the engine itself; 0 where there is no limit."""
        if self.limit_bytes is None:
            return 0
        kept = max(KEPT_BY_ENGINE * self.limit_bytes, self._asked)
        return max(0, int(self.limit_bytes - kept))

    @property
    def _asked(self) -> int:
        """Return the request where it says something: one that equals the limit does not."""
        limit = inf if self.limit_bytes is None else self.limit_bytes
        return self.request_bytes if self.request_bytes < limit else 0

    @property
    def _parts(self) -> int:
        """Return how many times a replica takes what the flag says."""
        return self.engines * (self.devices if self.knob is Knob.SWAP_SPACE else 1)


@dataclass(frozen=True, slots=True)
class Supply:
    """What is known of a fleet's present supply of KV cache."""

    caches_prefixes: bool | None = None
    """Whether the blocks of shared prefixes are reused; None: not known."""
    leaves_prefixes: bool = False
    """The engine itself chose not to, although no flag says so."""
    memory_in_use: float | None = None
    """Largest share of any device's memory that was in use over the trigger's window; None: not known."""
    memory_unknown: str = ""
    """Of which replicas that is not known, and what would tell; empty where it is known."""
    outgrown: float | None = None
    """The lowest share of the devices' memory at which this template ran out of it; None: none is known."""
    raised_in_vain: bool = False
    """A larger share was tried on this evidence, and it did not help."""
    host: HostTerms | None = None
    """None: nobody looked at the pod template."""
