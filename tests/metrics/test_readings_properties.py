"""Whatever a scraper met (restarts, gaps, odd moments), no NaN and nothing negative reaches a runbook."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmedic.cli.diagnose import policy_in
from kvmedic.cli.saved import consult, evidence_of
from kvmedic.metrics.page import Page, moment
from kvmedic.metrics.series import PodKey, Series
from kvmedic.model.evidence import Histogram, Look, Measured, Observation, Signal
from kvmedic.runbooks.branches import Evidence
from worlds.metric_tape import Curve, Tape
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import END, NAMESPACE, STEADY, source

SIGNED = frozenset({Signal.REQUESTS_IN_FLIGHT_CHANGE})
"""Signals that may be below 0: a difference of two moments."""
LENGTHS = (1.0, 10.0, 100.0, 1000.0, math.inf)
SECONDS = (0.1, 1.0, 10.0, 60.0, math.inf)
OF_REQUESTS = ("vllm:request_prompt_tokens", "vllm:request_generation_tokens")
OF_TIME = (
    "vllm:inter_token_latency_seconds",
    "vllm:time_to_first_token_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:e2e_request_latency_seconds",
)
INFO = {"num_gpu_blocks": "150", "block_size": "32", "cache_dtype": "auto"}


@dataclass
class Process:
    """An engine's counters since its process started."""

    counters: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, list[int]] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)

    def count(self, name: str, by: float) -> None:
        self.counters[name] = self.counters.get(name, 0.0) + by

    def observe(self, name: str, bounds: tuple[float, ...], bucket: int, times: int) -> None:
        counts = self.buckets.setdefault(name, [0] * len(bounds))
        counts[bucket] += times
        bound = bounds[bucket]
        value = bounds[bucket - 1] * 2 if math.isinf(bound) else bound
        self.sums[name] = self.sums.get(name, 0.0) + times * value


@dataclass(frozen=True)
class Interval:
    """What happened between two scrapes."""

    restarted: bool
    finished: int
    preempted: int
    tokens: int
    length: int
    """Bucket of all observations of lengths and times."""
    running: int
    usage: float


INTERVALS = st.builds(
    Interval,
    restarted=st.booleans(),
    finished=st.integers(0, 400),
    preempted=st.integers(0, 2000),
    tokens=st.integers(0, 100_000),
    length=st.integers(0, len(LENGTHS) - 1),
    running=st.integers(0, 64),
    usage=st.one_of(st.floats(0, 1), st.sampled_from([math.nan, math.inf])),
)


def advance(process: Process, interval: Interval) -> Process:
    process = Process() if interval.restarted else process
    process.count("vllm:num_preemptions_total", interval.preempted)
    process.count("vllm:generation_tokens_total", interval.tokens)
    process.count("vllm:prompt_tokens_total", interval.finished * 10)
    process.count("vllm:prefix_cache_queries_total", interval.finished * 10)
    process.count("vllm:prefix_cache_hits_total", interval.finished * 3)
    process.count("vllm:iteration_tokens_total_count", interval.tokens // max(1, interval.running))
    for name, bounds in (*((n, LENGTHS) for n in OF_REQUESTS), *((n, SECONDS) for n in OF_TIME)):
        process.observe(name, bounds, interval.length, interval.finished)
    process.count("vllm:request_success_total", interval.finished)
    return process


def series(name: str, process: Process, labels: Mapping[str, str]) -> Iterator[tuple[str, Series]]:
    upto = 0
    bounds = LENGTHS if name in OF_REQUESTS else SECONDS
    for bound, count in zip(bounds, process.buckets[name], strict=True):
        upto += count
        yield f"{name}_bucket", Series(labels, float(upto), bound)
    yield f"{name}_sum", Series(labels, process.sums[name])


def scraped(place: int, engines: list[tuple[Process, Interval]]) -> Page:
    found: dict[str, list[Series]] = {}
    for number, (process, interval) in enumerate(engines):
        labels = {"engine": str(number), "model_name": "tiny"}
        for name in process.buckets:
            for full, one in series(name, process, labels):
                found.setdefault(full, []).append(one)
        gauges = {
            "vllm:num_requests_running": float(interval.running),
            "vllm:num_requests_waiting": 1.0,
            "vllm:kv_cache_usage_perc": interval.usage,
        }
        for name, value in (process.counters | gauges).items():
            extra = {"finished_reason": "stop"} if name == "vllm:request_success_total" else {}
            found.setdefault(name, []).append(Series(labels | extra, value))
        info = Series(INFO | {"engine": str(number), "num_gpu_blocks": str(150 * len(engines))}, 1.0)
        found.setdefault("vllm:cache_config_info", []).append(info)
    return Page(moment(place), {name: tuple(many) for name, many in found.items()})


@st.composite
def scrapes(draw: Callable[..., list[Interval]]) -> tuple[Page, ...]:
    count = draw(st.integers(2, 6))
    engines = draw(st.integers(1, 2))
    processes = [Process() for _ in range(engines)]
    pages = []
    for place in range(count):
        intervals = draw(st.lists(INTERVALS, min_size=engines, max_size=engines))
        processes = [advance(p, i) for p, i in zip(processes, intervals, strict=True)]
        copies = [
            replace(
                p,
                counters=dict(p.counters),
                buckets={k: list(v) for k, v in p.buckets.items()},
                sums=dict(p.sums),
            )
            for p in processes
        ]
        pages.append(scraped(place, list(zip(copies, intervals, strict=True))))
    return tuple(pages)


def sound(seen: Observation) -> None:
    for pod in seen.pods.values():
        for signal, number in pod.numbers.items():
            if isinstance(number, Measured):
                assert math.isfinite(number.value), signal
                assert number.value >= 0 or signal in SIGNED, signal
        for signal, counted in pod.histograms.items():
            if isinstance(counted, Measured):
                assert_counted(signal, counted.value)
        if isinstance(pod.pool, Measured):
            assert pod.pool.value.blocks > 0


def assert_counted(signal: Signal, histogram: Histogram) -> None:
    assert all(math.isfinite(count) and count >= 0 for count in histogram.counts), signal
    assert math.isfinite(histogram.total), signal
    assert histogram.total >= 0, signal


def judged(evidence: Evidence) -> None:
    """Look at evidence as the operator does; every number that comes out must be one."""
    sound(evidence.burn)
    sound(evidence.sizing)
    found = consult(evidence, policy_in(""), None)
    if found.advice is not None:
        assert math.isfinite(found.advice.value)
        assert found.advice.value >= 1
    assert "nan" not in found.diagnosis.line().lower().split()


@settings(deadline=None, max_examples=200)
@given(scrapes(), st.sampled_from([None, timedelta(seconds=15), timedelta(minutes=5)]))
def test_saved_pages_of_any_history_give_sound_numbers(
    pages: tuple[Page, ...], interval: timedelta | None
) -> None:
    evidence, _ = evidence_of({"a": pages}, policy_in("").trigger, interval)

    judged(evidence)


INTERVALS_SECONDS = (15, 30, 45, 60)
RESTARTS = ((), (-150.0,), (-200.0, -190.0, -30.0))
MOMENTS = [timedelta(0), timedelta(seconds=7), timedelta(seconds=52), timedelta(minutes=2)]


def seen_every(curve: Curve, seconds: int, offset: int) -> Curve:
    """Return a curve as a scraper with an interval of its own sees it."""
    return lambda t: curve(t) if (round(t) + offset * 15) % seconds == 0 else None


def restarting(curve: Curve, restarts: tuple[float, ...]) -> Curve:
    """Return a counter that begins again from 0 at each restart."""

    def value(t: float) -> float | None:
        last = max((r for r in restarts if r <= t), default=None)
        now, then = curve(t), curve(last) if last is not None else 0.0
        return None if now is None or then is None else now - then

    return value


@pytest.fixture(scope="module")
def odd_scrapers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A real Prometheus with scrape intervals from 15 to 60 s, offsets, and replicas that restart."""
    directory = tmp_path_factory.mktemp("odd-scrapers")
    tape = Tape(END, length=timedelta(minutes=12))
    for pod, seconds, offset, restarts in cases():
        target = {"namespace": NAMESPACE, "pod": pod, "instance": f"{pod}:8000", "job": "vllm"}
        for name, labels, curve in STEADY.curves():
            is_gauge = name in ("vllm:num_requests_running", "vllm:num_requests_waiting", STEADY.usage_name)
            exported = curve if is_gauge else restarting(curve, restarts)
            tape.add(name, target | STEADY.own | labels, seen_every(exported, seconds, offset))
        tape.add(
            "vllm:cache_config_info",
            target | INFO | {"engine": "0"},
            seen_every(lambda _: 1.0, seconds, offset),
        )
    tape.write(directory)
    with PrometheusServer(directory) as server:
        yield server


def cases() -> Iterator[tuple[str, int, int, tuple[float, ...]]]:
    for seconds in INTERVALS_SECONDS:
        for offset in range(seconds // 15):
            for number, restarts in enumerate(RESTARTS):
                yield f"every-{seconds}-{offset}-{number}", seconds, offset, restarts


@pytest.mark.parametrize("before", MOMENTS, ids=str)
async def test_prometheus_gives_sound_numbers_however_it_scraped(
    odd_scrapers: PrometheusServer, before: timedelta
) -> None:
    asked = source(odd_scrapers.url, END - before)
    pods = [PodKey(NAMESPACE, pod) for pod, *_ in cases()]

    seen = [
        await asked.observe(pods, Look(timedelta(minutes=minutes), hold))
        for minutes in (1, 2, 5, 10)
        for hold in (timedelta(0), timedelta(minutes=2))
    ]
    asked.close()

    for one in seen:
        judged(Evidence(one, one, policy_in("").trigger))
    measured = [pod.number(Signal.PREEMPTIONS_PER_REQUEST_HELD) for one in seen for pod in one.pods.values()]
    assert sum(isinstance(one, Measured) for one in measured) > len(measured) / 2
