"""What a compression method brought, by figures of a fleet with and without it, at comparable load.

Device memory is no part of what was saved: an engine takes its pool when it starts, used or not, so that its
device's memory stays as it is whatever becomes of tokens. It counts only where it rises.

How the fleet was without the method is its last healthy look before that came (`lastGood` in the status). It
becomes the baseline when the pod template turns the method on and changes nothing else. Nothing is guessed:
where the template of before is gone, or more changed, a person has to give the figures. Templates may hold
secrets; of them only numbers and what differs leave this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from math import inf, isfinite

from kvmedic.manifests.errors import ManifestError
from kvmedic.model.compression import Figures, MethodClass
from kvmedic.model.config_edits import Difference
from kvmedic.model.devices import Vitals
from kvmedic.model.evidence import Blocked, Inconclusive, Measured, Observation, Signal
from kvmedic.model.readings import gather_values, histogram, merge_histograms, number_or_none, quantile, total
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy, Runbook, TargetRef
from kvmedic.model.status import LastGood, MethodBaseline, Record
from kvmedic.model.trial import AGAIN, Answer
from kvmedic.runbooks.branches import GIVEN, Compressed, Evidence, Finding
from kvmedic.runbooks.compression.methods import compressed_of, with_known_baseline
from kvmedic.runbooks.node_health import thermal_emergency
from kvmedic.runbooks.revisions import RAISED, differences
from kvmedic.runbooks.workload import View, Workload
from kvmedic.verdict.comparison import HEAVIER

LEAST_SAVED = 0.10
"""Relative fall of KV-cache usage from which it counts as saved: means of a usage that saw-tooths move by a
few hundredths from window to window."""
LEAST_RELIEF = 0.25
"""Relative fall of preemptions per request from which it counts as relief."""
FEW_PREEMPTIONS = 0.05
"""Preemptions per request under which there is nothing to relieve."""
LEAST_LOSS = 0.10
"""Relative fall of tokens per second, and rise of end-to-end time, from which it counts as a loss."""
LEAST_GROWN = 0.05
"""Relative rise of device memory from which it counts as grown: otherwise readings differ by a MiB or two."""


class Worth(StrEnum):
    """What a method is worth."""

    SAVES = "Saves"
    """Usage or preemptions fell, and throughput did not."""
    COSTS_MEMORY = "CostsMemory"
    """Throughput fell and device memory rose: as where attention falls back to an eager kernel."""
    COSTS_TIME = "CostsTime"
    """Throughput fell or answers take longer, and nothing was saved."""
    NOTHING = "Nothing"
    """No figure moved."""
    UNKNOWN = "Unknown"
    """A figure is missing, or the load is another one."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What a method brought, and the figures that say so."""

    worth: Worth
    message: str


def weigh_figures(without: Figures, present: Figures) -> Brought:
    """Return what a method brought.

    A load that is somewhat lighter than then makes fewer tokens and fills less of the pool by itself: that
    much is neither a loss nor saved. So do more replicas than then, and shorter answers: rates are those of a
    replica, and answers that come sooner are no loss.

    Args:
        without: the fleet before it, as recorded.
        present: the fleet with it.
    """
    if doubt := _doubt_figures(without, present):
        return Brought(Worth.UNKNOWN, doubt)
    more = _ratio(without.replicas, present.replicas) or 1.0
    lighter = min(1.0, (_ratio(without.requests_per_second, present.requests_per_second) or 1.0) / more)
    tokens = _ratio(without.tokens_per_second, present.tokens_per_second)
    memory = _ratio(without.device_memory, present.device_memory)
    answers = _ratio(without.e2e_p95, present.e2e_p95)
    fewer = tokens is not None and tokens / more <= (1 - LEAST_LOSS) * lighter
    if fewer and (_has_fallen(answers) or not _is_slower(without, present)):
        # Answers are shorter, not slower; they fill less of the pool by themselves.
        fewer, lighter = False, min(lighter, (tokens or 1.0) / more)
    usage = _ratio(without.kv_cache_usage, present.kv_cache_usage)
    if fewer and memory is not None and memory >= 1 + LEAST_GROWN and not _has_fallen(usage):
        worth = Worth.COSTS_MEMORY
    elif fewer or (answers is not None and answers >= 1 + LEAST_LOSS):
        worth = Worth.COSTS_TIME
    else:
        worth = Worth.SAVES if _has_saved(without, present, lighter) else Worth.NOTHING
    return Brought(worth, _figures_text(without, present))


def _has_fallen(ratio: float | None) -> bool:
    return ratio is not None and ratio <= 1 - LEAST_GROWN


def _is_slower(without: Figures, present: Figures) -> bool:
    """Return whether a request that runs gets fewer tokens per second; also where that is not known."""
    before, now = (_ratio(each.requests_in_flight, each.tokens_per_second) for each in (without, present))
    speed = _ratio(before, now)
    return speed is None or speed <= 1 - LEAST_LOSS


def _doubt_figures(without: Figures, present: Figures) -> str:
    """Return why nothing can be said; empty where something can."""
    needed = ("requests_per_second", "tokens_per_second", "preemptions_per_request", "kv_cache_usage")
    for name in needed:
        if getattr(without, name) is None or getattr(present, name) is None:
            whose = "before" if getattr(without, name) is None else "now"
            return f"{name.replace('_', ' ')} {whose} is not known"
    if without.replicas is None and (present.replicas or 1) > 1:
        return (
            "of how many replicas the rates were is not known: say it in spec.compression.baseline.replicas"
        )
    load = _ratio(without.requests_per_second, present.requests_per_second)
    if load is not None:
        load /= _ratio(without.replicas, present.replicas) or 1.0
    if load is None or not 1 / HEAVIER <= load <= HEAVIER:
        shown = "" if load is None else f": {load:.2f} times the requests of before for each replica"
        return f"the load is not like that of before{shown}"
    return ""


def _has_saved(without: Figures, present: Figures, lighter: float) -> bool:
    """Return whether less of the pool is used, or less is preempted, than the load explains.

    Preemptions fall off steeply with the load, so under a lighter one they say nothing.
    """
    usage = _ratio(without.kv_cache_usage, present.kv_cache_usage)
    if usage is not None and usage <= (1 - LEAST_SAVED) * lighter:
        return True
    if lighter < 1 - LEAST_SAVED:
        return False
    before, now = without.preemptions_per_request or 0.0, present.preemptions_per_request or 0.0
    return before > FEW_PREEMPTIONS and now <= (1 - LEAST_RELIEF) * before


def _ratio(before: float | None, now: float | None) -> float | None:
    return now / before if before and now is not None else None


def _figures_text(without: Figures, present: Figures) -> str:
    pairs = (
        (field.name.replace("_", " "), getattr(without, field.name), getattr(present, field.name))
        for field in fields(Figures)
    )
    return ", ".join(
        f"{name} {before:.4g} -> {now:.4g}"
        for name, before, now in pairs
        if before is not None and now is not None
    )


NEEDED = frozenset(
    {
        Signal.PREEMPTIONS_PER_REQUEST_HELD,
        Signal.PREEMPTIONS,
        Signal.REQUESTS_FINISHED,
        Signal.REQUESTS_IN_FLIGHT_CHANGE,
        Signal.GENERATED_TOKENS,
        Signal.KV_CACHE_USAGE_MEAN,
    }
)
"""Needed of every replica."""
HELPFUL = frozenset(
    {
        Signal.E2E_SECONDS,
        Signal.STARTED_SECONDS,
        Signal.KV_CACHE_USAGE_DEVIATION,
        Signal.RUNNING_MEAN,
    }
)
"""Used where replicas report it."""
ASKED = NEEDED | HELPFUL


def figures_of(evidence: Evidence) -> Figures:
    """Return the fleet's figures over the trigger's window; what is not known of every replica is None.

    Nothing is known while one of them started inside the window.
    """
    return Figures() if is_young(evidence.burn) else figures_over(evidence.burn, evidence.vitals)


def figures_over(seen: Observation, vitals: Mapping[str, Vitals]) -> Figures:
    """Return the same of any look, however young its replicas are; `vitals`: by pod name."""
    found = gather_values(seen, NEEDED)
    if isinstance(found, Inconclusive) or not 0 < seen.window_seconds < inf:
        return Figures()
    finished = total(found, Signal.REQUESTS_FINISHED)
    deviations = _known_of_all(seen, Signal.KV_CACHE_USAGE_DEVIATION)
    running = _known_of_all(seen, Signal.RUNNING_MEAN)
    arrived = max(0.0, finished + total(found, Signal.REQUESTS_IN_FLIGHT_CHANGE))
    return Figures(
        requests_per_second=arrived / seen.window_seconds,
        tokens_per_second=total(found, Signal.GENERATED_TOKENS) / seen.window_seconds,
        preemptions_per_request=total(found, Signal.PREEMPTIONS) / max(1.0, finished),
        kv_cache_usage=total(found, Signal.KV_CACHE_USAGE_MEAN) / len(found),
        kv_cache_usage_deviation=max(deviations) if deviations else None,
        device_memory=_device_memory(seen, vitals),
        e2e_p95=_e2e_p95(seen),
        requests_in_flight=sum(running) if running else None,
        replicas=float(len(found)),
    )


def is_young(seen: Observation) -> bool:
    """Return whether a replica started inside the window, in which it had less to do than the others."""
    began = seen.at.timestamp() - seen.window_seconds
    started = [number_or_none(pod, Signal.STARTED_SECONDS) for pod in seen.pods.values()]
    return any(each is not None and each > began for each in started)


def _known_of_all(seen: Observation, signal: Signal) -> list[float] | None:
    """Return the replicas' readings; None where one does not report it, or there is none."""
    found = [number_or_none(pod, signal) for pod in seen.pods.values()]
    known = [each for each in found if each is not None]
    return known if known and len(known) == len(found) else None


def _device_memory(seen: Observation, vitals: Mapping[str, Vitals]) -> float | None:
    """Return the most memory of a device that was in use, in bytes; None where a replica's is not known."""
    known: list[float] = []
    for name in seen.pods:
        mine = vitals.get(name)
        devices = mine.devices.value if mine and isinstance(mine.devices, Measured) else ()
        used = [device.memory_used() for device in devices]
        if not used or None in used:
            return None
        known.extend(each for each in used if each is not None)
    return max(known, default=None)


def _e2e_p95(seen: Observation) -> float | None:
    found = [histogram(pod, Signal.E2E_SECONDS) for pod in seen.pods.values()]
    known = [each for each in found if each is not None]
    if len(known) != len(found) or len({each.bounds for each in known}) != 1:
        return None
    whole = merge_histograms(known)
    seconds = quantile(whole, 0.95) if whole.count > 0 else inf
    return seconds if isfinite(seconds) else None


EVICTING = frozenset(
    {MethodClass.SCATTERED_EVICTION, MethodClass.PER_HEAD_EVICTION, MethodClass.COMPACTING_EVICTION}
)
"""Methods whose blocks are to become free while requests run."""


def fact(text: str) -> Finding:
    """Return a fact of the whole fleet."""
    return Finding("fleet", None, None, None, text)


def where_nodes_are_known(evidence: Evidence, *findings: Finding) -> tuple[Finding, ...] | Inconclusive:
    """Return findings that lead to a change, or what must be known of the nodes before one is made."""
    doubt = thermal_emergency(evidence)
    return doubt if isinstance(doubt, Inconclusive) else findings


def weigh_gain(method: Compressed, evidence: Evidence) -> Brought:
    """Return what a method brought, with where the figures of before are from or why there are none."""
    found = weigh_figures(method.without, figures_of(evidence))
    origin = f"before is {method.without_from}" if method.without_from else ""
    parts = (found.message, origin, method.no_baseline)
    return replace(found, message="; ".join(each for each in parts if each))


def rests_on_spec_alone(method: Compressed, evidence: Evidence) -> bool:
    """Return whether nothing but figures that the spec declares speaks against a method.

    A trial does, or the same figures as the record has them.
    """
    if method.policy.baseline == Figures() or method.is_unfused:
        return False
    if weigh_gain(method, evidence).worth is not Worth.COSTS_MEMORY:
        return False
    known = method.baseline
    if known is None or known.doubt:
        return True
    return weigh_figures(known.figures, figures_of(evidence)).worth is not Worth.COSTS_MEMORY


def report_unanswered_trial(answer: Answer) -> Inconclusive:
    """Return that a trial showed nothing, and when it is made again."""
    return Inconclusive(
        Reason.TRIAL_UNANSWERED,
        f"{answer.message}; tried again after {answer.at + AGAIN:%Y-%m-%dT%H:%MZ}, or at once where the "
        "pod template or spec.compression is edited",
    )


_NOBODY = Observation(datetime(1970, 1, 1, tzinfo=UTC), 0.0, 0.0, {})
"""No replica: what those of now say shows nothing of another revision."""


def with_baseline_on_record(
    method: Compressed | None, record: Record, policy: Policy, view: View
) -> Compressed | None:
    """Return a method with how the fleet was without it, or why that is not known."""
    if method is None:
        return None
    known = find_baseline(method, record, policy, view)
    if method.without.is_complete or Runbook.COMPRESSION_WITHOUT_SAVINGS not in policy.runbooks:
        return replace(method, baseline=known)
    if known is not None and not known.doubt:
        return with_known_baseline(method, known)
    why = known.doubt if known else f"no healthy look at the fleet without {method.name} is on record"
    return replace(method, baseline=known, no_baseline=f"{why}; or give {GIVEN}")


def find_baseline(method: Compressed, record: Record, policy: Policy, view: View) -> MethodBaseline | None:
    """Return the fleet without a method: of its last good look where that had none, else as recorded."""
    good, known = record.last_good, record.baseline
    if known is not None and known.method != method.name:
        known = None
    if good is None or good.method or good.revision == view.fleet.revision:
        return known
    # Decided when the method came: what changes later is no part of the comparison.
    if known is not None and not known.doubt and known.seen_at == good.recorded_at:
        return known
    doubt = _doubt_of(good, method, policy, view)
    return MethodBaseline(method.name, good.revision, good.figures or Figures(), good.recorded_at, doubt)


def _doubt_of(good: LastGood, method: Compressed, policy: Policy, view: View) -> str:
    """Return why figures of a revision are not the present one's without the method; empty: they are."""
    if good.figures is None or good.figures == Figures():
        return f"at the last healthy look without {method.name} not every figure was known"
    was, now = (_workload(revision, policy, view) for revision in (good.revision, view.fleet.revision))
    if isinstance(was, str):
        return was
    if isinstance(now, str):
        return now
    if not _is_on(now, policy, method):
        return f"the pod template does not show that {method.name} is on"
    if _is_on(was, policy, method):
        return f"{method.name} was on at the last healthy look, too"
    names = _replica_set(good.revision, view), _replica_set(view.fleet.revision, view)
    return _other_changes(was, now, names, policy.target, view, method)


def _workload(revision: str, policy: Policy, view: View) -> Workload | str:
    """Return the engine of a revision's template, or why it is not known."""
    name = _replica_set(revision, view)
    if name not in view.templates:
        return f"pod template {revision} is gone (revisionHistoryLimit)"
    found = view.workload(policy.target, name)
    why = found if isinstance(found, Blocked) else found.file
    if isinstance(why, Blocked | ManifestError):
        return f"pod template {revision} cannot be read: {why.message}"
    return found if isinstance(found, Workload) else ""


def _replica_set(revision: str, view: View) -> str:
    return next((each.name for each in view.fleet.replica_sets if each.revision == revision), "")


def _is_on(workload: Workload, policy: Policy, method: Compressed) -> bool:
    """Return whether a method is on, by the template alone."""
    found = compressed_of(workload, policy.compression, (), _NOBODY)
    return found is not None and found.name == method.name


def _other_changes(
    was: Workload, now: Workload, names: tuple[str, str], target: TargetRef, view: View, method: Compressed
) -> str:
    """Return what else changed than the method; empty where nothing did that the KV cache depends on."""
    if _foreign_variables(was) != _foreign_variables(now):
        return f"variables come from elsewhere than before: whether {method.name} was on is not known"
    target = replace(target, container=str(now.container.get("name")))
    found = differences(view, target, *names)
    if isinstance(found, Inconclusive):
        return f"what changed with {method.name} cannot be read: {found.message}"
    others = [each.line() for each in found if not _is_own(each, method, now)]
    if not others:
        return ""
    text = f"more changed than {method.name} since the last healthy look without it: {', '.join(others)}"
    return f"{text}; figures of before would not be of the method alone"


def _foreign_variables(workload: Workload) -> tuple[object, list[dict[str, object]]]:
    """Return what fills variables whose values are not in the template."""
    variables = workload.container.get("env")
    listed = variables if isinstance(variables, list) else []
    foreign = [each for each in listed if isinstance(each, dict) and "valueFrom" in each]
    return workload.container.get("envFrom") or [], foreign


def _is_own(difference: Difference, method: Compressed, workload: Workload) -> bool:
    """Return whether a difference is one of the settings that turn the method on."""
    profile = workload.engine.profile
    flags = {str(knob): flag.dest for knob in RAISED if (flag := profile.flag(knob))}
    dest = flags.get(difference.what, difference.what)
    return any(each.flag.lstrip("-").replace("-", "_") == dest for each in method.settings)
