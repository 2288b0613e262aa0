"""What a compression method brought, by figures of a fleet with and without it, at like load.

Device memory is no part of what was saved: an engine takes its pool when it starts, used or not, so that its
device's memory stays as it is whatever becomes of tokens. It counts only where it rises.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from kvmedic.core.figures import Figures
from kvmedic.core.verdict import HEAVIER

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


def brought(without: Figures, present: Figures) -> Brought:
    """Return what a method brought.

    A load that is somewhat lighter than then makes fewer tokens and fills less of the pool by itself: that
    much is neither a loss nor saved. So do more replicas than then, and shorter answers: rates are those of a
    replica, and answers that come sooner are no loss.

    Args:
        without: the fleet before it, as recorded.
        present: the fleet with it.
    """
    if doubt := _doubt(without, present):
        return Brought(Worth.UNKNOWN, doubt)
    more = _ratio(without.replicas, present.replicas) or 1.0
    lighter = min(1.0, (_ratio(without.requests_per_second, present.requests_per_second) or 1.0) / more)
    tokens = _ratio(without.tokens_per_second, present.tokens_per_second)
    memory = _ratio(without.device_memory, present.device_memory)
    answers = _ratio(without.e2e_p95, present.e2e_p95)
    fewer = tokens is not None and tokens / more <= (1 - LEAST_LOSS) * lighter
    if fewer and (_fell(answers) or not _slower(without, present)):
        # Answers are shorter, not slower; they fill less of the pool by themselves.
        fewer, lighter = False, min(lighter, (tokens or 1.0) / more)
    usage = _ratio(without.kv_cache_usage, present.kv_cache_usage)
    if fewer and memory is not None and memory >= 1 + LEAST_GROWN and not _fell(usage):
        worth = Worth.COSTS_MEMORY
    elif fewer or (answers is not None and answers >= 1 + LEAST_LOSS):
        worth = Worth.COSTS_TIME
    else:
        worth = Worth.SAVES if _saved(without, present, lighter) else Worth.NOTHING
    return Brought(worth, _shown(without, present))


def _fell(ratio: float | None) -> bool:
    return ratio is not None and ratio <= 1 - LEAST_GROWN


def _slower(without: Figures, present: Figures) -> bool:
    """Return whether a request that runs gets fewer tokens per second; also where that is not known."""
    before, now = (_ratio(each.requests_in_flight, each.tokens_per_second) for each in (without, present))
    speed = _ratio(before, now)
    return speed is None or speed <= 1 - LEAST_LOSS


def _doubt(without: Figures, present: Figures) -> str:
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


def _saved(without: Figures, present: Figures, lighter: float) -> bool:
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


def _shown(without: Figures, present: Figures) -> str:
    pairs = (
        (field.name.replace("_", " "), getattr(without, field.name), getattr(present, field.name))
        for field in fields(Figures)
    )
    return ", ".join(
        f"{name} {before:.4g} -> {now:.4g}"
        for name, before, now in pairs
        if before is not None and now is not None
    )
