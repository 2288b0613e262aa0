"""How long the requests of a fleet were over the last day, as its source reports.

What a cache holds depends on the lengths of requests, and they turn with the hour of the day. A look of some
minutes sees those of now alone; a day of them shows whether they come back. Means would not do: where long
requests are mixed with short ones, it is the long ones that fill the cache.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import sqrt
from typing import TypeAlias

from kvmedic.metrics.series import NOWHERE, Place, PodKey
from kvmedic.model.evidence import Absence, Look, Missing, Observation, PastLengths, Signal
from kvmedic.model.readings import histogram, merge_histograms, moments

APART = timedelta(minutes=30)
"""Over how long lengths are counted, and from one count to the next: a mix that turns within hours shows."""
DAY = timedelta(hours=24)
LENGTHS = Look(APART, signals=frozenset({Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH}))
FEWEST_REQUESTS, OF_WIDE, WIDER = 400.0, 2600.0, 3.5
"""Requests of half an hour that show how large sequences were, at least: the first; where outputs are wide,
the second times their relative deviation to the third power. The size deviates by up to 5 % then (simulated
with log-normal outputs of relative deviations 0.5 to 1.3), and two differ by a quarter once in 700 times."""
AGAIN = timedelta(minutes=5)
"""After how long a source is asked again that did not answer: each look would wait for it."""

LookAt: TypeAlias = Callable[
    [Sequence[datetime], Sequence[PodKey], Look, Mapping[str, Place]], Awaitable[Sequence[Observation]]
]
"""Returns the same look at several moments that are equally far apart."""


@dataclass
class LengthHistory:
    """Asks a source for the lengths of the last day, once for each half hour."""

    look_at: LookAt
    _known: dict[tuple[tuple[PodKey, Place], ...], tuple[datetime, tuple[PastLengths, ...]]] = field(
        default_factory=dict
    )
    """Until when an answer holds, and the answer."""

    async def lengths(
        self, pods: Sequence[PodKey], places: Mapping[str, Place], now: datetime
    ) -> tuple[PastLengths, ...]:
        """Return the lengths of the requests of some replicas together over the last day, oldest first.

        Left out are times with too few requests, and those that the source does not report. The moments are
        those of a fixed grid: front ends answer a range on it at once, and an answer holds until the next.
        """
        self._known = {key: each for key, each in self._known.items() if now < each[0]}
        key = tuple((pod, places.get(pod.name, NOWHERE)) for pod in pods)
        if key in self._known:
            return self._known[key][1]
        last = datetime.fromtimestamp(now.timestamp() // APART.total_seconds() * APART.total_seconds(), UTC)
        grid = [last - APART * ago for ago in reversed(range(DAY // APART))]
        seen = await self.look_at(grid, pods, LENGTHS, places)
        found = tuple(each for each in map(lengths_of, seen) if each is not None)
        is_whole = not any(_is_unanswered(each) for each in seen)
        self._known[key] = last + APART if is_whole else now + AGAIN, found
        return found


def lengths_of(seen: Observation) -> PastLengths | None:
    """Return the lengths of a look, over all replicas that report them; None where those are too few."""
    by_pod = [[histogram(pod, signal) for signal in sorted(LENGTHS.signals)] for pod in seen.pods.values()]
    pairs = [(one, other) for one, other in by_pod if one is not None and other is not None and one.count > 0]
    if not pairs or len({(one.bounds, other.bounds) for one, other in pairs}) > 1:
        return None
    output, prompt = (merge_histograms(each) for each in zip(*pairs, strict=True))
    if output.total <= 0 or prompt.total <= 0:
        return None
    of_output = moments(output)
    spread = sqrt(max(0.0, of_output.second / of_output.first**2 - 1))
    is_enough = output.count >= max(FEWEST_REQUESTS, OF_WIDE * spread**WIDER)
    return PastLengths(seen.at, prompt, output) if is_enough else None


def _is_unanswered(seen: Observation) -> bool:
    unavailable = Missing(Absence.SOURCE_UNAVAILABLE)
    return any(unavailable in (pod.histogram(each) for each in LENGTHS.signals) for pod in seen.pods.values())
