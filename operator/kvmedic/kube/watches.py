"""What the API server holds, kept up to date by watches: read from memory by looks that change nothing.

One list and one watch per kind, whatever the number of fleets. What is read here may be a moment old, so
nothing is written on its word: who is about to change something reads from the API server again.

Each object is kept as compressed JSON and read anew for each caller. That takes a twelfth of the memory of
Python objects (3.6 of 45 KB for the six of a plain fleet), and nobody can change what another one reads.

A watch may go silent and break nothing: a partition that drops packets, an API server whose etcd was restored
from a snapshot (it waits for a version that comes much later). So one that reports nothing for `SILENCE` is
taken for dead, and one that goes back in time for confused; all are listed anew now and then. Until a kind is
listed, its reads go to the API server as if there were no watches.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain, count
from typing import TYPE_CHECKING, TypeAlias

from kvmedic.kube.clock import loop_seconds
from kvmedic.kube.errors import NOT_FOUND, Call, Expired, Refused, Unavailable
from kvmedic.kube.objects import (
    JsonObject,
    Ref,
    Resource,
    has_fields,
    is_earlier,
    is_every_namespace_ours,
    labels_of,
    name_of,
    namespace_of,
    takes_selector,
    version_of,
)
from kvmedic.kube.packing import Packed, Packer

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

LOG = logging.getLogger("kvmedic")
LASTS = timedelta(minutes=10)
"""After which the server ends a watch, and it goes on from its last version."""
LISTED_FOR = timedelta(minutes=30)
"""After which a kind is listed anew, whatever its watch reported."""
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before the next try after trouble, in a row; the last one goes on."""
FORBIDDEN_WAIT = 300.0
"""Seconds before a kind that we may not watch, or that the cluster lacks, is tried again."""
LOOK_SECONDS = 0.1
"""Between two looks whether the watches are needed."""
AT_A_TIME = 100
"""Objects that are read before others get their turn."""
_NUMBERS = count(1)

MODIFIED, DELETED, BOOKMARK = "MODIFIED", "DELETED", "BOOKMARK"
"""Types of events; an object that was added is one that was modified to us."""

Trim: TypeAlias = Callable[[JsonObject], JsonObject]
"""Returns an object without what nobody reads."""
Listener: TypeAlias = Callable[[str, JsonObject], None]
"""Gets each object that changed: the event's type and the object; a list's are `MODIFIED`."""


@dataclass(frozen=True, slots=True)
class Watched:
    """One kind that is watched."""

    resource: Resource
    trim: Trim
    clusterwide: bool = False
    """Its objects are in no namespace."""
    is_shared: bool = False
    """Its objects are kept also where a namespace is not ours: they take room on everybody's nodes."""

    def is_kept(self, namespace: str, holds: Callable[[str], bool]) -> bool:
        """Return whether the objects of a namespace are kept, by whether it is ours."""
        return self.clusterwide or self.is_shared or holds(namespace)


@dataclass(frozen=True, slots=True)
class _Kept:
    labels: Mapping[str, str]
    version: str
    packed: Packed


@dataclass(slots=True)
class _Store:
    """The objects of one kind in one namespace, or in all."""

    is_current: bool = False
    """They were listed, and the watch reports what changes."""
    refusal: Refused | None = None
    """Why the kind cannot be listed."""
    version: str = ""
    objects: dict[str, dict[str, _Kept]] = field(default_factory=dict)
    """By namespace and name."""
    unsorted: set[str] = field(default_factory=set)
    """Namespaces whose names are not in their order now."""
    changes: dict[str, int] = field(default_factory=dict)
    """By namespace a number that is another one after each change."""
    listed: int = 0
    """That of namespaces without a change since the list."""
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    """It was listed once, or that failed."""
    packer: Packer = field(default_factory=Packer)

    @property
    def is_lacking(self) -> bool:
        """Return whether the cluster lacks the kind, as the API server answered lately."""
        return self.refusal is not None and self.refusal.code == NOT_FOUND

    def select(self, namespace: str, selector: str) -> Iterator[_Kept]:
        """Yield what a label selector takes in a namespace, in the order of names; an empty one means all."""
        places = [namespace] if namespace else sorted(self.objects)
        every = chain.from_iterable(self._by_name(place).values() for place in places)
        return (each for each in every if not selector or takes_selector(selector, each.labels))

    def put(self, kind: Watched, body: JsonObject) -> None:
        """Keep an object."""
        namespace, name = namespace_of(body), name_of(body)
        place = self.objects.setdefault(namespace, {})
        if name not in place:
            self.unsorted.add(namespace)
        labels = {sys.intern(key): sys.intern(str(value)) for key, value in labels_of(body).items()}
        place[name] = _Kept(labels, version_of(body), self.packer.pack_body(kind.trim(body)))
        self.changes[namespace] = next(_NUMBERS)

    def drop(self, body: JsonObject) -> None:
        """Forget an object that is gone."""
        self.objects.get(namespace_of(body), {}).pop(name_of(body), None)
        self.changes[namespace_of(body)] = next(_NUMBERS)

    def change(self, namespace: str) -> int:
        """Return the number of a namespace's last change; of all together it is a new one each time."""
        return self.changes.get(namespace, self.listed) if namespace else next(_NUMBERS)

    def _by_name(self, namespace: str) -> dict[str, _Kept]:
        if namespace in self.unsorted:
            self.unsorted.discard(namespace)
            self.objects[namespace] = dict(sorted(self.objects[namespace].items()))
        return self.objects.get(namespace, {})


Versions: TypeAlias = tuple[str, ...]
"""The versions of the objects that an answer was made of."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One read from the watches, and what answered."""

    resource: Resource
    namespace: str
    selector: str
    name: str
    change: int = 0
    """The last one of the namespace."""
    versions: Versions | None = None
    """None: the API server was asked."""


@dataclass(slots=True)
class Watches:
    """The watches of one process, and what they keep. It reads like a `Client`.

    A kind is followed from the first time on that it is read. One that is not named here never is.
    """

    client: Client
    kinds: Sequence[Watched]
    namespaces: Sequence[str] = ()
    """Where; empty: everywhere."""
    holds: Callable[[str], bool] = is_every_namespace_ours
    """Whether a namespace is ours: others are neither kept nor reported, but read from the API server."""
    listeners: dict[Resource, Listener] = field(default_factory=dict)
    """Who gets what changes; these kinds are followed from the start."""
    _stores: dict[tuple[Resource, str], _Store] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Kinds are listed one after the other, so that pages of all are never in memory together."""
    _is_on: bool = False

    async def follow_while(self, is_needed: Callable[[], bool]) -> None:
        """Follow while it is needed, until cancelled; what was kept is forgotten where it is not."""
        try:
            while True:
                if is_needed() and not self._is_on:
                    self._is_on = True
                    for kind in self.kinds:
                        for place in self._places_of(kind) if kind.resource in self.listeners else ():
                            self._begin_following(kind, place)
                elif self._is_on and not is_needed():
                    await self._stop()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        self._is_on = False
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for store in self._stores.values():
            # A caller that waits for a list that nobody makes any more asks the API server.
            store.is_current = False
            store.tried.set()
        self._stores.clear()

    async def get(self, ref: Ref) -> JsonObject | None:
        """Return an object as the watches know it, or None when it does not exist."""
        store = await self._store_when_listed(ref.resource, ref.namespace)
        if store is None:
            return await self.client.get(ref)
        found = store.objects.get(ref.namespace, {}).get(ref.name)
        return found.packed.body() if found else None

    async def list(
        self, resource: Resource, namespace: str, label_selector: str = "", fields: str = ""
    ) -> list[JsonObject]:
        """Return all objects of a kind in a namespace as the watches know them; an empty one means all.

        Raises:
            Refused: the cluster lacks the kind, as the API server answered lately.
        """
        return [body async for body in self.read_each(resource, namespace, label_selector, fields)]

    async def read_each(
        self, resource: Resource, namespace: str, label_selector: str = "", fields: str = ""
    ) -> AsyncIterator[JsonObject]:
        """Yield the same one by one, as they were when the first one was asked for."""
        store = await self._store_when_listed(resource, namespace)
        if store is None:
            async for body in self.client.read_each(resource, namespace, label_selector, fields):
                yield body
            return
        for number, kept in enumerate(tuple(store.select(namespace, label_selector)), 1):
            if number % AT_A_TIME == 0:
                await asyncio.sleep(0)
            body = kept.packed.body()
            if not fields or has_fields(fields, body):
                yield body

    def ask_again(self, asked: Asked) -> Asked:
        """Return a read with what answers it now: an object of a name, or a list."""
        store = self._store_of(asked.resource, asked.namespace)
        if store is None or not (store.is_current or store.is_lacking):
            return replace(asked, versions=None)
        change = store.change(asked.namespace)
        if change == asked.change:
            return asked
        if asked.name:
            found = store.objects.get(asked.namespace, {}).get(asked.name)
            versions: Versions = (found.version,) if found else ()
        else:
            versions = tuple(each.version for each in store.select(asked.namespace, asked.selector))
        return replace(asked, change=change, versions=versions)

    async def _store_when_listed(self, resource: Resource, namespace: str) -> _Store | None:
        """Return the store that has all of a namespace, or None where the API server has to be asked.

        The first ones who read a kind wait until it was listed, for all of them once.
        """
        store = self._store_of(resource, namespace)
        if store is None:
            return None
        await store.tried.wait()
        if store.refusal is not None and store.is_lacking:
            # A new one for each: an error keeps the frames of all who raised it, with what these held.
            raise Refused(store.refusal.call, store.refusal.code, store.refusal.reason)
        return store if store.is_current else None

    def _store_of(self, resource: Resource, namespace: str) -> _Store | None:
        """Return the store of all namespaces or of one; it is made where the kind is to be followed."""
        kind = next((each for each in self.kinds if each.resource == resource), None)
        if kind is None or not self._is_on or not kind.is_kept(namespace, self.holds):
            return None
        place = "" if "" in self._places_of(kind) else namespace
        if place not in self._places_of(kind):
            return None
        return self._stores.get((resource, place)) or self._begin_following(kind, place)

    def _places_of(self, kind: Watched) -> Sequence[str]:
        return ("",) if kind.clusterwide else self.namespaces or ("",)

    def _begin_following(self, kind: Watched, place: str) -> _Store:
        self._stores[kind.resource, place] = store = _Store()
        following = self._follow_kind(kind, place, store)
        self._tasks.append(asyncio.create_task(following, name=f"watch {kind.resource.plural}"))
        return store

    async def _follow_kind(self, kind: Watched, place: str, store: _Store) -> None:
        """List a kind and watch it, for ever. A watch that breaks goes on at once from where it was.

        What cannot be followed after that is not known any more.
        """
        waits, until = iter(WAITS), 0.0
        while True:
            try:
                if not store.version or loop_seconds() >= until:
                    async with self._turn:
                        await self._list_kind(kind, place, store)
                    until = loop_seconds() + LISTED_FOR.total_seconds()
                async with self.client.watch(kind.resource, place, store.version, LASTS) as events:
                    store.is_current, store.refusal, waits = True, None, iter(WAITS)
                    store.tried.set()
                    async for event in events:
                        self._take_event(kind, store, event)
                continue
            except Unavailable as error:
                wait, is_lost, trouble = next(waits, WAITS[-1]), isinstance(error, Expired), str(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the API server is asked from now on
                store.refusal = error if isinstance(error, Refused) else None
                wait, is_lost, trouble = FORBIDDEN_WAIT, True, str(error)
            if wait > WAITS[0]:
                store.is_current = False
                level = logging.INFO if store.is_lacking else logging.WARNING
                LOG.log(
                    level, "watch=%s namespace=%s error=%s", kind.resource.plural, place or "all", trouble
                )
            store.version = "" if is_lost else store.version
            store.tried.set()
            await asyncio.sleep(wait)

    async def _list_kind(self, kind: Watched, place: str, store: _Store) -> None:
        """Take over what there is, page by page, so that the raw objects of a large cluster pass through."""
        found = _Store()
        version, listener = "", self.listeners.get(kind.resource)
        async for page, listed in self.client.pages(kind.resource, place):
            version = listed
            for body in (each for each in page if kind.is_kept(namespace_of(each), self.holds)):
                known = store.objects.get(namespace_of(body), {}).get(name_of(body))
                found.put(kind, body)
                if listener and (known is None or known.version != version_of(body)):
                    listener(MODIFIED, body)
            await asyncio.sleep(0)
        gone = [
            each.packed.body()
            for namespace, objects in store.objects.items()
            for name, each in objects.items()
            if name not in found.objects.get(namespace, {})
        ]
        store.objects, store.unsorted, store.version = found.objects, found.unsorted, version
        store.changes, store.listed, store.packer = found.changes, next(_NUMBERS), found.packer
        for body in gone:
            if listener:
                listener(DELETED, body)

    def _take_event(self, kind: Watched, store: _Store, event: JsonObject) -> None:
        """Keep what an event reports.

        Raises:
            Expired: it has no version, or one before that of the list: the API server went back in time.
        """
        change, body = str(event["type"]), event["object"]
        version = version_of(body)
        if not version or is_earlier(version, store.version):
            raise Expired(Call("watch", kind.resource.path()), None, f"version {version} came last")
        store.version = version
        if change == BOOKMARK or not kind.is_kept(namespace_of(body), self.holds):
            return
        if change == DELETED:
            store.drop(body)
        else:
            store.put(kind, body)
        if listener := self.listeners.get(kind.resource):
            listener(change, body)


@dataclass(slots=True)
class Recording:
    """Reads from the watches, and records what was read."""

    watches: Watches
    asked: list[Asked] = field(default_factory=list)
    is_whole: bool = True
    """Nothing was read past the watches."""

    async def get(self, ref: Ref) -> JsonObject | None:
        """Return an object as the watches know it, or None when it does not exist."""
        self._note(Asked(ref.resource, ref.namespace, "", ref.name))
        return await self.watches.get(ref)

    async def list(
        self, resource: Resource, namespace: str, label_selector: str = "", fields: str = ""
    ) -> list[JsonObject]:
        """Return all objects of a kind in a namespace as the watches know them."""
        return [body async for body in self.read_each(resource, namespace, label_selector, fields)]

    async def read_each(
        self, resource: Resource, namespace: str, label_selector: str = "", fields: str = ""
    ) -> AsyncIterator[JsonObject]:
        """Yield the same one by one."""
        self._note(Asked(resource, namespace, label_selector, ""))
        async for body in self.watches.read_each(resource, namespace, label_selector, fields):
            yield body

    def _note(self, asked: Asked) -> None:
        self.asked.append(self.watches.ask_again(asked))
        self.is_whole = self.is_whole and self.asked[-1].versions is not None
