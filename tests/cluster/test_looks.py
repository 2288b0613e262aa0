"""A quick look made of what watches keep: what the API server would have answered, without asking it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kvmedic.cluster import snapshot
from kvmedic.cluster.fronts import Depth
from kvmedic.cluster.looks import QuickLooks, read_target, watched_kinds
from kvmedic.cluster.neighbours.appliers import neighbours_of
from kvmedic.cluster.node_inventory import room_for
from kvmedic.engines import profiles_for
from kvmedic.kube.client import Client
from kvmedic.kube.packing import Packed, Packer
from kvmedic.kube.watches import Watches
from kvmedic.model.fleet import Fleet
from kvmedic.model.spec import Policy
from kvmedic.runbooks import workload
from kvmedic.runbooks.workload import EngineLine, View
from worlds.asked import a_resource
from worlds.live_fleet import TARGET, LiveFleet, is_whole


@dataclass
class Counting:
    """A client that counts single reads; lists that begin a watch are pages."""

    client: Client
    calls: int = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += name in ("get", "list", "read_each")
        return getattr(self.client, name)


@dataclass
class Beside:
    """A fleet as the watches know it, beside the same as the API server has it."""

    live: LiveFleet
    client: Counting
    quick_looks: QuickLooks
    policy: Policy

    async def quick_look(self) -> View | None:
        return await self.quick_looks.at(self.live.namespace, self.policy)

    async def is_same(self) -> None:
        """Wait until both are the same: a watch follows a moment later."""
        for _ in range(100):
            stored = await read_target(self.live.client, self.live.namespace, self.policy, Depth.QUICK)
            kept = await self.quick_look()
            if kept == stored:
                break
            await asyncio.sleep(0.05)
        assert kept == stored


@pytest.fixture
async def beside(live: LiveFleet) -> AsyncIterator[Beside]:
    counting, policy = Counting(live.client), a_resource().policy
    assert policy is not None
    watches = Watches(counting, watched_kinds(), (live.namespace,))  # type: ignore[arg-type]
    task = asyncio.create_task(watches.follow_while(lambda: True))
    await asyncio.sleep(0)
    yield Beside(live, counting, QuickLooks(watches), replace(policy, target=TARGET))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_at_each_stage_a_quick_look_is_what_the_api_server_has_and_asks_for_nothing(
    beside: Beside,
) -> None:
    assert await beside.quick_look() is None
    live = beside.live
    await live.serving(2)
    await beside.is_same()
    calls = beside.client.calls

    first, again = await beside.quick_look(), await beside.quick_look()
    assert first is not None
    assert again is not None
    assert first == again
    lines = [each.engine_line(TARGET) for each in (first, again)]
    assert isinstance(lines[0], EngineLine)
    assert lines[0] == lines[1]
    assert beside.client.calls == calls

    def is_new(fleet: Fleet) -> bool:
        return is_whole(fleet) and {pod.revision for pod in fleet.pods} != {first.fleet.revision}

    live.patch({"spec": {"template": {"metadata": {"annotations": {"restarted": "now"}}}}})
    await live.until(is_new, "the new revision serves")
    await beside.is_same()
    pod = (await live.fleet()).pods[0]
    live.patch_pod(pod.name, {"metadata": {"labels": {"serving": "draining"}}})
    await beside.is_same()
    live.light.api.delete("Service", "llm", live.namespace)
    await beside.is_same()
    live.light.api.delete("Deployment", "llm", live.namespace)
    async with asyncio.timeout(10):
        while await beside.quick_look() is not None:
            await asyncio.sleep(0.05)
    assert beside.client.calls == calls


async def test_a_quick_look_knows_the_engine_that_a_target_names(beside: Beside) -> None:
    await beside.live.serving(1)
    named = replace(TARGET, engine="vLLM")
    beside.policy = replace(beside.policy, target=named)
    await beside.is_same()

    view = await beside.quick_look()

    assert view is not None
    line = view.engine_line(named)
    assert isinstance(line, EngineLine)
    assert line.engine.profile is profiles_for("vLLM")[0]


async def test_room_for_a_spare_is_the_same_by_what_watches_keep(beside: Beside) -> None:
    gpus = {"limits": {"nvidia.com/gpu": "1"}}
    await beside.live.serving(1, resources=gpus)
    await beside.is_same()
    view = await beside.quick_look()
    assert view is not None

    kept = await room_for(beside.quick_looks.watches, view.fleet, view.template)

    assert kept == await room_for(beside.live.client, view.fleet, view.template)


async def test_who_else_has_a_say_is_known_without_asking_though_the_cluster_lacks_most_of_them(
    beside: Beside,
) -> None:
    await beside.live.serving(1)
    await beside.is_same()
    view = await beside.quick_look()
    assert view is not None
    watches, fleet = beside.quick_looks.watches, view.fleet
    await neighbours_of(watches, fleet, view.template)
    calls = beside.client.calls

    kept = await neighbours_of(watches, fleet, view.template)

    assert beside.client.calls == calls
    assert kept == await neighbours_of(beside.live.client, fleet, view.template)


async def test_command_lines_are_read_in_a_thread_and_once(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    await beside.live.serving(1)
    readers, read = [], workload.parse_line

    def noted(*args: Any) -> Any:
        readers.append(threading.current_thread())
        return read(*args)

    monkeypatch.setattr(workload, "parse_line", noted)
    view = await read_target(beside.live.client, beside.live.namespace, beside.policy)
    assert view is not None
    reads = len(readers)

    assert isinstance(view.engine_line(TARGET), EngineLine)

    assert threading.current_thread() not in readers
    assert len(readers) == reads > 0


async def test_engines_and_ports_are_found_in_a_thread(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    await beside.live.serving(1)
    readers = []
    for name in ("invocation_of", "port_of"):
        read = getattr(snapshot, name)

        def noted(*args: Any, read: Callable[..., Any] = read) -> Any:
            readers.append(threading.current_thread())
            return read(*args)

        monkeypatch.setattr(snapshot, name, noted)

    await read_target(beside.live.client, beside.live.namespace, beside.policy)

    assert len(readers) >= 2
    assert threading.current_thread() not in readers


async def test_a_view_is_packed_in_a_thread(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    await beside.live.serving(1)
    hands, pack = [], Packer.pack_object

    def noted(packer: Packer, made: object) -> Packed:
        hands.append(threading.current_thread())
        return pack(packer, made)

    monkeypatch.setattr(Packer, "pack_object", noted)

    async with asyncio.timeout(30):
        while not hands:
            await beside.quick_look()
            await asyncio.sleep(0.05)

    assert threading.current_thread() not in hands
