"""Missing packages are installed, and nothing that comes with them is started."""

import subprocess

import pytest

from lab.cluster import debian


class Apt:
    """Takes notes; `outcomes` are the exit codes of the next calls, 0 when there are none left."""

    def __init__(self, policy):
        self.policy = policy
        self.outcomes = []
        self.calls = []

    def __call__(self, *arguments):
        policy = self.policy.read_text() if self.policy.exists() else ""
        self.calls.append((arguments[0], policy))
        code = self.outcomes.pop(0) if self.outcomes else 0
        return subprocess.CompletedProcess(arguments, code, stdout="E: no such package")


@pytest.fixture
def apt(tmp_path, monkeypatch):
    fake = Apt(tmp_path / "policy-rc.d")
    monkeypatch.setattr(debian, "_POLICY", fake.policy)
    monkeypatch.setattr(debian, "_apt", fake)
    monkeypatch.setattr(debian, "_disable_services", lambda installed: None)
    monkeypatch.setattr(debian, "NEEDS", {"there": "sh", "missing": "/nowhere/missing"})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return fake


def test_what_is_there_is_not_asked_for(apt):
    debian.ensure(["there"])

    assert apt.calls == []


def test_services_may_not_start_during_the_installation_and_may_afterwards(apt):
    debian.ensure(["there", "missing"])

    assert apt.calls == [("install", "#!/bin/sh\nexit 101\n")]
    assert not apt.policy.exists()


def test_the_policy_of_the_machine_is_left_alone(apt):
    apt.policy.write_text("its own")

    debian.ensure(["missing"])

    assert apt.calls == [("install", "its own")]
    assert apt.policy.read_text() == "its own"


def test_lists_are_fetched_when_the_installation_fails_without_them(apt):
    apt.outcomes = [100, 100]

    debian.ensure(["missing"])

    assert [call for call, _ in apt.calls] == ["install", "update", "install"]


def test_a_failure_names_the_package_and_lifts_the_policy(apt):
    apt.outcomes = [100, 0, 100]

    with pytest.raises(RuntimeError, match="apt-get install missing failed:\nE: no such package"):
        debian.ensure(["missing"])

    assert not apt.policy.exists()


def test_without_root_the_missing_package_is_named(apt, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with pytest.raises(PermissionError, match="missing missing; install them, or run this as root"):
        debian.ensure(["there", "missing"])

    assert apt.calls == []
