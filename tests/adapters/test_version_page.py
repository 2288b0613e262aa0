"""A replica's own word about its engine's version, over the wire."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from http_double import HangUpError, Reply, Request, Server
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import LIMIT_BYTES, beside
from kvmedic.metrics.scrape import PodAddress, Scraper
from kvmedic.metrics.series import PodKey
from kvmedic.model.engine import Version
from kvmedic.model.evidence import Absence, Measured, Missing
from kvmedic.settings import ScrapeOptions
from lab.cluster.machine import free_ports

POD = PodAddress(PodKey("fleet", "inference-0"), "127.0.0.1")
SILENT, NO_PAGE, UNREADABLE = (
    Missing(absence) for absence in (Absence.SOURCE_UNAVAILABLE, Absence.NOTHING_FOUND, Absence.UNREADABLE)
)


async def version_at(metrics_url: str, **options: Any) -> object:
    scraper = Scraper(ScrapeOptions(**options), VLLM_SIGNALS, lambda _: metrics_url)
    try:
        reading = await scraper.version(POD)
        return reading.value if isinstance(reading, Measured) else reading
    finally:
        await scraper.close()


def answering(body: str | bytes, status: int = 200) -> Callable[[Request], Reply]:
    data = body.encode() if isinstance(body, str) else body
    return lambda request: Reply(status, data) if request.path == "/version" else Reply(404)


def told(text: object) -> str:
    return json.dumps({"version": text})


LARGEST = told("0.32.0") + " " * (LIMIT_BYTES - len(told("0.32.0")))
ANSWERS = [
    ("a release", '{"version":"0.32.0"}', Version.parse("0.32.0")),
    ("a release candidate", told("0.11.0rc2"), Version.parse("0.11.0rc2")),
    ("a build from a source tree", told("0.9.2.dev12+gabc"), Version.parse("0.9.2.dev12")),
    ("a build for CPU", told("0.32.0+cpu"), Version.parse("0.32.0")),
    ("with more beside it", '{"version": "0.8.5.post1", "commit": "abc"}', Version.parse("0.8.5.post1")),
    ("a page at the limit", LARGEST, Version.parse("0.32.0")),
    ("a page over the limit", LARGEST + " ", UNREADABLE),
    ("an engine that does not know", told("dev"), UNREADABLE),
    ("no text", told(0.32), UNREADABLE),
    ("nothing", told(None), UNREADABLE),
    ("another object", '{"Version": "0.32.0"}', UNREADABLE),
    ("no object", '"0.32.0"', UNREADABLE),
    ("a proxy's page", "<html>Sign in</html>", UNREADABLE),
    ("an empty page", "", UNREADABLE),
    ("half a page", '{"version": "0.3', UNREADABLE),
    ("not even text", b"\xff\xfe\x00{", UNREADABLE),
    ("brackets without end", "[" * LIMIT_BYTES, UNREADABLE),
]


@pytest.mark.parametrize(("body", "expected"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
async def test_a_replica_answers(body: str | bytes, expected: object) -> None:
    with Server(answering(body)) as server:
        assert await version_at(f"{server.url}/metrics") == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(404, NO_PAGE), (302, SILENT), (401, SILENT), (403, SILENT), (500, SILENT), (503, SILENT)],
)
async def test_another_status_than_200_is_no_version(status: int, expected: Missing) -> None:
    with Server(answering(told("0.32.0"), status)) as server:
        assert await version_at(f"{server.url}/metrics") == expected


async def test_one_request_is_made_without_credentials_or_anything_else_of_ours() -> None:
    with Server(answering(told("0.32.0"))) as server:
        await version_at(f"{server.url}/metrics")

    [request] = server.requests
    assert (request.method, request.path, request.body) == ("GET", "/version", b"")
    assert "Authorization" not in request.headers


async def test_a_replica_that_does_not_listen_or_hangs_up_does_not_answer() -> None:
    def hang_up(_: Request) -> Reply:
        raise HangUpError

    with Server(hang_up) as server:
        assert await version_at(f"{server.url}/metrics") == SILENT
    assert await version_at(f"http://127.0.0.1:{free_ports(1)[0]}/metrics") == SILENT


async def test_a_replica_that_hangs_is_left_after_the_time_out() -> None:
    with Server(lambda _: server.released.wait() and Reply()) as server:
        before = time.monotonic()
        reading = await version_at(f"{server.url}/metrics", timeout="5s")

    assert reading == SILENT
    assert time.monotonic() - before < 6.5


@pytest.mark.parametrize("url", ["http://[::1/metrics", "not a url", "http://127.0.0.1:1/custom"])
async def test_where_the_page_cannot_be_told_nobody_is_asked(url: str) -> None:
    assert await version_at(url) == SILENT


async def test_a_pod_without_an_address_is_not_asked() -> None:
    scraper = Scraper(ScrapeOptions(), VLLM_SIGNALS)

    reading = await scraper.version(PodAddress(PodKey("fleet", "inference-0"), ""))

    await scraper.close()
    assert reading == SILENT


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ("http://10.0.0.7:8000/metrics", "http://10.0.0.7:8000/version"),
        ("https://[fd00::7]:8443/metrics", "https://[fd00::7]:8443/version"),
        ("http://gateway/fleet/pod-0/metrics", "http://gateway/fleet/pod-0/version"),
        ("http://gateway/metrics/", "http://gateway/version"),
        ("http://gateway/metrics?pod=a", "http://gateway/version?pod=a"),
        ("http://gateway/stats/prometheus", None),
        ("http://gateway", None),
    ],
)
def test_the_page_is_beside_that_of_the_metrics(metrics: str, expected: str | None) -> None:
    assert beside(metrics, VLLM_SIGNALS.version) == expected
