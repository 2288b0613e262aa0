"""What vLLM tells of itself: which of its series carries which signal, and the lines of its start-up log.

Names, labels and lines were recorded from vLLM 0.32.0 (`tests/data/vllm`); their history is from reading
the releases from 0.5.5 to 0.33.0 (`v1/metrics/loggers.py`, before that `engine/metrics.py`). Counters are
declared without `_total` and exposed with it, in every version.

What is kept of a log's line is a word of one form or one of a list, and short: lines hold configuration and
paths too.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from kvmedic.engines.engine_log import StartForms
from kvmedic.engines.kv_methods import METHODS
from kvmedic.model.evidence import (
    COUNTS_AGREE,
    Across,
    ChangeSource,
    CounterSource,
    GaugeSource,
    HeldRatioSource,
    HistogramSource,
    LogForms,
    Over,
    Part,
    PoolSource,
    Signal,
    SignalTable,
    SizeUnit,
    StartSource,
    VersionPage,
)

POOL_LINES = LogForms(
    sizes=(
        (re.compile(r"KV cache size: ([\d,]+) tokens"), SizeUnit.TOKENS),
        (re.compile(r"# \w+ blocks: (\d+)"), SizeUnit.BLOCKS),
    ),
    serving=re.compile(
        r"Application startup complete|Avg prompt throughput: |Received request |HTTP/1\.[01]\" \d{3}"
    ),
)
"""`# GPU blocks: 1234, # CPU blocks: 2048` on V0 and V1 up to 0.7.3, from 0.7.3 to 0.10.2 with the device's
name on V0 (`# cuda blocks: …`, `executor_base.py`); `GPU KV cache size: 1,234 tokens` on V1 from 0.8.0, from
0.30 with `CPU`, `XPU` or `GPU + host` before it (`v1/core/kv_cache_utils.py`).
After `Application startup complete` requests are taken; where that was rotated away, statistics, requests and
the access log show that they were."""

_NAMES = (
    r"Flash ?Attention(?:-\d)?|FlashInfer|XFormers|Triton(?: Attention)?|(?:Flash|Triton |Cutlass )MLA"
    r"|FlexAttention|Torch SDPA|Pallas(?: V1)?|ROCmFlashAttention|AITER(?: MLA)?"
    r"|[A-Z0-9_]*(?:ATTN|ATTENTION|MLA|FLASHINFER|XFORMERS|SDPA|PALLAS)[A-Z0-9_]*"
)
"""What computes attention; the same words stand before `backend` for experts and sampling too, with more
between: `Using FLASHINFER_TRTLLM Fp8 MoE backend out of potential backends: […]`."""

VLLM_START = StartForms(
    pool=POOL_LINES,
    begins=re.compile(r"vLLM API server version |non-default args: |args: Namespace\("),
    cache_type=re.compile(r"Using (\w{1,24}) data type to store kv cache"),
    backends=(
        re.compile(
            r"Using (?:AttentionBackendEnum\.)?(\w{1,40}) attention backend out of potential backends"
        ),
        re.compile(r"Using AttentionBackendEnum\.(\w{1,40}) backend(?:\.|\s*$)"),
        re.compile(rf"Using (?:the )?({_NAMES}) backend(?: on V1 engine)?(?:\.|\s*$)"),
    ),
    methods=tuple(re.compile(each) for method in METHODS for each in (method.log, method.denial) if each),
)
"""Notes on single ones:

* The arguments are logged first, by the API server (`utils/argparse_utils.py`, before that `api_server.py`).
* The type is named where the cache is not of the model's own type (`config/cache.py`, `config.py` of old),
  also where the checkpoint asks for it and `cache_dtype` says `auto`.
* Backends: up to 0.11.0 `Using Flash Attention backend on V1 engine.` and its kin, `Using XFormers backend.`;
  0.11.1 `Using FLASH_ATTN backend.`; later `Using FLASH_ATTN attention backend out of potential backends:
  […].`, and where a person chose it `Using AttentionBackendEnum.FLASH_ATTN backend.` (`platforms/cuda.py`).
  The CPU build names none. `Enforce eager set` is about CUDA graphs and compilation, not about attention.
"""


VLLM_REFUSALS = (
    re.compile(r"\b\w{1,40} does not support fp8 kv-cache on this device", re.IGNORECASE),
    re.compile(r"\b\w{1,40}(?: V1)? with FP8 KV cache not yet supported"),
    re.compile(
        r"(?:No valid attention backend found for|is not valid for this configuration).*"
        r"(kv_cache_dtype not supported)"
    ),
    re.compile(r"FP8 KV cache is not supported by the \w{1,40} attention backend"),
    re.compile(r"type fp8\w{1,12} not supported in this architecture"),
    re.compile(r"fp8\w{1,12} data type is not supported on CUDA arch < \d{1,3}"),
    re.compile(r"\b(?:IPEX|Torch SDPA) backend does not support FP8 KV cache"),
    re.compile(r"VLLM_USE_V1=1 is not supported with --kv-cache-dtype"),
    re.compile(r"FP8_E5M2 KV Cache on AMD GPU has not been supported yet"),
)
"""In this order:

* `FlashAttention does not support fp8 kv-cache on this device.` (`v1/attention/backends/flash_attn.py`,
  `FlashAttentionImpl`; seen on compute capability 12.0).
* `FlashAttention V1 with FP8 KV cache not yet supported`, and so `TritonMLA`, `FlashMLA`, `CutlassMLA`,
  `FlashAttnMLA`, `CPUMLAImpl` (from 0.8.0, github.com/vllm-project/vllm/pull/14221 and issues/18888).
* `No valid attention backend found for cuda with AttentionSelectorConfig(…). Reasons: {FLASH_ATTN:
  [kv_cache_dtype not supported], …}` and, where a person chose the backend, `Selected backend
  AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. Reason: ['kv_cache_dtype not
  supported']` (`platforms/cuda.py`; issues/40094 and github.com/vllm-project/recipes/issues/565). The same
  reasons at level INFO or DEBUG (`Some attention backends are not valid …`) refuse nothing.
* `FP8 KV cache is not supported by the Triton attention backend on NVIDIA GeForce RTX 3090 (compute
  capability 8.6); native FP8 (fp8e4nv) requires SM89+.` (`v1/attention/backends/triton_attn.py`).
* `type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')`:
  Triton, before vLLM asked itself (issues/26431 on compute capability 8.6, issues/13147 on RDNA3); the next
  one is Triton of old (issues/7714).
* `Torch SDPA backend does not support FP8 KV cache.` and `IPEX backend …` (V0,
  `attention/backends/torch_sdpa.py` and `ipex_attn.py`).
* `VLLM_USE_V1=1 is not supported with --kv-cache-dtype.` (0.8, `engine/arg_utils.py`).
* `FP8_E5M2 KV Cache on AMD GPU has not been supported yet.` (0.3, `config.py`)."""


VLLM_OUT_OF_MEMORY = re.compile(
    r"torch\.(?:cuda\.)?OutOfMemoryError|(?:CUDA|HIP) out of memory|CUDA error: out of memory"
    r"|Cuda failure(?: \d+)? '?out of memory"
    r"|Free memory on device .* is less than desired GPU memory utilization"
)
"""How vLLM, torch and NCCL say that a GPU's memory ran out: at start-up also that other processes hold
what the engine was to take (vLLM 0.32). `No available memory for the cache blocks` is not among them: that
engine needs a larger share, not a smaller one."""

_UNANSWERED = frozenset({"abort", "error"})
"""Values of `finished_reason` without an answer; `stop`, `length` and `repetition` (0.32) have one."""

_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""A ratio, despite the name. The new name since 0.9.2; both until 0.10.2, the old one hidden in 0.11."""

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_PREEMPTIONS = CounterSource(("vllm:num_preemptions_total",))
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
            Signal.REQUESTS_FINISHED: _FINISHED,
            Signal.REQUESTS_ABORTED: CounterSource(
                ("vllm:request_success_total",), Part("finished_reason", _UNANSWERED), begins_unseen=True
            ),
            Signal.REQUESTS_IN_FLIGHT_CHANGE: ChangeSource((_RUNNING, _WAITING)),
            Signal.RUNNING_MEAN: GaugeSource((_RUNNING,), Over.MEAN, Across.SUM, COUNTS_AGREE),
            Signal.RUNNING_MAX: GaugeSource((_RUNNING,), Over.MAX, Across.SUM, COUNTS_AGREE),
            Signal.WAITING_MEAN: GaugeSource((_WAITING,), Over.MEAN, Across.SUM, COUNTS_AGREE),
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
            Signal.INTER_TOKEN_SECONDS: HistogramSource(
                ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
            ),
            Signal.TIME_TO_FIRST_TOKEN_SECONDS: HistogramSource(("vllm:time_to_first_token_seconds",)),
            Signal.PREFILL_SECONDS: HistogramSource(("vllm:request_prefill_time_seconds",)),
            Signal.E2E_SECONDS: HistogramSource(("vllm:e2e_request_latency_seconds",)),
        }
    ),
    presence=_RUNNING,
    in_flight=(_RUNNING, _WAITING),
    in_flight_optional=("vllm:num_requests_swapped",),
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
* Prefix cache counters are in tokens, in V1 up to 0.8 in blocks; only their ratio is used. V0 had hit-rate
  gauges only, which are not read.
* `num_requests_swapped` existed in V0 alone (gone in 0.9.1).
* V1 up to 0.8 writes `num_gpu_blocks="None"`: its front end does not learn the number of blocks before
  0.9 (`log_engine_initialized`). Its log tells the pool in tokens.
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
