"""On which terms a pod template lets its engine keep KV blocks in the memory of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from kvmedic.core.engine import Engine, Flag, Knob, Presence
from kvmedic.core.host_cache import HostCache
from kvmedic.core.quantity import whole_amount
from kvmedic.core.supply import HostTerms
from kvmedic.manifests.flags import parsed_of
from kvmedic.manifests.grammar import Parsed
from kvmedic.manifests.refusal import Refusal

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a path inside the engine's container, never opened here
"""Where a container's shared memory is; 64 MiB unless the pod mounts something larger there."""


def host_terms(template: Mapping[str, object], container: Mapping[str, object], engine: Engine) -> HostTerms:
    """Return what is known of a container's host memory, and which flag of its engine would use it.

    Args:
        template: the target's pod template.
        container: the engine's, of that template.
        engine: what runs in it.
    """
    cache, parsed = engine.profile.host_cache, parsed_of(container, engine)
    if cache is None or isinstance(parsed, Refusal):
        return HostTerms(None, "this engine keeps no KV blocks in its host's memory")
    knob, why_not = _knob(cache, parsed, engine)
    version = engine.effective_version
    return HostTerms(
        knob=knob,
        why_not=why_not,
        devices=_devices(cache, parsed),
        engines=_engines(cache, parsed),
        limit_bytes=_memory(container, "limits"),
        request_bytes=_memory(container, "requests") or 0,
        shared_bytes=_shared_bytes(template, container),
        uses_shared=knob is Knob.KV_OFFLOADING_SIZE and version >= cache.shared_since,
        rounds_up=knob is Knob.KV_OFFLOADING_SIZE and version < cache.exact_since,
    )


def _knob(cache: HostCache, parsed: Parsed, engine: Engine) -> tuple[Knob | None, str]:
    """Return the flag that would use the host's memory, or why there is none."""
    own = engine.profile.flag(Knob.KV_OFFLOADING_SIZE)
    if own is not None and engine.presence(own) is not Presence.ABSENT:
        doubt = _occupied(cache, parsed, own)
        return (None, doubt) if doubt else (own.knob, "")
    swap = engine.profile.flag(Knob.SWAP_SPACE)
    if swap is None or engine.presence(swap) is Presence.ABSENT:
        return None, "this version keeps no KV blocks in its host's memory"
    if parsed.values().get(cache.swap_mode) == cache.swapping:
        return swap.knob, ""
    return None, (
        f"this version computes preempted sequences again and never swaps them: {swap.name} is used only "
        f"with --{cache.swap_mode.replace('_', '-')} {cache.swapping}"
    )


def _occupied(cache: HostCache, parsed: Parsed, own: Flag) -> str:
    """Return what already decides where KV blocks go; empty where nothing does."""
    given = parsed.values()
    if cache.connector in given:
        return f"{cache.connector} says where KV blocks go, and {own.name} would replace that"
    backend = given.get(cache.backend, cache.own_backend)
    if backend != cache.own_backend:
        return f"{cache.backend} is {backend}, which keeps its own account of memory"
    return ""


def _devices(cache: HostCache, parsed: Parsed) -> int:
    product = 1
    for option in cache.ranks:
        product *= _count(parsed, option)
    return product


def _engines(cache: HostCache, parsed: Parsed) -> int:
    """Return how many engines run in one pod."""
    given = parsed.values()
    if cache.engine_rank in given:
        return 1
    return _count(parsed, cache.engines_here if cache.engines_here in given else cache.engines)


def _count(parsed: Parsed, option: str) -> int:
    value = parsed.values().get(option)
    return value if isinstance(value, int) and value > 0 else 1


def _memory(container: Mapping[str, object], kind: str) -> int | None:
    resources = container.get("resources")
    amounts = resources.get(kind) if isinstance(resources, Mapping) else None
    return whole_amount(amounts.get("memory")) if isinstance(amounts, Mapping) else None


def _shared_bytes(template: Mapping[str, object], container: Mapping[str, object]) -> float | None:
    """Return what a volume at `/dev/shm` holds; None without one that is memory."""
    mounts = _objects(container.get("volumeMounts"))
    name = next((m.get("name") for m in mounts if str(m.get("mountPath")).rstrip("/") == SHARED_MEMORY), None)
    spec = template.get("spec")
    volumes = _objects(spec.get("volumes") if isinstance(spec, Mapping) else None)
    volume = next((each for each in volumes if name is not None and each.get("name") == name), {})
    held = volume.get("emptyDir")
    if not isinstance(held, Mapping) or held.get("medium") != "Memory":
        return None
    limit = whole_amount(held.get("sizeLimit"))
    return inf if limit is None else float(limit)


def _objects(value: object) -> Sequence[Mapping[str, object]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
