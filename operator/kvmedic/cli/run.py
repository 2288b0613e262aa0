"""`kvmedic run`: the operator itself."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime

from prometheus_client import start_http_server

from kvmedic.cli.app import USAGE, end_command
from kvmedic.kube.errors import NoCluster
from kvmedic.kube.kubeconfig import AS_KUBECTL, find_context, find_kubeconfig
from kvmedic.model.redaction import without_controls
from kvmedic.record.telemetry import Telemetry
from kvmedic.settings import SettingsError, load_settings
from kvmedic.wiring import operate

LOG_FORMAT = "time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"


class VisibleFormatter(logging.Formatter):
    """Writes one line per record, whatever text of a tenant's it quotes; a traceback has lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return what is logged of a record."""
        told = logging.makeLogRecord(record.__dict__)
        told.msg, told.args = without_controls(record.getMessage()).replace("\n", "\\n"), None
        return without_controls(super().format(told))


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
