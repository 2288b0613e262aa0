"""What failed beside others is run once more, alone: that test, not all of them (see run.sh)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

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


PYTHON = """#!/bin/bash
# Stands for Python: `-m pytest` ends as the file of its part says, a line for each time.
part=$(grep -o 'cache_dir=build/tests/[a-z]*' <<<"$*" | sed 's|.*/||')
[ -n "$part" ] || exit 0
echo "$part $*" >>asked
code=$(head -1 "$part.codes")
sed -i 1d "$part.codes"
exit "$code"
"""


@pytest.mark.parametrize(
    ("light", "real", "beside", "code"),
    [
        ("0", "0", "0", 0),
        ("1 0", "0", "0", 0),
        ("0", "1 0", "1 0", 0),
        ("1 1", "0", "0", 1),
        ("0", "1 1", "0", 1),
        ("0", "0", "1 1", 1),
        ("1 1", "0", "5", 1),
        ("5", "5", "0", 0),
        ("5", "5", "5", 5),
        ("3", "0", "0", 3),
        ("0", "0", "4", 4),
        ("2", "", "", 2),
    ],
)
def test_make_test_fails_where_a_test_fails_twice_in_any_part(tmp_path, light, real, beside, code):
    (tmp_path / "tests").mkdir()
    shutil.copy(Path(__file__).parent / "run.sh", tmp_path / "tests")
    python = tmp_path / "build" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    codes = {"light": light.split(), "real": real.split(), "beside": beside.split()}
    for part, lines in codes.items():
        (tmp_path / f"{part}.codes").write_text("".join(f"{line}\n" for line in lines))

    ended = subprocess.run(
        ["bash", str(tmp_path / "tests" / "run.sh")],
        env={"PATH": "/usr/bin:/bin", "PYTEST": "-k 'this or that'"},
        check=False,
        capture_output=True,
        text=True,
    )

    asked = (tmp_path / "asked").read_text().splitlines()
    assert ended.returncode == code, ended.stderr
    assert {part: sum(line.startswith(part) for line in asked) for part in codes} == {
        part: len(lines) for part, lines in codes.items()
    }
    assert all("-k this or that" in line for line in asked)
