"""The lever `cpuOffload`: KV blocks kept in the host's memory, so that who was preempted is not computed
again.

It makes no room on the device and prevents no preemption; it makes each one cheaper. So it is worth a try
only where preempted requests hang, it stays only if answers come more smoothly, and it is meant for a time.

On which terms a pod template lets its engine keep KV blocks in the memory of the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from kvmedic.manifests.grammar import Parsed
from kvmedic.model.compression import whole_amount
from kvmedic.model.engine import Engine, Flag, HostCache, Knob, Presence
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Assignment, NoChange, Setting, SettingAdvice
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.runbooks.workload import Workload
from kvmedic.verdict.baseline import TAIL_PER_REQUEST
from kvmedic.verdict.sizing import GIB, HostTerms

OFFLOADING = "cpuOffload"
"""The lever's name in a spec; which flag it turns is the engine's matter."""
KNOBS = (Knob.KV_OFFLOADING_SIZE, Knob.SWAP_SPACE)
"""What it may turn."""


def use_host(case: Case, setting: Setting) -> SettingAdvice:
    """Return the host memory that is to be used for KV blocks, or why none is."""
    terms = setting.supply.host
    if terms is None:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN, "how much memory the container has is not known; give its manifest"
        )
    if terms.knob is None:
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, terms.why_not)
    bound = setting.bound(KNOBS[0])
    if bound is None or bound.maximum is None:
        return NoChange(
            Reason.LEVER_NOT_ALLOWED,
            f"lever {OFFLOADING} needs maxGiB: write {{name: {OFFLOADING}, maxGiB: 32}} in spec.levers",
        )
    return (
        _refuse_if_tried(terms.knob, setting)
        or _smooth(case)
        or _sized_store(terms, terms.knob, bound, setting)
    )


def _refuse_if_tried(knob: Knob, setting: Setting) -> NoChange | None:
    """Return that the flag which this engine has was tried, or cannot be set; None where it may be."""
    if knob in setting.exhausted:
        return NoChange(
            Reason.LEVER_EXHAUSTED,
            f"{knob} was tried on this revision, these lengths and this pool and did not help; more replicas "
            "may",
        )
    return setting.refused.get(knob)


def _smooth(case: Case) -> NoChange | None:
    """Return that hardly anybody hangs, so that no latency could confirm it; None where somebody does."""
    stalls = case.strain.stalls_per_request
    if stalls >= TAIL_PER_REQUEST:
        return None
    return NoChange(
        Reason.GAIN_WITHIN_NOISE,
        f"{stalls:.2f} stalls per request ({TAIL_PER_REQUEST} are needed): hardly anybody hangs, and nothing "
        "could confirm it",
    )


def _sized_store(terms: HostTerms, knob: Knob, bound: LeverBound, setting: Setting) -> SettingAdvice:
    value = terms.value_for(round(bound.maximum or 0))
    present = setting.given.get(knob) if setting.given else None
    if value < 1:
        return NoChange(
            Reason.LEVER_AT_BOUND,
            f"{bound.maximum:g} GiB are less than 1 GiB for each of {terms.engines * terms.devices} shares "
            f"of a replica: raise maxGiB of {OFFLOADING}",
        )
    if isinstance(present, int | float) and present >= value:
        return NoChange(Reason.LEVER_AT_BOUND, f"{knob} is {present:g} already, maxGiB asks for {value}")
    short = _short(terms, value)
    if short is not None:
        return short
    return Assignment(knob, value, Reason.HOST_MEMORY_LENT, _expected_of_host(terms, knob, value))


def _short(terms: HostTerms, value: int) -> NoChange | None:
    """Return that the host memory which a container has does not hold that much, or None where it does."""
    taken, told = terms.taken_bytes(value), terms.told_bytes(value)
    if terms.limit_bytes is None:
        return NoChange(
            Reason.HOST_MEMORY_SHORT,
            f"the container has no memory limit, so nobody knows whether its node has {taken / GIB:.0f} GiB "
            "to spare: set resources.limits.memory",
        )
    if taken > terms.free_bytes:
        return NoChange(
            Reason.HOST_MEMORY_SHORT,
            f"up to {taken / GIB:.0f} GiB would be taken, and of the container's limit of "
            f"{terms.limit_bytes / GIB:.1f} GiB {terms.free_bytes / GIB:.1f} GiB are free beside the engine: "
            "raise resources.limits.memory, or lower maxGiB",
        )
    if terms.uses_shared and (terms.shared_bytes is None or terms.shared_bytes < told):
        return NoChange(
            Reason.HOST_MEMORY_SHORT,
            f"this engine keeps the blocks in /dev/shm, which must hold {told / GIB:.0f} GiB: mount an "
            f"emptyDir with medium: Memory there, without sizeLimit or with one of at least "
            f"{told / GIB:.0f}Gi",
        )
    return None


def _expected_of_host(terms: HostTerms, knob: Knob, value: int) -> str:
    of = "each GPU" if knob is Knob.SWAP_SPACE else "each engine over all its GPUs"
    return (
        f"{value} GiB of host memory for {of}, {terms.told_bytes(value) / GIB:.0f} GiB per replica in all; "
        "expected: who was preempted is fetched and not computed again; it stays only if answers come more "
        "smoothly"
    )


SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a path inside the engine's container, never opened here
"""Where a container's shared memory is; 64 MiB unless the pod mounts something larger there."""


def host_terms(workload: Workload) -> HostTerms:
    """Return what is known of a container's host memory, and which flag of its engine would use it."""
    container, engine, parsed = workload.container, workload.engine, workload.line
    cache = engine.profile.host_cache
    if cache is None:
        return HostTerms(None, "this engine keeps no KV blocks in its host's memory")
    knob, why_not = _knob(cache, parsed, engine)
    version = engine.effective_version
    return HostTerms(
        knob=knob,
        why_not=why_not,
        devices=_devices_of_engine(cache, parsed),
        engines=_engines(cache, parsed),
        limit_bytes=_memory(container, "limits"),
        request_bytes=_memory(container, "requests") or 0,
        shared_bytes=_shared_bytes(workload.template, container),
        uses_shared=knob is Knob.KV_OFFLOADING_SIZE and version >= cache.shared_since,
        rounds_up=knob is Knob.KV_OFFLOADING_SIZE and version < cache.exact_since,
    )


def _knob(cache: HostCache, parsed: Parsed, engine: Engine) -> tuple[Knob | None, str]:
    """Return the flag that would use the host's memory, or why there is none."""
    own = engine.profile.flag(Knob.KV_OFFLOADING_SIZE)
    if own is not None and engine.presence(own) is not Presence.ABSENT:
        doubt = _occupied_by(cache, parsed, own)
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


def _occupied_by(cache: HostCache, parsed: Parsed, own: Flag) -> str:
    """Return what already decides where KV blocks go; empty where nothing does."""
    given = parsed.values()
    if cache.connector in given:
        return f"{cache.connector} says where KV blocks go, and {own.name} would replace that"
    backend = given.get(cache.backend, cache.own_backend)
    if backend != cache.own_backend:
        return f"{cache.backend} is {backend}, which keeps its own account of memory"
    return ""


def _devices_of_engine(cache: HostCache, parsed: Parsed) -> int:
    product = 1
    for option in cache.ranks:
        product *= _given_count(parsed, option)
    return product


def _engines(cache: HostCache, parsed: Parsed) -> int:
    """Return how many engines run in one pod."""
    given = parsed.values()
    if cache.engine_rank in given:
        return 1
    return _given_count(parsed, cache.engines_here if cache.engines_here in given else cache.engines)


def _given_count(parsed: Parsed, option: str) -> int:
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
