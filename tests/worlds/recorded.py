"""Two recorded pages of a real engine as one look at a replica, without the operator's own adapters."""

from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kvmedic.model.evidence import Histogram, Measured, Observation, PodReadings, Pool, Signal

RECORDED = Path(__file__).parents[1] / "data" / "vllm"
AT = datetime(2026, 11, 21, tzinfo=UTC)

_COUNTERS = {
    Signal.PREEMPTIONS: "vllm:num_preemptions_total",
    Signal.GENERATED_TOKENS: "vllm:generation_tokens_total",
    Signal.PROMPT_TOKENS: "vllm:prompt_tokens_total",
    Signal.PREFIX_CACHE_QUERIES: "vllm:prefix_cache_queries_total",
    Signal.PREFIX_CACHE_HITS: "vllm:prefix_cache_hits_total",
    Signal.REQUESTS_FINISHED: "vllm:request_success_total",
}
_HISTOGRAMS = {
    Signal.PROMPT_LENGTH: "vllm:request_prompt_tokens",
    Signal.OUTPUT_LENGTH: "vllm:request_generation_tokens",
    Signal.INTER_TOKEN_SECONDS: "vllm:inter_token_latency_seconds",
    Signal.TIME_TO_FIRST_TOKEN_SECONDS: "vllm:time_to_first_token_seconds",
    Signal.PREFILL_SECONDS: "vllm:request_prefill_time_seconds",
    Signal.E2E_SECONDS: "vllm:e2e_request_latency_seconds",
}


def samples(page: str) -> list[Sample]:
    """Return every sample of a recorded page."""
    text = (RECORDED / page).read_text(encoding="utf-8")
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def look(first: str, last: str, *, window_seconds: float, gauges: dict[Signal, float]) -> Observation:
    """Return what happened between two pages, with the gauges that pages of two moments cannot show."""
    before, after = samples(first), samples(last)
    numbers = {signal: _increase(before, after, name) for signal, name in _COUNTERS.items()} | gauges
    held = numbers[Signal.PREEMPTIONS] / max(1.0, numbers[Signal.REQUESTS_FINISHED])
    numbers[Signal.PREEMPTIONS_PER_REQUEST_HELD] = held
    histograms = {signal: _counted(before, after, name) for signal, name in _HISTOGRAMS.items()}
    labels = next(sample.labels for sample in after if sample.name == "vllm:cache_config_info")
    pool = Pool(int(labels["num_gpu_blocks"]) - 1, int(labels["block_size"]), labels["cache_dtype"])
    readings = PodReadings(
        {signal: Measured(value, AT) for signal, value in numbers.items()},
        {signal: Measured(value, AT) for signal, value in histograms.items()},
        Measured(pool, AT),
        ("tiny",),
    )
    return Observation(AT, window_seconds, 0, {"vllm-0": readings})


def _increase(before: list[Sample], after: list[Sample], name: str) -> float:
    old, new = (sum(one.value for one in page if one.name == name) for page in (before, after))
    return new - old


def _counted(before: list[Sample], after: list[Sample], name: str) -> Histogram:
    old, new = (
        {float(one.labels["le"]): one.value for one in page if one.name == f"{name}_bucket"}
        for page in (before, after)
    )
    bounds = sorted(new)
    upto = [new[bound] - old.get(bound, 0.0) for bound in bounds]
    counts = tuple(high - low for low, high in zip([0.0, *upto], upto, strict=False))
    return Histogram(tuple(bounds[:-1]), counts, _increase(before, after, f"{name}_sum"))
