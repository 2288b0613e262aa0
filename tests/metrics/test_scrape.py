"""What a replica says of itself, and observations from pages alone."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import LIMIT_BYTES, Page, observe_pages, parse_page, version_url_of
from kvmedic.metrics.scrape import (
    MOST_PIECES,
    PIECES_AT_ONCE,
    Engine,
    PodAddress,
    Scraper,
    engines_of,
    read_body,
    resolver_of,
    sum_in_flight,
)
from kvmedic.metrics.series import PodKey, Series
from kvmedic.model.engine import Version
from kvmedic.model.evidence import (
    HISTOGRAMS,
    Absence,
    Measured,
    Missing,
    Pool,
    Reading,
    Signal,
    Stale,
    Unsupported,
)
from kvmedic.settings import ScrapeOptions
from lab.cluster.machine import free_ports
from worlds.http_double import HangUpError, Reply, Request, Server
from worlds.scripted_fleet import DATA

THRASH = (DATA / "metrics-thrash.txt").read_text()
IDLE = (DATA / "metrics-idle.txt").read_text()
SERVERS = (DATA / "metrics-apiserver2.txt").read_text()
T0 = datetime(2026, 1, 1, tzinfo=UTC)
POD = PodKey("fleet", "inference-0")
UNAVAILABLE = Missing(Absence.SOURCE_UNAVAILABLE)
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


def answering(text: str | bytes, status: int = 200) -> Callable[[Request], Reply]:
    body = text.encode() if isinstance(text, str) else text
    return lambda _: Reply(status, body, {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def in_flight(url: str, **options: Any) -> object:
    scraper = Scraper(ScrapeOptions(**options), VLLM_SIGNALS, lambda _: url)
    try:
        reading = await scraper.count_in_flight(PodAddress(POD, "127.0.0.1"))
        return value_of(reading)
    finally:
        await scraper.close()


def value_of(reading: Reading[Any]) -> object:
    return reading.value if isinstance(reading, Measured) else reading


def labels(number: int) -> str:
    return "{" + ",".join(f'a{i}="x"' for i in range(number)) + "}"


def long(characters: int) -> str:
    before, after = f'{RUNNING}{{a="', '"} 1'
    return before + "x" * (characters - len(before) - len(after)) + after


def stamped(page: str, seconds: float) -> str:
    """Return a page whose samples carry a time, so many seconds from now."""
    at = round((time.time() + seconds) * 1000)
    return "".join(f"{line} {at}\n" for line in page.splitlines())


OF_OLD = "\n".join(
    f'{name}{{model_name="m"}} {n}'
    for name, n in ((RUNNING, 2), (WAITING, 1), ("vllm:num_requests_swapped", 4))
)
PARALLEL = "\n".join(
    f'{name}{{engine="{i}",model_name="m"}} {i + 1}' for name in (RUNNING, WAITING) for i in range(3)
)
NAN = THRASH.replace(
    f'{RUNNING}{{engine="0",model_name="tiny"}} 11.0', f'{RUNNING}{{engine="0",model_name="tiny"}} NaN'
)
TWO = "\n".join(f'{name}{{engine="{i}",model_name="m"}} 0' for name in (RUNNING, WAITING) for i in range(2))
ONE_OF_TWO = "\n".join(line for line in TWO.splitlines() if 'engine="0"' in line)
PAGES = [
    ("running and waiting are added", THRASH, 21.0),
    ("an idle replica", IDLE, 0.0),
    ("several API servers", SERVERS, 0.0),
    ("all engines of a replica", PARALLEL + "\n", 12.0),
    ("swapped requests of old engines", OF_OLD + "\n", 7.0),
    ("a sidecar's page", "up 1\n", Missing(Absence.NO_SERIES)),
    ("an empty page", "", Missing(Absence.NO_SERIES)),
    ("half a page", f"{RUNNING} 1\n", Missing(Absence.NO_SERIES)),
    ("not a number", NAN, Missing(Absence.NOT_A_NUMBER)),
    ("one engine does not report what waits", TWO.rpartition("\n")[0] + "\n", Missing(Absence.NO_SERIES)),
    ("a negative number", PARALLEL.replace("} 3", "} -3") + "\n", Missing(Absence.NOT_A_NUMBER)),
    ("numbers of an hour ago", stamped(TWO, -3600), Stale),
    ("numbers of the next hour", stamped(TWO, 3600), Stale),
    ("not a page", "<html>hello</html>", UNAVAILABLE),
    ("not even text", b"\xff\xfe\x00{", UNAVAILABLE),
    ("JSON", '{"detail": "Not Found"}', UNAVAILABLE),
    ("a gateway's words", "slow down\n", UNAVAILABLE),
    ("labels that the parser trips over", THRASH + RUNNING + "{, =a 1\n", UNAVAILABLE),
    ("labels that are never closed", THRASH + RUNNING + '{engine="0 1\n', UNAVAILABLE),
    ("a number without end", THRASH + f"{RUNNING} {'9' * 4000}\n", UNAVAILABLE),
    ("a time without end", THRASH + f"{RUNNING} 1 {'9' * 4000}\n", UNAVAILABLE),
    ("a number beyond all numbers", f"{RUNNING} 1e400\n{WAITING} 0\n", Missing(Absence.NOT_A_NUMBER)),
    ("a number that overflows sums", f"{RUNNING} 1e308\n{WAITING} 1e308\n", Missing(Absence.NOT_A_NUMBER)),
    ("as many labels as may be", f"{RUNNING}{labels(64)} 1\n{WAITING} 2\n", 3.0),
    ("more labels than may be", f"{RUNNING}{labels(65)} 1\n{WAITING} 2\n", UNAVAILABLE),
    ("a line as long as may be", f"{long(4096)}\n{WAITING} 2\n", 3.0),
    ("a longer line", f"{long(4097)}\n{WAITING} 2\n", UNAVAILABLE),
    ("a longer line of another metric", THRASH + f"other{labels(9000)} 1\n", 21.0),
    ("one series twice, alike", f"{RUNNING} 1\n{WAITING} 2\n{RUNNING} 1\n", 3.0),
    ("one series twice", f"{RUNNING} 1\n{WAITING} 2\n{RUNNING} 5\n", Missing(Absence.NOT_A_NUMBER)),
]


@pytest.mark.parametrize(("page", "expected"), [row[1:] for row in PAGES], ids=[row[0] for row in PAGES])
async def test_requests_in_flight_are(page: str | bytes, expected: object) -> None:
    with Server(answering(page)) as server:
        found = await in_flight(server.url)

    assert found == expected or (isinstance(expected, type) and isinstance(found, expected))


ENDED = "vllm:request_success_total"
GIVEN = (
    f'{RUNNING} 1\n{WAITING} 2\n{ENDED}{{finished_reason="stop"}} 40\n{ENDED}{{finished_reason="abort"}} 2\n'
)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (GIVEN, 45.0),
        (f"{RUNNING} 1\n{WAITING} 2\n", 3.0),
        (f"{WAITING} 2\n{ENDED} 40\n", Missing(Absence.NO_SERIES)),
        (f"{RUNNING} 1\n{WAITING} 2\n{ENDED} NaN\n", Missing(Absence.NOT_A_NUMBER)),
        ("<html>hello</html>", UNAVAILABLE),
    ],
    ids=["ended however, and held", "none ended yet", "half a page", "not a number", "not a page"],
)
async def test_requests_that_an_engine_was_given_are(page: str, expected: object) -> None:
    with Server(answering(page)) as server:
        scraper = Scraper(ScrapeOptions(), VLLM_SIGNALS, lambda _: server.url)
        try:
            found = value_of(await scraper.count_received(PodAddress(POD, "127.0.0.1")))
        finally:
            await scraper.close()

    assert found == expected


async def on_ports(
    first: str, other: str | int | None, *looks: str | int | None, known: bool = False
) -> object:
    """Return the requests on a replica with two ports; the second one's answer may change."""
    answers = [other, *looks]
    with Server(answering(first)) as one, Server(lambda _: reply(answers[0])) as two:
        ports = {8000: one.port, 8001: two.port if other is not None else free_ports(1)[0]}
        scraper = Scraper(
            ScrapeOptions(timeout="5s"), VLLM_SIGNALS, lambda where: f"http://127.0.0.1:{ports[where.port]}"
        )
        declared = () if known else (8001,)
        engines = [Engine("1", "m", 8001)] if known else []
        found: Reading[float] = UNAVAILABLE
        while answers:
            found = await scraper.count_in_flight(PodAddress(POD, "127.0.0.1", declared), engines)
            answers.pop(0)
        await scraper.close()
    return value_of(found)


def reply(answer: str | int | None) -> Reply:
    if isinstance(answer, int):
        return Reply(answer, b"", {})
    return Reply(200, (answer or "").encode(), {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


RANK_1 = ONE_OF_TWO.replace('engine="0"', 'engine="1"') + "\n"
BUSY = RANK_1.replace("} 0", "} 37", 1)
IDLE_RANK = ONE_OF_TWO + "\n"


@pytest.mark.parametrize(
    ("looks", "known", "expected"),
    [
        ([RANK_1], False, 0.0),
        ([BUSY], False, 37.0),
        ([BUSY], True, 37.0),
        (["up 1\n"], False, 0.0),
        (["<html></html>"], False, 0.0),
        ([404], False, 0.0),
        ([503], False, UNAVAILABLE),
        ([None], False, 0.0),
        ([None], True, Missing(Absence.NO_SERIES)),
        (["up 1\n"], True, Missing(Absence.NO_SERIES)),
        ([BUSY, "up 1\n"], False, Missing(Absence.NO_SERIES)),
        ([BUSY, 404], False, Missing(Absence.NO_SERIES)),
    ],
    ids=[
        "both idle",
        "requests on the second rank",
        "requests on a rank whose port only the source knows",
        "a sidecar's page",
        "a sidecar's site",
        "a sidecar without such a page",
        "a rank that cannot answer now",
        "nobody listens",
        "nobody listens where the source knows an engine",
        "another page where the source knows an engine",
        "an engine that was there is gone from its page",
        "an engine that was there is gone with its page",
    ],
)
async def test_every_engine_behind_every_port_must_say_that_it_is_idle(
    looks: list[str | int | None], known: bool, expected: object
) -> None:
    assert await on_ports(IDLE_RANK, *looks, known=known) == expected


async def test_an_engine_that_vanishes_from_a_page_takes_no_request_with_it() -> None:
    pages = [TWO + "\n", IDLE_RANK]
    with Server(lambda _: reply(pages.pop(0))) as server:
        scraper = Scraper(ScrapeOptions(), VLLM_SIGNALS, lambda _: server.url)
        found = [value_of(await scraper.count_in_flight(PodAddress(POD, "127.0.0.1"))) for _ in range(2)]
        await scraper.close()

    assert found == [0.0, Missing(Absence.NO_SERIES)]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-11, Stale), (-10, Measured), (10, Measured), (11, Stale)]
)
def test_a_sample_with_a_time_of_its_own_counts_as_long_as_a_scrape_may_take(
    seconds: float, expected: type
) -> None:
    stamp = round((T0.timestamp() + seconds) * 1000)
    page = parse_page("".join(f"{line} {stamp}\n" for line in TWO.splitlines()), T0)

    assert isinstance(sum_in_flight({8000: page}, (), VLLM_SIGNALS, timedelta(seconds=10)), expected)


def test_a_source_distinguishes_engines_by_the_port_that_they_were_scraped_at() -> None:
    labels = {"model_name": "m", "namespace": "fleet"}
    series = [Series({**labels, "engine": str(i), "instance": f"10.0.0.1:800{i}"}, 0.0) for i in range(2)]

    found = engines_of([*series, Series({**labels, "engine": "2", "instance": "llm-0"}, 0.0)], VLLM_SIGNALS)

    assert found == {Engine("0", "m", 8000), Engine("1", "m", 8001), Engine("2", "m", None)}


@pytest.mark.parametrize("status", [302, 404, 500, 503])
async def test_another_status_than_200_is_no_answer(status: int) -> None:
    with Server(answering(THRASH, status)) as server:
        assert await in_flight(server.url) == UNAVAILABLE


async def test_a_replica_that_does_not_listen_or_hangs_up_is_unavailable() -> None:
    def hang_up(_: Request) -> Reply:
        raise HangUpError

    with Server(hang_up) as server:
        assert await in_flight(server.url) == UNAVAILABLE
    assert await in_flight(f"http://127.0.0.1:{free_ports(1)[0]}") == UNAVAILABLE
    assert await in_flight("not a url") == UNAVAILABLE


async def test_a_replica_that_hangs_is_left_after_the_time_out() -> None:
    with Server(lambda _: server.released.wait() and Reply()) as server:
        before = time.monotonic()
        readings = await asyncio.gather(
            in_flight(server.url, timeout="5s"), version_at(f"{server.url}/metrics", timeout="5s")
        )

    assert readings == [UNAVAILABLE, SILENT]
    assert time.monotonic() - before < 6.5


async def test_a_page_beyond_the_limit_is_refused() -> None:
    with Server(answering("# " + "x" * (2 << 20))) as server:
        assert await in_flight(server.url, response_limit_mib=1) == UNAVAILABLE


async def test_a_page_in_very_many_pieces_is_refused() -> None:
    text = IDLE.encode() + b"# " + b"x" * MOST_PIECES + b"\n"
    chunks = [b"1\r\n%c\r\n" % byte for byte in text]
    few = [b"%x\r\n%s\r\n" % (len(text), text)]

    def answer(request: Request) -> Reply:
        body = b"".join(few if request.path == "/few" else chunks) + b"0\r\n\r\n"
        return Reply(200, body, {"Transfer-Encoding": "chunked"})

    with Server(answer) as server:
        assert await in_flight(f"{server.url}/few", timeout="30s") == 0.0
        assert await in_flight(f"{server.url}/many", timeout="30s") == UNAVAILABLE


async def test_others_have_their_turn_while_an_answer_comes_in_pieces() -> None:
    """Up to 11,000 pieces, all of the 64 KiB that were there, were read before that."""
    turns = 0

    class Pieces(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(100 * PIECES_AT_ONCE):
                yield b"x"  # they are all there: nobody waits for one

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.create_task(take_turns())
    body = await read_body(httpx.Response(200, stream=Pieces()), 1 << 20)
    others.cancel()

    assert len(body) == 100 * PIECES_AT_ONCE
    assert turns >= 99


async def test_a_page_that_is_encoded_is_not_even_unpacked() -> None:
    def packed(request: Request) -> Reply:
        assert request.headers["Accept-Encoding"] == "identity"
        return Reply(200, gzip.compress(gzip.compress(THRASH.encode())), {"Content-Encoding": "gzip, gzip"})

    with Server(packed) as server:
        assert await in_flight(server.url) == UNAVAILABLE
        assert len(server.requests) == 1


async def test_a_pod_without_an_address_is_unavailable() -> None:
    scraper = Scraper(ScrapeOptions(), VLLM_SIGNALS)

    reading = await scraper.count_in_flight(PodAddress(POD, ""))

    await scraper.close()
    assert reading == UNAVAILABLE


async def test_the_pool_is_asked_of_the_replica_itself() -> None:
    readings = []
    for page in (THRASH, "up 1\n"):
        with Server(answering(page)) as server:
            scraper = Scraper(ScrapeOptions(), VLLM_SIGNALS, lambda _, url=server.url: url)
            readings.append(value_of(await scraper.pool(PodAddress(POD, "127.0.0.1"))))
            await scraper.close()

    assert readings == [Pool(149, 32, "auto", caches_prefixes=True), Missing(Absence.NO_SERIES)]


async def test_the_pool_is_that_of_every_engine_with_a_port_of_its_own() -> None:
    with Server(answering(THRASH)) as first, Server(answering(THRASH)) as second:
        scraper = Scraper(ScrapeOptions(), VLLM_SIGNALS)
        here = PodAddress(POD, "127.0.0.1", port=first.port)
        both = value_of(await scraper.pool(here, (first.port, second.port)))
        one_starts = await scraper.pool(here, (first.port, free_ports(1)[0]))
        await scraper.close()

    assert both == Pool(298, 32, "auto", caches_prefixes=True)
    assert one_starts == UNAVAILABLE


async def test_a_replica_is_asked_at_the_port_of_its_engine() -> None:
    with Server(answering(THRASH)) as server:
        scraper = Scraper(ScrapeOptions(port=free_ports(1)[0]), VLLM_SIGNALS)
        here = PodAddress(POD, "127.0.0.1", port=server.port)
        found = [value_of(await scraper.pool(here)), value_of(await scraper.count_in_flight(here))]
        elsewhere = await scraper.count_in_flight(replace(here, port=None))
        await scraper.close()

    assert found == [Pool(149, 32, "auto", caches_prefixes=True), 21.0]
    assert isinstance(elsewhere, Missing)


def test_a_pod_is_found_by_template_or_by_the_addresses_file(tmp_path: Path) -> None:
    addresses = tmp_path / "addresses.yaml"
    addresses.write_text("fleet/inference-0: http://127.0.0.1:9001/metrics\n")
    by_template = resolver_of(ScrapeOptions(port=8080))
    by_file = resolver_of(ScrapeOptions(addresses_file=addresses))
    other = PodKey("fleet", "inference-1")

    found = [
        by_template(PodAddress(POD, "10.0.0.7")),
        by_template(PodAddress(POD, "fd00::7")),
        by_template(PodAddress(POD, "")),
        by_file(PodAddress(POD, "")),
        by_file(PodAddress(other, "10.0.0.7")),
        by_file(PodAddress(other, "")),
    ]
    addresses.write_text("fleet/inference-1: http://127.0.0.1:9002/metrics\n")
    moved = by_file(PodAddress(other, ""))
    addresses.write_text("[not, a, mapping]")
    unreadable = by_file(PodAddress(other, ""))

    assert found == [
        "http://10.0.0.7:8080/metrics",
        "http://[fd00::7]:8080/metrics",
        None,
        "http://127.0.0.1:9001/metrics",
        "http://10.0.0.7:8000/metrics",
        None,
    ]
    assert moved == "http://127.0.0.1:9002/metrics"
    assert unreadable is None


ODD = st.lists(
    st.sampled_from(
        [RUNNING, "{", "}", "=", ",", '"', "\\", " ", "\n", "#", "1", "NaN", "e9", "a", "\t", "é"]
    ),
    max_size=24,
).map("".join)


@given(ODD)
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_page_or_none(text: str) -> None:
    with suppress(ValueError):
        assert isinstance(parse_page(f"{RUNNING}{text}", T0), Page)


def page(text: str, seconds: float) -> Page:
    return parse_page(text, T0 + timedelta(seconds=seconds))


def test_two_recorded_pages_show_what_happened_between_them() -> None:
    seen = observe_pages({"a": [page(IDLE, 0), page(THRASH, 300)]}, VLLM_SIGNALS)

    pod = seen.pods["a"]
    numbers = {signal: value_of(pod.number(signal)) for signal in Signal if signal not in HISTOGRAMS}
    assert (seen.window_seconds, seen.hold_seconds, seen.at) == (300, 0, T0 + timedelta(seconds=300))
    assert numbers == {
        Signal.PREEMPTIONS: 338.0,
        Signal.PREEMPTIONS_PER_REQUEST_HELD: 338 / 183,
        Signal.SILENT_SECONDS_HELD: 5 * 300 / (183 + 21),
        Signal.STALLS_PER_REQUEST_HELD: 20 / 183,
        Signal.REQUESTS_FINISHED: 183.0,
        Signal.REQUESTS_ABORTED: 0.0,
        Signal.REQUESTS_IN_FLIGHT_CHANGE: 21.0,
        Signal.RUNNING_MEAN: 5.5,
        Signal.RUNNING_MAX: 11.0,
        Signal.RUNNING_LOW: 0.2 * 11,
        Signal.WAITING_MEAN: 5.0,
        Signal.WAITING_AT_END: 10.0,
        Signal.KV_CACHE_USAGE_MEAN: 0.5,
        Signal.KV_CACHE_USAGE_MAX: 1.0,
        Signal.KV_CACHE_USAGE_DEVIATION: Unsupported(),
        Signal.PROMPT_TOKENS: 13056.0,
        Signal.GENERATED_TOKENS: 84281.0,
        Signal.PREFIX_CACHE_QUERIES: 13056.0,
        Signal.PREFIX_CACHE_HITS: 0.0,
        Signal.STARTED_SECONDS: 1.79523658462e9,
    }
    assert value_of(pod.pool) == Pool(149, 32, "auto", caches_prefixes=True)
    assert pod.model_names == ("tiny",)


@pytest.mark.parametrize("signal", sorted(HISTOGRAMS))
def test_every_histogram_is_found_on_a_recorded_page(signal: Signal) -> None:
    pod = observe_pages({"a": [page(IDLE, 0), page(THRASH, 300)]}, VLLM_SIGNALS).pods["a"]

    seen = pod.histogram(signal)

    assert isinstance(seen, Measured)
    assert seen.value.count > 0
    assert seen.value.total > 0


def test_lengths_are_those_of_the_load_that_was_recorded() -> None:
    pod = observe_pages({"a": [page(IDLE, 0), page(THRASH, 300)]}, VLLM_SIGNALS).pods["a"]

    prompts, outputs = (pod.histogram(s) for s in (Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH))

    assert value_of(prompts).mean == 64.0
    assert value_of(outputs).count == 183


def test_a_counter_that_fell_started_again_from_zero() -> None:
    pages = [
        page(f'vllm:num_preemptions_total{{engine="0"}} {n}\n{RUNNING}{{engine="0"}} 1\n', i)
        for i, n in enumerate((100, 110, 4, 6))
    ]

    pod = observe_pages({"a": pages}, VLLM_SIGNALS).pods["a"]

    assert value_of(pod.number(Signal.PREEMPTIONS)) == 10 + 4 + 2


def test_three_pages_have_a_deviation() -> None:
    usage = ("0.5", "0.9", "0.7")
    pages = [page(f"{RUNNING} 1\nvllm:gpu_cache_usage_perc {u}\n", i) for i, u in enumerate(usage)]

    pod = observe_pages({"a": pages}, VLLM_SIGNALS).pods["a"]

    assert value_of(pod.number(Signal.KV_CACHE_USAGE_DEVIATION)) == pytest.approx(0.1633, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("up 1\n", Missing(Absence.NO_SERIES)),
        (f"{RUNNING} 1\n", Missing(Absence.NOTHING_FOUND)),
        (f"{RUNNING} 1\nvllm:num_preemptions_total NaN\n", Missing(Absence.NOT_A_NUMBER)),
    ],
)
def test_a_page_without_a_usable_number_has_none(text: str, expected: object) -> None:
    pod = observe_pages({"a": [page(text, 0), page(text, 1)]}, VLLM_SIGNALS).pods["a"]

    assert pod.number(Signal.PREEMPTIONS) == expected


def since(before: str, after: str, signal: Signal) -> object:
    """Return a signal of two pages of an engine that serves."""
    pages = [page(f"{RUNNING} 1\n{text}", i) for i, text in enumerate((before, after))]
    return value_of(observe_pages({"a": pages}, VLLM_SIGNALS).pods["a"].number(signal))


PREEMPTED, FINISHED = "vllm:num_preemptions_total", "vllm:request_success_total"
HELD = Signal.PREEMPTIONS_PER_REQUEST_HELD
NOTHING = Missing(Absence.NOTHING_FOUND)
BEGINNINGS = [
    ("a counter that the older page lacks is unknown", "", f"{PREEMPTED} 9\n", Signal.PREEMPTIONS, NOTHING),
    ("and so is its ratio", "", f"{PREEMPTED} 9\n{FINISHED} 3\n", HELD, NOTHING),
    (
        "of finished requests an engine of old says nothing before the first",
        "",
        f"{FINISHED} 3\n",
        Signal.REQUESTS_FINISHED,
        3.0,
    ),
    (
        "neither does it of a ratio's denominator",
        f"{PREEMPTED} 4\n",
        f"{PREEMPTED} 10\n{FINISHED} 3\n",
        HELD,
        2.0,
    ),
    ("nothing preempted, nothing ever finished", f"{PREEMPTED} 4\n", f"{PREEMPTED} 4\n", HELD, 0.0),
    ("preempted, and not a word of what finished", f"{PREEMPTED} 4\n", f"{PREEMPTED} 5\n", HELD, NOTHING),
]


@pytest.mark.parametrize(
    ("before", "after", "signal", "expected"),
    [row[1:] for row in BEGINNINGS],
    ids=[row[0] for row in BEGINNINGS],
)
def test_a_counter_begins(before: str, after: str, signal: Signal, expected: object) -> None:
    assert since(before, after, signal) == expected


def test_pages_that_cannot_be_compared_are_refused() -> None:
    one, two = page(IDLE, 0), page(IDLE, 1)

    for pages in ({"a": [one]}, {"a": [two, one]}, {}):
        with pytest.raises(ValueError, match="give"):
            observe_pages(pages, VLLM_SIGNALS)


SILENT, NO_PAGE, UNREADABLE = (
    Missing(absence) for absence in (Absence.SOURCE_UNAVAILABLE, Absence.NOTHING_FOUND, Absence.UNREADABLE)
)


async def version_at(metrics_url: str, **options: Any) -> object:
    scraper = Scraper(ScrapeOptions(**options), VLLM_SIGNALS, lambda _: metrics_url)
    try:
        reading = await scraper.version(PodAddress(POD, "127.0.0.1"))
        return reading.value if isinstance(reading, Measured) else reading
    finally:
        await scraper.close()


def versions(body: str | bytes, status: int = 200) -> Callable[[Request], Reply]:
    data = body.encode() if isinstance(body, str) else body
    return lambda request: Reply(status, data) if request.path == "/version" else Reply(404)


def version_text(text: object) -> str:
    return json.dumps({"version": text})


LARGEST_PAGE = version_text("0.32.0") + " " * (LIMIT_BYTES - len(version_text("0.32.0")))
ANSWERS = [
    ("a release", '{"version":"0.32.0"}', Version.parse("0.32.0")),
    ("a release candidate", version_text("0.11.0rc2"), Version.parse("0.11.0rc2")),
    ("a build from a source tree", version_text("0.9.2.dev12+gabc"), Version.parse("0.9.2.dev12")),
    ("a build for CPU", version_text("0.32.0+cpu"), Version.parse("0.32.0")),
    ("with more beside it", '{"version": "0.8.5.post1", "commit": "abc"}', Version.parse("0.8.5.post1")),
    ("a page at the limit", LARGEST_PAGE, Version.parse("0.32.0")),
    ("a page over the limit", LARGEST_PAGE + " ", UNREADABLE),
    ("an engine that does not know", version_text("dev"), UNREADABLE),
    ("no text", version_text(0.32), UNREADABLE),
    ("nothing", version_text(None), UNREADABLE),
    ("another object", '{"Version": "0.32.0"}', UNREADABLE),
    ("no object", '"0.32.0"', UNREADABLE),
    ("a proxy's page", "<html>Sign in</html>", UNREADABLE),
    ("an empty page", "", UNREADABLE),
    ("half a page", '{"version": "0.3', UNREADABLE),
    ("not even text", b"\xff\xfe\x00{", UNREADABLE),
    ("brackets without end", "[" * LIMIT_BYTES, UNREADABLE),
]


@pytest.mark.parametrize(("body", "expected"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
async def test_a_replica_says_its_version(body: str | bytes, expected: object) -> None:
    with Server(versions(body)) as server:
        assert await version_at(f"{server.url}/metrics") == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(404, NO_PAGE), (302, SILENT), (401, SILENT), (403, SILENT), (500, SILENT), (503, SILENT)],
)
async def test_another_status_than_200_is_no_version(status: int, expected: Missing) -> None:
    with Server(versions(version_text("0.32.0"), status)) as server:
        assert await version_at(f"{server.url}/metrics") == expected


async def test_one_request_is_made_without_credentials_or_anything_else_of_ours() -> None:
    with Server(versions(version_text("0.32.0"))) as server:
        await version_at(f"{server.url}/metrics")

    [request] = server.requests
    assert (request.method, request.path, request.body) == ("GET", "/version", b"")
    assert "Authorization" not in request.headers


async def test_a_replica_that_does_not_listen_or_hangs_up_says_no_version() -> None:
    def hang_up(_: Request) -> Reply:
        raise HangUpError

    with Server(hang_up) as server:
        assert await version_at(f"{server.url}/metrics") == SILENT
    assert await version_at(f"http://127.0.0.1:{free_ports(1)[0]}/metrics") == SILENT


@pytest.mark.parametrize("url", ["http://[::1/metrics", "not a url", "http://127.0.0.1:1/custom"])
async def test_where_the_page_is_not_known_nobody_is_asked(url: str) -> None:
    assert await version_at(url) == SILENT


async def test_a_pod_without_an_address_is_not_asked_for_its_version() -> None:
    scraper = Scraper(ScrapeOptions(), VLLM_SIGNALS)

    reading = await scraper.version(PodAddress(POD, ""))

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
    assert version_url_of(metrics, VLLM_SIGNALS.version) == expected
