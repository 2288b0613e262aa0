"""The demo's last step: the report on its run, or why there is none."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from datetime import timedelta
from subprocess import CompletedProcess
from typing import Any

import pytest
from typer.testing import CliRunner

from kvmedic.cli.app import app_for
from lab.demo import KVMEDIC, NAMESPACE, write_report
from lab.play.schema import FLEET
from run_builder import NOW
from worlds.api_double import a_command_line, a_resource, walking

NOWHERE = "http://127.0.0.1:9"


def run_here(argv: list[str], **_: Any) -> CompletedProcess[str]:
    """Run the command in this process, which has imported it."""
    assert tuple(argv[:3]) == KVMEDIC
    done = CliRunner().invoke(app_for(argv[3:]), argv[3:])
    return CompletedProcess(argv, done.exit_code, done.stdout, done.stderr)


def test_the_report_on_the_run_is_written_where_the_demo_says(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.demo.subprocess.run", run_here)
    file = tmp_path / "report.html"
    with ExitStack() as stack:
        body = a_resource(FLEET, walking(), namespace=NAMESPACE)
        made = a_command_line(stack, tmp_path, NOW + timedelta(minutes=1), [body])

        found = write_report(NOWHERE, file, made.kubeconfig)

    assert (found.is_well, found.line) == (True, f"the report on the run: {file}")
    assert f"of {NAMESPACE}/{FLEET}</title>" in file.read_text()


@pytest.mark.parametrize(
    ("code", "is_well", "line"),
    [
        (2, False, "ERROR: no report on the run (exit code 2): the API is gone"),
        (3, True, "no report: the API is gone"),
    ],
)
def test_a_report_that_is_missing_has_its_reason_and_leaves_no_older_one(tmp_path, code, is_well, line):
    file = tmp_path / "report.html"
    file.write_text("of the demo before")
    program = f"import sys; print('the API\\nis gone', file=sys.stderr); sys.exit({code})"

    found = write_report(NOWHERE, file, kvmedic=[sys.executable, "-S", "-c", program])

    assert (found.is_well, found.line) == (is_well, line)
    assert not file.exists()


def test_a_report_that_never_comes_ends_the_demo_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.demo.REPORT_SECONDS", 0.05)
    forever = [sys.executable, "-S", "-c", "import time; time.sleep(30)"]

    found = write_report(NOWHERE, tmp_path / "report.html", kvmedic=forever)

    assert not found.is_well
    assert "not made in 0.05 s" in found.line
