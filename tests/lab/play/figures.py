"""The fleet in figures over one window, as its clients and its engines saw it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lab.loadgen.record import STALL_SECONDS, Outcome, Record, summarise
from lab.play.engines import Sample, increase

LOST = frozenset({Outcome.FAILED, Outcome.ABORTED, Outcome.REFUSED})


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time in Unix seconds."""

    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class Figures:
    """One window of a fleet. Times in seconds, rates of the whole fleet; NaN where there was nothing."""

    window_seconds: float
    requests: int
    preemptions_per_request: float
    longest_gap_p95: float
    """Of each request's longest wait between two tokens."""
    inter_token_p95: float
    ttft_p95: float
    tokens_per_second: float
    goodput_per_second: float
    """Tokens of requests that never waited longer than 2 s between two tokens."""
    stalled_share: float
    """Share of the finished requests that did (0 to 1)."""


def figures(window: Window, records: Sequence[Record], samples: dict[str, list[Sample]]) -> Figures:
    seen = summarise(records, window.since, window.until)
    preemptions, finished = increase(samples, window.since, window.until)
    ended = [each for each in records if window.since <= each.ended_at < window.until]
    whole = [each for each in ended if each.outcome is Outcome.OK]
    stalled = sum(each.longest_gap_seconds > STALL_SECONDS for each in whole)
    return Figures(
        window_seconds=window.seconds,
        requests=seen.ok,
        preemptions_per_request=preemptions / finished if finished else math.nan,
        longest_gap_p95=seen.longest_gap_p95,
        inter_token_p95=seen.inter_token_p95,
        ttft_p95=seen.ttft_p95,
        tokens_per_second=seen.tokens_per_second,
        goodput_per_second=seen.goodput_per_second,
        stalled_share=stalled / len(whole) if whole else math.nan,
    )


def lost(records: Sequence[Record]) -> list[Record]:
    """Return the requests that did not get their whole answer, of all that ended."""
    return [each for each in records if each.outcome in LOST]
