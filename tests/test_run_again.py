"""What failed beside others is run once more, alone: that test, not all of them (see the Makefile)."""

from __future__ import annotations

from pathlib import Path

pytest_plugins = "pytester"

TESTS = """
import pytest

def test_passes(): pass

def test_fails(): assert False

@pytest.mark.parametrize("who", ["a@b"])
def test_named_like_an_address_fails(who): assert False
"""


def test_only_what_failed_on_workers_is_run_once_more(pytester, monkeypatch):
    tests = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", str(tests))
    pytester.makeconftest((tests / "conftest.py").read_text())
    pytester.makepyfile(TESTS)

    beside = pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup")
    alone = pytester.runpytest_subprocess("--last-failed", "-n", "0")

    beside.assert_outcomes(passed=1, failed=2)
    alone.assert_outcomes(failed=2)
