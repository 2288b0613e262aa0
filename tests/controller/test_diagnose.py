"""`kvmedic diagnose` against a real API server: it looks, says what it saw, and writes nothing."""

from __future__ import annotations

import json
import subprocess

import pytest

from worlds.command_line import kvmedic


@pytest.fixture
def diagnose(a_world):
    world = a_world()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return kvmedic(world, "diagnose", *arguments)

    run.world = world
    return run


def test_without_metrics_it_says_so_and_exits_3(diagnose):
    before = diagnose.world.resource()["metadata"]["resourceVersion"]

    done = diagnose("llm", "-o", "json", "--prometheus", "http://127.0.0.1:9")

    answer = json.loads(done.stdout)
    assert done.returncode == 3
    assert answer["branch"] is None
    assert answer["reason"] == "SourceUnavailable"
    assert answer["plan"] == []
    assert diagnose.world.resource()["metadata"]["resourceVersion"] == before


def test_a_resource_that_is_not_there_is_named_and_exits_4(diagnose):
    done = diagnose("nobody")

    assert done.returncode == 4
    assert "nobody does not exist" in done.stderr


def test_the_text_names_each_replica_and_what_is_missing(diagnose):
    done = diagnose("llm", "-v", "--prometheus", "http://127.0.0.1:9")

    pods = [pod["metadata"]["name"] for pod in diagnose.world.pods()]
    assert all(f"evidence   {pod}: " in done.stdout for pod in pods)
    assert "missing (SourceUnavailable)" in done.stdout
    assert done.stdout.startswith("diagnosis ")
    assert done.stdout.splitlines()[-1].startswith("next       kvmedic explain llm")
