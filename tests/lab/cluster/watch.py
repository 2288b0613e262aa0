"""Watches of collections: every change in its order, without asking again and again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import httpx

from lab.cluster.pki import Access

TURNS = 5
"""Turns of the loop that an aborted connection needs to be gone, TLS included, with some to spare."""


def run_and_cut(main: Coroutine[object, object, None]) -> None:
    """Run as `asyncio.run` does; in the end all other tasks are cancelled, and what is open is cut."""
    with asyncio.Runner() as runner:
        try:
            runner.run(main)
        finally:
            runner.run(_cut())


async def _cut() -> None:
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await loop.shutdown_asyncgens()
    for _ in range(TURNS):
        # asyncio does not show what is open: this is its own list (3.4 to 3.14). One that was just accepted
        # is in it a turn later.
        for transport in list(loop._transports.values()):  # type: ignore[attr-defined]
            transport.abort()
        await asyncio.sleep(0)


Object = dict[str, Any]
Handler: TypeAlias = Callable[[str, Object], None]
"""Gets the type of an event, as the API server names it, and the object."""

RETRY_SECONDS = 0.2
"""Between a watch that broke and the next list: an API server that restarts is back within seconds."""

LIST_SECONDS = 20
"""For the first lists: a machine with twenty times more to do than it can took over 15 s for one answer."""


async def follow(http: httpx.AsyncClient, path: str, handle: Handler, listed: Callable[[], None]) -> None:
    """Hand over every object of a collection as ADDED, then each event; ends only when it is cancelled.

    After a break it begins with a list again: an object may come twice, and one that went meanwhile
    comes as DELETED in the state in which it was last seen, after all that are there.
    """
    known: dict[str, Object] = {}
    while True:
        try:
            version = await _list(http, path, known, handle)
            listed()
            await _events(http, path, version, known, handle)
        except httpx.HTTPError:
            await asyncio.sleep(RETRY_SECONDS)


async def _list(http: httpx.AsyncClient, path: str, known: dict[str, Object], handle: Handler) -> str:
    found = (await http.get(path)).raise_for_status().json()
    gone = dict(known)
    for each in found["items"]:
        gone.pop(_uid(each), None)
        known[_uid(each)] = each
        handle("ADDED", each)
    for uid, each in gone.items():
        del known[uid]
        handle("DELETED", each)
    return str(found["metadata"]["resourceVersion"])


async def _events(
    http: httpx.AsyncClient, path: str, version: str, known: dict[str, Object], handle: Handler
) -> None:
    query = {"watch": "1", "resourceVersion": version}
    async with http.stream("GET", path, params=query) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            event = json.loads(line)
            kind, body = event["type"], event["object"]
            if kind == "ERROR":
                return
            if kind == "DELETED":
                known.pop(_uid(body), None)
            else:
                known[_uid(body)] = body
            handle(kind, body)


def _uid(body: Object) -> str:
    return str(body["metadata"]["uid"])


def client(access: Access) -> httpx.AsyncClient:
    """Return connections on which a watch may stay silent."""
    return httpx.AsyncClient(
        base_url=access.url,
        headers=access.headers(),
        verify=access.ssl_context(),
        timeout=None,
        trust_env=False,
    )


@dataclass(slots=True)
class Watches:
    """Follows collections while a block runs, or from start to stop, and has a thread of its own."""

    access: Access
    handlers: Mapping[str, Handler]
    """What gets the events, by path of the collection."""
    _loop: asyncio.AbstractEventLoop | None = None
    _stopped: asyncio.Event | None = None
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watches:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to follow; returns when every collection was listed once."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: run_and_cut(self._follow(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(LIST_SECONDS), f"no list of {list(self.handlers)} within {LIST_SECONDS} s"

    def stop(self) -> None:
        if self._loop is not None and self._stopped is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopped.set)
        if self._thread is not None:
            self._thread.join(5)

    async def _follow(self, ready: threading.Event) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        waiting = set(self.handlers)

        def listed(path: str) -> None:
            waiting.discard(path)
            if not waiting:
                ready.set()

        async with client(self.access) as http, asyncio.TaskGroup() as group:
            following = [
                group.create_task(follow(http, path, handle, lambda path=path: listed(path)))  # type: ignore[misc]
                for path, handle in self.handlers.items()
            ]
            await self._stopped.wait()
            for each in following:
                each.cancel()


OnChange: TypeAlias = Callable[[dict[str, Object]], None]
"""Called with all objects by uid after each change; must be quick."""


@dataclass(slots=True)
class Mirror:
    """Keeps what it is handed; readable from every thread."""

    on_change: OnChange | None = None
    _objects: dict[str, Object] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, event: str, body: Object) -> None:
        with self._lock:
            if event == "DELETED":
                self._objects.pop(body["metadata"]["uid"], None)
            else:
                self._objects[body["metadata"]["uid"]] = body
            held = dict(self._objects) if self.on_change is not None else {}
        if self.on_change is not None:
            self.on_change(held)

    def objects(self) -> list[Object]:
        """Return the objects as last seen, in the order in which they were first seen."""
        with self._lock:
            return list(self._objects.values())
