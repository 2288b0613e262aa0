"""Which files of the package each tick of an operator process enters, by tracing its calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import kvmedic
from kvmedic import handlers
from kvmedic.controller.ports import Ports
from kvmedic.model.status import Key

PACKAGE = f"{Path(kvmedic.__file__).parent}/"

_entered: ContextVar[set[tuple[str, str]] | None] = ContextVar("entered", default=None)
"""Files and functions that the tick under way has entered; tasks that it makes inherit it, others do not."""


def trace_ticks(path: Path) -> None:
    """Let this process add a line to a file for each tick: what was entered, each as file and function."""
    real = handlers.reconcile

    async def traced(key: Key, ports: Ports, now: datetime) -> timedelta | None:
        with _traced(path):
            return await real(key, ports, now)

    handlers.reconcile = traced


@contextmanager
def _traced(path: Path) -> Iterator[None]:
    found: set[tuple[str, str]] = set()
    token = _entered.set(found)
    sys.setprofile(_note)
    try:
        yield
    finally:
        sys.setprofile(None)
        _entered.reset(token)
        with path.open("a") as lines:
            lines.write(json.dumps(sorted(found)) + "\n")


def _note(frame: FrameType, event: str, _argument: Any) -> None:
    """Note a call; a module that is imported is not entered."""
    found, code = _entered.get(), frame.f_code
    if event == "call" and found is not None and code.co_filename.startswith(PACKAGE):
        found.add((code.co_filename.removeprefix(PACKAGE), code.co_name))
