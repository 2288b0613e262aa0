"""What the replicas export, asked of each once a second: independent of Prometheus and operator."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

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
        """End soon."""
        self._stopped.set()

    def samples(self) -> dict[str, list[Sample]]:
        """Return all samples by pod name, oldest first."""
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
            earlier = [sample for sample in kept if sample.at < since]
            first, last = (earlier or inside)[-1 if earlier else 0], inside[-1]
            preemptions += last.preemptions - first.preemptions
            finished += last.finished - first.finished
    return preemptions, finished


def rate(kept: list[Sample], seconds: float) -> float:
    """Return preemptions per second over the last seconds of one replica; 0 with fewer than two samples."""
    if not kept:
        return 0.0
    recent = [sample for sample in kept if sample.at >= kept[-1].at - seconds]
    span = recent[-1].at - recent[0].at
    return (recent[-1].preemptions - recent[0].preemptions) / span if span > 0 else 0.0
