"""`kvmedic run`: the operator itself."""

from __future__ import annotations

import asyncio
import logging
import sys

import typer
from prometheus_client import start_http_server

from kvmedic.kube.errors import NoCluster
from kvmedic.record.reporter import Telemetry
from kvmedic.settings import Settings, SettingsError, load_settings
from kvmedic.wiring import operate

LOG_FORMAT = "time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"


def command() -> None:
    """Run the operator until SIGTERM.

    It is configured by the file that KVMEDIC_CONFIG names and by KVMEDIC_… variables, and acts only
    while it holds its Lease.
    """
    try:
        settings = load_settings()
    except SettingsError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stdout)
    for chatty in ("kopf", "aiohttp.access"):  # the latter says each probe of the kubelet
        logging.getLogger(chatty).setLevel(logging.WARNING)
    telemetry = _telemetry(settings)
    try:
        asyncio.run(operate(settings, telemetry))
    except NoCluster as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None


def _telemetry(settings: Settings) -> Telemetry:
    telemetry = Telemetry()
    if settings.process.telemetry_port:
        start_http_server(settings.process.telemetry_port, registry=telemetry.registry)
    return telemetry
