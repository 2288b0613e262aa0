"""`make bench-paging`: from which loss on does a fleet need a person, and which loss passes by itself?

Fleets are drawn as for `make bench-verdict`, under constant loads, ramps, days, bursts and closed loops, and
nobody changes anything. Each minute a rule looks at the share of requests that were served in time, as the
engines' metrics report it, over one or two windows. A paged person acts after a quarter of an hour. So the
truth is what clients get in the quarter of an hour after that: where over a fifth of them is let down a
person is needed, where one in twenty at most is the fleet has recovered by itself. Between both, either is
right.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from kvmedic.model.evidence import Signal
from kvmedic.model.readings import count_above, histogram, number_or_none
from kvmedic.verdict.served_in_time import (
    FIRST_TOKEN_SECONDS,
    STALL_SECONDS,
    WORST_STALLS,
    FirstTokens,
    stalls_per_request,
)
from lab.bench.verdict import draw_fleet
from lab.world.fleet import Served
from lab.world.kernel import LEFT, Floats

MINUTE, QUARTER, HALF_HOUR = 60.0, 900.0, 1800.0
FIRST_LOOK, LAST_LOOK = 1800.0, 6000.0
"""Seconds between which a rule looks; half an hour before and after belongs to it."""
NEEDS, RECOVERS = 0.2, 0.05
"""Share of the requests that are let down a quarter of an hour later: from the first on a person is needed,
up to the second the fleet has recovered by itself."""
FEWEST = 20.0
"""Requests of a window that must be known to have come, or to be overdue, for a share of them to count."""
WINDOWS = (5, 10, 15, 30)
"""Minutes of a window."""
SHARES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
KINDS = ("constant", "ramp", "day", "drift", "bursts", "lone burst", "closed")


@dataclass(frozen=True, slots=True)
class Rule:
    """Page while the share served in time is under a limit over each of some windows."""

    share: float
    minutes: tuple[int, ...]

    def pages(self, course: "Course") -> Floats:
        """Return for each look whether it pages."""
        seen = [course.seen[WINDOWS.index(each)] for each in self.minutes]
        # A window that shows nothing (NaN) is under no limit.
        return np.logical_and.reduce([each < self.share for each in seen])

    def __str__(self) -> str:
        return f"under {self.share:.2f} over {' and '.join(map(str, self.minutes))} min"


@dataclass(frozen=True, slots=True)
class Course:
    """How one fleet fared, look by look."""

    seed: int
    kind: str
    seen: tuple[Floats, ...]
    """Share served in time by each window, as the metrics report it; NaN where too few requests came."""
    lost: Floats
    """Of the requests of the second quarter of an hour from there, the share that is let down."""
    lost_now: Floats
    """The same of the last five minutes."""

    @property
    def begins(self) -> int | None:
        """Return the first look from which a person is needed, with clients who are let down already."""
        found = np.flatnonzero((self.lost >= NEEDS) & (self.lost_now >= NEEDS))
        return int(found[0]) if found.size else None


def try_seed(seed: int) -> Course:
    """Return how a drawn fleet fares."""
    kind = KINDS[seed % len(KINDS)]
    fleet = draw_fleet(seed, load=kind)
    served = fleet.serve([fleet.old] * fleet.replicas, LAST_LOOK + HALF_HOUR)
    whole = replace(served, pages=served.pages.sum(axis=1, keepdims=True))
    looks = np.arange(FIRST_LOOK, LAST_LOOK + 1, MINUTE)
    seen = [np.array([_share(whole, at - each * MINUTE, at) for at in looks]) for each in WINDOWS]
    lost = np.array([_lost(served, at + QUARTER, at + HALF_HOUR) for at in looks])
    lost_now = np.array([_lost(served, at - 5 * MINUTE, at) for at in looks])
    return Course(seed, kind, tuple(seen), lost, lost_now)


def _share(whole: Served, since: float, until: float) -> float:
    """Return the share served in time, as the metrics of all replicas together report it."""
    read = whole.readings(0, since, until)
    firsts, gaps, outputs = (
        histogram(read, each)
        for each in (
            Signal.TIME_TO_FIRST_TOKEN_SECONDS,
            Signal.INTER_TOKEN_SECONDS,
            Signal.OUTPUT_LENGTH,
        )
    )
    finished, aborted, grown, waiting, tokens = (
        number_or_none(read, each) or 0.0
        for each in (
            Signal.REQUESTS_FINISHED,
            Signal.REQUESTS_ABORTED,
            Signal.REQUESTS_IN_FLIGHT_CHANGE,
            Signal.WAITING_AT_END,
            Signal.GENERATED_TOKENS,
        )
    )
    if firsts is None or gaps is None or outputs is None:
        return np.nan
    rate = max(0.0, finished + aborted + grown) / (until - since)
    first_tokens = FirstTokens(
        firsts.count, firsts.count - count_above(firsts, FIRST_TOKEN_SECONDS), aborted, waiting, rate
    )
    if firsts.count + aborted + max(0.0, waiting - rate * FIRST_TOKEN_SECONDS) < FEWEST:
        return np.nan
    length = outputs.mean if outputs.count else 0.0
    stalls = stalls_per_request(count_above(gaps, STALL_SECONDS), tokens, length)
    return first_tokens.share_in_time(FIRST_TOKEN_SECONDS) * float(np.exp(-min(stalls, WORST_STALLS)))


def _lost(served: Served, since: float, until: float) -> float:
    """Return which share of the requests that came then was let down: late, hung, or given up."""
    q = served.requests
    came = q[(q["arrived"] > since) & (q["arrived"] <= until)]
    if not came.size:
        return 0.0
    late = (came["made"] == 0) | (came["first"] - came["arrived"] > FIRST_TOKEN_SECONDS)
    gone = came["status"] == LEFT
    return float((late | gone | (came["gap"] > STALL_SECONDS)).mean())


@dataclass(frozen=True, slots=True)
class Score:
    """What a rule came to over some fleets."""

    needed: int
    """Fleets that needed a person."""
    began: int
    """Of these, fleets that did not from the first look on: their trouble began while a rule watched."""
    began_paged: int
    """Of those, fleets that paged within half an hour."""
    paged: int
    """Of these, fleets that paged within half an hour from when they began to."""
    minutes: float
    """From then to the page: median."""
    pages: int
    """Pages that began."""
    recovered: int
    """Of these, pages of fleets that recovered by themselves."""
    quiet: int
    """Fleets that never let down over one in twenty..."""
    quiet_paged: int
    """... and paged nevertheless."""


def score(rule: Rule, courses: Sequence[Course]) -> Score:
    """Return what a rule comes to."""
    delays, needed, pages, recovered, quiet, quiet_paged = list[float](), 0, 0, 0, 0, 0
    began, began_paged = 0, 0
    for course in courses:
        is_page = rule.pages(course)
        onsets = np.flatnonzero(is_page & ~np.concatenate([[False], is_page[:-1]]))
        pages += onsets.size
        recovered += int((course.lost[onsets] <= RECOVERS).sum())
        if (course.lost <= RECOVERS).all() and (course.lost_now <= RECOVERS).all():
            quiet += 1
            quiet_paged += bool(onsets.size)
        if course.begins is not None:
            needed += 1
            later = np.flatnonzero(is_page[course.begins :])
            in_time = bool(later.size and later[0] <= HALF_HOUR / MINUTE)
            if in_time:
                delays.append(float(later[0]))
            began += course.begins > 0
            began_paged += in_time and course.begins > 0
    middle = median(delays) if delays else float("nan")
    return Score(needed, began, began_paged, len(delays), middle, pages, recovered, quiet, quiet_paged)


RULES = tuple(
    Rule(share, minutes) for minutes in ((5,), (10,), (15,), (30,), (5, 15), (5, 30)) for share in SHARES
)


def table(courses: Sequence[Course]) -> str:
    """Return what each rule comes to."""
    head = ("paged in time", "of those that began", "minutes", "recovered by itself", "quiet ones")
    lines = [f"{'page while':28}" + "".join(f"{each:>22}" for each in head)]
    for rule in RULES:
        s = score(rule, courses)
        cells = (
            f"{s.paged}/{s.needed} = {s.paged / max(1, s.needed):.0%}",
            f"{s.began_paged}/{s.began}",
            f"{s.minutes:.0f}",
            f"{s.recovered}/{s.pages} = {s.recovered / max(1, s.pages):.0%}",
            f"{s.quiet_paged}/{s.quiet}",
        )
        lines.append(f"{rule!s:28}" + "".join(f"{each:>22}" for each in cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.paging", description=__doc__)
    parser.add_argument("--fleets", type=int, default=420, help="how many are drawn")
    parser.add_argument("--first", type=int, default=20_000, help="the first seed")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    given = parser.parse_args(arguments)
    with ProcessPoolExecutor(given.workers) as workers:
        courses = list(workers.map(try_seed, range(given.first, given.first + given.fleets)))
    print(table(courses))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
