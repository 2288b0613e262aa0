"""`vllm serve MODEL …` and `python -m vllm.entrypoints.openai.api_server …`, by the lab engine."""

import argparse
import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from lab.engine import logs
from lab.engine.arguments import non_default, parse_api_server, parse_serve
from lab.engine.config import ConfigError, EngineConfig, resolve
from lab.engine.live import LiveEngine
from lab.engine.metrics import EngineMetrics
from lab.engine.ranks import has_ranks, supervise
from lab.engine.server import ApiServer
from lab.engine.settings import Faults, LabSettings

LOAD_SHARE = 0.8
"""Share of the start-up time before the pool is sized; a crash at start comes there, as it does on vLLM."""

MIB = 1 << 20
POLL_SECONDS = 0.01
"""Between two looks at the running sequences, where their number ends the engine."""


def serve(arguments: Sequence[str]) -> int:
    """Run `vllm …` until it is asked to stop; return the exit code."""
    return _start(parse_serve, arguments)


def api_server(arguments: Sequence[str]) -> int:
    """Run `python -m vllm.entrypoints.openai.api_server …`; return the exit code."""
    return _start(parse_api_server, arguments)


def _start(parse: Callable[[Sequence[str]], argparse.Namespace], arguments: Sequence[str]) -> int:
    parsed = parse(arguments)
    if has_ranks(parsed):
        return asyncio.run(supervise(parsed, arguments))
    try:
        config = resolve(parsed)
    except ConfigError as error:
        logs.log_failed_start(f"{type(error).__name__}: {error}")
        return 1
    logs.log_arguments(non_default(parsed))
    faults = Faults.from_environ(config.limits.max_num_seqs)
    return asyncio.run(_run(config, LabSettings.from_environ(), faults))


async def _run(config: EngineConfig, settings: LabSettings, faults: Faults) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    failed = await _load(config, settings, faults, stop)
    if failed is not None:
        return failed
    metrics = EngineMetrics(
        config.served_name, config.limits.max_model_len, config.labels, faults, config.rank
    )
    engine = LiveEngine(config, settings.cost.scaled(faults.slowdown), metrics)
    if engine.scheduler.compressor is not None and config.method is not None and config.method.says_reclaim:
        engine.scheduler.compressor.on_pass = logs.log_reclaim
    server = ApiServer(config, engine, metrics)
    logs.log_serving(config, await server.listen())
    statistics = asyncio.create_task(logs.log_stats(engine.scheduler, metrics.prompted, metrics.generated))
    hog = asyncio.create_task(_take_host_memory(engine, faults))
    died = await _served(engine, faults.runs_out_at(config.utilization), stop)
    statistics.cancel()
    hog.cancel()
    if died:
        logs.log_death(logs.OUT_OF_MEMORY)
        server.close()
        return 1
    await server.shut_down()
    return 0


async def _served(engine: LiveEngine, limit: int | None, stop: asyncio.Event) -> bool:
    """Wait for the end; return whether the engine died of memory, which it does at `limit` sequences."""
    while limit is None or len(engine.scheduler.running) < limit:
        if await _interrupted(stop, POLL_SECONDS if limit else None):
            return False
    return True


async def _take_host_memory(engine: LiveEngine, faults: Faults) -> bytearray:
    """Wait for enough running sequences, then fill as much of the host's memory as asked for, and keep it."""
    taken = bytearray()
    while faults.host_memory_mib and len(engine.scheduler.running) < faults.host_memory_running:
        await asyncio.sleep(POLL_SECONDS)
    for _ in range(faults.host_memory_mib):
        taken += b"x" * MIB
    return taken


async def _load(
    config: EngineConfig, settings: LabSettings, faults: Faults, stop: asyncio.Event
) -> int | None:
    """Pass the start-up time; return an exit code if the engine does not come up."""
    seconds = settings.startup_seconds
    if faults.slow_start_seconds:
        seconds += faults.start_delay(socket.gethostbyname(socket.gethostname()))
    logs.log_engine_start(config)
    if await _interrupted(stop, seconds * LOAD_SHARE):
        return 1
    message = faults.reason_to_crash(config.limits.max_num_seqs)
    if faults.runs_out_at_start(config.utilization):
        message = logs.OUT_OF_MEMORY
    if config.lacks_device_for_host:
        message = "Exception: CPU Offloading is currently only supported on CUDA-alike and XPU GPUs"
    if message is not None:
        logs.log_failed_start(message)
        return 1
    if faults.never_ready:
        await stop.wait()
        return 1
    logs.log_pool(config, seconds)
    return 1 if await _interrupted(stop, seconds * (1 - LOAD_SHARE)) else None


async def _interrupted(stop: asyncio.Event, seconds: float | None) -> bool:
    """Wait, for ever without a limit; return whether the process was asked to stop meanwhile."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
