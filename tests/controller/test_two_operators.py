"""Several operators alive at once: exactly one moves a fleet, whatever stops one of them for how long.

A process is stopped with SIGSTOP, also right between a write's leaving it and its reaching the API
server: what it sent comes to the API server when another has long finished the run.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kvmedic.kube.installations import SERVES
from kvmedic.settings import ShardOptions
from lab.cluster.light import LightCluster
from lab.scripted.proxy import Fate, Proxy, Write
from worlds.phases import PATIENCE_SECONDS, Phase, drained, let_go, reach
from worlds.world import Eye, World, no_harm

FIRST, SECOND = "operator-0", "operator-1"
SHARDS = 3
QUIET_SECONDS = 2.0
"""Two minutes of the fast clock, in which a process that thinks it may act would act."""
CONFLICTS = frozenset({409, 422})
"""What the API server says to a patch whose test fails, and to a version that is not the newest."""

AddProxy = Callable[[Callable[[Write], Fate]], Proxy]


@pytest.fixture
def another_way(light: LightCluster) -> Iterator[AddProxy]:
    """Makes further ways to the API server, so that what each process sends can be distinguished."""
    with ExitStack() as stack:
        yield lambda decide: stack.enter_context(Proxy(light.url, light.token, decide))


class Stall:
    """Holds one write back until it is let through."""

    def __init__(self, verb: str, kind: str, move: str) -> None:
        self.what = (verb, kind, move)
        self.reached, self.opened = threading.Event(), threading.Event()

    def decide(self, write: Write) -> Fate:
        verb, kind, move = self.what
        if not self.reached.is_set() and (write.verb, write.object) == (verb, kind) and move in write.step:
            self.reached.set()
            self.opened.wait(100)
        return Fate.PASS


def holder(world: World) -> str:
    lease = world.cluster.api.get("Lease", "kvmedic", world.namespace)
    return str(lease["spec"].get("holderIdentity") or "")


def leases_of_leaders(world: World) -> set[str]:
    """The Leases of processes that lead; the installation's own is of all of them."""
    leases = world.cluster.api.list("Lease", world.namespace)
    held = {each["metadata"]["name"] for each in leases if each["spec"].get("holderIdentity")}
    return held - {SERVES}


def on_fleet(proxy: Proxy) -> list[Write]:
    return [write for write in proxy.writes if write.object != "leases"]


def committed(*proxies: Proxy) -> list[str]:
    """Return the claims that the API server accepted, in order."""
    claims = sorted(claim for proxy in proxies for claim in proxy.claims)
    return [value for _, value, status in claims if status < 300]


def assert_healed_once(world: World, eye: Eye, *proxies: Proxy) -> None:
    claims = committed(*proxies)
    runs = {claim.rpartition("/")[0] for claim in claims}
    assert world.outcomes() == ["Recovered"]
    assert len(runs) == 1
    assert [int(claim.rpartition("/")[2]) for claim in claims] == list(range(1, len(claims) + 1))
    assert len(eye.seen) == 4, "each replica was replaced once"
    assert eye.lost == []
    assert eye.fewest >= 2
    assert world.traces() == []


def versions(world: World) -> list[str]:
    objects = [world.deployment(), world.resource(), *world.pods()]
    return [each["metadata"]["resourceVersion"] for each in objects]


def test_of_three_shards_one_moves_and_the_others_leave_its_fleet_alone(a_world, another_way):
    """Also what it cordoned: to the others its pods are led by no resource that they know."""
    world = a_world(2)
    mine = next(i for i in range(SHARDS) if ShardOptions(index=i, count=SHARDS).covers(world.namespace))
    others = [another_way(no_harm) for _ in range(SHARDS - 1)]
    ways = dict(zip((i for i in range(SHARDS) if i != mine), others, strict=True))

    with Eye(world.cluster, world.namespace, 2) as eye:
        for index, way in ways.items():
            world.settings["shard"] = {"index": index, "count": SHARDS}
            world.start(f"shard-{index}", way)
        world.settings["shard"] = {"index": mine, "count": SHARDS}
        reach(world, Phase.DRAIN)
        leases = {f"kvmedic-shard-{index}" for index in range(SHARDS)}
        world.wait(lambda: leases_of_leaders(world) == leases, PATIENCE_SECONDS, "each shard leads")
        time.sleep(QUIET_SECONDS)
        assert drained(world), "another shard led the drained replica back"
        let_go(world)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert_healed_once(world, eye, world.proxy)
    assert [on_fleet(way) for way in others] == [[], []]


def test_one_that_was_stopped_for_long_finds_everything_done(a_world, another_way):
    world = a_world(2)
    other = another_way(no_harm)

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, Phase.DRAIN)
        first, held = world.operators[0], holder(world)
        first.signal(signal.SIGSTOP)
        world.start(SECOND, other)
        world.wait(lambda: holder(world) != held, PATIENCE_SECONDS, "the second takes over")
        assert drained(world), "the drain was not ended by the change of hands"
        let_go(world)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
        before = versions(world)
        first.signal(signal.SIGCONT)
        time.sleep(QUIET_SECONDS)

    assert versions(world) == before
    assert_healed_once(world, eye, world.proxy, other)


STALLS = {
    "the freezing patch": Stall("PATCH", "deployments", "Freeze"),
    "a pulse": Stall("PATCH", "deployments", "Pulse"),
    "the restoring patch": Stall("PATCH", "deployments", "Restore"),
    "a cordon": Stall("PATCH", "pods", ""),
    "a record": Stall("PUT", "kvremediations/status", "Pulse"),
}


@pytest.mark.parametrize("name", STALLS)
def test_a_write_that_comes_late_changes_nothing(a_world, another_way, name):
    stall = STALLS[name]
    world = a_world(2, decide=stall.decide)
    other = another_way(no_harm)

    try:
        with Eye(world.cluster, world.namespace, 2) as eye:
            world.start(FIRST)
            world.wait(stall.reached.is_set, PATIENCE_SECONDS, f"{name} is sent")
            first = world.operators[0]
            first.signal(signal.SIGSTOP)
            world.start(SECOND, other)
            world.wait(world.is_closed, PATIENCE_SECONDS, "the second closes the run")
            before = versions(world)
            stall.opened.set()
            time.sleep(QUIET_SECONDS / 2)
            first.signal(signal.SIGCONT)
            time.sleep(QUIET_SECONDS)
    finally:
        stall.opened.set()

    assert versions(world) == before
    assert_healed_once(world, eye, world.proxy, other)
    if stall.what[1] == "deployments":
        assert world.proxy.claims[-1][2] in CONFLICTS
