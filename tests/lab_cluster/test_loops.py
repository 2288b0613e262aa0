"""Nothing is left to the garbage collector of what a thread's event loop had open."""

import asyncio
import gc
import socket
import warnings
from collections.abc import Callable, Coroutine
from contextlib import closing

import httpx
import pytest

from lab.cluster.loops import run_and_cut


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
