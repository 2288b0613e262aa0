"""What vLLM exports: which of its series carries which signal.

Names and labels were recorded from vLLM 0.32.0 (`tests/data/vllm`); their history is from reading
the releases from 0.5.5 to 0.33.0 (`v1/metrics/loggers.py`, before that `engine/metrics.py`). Counters are
declared without `_total` and exposed with it, in every version.
"""

from __future__ import annotations

from types import MappingProxyType

from kvmedic.engines.signal_sources import (
    COUNTS_AGREE,
    NEVER_COMPARED,
    Across,
    ChangeSource,
    CounterSource,
    GaugeSource,
    HeldRatioSource,
    HeldTailSource,
    HeldWaitSource,
    HistogramSource,
    Over,
    Part,
    PoolSource,
    SignalTable,
    StartSource,
    VersionPage,
)
from kvmedic.engines.vllm_log import POOL_LINES
from kvmedic.model.evidence import Signal

_UNANSWERED = frozenset({"abort", "error"})
"""Values of `finished_reason` without an answer; `stop`, `length` and `repetition` (0.32) have one."""

_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""A ratio, despite the name. The new name since 0.9.2; both until 0.10.2, the old one hidden in 0.11."""

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_PREEMPTIONS = CounterSource(("vllm:num_preemptions_total",))
_GAPS = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
_ENDED = CounterSource(("vllm:request_success_total",), begins_unseen=True)
_FINISHED = CounterSource(
    ("vllm:request_success_total",),
    Part("finished_reason", _UNANSWERED, complement=True),
    begins_unseen=True,
)

VLLM_SIGNALS = SignalTable(
    signals=MappingProxyType(
        {
            Signal.PREEMPTIONS: _PREEMPTIONS,
            Signal.PREEMPTIONS_PER_REQUEST_HELD: HeldRatioSource(_PREEMPTIONS, _FINISHED, floor=1),
            Signal.SILENT_SECONDS_HELD: HeldWaitSource(_WAITING, _ENDED, (_RUNNING, _WAITING), floor=1),
            Signal.STALLS_PER_REQUEST_HELD: HeldTailSource(_GAPS, "2.5", _FINISHED, floor=1),
            Signal.REQUESTS_FINISHED: _FINISHED,
            Signal.REQUESTS_ABORTED: CounterSource(
                ("vllm:request_success_total",), Part("finished_reason", _UNANSWERED), begins_unseen=True
            ),
            Signal.REQUESTS_IN_FLIGHT_CHANGE: ChangeSource((_RUNNING, _WAITING)),
            Signal.RUNNING_MEAN: GaugeSource((_RUNNING,), Over.MEAN, Across.SUM, COUNTS_AGREE),
            Signal.RUNNING_MAX: GaugeSource((_RUNNING,), Over.MAX, Across.SUM, COUNTS_AGREE),
            Signal.RUNNING_LOW: GaugeSource((_RUNNING,), Over.LOW, Across.SUM, COUNTS_AGREE),
            Signal.WAITING_MEAN: GaugeSource((_WAITING,), Over.MEAN, Across.SUM, COUNTS_AGREE),
            Signal.WAITING_AT_END: GaugeSource((_WAITING,), Over.LAST, Across.SUM, NEVER_COMPARED),
            Signal.KV_CACHE_USAGE_MEAN: GaugeSource(_USAGE, Over.MEAN, Across.MEAN),
            Signal.KV_CACHE_USAGE_MAX: GaugeSource(_USAGE, Over.MAX, Across.LARGEST),
            Signal.KV_CACHE_USAGE_DEVIATION: GaugeSource(_USAGE, Over.DEVIATION, Across.ROOT_MEAN_SQUARE),
            Signal.PROMPT_TOKENS: CounterSource(("vllm:prompt_tokens_total",)),
            Signal.GENERATED_TOKENS: CounterSource(("vllm:generation_tokens_total",)),
            Signal.PREFIX_CACHE_QUERIES: CounterSource(
                ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
            ),
            Signal.PREFIX_CACHE_HITS: CounterSource(
                ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
            ),
            Signal.STARTED_SECONDS: StartSource("process_start_time_seconds"),
            Signal.PROMPT_LENGTH: HistogramSource(("vllm:request_prompt_tokens",)),
            Signal.OUTPUT_LENGTH: HistogramSource(("vllm:request_generation_tokens",)),
            Signal.OUTPUT_LIMIT: HistogramSource(("vllm:request_params_max_tokens",)),
            Signal.INTER_TOKEN_SECONDS: HistogramSource(_GAPS),
            Signal.TIME_TO_FIRST_TOKEN_SECONDS: HistogramSource(("vllm:time_to_first_token_seconds",)),
            Signal.PREFILL_SECONDS: HistogramSource(("vllm:request_prefill_time_seconds",)),
            Signal.E2E_SECONDS: HistogramSource(("vllm:e2e_request_latency_seconds",)),
        }
    ),
    presence=_RUNNING,
    in_flight=(_RUNNING, _WAITING),
    in_flight_optional=("vllm:num_requests_swapped",),
    ended=_ENDED,
    pool=PoolSource(
        name="vllm:cache_config_info",
        blocks="num_gpu_blocks",
        block_tokens=("effective_attention_block_size", "block_size"),
        engine_tokens="kv_cache_size_tokens",
        cache_dtype="cache_dtype",
        null_blocks=1,
        caches_prefixes="enable_prefix_caching",
        window="sliding_window",
        logged=POOL_LINES,
    ),
    version=VersionPage(path="/version", field="version"),
    steps=CounterSource(("vllm:iteration_tokens_total_count",), begins_unseen=True),
    engine_label="engine",
    process_label="pid",
    model_label="model_name",
    own_labels=frozenset({"engine", "model_name", "finished_reason", "le", "pid"}),
)
"""Every signal of vLLM. Notes on single ones:

* `process_start_time_seconds` is absent with more than one API server process, and on V0, whose front
  end is a process of its own by default (0.8, `engine/metrics.py`).
* With several API server processes a gauge that is declared without a mode has a series for each of
  them, by the label `pid` that prometheus_client adds: `kv_cache_usage_perc` in 0.10 and 0.11.0
  (`v1/metrics/loggers.py`; "mostrecent", without the label, later). These are copies, some older than others.
* V0 exports a series once there is something to count: the histograms and `request_success_total` come
  with the first finished request, each `finished_reason` with the first of its kind (`engine/metrics.py`).
* Gaps are counted up to 1 and 2.5 s, not 2 s (`v1/metrics/loggers.py`, 0.6 to 0.33).
* Prefix cache counters are in tokens, in V1 up to 0.8 in blocks; only their ratio is used. V0 had hit-rate
  gauges only, which are not read.
* `num_requests_swapped` existed in V0 alone (gone in 0.9.1).
* V1 up to 0.8 writes `num_gpu_blocks="None"`: its front end does not learn the number of blocks before
  0.9 (`log_engine_initialized`). Its log gives the pool in tokens.
* One null block per engine: V1 takes it out of the pool (`v1/core/block_pool.py`). V0 has none; its
  pools read one block smaller than they are, because the version is not always known and a pool
  that is read too small never lets a cap grow too large.
* `GET /version` answers `{"version":"0.32.0"}` on the port of the metrics, without the API key that
  `--api-key` asks for elsewhere: that guards paths under `/v1` (`entrypoints/openai/api_server.py`). Builds
  from a source tree say `0.9.2.dev12+gabc`, such on CPU `0.32.0+cpu`.
* `sliding_window` is the model's window in tokens, of models that mix such layers with full ones too, and
  `None` without one or with `--disable-sliding-window` (`CacheConfig`, from 0.8 on).
* With data-parallel engines `num_gpu_blocks` is the sum over all engines of a frontend and
  `kv_cache_size_tokens` is one engine's (`v1/engine/core_client.py`).
"""
