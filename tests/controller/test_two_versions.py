"""A run is begun by one version of the operator and ended by another: an upgrade, and a downgrade.

Each version is a package in a directory of its own with an interpreter of its own. The other one has another
number; a later one writes fields that this one does not know, an earlier one lacks those that may be absent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import kvmedic
from lab.scripted.proxy import Fate
from worlds.killing import Killer
from worlds.phases import PATIENCE_SECONDS, Phase, let_go, reach
from worlds.versions import ADDED, EARLIER, LACKED, LATER, PACKAGE, Version, make_version
from worlds.world import Eye, World

OURS = kvmedic.__version__


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Version]]:
    """Each version, from which processes are started."""
    packages = {each: make_version(each, tmp_path_factory.mktemp("version")) for each in (EARLIER, LATER)}
    with ExitStack() as stack:
        found = {each: Version(package) for each, package in {**packages, OURS: PACKAGE}.items()}
        for each in found.values():
            stack.callback(each.close)
        yield found


def versions(world: World) -> list[str]:
    """Return the version of each process that was started, in order."""
    said = "this is kvmedic "
    return [line.removeprefix(said) for line in world.log.splitlines() if line.startswith(said)]


def is_written_by(world: World, version: str) -> bool:
    """Return whether the open run's record is one that a version writes."""
    run = world.status().get("run", {})
    if version == EARLIER:
        return bool(run) and not set(LACKED) & set(run)
    return "costSoFar" in run and (ADDED in run) is (version == LATER)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(EARLIER, OURS, id="an earlier one, upgraded"),
        pytest.param(OURS, LATER, id="this one, upgraded"),
        pytest.param(LATER, OURS, id="a later one, downgraded"),
        pytest.param(OURS, EARLIER, id="this one, downgraded"),
    ],
)
def test_a_run_that_one_version_began_is_ended_by_another(a_world, made, first, second):
    world = a_world(2)
    world.make_operator = made[first].operator

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, Phase.DRAIN)
        assert is_written_by(world, first)
        began = world.status()["run"]["id"]
        world.make_operator = made[second].operator
        world.kill()
        let_go(world)
        world.wait(
            lambda: is_written_by(world, second), PATIENCE_SECONDS, "the other version writes the record"
        )
        assert world.status()["run"]["id"] == began
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert versions(world) == [first, second]
    assert [each["id"] for each in world.status()["history"]] == [began]
    assert world.outcomes() == ["Recovered"]
    assert len(eye.seen) == 4, "each replica was replaced once"
    assert eye.lost == []
    assert eye.fewest >= 2
    assert world.traces() == []


@pytest.mark.parametrize("other", [EARLIER, LATER])
def test_killed_at_every_write_of_the_fleet_and_gone_on_with_by_the_other_version(a_world, made, other):
    killer = Killer(Fate.KILL_AFTER, objects={"deployments", "pods"})
    world = a_world(2, decide=killer.decide)
    before = world.deployment()["spec"]
    turns = itertools.cycle([made[OURS], made[other]])
    world.make_operator = lambda arrangement: next(turns).operator(arrangement)
    world.rewrite(new="worse")

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(world.is_closed, 2 * PATIENCE_SECONDS, "the run closes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    print(killer.report())
    assert set(versions(world)) == {OURS, other}
    assert len(versions(world)) >= 8, "it was taken over again and again, forth and back"
    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert len(eye.seen) == 6, "each replica was replaced once forth and once back"
    assert eye.lost == []
    assert eye.fewest >= 2
    assert world.traces() == []
