"""How long the requests of a fleet were over the last day, as its source tells.

What a cache holds depends on the lengths of requests, and they turn with the hour of the day. A look of some
minutes sees those of now alone; a day of means tells whether they come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TypeAlias

from kvmedic.engines.signal_sources import SignalTable
from kvmedic.metrics.batches import narrowed_to, parts_of
from kvmedic.metrics.page import names_of
from kvmedic.metrics.promql import LENGTHS_APART, PEAK_DAY, Narrow, length_queries
from kvmedic.metrics.series import NOWHERE, Place, PodKey, Reply, Unanswered, totals_of
from kvmedic.model.evidence import MeanLengths, Measured
from kvmedic.settings import Labels

FEWEST_REQUESTS = 400.0
"""Requests that a mean of lengths comes from, at least. Means of as many of the widest shape that was
simulated (relative deviation 1.3) deviate by 7 %, and two of them differ by a quarter once in 150 times."""
AGAIN = timedelta(minutes=5)
"""After how long a source is asked again that did not answer: each look would wait for it."""

AskRange: TypeAlias = Callable[[str, Sequence[datetime]], Awaitable[Sequence[Reply]]]
"""Returns what a source answers to a query at moments that are equally far apart."""


@dataclass
class LengthHistory:
    """Asks a source for the lengths of the last day, once for each half hour."""

    ask: AskRange
    narrow: Narrow
    """Puts the source's own matchers into a query."""
    table: SignalTable
    labels: Labels
    _known: dict[tuple[tuple[PodKey, Place], ...], tuple[datetime, tuple[MeanLengths, ...]]] = field(
        default_factory=dict
    )
    """Until when an answer holds, and the answer."""

    async def lengths(
        self, pods: Sequence[PodKey], places: Mapping[str, Place], now: datetime
    ) -> tuple[MeanLengths, ...]:
        """Return the mean lengths of the requests of some replicas together over the last day, oldest first.

        Left out are times with too few requests, and those of which the source does not tell. The moments are
        those of a fixed grid: front ends answer a range on it at once, and an answer holds until the next.
        """
        apart = LENGTHS_APART.total_seconds()
        last = datetime.fromtimestamp(now.timestamp() // apart * apart, UTC)
        self._known = {key: each for key, each in self._known.items() if now < each[0]}
        key = tuple((pod, places.get(pod.name, NOWHERE)) for pod in pods)
        if key in self._known:
            return self._known[key][1]
        moments = [last - LENGTHS_APART * ago for ago in reversed(range(PEAK_DAY // LENGTHS_APART))]
        parts = [await self._told_of(part, moments) for part in parts_of(pods)]
        told = [[each[place] for each in parts] for place in range(len(moments))]
        means = (_mean_of(pods, at, answers, places) for at, answers in zip(moments, told, strict=True))
        found = tuple(each for each in means if each is not None)
        is_whole = not any(isinstance(each, Unanswered) for answers in told for each in chain(*answers))
        self._known[key] = last + LENGTHS_APART if is_whole else now + AGAIN, found
        return found

    async def _told_of(
        self, pods: Sequence[PodKey], moments: Sequence[datetime]
    ) -> Sequence[Sequence[Reply]]:
        """Return by moment what the source tells of prompt tokens, generated tokens and requests."""
        narrow = narrowed_to(pods, self.labels, names_of(self.table))
        texts = [self.narrow(narrow(text)) for text in length_queries(self.table)]
        found = await asyncio.gather(*(self.ask(text, moments) for text in texts))
        return list(zip(*found, strict=True))


def _mean_of(
    pods: Sequence[PodKey], at: datetime, answers: Sequence[Sequence[Reply]], places: Mapping[str, Place]
) -> MeanLengths | None:
    """Return the means of one time, over all replicas that tell; None where they had too few requests."""
    sums = [0.0, 0.0, 0.0]
    for part in answers:
        each = [totals_of(pods, reply, at, places) for reply in part]
        for pod in pods:
            values = [one[pod.name] for one in each]
            if all(isinstance(value, Measured) for value in values):
                sums = [a + b.value for a, b in zip(sums, values, strict=True) if isinstance(b, Measured)]
    prompts, outputs, requests = sums
    if requests < FEWEST_REQUESTS or prompts <= 0 or outputs <= 0:
        return None
    return MeanLengths(at, prompts / requests, outputs / requests)
