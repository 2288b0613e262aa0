"""What one request experienced, and a window of them summed up."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

STALL_SECONDS = 2.0
"""A request with a longer gap than this between two tokens was not served in time."""
FIRST_TOKEN_SECONDS = 30.0
"""Nor was one whose first token came later, where no objective says otherwise: as the operator has it."""


class Outcome(StrEnum):
    """How a request ended.

    `refused`: no connection. `failed`: an HTTP error, a time-out, or closed before any answer. `aborted`: the
    answer began and was cut, ended in an error event, or ended with finish reason `abort`. `cancelled`: the
    load generator itself stopped. `left`: the client lost patience.
    """

    OK = "ok"
    FAILED = "failed"
    ABORTED = "aborted"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    LEFT = "left"


class ConnectionMode(StrEnum):
    """Whether a client opens a connection for each request or keeps one."""

    FRESH = "fresh"
    KEEP_ALIVE = "keep-alive"


@dataclass(frozen=True, slots=True)
class Record:
    """One finished request; times are wall clock (Unix seconds), gaps in milliseconds between tokens."""

    number: int
    outcome: Outcome
    connection: ConnectionMode
    started_at: float
    ended_at: float
    first_token_at: float | None
    prompt_tokens: int
    tokens: int
    gaps_ms: tuple[float, ...]
    detail: str = ""
    asked_tokens: int = 0
    """Of the whole answer, also where it was not read to its end; 0: nobody wrote it down."""

    @property
    def ttft_seconds(self) -> float | None:
        """From sending to the first token; None without any token."""
        return None if self.first_token_at is None else self.first_token_at - self.started_at

    @property
    def longest_gap_seconds(self) -> float:
        """Longest wait between two tokens."""
        return max(self.gaps_ms, default=0.0) / 1e3

    def is_in_time(self, limit: float) -> bool:
        """Return whether the whole answer came, its first token within a limit, without a long gap."""
        first = self.ttft_seconds
        is_prompt = self.outcome is Outcome.OK and first is not None and first <= limit
        return is_prompt and self.longest_gap_seconds <= STALL_SECONDS

    def token_times(self) -> Iterator[float]:
        if self.first_token_at is None:
            return
        now = self.first_token_at
        yield now
        for gap in self.gaps_ms:
            now += gap / 1e3
            yield now

    def line(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> "Record":
        fields = json.loads(line)
        fields["outcome"] = Outcome(fields["outcome"])
        fields["connection"] = ConnectionMode(fields["connection"])
        fields["gaps_ms"] = tuple(fields["gaps_ms"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Summary:
    """One window: requests by outcome as they ended in it, tokens as they arrived in it.

    Waits for a first token count where it came, as an engine counts them: of the requests that end in the
    minutes after a change many had been sent long before it. Percentiles of an empty set are NaN, never 0.
    `in_time_per_second` counts tokens of requests that were served in time.
    """

    seconds: float
    ok: int
    failed: int
    aborted: int
    refused: int
    ttft_p50: float
    ttft_p95: float
    longest_gap_p50: float
    longest_gap_p95: float
    inter_token_p50: float
    inter_token_p95: float
    inter_token_mean: float
    residence_p99: float
    tokens_per_second: float
    in_time_per_second: float

    @property
    def lost(self) -> int:
        return self.failed + self.aborted + self.refused


def summarise(
    records: Iterable[Record], since: float, until: float, limit: float = FIRST_TOKEN_SECONDS
) -> Summary:
    """Return the summary of a window of wall-clock time; first tokens are due within `limit` seconds."""
    if until <= since:
        raise ValueError(f"the window ends at {until}, which is not after {since}")
    everyone = list(records)
    ended = [record for record in everyone if since <= record.ended_at < until]
    complete = [record for record in ended if record.outcome is Outcome.OK]
    gaps = sorted(gap / 1e3 for record in everyone for gap in gaps_within(record, since, until))
    ttfts = sorted(first_waits(everyone, since, until))
    longest = sorted(record.longest_gap_seconds for record in complete)
    arrived = [(record, tokens_within(record, since, until)) for record in everyone]
    good = sum(count for record, count in arrived if record.is_in_time(limit))
    outcomes = [record.outcome for record in ended]
    return Summary(
        seconds=until - since,
        ok=len(complete),
        failed=outcomes.count(Outcome.FAILED),
        aborted=outcomes.count(Outcome.ABORTED),
        refused=outcomes.count(Outcome.REFUSED),
        ttft_p50=percentile(ttfts, 0.5),
        ttft_p95=percentile(ttfts, 0.95),
        longest_gap_p50=percentile(longest, 0.5),
        longest_gap_p95=percentile(longest, 0.95),
        inter_token_p50=percentile(gaps, 0.5),
        inter_token_p95=percentile(gaps, 0.95),
        inter_token_mean=sum(gaps) / len(gaps) if gaps else math.nan,
        residence_p99=percentile(sorted(r.ended_at - r.started_at for r in complete), 0.99),
        tokens_per_second=sum(count for _, count in arrived) / (until - since),
        in_time_per_second=good / (until - since),
    )


def tokens_within(record: Record, since: float, until: float) -> int:
    """Return how many of a request's tokens arrived in the window."""
    if record.started_at >= until or record.ended_at < since:
        return 0
    return sum(since <= at < until for at in record.token_times())


def first_waits(records: Iterable[Record], since: float, until: float) -> Iterator[float]:
    """Yield the seconds to the first tokens that came in the window, however their requests ended."""
    for record in records:
        waited, at = record.ttft_seconds, record.first_token_at
        if waited is not None and at is not None and since <= at < until:
            yield waited


def gaps_within(record: Record, since: float, until: float) -> Iterator[float]:
    """Yield the gaps (ms) that ended in the window."""
    if record.started_at < until and record.ended_at >= since:
        times = record.token_times()
        next(times, None)
        for gap, at in zip(record.gaps_ms, times, strict=True):
            if since <= at < until:
                yield gap


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of ordered values; NaN for none."""
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def read(path: Path) -> list[Record]:
    """Return the records of a file of JSON lines; a half-written last line is left out."""
    text = path.read_text(encoding="utf-8")
    return [Record.from_line(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
