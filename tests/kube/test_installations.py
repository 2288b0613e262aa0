"""Two installations that would look after the same resources, on a server that keeps Leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvmedic.kube.errors import Call, Conflict, NamespaceEnds, Refused, Unavailable
from kvmedic.kube.installations import GONE_SECONDS, LOOK_SECONDS, SERVES, Identity, Installation
from kvmedic.kube.objects import LEASES, JsonObject, Ref, Resource, section

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Server:
    """Leases by namespace, with versions; its clock is everybody's."""

    def __init__(self) -> None:
        self.leases: dict[str, JsonObject] = {}
        self.seconds = 0.0
        self.version = 0
        self.writes = 0
        self.fault: Exception | None = None
        self.without: set[str] = set()
        """Namespaces in which nothing can be made."""
        self.after_write: Callable[[], Any] | None = None
        self.clock = self

    def now(self) -> datetime:
        return BEGAN + timedelta(seconds=self.seconds)

    async def get(self, ref: Ref) -> JsonObject | None:
        self._fail()
        return self.leases.get(ref.namespace)

    async def list(
        self, resource: Resource, namespace: str, label: str = "", fields: str = ""
    ) -> list[JsonObject]:
        self._fail()
        assert (resource, namespace, fields) == (LEASES, "", f"metadata.name={SERVES}")
        return list(self.leases.values())

    async def create(self, ref: Ref, body: JsonObject) -> JsonObject:
        call = Call("create", ref.path)
        if ref.namespace in self.without:
            raise NamespaceEnds(call, 403, "the namespace is being deleted")
        if ref.namespace in self.leases:
            raise Conflict(call, 409, "AlreadyExists")
        return await self._store(ref, body)

    async def put(self, ref: Ref, body: JsonObject) -> JsonObject:
        known = self.leases.get(ref.namespace, {})
        if section(known, "metadata").get("resourceVersion") != body["metadata"]["resourceVersion"]:
            raise Conflict(Call("update", ref.path), 409, "Conflict")
        return await self._store(ref, body)

    async def _store(self, ref: Ref, body: JsonObject) -> JsonObject:
        self._fail()
        self.version += 1
        self.writes += 1
        spec = {key: value for key, value in body["spec"].items() if value is not None}
        spec["renewTime"] = self.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata = {**body["metadata"], "namespace": ref.namespace, "resourceVersion": str(self.version)}
        self.leases[ref.namespace] = {**body, "metadata": metadata, "spec": spec}
        if self.after_write is not None:
            then, self.after_write = self.after_write, None
            await then()
        return self.leases[ref.namespace]

    def _fail(self) -> None:
        if self.fault is not None:
            raise self.fault

    def holder(self, namespace: str) -> str:
        return str(section(self.leases[namespace], "spec").get("holderIdentity"))


class Elected:
    """A leadership that counts how often it took part."""

    def __init__(self) -> None:
        self.parts = 0

    async def run(self) -> None:
        self.parts += 1
        await asyncio.sleep(3600)

    def is_held(self) -> bool:
        return True

    def is_over(self) -> bool:
        return False


def installed(server: Server, namespace: str, *watched: str, release: str = "kvmedic") -> Installation:
    identity = Identity(namespace, release, watched)
    clock = lambda: server.seconds  # noqa: E731 - the server's
    return Installation(server, identity, Elected(), clock=clock)  # type: ignore[arg-type]


async def passes(server: Server, seconds: float, *processes: Installation) -> None:
    """Let time pass, with every process looking at its pace; never two installations act."""
    until = server.seconds + seconds
    while server.seconds < until:
        server.seconds += LOOK_SECONDS
        for each in processes:
            await each.look()
        acting = [each.identity for each in processes if each.is_held()]
        pairs = [(a, b) for a in acting for b in acting if a.full_name < b.full_name]
        assert not [(a, b) for a, b in pairs if not (a.watched and b.watched) or {*a.watched} & {*b.watched}]


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (("one", ()), ("two", ()), False),
        (("one", ("a",)), ("two", ()), False),
        (("one", ()), ("two", ("a",)), False),
        (("one", ("a", "b")), ("two", ("b", "c")), False),
        (("one", ("a",)), ("two", ("b",)), True),
    ],
    ids=["cluster, cluster", "namespaces, cluster", "cluster, namespaces", "one in common", "none in common"],
)
async def test_the_second_of_two_that_have_a_resource_in_common_stays_idle(
    first: tuple[str, tuple[str, ...]], second: tuple[str, tuple[str, ...]], both: bool
) -> None:
    server = Server()
    one, two = installed(server, first[0], *first[1]), installed(server, second[0], *second[1])
    await passes(server, 60, one)

    await passes(server, 3 * GONE_SECONDS, one, two)

    assert one.is_held()
    assert two.is_held() is both
    if not both:
        assert "the installation one/kvmedic looks after" in two.refusal
        assert "helm -n one uninstall kvmedic" in two.refusal
        assert f"delete lease {SERVES}" in two.refusal


async def test_releases_of_one_namespace_are_two_and_processes_and_shards_of_one_are_one() -> None:
    server = Server()
    one, peer, two = (installed(server, "ops", release=name) for name in ("one", "one", "two"))

    await passes(server, 120, one, peer, two)

    assert (one.is_held(), peer.is_held(), two.is_held()) == (True, True, False)
    assert "helm -n ops uninstall one" in two.refusal


@pytest.mark.parametrize("watched", [(), ("a",)], ids=["cluster", "namespace"])
async def test_what_is_left_of_one_that_is_gone_blocks_for_ten_minutes_and_a_long_dead_one_hardly(
    watched: tuple[str, ...],
) -> None:
    server = Server()
    one, two = installed(server, "one", *watched), installed(server, "two", *watched)
    await passes(server, 60, one)

    await passes(server, GONE_SECONDS - 60, two)
    assert not two.is_held()
    await passes(server, 150, two)
    assert two.is_held()
    await passes(server, 300, two, one)
    assert two.is_held()
    assert "the installation two/kvmedic" in one.refusal

    server.seconds += GONE_SECONDS
    late = installed(server, "three", *watched)
    await passes(server, 150, late)
    assert late.is_held()


async def test_a_restart_or_a_pause_for_maintenance_hands_nothing_over() -> None:
    server = Server()
    await passes(server, 60, installed(server, "one"))
    two = installed(server, "two")
    await passes(server, 300, two)

    again = installed(server, "one")
    await again.look()
    await passes(server, 60, again, two)

    assert again.is_held()
    assert not two.is_held()


async def test_one_of_the_whole_cluster_takes_its_namespace_back_after_a_long_pause() -> None:
    server = Server()
    await passes(server, 60, installed(server, "one"))
    team = installed(server, "team", "a")
    await passes(server, GONE_SECONDS, team)
    assert team.is_held()

    again = installed(server, "one")
    await again.look()
    await team.look()

    assert again.is_held()
    assert not team.is_held()
    assert server.holder("a") == "one/kvmedic"


async def test_of_two_that_begin_at_once_at_most_one_acts_and_in_the_end_one_does() -> None:
    server = Server()
    one, two = installed(server, "one"), installed(server, "two")
    server.after_write = two.look  # between the first one's question and its second look

    await one.look()

    assert [one.is_held(), two.is_held()].count(True) <= 1
    await passes(server, 60, one, two)
    assert [one.is_held(), two.is_held()].count(True) == 1


async def test_a_forged_lease_stops_nobody_who_holds_his_own() -> None:
    server = Server()
    one = installed(server, "one")
    await passes(server, 60, one)

    server.leases["evil"] = {
        "metadata": {"name": SERVES, "namespace": "evil", "resourceVersion": "x"},
        "spec": {
            "holderIdentity": "no name; rm -rf",
            "acquireTime": "1970-01-01T00:00:00Z",
            "renewTime": "?",
        },
    }
    await passes(server, 60, one)

    assert one.is_held()
    assert server.holder("evil") == "one/kvmedic"


async def test_a_namespace_that_is_not_there_keeps_nobody_from_the_others() -> None:
    server = Server()
    server.without.add("gone")
    one = installed(server, "one", "a", "gone")

    await passes(server, 120, one)
    assert one.is_held()
    server.without.clear()
    await passes(server, 15, one)
    await passes(server, 120, one)

    assert one.is_held()
    assert server.holder("gone") == "one/kvmedic"


async def test_a_lease_that_an_administrator_deletes_is_made_anew() -> None:
    server = Server()
    one, two = installed(server, "one"), installed(server, "two")
    await passes(server, 60, one, two)

    server.leases.pop("one")
    await passes(server, 60, one, two)

    assert [one.is_held(), two.is_held()].count(True) == 1


async def test_an_api_server_that_is_away_ends_it_after_a_while_and_a_missing_right_is_named() -> None:
    server = Server()
    one = installed(server, "one")
    await one.look()
    server.fault = Unavailable(Call("list", "leases"), None, "no answer")
    await passes(server, 240, one)
    assert one.is_held()
    await passes(server, 120, one)
    assert not one.is_held()
    assert "no answer" in one.refusal

    server.fault = Refused(Call("list", "/apis/coordination.k8s.io/v1/leases"), 403, "Forbidden: cannot list")
    stranger = installed(server, "two")
    await stranger.look()
    assert "cannot list" in stranger.refusal


async def test_two_processes_renew_a_lease_twice_a_minute_at_the_most() -> None:
    server = Server()
    one, peer = installed(server, "one"), installed(server, "one")
    await passes(server, 60, one, peer)

    before = server.writes
    await passes(server, 600, one, peer)

    assert server.writes - before <= 20


async def test_it_takes_part_in_the_election_only_while_it_may_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvmedic.kube.installations.LOOK_SECONDS", 0.01)
    server = Server()
    one = installed(server, "one")
    one.retry_seconds = 0.01
    elected: Any = one.leadership
    running = asyncio.create_task(one.take_part())
    try:
        async with asyncio.timeout(5):
            while not elected.parts:
                await asyncio.sleep(0.01)
            assert one.is_held()
            server.leases["one"] = {
                **server.leases["one"],
                "spec": {"holderIdentity": "two/kvmedic", "acquireTime": "2026-01-01T00:00:00Z"},
            }
            while one.is_held():
                await asyncio.sleep(0.01)
            assert elected.parts == 1
            server.leases.clear()
            while elected.parts == 1:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert one.is_held()
