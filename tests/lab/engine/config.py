"""What the engine runs with: vLLM's rules for defaults and bounds, and the lab's own settings from LAB_*."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass

from lab.engine.compression import Method, Recall, method_of
from lab.engine.scheduler import Limits, Step
from lab.engine.settings import Faults, number

FUSED, FUSED_EIGHT_BIT, EAGER = "FLASH_ATTN", "FLASHINFER", "TORCH_SDPA"
"""FlashAttention takes fp8 keys only in some versions: vLLM may turn to another fused kernel for them."""
SCORE_BYTES = 64
"""Of one query against one key: 16 query heads, four bytes each."""
SLOWDOWN = 1.6
"""Of each step where attention is not fused. An assumption of the lab: nobody measured it."""


@dataclass(frozen=True, slots=True)
class Attention:
    """How attention is computed.

    `LAB_EAGER_ATTENTION=1` is the fallback of a method that needs the scores; with `quiet` the start-up line
    still names the fused kernel, as where a method replaces attention after the backend was chosen.
    """

    backend: str | None
    """Named in the start-up log; None: the CPU build, which names none."""
    is_eager: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str], *, eight_bit: bool) -> "Attention":
        """Return what an environment switches on."""
        eager = environ.get("LAB_EAGER_ATTENTION", "")
        is_eager = eager not in ("", "0")
        if "LAB_DEVICE_MEMORY_MIB" not in environ:
            return cls(None, is_eager)
        fused = FUSED_EIGHT_BIT if eight_bit else FUSED
        return cls(EAGER if is_eager and eager != "quiet" else fused, is_eager)

    @property
    def slowdown(self) -> float:
        """Factor on the duration of each step."""
        return SLOWDOWN if self.is_eager else 1.0

    def scores_bytes(self, step: Step) -> int:
        """Return the memory that a step's scores take, those of its largest request."""
        if not self.is_eager:
            return 0
        pairs = (share.tokens * share.request.computed for share in step.scheduled)
        return SCORE_BYTES * max(pairs, default=0)


@dataclass(slots=True)
class DeviceMemory:
    """Memory of the device in use: fixed from the start on, but for scores."""

    total: int
    """Bytes."""
    reserved: int
    """Bytes that weights, pool and kernels take, used or not."""
    scores: int = 0
    """Bytes of the largest step so far."""

    @property
    def used(self) -> int:
        """Bytes; never more than there are."""
        return min(self.total, self.reserved + self.scores)

    def note(self, scores: int) -> None:
        """Take the scores of one more step in."""
        self.scores = max(self.scores, scores)


GIB = 1 << 30
DEFAULT_BLOCK_SIZE = 128
"""Tokens per block of vLLM's CPU build where `--block-size` is not given (recorded argument cases)."""

BYTES_PER_TOKEN = 1024
"""KV bytes per token of the recorded model: 1 GiB gave 32,768 blocks of 32 tokens (recorded start-up log)."""

DOCS = "https://docs.vllm.ai/en/latest/configuration/conserving_memory/"


UNREPORTED_POOL = {"block_size": "None", "num_gpu_blocks": "None", "kv_cache_size_tokens": "None"}
"""Labels of an engine that does not report a pool of blocks."""


class ConfigError(ValueError):
    """The arguments parse, but vLLM refuses to start with them; the process exits with code 1."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV pool: `total_blocks` counts the null block, as the label `num_gpu_blocks` does."""

    total_blocks: int
    block_size: int
    kv_bytes: int
    profiled_blocks: int

    @property
    def tokens(self) -> int:
        """The label `kv_cache_size_tokens`."""
        return self.total_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that is fixed at start."""

    model: str
    served_name: str
    host: str
    port: int
    limits: Limits
    pool: Pool
    prefix_caching: bool
    shutdown_timeout: int
    log_stats: bool
    labels: Mapping[str, str]
    attention: Attention
    recall: Recall
    method: Method | None = None
    """The KV compression that is on."""
    device_bytes: int = 0
    """Memory of the device; 0: the CPU build."""
    rank: int = 0
    """Data-parallel rank, which is the label `engine` of its metrics."""
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    host_blocks: int = 0
    """Blocks that the host's memory holds beside the pool; 0: none are kept there."""
    api_keys: tuple[str, ...] = ()
    """Who asks under `/v1` must show one of them; none: nobody must."""
    lacks_device_for_host: bool = False
    """It should keep blocks in the host's memory, and is the CPU build: it dies at start, as vLLM's does."""

    @property
    def utilization(self) -> float:
        """The share of the device's memory that the engine takes (`gpu_memory_utilization`)."""
        return float(self.labels["gpu_memory_utilization"])


def resolve(parsed: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> EngineConfig:
    """Return the configuration that vLLM 0.32 (CPU build) would make of the arguments.

    Raises:
        ConfigError: a value is out of its bounds or does not fit another.
    """
    max_model_len = _max_model_len(parsed, int(environ.get("LAB_MODEL_MAX_LEN", "4096")))
    limits = _limits(parsed, max_model_len)
    faults = Faults.from_environ(limits.max_num_seqs, environ)
    dtype = _cache_dtype(parsed, environ)
    try:
        method, recall = method_of(environ), Recall.of(environ, eight_bit=_is_eight_bit(dtype))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    _check_method(method, parsed)
    kv_bytes = _kv_bytes(parsed, environ, limits.max_num_batched_tokens)
    pool = _pool(parsed, dtype, kv_bytes, faults.missing_blocks)
    if method is None or not method.relaxes_length:
        _check_length(pool, dtype, max_model_len)
    names = parsed.served_model_name or [parsed.model]
    return EngineConfig(
        model=parsed.model,
        served_name=names[0],
        host=parsed.host or "0.0.0.0",
        port=parsed.port,
        limits=limits,
        pool=pool,
        prefix_caching=parsed.enable_prefix_caching is not False,
        shutdown_timeout=parsed.shutdown_timeout,
        log_stats=not parsed.disable_log_stats,
        labels=_cache_config_labels(parsed, dtype, pool, max_model_len)
        | (UNREPORTED_POOL if faults.unreported_pool else {}),
        attention=Attention.of(environ, eight_bit=_is_eight_bit(dtype)),
        recall=recall,
        method=method,
        device_bytes=int(number(environ, "LAB_DEVICE_MEMORY_MIB", 0) * (1 << 20)),
        rank=parsed.data_parallel_rank or 0,
        max_num_queued_reqs=parsed.max_num_queued_reqs,
        max_num_queued_tokens=parsed.max_num_queued_tokens,
        host_blocks=_host_blocks(parsed, dtype, pool, environ),
        api_keys=tuple(filter(None, parsed.api_key or [environ.get("VLLM_API_KEY", "")])),
        lacks_device_for_host=bool(parsed.kv_offloading_size) and "LAB_DEVICE_MEMORY_MIB" not in environ,
    )


def _max_model_len(parsed: argparse.Namespace, derived: int) -> int:
    asked = parsed.max_model_len
    if asked is None or asked == -1:
        return derived
    if asked > derived:
        raise ConfigError(
            f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
            f"(max_position_embeddings={derived}.0 or model_max_length=None in model's config.json)."
        )
    return int(asked)


def _limits(parsed: argparse.Namespace, max_model_len: int) -> Limits:
    ranks = (parsed.tensor_parallel_size or 1) * (parsed.pipeline_parallel_size or 1)
    chunked = parsed.enable_chunked_prefill is not False
    seqs = 128 * ranks if parsed.max_num_seqs is None else parsed.max_num_seqs
    batched = parsed.max_num_batched_tokens
    if batched is None:
        batched = 2048 * ranks if chunked else max(max_model_len, 2048 * ranks)
        batched = min(batched, seqs * max_model_len)
    if parsed.max_num_seqs is None:
        seqs = min(seqs, batched)
    limits = Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        max_model_len=max_model_len,
        max_num_active_seqs=parsed.max_num_active_seqs,
        watermark=parsed.watermark,
        chunked_prefill=chunked,
        reserve_full_isl=parsed.scheduler_reserve_full_isl is not False,
        async_scheduling=bool(parsed.async_scheduling),
    )
    _check_limits(limits)
    return limits


def _check_limits(limits: Limits) -> None:
    """Raise ConfigError where vLLM's SchedulerConfig refuses (config/scheduler.py 0.32)."""
    batched, seqs = f"max_num_batched_tokens ({limits.max_num_batched_tokens})", limits.max_num_seqs
    length, active = limits.max_model_len, limits.active
    refusals = (
        (limits.max_num_seqs < 1, "max_num_seqs\n  Input should be greater than or equal to 1"),
        (
            limits.max_num_batched_tokens < 1,
            "max_num_batched_tokens\n  Input should be greater than or equal to 1",
        ),
        (not 0.0 <= limits.watermark < 1.0, "watermark\n  Input should be at least 0 and less than 1"),
        (
            limits.max_num_batched_tokens < length and not limits.chunked_prefill,
            f"{batched} is smaller than max_model_len ({length}). Please increase max_num_batched_tokens or "
            "decrease max_model_len.",
        ),
        (
            limits.max_num_batched_tokens < seqs,
            f"{batched} must be greater than or equal to max_num_seqs ({seqs}).",
        ),
        (
            not 1 <= active <= seqs,
            f"max_num_active_seqs ({active}) cannot be greater than max_num_seqs ({seqs}).",
        ),
    )
    for is_refused, message in refusals:
        if is_refused:
            raise ConfigError(message)


def _check_method(method: Method | None, parsed: argparse.Namespace) -> None:
    if method and method.compression and parsed.enable_prefix_caching is not False:
        raise ConfigError(f"{method.name} needs prefix caching off: give --no-enable-prefix-caching")


def _cache_dtype(parsed: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return the type of keys and values: asked for, or that of a checkpoint with a `kv_cache_scheme`, which
    LAB_CHECKPOINT_KV_CACHE_DTYPE names.
    """
    asked = str(parsed.kv_cache_dtype)
    return environ.get("LAB_CHECKPOINT_KV_CACHE_DTYPE", asked) if asked == "auto" else asked


def _is_eight_bit(dtype: str) -> bool:
    return dtype.startswith(("fp8", "int8"))


def _pool(parsed: argparse.Namespace, dtype: str, kv_bytes: int, missing_blocks: int) -> Pool:
    block_size = DEFAULT_BLOCK_SIZE if parsed.block_size is None else parsed.block_size
    profiled = kv_bytes // _block_bytes(dtype, block_size)
    if profiled <= 0:
        raise ConfigError(
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            f"initializing the engine. See {DOCS} for more details."
        )
    total = parsed.num_gpu_blocks_override or profiled
    return Pool(max(2, total - missing_blocks), block_size, kv_bytes, profiled)


def _check_length(pool: Pool, dtype: str, max_model_len: int) -> None:
    """Raise ConfigError where the pool does not hold one request of the greatest length."""
    block_bytes = _block_bytes(dtype, pool.block_size)
    if pool.tokens < max_model_len:
        raise ConfigError(
            f"To serve at least one request with the model's max seq len ({max_model_len}), "
            f"({max_model_len * block_bytes / pool.block_size / GIB:.2f} GiB KV cache is needed, which is "
            f"larger than the available KV cache memory ({pool.total_blocks * block_bytes / GIB:.2f} GiB). "
            f"Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing "
            f"the engine. See {DOCS}."
        )


def _block_bytes(dtype: str, block_size: int) -> int:
    return block_size * (BYTES_PER_TOKEN // 2 if _is_eight_bit(dtype) else BYTES_PER_TOKEN)


def _host_blocks(parsed: argparse.Namespace, dtype: str, pool: Pool, environ: Mapping[str, str]) -> int:
    """Return how many blocks `--kv-offloading-size` GiB of the host's memory hold; none without a device."""
    if not parsed.kv_offloading_size or "LAB_DEVICE_MEMORY_MIB" not in environ:
        return 0
    return int(parsed.kv_offloading_size * GIB) // _block_bytes(dtype, pool.block_size)


def _kv_bytes(parsed: argparse.Namespace, environ: Mapping[str, str], step_tokens: int) -> int:
    """Return the memory for keys and values.

    `--kv-cache-memory-bytes` beats everything, as in vLLM. With LAB_DEVICE_MEMORY_MIB the engine behaves like
    a GPU of that size whose weights take LAB_WEIGHTS_MIB and of which each token of the largest step takes
    LAB_STEP_TOKEN_KIB, which the engine keeps back as vLLM's profile run does; without, like the CPU build
    with a pool of VLLM_CPU_KVCACHE_SPACE GiB.
    """
    utilization = parsed.gpu_memory_utilization
    if not 0.0 < utilization <= 1.0:
        raise ConfigError("gpu_memory_utilization\n  Input should be greater than 0 and at most 1")
    if parsed.kv_cache_memory_bytes is not None:
        return int(parsed.kv_cache_memory_bytes)
    if "LAB_DEVICE_MEMORY_MIB" in environ:
        device = float(environ["LAB_DEVICE_MEMORY_MIB"])
        step = step_tokens * float(environ.get("LAB_STEP_TOKEN_KIB", "0")) / 1024
        return int((device * utilization - float(environ.get("LAB_WEIGHTS_MIB", "0")) - step) * (1 << 20))
    return int(environ.get("VLLM_CPU_KVCACHE_SPACE", "1")) * GIB


def _cache_config_labels(
    parsed: argparse.Namespace, dtype: str, pool: Pool, max_model_len: int
) -> dict[str, str]:
    """Return the labels of `vllm:cache_config_info` as recorded from vLLM 0.32, with this engine's values."""
    recorded: dict[str, object] = {
        "_block_size_resolved": True,
        "cache_hit_alignment_tokens": None,
        "enable_mamba_shared_prefix_checkpoint": False,
        "hash_block_size": None,
        "is_attention_free": False,
        "kv_cache_dtype_skip_layers": [],
        "kv_cache_layout": None,
        "kv_sharing_fast_prefill": False,
        "mamba_block_size": None,
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": None,
        "mamba_ssm_cache_dtype": "float32",
        "num_cpu_blocks": None,
        "prefix_cache_retention_interval": 0,
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": None,
        "replayssm_buffer_len": 16,
        "skip_page_size_padded": None,
        "sliding_window": None,
        "swa_bounded_replay": True,
        "use_kda_recoverssm": False,
        "use_replayssm": False,
    }
    own = {
        "block_size": pool.block_size,
        "cache_dtype": dtype,
        "effective_attention_block_size": pool.block_size,
        "enable_prefix_caching": parsed.enable_prefix_caching is not False,
        "engine": 0,
        "gpu_memory_utilization": parsed.gpu_memory_utilization,
        "kv_cache_max_concurrency": pool.tokens / max_model_len,
        "kv_cache_memory_bytes": pool.kv_bytes,
        "kv_cache_size_tokens": pool.tokens,
        "kv_offloading_backend": parsed.kv_offloading_backend,
        "kv_offloading_size": parsed.kv_offloading_size,
        "num_gpu_blocks": pool.total_blocks,
        "num_gpu_blocks_override": parsed.num_gpu_blocks_override,
        "user_specified_block_size": parsed.block_size is not None,
    }
    return {name: str(value) for name, value in sorted({**recorded, **own}.items())}
