"""The tests' own client of an API server: watches, connections, and loops that leave nothing open."""

import asyncio
import gc
import json
import socket
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import certifi
import httpx
import pytest

from lab.cluster import watch
from lab.cluster.api import Api, ApiError
from lab.cluster.pki import Access
from lab.cluster.watch import Mirror, follow, run_and_cut
from worlds.http_double import Reply, Server

PATH = "/api/v1/namespaces/default/pods"


def pod(uid: str, phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "status": {"phase": phase}}


def listed(*pods: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, json={"metadata": {"resourceVersion": "7"}, "items": pods})


def streamed(*events: tuple[str, dict[str, Any]]) -> httpx.Response:
    lines = (json.dumps({"type": kind, "object": body}) for kind, body in events)
    return httpx.Response(200, text="".join(f"{line}\n" for line in lines))


async def events_of(monkeypatch: pytest.MonkeyPatch, *answers: httpx.Response) -> list[tuple[str, str, str]]:
    """Return the events until the answers are used up: the type, whose it is, and its phase."""
    monkeypatch.setattr(watch, "RETRY_SECONDS", 0)
    left: Iterator[httpx.Response] = iter(answers)
    seen: list[tuple[str, str, str]] = []
    over = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        response = next(left, None)
        if response is None:
            over.set()
            await asyncio.Event().wait()
            raise AssertionError("cancelled before")
        return response

    def handle(event: str, body: dict[str, Any]) -> None:
        seen.append((event, body["metadata"]["uid"], body["status"]["phase"]))

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as http:
        following = asyncio.create_task(follow(http, PATH, handle, lambda: None))
        await asyncio.wait_for(over.wait(), 5)
        following.cancel()
    return seen


async def test_a_list_then_every_event_in_its_order(monkeypatch):
    events = streamed(("MODIFIED", pod("a", "Failed")), ("ADDED", pod("b")), ("DELETED", pod("a", "Failed")))

    seen = await events_of(monkeypatch, listed(pod("a")), events)

    assert seen == [
        ("ADDED", "a", "Running"),
        ("MODIFIED", "a", "Failed"),
        ("ADDED", "b", "Running"),
        ("DELETED", "a", "Failed"),
    ]


@pytest.mark.parametrize(
    "broken",
    [streamed(), streamed(("ERROR", {"code": 410})), httpx.Response(410)],
    ids=["ended", "too-old", "refused"],
)
async def test_what_went_during_a_break_comes_as_deleted(monkeypatch, broken):
    seen = await events_of(
        monkeypatch, listed(pod("a"), pod("b")), broken, listed(pod("b", "Failed"), pod("c"))
    )

    assert seen[2:] == [("ADDED", "b", "Failed"), ("ADDED", "c", "Running"), ("DELETED", "a", "Running")]


async def test_what_came_as_deleted_does_not_come_so_again(monkeypatch):
    seen = await events_of(monkeypatch, listed(pod("a")), streamed(("DELETED", pod("a"))), listed(pod("b")))

    assert seen == [("ADDED", "a", "Running"), ("DELETED", "a", "Running"), ("ADDED", "b", "Running")]


def test_a_mirror_holds_what_is_there_in_the_order_of_first_sight():
    seen: list[list[str]] = []
    mirror = Mirror(lambda held: seen.append(sorted(held)))

    for event, each in (
        ("ADDED", pod("b")),
        ("ADDED", pod("a")),
        ("MODIFIED", pod("b", "Failed")),
        ("DELETED", pod("a")),
        ("DELETED", pod("x")),
    ):
        mirror.handle(event, each)

    assert mirror.objects() == [pod("b", "Failed")]
    assert seen == [["b"], ["a", "b"], ["a", "b"], ["b"], ["b"]]


def test_threads_share_no_connection_and_each_keeps_its_own():
    with Server(lambda _: Reply(200, b"{}")) as server, Api(Access(server.url, Path(certifi.where()))) as api:
        other = threading.Thread(target=lambda: [api.request("GET", "/a") for _ in range(2)])
        api.request("GET", "/b")
        other.start()
        other.join()
        api.request("GET", "/b")

        assert (server.connections, len(server.requests)) == (2, 4)


def test_a_kind_whose_definition_just_changed_is_asked_for_again():
    status = json.dumps({"kind": "Status", "message": "storage is (re)initializing"}).encode()
    answers = iter([Reply(429, status), Reply(429, status), Reply(200, b'{"kind": "KVRemediation"}')])
    with (
        Server(lambda _: next(answers)) as server,
        Api(Access(server.url, Path(certifi.where()))) as api,
    ):
        assert api.request("PATCH", "/a") == {"kind": "KVRemediation"}


def test_another_429_is_raised_at_once():
    refused = Reply(429, b'{"kind": "Status", "message": "too many requests"}')
    with Server(lambda _: refused) as server, Api(Access(server.url, Path(certifi.where()))) as api:
        with pytest.raises(ApiError, match="too many requests"):
            api.request("PATCH", "/a")
        assert len(server.requests) == 1


def test_the_connections_of_all_threads_are_closed_together():
    clients = []
    with Server(lambda _: Reply()) as server, Api(Access(server.url, Path(certifi.where()))) as api:
        other = threading.Thread(target=lambda: clients.append(api.http))
        other.start()
        other.join()
        clients.append(api.http)

    assert [client.is_closed for client in clients] == [True, True]


@pytest.fixture
def silent():
    """The port of a server that takes connections and never says anything."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening.getsockname()[1]


def left(
    run: Callable[[Coroutine[object, object, None]], None], main: Coroutine[object, object, None]
) -> list[str]:
    """What the collector finds open once a loop has ended."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(main)
        gc.collect()
    return [str(each.message) for each in found if each.category is ResourceWarning]


async def opened(port: int) -> None:
    """Open a connection, and leave it."""
    await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)


def test_what_is_open_would_be_found_by_the_collector(silent):
    assert left(asyncio.run, opened(silent))


def test_what_is_open_is_cut(silent):
    assert left(run_and_cut, opened(silent)) == []


async def test_a_handshake_of_httpx_is_cut(silent):
    async def shaking() -> None:
        async with httpx.AsyncClient() as http:
            task = asyncio.create_task(http.get(f"https://127.0.0.1:{silent}/"))
            await asyncio.sleep(0.2)
            task.cancel()

    assert await asyncio.to_thread(left, run_and_cut, shaking()) == []


def test_a_client_that_goes_on_is_cut_by_its_server():
    clients: list[socket.socket] = []

    async def serving() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()[:2]
        clients.extend(socket.create_connection(address) for _ in range(3))
        await asyncio.sleep(0.1)
        server.close()

    assert left(run_and_cut, serving()) == []
    assert [each.recv(1) for each in clients] == [b"", b"", b""]
    for each in clients:
        each.close()


def test_what_the_coroutine_raises_is_raised():
    async def failing() -> None:
        raise KeyError("uid")

    with pytest.raises(KeyError, match="uid"):
        run_and_cut(failing())
