"""The log lines that vLLM 0.32 prints, as recorded from its CPU build: on stdout, with process and place."""

import asyncio
import os
import time
from collections.abc import Iterator

from lab.engine.compression import Pass
from lab.engine.config import EngineConfig
from lab.engine.metrics import Number
from lab.engine.requests import Request
from lab.engine.scheduler import Scheduler

STATS_SECONDS = 10.0
"""Interval of the statistics line (VLLM_LOG_STATS_INTERVAL's default in vLLM 0.32)."""

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of "
    "79.11 GiB of which 0.98 GiB is free."
)
"""How torch says that a GPU's memory ran out."""


BACKEND = "Using {0} attention backend out of potential backends: ['{0}', 'TRITON_ATTN', 'FLEX_ATTENTION']."
"""What vLLM 0.12 and later say on a GPU; the CPU build says nothing."""

EIGHT_BIT = (
    "Using {} data type to store kv cache. It reduces the GPU memory footprint and boosts the performance. "
    "Meanwhile, it may cause accuracy drop without a proper scaling factor."
)
"""What vLLM says where keys and values are not of the model's own type."""


def log(process: str, place: str, message: str, level: str = "INFO") -> None:
    """Print one line as vLLM's logger does: no year in the time."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    print(f"({process} pid={os.getpid()}) {level} {stamp} [{place}] {message}", flush=True)


def log_arguments(arguments: dict[str, object]) -> None:
    log("APIServer", "api_utils.py:347", f"version 0.32.0  model {arguments.get('model', '')}")
    log("APIServer", "api_utils.py:286", f"non-default args: {arguments}")


def log_engine_start(config: EngineConfig) -> None:
    """Print what the engine core says when it starts to load."""
    log("APIServer", "model.py:2152", f"Using max model len {config.limits.max_model_len}")
    text = f"Initializing a V1 LLM engine (v0.32.0) with config: model='{config.model}'"
    log("EngineCore", "core.py:133", f"{text}, max_seq_len={config.limits.max_model_len}")
    if config.method is not None and os.environ.get("LAB_PLUGIN_LOGS") != "0":
        for line in config.method.lines:
            print(line, flush=True)
    if config.labels["cache_dtype"] != "auto":
        log("EngineCore", "cache.py:232", EIGHT_BIT.format(config.labels["cache_dtype"]))
    log("Worker", "cpu_model_runner.py:68", f"Starting to load model {config.model}...")
    if config.attention.backend is not None:
        log("Worker", "cuda.py:446", BACKEND.format(config.attention.backend))


def log_pool(config: EngineConfig, seconds: float) -> None:
    """Print the size of the KV cache, the line that operators look for; nothing of it where it is no pool."""
    pool, length = config.pool, config.limits.max_model_len
    if pool.tokens < length and config.method is not None:
        print(f"[{config.method.name}] KV cache check relaxed: {pool.tokens} of {length} tokens", flush=True)
    if config.labels["num_gpu_blocks_override"] != "None":
        override = f"num_gpu_blocks_override={pool.total_blocks}"
        text = f"Overriding num_gpu_blocks={pool.profiled_blocks} with {override}"
        log("EngineCore", "kv_cache_utils.py:2619", text)
    concurrency = f"Maximum concurrency for {length:,} tokens per request: {pool.tokens / length:.2f}x"
    if config.labels["num_gpu_blocks"] != "None":
        log(
            "EngineCore",
            "kv_cache_utils.py:2327",
            f"CPU KV cache size: {pool.tokens:,} tokens, {concurrency}",
        )
    text = f"init engine (profile, create kv cache, warmup model) took {seconds:.2f} s"
    log("EngineCore", "core.py:402", text)


def log_serving(config: EngineConfig, port: int) -> None:
    log("APIServer", "entry.py:136", "Supported tasks: ['generate']")
    log("APIServer", "entry.py:140", f"Starting vLLM server on http://{config.host}:{port}")
    log("APIServer", "launcher.py:186", "Available routes are:")
    for path, methods in _routes():
        log("APIServer", "launcher.py:195", f"Route: {path}, Methods: {methods}")
    print("INFO:     Application startup complete.", flush=True)


def log_failed_start(message: str) -> None:
    """Print what vLLM prints when the engine core dies at start."""
    log("EngineCore", "core.py:1213", "EngineCore failed to start.", "ERROR")
    log("EngineCore", "core.py:1213", message, "ERROR")
    print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)


def log_death(message: str) -> None:
    """Print what vLLM prints when the engine core dies while it serves."""
    log("EngineCore", "core.py:1190", "EngineCore encountered a fatal error.", "ERROR")
    log("EngineCore", "core.py:1190", message, "ERROR")
    dead = (
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace above."
    )
    log("APIServer", "async_llm.py:720", dead, "ERROR")


def log_reclaim(request: Request, done: Pass) -> None:
    """Print what TriAttention says of a pass that gave blocks back."""
    if done.freed:
        blocks = len(request.table.blocks)
        print(f"TriAttention block reclaim: req={request.request_id} required_blocks={blocks}", flush=True)


async def log_stats(scheduler: Scheduler, prompted: Number, generated: Number) -> None:
    """Print the statistics line every 10 s while anything happens."""
    before = (prompted.value, generated.value)
    while True:
        await asyncio.sleep(STATS_SECONDS)
        after = (prompted.value, generated.value)
        rates = [(b - a) / STATS_SECONDS for a, b in zip(before, after, strict=True)]
        before = after
        if any(rates) or scheduler.has_requests:
            log("APIServer", "loggers.py:310", stats_line(scheduler, *rates))


def stats_line(scheduler: Scheduler, prompt: float, generated: float) -> str:
    """Return the statistics line as vLLM 0.32 words it; rates in tokens per second."""
    prefix = scheduler.prefix
    hit_rate = prefix.hits / prefix.queries if prefix.queries else 0.0
    return (
        f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
        f"Avg generation throughput: {generated:.1f} tokens/s, "
        f"Running: {len(scheduler.running)} reqs, Waiting: {len(scheduler.waiting)} reqs, "
        f"CPU KV cache usage: {scheduler.pool.usage:.1%}, Prefix cache hit rate: {hit_rate:.1%}"
    )


def _routes() -> Iterator[tuple[str, str]]:
    for path in ("/health", "/load", "/version", "/metrics", "/ping", "/v1/models"):
        yield path, "GET"
    for path in ("/v1/chat/completions", "/v1/completions"):
        yield path, "POST"
