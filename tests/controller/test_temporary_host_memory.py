"""Host memory that is added and given back, on real controllers: once, drained, and never fought over."""

from __future__ import annotations

import time

import pytest

from worlds.host_memory import LOOKS_SECONDS, PATIENCE_SECONDS, host_memory_spec, roomy, temporary_changes
from worlds.people import delete_resource, is_gone
from worlds.world import World

HOST_MEMORY = "--kv-offloading-size=16"

pytestmark = pytest.mark.timeout(3 * PATIENCE_SECONDS)


def add_host_memory(world: World) -> None:
    """Start the operator and wait until host memory was added, judged and kept."""
    world.rewrite(new="smooth")
    world.start()
    world.wait(
        lambda: bool(temporary_changes(world)) and "run" not in world.status(), PATIENCE_SECONDS, "it is kept"
    )
    assert world.args()[-1] == HOST_MEMORY
    [held] = temporary_changes(world)
    step = held["step"]
    assert (step["knob"], step["after"], step["afterTemplate"]) == (
        "kvOffloadingSize",
        "16",
        world.revision(),
    )
    assert "before" not in step, "the engine's own default"


def test_what_does_not_hold_is_added_again_once_and_remembered(a_world):
    world = a_world(spec=host_memory_spec(), change=roomy)
    add_host_memory(world)

    world.rewrite(old="thrash", new="idle")
    world.wait(lambda: len(world.outcomes()) == 2, PATIENCE_SECONDS, "it is added again")
    time.sleep(LOOKS_SECONDS)

    assert world.outcomes() == ["NotRecovered", "Improved"]
    assert world.args()[-1] == HOST_MEMORY
    [failed] = world.status()["failedAttempts"]
    assert (failed["attempt"], failed["template"]) == ("GiveBack", world.revision())
    assert len(temporary_changes(world)) == 1


def test_a_person_who_removes_the_flag_is_not_fought(a_world):
    world = a_world(spec=host_memory_spec(), change=roomy)
    add_host_memory(world)
    world.rewrite(old="recovered", new="recovered")

    at = len(world.args()) - 1
    world.kubectl(
        "patch",
        "deployment",
        "llm",
        "--type=json",
        f'-p=[{{"op":"remove","path":"/spec/template/spec/containers/0/args/{at}"}}]',
    )
    world.wait(lambda: temporary_changes(world) == [], PATIENCE_SECONDS, "it is forgotten")

    assert HOST_MEMORY not in world.args()
    assert world.outcomes() == ["Improved"]


def test_a_deleted_resource_restores_its_temporary_changes_first(a_world):
    world = a_world(spec=host_memory_spec(), change=roomy)
    before = world.deployment()["spec"]["template"]
    add_host_memory(world)

    delete_resource(world)
    world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")

    assert world.deployment()["spec"]["template"] == before
    assert world.traces() == []
