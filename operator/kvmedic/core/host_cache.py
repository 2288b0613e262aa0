"""How an engine keeps KV blocks in the memory of its host, as a part of its profile."""

from __future__ import annotations

from dataclasses import dataclass

from kvmedic.core.version import Version


@dataclass(frozen=True, slots=True)
class HostCache:
    """What decides how much host memory an engine takes for KV blocks, and whether it takes any.

    Options are named by the engine's own names of their values: `tensor_parallel_size`.
    """

    ranks: tuple[str, ...]
    """Options whose product is the number of devices of one engine; 1 each where they are not given."""
    engines: str
    """Option: engines of one replica, each with host memory of its own."""
    engines_here: str
    """Option: how many of these run in one pod, where they are spread over several."""
    engine_rank: str
    """Option: which of the engines a pod runs; where it is given the pod runs that one alone."""
    connector: str
    """Option that says where KV blocks go beside the device. Host memory for them would replace that."""
    backend: str
    """Option that says who keeps them."""
    own_backend: str
    """The backend with which the size is memory of the engine's own container; it is the default."""
    shared_since: Version
    """The first release that may keep them in shared memory (`/dev/shm`)."""
    exact_since: Version
    """The first release that is known to take no more than it was told; before, up to twice as much."""
    swap_mode: str
    """Option of engines of old that says what becomes of a preempted sequence."""
    swapping: str
    """Its value with which the sequence is kept in host memory; with any other nothing ever is."""
