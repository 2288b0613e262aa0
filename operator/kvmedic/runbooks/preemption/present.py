"""Which levers were tried on what is seen now, and did not help.

A lever is left alone while the evidence is the one that it failed on: the pod template (and with it the
engine's version and every setting), the lengths of requests and the pool.

What is known of the memory that a fleet's KV cache could have, from its template and what was seen; of the
host's, on which terms a pod template lets its engine keep KV blocks there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from kvmedic.manifests.grammar import Parsed
from kvmedic.model.compression import whole_amount
from kvmedic.model.devices import MEMORY_SERIES, Vital, Vitals
from kvmedic.model.engine import Engine, Flag, HostCache, Knob, Presence
from kvmedic.model.evidence import Inconclusive, Measured, Signal
from kvmedic.model.fleet import body_hash, template_hash
from kvmedic.model.readings import complete, merge_histograms, pools
from kvmedic.model.run import devices_of
from kvmedic.model.spec import LeverBound
from kvmedic.model.status import Attempt, FailedAttempt, OutgrownShare
from kvmedic.runbooks.branches import Evidence, HostTerms, MemoryShare, Setting, Supply
from kvmedic.runbooks.preemption.pressure import POOLS_ALIKE
from kvmedic.runbooks.workload import Workload

LENGTHS_ALIKE = 2 / 3
"""Mean prompt (or output) length, the smaller over the larger, at least, for the lengths to be those of then.
Of sequences that are half as long again a third fewer fit, more than a right cap takes away; means of 100
requests of the widest shape that was simulated (relative deviation 1.3) differ by that once in 40 times."""
_LENGTHS = (Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH)


def exhausted_levers(tried: Sequence[FailedAttempt], revision: str, evidence: Evidence) -> frozenset[Knob]:
    """Return the levers that are not to be tried again on this evidence.

    A share of the devices' memory that was raised in vain may still be lowered: that is another trouble's
    lever (`raised_in_vain`).
    """
    failed = {one.key for one in failures(Attempt.TURN_LEVER, tried, revision, evidence)}
    return frozenset(knob for knob in Knob if knob in failed)


def raised_in_vain(tried: Sequence[FailedAttempt], revision: str, evidence: Evidence) -> bool:
    """Return whether a larger share of the devices' memory was tried on this evidence and did not help."""
    return bool(failures(Attempt.RAISE_MEMORY, tried, revision, evidence))


def failures(
    attempt: Attempt, tried: Sequence[FailedAttempt], revision: str, evidence: Evidence
) -> tuple[FailedAttempt, ...]:
    """Return the levers that were tried on this evidence and did not help.

    What cannot be read counts as unchanged: silence is no new evidence.

    Args:
        attempt: which way they were turned.
        tried: what did not help.
        revision: hash of the pod template as it is now.
        evidence: both looks.
    """
    means, blocks = _means(evidence), _blocks(evidence)
    return tuple(
        one
        for one in tried
        if (one.attempt, one.template) == (attempt, revision)
        and (
            one.load is None or _alike((one.load.prompt_tokens, one.load.output_tokens), means, LENGTHS_ALIKE)
        )
        and _alike((one.blocks,), (blocks,), 1 - POOLS_ALIKE)
    )


def _alike(then: Iterable[float | None], now: Iterable[float | None], least: float) -> bool:
    """Return whether no two figures that are both known differ by more than a ratio."""
    pairs = [(a, b) for a, b in zip(then, now, strict=True) if a is not None and b is not None]
    return all(min(pair) >= least * max(pair) for pair in pairs)


def _means(evidence: Evidence) -> tuple[float | None, ...]:
    """Return the mean prompt and output over the sizing window; None where they cannot be told."""
    found = complete(evidence.sizing, frozenset(_LENGTHS))
    if isinstance(found, Inconclusive):
        return (None, None)
    counted = [[one.histograms[signal] for one in found.values()] for signal in _LENGTHS]
    if any(len({one.bounds for one in each}) != 1 for each in counted):
        return (None, None)
    whole = [merge_histograms(each) for each in counted]
    return tuple(one.mean if one.count > 0 else None for one in whole)


def _blocks(evidence: Evidence) -> float | None:
    """Return the smallest pool, as a run records it; None where one is not known."""
    held = pools(evidence.sizing)
    return None if isinstance(held, Inconclusive) or not held else min(one.blocks for one in held.values())


NAMED_REPLICAS = 3
"""Replicas that a message names; the rest is counted."""
SHOWN = MEMORY_SERIES[-1]
"""The series that a message names: those of exporters before 4.9.0 are the ones that most fleets have."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a command line says, and what is on record of it."""

    caches_prefixes: bool | None
    """The switch as given, else the engine's default for its version; None where neither tells."""
    is_given: bool
    """The switch stands on the command line."""
    host: HostTerms
    raised_in_vain: bool


def supply_of(
    given: Given, template: Mapping[str, object], outgrown: Sequence[OutgrownShare], evidence: Evidence
) -> Supply:
    """Return the present supply; what cannot be told is unknown, never assumed."""
    used, unknown = memory_in_use(evidence)
    told = _told_prefixes(evidence)
    return Supply(
        caches_prefixes=given.caches_prefixes if given.is_given or told is None else told,
        leaves_prefixes=not given.is_given and told is False and given.caches_prefixes is not False,
        memory_in_use=used,
        memory_unknown=unknown,
        outgrown=lowest(outgrown, template),
        raised_in_vain=given.raised_in_vain,
        host=given.host,
    )


def lowest(outgrown: Sequence[OutgrownShare], template: Mapping[str, object]) -> float | None:
    """Return the lowest share at which a pod template ran out of memory, whatever its command line says."""
    if not outgrown:
        return None
    body = body_hash(template)
    return min((one.share for one in outgrown if one.body == body), default=None)


def memory_in_use(evidence: Evidence) -> tuple[float | None, str]:
    """Return the largest share of any device's memory that was in use, or of whom that is not known.

    Every device of every replica counts: the same flag holds for all of them.
    """
    shares = {name: _shares(evidence.vitals.get(name, Vitals())) for name in sorted(evidence.burn.pods)}
    blind = [name for name, found in shares.items() if not found or None in found]
    known = [share for found in shares.values() for share in found if share is not None]
    if not blind and known:
        return max(known), ""
    named = ", ".join(blind[:NAMED_REPLICAS]) or "any replica"
    rest = f" and {len(blind) - NAMED_REPLICAS} more" if len(blind) > NAMED_REPLICAS else ""
    return None, (
        f"the metrics source has no fresh {SHOWN.used} and {SHOWN.free} for {named}{rest}: have the DCGM "
        "exporter scraped, with the label of the pod that uses the GPU"
    )


def _shares(vitals: Vitals) -> tuple[float | None, ...]:
    devices = vitals.devices.value if isinstance(vitals.devices, Measured) else ()
    return tuple(device.ratio(Vital.MEMORY_IN_USE) for device in devices)


def _told_prefixes(evidence: Evidence) -> bool | None:
    """Return what the running engines say of themselves; None where they differ or one does not say."""
    pools = [readings.pool for readings in evidence.burn.pods.values()]
    told = {pool.value.caches_prefixes if isinstance(pool, Measured) else None for pool in pools}
    return told.pop() if len(told) == 1 else None


@dataclass(frozen=True, slots=True)
class Known:
    """What is on record and bears on what may be turned."""

    failed: Sequence[FailedAttempt] = ()
    """What was tried and did not help."""
    outgrown: Sequence[OutgrownShare] = ()
    """Shares of the devices' memory that were too much."""


def present_setting(
    workload: Workload, levers: tuple[LeverBound, ...], known: Known, evidence: Evidence
) -> Setting:
    """Return what advice needs to know of the present setting."""
    cap = workload.given(Knob.MAX_NUM_SEQS)
    cap = cap if isinstance(cap, int) else None
    default = workload.engine.profile.flag(Knob.MAX_NUM_SEQS)
    steps = workload.engine.profile.flag(Knob.MAX_NUM_BATCHED_TOKENS)
    return Setting(
        max_num_seqs=cap,
        levers=levers,
        exhausted=exhausted_levers(known.failed, template_hash(workload.template), evidence),
        given=workload.knobs(),
        most_sequences=cap if cap is not None or default is None else default.most,
        chunks_prefill=workload.has_on(Knob.CHUNKED_PREFILL),
        memory=memory_share(workload),
        gpus=devices_of(workload.template),
        supply=_supply(workload, known, evidence),
        least_step_tokens=None if steps is None else steps.least,
    )


def _supply(workload: Workload, known: Known, evidence: Evidence) -> Supply:
    given = Given(
        caches_prefixes=workload.has_on(Knob.PREFIX_CACHING),
        is_given=workload.given(Knob.PREFIX_CACHING) is not None,
        host=host_terms(workload),
        raised_in_vain=raised_in_vain(known.failed, template_hash(workload.template), evidence),
    )
    return supply_of(given, workload.template, known.outgrown, evidence)


def memory_share(workload: Workload) -> MemoryShare:
    """Return the share of its devices' memory that the engine takes, as far as its command line tells."""
    flag = workload.engine.profile.flag(Knob.GPU_MEMORY_UTILIZATION)
    given = workload.given(Knob.GPU_MEMORY_UTILIZATION)
    default = None if flag is None else workload.engine.default_of(flag)
    fixing = (workload.engine.profile.flag(knob) for knob in workload.fixes_the_pool())
    return MemoryShare(
        ratio=float(given) if isinstance(given, int | float) else default,
        is_given=given is not None,
        fixed_by=next((flag.name for flag in fixing if flag is not None), ""),
        unread=workload.flags.config or "",
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
