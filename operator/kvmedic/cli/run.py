"""The two commands that an installation needs: `kvmedic run`, the operator itself, and `kvmedic crd`."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer
from prometheus_client import start_http_server

from kvmedic.api.schema import KINDS
from kvmedic.cli.app import USAGE, end_command
from kvmedic.kube.errors import NoCluster
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


def command() -> None:
    """Run the operator until SIGTERM.

    The file named by KVMEDIC_CONFIG and KVMEDIC_… variables configure it. It acts only while it holds its
    Lease.
    """
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


class CrdForm(StrEnum):
    """What `kvmedic crd` prints."""

    YAML = "yaml"
    MARKDOWN = "markdown"


class CrdKind(StrEnum):
    """Of which kind."""

    ALL = "all"
    REMEDIATIONS = "kvremediations"
    APPROVALS = "kvapprovals"


def print_crds(
    which: Annotated[CrdKind, typer.Argument(help="The kind; all: both, one after the other.")] = CrdKind.ALL,
    output: Annotated[
        CrdForm,
        typer.Option(
            "--output", "-o", help="yaml: the manifest, for kubectl apply. markdown: the reference page."
        ),
    ] = CrdForm.YAML,
) -> None:
    """Print the CustomResourceDefinitions of this version."""
    kinds = [kind for kind in KINDS if which in (CrdKind.ALL, kind.plural)]
    if output is CrdForm.YAML:
        sys.stdout.write("---\n".join(kind.crd_text() for kind in kinds))
    else:
        sys.stdout.write("\n".join(kind.reference_page() for kind in kinds))
