"""A source in trouble: every reading says so, nothing waits without a limit, no secret gets out."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from kvmedic.metrics.prometheus import PrometheusClient, _Course
from kvmedic.metrics.series import PodKey
from kvmedic.model.evidence import EVERY_SIGNAL, Absence, Look, Measured, Missing, Observation, Signal
from kvmedic.settings import SourceOptions
from lab.cluster.machine import free_ports
from lab.cluster.pki import Authority
from worlds.http_double import HangUpError, Reply, Request, Server, forwarded
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import END, FIVE, NAMESPACE, source

UNAVAILABLE = Missing(Absence.SOURCE_UNAVAILABLE)
CALM = [PodKey(NAMESPACE, "calm")]
EMPTY = {"status": "success", "data": {"resultType": "vector", "result": []}}
JSON = {"Content-Type": "application/json"}


FOREIGN = "did not answer as Prometheus does"
POD = {"namespace": NAMESPACE, "pod": "calm"}


def result(result: object) -> object:
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def answering(content: object, status: int = 200, **headers: str) -> Callable[[Request], Reply]:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda _: Reply(status, body, JSON | headers)


async def look_at(url: str, **options: Any) -> tuple[Observation, str]:
    looked = source(url, **options)
    try:
        seen = await looked.observe(CALM, Look(FIVE))
        return seen, looked.trouble
    finally:
        looked.close()


def all_readings(seen: Observation) -> set[object]:
    return {
        reading
        for pod in seen.pods.values()
        for reading in (*pod.numbers.values(), *pod.histograms.values(), pod.pool)
    }


class Dripping:
    """Sends the beginning of an answer, and then a character now and then until nobody listens any more."""

    def __init__(self, begun: bytes) -> None:
        self.cut, self._ended, self._begun = threading.Event(), threading.Event(), begun
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._drip)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listening.close()
        self._thread.join()

    def _drip(self) -> None:
        connection = self._listening.accept()[0]
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(self._begun)
                while not self._ended.wait(0.1):
                    connection.sendall(b"0")
            except OSError:
                self.cut.set()


ANSWERS = [
    (
        "an error of the server",
        answering({"status": "error", "error": "out of luck"}, 500),
        "answered 500: out of luck",
    ),
    ("overload", answering(b"slow down", 429), "answered 429"),
    ("a gateway's page", answering(b"<html>", 503), "answered 503"),
    ("no such path", answering(b"not found", 404), "answered 404"),
    ("not allowed", answering(b"", 401), "answered 401; check bearerTokenFile"),
    ("a login page", answering(b"<html>welcome</html>"), FOREIGN),
    ("other JSON", answering({"hello": []}), FOREIGN),
    ("a list", answering([]), FOREIGN),
    ("JSON as deep as it is long", answering(b'{"data":' + b"[" * 100_000), FOREIGN),
    ("an error as deep as it is long", answering(b"[" * 100_000, 500), "answered 500"),
    ("a warning as deep as it is long", answering(b'{"warnings":' + b"[" * 100_000), FOREIGN),
    ("a warning that is no list", answering({**EMPTY, "warnings": 7}), "partial data: 7"),
    ("a part of the data", answering(b'{"status":"success","isPartial":true,"data":{}}'), "partial data"),
    ("a text for the result", answering(result("up")), FOREIGN),
    ("a number in the result", answering(result([1])), FOREIGN),
    ("a text in the result", answering(result(["value"])), FOREIGN),
    ("a matrix", answering(result([{"metric": {}, "values": [[1, "1"]]}])), FOREIGN),
    ("labels that are none", answering(result([{"metric": [], "value": [1, "1"]}])), FOREIGN),
    ("a label that is a number", answering(result([{"metric": {"pod": 3}, "value": [1, "1"]}])), FOREIGN),
    ("a label that is an object", answering(result([{"metric": {"pod": {}}, "value": [1, "1"]}])), FOREIGN),
    ("a time that is a text", answering(result([{"metric": POD, "value": ["1", "1"]}])), FOREIGN),
    ("a value that is a number", answering(result([{"metric": POD, "value": [1, 1]}])), FOREIGN),
    ("a value that is none", answering(result([{"metric": POD, "value": [1, None]}])), FOREIGN),
    ("a value that is a word", answering(result([{"metric": POD, "value": [1, "many"]}])), FOREIGN),
    ("half a value", answering(result([{"metric": POD, "value": [1]}])), FOREIGN),
    (
        "an encoding that was not accepted",
        answering(gzip.compress(json.dumps(EMPTY).encode()), **{"Content-Encoding": "gzip"}),
        "answered with an encoding, which was not accepted",
    ),
    ("a redirect", answering(b"", 302, Location="http://127.0.0.1:1/"), "answered with a redirect"),
    (
        "partial data",
        answering({**EMPTY, "warnings": ["store 10.0.0.7 timed out"]}),
        "partial data: store 10.0.0.7",
    ),
]


@pytest.mark.parametrize(("answer", "message"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
async def test_an_answer_that_is_none_makes_everything_unavailable(
    answer: Callable[[Request], Reply], message: str
) -> None:
    with Server(answer) as server:
        seen, trouble = await look_at(server.url)

    assert all_readings(seen) == {UNAVAILABLE}
    assert set(seen.pods["calm"].numbers) | set(seen.pods["calm"].histograms) == EVERY_SIGNAL
    assert message in trouble


@pytest.mark.parametrize(
    "seconds",
    ["1.79e12", "-1", "253402300800", "1e17", f"{END.timestamp() + 3600}"],
    ids=["in milliseconds", "before the epoch", "after the year 9999", "beyond any year", "in an hour"],
)
async def test_a_replica_whose_samples_are_of_another_time_is_ambiguous(seconds: str) -> None:
    named = [{"metric": {**POD, "pod": pod}, "value": [1, seconds]} for pod in ("calm", "calm-abcde")]
    with Server(answering(result(named))) as server:
        looked = source(server.url)
        seen = await looked.observe(CALM, Look(FIVE))
        present = await looked.find_pods(FIVE, NAMESPACE, "calm")
        looked.close()

    assert all_readings(seen) == {Missing(Absence.AMBIGUOUS)}
    assert present == ()


async def test_a_source_that_is_down_is_asked_once_per_moment() -> None:
    with Server(answering(b"", 500)) as server:
        looked = source(server.url)
        await asyncio.gather(*(looked.observe(CALM, Look(FIVE)) for _ in range(50)))
        looked.close()

    assert len(server.requests) == 1


async def test_a_source_that_went_away_and_came_back_is_used_again(history: PrometheusServer) -> None:
    now, port, seen = [END], 0, []
    with Server(lambda request: forwarded(request, history.url)) as server:
        port = server.port
        looked = source(server.url)
        looked._now = lambda: now[0]
        seen.append(await looked.observe(CALM, Look(FIVE)))
    now[0] += timedelta(seconds=20)
    seen.append(await looked.observe(CALM, Look(FIVE)))
    now[0] += timedelta(seconds=20)
    with Server(lambda request: forwarded(request, history.url), port):
        seen.append(await looked.observe(CALM, Look(FIVE)))
    looked.close()

    pools = [isinstance(look.pods["calm"].pool, Measured) for look in seen]
    assert pools == [True, False, True]


async def test_a_source_that_goes_down_in_the_middle_is_not_asked_on(history: PrometheusServer) -> None:
    def only_the_first(request: Request) -> Reply:
        return forwarded(request, history.url) if "timestamp" in request.text else Reply(503)

    with Server(only_the_first) as server:
        seen, trouble = await look_at(server.url, concurrency=2)

    assert all_readings(seen) == {UNAVAILABLE}
    assert trouble == "metrics source default answered 503"
    assert len(server.requests) <= len(["presence"]) + 2


async def test_an_answer_that_comes_in_drops_is_cut_off_by_the_clock() -> None:
    def drip(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        with suppress(OSError):
            for _ in range(40):
                connection.sendall(b" " * 20_000)
                time.sleep(0.1)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        dripping = threading.Thread(target=lambda: drip(listening.accept()[0]))
        dripping.start()
        before = time.monotonic()
        seen, trouble = await look_at(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout="1s")
        waited = time.monotonic() - before
        dripping.join()

    assert all_readings(seen) == {UNAVAILABLE}
    assert trouble == "metrics source default answers too slowly; raise timeout"
    assert waited < 3.5


DRIPS = [
    ("the line of status", b""),
    ("headers", b"HTTP/1.1 200 OK\r\nX-Drop: "),
    ("the body", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"),
    ("a chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n"),
    ("the size of a chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
]


@pytest.mark.parametrize("begun", [row[1] for row in DRIPS], ids=[row[0] for row in DRIPS])
async def test_a_source_that_drips_is_let_go_and_used_again_at_once(begun: bytes) -> None:
    with Dripping(begun) as dripping:
        looked, now = source(f"http://127.0.0.1:{dripping.port}", timeout="1s", concurrency=1), [END]
        looked._now = lambda: now[0]
        dripped, trouble = await looked.observe(CALM, Look(FIVE)), looked.trouble
        # Its one thread is free, because the connection was cut: the other end sees it.
        was_cut = await asyncio.to_thread(dripping.cut.wait, 60)
    now[0] += timedelta(seconds=20)
    with Server(answering(EMPTY), dripping.port):
        again = await looked.observe(CALM, Look(FIVE))
    looked.close()

    assert all_readings(dripped) == {UNAVAILABLE}
    assert "did not answer within 1 s" in trouble or "answers too slowly" in trouble
    assert was_cut
    assert all_readings(again) == {Missing(Absence.NO_SERIES)}


async def test_nobody_listens() -> None:
    seen, trouble = await look_at(f"http://127.0.0.1:{free_ports(1)[0]}")

    assert all_readings(seen) == {UNAVAILABLE}
    assert trouble == "metrics source default cannot be reached; check url"


async def test_a_source_that_hangs_is_left_after_its_time_out() -> None:
    with Server(lambda _: server.released.wait() and Reply()) as server:
        before = time.monotonic()
        seen, trouble = await look_at(server.url, timeout="1s")
        waited = time.monotonic() - before

    assert all_readings(seen) == {UNAVAILABLE}
    assert trouble == "metrics source default did not answer within 1 s"
    assert waited < 3


async def test_a_hung_source_takes_no_thread_from_another(history: PrometheusServer) -> None:
    with Server(lambda _: hung.released.wait() and Reply()) as hung:
        stuck = source(hung.url, timeout="20s")
        waiting = [asyncio.create_task(stuck.observe(CALM, Look(FIVE))) for _ in range(20)]
        await asyncio.sleep(0.1)
        before = time.monotonic()
        seen, _ = await look_at(history.url)
        answered_after = time.monotonic() - before
        stuck.close()
        for task in waiting:
            task.cancel()

    assert isinstance(seen.pods["calm"].pool, Measured)
    assert answered_after < 10


async def test_an_answer_that_never_ends_is_cut_off() -> None:
    with Server(answering(b"", **{"Content-Length": "1000000"})) as server:
        before = time.monotonic()
        seen, _ = await look_at(server.url, timeout="1s")

    assert all_readings(seen) == {UNAVAILABLE}
    assert time.monotonic() - before < 3


async def test_an_answer_beyond_the_limit_is_refused() -> None:
    big = {**EMPTY, "padding": "x" * (2 << 20)}
    with Server(answering(big)) as server:
        seen, trouble = await look_at(server.url, response_limit_mib=1)

    assert all_readings(seen) == {UNAVAILABLE}
    assert "more than 1 MiB; raise responseLimitMib" in trouble


async def test_a_connection_that_had_been_closed_is_tried_again(history: PrometheusServer) -> None:
    @dataclass
    class Dropping:
        seen: list[str] = field(default_factory=list)

        def __call__(self, request: Request) -> Reply:
            self.seen.append(request.text)
            if len(self.seen) == 1:
                raise HangUpError
            return forwarded(request, history.url)

    with Server(Dropping()) as server:
        seen, trouble = await look_at(server.url)

    assert isinstance(seen.pods["calm"].pool, Measured)
    assert trouble == ""


async def test_one_bad_query_spoils_its_own_signal_alone(history: PrometheusServer) -> None:
    def too_heavy(request: Request) -> Reply:
        if "time_to_first_token" in request.text:
            return Reply(422, b'{"error": "query would load too many samples"}', JSON)
        return forwarded(request, history.url)

    with Server(too_heavy) as server:
        seen, trouble = await look_at(server.url)

    pod = seen.pods["calm"]
    assert pod.histogram(Signal.TIME_TO_FIRST_TOKEN_SECONDS) == UNAVAILABLE
    assert isinstance(pod.histogram(Signal.E2E_SECONDS), Measured)
    assert "answered 422: query would load too many samples" in trouble


async def test_partial_data_in_one_answer_spoils_all(history: PrometheusServer) -> None:
    def partial(request: Request) -> Reply:
        reply = forwarded(request, history.url)
        if "generation_tokens_total" in request.text:
            reply.body = json.dumps({**json.loads(reply.body), "warnings": ["no store matched"]}).encode()
        return reply

    with Server(partial) as server:
        seen, trouble = await look_at(server.url)

    assert all_readings(seen) == {UNAVAILABLE}
    assert "no store matched" in trouble


async def test_remarks_on_style_are_no_partial_data(history: PrometheusServer) -> None:
    def remarked(request: Request) -> Reply:
        reply = forwarded(request, history.url)
        remarks = {"warnings": ["PromQL info: metric might not be a counter"], "infos": ["the same, later"]}
        reply.body = json.dumps({**json.loads(reply.body), **remarks}).encode()
        return reply

    with Server(remarked) as server:
        seen, trouble = await look_at(server.url)

    assert isinstance(seen.pods["calm"].pool, Measured)
    assert trouble == ""


async def test_an_empty_answer_is_no_trouble_and_no_number() -> None:
    with Server(answering(EMPTY)) as server:
        seen, trouble = await look_at(server.url)

    assert all_readings(seen) == {Missing(Absence.NO_SERIES)}
    assert trouble == ""


async def test_trouble_is_logged_once_and_so_is_its_end(
    history: PrometheusServer, caplog: pytest.LogCaptureFixture
) -> None:
    down = [True]

    def flaky(request: Request) -> Reply:
        return Reply(503) if down[0] else forwarded(request, history.url)

    caplog.set_level(logging.INFO, "kvmedic")
    now = [END]
    with Server(flaky) as server:
        looked = source(server.url)
        looked._now = lambda: now[0]
        for is_down in (True, True, False, False):
            down[0] = is_down
            now[0] += timedelta(seconds=20)
            await looked.observe(CALM, Look(FIVE, signals=frozenset()))
        looked.close()

    assert caplog.messages == [
        "metrics source default answered 503",
        "metrics source default answers again",
    ]


async def test_series_that_name_no_pod_are_reported(
    history: PrometheusServer, caplog: pytest.LogCaptureFixture
) -> None:
    seen, _ = await look_at(history.url, labels={"pod": "kubernetes_pod_name"})

    assert all_readings(seen) == {Missing(Absence.NO_SERIES)}
    assert "lack the label kubernetes_pod_name; set labels.pod" in caplog.text


async def test_credentials_and_parameters_are_sent(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first-token\n")
    with Server(answering(EMPTY)) as server:
        looked = source(
            server.url,
            bearer_token_file=token,
            headers={"X-Scope-OrgID": "team-a"},
            params={"dedup": "true"},
        )
        await looked.observe(CALM, Look(FIVE, signals=frozenset()))
        token.write_text("rotated-token")
        looked._moment = None
        await looked.observe(CALM, Look(FIVE, signals=frozenset()))
        looked.close()

    first, last = server.requests[0], server.requests[-1]
    assert first.method == "POST"
    assert first.headers["Authorization"] == "Bearer first-token"
    assert last.headers["Authorization"] == "Bearer rotated-token"
    assert first.headers["X-Scope-OrgID"] == "team-a"
    assert "dedup=true" in first.path
    assert "query=" not in first.path
    assert first.body.startswith(b"query=")
    assert "timeout=5s" in first.path
    assert f"time={END.timestamp():.3f}" in first.path


async def test_basic_authentication_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROM_PASSWORD", "pa:ss")
    with Server(answering(EMPTY)) as server:
        await look_at(server.url, basic_auth={"username": "me", "password": {"env": "PROM_PASSWORD"}})

    assert server.requests[0].headers["Authorization"] == "Basic bWU6cGE6c3M="


async def test_a_token_that_vanishes_is_named_by_field_not_by_path(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with Server(answering(EMPTY)) as server:
        looked = source(server.url, bearer_token_file=token)
        token.unlink()
        seen = await looked.observe(CALM, Look(FIVE))
        looked.close()

    assert all_readings(seen) == {UNAVAILABLE}
    assert "a file with credentials or certificates cannot be read any more" in looked.trouble


async def test_certificates_are_checked(history: PrometheusServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    cert, key = authority.sign("server", "/CN=127.0.0.1", ["IP:127.0.0.1"])
    client_cert, client_key = authority.sign("client", "/CN=kvmedic")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED
    ours = {"cert_file": client_cert, "key_file": client_key}

    with Server(lambda request: forwarded(request, history.url), context=context) as server:
        good, _ = await look_at(server.url, ca_file=authority.certificate, **ours)
        strange, unknown_authority = await look_at(server.url, **ours)
        refused, _ = await look_at(server.url, ca_file=authority.certificate)

    assert isinstance(good.pods["calm"].pool, Measured)
    assert all_readings(strange) == all_readings(refused) == {UNAVAILABLE}
    assert "certificate or ours was refused; check caFile" in unknown_authority


LEAKS = [
    ("a server that repeats what it got", answering({"error": "bad token s3cr3t for org-x and p4r4m"}, 403)),
    ("a server that refuses", answering(b"", 500)),
    ("a server that hangs up", None),
]


@pytest.mark.parametrize("answer", [row[1] for row in LEAKS], ids=[row[0] for row in LEAKS])
async def test_no_secret_is_ever_shown(
    answer: Callable[[Request], Reply] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def hang_up(_: Request) -> Reply:
        raise HangUpError

    caplog.set_level(logging.DEBUG)
    token = tmp_path / "token"
    token.write_text("s3cr3t")
    options: dict[str, Any] = {
        "bearer_token_file": token,
        "headers": {"X-Scope-OrgID": "org-x"},
        "params": {"key": "p4r4m"},
    }
    with Server(answer or hang_up) as server:
        _, trouble = await look_at(server.url, **options)

    assert trouble
    shown = trouble + caplog.text
    shown += repr(SourceOptions(url=server.url, **options))
    for secret in ("s3cr3t", "org-x", "p4r4m"):
        assert secret not in shown


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            answering({"status": "error", "error": "query processing would load too many samples"}, 422),
            UNAVAILABLE,
        ),
        (answering(EMPTY), Missing(Absence.NO_SERIES)),
        (
            answering(result([{"metric": POD, "value": [END.timestamp(), "NaN"]}])),
            Missing(Absence.NOT_A_NUMBER),
        ),
    ],
    ids=["too much for the source", "no history", "no number"],
)
async def test_a_peak_that_is_not_known_is_no_trouble_of_the_source(
    reply: Callable[[Request], Reply], expected: Missing
) -> None:
    def answer(request: Request) -> Reply:
        asks_who_writes = "resets%28" in request.text
        return answering(EMPTY)(request) if asks_who_writes else reply(request)

    with Server(answer) as server:
        looked = source(server.url)
        found = await looked.peaks(CALM)
        looked.close()

    assert found == {"calm": expected}
    assert looked.trouble == ""


def test_a_late_answer_is_blamed_on_the_side_that_was_late() -> None:
    now, busy = time.monotonic(), time.process_time()
    idle = _Course(now - 10, busy)
    ours = _Course(now - 10, busy - 9)
    unread = _Course(now - 10, busy, answered=now - 5, size=3 << 20)

    assert idle.why_late("did not answer within 10 s") == "did not answer within 10 s"
    assert "for 9.0 s of which kvmedic itself was busy" in ours.why_late("it")
    assert "answered 3.0 MiB within 5.0 s, which kvmedic did not read in 5.0 s more" in unread.why_late("it")


async def test_what_a_source_takes_is_not_counted_as_ours() -> None:
    def slowly(_: Request) -> Reply:
        time.sleep(0.3)
        body = {"status": "success", "data": {"resultType": "vector", "result": []}}
        return Reply(200, json.dumps(body).encode(), JSON)

    with Server(slowly) as server:
        client = PrometheusClient(SourceOptions(url=server.url))
        await client.query("up", END)
        client.close()

    assert client.spent.source_seconds >= 0.3
    assert client.spent.own_seconds < 0.3
