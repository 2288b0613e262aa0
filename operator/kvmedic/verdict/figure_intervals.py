"""Between which values each figure of a side lies, so that nobody takes chance for a difference.

An interval is of 95 %: two standard errors on either side. The errors are those of the rule
(`kvmedic.verdict.side_by_side`): what counts scatter by, the scatter that was simulated, and how far the
figure moves as each stretch of time is left out. What is read off gauges alone has the last of these only,
and none while there are too few stretches. The verdict rests on the intervals of its checks, not on these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import exp, isfinite, log, sqrt

from kvmedic.verdict.counts import Arm, Limits
from kvmedic.verdict.side_by_side import (
    FEWEST_BLOCKS,
    QUEUE_SCATTER,
    SCATTER_IN_TIME,
    SCATTER_SERVED,
    SURE,
    Sides,
    jackknife_variance,
    sides_of,
)

CONFIDENCE = 0.95
"""Share of such intervals that hold the true value: two standard errors."""
MOMENTS = FEWEST_BLOCKS + 1
"""Pages of a replica from which figures that are read off gauges have an interval."""
_RATIOS = ("tokens_per_second", "in_time_share", "served_in_time_per_second")
"""Figures whose error is one of the logarithm."""
_BY_GAUGES = ("silent_seconds", "waiting", "in_flight")


@dataclass(frozen=True, slots=True)
class Interval:
    """What a figure lies between."""

    low: float
    high: float


Intervals = Mapping[str, Interval | None]
"""By the name of a figure; None where too few stretches were seen, or nothing to be a figure of."""


def find_intervals(old: Arm, new: Arm, limits: Limits) -> tuple[Intervals, Intervals]:
    """Return the intervals of both sides' figures, the old one's first."""
    sides = sides_of(old, new, limits)
    return _intervals_of_side(sides, old), _intervals_of_side(sides, new)


def _intervals_of_side(sides: Sides, arm: Arm) -> Intervals:
    values = asdict(sides.figures(arm))
    moved = {name: _jackknife_error(sides, arm, name) for name in values}
    counts, time = arm.whole, max(arm.whole.replica_seconds, 1e-9)
    found: dict[str, Interval | None] = {
        "arrivals_per_second": _count_interval(counts.arrivals, 1 / time, moved["arrivals_per_second"]),
        "stalls_per_request": _count_interval(
            counts.stalls, sides.output / max(1.0, counts.tokens), moved["stalls_per_request"]
        ),
        "queued_share": _interval_around(
            values["queued_share"],
            max(sqrt(QUEUE_SCATTER / max(1.0, counts.arrivals)), moved["queued_share"]),
        ),
    }
    for name in _RATIOS:
        found[name] = _ratio_interval(values[name], _log_error(sides, arm, name, moved[name]))
    if counts.tokens <= 0:
        found["stalls_per_request"] = None
    if counts.arrivals <= 0:
        found["queued_share"] = None
    share = found["in_time_share"]
    found["in_time_share"] = None if share is None else Interval(share.low, min(1.0, share.high))
    for name in _BY_GAUGES:
        around = _interval_around(values[name], moved[name])
        seen = len(arm.blocks) >= FEWEST_BLOCKS and around is not None
        found[name] = Interval(max(0.0, around.low), around.high) if seen and around else None
    return found


def _jackknife_error(sides: Sides, arm: Arm, name: str) -> float:
    """Return how far a figure scatters from stretch to stretch; of a ratio its logarithm; 0 of too few."""

    def leave_out(begin: int, end: int) -> float:
        old, new, own = (_without(each, begin, end) for each in (sides.old, sides.new, arm))
        value = float(getattr(replace(sides, old=old, new=new).figures(own), name))
        return log(max(value, 1e-9)) if name in _RATIOS else value

    error = sqrt(jackknife_variance(len(arm.blocks), leave_out))
    return error if isfinite(error) else 0.0


def _without(arm: Arm, begin: int, end: int) -> Arm:
    """Return a side without some stretches of time; what waits at the end still does."""
    return Arm(arm.replicas, (*arm.blocks[:begin], *arm.blocks[end:]), arm.waiting[-1:])


def _log_error(sides: Sides, arm: Arm, name: str, moved: float) -> float:
    """Return the error of a ratio's logarithm.

    The rule's, of one side. Tokens per second scatter more by themselves than beside others: by when requests
    come, and by their lengths, whose deviation is about their mean (as where lengths are exponential).
    """
    scatter = SCATTER_IN_TIME if name == "in_time_share" else SCATTER_SERVED
    counted = 0.0 if name == "tokens_per_second" else sides.counting_variance(arm)
    counted += 0.0 if name == "in_time_share" else 2 / max(1.0, arm.whole.arrivals)
    return sqrt(max(counted, moved**2) + scatter**2 / max(1.0, arm.whole.first_tokens))


def _count_interval(count: float, unit: float, moved: float) -> Interval:
    """Return the interval of something counted, in its figure's unit (score interval of a Poisson count).

    Above 0 at its upper end also where nothing was counted: that there was none yet is no proof of never.
    """
    half = SURE**2 / 2
    reach = SURE * sqrt(count + half / 2)
    low, high = (count + half - reach) * unit, (count + half + reach) * unit
    return Interval(max(0.0, min(low, count * unit - SURE * moved)), max(high, count * unit + SURE * moved))


def _ratio_interval(value: float, error: float) -> Interval | None:
    """Return the interval of a ratio; None of 0, of which no logarithm says how sure it is."""
    known = isfinite(value) and value > 0
    return Interval(value * exp(-SURE * error), value * exp(SURE * error)) if known else None


def _interval_around(value: float, error: float) -> Interval | None:
    return Interval(value - SURE * error, value + SURE * error) if isfinite(value) else None
