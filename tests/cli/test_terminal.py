"""What people see of a tenant's text: in a terminal, and in the operator's log."""

from __future__ import annotations

import io
import json
import logging
import os
import pty

from kvmedic.__main__ import shown_safely
from kvmedic.cli.run import LOG_FORMAT, JsonFormatter, VisibleFormatter

EVIL = "m\x1b]0;owned\x07\x1b[2J\u202egnp.exe\rall is well"


def test_a_terminal_is_shown_our_colours_alone() -> None:
    ours, theirs = pty.openpty()
    with shown_safely(os.fdopen(theirs, "w")) as stream:
        print(f"\x1b[31m{EVIL}\x1b[0m", file=stream, flush=True)
        seen = os.read(ours, 4096).decode()
    os.close(ours)

    assert seen == "\x1b[31mm]0;owned[2Jgnp.exeall is well\x1b[0m\r\n"


def test_a_file_gets_what_was_written() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")

    assert shown_safely(stream) is stream


def test_a_log_has_one_line_per_record() -> None:
    record = logging.LogRecord(
        "kvmedic", logging.WARNING, "x", 1, "error=%s", (f"a\nlevel=INFO {EVIL}",), None
    )

    line = VisibleFormatter(LOG_FORMAT).format(record)

    assert line.endswith("error=a\\nlevel=INFO m]0;owned[2Jgnp.exeall is well")
    assert line.isprintable()
    assert record.args


def test_a_log_in_json_has_one_object_per_line_with_the_traceback_inside() -> None:
    caught = (ValueError, ValueError(EVIL), None)
    record = logging.LogRecord("kvmedic", logging.ERROR, "x", 1, "a %s", ("b\nc",), caught)
    record.created = 1_790_000_000.25

    line = JsonFormatter().format(record)

    assert line.isprintable()
    written = json.loads(line)
    assert written.pop("traceback") == "ValueError: m]0;owned[2Jgnp.exeall is well"
    assert written == {
        "time": "2026-09-21T14:13:20.250+00:00",
        "level": "ERROR",
        "logger": "kvmedic",
        "message": "a b\nc",
    }
