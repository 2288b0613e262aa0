"""What the engine counts: each step's tokens, latencies and preemptions, as vLLM's v1/metrics does.

Counted at the same moments as there (stats.py and loggers.py, 0.32): a preemption when the preempted
request's next token comes out, queue and prefill time at the first admission only, recomputed tokens never.
"""

import gc
import math
import os
import platform
import resource
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, product
from pathlib import Path

from lab.engine.requests import FinishReason
from lab.engine.scheduler import Output, PrefixCounts, Scheduler
from lab.engine.settings import Faults

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Number:
    """A counter or a gauge."""

    value: float = 0.0
    created: float = field(default_factory=time.time)

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class Histogram:
    """Observations counted in buckets; a summary is one without buckets."""

    __slots__ = ("bounds", "counts", "created", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.created = time.time()

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Family:
    """One metric family: its samples by label values, and how they are written."""

    def __init__(self, name: str, kind: str, text: str, bounds: tuple[float, ...] = ()) -> None:
        self.name, self.kind, self.text, self.bounds = name, kind, text, bounds
        self.numbers: dict[Labels, Number] = {}
        self.histograms: dict[Labels, Histogram] = {}

    def number(self, **labels: str) -> Number:
        """Return the counter or gauge with these labels, made on first use."""
        return self.numbers.setdefault(ordered(labels), Number())

    def histogram(self, **labels: str) -> Histogram:
        """Return the histogram or summary with these labels, made on first use."""
        key = ordered(labels)
        if key not in self.histograms:
            self.histograms[key] = Histogram(self.bounds)
        return self.histograms[key]

    def lines(self, *, as_nan: bool = False) -> Iterator[str]:
        """Yield the lines of the family and of its `_created` companion; `as_nan` makes all values NaN."""
        yield from self._head(self.name, self.kind)
        for suffix, labels, value in self._samples():
            yield f"{self.name}{suffix}{written(labels)} {spelt(math.nan if as_nan else value)}"
        samples = {**self.numbers, **self.histograms}
        if self.kind == "gauge" or not samples or not self.name.startswith(("vllm:", "http_")):
            return
        name = (self.name.removesuffix("_total") if self.kind == "counter" else self.name) + "_created"
        yield from self._head(name, "gauge")
        for labels, sample in samples.items():
            yield f"{name}{written(labels)} {spelt(sample.created)}"

    def _head(self, name: str, kind: str) -> tuple[str, str]:
        return f"# HELP {name} {self.text}", f"# TYPE {name} {kind}"

    def _samples(self) -> Iterator[tuple[str, Labels, float]]:
        for labels, number in self.numbers.items():
            yield "", labels, number.value
        for labels, histogram in self.histograms.items():
            counts = list(accumulate(histogram.counts))
            if self.bounds:
                for bound, count in zip((*self.bounds, math.inf), counts, strict=True):
                    yield "_bucket", ordered({**dict(labels), "le": spelt(bound)}), count
            yield "_count", labels, counts[-1]
            yield "_sum", labels, histogram.total


class Page:
    """All families of one engine, in the order of the recorded page."""

    def __init__(self, model_name: str, max_model_len: int, rank: int = 0) -> None:
        self.families: dict[str, Family] = {}
        fixed = {"engine": str(rank), "model_name": model_name}
        for name, kind, labels, bounds, text in family_rows():
            family = Family(name, kind, text, _bounds(bounds, max_model_len))
            self.families[name] = family
            make = family.histogram if kind == "histogram" else family.number
            for combination in _combinations(labels, fixed):
                make(**combination)

    def __getitem__(self, name: str) -> Family:
        return self.families[name]

    def text(self, faults: Faults) -> str:
        """Return the page behind what the process reports of itself, with the faults that metrics have."""
        lines: list[str] = []
        for family in (*process_families(), *self.families.values()):
            if family.name not in faults.drop_metrics:
                lines.extend(family.lines(as_nan=family.name in faults.nan_metrics))
        return "\n".join(lines) + "\n"


def family_rows() -> list[list[str]]:
    text = Path(__file__).with_name("families.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


def ordered(labels: Mapping[str, str]) -> Labels:
    """Return the labels sorted by name, as prometheus_client writes them."""
    return tuple(sorted(labels.items()))


def written(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = (
        (name, value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")) for name, value in labels
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


def spelt(value: float) -> str:
    """Return a number as Go and prometheus_client spell it."""
    if value != value:  # noqa: PLR0124
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    point = text.find(".")
    if value > 0 and point > 6:
        mantissa = f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{point - 1}"
    return text


def one_two_five(maximum: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, … up to `maximum`, the buckets of vLLM's token counts."""
    bounds: list[float] = []
    for exponent in range(10):
        for mantissa in (1, 2, 5):
            if mantissa * 10**exponent > maximum:
                return tuple(bounds)
            bounds.append(mantissa * 10**exponent)
    return tuple(bounds)


def _bounds(text: str, max_model_len: int) -> tuple[float, ...]:
    if text == "up to max_model_len":
        return one_two_five(max_model_len)
    return tuple(float(bound) for bound in text.split(",") if bound)


def _combinations(labels: str, fixed: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the label sets that exist from the start: none where a value is only known later."""
    if labels == "*":
        return []
    values: list[list[tuple[str, str]]] = []
    for label in filter(None, labels.split(",")):
        name, _, listed = label.partition("=")
        if name not in fixed and not listed:
            return []
        values.append([(name, value) for value in (listed.split("|") if listed else [fixed[name]])])
    return [dict(combination) for combination in product(*values)]


def process_families() -> list[Family]:
    """Return what prometheus_client reports of its own process and interpreter."""
    families = []
    for key, name, text in (
        ("collected", "python_gc_objects_collected_total", "Objects collected during gc"),
        ("uncollectable", "python_gc_objects_uncollectable_total", "Uncollectable objects found during GC"),
        ("collections", "python_gc_collections_total", "Number of times this generation was collected"),
    ):
        families.append(Family(name, "counter", text))
        for generation, numbers in enumerate(gc.get_stats()):
            families[-1].number(generation=str(generation)).value = numbers[key]
    families.append(Family("python_info", "gauge", "Python platform information"))
    version = platform.python_version()
    parts = dict(zip(("major", "minor", "patchlevel"), version.split("."), strict=True))
    implementation = platform.python_implementation()
    families[-1].number(version=version, implementation=implementation, **parts).value = 1.0
    stat = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    # Fields of proc(5) counted from 3: utime 14, stime 15, starttime 22, vsize 23, rss 24.
    started, used = _boot_time() + int(stat[19]) / ticks, (int(stat[11]) + int(stat[12])) / ticks
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for name, kind, text, value in (
        ("virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", stat[20]),
        (
            "resident_memory_bytes",
            "gauge",
            "Resident memory size in bytes.",
            int(stat[21]) * resource.getpagesize(),
        ),
        ("start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", started),
        ("cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", used),
        ("open_fds", "gauge", "Number of open file descriptors.", len(os.listdir("/proc/self/fd"))),
        ("max_fds", "gauge", "Maximum number of open file descriptors.", files),
    ):
        families.append(Family(f"process_{name}", kind, text))
        families[-1].number().value = float(value)
    return families


def _boot_time() -> float:
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


@dataclass(slots=True)
class Times:
    """Moments in the life of one request, monotonic seconds; 0 until they happen."""

    arrived_at: float
    scheduled_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0


class EngineMetrics:
    """The `/metrics` page of one engine."""

    def __init__(
        self,
        model_name: str,
        max_model_len: int,
        cache_labels: Mapping[str, str],
        faults: Faults = Faults(),  # noqa: B008 - frozen
        rank: int = 0,
    ) -> None:
        self._labels = {"engine": str(rank), "model_name": model_name}
        self._faults = faults
        self.page = Page(model_name, max_model_len, rank)
        self.page["vllm:cache_config_info"].number(**cache_labels).value = 1.0
        self._number("engine_sleep_state", sleep_state="awake").value = 1.0
        self._prefix_seen = PrefixCounts()
        self._external_seen = PrefixCounts()
        self.generated = self._number("generation_tokens_total")
        self.prompted = self._number("prompt_tokens_total")
        self._preemptions = self._number("num_preemptions_total")
        self._inter_token = self._histogram("inter_token_latency_seconds")
        self._first_token = self._histogram("time_to_first_token_seconds")
        self._iteration_tokens = self._histogram("iteration_tokens_total")

    def record_step(self, outputs: list[tuple[Output, Times]], now: float) -> None:
        """Count the tokens of one step, which ended at `now`."""
        computed = 0
        preemptions = 0
        observe_gap = self._inter_token.observe
        for output, times in outputs:
            preemptions += output.preemptions
            if times.first_token_at:
                observe_gap(now - times.last_token_at)
            else:
                computed += self._record_first_token(output, times, now)
            times.last_token_at = now
            if output.finish_reason is not None:
                self._record_finished(output, times, now)
        self._preemptions.value += preemptions
        self.generated.value += len(outputs)
        if outputs:
            self._iteration_tokens.observe(computed + len(outputs))

    def record_scheduler(self, scheduler: Scheduler) -> None:
        """Take over the scheduler's state, as after a step."""
        waiting = len(scheduler.waiting)
        self._number("num_requests_running").value = len(scheduler.running)
        self._number("num_requests_waiting").value = waiting
        self._number("num_requests_waiting_by_reason", reason="capacity").value = waiting
        self._number("kv_cache_usage_perc").value = scheduler.pool.usage
        hits = self._count_lookups("", self._prefix_seen, scheduler.prefix)
        self._number("prompt_tokens_cached_by_source_total", source="device").add(hits)
        hits = self._count_lookups("external_", self._external_seen, scheduler.external)
        self._number("prompt_tokens_cached_by_source_total", source="host").add(hits)

    def _count_lookups(self, which: str, before: PrefixCounts, now: PrefixCounts) -> int:
        """Count what was looked up and found since the last time; return what was found."""
        queries, hits = now.queries - before.queries, now.hits - before.hits
        before.queries, before.hits = now.queries, now.hits
        self._number(f"{which}prefix_cache_queries_total").add(queries)
        self._number(f"{which}prefix_cache_hits_total").add(hits)
        return hits

    def record_http(self, method: str, handler: str, status: int, seconds: float, size: int) -> None:
        """Count one answered HTTP request; `size` is the length of its body in bytes."""
        page = self.page
        page["http_requests_total"].number(handler=handler, method=method, status=f"{status // 100}xx").add()
        page["http_request_size_bytes"].histogram(handler=handler).observe(size)
        page["http_response_size_bytes"].histogram(handler=handler).observe(0)
        page["http_request_duration_highr_seconds"].histogram().observe(seconds)
        page["http_request_duration_seconds"].histogram(handler=handler, method=method).observe(seconds)

    def record_rejection(self, reason: str) -> None:
        name = self._labels["model_name"]
        self.page["vllm:admission_rejections_total"].number(model_name=name, reason=reason).add()

    def text(self) -> str:
        return self.page.text(self._faults)

    def _record_first_token(self, output: Output, times: Times, now: float) -> int:
        """Count the prompt along with its first token; return how many prompt tokens were computed."""
        request = output.request
        cached, loaded = request.cached_prompt_tokens, request.loaded_prompt_tokens
        computed = request.prompt_length - cached - loaded
        self.prompted.add(request.prompt_length)
        self._number("prompt_tokens_by_source_total", source="local_compute").add(computed)
        self._number("prompt_tokens_by_source_total", source="local_cache_hit").add(cached)
        self._number("prompt_tokens_by_source_total", source="external_kv_transfer").add(loaded)
        self._number("prompt_tokens_cached_total").add(cached + loaded)
        self._first_token.observe(now - times.arrived_at)
        times.first_token_at = now
        return computed

    def _record_finished(self, output: Output, times: Times, now: float) -> None:
        request = output.request
        decode = times.last_token_at - times.first_token_at
        generated = request.output_length
        self._number("request_success_total", finished_reason=str(output.finish_reason)).add()
        observations = {
            "e2e_request_latency_seconds": now - times.arrived_at,
            "request_queue_time_seconds": times.scheduled_at - times.arrived_at,
            "request_prefill_time_seconds": times.first_token_at - times.scheduled_at,
            "request_inference_time_seconds": times.last_token_at - times.scheduled_at,
            "request_decode_time_seconds": decode,
            "request_num_preemptions": request.preemptions,
            "request_prefill_kv_computed_tokens": request.prompt_length
            - request.cached_prompt_tokens
            - request.loaded_prompt_tokens,
            "request_prompt_tokens": request.prompt_length,
            "request_generation_tokens": generated,
            "request_max_num_generation_tokens": generated,
            "request_params_n": 1,
            "request_params_max_tokens": request.max_tokens,
            "request_time_per_output_token_seconds": decode / (generated - 1) if generated > 1 else 0.0,
        }
        for name, value in observations.items():
            self._histogram(name).observe(value)

    def record_abort(self) -> None:
        self._number("request_success_total", finished_reason=FinishReason.ABORT.value).add()

    def _number(self, name: str, **labels: str) -> Number:
        return self.page[f"vllm:{name}"].number(**self._labels, **labels)

    def _histogram(self, name: str) -> Histogram:
        return self.page[f"vllm:{name}"].histogram(**self._labels)
