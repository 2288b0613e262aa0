"""What is compared of a fleet with and without a method that compresses its KV cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """A fleet under load; None: not known."""

    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    preemptions_per_request: float | None = None
    kv_cache_usage: float | None = None
    """Mean, ratio 0 to 1."""
    kv_cache_usage_deviation: float | None = None
    """Its standard deviation over the window, of the replica where it moves most. It is told, and decides
    nothing: passes of a method make usage rise and fall, whether or not blocks come back."""
    device_memory: float | None = None
    """Bytes in use on one device."""
    e2e_p95: float | None = None
    """Seconds."""
    requests_in_flight: float | None = None
    """That run, of the whole fleet, on average."""
    replicas: float | None = None
    """That the figures of the whole fleet are of."""
