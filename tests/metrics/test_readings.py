"""Readings from a real Prometheus over scripted history."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.metrics.series import Place, PodKey, Series, foreign_instances, own_series
from kvmedic.model.evidence import (
    EVERY_SIGNAL,
    HISTOGRAMS,
    Absence,
    Look,
    Measured,
    Missing,
    Observation,
    PodReadings,
    Pool,
    Signal,
    Stale,
)
from worlds.http_double import Reply, Request, Server, forwarded
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import BOUNDS, END, FIVE, NAMESPACE, THIRTY, TWO, observed, source

AT_ONCE = Look(FIVE)


LOOKS: dict[Look, Observation] = {}
"""One look at every replica of the tables, as what a replica's readings are does not depend on the others."""


async def readings(history: PrometheusServer, pod: str, look: Look = AT_ONCE) -> PodReadings:
    if look not in LOOKS:
        LOOKS[look] = await observed(history, look, *PODS)
    return LOOKS[look].pods[pod]


async def number(history: PrometheusServer, pod: str, signal: Signal, look: Look = AT_ONCE) -> object:
    return value_of((await readings(history, pod, look)).number(signal))


TABLE = [
    ("a constant rate over five minutes", "thrashing", Signal.PREEMPTIONS, 150.0),
    ("stop and length are answers", "thrashing", Signal.REQUESTS_FINISHED, 1.25 * 300),
    ("aborts are counted apart", "thrashing", Signal.REQUESTS_ABORTED, 30.0),
    ("a counter that stands still", "calm", Signal.PREEMPTIONS, 0.0),
    (
        "a restart within the window loses no more than one scrape",
        "quick-restart",
        Signal.PREEMPTIONS,
        150 - 0.5 * 15,
    ),
    ("the waiting fell by nine", "draining", Signal.REQUESTS_IN_FLIGHT_CHANGE, -9.0),
    ("how many wait at the end", "draining", Signal.WAITING_AT_END, 2.0),
    ("a change since the start of a young replica", "young", Signal.REQUESTS_IN_FLIGHT_CHANGE, 0.0),
    ("the mean of a gauge", "swinging", Signal.RUNNING_MEAN, 8.0),
    ("the largest of a gauge", "swinging", Signal.RUNNING_MAX, 12.0),
    ("what four moments in five reach", "swinging", Signal.RUNNING_LOW, 4.0),
    ("what every moment reaches", "parallel", Signal.RUNNING_LOW, 16.0),
    ("nobody waits for long", "thrashing", Signal.SILENT_SECONDS_HELD, 3 / 1.35),
    ("who waits over who arrives", "queueing", Signal.SILENT_SECONDS_HELD, 27 / 1.35),
    ("who joins the queue arrives too", "queue-comes", Signal.SILENT_SECONDS_HELD, 20 / 1.45),
    ("nothing ever ended: one is assumed", "queueing-of-old", Signal.SILENT_SECONDS_HELD, 27.0 * 300),
    ("of all engines together, silence", "parallel", Signal.SILENT_SECONDS_HELD, 3 / 1.35),
    ("gaps beyond 2.5 s", "thrashing", Signal.STALLS_PER_REQUEST_HELD, 0.85 / 1.25),
    ("the same under the old name", "old", Signal.STALLS_PER_REQUEST_HELD, 0.85 / 1.25),
    ("the newest name alone counts", "both", Signal.STALLS_PER_REQUEST_HELD, 0.85 / 1.25),
    ("usage over the window", "swinging", Signal.KV_CACHE_USAGE_MEAN, 0.7),
    ("the deviation of a gauge", "swinging", Signal.KV_CACHE_USAGE_DEVIATION, 0.2),
    ("usage under its old name", "old", Signal.KV_CACHE_USAGE_MAX, 0.9),
    ("preemptions without an engine label", "old", Signal.PREEMPTIONS, 150.0),
    ("of two names the newer counts", "both", Signal.KV_CACHE_USAGE_MEAN, 0.8),
    ("two scrapers agree and count once", "twice", Signal.PREEMPTIONS, 150.0),
    ("a scrape job that ended does not count", "moved", Signal.PREEMPTIONS, 150.0),
    ("engines are added up", "parallel", Signal.PREEMPTIONS, 225.0),
    ("running of all engines", "parallel", Signal.RUNNING_MEAN, 16.0),
    ("usage is averaged over engines", "parallel", Signal.KV_CACHE_USAGE_MEAN, 0.6),
    ("usage is that of the fullest engine", "parallel", Signal.KV_CACHE_USAGE_MAX, 0.9),
    ("tokens looked up", "thrashing", Signal.PREFIX_CACHE_QUERIES, 30_000.0),
    ("tokens found", "thrashing", Signal.PREFIX_CACHE_HITS, 7_500.0),
    ("start of the process", "thrashing", Signal.STARTED_SECONDS, 1_700_000_000.0),
    ("nothing finishes: one is assumed", "stuck", Signal.PREEMPTIONS_PER_REQUEST_HELD, 30.0),
    ("nothing ever finished and nothing preempted", "unserved", Signal.PREEMPTIONS_PER_REQUEST_HELD, 0.0),
    ("nothing ever finished but aborted", "given-up", Signal.PREEMPTIONS_PER_REQUEST_HELD, 150.0),
    ("no answers beside aborted requests", "given-up", Signal.REQUESTS_FINISHED, 0.0),
    (
        "preemptions without a word of what finished",
        "unfinished",
        Signal.PREEMPTIONS_PER_REQUEST_HELD,
        Missing(Absence.NOTHING_FOUND),
    ),
    ("preemptions per finished request", "thrashing", Signal.PREEMPTIONS_PER_REQUEST_HELD, 0.4),
    ("the ratio of all engines together", "parallel", Signal.PREEMPTIONS_PER_REQUEST_HELD, 0.75 / 2.5),
    ("contradicting jobs", "contradicted", Signal.PREEMPTIONS, Missing(Absence.AMBIGUOUS)),
    ("contradicting jobs agree on the rest", "contradicted", Signal.PROMPT_TOKENS, 30_000.0),
    ("no series at all", "nobody", Signal.PREEMPTIONS, Missing(Absence.NO_SERIES)),
    ("a pod of another namespace", "elsewhere", Signal.PREEMPTIONS, Missing(Absence.NO_SERIES)),
    ("one series of a replica missing", "lacking", Signal.PREEMPTIONS, Missing(Absence.NOTHING_FOUND)),
    (
        "a ratio without its numerator",
        "lacking",
        Signal.PREEMPTIONS_PER_REQUEST_HELD,
        Missing(Absence.NOTHING_FOUND),
    ),
    ("the rest of that replica", "lacking", Signal.GENERATED_TOKENS, 60_000.0),
    ("not a number", "nan-usage", Signal.KV_CACHE_USAGE_MEAN, Missing(Absence.NOT_A_NUMBER)),
    ("numbers beside one that is none", "nan-usage", Signal.PREEMPTIONS, 150.0),
    (
        "one of two engines says nothing of it",
        "half-said",
        Signal.PREEMPTIONS,
        Missing(Absence.NOTHING_FOUND),
    ),
]


@pytest.mark.parametrize(
    ("pod", "signal", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
async def test_a_series_becomes(
    history: PrometheusServer, pod: str, signal: Signal, expected: object
) -> None:
    seen = await number(history, pod, signal)

    assert seen == (pytest.approx(expected, rel=0.03, abs=1e-9) if isinstance(expected, float) else expected)


async def test_every_signal_of_a_healthy_replica_is_measured(history: PrometheusServer) -> None:
    seen = await readings(history, "calm", Look(FIVE, TWO))

    found = {s: seen.histogram(s) if s in HISTOGRAMS else seen.number(s) for s in EVERY_SIGNAL}
    assert {s for s, r in found.items() if not isinstance(r, Measured)} == set()
    assert all(isinstance(r, Measured) and r.at == END for r in found.values())
    assert seen.model_names == ("tiny",)
    assert seen.engines == 1


@pytest.mark.parametrize("signal", sorted(HISTOGRAMS))
@pytest.mark.parametrize("pod", ["thrashing", "old", "both", "twice"])
async def test_buckets_are_those_of_the_window(history: PrometheusServer, pod: str, signal: Signal) -> None:
    seen = (await readings(history, pod)).histogram(signal)

    assert isinstance(seen, Measured)
    assert seen.value.bounds == BOUNDS
    assert seen.value.counts == pytest.approx((0.0, 120.0, 180.0, 75.0), rel=0.01)
    assert seen.value.total == pytest.approx(60.0 * 300, rel=0.01)


async def test_histograms_of_engines_are_added(history: PrometheusServer) -> None:
    seen = (await readings(history, "parallel")).histogram(Signal.PROMPT_LENGTH)

    assert isinstance(seen, Measured)
    assert seen.value.count == pytest.approx(2 * 375, rel=0.01)


async def test_windows_differ(history: PrometheusServer) -> None:
    windows = [timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 30, 60)]

    seen = [await number(history, "thrashing", Signal.PREEMPTIONS, Look(window)) for window in windows]

    assert seen == pytest.approx([30, 60, 150, 300, 900, 1800], rel=0.01)


POOLS = [
    ("one block holds no tokens", "calm", Measured(Pool(149, 32, "auto"), END)),
    ("one block per engine; the label has the sum", "parallel", Measured(Pool(298, 32, "auto"), END)),
    ("as recorded", "recorded", Measured(Pool(149, 32, "auto", caches_prefixes=True), END)),
    ("several API servers", "two-servers", Measured(Pool(149, 32, "auto", caches_prefixes=True), END)),
    ("duplicates count once", "twice", Measured(Pool(149, 32, "auto"), END)),
    ("an engine without a word", "half-said", Missing(Absence.NOTHING_FOUND)),
    ("nobody there", "nobody", Missing(Absence.NO_SERIES)),
]


@pytest.mark.parametrize(("pod", "expected"), [row[1:] for row in POOLS], ids=[row[0] for row in POOLS])
async def test_the_pool_is(history: PrometheusServer, pod: str, expected: object) -> None:
    assert (await readings(history, pod)).pool == expected


async def test_every_pod_asked_for_has_an_entry(history: PrometheusServer) -> None:
    seen = await observed(history, Look(THIRTY), "thrashing", "nobody")

    assert set(seen.pods) == {"thrashing", "nobody"}
    assert (seen.at, seen.window_seconds, seen.hold_seconds) == (END, 1800, 0)
    assert set(seen.pods["nobody"].numbers.values()) == {Missing(Absence.NO_SERIES)}


STALE = [
    ("three minutes of silence", "silent", FIVE, Stale(END - timedelta(seconds=180))),
    ("one engine of two fell silent", "half-dead", FIVE, Stale(END - timedelta(seconds=240))),
    ("silence within a long window", "silent-long", THIRTY, Stale(END - timedelta(seconds=1500))),
    ("silence beyond a short window", "silent-long", FIVE, Missing(Absence.NO_SERIES)),
]


@pytest.mark.parametrize(
    ("pod", "window", "expected"), [row[1:] for row in STALE], ids=[row[0] for row in STALE]
)
async def test_an_old_sample_counts_for_nothing(
    history: PrometheusServer, pod: str, window: timedelta, expected: object
) -> None:
    seen = await readings(history, pod, Look(window))

    assert {*seen.numbers.values(), *seen.histograms.values(), seen.pool} == {expected}


async def test_silence_within_the_freshness_bound_is_no_silence(history: PrometheusServer) -> None:
    below, above = [
        (await observed(history, AT_ONCE, "silent", freshness=bound)).pods["silent"].pool
        for bound in ("181s", "179s")
    ]

    assert isinstance(below, Measured)
    assert isinstance(above, Stale)


HOLDS = [
    ("a trouble that lasts", "thrashing", TWO, 0.4),
    ("a burst of one minute is not held for two", "burst", TWO, 0.0),
    ("a burst of one minute is there now", "burst", timedelta(0), 2400 / 375),
    ("a replica younger than the hold", "young", TWO, Missing(Absence.NOTHING_FOUND)),
    ("a replica older than the hold", "young", timedelta(seconds=30), 0.4),
    ("nothing to say of a silent one", "silent", TWO, Stale(END - timedelta(seconds=180))),
]


@pytest.mark.parametrize(
    ("pod", "hold", "expected"), [row[1:] for row in HOLDS], ids=[row[0] for row in HOLDS]
)
async def test_a_hold_is(history: PrometheusServer, pod: str, hold: timedelta, expected: object) -> None:
    seen = await number(history, pod, Signal.PREEMPTIONS_PER_REQUEST_HELD, Look(FIVE, hold))

    assert seen == (pytest.approx(expected, rel=0.05, abs=0.3) if isinstance(expected, float) else expected)


PODS = sorted({row[1] for row in (*TABLE, *POOLS, *STALE, *HOLDS)})


async def test_recorded_pages_are_read(history: PrometheusServer) -> None:
    thrash, two_servers = await readings(history, "recorded"), await readings(history, "two-servers")

    prompts = thrash.histogram(Signal.PROMPT_LENGTH)
    assert isinstance(prompts, Measured)
    assert prompts.value.mean == pytest.approx(64.0)
    assert prompts.value.count == pytest.approx(183, rel=0.01)
    assert value_of(thrash.number(Signal.PREEMPTIONS)) == pytest.approx(338, rel=0.01)
    assert value_of(thrash.number(Signal.KV_CACHE_USAGE_MAX)) == 1.0
    assert two_servers.number(Signal.STARTED_SECONDS) == Missing(Absence.NOTHING_FOUND)
    assert value_of(two_servers.number(Signal.RUNNING_MEAN)) == 0.0


def value_of(reading: object) -> object:
    return reading.value if isinstance(reading, Measured) else reading


OWN, FORGED = "10.1.1.7:8000", "10.9.9.9:8000"


@pytest.mark.parametrize(
    ("instances", "address", "counted"),
    [
        ([OWN], "10.1.1.7", [OWN]),
        ([OWN, FORGED], "10.1.1.7", [OWN]),
        (["10.1.1.7:8000", "10.1.1.7:8001"], "10.1.1.7", ["10.1.1.7:8000", "10.1.1.7:8001"]),
        ([OWN, "llm-0:8000", ""], "10.1.1.7", [OWN]),
        ([FORGED], "10.1.1.7", []),
        (["llm-0:8000", "", FORGED], "10.1.1.7", ["llm-0:8000", ""]),
        (["[fd00::7]:8000", "[fd00::8]:8000"], "fd00::7", ["[fd00::7]:8000"]),
        ([OWN, "10.1.1.7:8001", "llm-0:8000"], "", [OWN, "10.1.1.7:8001", "llm-0:8000"]),
        ([OWN, FORGED], "", []),
    ],
    ids=[
        "the pod's",
        "another's beside it",
        "an engine on each port",
        "a relabelled one beside it",
        "another's alone",
        "relabelled, and another's",
        "of six",
        "a pod whose address nobody knows",
        "one that two addresses report",
    ],
)
def test_an_engine_is_reported_by_a_target_at_its_pods_address(
    instances: list[str], address: str, counted: list[str]
) -> None:
    series = tuple(Series({"instance": text} if text else {}, 1.0) for text in instances)

    assert [one.labels.get("instance", "") for one in own_series(series, address)] == counted
    left_out = {*instances} - {*counted} if address and counted else set()
    assert foreign_instances(series, address) == tuple(sorted(left_out))


async def test_a_replica_that_another_address_reports_is_not_known_and_says_why(
    history: PrometheusServer,
) -> None:
    """The last one is scraped at its address alone; nobody else's page may speak for it."""
    looked, pod = source(history.url), PodKey(NAMESPACE, "recorded")
    try:
        own, forged = [
            (await looked.observe([pod], Look(FIVE, TWO), {pod.name: Place(address)})).pods[pod.name]
            for address in ("10.1.1.1", "10.1.1.2")
        ]
        engines = await looked.engines(pod, "10.1.1.2")
    finally:
        looked.close()

    assert isinstance(own.number(Signal.PREEMPTIONS), Measured)
    assert {forged.number(signal) for signal in forged.numbers} == {Missing(Absence.OTHER_ADDRESS)}
    assert engines == frozenset()


async def test_who_speaks_for_a_replica_beside_its_own_page_is_named_once_and_not_believed(
    history: PrometheusServer, caplog: pytest.LogCaptureFixture
) -> None:
    def beside(request: Request) -> Reply:
        """Add to each series of the pod one of a stranger's page, with ten times its value."""
        reply = forwarded(request, history.url)
        answer = json.loads(reply.body)
        for one in list(answer["data"]["result"]):
            if one["metric"].get("pod") == "recorded":
                at, value = one["value"]
                stranger = {**one["metric"], "instance": FORGED}
                answer["data"]["result"].append({"metric": stranger, "value": [at, str(10 * float(value))]})
        return replace(reply, body=json.dumps(answer).encode())

    pod, look, addresses = PodKey(NAMESPACE, "recorded"), Look(FIVE, TWO), {"recorded": Place("10.1.1.1")}
    with Server(beside) as proxy:
        alone, forged = source(history.url), source(proxy.url)
        try:
            genuine = await alone.observe([pod], look, addresses)
            seen = [await forged.observe([pod], look, addresses) for _ in range(2)]
        finally:
            alone.close()
            forged.close()

    assert [one.pods for one in seen] == [genuine.pods, genuine.pods]
    assert isinstance(genuine.pods["recorded"].number(Signal.PREEMPTIONS), Measured)
    assert [record.getMessage() for record in caplog.records if FORGED in record.getMessage()] == [
        f"metrics source default: series of instance {FORGED} name pod {NAMESPACE}/recorded, "
        "which is 10.1.1.1: they do not count"
    ]
