"""The fleet in figures over one window, as its clients and its engines saw it."""

import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import httpx

from lab.loadgen.record import STALL_SECONDS, ConnectionMode, Outcome, Record, summarise

INTERVAL_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0
"""As vLLM's own scrapes may lag when its API server is busy (3.6 s were measured)."""

_LINE = re.compile(
    r"^vllm:(num_preemptions_total|num_requests_running|num_requests_waiting|kv_cache_usage_perc"
    r"|generation_tokens_total|request_success_total)\{[^}]*\} (\S+)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One replica at one moment; counters since its start."""

    at: float
    """Unix seconds."""
    preemptions: float
    finished: float
    generated: float
    running: float
    waiting: float
    usage: float
    """KV-cache usage, ratio 0 to 1."""


def parse(text: str, at: float) -> Sample:
    """Return the sample in a replica's exposition; series of one family are added up."""
    sums: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        sums[name] = sums.get(name, 0.0) + float(value)
    return Sample(
        at=at,
        preemptions=sums.get("num_preemptions_total", 0.0),
        finished=sums.get("request_success_total", 0.0),
        generated=sums.get("generation_tokens_total", 0.0),
        running=sums.get("num_requests_running", 0.0),
        waiting=sums.get("num_requests_waiting", 0.0),
        usage=sums.get("kv_cache_usage_perc", 0.0),
    )


class Scraper(threading.Thread):
    """Keeps every replica's samples, by pod name, for the whole play."""

    def __init__(self, addresses: Callable[[], Mapping[str, str]], port: int) -> None:
        super().__init__(name="scraper", daemon=True)
        self._addresses, self._port = addresses, port
        self._samples: dict[str, list[Sample]] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def samples(self) -> dict[str, list[Sample]]:
        return {name: list(kept) for name, kept in list(self._samples.items())}

    def run(self) -> None:
        """Ask every replica that has an address, once per interval."""
        with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as http, ThreadPoolExecutor(8) as pool:
            while not self._stopped.wait(INTERVAL_SECONDS):
                list(pool.map(lambda pod: self._scrape(http, *pod), self._addresses().items()))

    def _scrape(self, http: httpx.Client, name: str, address: str) -> None:
        try:
            answer = http.get(f"http://{address}:{self._port}/metrics")
        except httpx.HTTPError:
            return
        if answer.status_code == httpx.codes.OK:
            self._samples.setdefault(name, []).append(parse(answer.text, time.time()))


def increase(samples: Mapping[str, list[Sample]], since: float, until: float) -> tuple[float, float]:
    """Return preemptions and finished requests of all replicas within a window of Unix seconds.

    Counted per replica from its last sample before the window (or its first in it) to its last in it.
    """
    preemptions = finished = 0.0
    for kept in samples.values():
        inside = [sample for sample in kept if since <= sample.at <= until]
        if inside:
            counted = [*[sample for sample in kept if sample.at < since][-1:], *inside]
            preemptions += risen([each.preemptions for each in counted])
            finished += risen([each.finished for each in counted])
    return preemptions, finished


def risen(values: Sequence[float]) -> float:
    """Return by how much a counter rose over its values; it begins at 0 again where its engine does.

    A StatefulSet makes a replica anew under the name of the one that it replaces.
    """
    return sum(now - before if now >= before else now for before, now in pairwise(values))


def rate(kept: list[Sample], seconds: float) -> float:
    """Return preemptions per second over the last seconds of one replica; 0 with fewer than two samples."""
    if not kept:
        return 0.0
    recent = [sample for sample in kept if sample.at >= kept[-1].at - seconds]
    span = recent[-1].at - recent[0].at
    return risen([each.preemptions for each in recent]) / span if span > 0 else 0.0


LOST = frozenset({Outcome.FAILED, Outcome.ABORTED, Outcome.REFUSED})


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
    in_time_per_second: float
    """Tokens of requests whose first token came in time, and which then waited for none over 2 s."""
    stalled_share: float
    """Share of the finished requests that waited longer than 2 s between two tokens (0 to 1)."""
    left_share: float
    """Share of the requests that ended without their answer because the client had lost patience (0 to 1)."""


def figures(
    window: tuple[float, float], records: Sequence[Record], samples: dict[str, list[Sample]], limit: float
) -> Figures:
    """Return the figures of a window of Unix seconds; `limit`: seconds within which first tokens are due."""
    since, until = window
    seen = summarise(records, since, until, limit)
    preemptions, finished = increase(samples, since, until)
    inside = [each for each in records if since <= each.ended_at < until]
    ended = [each for each in inside if each.outcome is Outcome.OK]
    stalled = sum(each.longest_gap_seconds > STALL_SECONDS for each in ended)
    left = sum(each.outcome is Outcome.LEFT for each in inside)
    return Figures(
        window_seconds=until - since,
        requests=seen.ok,
        preemptions_per_request=preemptions / finished if finished else math.nan,
        longest_gap_p95=seen.longest_gap_p95,
        inter_token_p95=seen.inter_token_p95,
        ttft_p95=seen.ttft_p95,
        tokens_per_second=seen.tokens_per_second,
        in_time_per_second=seen.in_time_per_second,
        stalled_share=stalled / len(ended) if ended else math.nan,
        left_share=left / len(inside) if inside else math.nan,
    )


def lost(records: Sequence[Record], connection: ConnectionMode | None = None) -> list[Record]:
    """Return the requests that did not get their whole answer, of all that ended, or on such connections."""
    ended = [each for each in records if each.outcome in LOST]
    return [each for each in ended if connection in (None, each.connection)]
