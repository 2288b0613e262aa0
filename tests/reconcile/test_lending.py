"""Host memory that is lent and given back, on real controllers: once, drained, and never fought over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from reconcile.test_levers import LOOKS_SECONDS
from reconcile.test_people import delete_resource, is_gone
from reconcile.test_supply_levers import PATIENCE_SECONDS, roomy
from reconcile.world import Eye, World

LENT = "--kv-offloading-size=16"


def lending(**more: Any) -> dict[str, Any]:
    """Return a spec that lends host memory, and asks for it back soon: three seconds of the fast clock."""
    lever = {"name": "cpuOffload", "maxGiB": 16, "restoreAfter": "1m"}
    return {"levers": [lever], "limits": {"cooldown": "1s", "maxRunsPerDay": 10}, **more}


def lent(world: World) -> list[dict[str, Any]]:
    """Return what the status says is lent."""
    return list(world.status().get("borrowed") or [])


def lend(world: World) -> None:
    """Start the operator and wait until host memory was lent, judged and kept."""
    world.rewrite(new="smooth")
    world.start()
    world.wait(lambda: bool(lent(world)) and "run" not in world.status(), PATIENCE_SECONDS, "it is kept")
    assert world.args()[-1] == LENT


def is_given_back(world: World) -> bool:
    return lent(world) == [] and world.is_closed()


@pytest.mark.timeout(900)
def test_what_was_lent_is_given_back_drained_when_nobody_needs_it(a_world: Callable[..., World]) -> None:
    world = a_world(spec=lending(), change=roomy)
    before = world.deployment()["spec"]["template"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        lend(world)
        world.rewrite(old="idle", new="idle")
        world.wait(lambda: is_given_back(world), PATIENCE_SECONDS, "it is given back")

    assert world.outcomes() == ["Recovered", "Improved"]
    assert world.deployment()["spec"]["template"] == before
    assert world.traces() == []
    assert (eye.lost, eye.fewest >= 2) == ([], True)


@pytest.mark.timeout(900)
def test_what_does_not_hold_is_lent_again_once_and_remembered(a_world: Callable[..., World]) -> None:
    world = a_world(spec=lending(), change=roomy)
    lend(world)

    world.rewrite(old="thrash", new="idle")
    world.wait(lambda: len(world.outcomes()) == 2, PATIENCE_SECONDS, "it is lent again")
    time.sleep(LOOKS_SECONDS)

    assert world.outcomes() == ["NotRecovered", "Improved"]
    assert world.args()[-1] == LENT
    [failed] = world.status()["failedAttempts"]
    assert (failed["attempt"], failed["template"]) == ("GiveBack", world.revision())
    assert len(lent(world)) == 1


@pytest.mark.timeout(900)
def test_a_person_who_removes_the_flag_is_not_fought(a_world: Callable[..., World]) -> None:
    world = a_world(spec=lending(), change=roomy)
    lend(world)
    world.rewrite(old="recovered", new="recovered")

    at = len(world.args()) - 1
    world.kubectl(
        "patch",
        "deployment",
        "llm",
        "--type=json",
        f'-p=[{{"op":"remove","path":"/spec/template/spec/containers/0/args/{at}"}}]',
    )
    world.wait(lambda: lent(world) == [], PATIENCE_SECONDS, "it is forgotten")

    assert LENT not in world.args()
    assert world.outcomes() == ["Improved"]


@pytest.mark.timeout(900)
def test_a_deleted_resource_gives_back_what_it_lent_first(a_world: Callable[..., World]) -> None:
    world = a_world(spec=lending(), change=roomy)
    before = world.deployment()["spec"]["template"]
    lend(world)

    delete_resource(world)
    world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")

    assert world.deployment()["spec"]["template"] == before
    assert world.traces() == []
