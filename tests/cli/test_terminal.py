"""What people see of a tenant's text: in a terminal, and in the operator's log."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import sys
from collections.abc import Callable, Iterator

import pytest

from kvmedic.__main__ import guard_terminal
from kvmedic.cli.app import show_text
from kvmedic.cli.run import LOG_FORMAT, JsonFormatter, VisibleFormatter

EVIL = "m\x1b]0;owned\x07\x1b[2J\u202egnp.exe\rall is well"


def test_a_terminal_is_shown_our_colours_alone() -> None:
    ours, theirs = pty.openpty()
    with guard_terminal(os.fdopen(theirs, "w")) as stream:
        print(f"\x1b[31m{EVIL}\x1b[0m", file=stream, flush=True)
        seen = os.read(ours, 4096).decode()
    os.close(ours)

    assert seen == "\x1b[31mm]0;owned[2Jgnp.exeall is well\x1b[0m\r\n"


def test_a_file_gets_what_was_written() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")

    assert guard_terminal(stream) is stream


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


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """Show a text on a terminal of 40 columns; returns its lines, in a terminal's own words."""
    ours, theirs = pty.openpty()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")

    def show(*lines: str) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", os.fdopen(os.dup(theirs), "w"))
            show_text(lines)
            sys.stdout.close()
        return os.read(ours, 4096).decode().removesuffix("\r\n").split("\r\n")

    yield show
    os.close(theirs)
    os.close(ours)


def test_a_terminal_shows_each_line_beside_its_label(terminal, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    shown = terminal("diagnosis  FleetWideDemand: more requests run at once than fit", "a\nb")

    assert shown == ["diagnosis  FleetWideDemand: more", " " * 11 + "requests run at once than fit", "a", "b"]


@pytest.mark.parametrize(
    "line",
    [
        "next       kvmedic explain chat -n serving --context somewhere-else",
        f"{'':30} fix:    kubectl annotate deployment/chat a=b",
        "  patch: {spec: {template: {spec: {containers: [{name: vllm}]}}}}",
    ],
    ids=["next", "fix", "a patch"],
)
def test_what_is_typed_is_not_broken(terminal, monkeypatch, line) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    assert terminal(line) == [line]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plan       14", "\x1b[1mplan\x1b[0m       14"),
        ("NOT ELIGIBLE a/b: no", "\x1b[31m\x1b[1mNOT ELIGIBLE\x1b[0m a/b: no"),
        ("  pass     front  seen", "  \x1b[32m\x1b[1mpass\x1b[0m     front  seen"),
    ],
)
def test_a_terminal_sees_the_verdict_at_once(terminal, line, shown) -> None:
    assert terminal(line) == [shown]


def test_elsewhere_a_line_is_one_line_without_colours(capsys) -> None:
    line = f"diagnosis  {'long ' * 60}"

    show_text([line])

    assert capsys.readouterr().out == f"{line}\n"
