"""What stands in the way is reported once: a condition with what to do, one Event, one log line."""

from __future__ import annotations

import time

import pytest

from worlds.conditions import events, message_of
from worlds.phases import PATIENCE_SECONDS
from worlds.reported_problems import REPORTED_PROBLEMS, ReportedProblem, an_older_resource, replace_containers
from worlds.world import World

TICKS_SECONDS = 2.5
"""Some looks more, at one a second: whatever is reported on every look shows."""

KEYS = {
    "Ready": "problem",
    "ActionRequired": "reason",
    "Remediated": "outcome",
    "MetricsAvailable": "diagnosis",
    "Diagnosed": "diagnosis",
}
"""The log line's key for what a condition says."""


def lines(world: World, problem: ReportedProblem) -> list[str]:
    """Return the log lines of the resource that report the problem."""
    expected = ("/llm ", f"{KEYS[problem.condition]}={problem.reason} ")
    return [line for line in world.log.splitlines() if all(part in line for part in expected)]


@pytest.mark.parametrize("name", REPORTED_PROBLEMS)
def test_what_stands_in_the_way_is_reported_once_with_what_to_do(a_world, name):
    problem = REPORTED_PROBLEMS[name]
    world = a_world(2)
    problem.arrange(world)

    world.start()
    said = lambda: world.condition(problem.condition) == (problem.status, problem.reason)  # noqa: E731
    world.wait(said, PATIENCE_SECONDS, f"{problem.reason} is reported")
    sentence = message_of(world, problem.condition)
    time.sleep(TICKS_SECONDS)

    assert problem.advice in sentence
    assert said()
    assert "run" not in world.status()
    assert len(events(world, problem.reason)) == 1
    assert problem.advice in events(world, problem.reason)[0]
    assert len(lines(world, problem)) == 1


def test_an_image_by_digest_blocks_no_flag_that_every_version_has(a_world):
    world = a_world(2)
    replace_containers(world, {"name": "vllm", "image": f"vllm/vllm-openai@sha256:{'5' * 64}"})
    world.rewrite(before="thrash")

    world.start()
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]


def test_when_the_older_resource_goes_the_younger_takes_over(a_world):
    world = a_world(2)
    an_older_resource(world)
    world.start()
    world.wait(lambda: world.condition("Ready") == ("False", "TargetShared"), PATIENCE_SECONDS, "it waits")

    world.kubectl("delete", "kvr", "older")
    world.wait(world.is_closed, PATIENCE_SECONDS, "the younger's run closes")

    assert world.outcomes() == ["Recovered"]
