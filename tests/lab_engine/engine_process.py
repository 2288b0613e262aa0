"""Lab engines for the tests: in this process, or as the process that a pod runs."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from lab.engine.arguments import parse_serve
from lab.engine.config import resolve
from lab.engine.live import LiveEngine
from lab.engine.metrics import EngineMetrics
from lab.engine.server import ApiServer
from lab.engine.settings import StepCost

PLAIN = {"timeout": 60, "trust_env": False, "verify": False}
"""Neither proxies nor certificates: reading the latter takes httpx longer than most of these tests."""

TESTS = Path(__file__).parents[1]
SMALL = ("--max-model-len=512", "--block-size=8", "--num-gpu-blocks-override=65")
"""64 usable blocks of 8 tokens: just one request of the longest length."""


@dataclass
class Running:
    """An engine in this process with a client for it."""

    server: ApiServer
    http: httpx.AsyncClient

    @property
    def scheduler(self):
        return self.server.engine.scheduler

    async def metric(self, name, **labels):
        text = (await self.http.get("/metrics")).text
        for line in text.splitlines():
            if line.startswith(f"vllm:{name}{{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no vllm:{name} with {labels}")


@asynccontextmanager
async def an_engine(*arguments, step_ms=1.0, environ=None):
    """Serve with these arguments on a free loopback port, at `step_ms` per step."""
    parsed = parse_serve(
        ["serve", "m", "--served-model-name=tiny", "--host=127.0.0.1", "--port=0", *SMALL, *arguments]
    )
    config = resolve(parsed, environ or {})
    metrics = EngineMetrics("tiny", config.limits.max_model_len, config.labels)
    engine = LiveEngine(config, StepCost(step_ms / 1e3, 0.0), metrics)
    server = ApiServer(config, engine, metrics)
    port = await server.listen()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", **PLAIN) as http:
            yield Running(server, http)
    finally:
        server.close()
        await asyncio.sleep(0)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def a_process(*arguments, command=("-m", "lab.engine", "serve", "m"), **environ):
    """Run an engine as a process on a free port; yields (process, base URL). Killed at the end."""
    port = free_port()
    argv = [sys.executable, *command, "--host=127.0.0.1", f"--port={port}", *SMALL, *arguments]
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{TESTS}:{TESTS}/lab/engine/image/site",
        "LAB_STARTUP_SECONDS": "0",
        "LAB_STEP_MS": "5",
        "LAB_TOKEN_US": "0",
        **environ,
    }
    process = subprocess.Popen(
        argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def until_healthy(url, seconds=60.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", **PLAIN).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"not healthy after {seconds} s")
