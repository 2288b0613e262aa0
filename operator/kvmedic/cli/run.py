"""`kvmedic run`: the operator itself."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import sys
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from prometheus_client import start_http_server

from kvmedic.cli.app import USAGE, end_command
from kvmedic.controller.orphans import StandIns
from kvmedic.controller.ports import Metrics, Probes
from kvmedic.handlers import Frame, Operator, serve
from kvmedic.kube.backoff import Backoff
from kvmedic.kube.clock import Stopwatch
from kvmedic.kube.errors import NoCluster
from kvmedic.kube.installations import Installation
from kvmedic.kube.kubeconfig import AS_KUBECTL, find_context, find_kubeconfig
from kvmedic.kube.objects import WORKLOADS
from kvmedic.loop import Rounds
from kvmedic.model.redaction import without_controls
from kvmedic.record.store import wait_until_defined
from kvmedic.record.telemetry import Telemetry
from kvmedic.rollout.gates.one_resource_per_target import Roster
from kvmedic.settings import Settings, SettingsError, load_settings
from kvmedic.wiring import installation_of, open_connections, ports_of, reporter_of

TLS_BYTES = 32 << 10
"""What each TLS connection keeps to read into. asyncio's own is 256 KiB, whatever comes: 13 MB for the fifty
connections of one operator (measured). A TLS record has 16 KiB at most."""
MALLOC_LIMITS = {
    "M_TRIM_THRESHOLD": (-1, 128 << 10),
    "M_MMAP_THRESHOLD": (-3, 128 << 10),
    "M_ARENA_MAX": (-8, 2),
}
"""glibc's parameters by their numbers in `malloc.h`. The first two are its own to begin with, but it raises
them whenever a larger buffer is freed: later ones then lie among what is kept, and stay with the process."""
TRIM_SECONDS = 30.0
"""How often free memory is given back: once for each look at all fleets."""
LOG_FORMAT = "time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"


class VisibleFormatter(logging.Formatter):
    """Writes one line per record, whatever text of a tenant's it quotes; a traceback has lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return what is logged of a record."""
        cleaned = logging.makeLogRecord(record.__dict__)
        cleaned.msg, cleaned.args = without_controls(record.getMessage()).replace("\n", "\\n"), None
        return without_controls(super().format(cleaned))


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per record and line, a traceback in a field of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return what is logged of a record."""
        written = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": without_controls(record.getMessage()),
        }
        if record.exc_info:
            written["traceback"] = without_controls(self.formatException(record.exc_info))
        return json.dumps(written, ensure_ascii=False)


def limit_tls_buffers() -> None:
    """Let each TLS connection read into `TLS_BYTES`; asyncio has no option for it."""
    SSLProtocol.max_size = TLS_BYTES


def return_freed_memory() -> None:
    """Let the system have large buffers back when they are freed: 9 MB of 130 for 150 fleets (measured).

    Elsewhere than with glibc nothing is done.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, value in MALLOC_LIMITS.values():
            libc.mallopt(parameter, value)


async def trim_memory() -> None:
    """Let the system have, again and again, what is free between what is kept: 13 MB of 177 for 1,000 fleets.

    That takes 3 ms (measured). Elsewhere than with glibc nothing is done.
    """
    libc = ctypes.CDLL(None)
    while hasattr(libc, "malloc_trim"):
        await asyncio.sleep(TRIM_SECONDS)
        libc.malloc_trim(0)


def spare_what_was_imported() -> None:
    """Let no look for garbage go through what was imported, which stays: each took 0.12 s (measured).

    What is garbage by now goes first.
    """
    gc.collect()
    gc.freeze()


def command(yes: bool) -> None:
    """Run the operator until SIGTERM."""
    if not yes:
        _refuse_a_laptop()
    try:
        settings = load_settings()
    except SettingsError as error:
        end_command(error, USAGE)
    logs = logging.StreamHandler(sys.stdout)
    is_json = settings.process.log_format == "json"
    logs.setFormatter(JsonFormatter() if is_json else VisibleFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[logs])
    for chatty in ("kopf", "aiohttp.access"):  # the latter logs each probe of the kubelet
        logging.getLogger(chatty).setLevel(logging.WARNING)
    limit_tls_buffers()
    return_freed_memory()
    spare_what_was_imported()
    telemetry = Telemetry()
    if settings.process.telemetry_port:
        start_http_server(settings.process.telemetry_port, registry=telemetry.registry)
    try:
        asyncio.run(operate(settings, telemetry))
    except NoCluster as error:
        end_command(error, USAGE)


def _refuse_a_laptop() -> None:
    """End the command where it would run the operator with a person's kubeconfig."""
    kubeconfig = find_kubeconfig(AS_KUBECTL)
    if kubeconfig is None:
        return
    try:
        context = find_context(kubeconfig, "").name
    except NoCluster as error:
        end_command(error, USAGE)
    end_command(
        f"this would run the operator here, in context {context} of {kubeconfig}, with your rights and "
        "beside the one in the cluster; the chart runs it in a pod. To do it all the same say --yes",
        USAGE,
    )


@dataclass(frozen=True, slots=True)
class Substitutes:
    """What may stand in for a part of the world: where nothing serves, something must answer."""

    metrics: Metrics | None = None
    clock: Callable[[], datetime] | None = None
    """None: the API server's time."""
    probes: Probes | None = None
    watch: Stopwatch | None = None


async def operate(settings: Settings, telemetry: Telemetry, substitutes: Substitutes = Substitutes()) -> None:
    """Run the operator until it is asked to end."""
    process, options = settings.process, settings.pace
    async with open_connections(settings) as world:
        reporter, notifications = reporter_of(settings, world, telemetry)
        leadership = installation_of(settings, world.client)
        telemetry.observe_leadership(settings.shard.index, settings.shard.count, leadership.is_held)
        roster = Roster()
        ports = ports_of(settings, world, reporter, leadership, roster)
        stand_ins = StandIns(ports.store, roster)

        def forget(uid: str) -> None:
            reporter.forget(uid)
            world.store.known.forget(uid)

        clock = substitutes.clock or world.client.clock.now
        telemetry.storm.set_function(lambda: float(ports.run_limits.has_tripped(clock())))
        operator = Operator(
            ports=replace(
                ports,
                store=stand_ins,
                metrics=substitutes.metrics or ports.metrics,
                probes=substitutes.probes or ports.probes,
                watch=substitutes.watch or ports.watch,
            ),
            telemetry=telemetry,
            backoff=Backoff(options.backoff_first, options.backoff_most),
            workers=options.workers,
            forget=forget,
            roster=roster,
            stand_ins=stand_ins,
            known=world.store.known,
            holds=world.store.holds,
            clock=clock,
        )
        for kind, resource in WORKLOADS.items():
            world.watches.listeners[resource] = partial(operator.note_workload, kind)
        telemetry.observe_delays(operator.loop.count_waiting, operator.oldest_look_seconds)
        await wait_until_defined(world.client, options.idle)
        peers = partial(world.store.peers, process.watch)
        rounds = Rounds(
            operator.ports, operator.loop, roster, forget, peers, process.watch, stand_ins, world.store.holds
        )
        own = (leadership.take_part(), rounds.run(), world.watches.follow_while(leadership.is_held))
        companions = (*own, trim_memory(), *notifications.companions())
        await serve(operator, frame_of(settings, leadership), companions)


def frame_of(settings: Settings, installation: Installation) -> Frame:
    """Return where the process watches, and where it answers whether it works and may act."""
    process = settings.process
    return Frame(process.watch, process.liveness or None, lambda: installation.refusal)
