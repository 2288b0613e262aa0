"""Reconstruct `/metrics` of other vLLM versions and set-ups from what was recorded of 0.32.0.

    python tests/engines/derive_generations.py

writes `tests/data/vllm/generations`: for each generation a page before and one in thrash. Values are
those of the recorded pages; names, labels, buckets and what is missing are as that version's source
declares them. Each page says in its head that it is no recording, and where each name comes from.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

DATA = Path(__file__).parent.parent / "data" / "vllm"
FOLDER = DATA / "generations"
RECORDED = {"before": "metrics-idle.txt", "thrash": "metrics-thrash.txt"}
"""The recorded page behind each of a generation's two."""

_SERIES = re.compile(r"^([\w:]+?)(_bucket|_sum|_count)?(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
INFO = "vllm:cache_config_info"
USAGE, OLD_USAGE = "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"
QUERIES, OLD_QUERIES = "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"
HITS, OLD_HITS = "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"
GAPS, OLD_GAPS = "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"
READ = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    USAGE,
    QUERIES,
    HITS,
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:iteration_tokens_total",
    "vllm:request_params_max_tokens",
    "vllm:time_to_first_token_seconds",
    GAPS,
    "vllm:e2e_request_latency_seconds",
    "vllm:request_prefill_time_seconds",
    INFO,
)
"""The recorded families that a page is made of; those that nothing reads are left out."""
PROCESS = ("process_start_time_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes")

V0 = "vllm/engine/metrics.py (0.8, class Metrics)"
V1_08 = "vllm/v1/metrics/loggers.py (0.8, class PrometheusStatLogger)"
V1_09 = "vllm/v1/metrics/loggers.py (0.9.1, class PrometheusStatLogger)"
V1_10 = "vllm/v1/metrics/loggers.py (0.10.0, class PrometheusStatLogger)"
V1_11 = "vllm/v1/metrics/loggers.py (0.11.0, class PrometheusStatLogger)"
V1_32 = "recorded from 0.32.0"
OLD_LABELS = "vllm-project/vllm issue 16560 (0.8)"
LABELS_11 = "vllm-project/vllm issue 28924 (0.11.0)"
UNKNOWN_BLOCKS = "vllm-project/vllm issues 15719 and 16560 (V1 of 0.8: its front end never learns the number)"
SUMMED = "vllm/v1/engine/core_client.py (0.32: num_gpu_blocks is the sum over engines)"
PROCESS_LABEL = "prometheus_client/multiprocess.py (a gauge without a mode gets the label pid)"
MULTIPROCESS = "recorded from 0.32.0 with --api-server-count 2: no process_ series"

_INFO_08 = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "is_attention_free",
    "num_cpu_blocks",
    "num_gpu_blocks",
    "num_gpu_blocks_override",
    "sliding_window",
)
"""Labels of the pool in 0.8 that 0.32 has too."""
_INFO_11 = (*_INFO_08, "kv_cache_memory_bytes", "mamba_cache_dtype")
_ANSWERS = frozenset({"stop", "length", "abort"})
"""Values of `finished_reason` up to 0.11."""
_TOP_V0 = {
    "vllm:time_to_first_token_seconds": 10.0,
    GAPS: 2.5,
    "vllm:e2e_request_latency_seconds": 60.0,
    "vllm:request_prefill_time_seconds": 60.0,
    "vllm:iteration_tokens_total": 4096.0,
}
"""Top bounds of V0's histograms."""


@dataclass(frozen=True)
class Generation:
    """How a version, in one set-up, exports what 0.32.0 exports otherwise."""

    stem: str
    what: str
    source: str
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where a name comes from that `source` does not show."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Its names for a recorded family; none: it has no such family."""
    own: tuple[str, ...] = ("engine", "model_name")
    """The labels that its series have of these two."""
    info: tuple[str, ...] | None = None
    """Labels of the pool, without `engine`; None: as recorded."""
    info_has_engine: bool = True
    blocks: str = "150"
    extra: tuple[str, ...] = ()
    """Gauges that it has beside the recorded, all 0."""
    answers: frozenset[str] = _ANSWERS
    top: Mapping[str, float] = field(default_factory=dict)
    """Top bounds of its histograms, by recorded family."""
    lazy: bool = False
    """A series appears with the first thing that it counts."""
    process: bool = True
    """Exports series of its process."""
    by_process: tuple[str, ...] = ()
    """Families of which each of two API servers exports a copy."""
    engines: int = 1
    statistics: bool = True


_OLD = {USAGE: (OLD_USAGE,), QUERIES: (OLD_QUERIES,), HITS: (OLD_HITS,), GAPS: (OLD_GAPS,)}
_BOTH = {USAGE: (USAGE, OLD_USAGE), QUERIES: (QUERIES, OLD_QUERIES), HITS: (HITS, OLD_HITS)}
_RECORDED_ANSWERS = _ANSWERS | {"error", "repetition"}

GENERATIONS = (
    Generation(
        "v0-0.8",
        "V0 engine of 0.8, front end in a process of its own (the default)",
        V0,
        sources={INFO: OLD_LABELS},
        names={**_OLD, QUERIES: (), HITS: ()},
        own=("model_name",),
        info=_INFO_08,
        info_has_engine=False,
        extra=("vllm:num_requests_swapped", "vllm:cpu_cache_usage_perc"),
        top=_TOP_V0,
        lazy=True,
        process=False,
    ),
    Generation(
        "v1-0.8.0",
        "V1 engine of 0.8.0: no label engine, number of blocks unknown",
        V1_08,
        sources={INFO: f"{OLD_LABELS}; {UNKNOWN_BLOCKS}"},
        names=_OLD,
        own=("model_name",),
        info=_INFO_08,
        info_has_engine=False,
        blocks="None",
    ),
    Generation(
        "v1-0.8.5",
        "V1 engine of 0.8.5: label engine, number of blocks unknown",
        V1_08,
        sources={INFO: f"{OLD_LABELS}; {UNKNOWN_BLOCKS}"},
        names=_OLD,
        info=_INFO_08,
        info_has_engine=False,
        blocks="None",
    ),
    Generation(
        "v1-0.9.1",
        "V1 engine of 0.9.1: old names, number of blocks known",
        V1_09,
        sources={INFO: OLD_LABELS},
        names=_OLD,
        info=_INFO_08,
    ),
    Generation(
        "v1-0.10.0",
        "V1 engine of 0.10.0: old and new names",
        V1_10,
        sources={INFO: LABELS_11},
        names={**_BOTH, GAPS: (OLD_GAPS,)},
        info=_INFO_11,
    ),
    Generation(
        "v1-0.10.0-servers",
        "the same with --api-server-count 2: a copy of the new usage for each server",
        V1_10,
        sources={INFO: LABELS_11, USAGE: f"{V1_10}; {PROCESS_LABEL}"},
        names={**_BOTH, GAPS: (OLD_GAPS,)},
        info=_INFO_11,
        process=False,
        by_process=(USAGE,),
    ),
    Generation(
        "v1-0.11.0",
        "V1 engine of 0.11.0: new names, both of the time between tokens",
        V1_11,
        sources={INFO: LABELS_11},
        names={GAPS: (GAPS, OLD_GAPS)},
        info=_INFO_11,
    ),
    Generation(
        "v1-0.11.0-servers",
        "the same with --api-server-count 2: usage only as a copy for each server",
        V1_11,
        sources={INFO: LABELS_11, USAGE: f"{V1_11}; {PROCESS_LABEL}"},
        names={GAPS: (GAPS, OLD_GAPS)},
        info=_INFO_11,
        process=False,
        by_process=(USAGE,),
    ),
    Generation("v1-0.32.0", "V1 engine of 0.32.0", V1_32, answers=_RECORDED_ANSWERS),
    Generation(
        "v1-0.32.0-servers",
        "the same with --api-server-count 2",
        V1_32,
        sources=dict.fromkeys(PROCESS, MULTIPROCESS),
        answers=_RECORDED_ANSWERS,
        process=False,
    ),
    Generation(
        "v1-0.32.0-engines",
        "the same with two data-parallel engines behind one front end",
        V1_32,
        sources={INFO: f"{V1_32}; {SUMMED}"},
        answers=_RECORDED_ANSWERS,
        blocks="300",
        engines=2,
    ),
    Generation("v1-0.32.0-no-stats", "the same with --disable-log-stats", V1_32, statistics=False),
)


@dataclass(frozen=True)
class Series:
    """One line of a page."""

    family: str
    suffix: str
    labels: Mapping[str, str]
    value: str

    @property
    def bound(self) -> float:
        """Upper bound of a bucket; minus infinity for what is none."""
        return float(self.labels.get("le", -inf))

    def line(self, name: str, labels: Mapping[str, str]) -> str:
        text = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        return f"{name}{self.suffix}{f'{{{text}}}' if text else ''} {self.value}\n"


def recorded(text: str) -> tuple[dict[str, str], list[Series]]:
    """Return the type of each family, and every series."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    found = []
    for line in text.splitlines():
        match = _SERIES.match(line)
        if match is None:
            continue
        family, suffix = match[1], match[2] or ""
        if types.get(family) != "histogram":
            family, suffix = family + suffix, ""
        found.append(Series(family, suffix, dict(_LABEL.findall(match[3] or "")), match[4]))
    return types, found


def page(generation: Generation, text: str) -> str:
    """Return a recorded page as a generation would have exported it."""
    types, series = recorded(text)
    counted = _counted(series) if generation.lazy else series
    lines: dict[tuple[str, str], list[str]] = {}
    for one in (one for one in counted if _is_exported(generation, one)):
        for name in generation.names.get(one.family, (one.family,)):
            lines.setdefault((name, types[one.family]), []).extend(_lines(generation, one, name))
    for name in generation.extra:
        labels = {key: "tiny" for key in generation.own if key == "model_name"}
        lines[name, "gauge"] = [Series(name, "", labels, "0.0").line(name, labels)]
    body = [f"# TYPE {name} {kind}\n{''.join(many)}" for (name, kind), many in lines.items()]
    return _head(generation, [name for name, _ in lines]) + "".join(body)


def _is_exported(generation: Generation, one: Series) -> bool:
    if one.family in PROCESS:
        return generation.process
    if one.family not in READ or not generation.statistics:
        return False
    if one.labels.get("finished_reason", "stop") not in generation.answers:
        return False
    return one.bound <= generation.top.get(one.family, inf) or one.bound == inf


def _counted(series: list[Series]) -> list[Series]:
    """Return the series without histograms that observed nothing and finish reasons that never were."""
    empty = {one.family for one in series if one.suffix == "_count" and float(one.value) == 0}
    return [
        one
        for one in series
        if one.family not in empty
        and not (one.family == "vllm:request_success_total" and float(one.value) == 0)
    ]


def _lines(generation: Generation, one: Series, name: str) -> Iterator[str]:
    if one.family == INFO:
        yield from (one.line(name, labels) for labels in _info(generation, one))
        return
    kept = {k: v for k, v in one.labels.items() if k in generation.own or k not in ("engine", "model_name")}
    for engine in range(generation.engines) if "engine" in kept else ("",):
        labels = kept | ({"engine": str(engine)} if "engine" in kept else {})
        for process in ("71", "72") if name in generation.by_process else ("",):
            yield one.line(name, labels | ({"pid": process} if process else {}))


def _info(generation: Generation, one: Series) -> Iterator[dict[str, str]]:
    kept = generation.info or tuple(one.labels)
    labels = {key: value for key, value in one.labels.items() if key in kept and key != "engine"}
    labels["num_gpu_blocks"] = generation.blocks
    for engine in range(generation.engines):
        yield labels | ({"engine": str(engine)} if generation.info_has_engine else {})


def _head(generation: Generation, names: list[str]) -> str:
    of = "\n".join(f"#   {name}: {_source(generation, name)}" for name in names)
    return (
        f"# vLLM, {generation.what}.\n"
        "# Reconstructed by tests/engines/derive_generations.py, not recorded: names, labels and buckets\n"
        "# are the version's, values are those of a run of vLLM 0.32.0 (CPU build). Families that nothing\n"
        "# reads are left out. Licence: Apache-2.0, as vLLM's.\n"
        f"# Where each name comes from:\n{of}\n"
    )


def _source(generation: Generation, name: str) -> str:
    if name in PROCESS:
        return "prometheus_client/process_collector.py"
    return generation.sources.get(name, generation.source)


def pages() -> dict[Path, str]:
    """Return every page by its file."""
    return {
        FOLDER / f"{generation.stem}-{moment}.txt": page(generation, (DATA / file).read_text())
        for generation in GENERATIONS
        for moment, file in RECORDED.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
