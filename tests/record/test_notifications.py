"""What is sent to an administrator's destinations, by a real HTTP server that answers well or badly."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from kvmedic.endpoints import NotifyOptions
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import TargetRef
from kvmedic.model.status import Record, Resource, Severity, Wish
from kvmedic.record.events import NOTE_LIMIT, Note
from kvmedic.record.notifications import (
    LONGEST_PAUSE,
    Notifications,
    Sender,
    is_reported_to,
    requested_pause,
    slack_message,
)
from kvmedic.record.telemetry import Telemetry
from lab.cluster.pki import Authority
from worlds.http_double import HangUpError, Reply, Request, Server

POLICY = SimpleNamespace(target=TargetRef("Deployment", "chat-llm", None))
CHAT = Resource("serving", "chat", "uid", "7", 1, Wish.NONE, False, POLICY, None, Record())
NOTE = Note(Reason.FLEET_WIDE_DEMAND, "all replicas preempt", warning=True, severity=Severity.TICKET)
SENDER = Sender("kvmedic-system/kvmedic", lambda: datetime(2026, 1, 1, 3, tzinfo=UTC))
PATH = "/services/T0/s3cr3t"
Answer = Callable[[Request], Reply]


@dataclass
class EventMemory:
    """An Event sink that remembers."""

    notes: list[Note] = field(default_factory=list)

    async def publish(self, resource: Resource, note: Note) -> None:
        self.notes.append(note)


@dataclass
class Sending:
    """Notifications that are under way."""

    notifications: Notifications
    telemetry: Telemetry
    events: EventMemory
    task: asyncio.Task[None] | None

    async def publish(self, *messages: str) -> None:
        for message in messages:
            await self.notifications.publish(CHAT, replace(NOTE, message=message))

    def count(self, result: str, destination: str = "hook") -> float | None:
        labels = {"destination": destination, "result": result}
        return self.telemetry.registry.get_sample_value("kvmedic_notifications_total", labels)

    async def end(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def sending(
    *, runs: bool = True, pauses: tuple[float, ...] = (0.0, 0.0), **hooks: Any
) -> AsyncIterator:
    telemetry, events = Telemetry(), EventMemory()
    options = {name: NotifyOptions.model_validate(given) for name, given in hooks.items()}
    notifications = Notifications(events, options, SENDER, telemetry.notifications, pauses)
    task = asyncio.create_task(notifications.send_until_cancelled()) if runs else None
    found = Sending(notifications, telemetry, events, task)
    yield found
    if task is not None:
        await found.end()
    assert not [each for each in asyncio.all_tasks() if each.get_name() == "notifications"]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


def in_turn(*replies: Reply | type[Exception]) -> Answer:
    """Answer with each in turn, and then well."""
    left = iter(replies)

    def answer(_: Request) -> Reply:
        reply = next(left, Reply())
        if isinstance(reply, Reply):
            return reply
        raise reply

    return answer


def messages(server: Server) -> list[str]:
    return [json.loads(request.body)["message"] for request in server.requests]


async def test_the_json_body_has_what_the_page_says():
    with Server(in_turn()) as server:
        hook = {"url": server.url + PATH, "headers": {"Authorization": "Bearer t0ken"}, "cluster": "prod-a"}
        async with sending(hook=hook) as sent:
            await sent.notifications.publish(CHAT, replace(NOTE, run="r1", severity=Severity.PAGE))
            await sent.notifications.publish(replace(CHAT, policy=None, is_stand_in=True), NOTE)
            await until(lambda: sent.count("sent") == 2)

    first, second = server.requests
    assert (first.method, first.path) == ("POST", PATH)
    assert first.headers["Authorization"] == "Bearer t0ken"
    assert first.headers["Content-Type"] == "application/json"
    body, gone = json.loads(first.body), json.loads(second.body)
    assert len({body["id"], gone["id"]}) == 2
    assert body | {"id": ""} == {
        "schema": "kvmedic.io/notification/v1",
        "id": "",
        "time": "2026-01-01T03:00:00Z",
        "cluster": "prod-a",
        "installation": "kvmedic-system/kvmedic",
        "namespace": "serving",
        "name": "chat",
        "target": {"kind": "Deployment", "name": "chat-llm"},
        "reason": "FleetWideDemand",
        "type": "Warning",
        "severity": "page",
        "run": "r1",
        "message": "all replicas preempt",
        "next": "kvmedic explain chat -n serving",
    }
    assert (gone["target"], gone["run"], gone["next"]) == (None, None, None)
    page = (Path(__file__).parents[2] / "docs" / "howto" / "see-it-from-outside.md").read_text()
    assert [name for name in body if f"`{name}`" not in page] == []


HOSTILE = "<!channel> <https://evil.example|log in> a & b ```\n# api_key=hunter2 \x1b[2J\u202e" + "x" * 2000


async def test_a_tenants_text_makes_no_link_no_mention_and_shows_no_secret():
    with Server(in_turn()) as server:
        hooks = {"hook": {"url": server.url}, "chat": {"url": server.url + "/slack", "form": "slack"}}
        async with sending(**hooks) as sent:
            await sent.notifications.publish(CHAT, replace(NOTE, message=HOSTILE, severity=Severity.PAGE))
            await until(lambda: len(server.requests) == 2)

    (plain,) = (json.loads(each.body) for each in server.requests if each.path == "/")
    (slack,) = (json.loads(each.body) for each in server.requests if each.path == "/slack")
    assert len(plain["message"].encode()) <= NOTE_LIMIT
    assert plain["message"].startswith("<!channel> ")
    for text in (plain["message"], slack["text"]):
        assert not {"\x1b", "\u202e"} & set(text)
        assert "hunter2" not in text
    head, code, quoted = slack["text"].partition("```")
    quoted, end, rest = quoted.partition("```")
    assert (code, end) == ("```", "```")
    assert head == "*[page] FleetWideDemand* `serving/chat` `Deployment chat-llm`\n"
    assert quoted.startswith(
        "&lt;!channel&gt; &lt;https://evil.example|log in&gt; a &amp; b '''\n# api_key=***"
    )
    assert rest == "\n`kvmedic explain chat -n serving`"
    assert not {"<", ">"} & set(slack["text"])


def test_a_slack_message_leaves_out_what_nobody_knows():
    body = {
        "namespace": "a",
        "name": "b",
        "target": None,
        "cluster": "c",
        "reason": "Healthy",
        "message": "m",
    }

    text = slack_message(body | {"severity": None, "next": None})["text"]

    assert text == "*Healthy* `a/b` on `c`\n```m```"


PAGE_ENDED = replace(NOTE, reason=Reason.OBJECTIVES_MET, warning=False)
NORMAL = replace(NOTE, warning=False)


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (NORMAL, {"all"}),
        (replace(NORMAL, severity=None), {"all"}),
        (NOTE, {"all", "warnings"}),
        (replace(NORMAL, severity=Severity.PAGE), {"all", "warnings", "pages"}),
        (PAGE_ENDED, {"all", "warnings", "pages"}),
        (replace(PAGE_ENDED, reason=Reason.SERVED_IN_TIME), {"all", "warnings", "pages"}),
    ],
    ids=["normal", "calm", "warning", "while a page lasts", "a page ended", "served in time again"],
)
def test_a_destination_gets_only_what_it_is_for(note, expected):
    assert {only for only in ("all", "warnings", "pages") if is_reported_to(note, only)} == expected


async def test_each_destination_gets_its_own_and_events_are_written_always():
    with Server(in_turn()) as server:
        hooks = {only: {"url": f"{server.url}/{only}", "only": only} for only in ("all", "warnings", "pages")}
        async with sending(**hooks) as sent:
            for note in (NORMAL, NOTE, PAGE_ENDED):
                await sent.notifications.publish(CHAT, note)
            await until(lambda: len(server.requests) == 6)

    assert sent.events.notes == [NORMAL, NOTE, PAGE_ENDED]
    assert [sent.count("sent", only) for only in hooks] == [3, 2, 1]


REDIRECT = Reply(307, headers={"Location": "/elsewhere"})
TROUBLES = {
    "a server error passes": ((Reply(503),), 2, "sent", ""),
    "too many requests pass": ((Reply(429), Reply(429)), 3, "sent", ""),
    "a server error stays": ((Reply(500),) * 3, 3, "failed", "answered 500"),
    "refused": ((Reply(404),), 1, "failed", "answered 404"),
    "unauthorised": ((Reply(401),), 1, "failed", "answered 401"),
    "a redirect": ((REDIRECT,), 1, "failed", "answered with a redirect; write the URL that it leads to"),
    "hung up": ((HangUpError,), 1, "failed", "closed the connection before it answered"),
}


@pytest.mark.parametrize(("replies", "tries", "result", "warning"), TROUBLES.values(), ids=TROUBLES)
async def test_only_what_surely_did_not_arrive_and_may_fare_better_is_sent_again(
    replies, tries, result, warning, caplog
):
    caplog.set_level(logging.DEBUG)
    with Server(in_turn(*replies)) as server:
        async with sending(hook={"url": server.url + PATH}) as sent:
            await sent.publish("first")
            await until(lambda: sent.count(result) == 1)
            await sent.publish("second")
            await until(lambda: sent.count("sent") == 1 + (result == "sent"))

    assert messages(server) == ["first"] * tries + ["second"]
    assert len({json.loads(each.body)["id"] for each in server.requests}) == 2
    assert {each.path for each in server.requests} == {PATH}
    logged = [each.getMessage() for each in caplog.records if each.name == "kvmedic.notifications"]
    again = "notification destination hook takes notifications again"
    expected = [f"notification destination hook {warning}; Events have what it misses", again]
    assert logged == (expected if warning else [])


async def test_a_destination_that_is_down_is_tried_again_and_reported_once(caplog):
    caplog.set_level(logging.INFO)
    with Server(in_turn()) as server:
        port = server.port
    async with sending(hook={"url": f"http://127.0.0.1:{port}{PATH}"}, pauses=(0.2,)) as sent:
        await sent.publish("one", "two")
        await until(lambda: sent.count("failed") == 2)
        await sent.publish("late")
        await asyncio.sleep(0.1)
        with Server(in_turn(), port=port) as back:
            await until(lambda: sent.count("sent") == 1)
            assert messages(back) == ["late"]

    logged = [each.getMessage() for each in caplog.records]
    assert sum("cannot be reached; Events have what it misses" in text for text in logged) == 1
    assert logged[-1] == "notification destination hook takes notifications again"


async def test_it_waits_for_as_long_as_the_destination_asks():
    times: list[float] = []

    def answer(_: Request) -> Reply:
        times.append(time.monotonic())
        return Reply() if len(times) > 1 else Reply(429, headers={"Retry-After": "1"})

    with Server(answer) as server:
        async with sending(hook={"url": server.url}) as sent:
            await sent.publish("busy")
            await until(lambda: sent.count("sent") == 1)

    assert 0.9 < times[1] - times[0] < 5


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("7", 7, 7),
        ("999999999", LONGEST_PAUSE, LONGEST_PAUSE),
        ("9" * 5000, 0, 0),
        ("", 0, 0),
        ("-3", 0, 0),
        ("soon", 0, 0),
        (format_datetime(datetime.now(UTC) + timedelta(days=1)), LONGEST_PAUSE, LONGEST_PAUSE),
        (format_datetime(datetime.now(UTC) - timedelta(days=1)), 0, 0),
        (
            (datetime.now(UTC) + timedelta(days=1)).strftime("%d %b %Y %H:%M:%S -0000"),
            LONGEST_PAUSE,
            LONGEST_PAUSE,
        ),
    ],
    ids=["seconds", "years", "no number", "none", "negative", "a word", "tomorrow", "yesterday", "no day"],
)
def test_a_destination_may_ask_for_a_pause_within_bounds(header, least, most):
    assert least <= requested_pause(header) <= most


async def test_one_that_hangs_costs_its_time_out_and_is_not_sent_again():
    def answer(request: Request) -> Reply:
        if json.loads(request.body)["message"] == "hangs":
            server.released.wait(20)
        return Reply()

    with Server(answer) as server:
        async with sending(hook={"url": server.url, "timeout": "1s"}) as sent:
            before = time.monotonic()
            await sent.publish("hangs", "next")
            assert time.monotonic() - before < 0.5
            await until(lambda: sent.count("sent") == 1)

    assert messages(server) == ["hangs", "next"]
    assert sent.count("failed") == 1


async def test_an_answer_that_comes_in_drops_is_cut_off_by_the_clock():
    was_left = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.1)
        writer.close()
        was_left.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with sending(hook={"url": f"http://127.0.0.1:{port}", "timeout": "1s"}) as sent:
        before = time.monotonic()
        await sent.publish("drops")
        await until(lambda: sent.count("failed") == 1)
        assert time.monotonic() - before < 5
    async with asyncio.timeout(10):
        await was_left.wait()
    server.close()
    await server.wait_closed()


async def test_a_long_answer_is_not_read():
    def answer(_: Request) -> Reply:
        return Reply(200, b"x" * 1024, {"Content-Length": str(1 << 40)})

    with Server(answer) as server:
        async with sending(hook={"url": server.url, "timeout": "1s"}) as sent:
            await sent.publish("long")
            await until(lambda: sent.count("sent") == 1)


async def test_of_too_many_the_oldest_are_dropped_and_counted(caplog, monkeypatch):
    monkeypatch.setattr("kvmedic.record.notifications.MOST_WAITING", 8)
    with Server(in_turn()) as server:
        async with sending(runs=False, hook={"url": server.url}) as sent:
            await sent.publish(*(str(number) for number in range(11)))
            assert sent.count("dropped") == 3
            sent.task = asyncio.create_task(sent.notifications.send_until_cancelled())
            await until(lambda: sent.count("sent") == 8)
            await sent.end()

    assert messages(server) == [str(number) for number in range(3, 11)]
    assert [each.getMessage() for each in caplog.records] == [
        "notification destination hook: 8 wait, and the oldest are dropped; Events have them"
    ]


async def test_a_file_that_is_rotated_between_two_notes_counts(tmp_path: Path):
    url, key = tmp_path / "url", tmp_path / "key"
    with Server(in_turn()) as server:
        url.write_text(f"{server.url}/old\n")
        key.write_text("k1\n")
        hook = {"url": {"file": str(url)}, "headers": {"X-Key": {"file": str(key)}}}
        async with sending(hook=hook) as sent:
            await sent.publish("one")
            await until(lambda: sent.count("sent") == 1)
            url.write_text(f"{server.url}/new")
            key.write_text("k2")
            await sent.publish("two")
            await until(lambda: sent.count("sent") == 2)

    assert [(each.path, each.headers["X-Key"]) for each in server.requests] == [
        ("/old", "k1"),
        ("/new", "k2"),
    ]


ROTATED_BADLY = (
    lambda url, _: url.write_text("ftp://s3cr3t"),
    lambda url, _: url.write_text("http://s3cr3t\n:80"),
    lambda url, _: url.write_text("http://[s3cr3t"),
    lambda url, _: url.write_text("http://s3cr3t:99999"),
    lambda url, _: url.write_text("http://me:s3cr3t@127.0.0.1"),
    lambda url, _: url.write_text("http://xn--s3cr3t/\x7f"),
    lambda url, _: url.write_text("http://s3cr3t.invalid/"),
    lambda _, key: key.write_bytes(b"s3cr3t\r\nX: y"),
    lambda _, key: key.write_bytes(b"s3cr3t\xff"),
    lambda _, key: key.write_bytes("s3cr3t\u00e9".encode()),
    lambda _, key: key.unlink(),
)
"""What an administrator may do to a URL and to a header while the operator runs."""


async def test_no_secret_is_logged_counted_or_shown(tmp_path: Path, caplog):
    caplog.set_level(logging.DEBUG)
    url, key = tmp_path / "url", tmp_path / "key"
    with Server(in_turn(*[Reply(500)] * 3)) as server:
        url.write_text(server.url + PATH)
        key.write_text("s3cr3t")
        hook = {"url": {"file": str(url)}, "headers": {"X-Key": {"file": str(key)}}}
        async with sending(hook=hook) as sent:
            await sent.publish("a server error")
            await until(lambda: sent.count("failed") == 1)
            for number, write in enumerate(ROTATED_BADLY, start=2):
                url.write_text(server.url + PATH)
                write(url, key)
                await sent.publish("lost")
                await until(lambda failed=number: sent.count("failed") == failed)

    logged = [each for each in caplog.records if each.name == "kvmedic.notifications"]
    assert len({each.getMessage() for each in logged}) >= 7
    page = generate_latest(sent.telemetry.registry).decode()
    for text in (page, repr(sent.notifications), *(each.getMessage() for each in caplog.records)):
        assert "s3cr3t" not in text
    assert all(each.exc_info is None for each in logged)


async def test_certificates_are_checked_by_the_authorities_as_they_are_now(tmp_path: Path, caplog):
    ours, strange = (Authority(tmp_path / name) for name in ("ours", "strange"))
    cert, key = ours.sign("server", "/CN=127.0.0.1", ["IP:127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    file = tmp_path / "ca.crt"
    file.write_bytes(strange.certificate.read_bytes())
    with Server(in_turn(), context=context) as server:
        async with sending(hook={"url": server.url, "caFile": str(file)}, pauses=()) as sent:
            await sent.publish("strange")
            await until(lambda: sent.count("failed") == 1)
            file.write_bytes(ours.certificate.read_bytes())
            await sent.publish("ours")
            await until(lambda: sent.count("sent") == 1)
            file.write_text("no certificate")
            await sent.publish("none")
            await until(lambda: sent.count("failed") == 2)

    assert messages(server) == ["ours"]
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "has a certificate that was refused; check caFile" in warnings[0]
    assert "cannot be read any more" in warnings[1]


async def test_nothing_of_the_environment_leads_elsewhere(monkeypatch: pytest.MonkeyPatch):
    with Server(in_turn()) as server, Server(in_turn()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with sending(hook={"url": server.url}) as sent:
            await sent.publish("direct")
            await until(lambda: sent.count("sent") == 1)

    assert (len(server.requests), len(proxy.requests)) == (1, 0)


async def test_what_is_queued_at_the_end_is_sent_and_each_once():
    def answer(_: Request) -> Reply:
        time.sleep(0.05)
        return Reply()

    with Server(answer) as server:
        async with sending(hook={"url": server.url}) as sent:
            await sent.publish("1", "2", "3", "4")
            await until(lambda: len(server.requests) > 0)
            await sent.end()

    assert messages(server) == ["1", "2", "3", "4"]
    assert sent.count("sent") == 4


async def test_the_end_waits_for_nobody_for_long():
    def answer(_: Request) -> Reply:
        server.released.wait(20)
        return Reply()

    with Server(answer) as server:
        async with sending(hook={"url": server.url, "timeout": "30s"}) as sent:
            await sent.publish("1", "2", "3")
            await until(lambda: len(server.requests) > 0)
            before = time.monotonic()
            await sent.end()
            assert time.monotonic() - before < 4

    assert (sent.count("failed"), sent.count("dropped"), sent.count("sent")) == (1, 2, 0)


async def test_without_destinations_nothing_runs_and_events_are_written():
    async with sending(runs=False) as sent:
        await sent.publish("one")

        assert sent.notifications.companions() == ()
        assert [note.message for note in sent.events.notes] == ["one"]
