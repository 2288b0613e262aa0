"""What is looked at anew now and then: the resources that there are, and pods that nothing leads to."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kvmedic.controller.orphans import StandIns
from kvmedic.kube.errors import Call, Conflict, Refused
from kvmedic.loop import Loop, Rounds
from kvmedic.model.fleet import (
    FROZEN_MIN_READY_SECONDS,
    FROZEN_PROGRESS_DEADLINE_SECONDS,
    Cordoned,
    ObjectRef,
    template_hash,
)
from kvmedic.model.status import Key, Wish
from kvmedic.record.store import peer_of
from kvmedic.rollout.gates.one_resource_per_target import Roster
from kvmedic.rollout.gates.runs_at_once import Peer


def a_peer(name: str, **fields: Any) -> Peer:
    return Peer("serving", name, f"uid-{name}", name, **fields)


def key_of(peer: Peer) -> Key:
    return Key(peer.namespace, peer.name, peer.uid)


def a_pod(name: str, deployment: str = "d", namespace: str = "serving") -> Cordoned:
    return Cordoned(namespace, name, f"uid-{name}", "1", deployment)


class World:
    """A loop, its roster, and what is there."""

    def __init__(self, *peers: Peer, pods: tuple[Cordoned, ...] = (), leads: bool = True) -> None:
        self.there, self.freed, self.forgotten = list(peers), [], []
        self.loop, self.roster = Loop(self.tick, 1), Roster()
        self.refuses: dict[str, Exception] = {}
        target = SimpleNamespace(find_cordoned_pods=self.left(pods), free=self.free)
        leader = SimpleNamespace(is_held=lambda: leads)
        ports: Any = SimpleNamespace(target=target, leader=leader, pace=SimpleNamespace(idle=timedelta(1)))
        self.stand_ins = StandIns(ports, self.roster)
        self.rounds = Rounds(
            ports, self.loop, self.roster, self.forgotten.append, self.census, ("serving",), self.stand_ins
        )

    async def tick(self, key: Key) -> float | None:
        return None

    def left(self, pods: tuple[Cordoned, ...]) -> Any:
        async def left(namespace: str) -> tuple[Cordoned, ...]:
            return pods

        return left

    async def free(self, pod: Cordoned) -> None:
        if pod.name in self.refuses:
            raise self.refuses[pod.name]
        self.freed.append(pod.name)

    async def census(self) -> tuple[Peer, ...]:
        return tuple(self.there)


async def test_a_resource_that_no_watch_reported_is_looked_at_and_one_that_is_gone_is_not() -> None:
    new, gone = a_peer("new", created_at="2026-01-01T00:00:00Z"), a_peer("gone")
    world = World(new)
    world.loop.wake(key_of(gone))

    await world.rounds.make_round()

    assert world.loop.keys() == (key_of(new),)
    assert world.roster.peers() == (new,)
    assert world.forgotten == [gone.uid]


async def test_a_resource_whose_last_look_found_nothing_is_nobodys_older_resource_any_more() -> None:
    new, gone = a_peer("new", created_at="2026-01-02T00:00:00Z"), a_peer("gone")
    world = World(new)
    world.roster.note(key_of(gone), replace(gone, created_at="2026-01-01T00:00:00Z"))

    await world.rounds.make_round()

    assert world.roster.peers() == (new,)
    assert world.forgotten == [gone.uid]
    assert world.loop.keys() == (key_of(new),)


async def test_a_resource_that_is_made_while_the_others_are_listed_is_not_forgotten() -> None:
    world, made = World(), a_peer("made")

    async def census() -> tuple[Peer, ...]:
        world.loop.wake(key_of(made))
        return ()

    world.census = census  # type: ignore[method-assign]
    object.__setattr__(world.rounds, "census", census)
    await world.rounds.make_round()

    assert world.loop.keys() == (key_of(made),)


POD = a_pod("a")


@pytest.mark.parametrize(
    ("peers", "freed"),
    [
        ((), ["a"]),
        ((a_peer("r"),), ["a"]),
        ((a_peer("r", deployment="d"),), []),
        ((a_peer("r", deployment="another"),), ["a"]),
        ((a_peer("r", is_unclear=True),), []),
    ],
    ids=["no resource", "no run", "a run", "a run of another", "a run that names no target"],
)
async def test_a_pod_that_no_open_run_is_about_serves_again(
    peers: tuple[Peer, ...], freed: list[str]
) -> None:
    world, waits = World(*peers, pods=(POD,)), World(*peers, pods=(POD,), leads=False)

    await world.rounds.make_round()
    await waits.rounds.make_round()

    assert world.freed == freed
    assert waits.freed == [], "who does not lead changes nothing"


async def test_one_that_cannot_be_put_back_does_not_keep_the_others() -> None:
    world = World(pods=(a_pod("a"), a_pod("b"), a_pod("c")))
    call = Call("patch", "/x")
    world.refuses = {"a": Refused(call, 403, "denied"), "b": Conflict(call, 409, "moved")}

    await world.rounds.make_round()

    assert world.freed == ["c"]


@pytest.mark.parametrize(
    ("status", "deployment", "is_unclear"),
    [
        ({}, "", False),
        ({"run": {"id": "1", "targetUid": "d"}}, "d", False),
        ({"run": {"id": "1"}}, "", True),
        ({"run": {"id": "1", "targetUid": 7}}, "", True),
        ({"run": "nonsense"}, "", True),
    ],
)
def test_which_deployment_a_status_is_about(
    status: dict[str, Any], deployment: str, *, is_unclear: bool
) -> None:
    peer = peer_of({"metadata": {"name": "r"}, "status": status})

    assert (peer.deployment, peer.is_unclear) == (deployment, is_unclear)


RECORDED = (
    '{"paused": false, "maxSurge": 1, "maxUnavailable": 0, "minReadySeconds": 0, '
    '"progressDeadlineSeconds": 600, "template": "h", "replicaSet": "d-1"'
)
LABEL = ', "rotationLabel": "serving", "draining": "draining"}'


TEMPLATE = {"spec": {"containers": [{"name": "vllm", "args": ["--max-num-seqs=64"]}]}}


def a_frozen(
    note: str = RECORDED + LABEL, frozen: int = FROZEN_MIN_READY_SECONDS, template: Any = None
) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": "d",
            "annotations": {"kvmedic.io/run": "uid-gone/1/3", "kvmedic.io/recorded": note},
        },
        "spec": {
            "template": template or {},
            "minReadySeconds": frozen,
            "progressDeadlineSeconds": FROZEN_PROGRESS_DEADLINE_SECONDS,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        },
    }


BACK = (RECORDED + LABEL).replace('"template": "h"', f'"template": "{template_hash(TEMPLATE)}"')
IN_ITS_PLACE = Key("serving", "llm", "uid-gone")


@pytest.mark.parametrize(
    ("peers", "body", "leads", "found"),
    [
        ((), a_frozen(), True, True),
        ((a_peer("other"),), a_frozen(), True, True),
        ((a_peer("gone"),), a_frozen(), True, False),
        ((a_peer("llm"),), a_frozen(), True, False),
        ((), a_frozen(frozen=0), True, False),
        ((), a_frozen(BACK, frozen=0, template=TEMPLATE), True, True),
        ((), a_frozen(RECORDED + "}"), True, False),
        ((), a_frozen("nonsense"), True, False),
        ((), a_frozen(), False, False),
    ],
    ids=[
        "no resource",
        "one of another fleet",
        "the claimant is there",
        "another looks after the fleet",
        "nothing is frozen, and the change is in force",
        "nothing is frozen, and it is as it was",
        "the note names no label",
        "the note is none",
        "another process leads",
    ],
)
async def test_a_frozen_fleet_whose_resource_is_gone_is_looked_at_in_its_place(
    peers: tuple[Peer, ...], body: dict[str, Any], *, leads: bool, found: bool
) -> None:
    pod = a_pod("a")
    world = World(*peers, pods=(pod,), leads=leads)
    world.stand_ins.note("serving", ObjectRef("Deployment", "llm"), body, is_deleted=False)

    await world.rounds.make_round()
    await world.rounds.make_round()

    assert (IN_ITS_PLACE in world.loop.keys()) is found  # noqa: SIM118 - a method of the loop
    assert (world.freed == []) is (found or not leads), "a replica that it drains stays out of rotation"
    resource = await world.stand_ins.load(IN_ITS_PLACE) if found else None
    assert resource is None or (resource.is_stand_in and resource.wish is Wish.DELETE)


async def test_nothing_stands_in_any_longer_once_a_resource_looks_after_the_fleet() -> None:
    world = World()
    world.stand_ins.note("serving", ObjectRef("Deployment", "llm"), a_frozen(), is_deleted=False)
    await world.rounds.make_round()
    made = a_peer("llm", created_at="2026-01-02T00:00:00Z")
    world.roster.note(key_of(made), made)

    assert await world.stand_ins.load(IN_ITS_PLACE) is None
    assert world.stand_ins.keys() == ()
    world.stand_ins.note("serving", ObjectRef("Deployment", "llm"), a_frozen(), is_deleted=True)
    assert world.stand_ins.list_frozen_fleets() == {}


async def test_pods_of_another_shard_are_left_to_it_and_its_resources_are_nobodys_here() -> None:
    own, foreign = a_pod("own"), a_pod("foreign", namespace="theirs")
    world = World(pods=(own, foreign))
    world.rounds.holds = "serving".__eq__

    await world.rounds.make_round()

    assert world.freed == ["own"]
