"""The operator as a process of its own, forked from one that has everything imported.

A test may kill it at any moment; the next one is up in a fraction of a second.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpcore  # noqa: F401 - httpx imports it when its first client is made
from kubernetes.client import BatchV1Api
from kubernetes.config import new_client_from_config

from kvmedic.cli.run import Substitutes, operate
from kvmedic.kube.clock import Stopwatch
from kvmedic.metrics.scrape import load_authorities
from kvmedic.record.telemetry import Telemetry
from kvmedic.settings import Settings
from lab.scripted.probes import ScriptedProbes
from lab.scripted.readings import ScriptedMetrics
from lab.scripted.ticks import trace_ticks

load_authorities()  # once, in the process that the others are forked from

FORKS = multiprocessing.get_context("forkserver")
PRELOADED = "lab.scripted.command_line"
"""What is imported once, this module with it."""
FORKS.set_forkserver_preload([PRELOADED])


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How one operator process is set up."""

    settings: dict[str, Any]
    kubeconfig: Path
    script: Path
    log: Path
    began: float
    """Unix time at which the fast clock showed the real time."""
    speed: float
    """Seconds of the operator's clock, and of its stopwatch, in one real second. The script's `clock` is by
    how many seconds the clock is wrong; the stopwatch never is."""
    ticks: Path | None = None
    """Where each tick's files are written to; None: they are not traced."""


def run(arrangement: Arrangement) -> None:
    os.environ.pop("KVMEDIC_CONFIG", None)
    os.environ["KUBECONFIG"] = str(arrangement.kubeconfig)
    # The proxy speaks plain HTTP: this machine's 140 authorities took 65 ms of each start.
    os.environ["SSL_CERT_FILE"] = os.environ["SSL_CERT_DIR"] = os.devnull
    sys.stdout = sys.stderr = open(arrangement.log, "a", buffering=1)  # noqa: SIM115 - lives as long as the process
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, force=True, format="%(asctime)s %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)

    def clock() -> datetime:
        elapsed = (datetime.now(UTC).timestamp() - arrangement.began) * arrangement.speed
        skew = json.loads(arrangement.script.read_text()).get("clock", 0)
        return datetime.fromtimestamp(arrangement.began + elapsed + skew, UTC)

    if arrangement.ticks is not None:
        trace_ticks(arrangement.ticks)
    settings = Settings(**arrangement.settings)
    probes = ScriptedProbes(arrangement.script, jobs=jobs_in(arrangement.kubeconfig))
    watch = Stopwatch(lambda: time.monotonic() * arrangement.speed)
    substitutes = Substitutes(ScriptedMetrics(arrangement.script), clock, probes, watch)
    asyncio.run(operate(settings, Telemetry(), substitutes))


def jobs_in(kubeconfig: Path) -> Callable[[str], list[Any]]:
    api = BatchV1Api(new_client_from_config(str(kubeconfig)))
    return lambda namespace: api.list_namespaced_job(namespace).items


class Operator:
    """One operator process."""

    def __init__(self, arrangement: Arrangement) -> None:
        self.process = FORKS.Process(target=run, args=(arrangement,), daemon=True)
        self.is_ended = False
        """Whether it was asked to end."""

    def start(self) -> None:
        self.process.start()

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Ask it to end, as a kubelet does."""
        self.is_ended = True
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        if self.process.pid is not None:
            os.kill(self.process.pid, number)

    def join(self) -> None:
        self.process.join(10)

    def is_alive(self) -> bool:
        return self.process.is_alive()
