"""What a person is told who waits for a step."""

import time

import pytest

from lab.cluster import progress


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(progress, "STILL_SECONDS", 0.1)


def test_a_long_step_is_announced_and_goes_on_and_ends(capsys):
    with progress.step("a build"):
        time.sleep(0.6)

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[lab] a build ..."
    assert lines[1].endswith("so far")
    assert lines[-1].startswith("[lab] a build: 0.")


def test_a_short_step_is_told_once(capsys):
    with progress.step("a look"):
        pass

    time.sleep(0.3)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_step_that_fails_says_so_and_is_silent_afterwards(capsys):
    with pytest.raises(ValueError, match="broken"), progress.step("a look"):
        raise ValueError("broken")

    time.sleep(0.3)
    assert "failed after" in capsys.readouterr().err.splitlines()[-1]
