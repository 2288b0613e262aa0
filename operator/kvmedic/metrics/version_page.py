"""The page on which an engine tells its own version: where it is, and what is on it."""

from __future__ import annotations

import json
from datetime import datetime
from urllib.parse import urlsplit, urlunsplit

from kvmedic.core.evidence import Absence, Measured, Missing, Reading
from kvmedic.core.signals import VersionPage
from kvmedic.core.version import Version

METRICS = "/metrics"

LIMIT_BYTES = 4096
"""Size of the page, at most. That of vLLM 0.32.0 is 20 bytes; what a proxy has to say to people is larger,
and no answer."""


def beside(metrics_url: str, page: VersionPage) -> str | None:
    """Return the URL of an engine's version beside that of its metrics, or None where it cannot be told.

    Host, port and whatever a proxy has before the path stay: nobody else is dialled than for the metrics.
    """
    try:
        parts = urlsplit(metrics_url)
    except ValueError:
        return None
    path = parts.path.rstrip("/")
    if not path.endswith(METRICS):
        return None
    return urlunsplit(parts._replace(path=path.removesuffix(METRICS) + page.path))


def version_on(text: str, page: VersionPage, at: datetime) -> Reading[Version]:
    """Return the version that a page tells."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return Missing(Absence.UNREADABLE)
    version = told.get(page.field) if isinstance(told, dict) else None
    if not isinstance(version, str):
        return Missing(Absence.UNREADABLE)
    try:
        return Measured(Version.parse(version), at)
    except ValueError:
        return Missing(Absence.UNREADABLE)
