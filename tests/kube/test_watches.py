"""What watches keep: read without a call, gone on with after trouble, and given up where it is not sure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvmedic.kube import watches as watching
from kvmedic.kube.errors import Call, Expired, Refused, Unavailable
from kvmedic.kube.objects import DEPLOYMENTS, PODS, JsonObject, Ref, Resource
from kvmedic.kube.watches import Asked, Watched, Watches

CALL = Call("watch", "/api/v1/pods")


def a_pod(name: str, version: int, namespace: str = "serving", **labels: str) -> JsonObject:
    metadata = {"name": name, "namespace": namespace, "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": "a"}, "status": {}}


@dataclass
class Server:
    """Answers lists, and hands out watches that end, break or report as the test says."""

    pods: list[JsonObject] = field(default_factory=list)
    version: int = 10
    refusal: Refused | None = None
    is_down: bool = False
    """No watch can be opened."""
    lists: int = 0
    reads: int = 0
    watched: list[str] = field(default_factory=list)
    """The version that each watch began from."""
    events: asyncio.Queue[JsonObject | Exception] = field(default_factory=asyncio.Queue)

    async def pages(self, resource: Resource, namespace: str, *_: str) -> AsyncIterator[tuple[Any, str]]:
        self.lists += 1
        if self.refusal:
            raise self.refusal
        yield list(self.pods), str(self.version)

    @asynccontextmanager
    async def watch(self, resource: Resource, namespace: str, version: str, lasts: object) -> Any:
        self.watched.append(version)
        if self.is_down:
            raise Unavailable(CALL, None, "it broke")

        async def read_events() -> AsyncIterator[JsonObject]:
            while True:
                event = await self.events.get()
                if isinstance(event, Exception):
                    raise event
                yield event

        yield read_events()

    async def read_each(self, *_: object) -> AsyncIterator[JsonObject]:
        self.reads += 1
        for pod in self.pods:
            yield pod

    async def get(self, ref: Ref) -> JsonObject | None:
        self.reads += 1
        return next((pod for pod in self.pods if pod["metadata"]["name"] == ref.name), None)

    def report(self, kind: str, pod: JsonObject) -> None:
        self.events.put_nowait({"type": kind, "object": pod})


Checked = Callable[[], Awaitable[bool]]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def followed(server: Any, is_needed: Callable[[], bool] = lambda: True, **options: Any) -> Any:
    watches = Watches(server, options.pop("kinds", (Watched(PODS, lambda body: body),)), **options)
    task = asyncio.create_task(watches.follow_while(is_needed))
    await asyncio.sleep(0)
    yield watches
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WAITS", (0.01, 0.02, 0.02))
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.01)


async def names(watches: Watches, selector: str = "", fields: str = "") -> list[str]:
    return [each["metadata"]["name"] for each in await watches.list(PODS, "serving", selector, fields)]


def versions(watches: Watches, name: str = "") -> tuple[str, ...] | None:
    return watches.ask_again(Asked(PODS, "serving", "", name)).versions


async def test_a_kind_is_listed_once_and_then_read_from_memory() -> None:
    server = Server([a_pod("a", 1, app="llm"), a_pod("b", 2), a_pod("c", 3, "other", app="llm")])
    async with followed(server) as watches:
        first = await asyncio.gather(*(names(watches) for _ in range(5)))

        server.report("MODIFIED", a_pod("b", 11, app="llm"))
        server.report("ADDED", a_pod("d", 12))
        server.report("DELETED", a_pod("a", 13))
        await until(server.events.empty)
        await asyncio.sleep(0.01)

        assert first == [["a", "b"]] * 5
        assert await names(watches) == ["b", "d"]
        assert await names(watches, "app=llm") == ["b"]
        assert await names(watches, fields="spec.nodeName=z") == []
        assert await watches.get(Ref(PODS, "serving", "a")) is None
        assert len(await watches.list(PODS, "")) == 3
        assert (server.lists, server.reads) == (1, 0)


async def test_a_read_is_answered_by_something_else_only_after_a_change_of_what_it_takes() -> None:
    server = Server([a_pod("a", 1, app="llm"), a_pod("b", 2), a_pod("c", 3, "other", app="llm")])
    async with followed(server) as watches:
        await names(watches)
        first = watches.ask_again(Asked(PODS, "serving", "app=llm", ""))
        server.report("MODIFIED", a_pod("c", 11, "other", app="llm"))
        await until(server.events.empty)
        elsewhere = watches.ask_again(first)
        server.report("MODIFIED", a_pod("b", 12))
        await until(lambda: watches.ask_again(first) is not first)
        beside = watches.ask_again(first)
        server.report("DELETED", a_pod("a", 13, app="llm"))
        await until(lambda: watches.ask_again(first).versions == ())

        assert elsewhere is first
        assert (beside.versions, first.versions) == (("1",), ("1",))


async def test_nobody_can_change_what_another_one_reads() -> None:
    async with followed(Server([a_pod("a", 1)])) as watches:
        (await watches.list(PODS, "serving"))[0]["metadata"]["name"] = "changed"

        assert await names(watches) == ["a"]


async def test_what_is_not_watched_is_asked_of_the_api_server() -> None:
    server = Server([a_pod("a", 1)])
    async with followed(server) as watches:
        await watches.list(DEPLOYMENTS, "serving")
    async with followed(server, is_needed=lambda: False) as needless:
        await needless.list(PODS, "serving")
    async with followed(server, namespaces=["other"]) as elsewhere:
        await elsewhere.list(PODS, "serving")

    assert (server.reads, server.lists) == (3, 0)
    assert versions(needless) is None


async def test_a_watch_that_breaks_goes_on_from_its_last_version_and_is_believed_meanwhile() -> None:
    server = Server([a_pod("a", 1)])
    async with followed(server) as watches:
        await names(watches)
        server.report("BOOKMARK", a_pod("", 40))
        server.events.put_nowait(Unavailable(CALL, None, "it broke"))
        await until(lambda: len(server.watched) == 2)

        assert server.watched == ["10", "40"]
        assert versions(watches, "a") == ("1",)
        assert server.lists == 1


@pytest.mark.parametrize(
    "trouble",
    [
        Expired(CALL, 410, "Expired"),
        Expired(CALL, None, "nothing came for 150 s"),
        {"type": "MODIFIED", "object": a_pod("a", 9)},
        {"type": "MODIFIED", "object": {"metadata": {"labels": 3}}},
    ],
    ids=["too old", "silent", "back in time", "unreadable"],
)
async def test_a_watch_that_cannot_be_trusted_is_listed_anew(
    trouble: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "FORBIDDEN_WAIT", 0.01)
    server = Server([a_pod("a", 1)])
    async with followed(server) as watches:
        await names(watches)
        server.pods = [a_pod("b", 20)]
        server.events.put_nowait(trouble)
        await until(lambda: len(server.watched) == 2)

        assert await names(watches) == ["b"]
        assert server.lists == 2


async def test_what_cannot_be_followed_for_long_is_asked_of_the_api_server_until_it_can() -> None:
    server = Server([a_pod("a", 1)])
    async with followed(server) as watches:
        await names(watches)
        server.is_down = True
        server.events.put_nowait(Unavailable(CALL, None, "it broke"))
        await until(lambda: versions(watches) is None)

        await names(watches)
        server.is_down = False
        await until(lambda: versions(watches) is not None)

        assert server.reads == 1


@pytest.mark.parametrize(("code", "reads"), [(403, 1), (404, 0)], ids=["we may not", "the cluster lacks it"])
async def test_a_kind_that_cannot_be_listed(code: int, reads: int) -> None:
    server = Server(refusal=Refused(CALL, code, "no"))
    async with followed(server) as watches:
        if code == 404:
            with pytest.raises(Refused):
                await watches.list(PODS, "serving")
        else:
            await watches.list(PODS, "serving")

    assert (server.reads, server.lists) == (reads, 1)


async def test_a_caller_refused_for_a_kind_that_the_cluster_lacks_is_not_kept() -> None:
    async with followed(Server(refusal=Refused(CALL, 404, "no"))) as watches:

        async def frames_of_the_next_refusal() -> int:
            with pytest.raises(Refused) as caught:
                await watches.list(PODS, "serving")
            return len(caught.traceback)

        assert await frames_of_the_next_refusal() == await frames_of_the_next_refusal()


async def test_listeners_hear_of_what_changed_while_nobody_listened() -> None:
    server, changes = Server([a_pod("a", 1), a_pod("b", 2)]), []
    listeners = {PODS: lambda kind, body: changes.append((kind, body["metadata"]["name"]))}
    async with followed(server, listeners=listeners):
        await until(lambda: len(server.watched) == 1)
        server.pods = [a_pod("b", 2), a_pod("c", 30)]
        server.events.put_nowait(Expired(CALL, 410, "Expired"))
        await until(lambda: len(server.watched) == 2)

    assert changes == [("MODIFIED", "a"), ("MODIFIED", "b"), ("MODIFIED", "c"), ("DELETED", "a")]


async def test_what_was_kept_is_forgotten_with_the_leadership() -> None:
    server, leads = Server([a_pod("a", 1)]), [True]
    async with followed(server, lambda: leads[0]) as watches:
        await names(watches)
        leads[0] = False
        await until(lambda: versions(watches) is None)

        await names(watches)

    assert server.reads == 1


async def test_of_namespaces_that_are_not_ours_nothing_is_kept_or_reported_and_they_are_read_anew() -> None:
    server = Server([a_pod("a", 1), a_pod("b", 2, "other")])
    changed: list[str] = []
    listeners = {PODS: lambda _, body: changed.append(body["metadata"]["name"])}
    async with followed(server, holds="serving".__eq__, listeners=listeners) as watches:
        assert await names(watches) == ["a"]
        server.report("MODIFIED", a_pod("b", 11, "other"))
        server.report("ADDED", a_pod("c", 12))
        await until(lambda: changed == ["a", "c"])

        assert server.reads == 0
        await watches.list(PODS, "other")
        await watches.list(PODS, "")
        assert server.reads == 2


async def test_what_takes_room_on_nodes_is_kept_wherever_it_is() -> None:
    server = Server([a_pod("a", 1), a_pod("b", 2, "other")])
    kinds = (Watched(PODS, lambda body: body, is_shared=True),)
    async with followed(server, kinds=kinds, holds="serving".__eq__) as watches:
        assert len(await watches.list(PODS, "")) == 2
        assert server.reads == 0


async def test_who_waits_for_a_list_that_is_given_up_asks_the_api_server() -> None:
    server, is_needed, begun = Server([a_pod("a", 1)]), True, asyncio.Event()

    async def never_listed(*_: object) -> Any:
        begun.set()
        await asyncio.Event().wait()
        yield [], ""

    server.pages = never_listed  # type: ignore[method-assign]
    async with followed(server, is_needed=lambda: is_needed) as watches:
        waiting = asyncio.create_task(names(watches))
        await begun.wait()
        is_needed = False

        async with asyncio.timeout(5):
            assert await waiting == ["a"]
        assert server.reads == 1
