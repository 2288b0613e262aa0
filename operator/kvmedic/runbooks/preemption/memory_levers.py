"""The levers of memory: the share of its devices' that an engine takes, down and up, and the host's.

What an engine leaves of its devices is for what it did not plan with. How much of that is never used shows
under load alone, and a share at which memory ran out once is never gone back to.

KV blocks in the host's memory make no room on the device and prevent no preemption; they make each one
cheaper. So that is worth a try only where preempted requests hang, and it is meant for a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, inf, prod

from kvmedic.manifests.argument_parser import Parsed
from kvmedic.model.compression import whole_amount
from kvmedic.model.devices import MEMORY_SERIES, Vital, Vitals
from kvmedic.model.engine import Engine, Flag, HostCache, Knob, Presence
from kvmedic.model.evidence import Measured
from kvmedic.model.fleet import body_hash
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.model.status import OomShare
from kvmedic.runbooks.branches import (
    GIB,
    Assignment,
    Evidence,
    HostTerms,
    MemoryShare,
    NoChange,
    Setting,
    SettingAdvice,
)
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.runbooks.workload import Workload
from kvmedic.verdict.baseline import TAIL_PER_REQUEST

KNOB = Knob.GPU_MEMORY_UTILIZATION
DIGITS = 4
"""Decimals of the value that is set: ten times finer than the smallest step that a spec may have (0.001)."""
TAKEN = 0.5
"""Share of what stayed free that one step may take. A choice, not a measurement: the window need not have
held the worst moment, so as much again is left for it."""
LEAST_STEP = 0.5
"""Share of the lever's `step` under which the rest of the way is not worth a restart of the fleet."""
_DUST = 1e-9
NAMED_REPLICAS = 3
"""Replicas that a message names; the rest is counted."""
SHOWN = MEMORY_SERIES[-1]
"""The series that a message names: those of exporters before 4.9.0 are the ones that most fleets have."""


def memory_share(workload: Workload) -> MemoryShare:
    """Return the share of its devices' memory that the engine takes, as far as its command line says."""
    flag = workload.engine.profile.flag(KNOB)
    given = workload.value_of(KNOB)
    default = None if flag is None else workload.engine.default_of(flag)
    fixing = (workload.engine.profile.flag(knob) for knob in workload.fixes_the_pool())
    return MemoryShare(
        ratio=float(given) if isinstance(given, int | float) else None if workload.gives(KNOB) else default,
        is_given=workload.gives(KNOB),
        fixed_by=next((flag.name for flag in fixing if flag is not None), ""),
        unread=workload.flags.config or "",
    )


def memory_in_use(evidence: Evidence) -> tuple[float | None, str]:
    """Return the largest share of any device's memory that was in use, or of whom that is not known.

    Every device of every replica counts: the same flag holds for all of them.
    """
    shares: dict[str, list[float | None]] = {}
    for name in sorted(evidence.burn.pods):
        devices = evidence.vitals.get(name, Vitals()).devices
        known = devices.value if isinstance(devices, Measured) else ()
        shares[name] = [device.ratio(Vital.MEMORY_IN_USE) for device in known]
    blind = [name for name, found in shares.items() if not found or None in found]
    shares_in_use = [share for found in shares.values() for share in found if share is not None]
    if not blind and shares_in_use:
        return max(shares_in_use), ""
    named = ", ".join(blind[:NAMED_REPLICAS]) or "any replica"
    rest = f" and {len(blind) - NAMED_REPLICAS} more" if len(blind) > NAMED_REPLICAS else ""
    return None, (
        f"the metrics source has no fresh {SHOWN.used} and {SHOWN.free} for {named}{rest}: have the DCGM "
        "exporter scraped, with the label of the pod that uses the GPU"
    )


def lowest_oom_share(shares: Sequence[OomShare], template: Mapping[str, object]) -> float | None:
    """Return the lowest share at which a pod template ran out of memory, whatever its command line says."""
    body = body_hash(template) if shares else ""
    return min((one.share for one in shares if one.body == body), default=None)


def lower_share(_evidence: Evidence, setting: Setting) -> SettingAdvice:
    """Return the share of the GPU's memory one bounded step down, or why there is none."""
    share, lever = setting.memory, setting.bound(KNOB)
    desired = f"{{name: {KNOB}, min: 0.80, step: 0.02}}"
    if share is None:
        return NoChange(Reason.PRESENT_VALUE_UNKNOWN, f"lower {KNOB}: give the manifest for the value")
    if share.fixed_by:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            f"{share.fixed_by} fixes the size of the KV cache, so {KNOB} would change nothing: lower "
            f"{share.fixed_by}, or remove it",
        )
    if lever is None:
        return NoChange(Reason.LEVER_NOT_ALLOWED, f"a lower {KNOB} would help: add {desired} to spec.levers")
    if lever.minimum is None or lever.step is None:
        return NoChange(
            Reason.LEVER_NOT_ALLOWED,
            f"lever {KNOB} needs min and step before it is lowered: write {desired} in spec.levers",
        )
    if KNOB in setting.exhausted:
        return NoChange(
            Reason.LEVER_EXHAUSTED,
            f"{KNOB} was lowered on this revision and did not help; shorten what the model may be asked, or "
            "give it more GPU memory",
        )
    if share.ratio is None or share.unread:
        return setting.refused.get(KNOB) or _refuse_unknown_share(share)
    lower = round(max(lever.minimum, share.ratio - lever.step), DIGITS)
    if lower >= share.ratio:
        text = f"{KNOB} is {share.ratio:g}, spec.levers allows no less than {lever.minimum:g}"
        return NoChange(Reason.LEVER_AT_BOUND, text)
    return Assignment(
        KNOB,
        lower,
        Reason.MEMORY_STEPPED_DOWN,
        f"{_step_text(share, lower)}: what is left free is for what the engine did not plan with; the KV "
        "cache shrinks by as much",
    )


def _refuse_unknown_share(share: MemoryShare) -> NoChange:
    why = "it is not on the command line and the engine's version, which has its default, is not known"
    if share.unread:
        why = f"the engine also reads {share.unread}, which may set it"
    return NoChange(
        Reason.PRESENT_VALUE_UNKNOWN, f"the present {KNOB} is not known: {why}; write it on the command line"
    )


def _step_text(share: MemoryShare, value: float) -> str:
    origin = "" if share.is_given else " (the engine's default)"
    return f"{KNOB} from {share.ratio:g}{origin} to {value:g}"


def is_for_raising(bound: LeverBound) -> bool:
    """Return whether an entry of `spec.levers` is about raising the share at all: one with a `max` is."""
    return bound.maximum is not None


def cannot_raise_share(_case: Case, setting: Setting) -> NoChange | None:
    """Return why a larger share would change nothing, is not allowed, or nobody knows whether it is there."""
    share, bound = setting.memory, setting.bound(KNOB)
    if share is None:
        return NoChange(Reason.PRESENT_VALUE_UNKNOWN, f"raise {KNOB}: give the manifest for the value")
    if bound is None or bound.maximum is None or bound.step is None:
        example = f"{{name: {KNOB}, max: 0.95, step: 0.02}}"
        return NoChange(
            Reason.LEVER_NOT_ALLOWED,
            f"lever {KNOB} needs max and step before it is raised: write {example} in spec.levers",
        )
    if share.fixed_by:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            f"{share.fixed_by} fixes the size of the KV cache, so a larger share would change nothing: raise "
            f"{share.fixed_by}, or remove it",
        )
    if setting.supply.raise_failed_before:
        return NoChange(
            Reason.LEVER_EXHAUSTED,
            "a larger share was tried on this revision and these lengths and did not help",
        )
    if setting.supply.memory_in_use is None:
        why = setting.supply.memory_unknown or "nobody looked at the GPUs"
        return NoChange(
            Reason.HEADROOM_UNKNOWN, f"how much of the GPUs' memory stays free under load is not known: {why}"
        )
    return _refuse_unknown_share(share) if share.ratio is None or share.unread else None


def raise_share(_case: Case, setting: Setting) -> SettingAdvice:
    """Return the share one step higher, within its bounds and what stayed free, or why it is not raised.

    Three things end the way up: the lever's bound, free memory, and a share at which memory ran out.
    """
    share, bound = setting.memory, setting.bound(KNOB)
    if share is None or share.ratio is None or bound is None or bound.step is None:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN, f"raise {KNOB}: the present value or the step is not known"
        )
    ratio, step, used = share.ratio, bound.step, setting.supply.memory_in_use or 0.0
    most = 1.0 if bound.maximum is None else bound.maximum
    # Free memory counts in whole halves of a step: what is measured is never twice the same, and a plan must
    # not change while somebody is about to approve it.
    half = LEAST_STEP * step
    room = half * floor(TAKEN * max(0.0, 1.0 - used) / half + _DUST)
    ends = [
        (most, Reason.LEVER_AT_BOUND, f"{KNOB} is {ratio:g}, spec.levers allows no more than {most:g}"),
        (
            ratio + room,
            Reason.HEADROOM_SHORT,
            f"{used:.1%} of a GPU's memory was in use over the window; half of the rest is under half a "
            f"step of {step:g}",
        ),
    ]
    if (oom := setting.supply.oom_limit) is not None:
        text = (
            f"a GPU ran out of memory at {oom:g} with this pod template; it is left a step of {step:g} below"
        )
        ends.append((oom - step, Reason.LEVER_AT_BOUND, f"{KNOB} is {ratio:g}: {text}"))
    end, reason, why = min(ends, key=lambda each: each[0])
    value = floor_share(min(ratio + step, end))
    if value - ratio < half:
        return NoChange(reason, why)
    return Assignment(
        KNOB,
        value,
        Reason.MEMORY_STEPPED_UP,
        f"{_step_text(share, value)}: at most {used:.1%} of any GPU's memory was in use over the window, and "
        f"half of the rest may be taken; expected: {value - ratio:.1%} of a GPU's memory goes to the KV "
        "cache",
    )


def floor_share(value: float) -> float:
    """Return a share cut to the decimals that are written; the dust of binary fractions does not count."""
    scale = 10.0**DIGITS
    return float(floor(round(value * scale, 3)) / scale)


OFFLOADING = "cpuOffload"
"""The lever's name in a spec; which flag it turns is the engine's matter."""
HOST_KNOBS = (Knob.KV_OFFLOADING_SIZE, Knob.SWAP_SPACE)
"""What it may turn."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a path inside the engine's container, never opened here
"""Where a container's shared memory is; 64 MiB unless the pod mounts something larger there."""


def host_terms(workload: Workload) -> HostTerms:
    """Return what is known of a container's host memory, and which flag of its engine would use it."""
    container, engine, line = workload.container, workload.engine, workload.line
    cache = engine.profile.host_cache
    if cache is None:
        return HostTerms(None, "this engine keeps no KV blocks in its host's memory")
    knob, why_not = _host_knob(cache, line, engine)
    version, given = engine.effective_version, line.values()
    engines = cache.engines_here if cache.engines_here in given else cache.engines
    return HostTerms(
        knob=knob,
        why_not=why_not,
        devices=prod(_given_count(line, option) for option in cache.ranks),
        engines=1 if cache.engine_rank in given else _given_count(line, engines),
        limit_bytes=_memory(container, "limits"),
        request_bytes=_memory(container, "requests") or 0,
        shared_bytes=_shared_bytes(workload.template, container),
        uses_shared=knob is Knob.KV_OFFLOADING_SIZE and version >= cache.shared_since,
        rounds_up=knob is Knob.KV_OFFLOADING_SIZE and version < cache.exact_since,
    )


def _host_knob(cache: HostCache, parsed: Parsed, engine: Engine) -> tuple[Knob | None, str]:
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


def cannot_use_host(case: Case, setting: Setting) -> NoChange | None:
    """Return why an engine cannot, or need not, keep KV blocks in its host's memory."""
    terms, bound = setting.supply.host, setting.bound(HOST_KNOBS[0])
    if terms is None:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN, "how much memory the container has is not known; give its manifest"
        )
    if terms.knob is None:
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, terms.why_not)
    if bound is None or bound.maximum is None:
        return NoChange(
            Reason.LEVER_NOT_ALLOWED,
            f"lever {OFFLOADING} needs maxGiB: write {{name: {OFFLOADING}, maxGiB: 32}} in spec.levers",
        )
    if terms.knob in setting.exhausted:
        return NoChange(
            Reason.LEVER_EXHAUSTED,
            f"{terms.knob} was tried on this revision, these lengths and this pool and did not help; more "
            "replicas may",
        )
    if terms.knob in setting.refused:
        return setting.refused[terms.knob]
    stalls = case.strain.stalls_per_request
    if stalls >= TAIL_PER_REQUEST:
        return None
    return NoChange(
        Reason.GAIN_WITHIN_NOISE,
        f"{stalls:.2f} stalls per request ({TAIL_PER_REQUEST} are needed): hardly anybody hangs, and nothing "
        "could confirm it",
    )


def size_host_cache(_case: Case, setting: Setting) -> SettingAdvice:
    """Return the host memory that is to be used for KV blocks, or why it does not suffice."""
    terms, bound = setting.supply.host, setting.bound(HOST_KNOBS[0])
    if terms is None or terms.knob is None or bound is None:
        return NoChange(Reason.PRESENT_VALUE_UNKNOWN, "how much memory the container has is not known")
    knob, value = terms.knob, terms.value_for(round(bound.maximum or 0))
    present = setting.given.get(knob) if setting.given else None
    if value < 1:
        return NoChange(
            Reason.LEVER_AT_BOUND,
            f"{bound.maximum:g} GiB are less than 1 GiB for each of {terms.engines * terms.devices} shares "
            f"of a replica: raise maxGiB of {OFFLOADING}",
        )
    if isinstance(present, int | float) and present >= value:
        return NoChange(Reason.LEVER_AT_BOUND, f"{knob} is {present:g} already, maxGiB asks for {value}")
    if short := _what_is_short(terms, value):
        return NoChange(Reason.HOST_MEMORY_SHORT, short)
    of = "each GPU" if knob is Knob.SWAP_SPACE else "each engine over all its GPUs"
    return Assignment(
        knob,
        value,
        Reason.HOST_MEMORY_USED,
        f"{value} GiB of host memory for {of}, {terms.flag_bytes(value) / GIB:.0f} GiB per replica in all; "
        "expected: who was preempted is fetched and not computed again; it stays only if answers come more "
        "smoothly",
    )


def _what_is_short(terms: HostTerms, value: int) -> str:
    """Return what of the container's memory does not hold that much; empty where it does."""
    taken, flag_bytes = terms.taken_bytes(value), terms.flag_bytes(value)
    if terms.limit_bytes is None:
        return (
            f"the container has no memory limit, so nobody knows whether its node has {taken / GIB:.0f} GiB "
            "to spare: set resources.limits.memory"
        )
    if taken > terms.free_bytes:
        return (
            f"up to {taken / GIB:.0f} GiB would be taken, and of the container's limit of "
            f"{terms.limit_bytes / GIB:.1f} GiB {terms.free_bytes / GIB:.1f} GiB are free beside the engine: "
            "raise resources.limits.memory, or lower maxGiB"
        )
    if terms.uses_shared and (terms.shared_bytes is None or terms.shared_bytes < flag_bytes):
        return (
            f"this engine keeps the blocks in /dev/shm, which must hold {flag_bytes / GIB:.0f} GiB: mount an "
            f"emptyDir with medium: Memory there, without sizeLimit or with one of at least "
            f"{flag_bytes / GIB:.0f}Gi"
        )
    return ""
