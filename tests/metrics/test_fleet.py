"""What the reconcile loop asks, by source name and by pod, and how few queries that costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import nan
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.fleet import FleetMetrics
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.readings import is_made_by
from kvmedic.metrics.series import Answer, PodKey, Series
from kvmedic.metrics.source import PrometheusSource
from kvmedic.model.evidence import (
    EVERY_SIGNAL,
    Absence,
    Look,
    LookSeries,
    Measured,
    Missing,
    Pool,
    Signal,
    Unsupported,
)
from kvmedic.model.fleet import Pod
from kvmedic.settings import ScrapeOptions, SourceOptions
from lab.cluster.machine import free_ports
from run_builder import a_pod
from worlds.http_double import Reply, Request, Server, forwarded
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import DATA, END, FIVE, NAMESPACE, THIRTY, TWO, source

THRASH = (DATA / "metrics-thrash.txt").read_bytes()
UNAVAILABLE = Missing(Absence.SOURCE_UNAVAILABLE)


def pod(name: str, address: str = "127.0.0.1") -> Pod:
    return a_pod(name, "r", uid=name, address=address)


def fleet_metrics(url: str, port: int = 8000) -> FleetMetrics:
    sources = {"default": SourceOptions(url=url, freshness="10m")}
    return FleetMetrics.from_options(sources, ScrapeOptions(port=port), VLLM_SIGNALS, lambda: END)


async def test_a_source_is_found_by_name(history: PrometheusServer) -> None:
    metrics = fleet_metrics(history.url)

    known = await metrics.observe("default", [pod("calm")], NAMESPACE, THIRTY, timedelta(0))
    unknown = await metrics.observe("defualt", [pod("calm")], NAMESPACE, THIRTY, timedelta(0))
    both, names = [pod("calm"), pod("thrashing")], ("default", "defualt")
    lengths = [await metrics.past_lengths(name, both, NAMESPACE) for name in names]
    await metrics.close()

    assert [bool(each) for each in lengths] == [True, False]
    assert known.pods["calm"].pool == Measured(Pool(149, 32, "auto"), END)
    assert set(unknown.pods["calm"].numbers.values()) == {UNAVAILABLE}
    assert metrics.names == ("default",)
    assert metrics.trouble("default") == ""
    message = "no metrics source is named defualt; the operator's configuration has default"
    assert metrics.trouble("defualt") == message


async def test_a_look_at_some_signals_asks_for_no_others(history: PrometheusServer) -> None:
    metrics = fleet_metrics(history.url)
    trigger = frozenset({Signal.PREEMPTIONS_PER_REQUEST_HELD})

    seen = await metrics.look("default", [pod("calm")], NAMESPACE, Look(THIRTY, signals=trigger))
    await metrics.close()

    assert set(seen.pods["calm"].numbers) == trigger
    assert seen.pods["calm"].histograms == {}
    assert seen.pods["calm"].histogram(Signal.E2E_SECONDS) == Unsupported()


MINUTE = timedelta(minutes=1)


async def test_consecutive_stretches_of_time_are_looked_at_one_by_one(history: PrometheusServer) -> None:
    metrics = fleet_metrics(history.url)
    look = Look(MINUTE, signals=frozenset({Signal.PREEMPTIONS, Signal.WAITING_MEAN}))
    pods, series = [pod("burst"), pod("draining")], LookSeries(look, MINUTE, 4)

    stretches = await metrics.look_series("default", pods, NAMESPACE, series)
    unknown = await metrics.look_series("defualt", pods, NAMESPACE, series)
    await metrics.close()

    bursts = [seen.pods["burst"].number(Signal.PREEMPTIONS) for seen in stretches]
    queues = [seen.pods["draining"].number(Signal.WAITING_MEAN) for seen in stretches]
    assert [seen.at for seen in stretches] == [END - ago * MINUTE for ago in (3, 2, 1, 0)]
    assert [isinstance(one, Measured) and one.value > 2000 for one in bursts][1:] == [False, False, True]
    assert [isinstance(one, Measured) and one.value > 10 for one in queues] == [True, False, False, False]
    assert {reading for seen in unknown for reading in seen.pods["burst"].numbers.values()} == {UNAVAILABLE}


async def test_a_replica_is_not_known_before_it_was_there(history: PrometheusServer) -> None:
    metrics = fleet_metrics(history.url)

    series = LookSeries(Look(MINUTE), MINUTE, 3)
    seen, *_ = await metrics.look_series("default", [pod("young")], NAMESPACE, series)
    await metrics.close()

    assert set(seen.pods["young"].numbers.values()) == {Missing(Absence.NO_SERIES)}


COMPARED = frozenset(
    {
        Signal.TIME_TO_FIRST_TOKEN_SECONDS,
        Signal.INTER_TOKEN_SECONDS,
        Signal.E2E_SECONDS,
        Signal.REQUESTS_FINISHED,
        Signal.REQUESTS_ABORTED,
        Signal.REQUESTS_IN_FLIGHT_CHANGE,
        Signal.GENERATED_TOKENS,
        Signal.RUNNING_MEAN,
        Signal.WAITING_MEAN,
    }
)
NAMES = ["calm", "thrashing", "burst", "draining", "young", "nobody"]
KEYS = [PodKey(NAMESPACE, name) for name in NAMES]
MOVED = timedelta(seconds=7)
"""How far a front end moves a range."""


def on_its_own_grid(request: Request, upstream: str) -> Reply:
    """A front end that moves ranges, as Thanos' does."""
    if "query_range" not in request.path:
        return forwarded(request, upstream)
    address = urlsplit(request.path)
    fields = dict(parse_qsl(address.query))
    for name in ("start", "end"):
        fields[name] = f"{float(fields[name]) - MOVED.total_seconds():.3f}"
    return forwarded(replace(request, path=f"{address.path}?{urlencode(fields)}"), upstream)


@pytest.mark.parametrize("apart", [MINUTE, timedelta(minutes=4)])
@pytest.mark.parametrize("moves", [False, True], ids=["as asked", "a front end moves ranges"])
async def test_looks_one_after_the_other_are_what_single_looks_are_for_a_ninth_of_the_queries(
    history: PrometheusServer, apart: timedelta, *, moves: bool
) -> None:
    look = Look(apart, signals=COMPARED)
    moments = [END - apart * ago for ago in reversed(range(8))]
    with Server(lambda request: (on_its_own_grid if moves else forwarded)(request, history.url)) as proxy:
        looked = source(proxy.url)
        singly = [await looked.as_of(at).observe(KEYS, look) for at in moments]
        before = len(proxy.requests)
        together = await looked.observe_series(KEYS, LookSeries(look, apart, 8))
        after = len(proxy.requests) - before
        looked.close()

    assert list(together) == singly
    assert any(isinstance(each.pods["thrashing"].number(Signal.RUNNING_MEAN), Measured) for each in singly)
    queries = before // 8
    # Whose series several pages write is answered with nothing, which lies on every grid.
    assert after == (queries if not moves else queries + before - len(moments))


async def test_a_replica_is_asked_at_its_own_address() -> None:
    with Server(lambda _: Reply(200, THRASH)) as replica:
        metrics = fleet_metrics("http://127.0.0.1:9", replica.port)
        in_flight = await metrics.count_in_flight("default", NAMESPACE, pod("a"))
        pool = await metrics.pool("default", NAMESPACE, pod("a"))
        nowhere = await metrics.count_in_flight("default", NAMESPACE, pod("a", address=""))
        await metrics.close()

    assert isinstance(in_flight, Measured)
    assert in_flight.value == 21.0
    assert isinstance(pool, Measured)
    assert pool.value == Pool(149, 32, "auto", caches_prefixes=True)
    assert nowhere == UNAVAILABLE
    assert [request.path for request in replica.requests] == ["/metrics", "/metrics"]


IDLE = (DATA / "metrics-idle.txt").read_bytes()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("nobody", 0.0), ("half-dead", Missing(Absence.NO_SERIES))],
    ids=["the source knows no engine", "the source knows one behind another port"],
)
async def test_a_replica_is_idle_only_where_all_engines_that_the_source_knows_say_so(
    history: PrometheusServer, name: str, expected: object
) -> None:
    with Server(lambda _: Reply(200, IDLE)) as replica:
        sources = {"default": SourceOptions(url=history.url)}
        metrics = FleetMetrics.from_options(
            sources, ScrapeOptions(port=replica.port), VLLM_SIGNALS, lambda: END
        )
        found = await metrics.count_in_flight("default", NAMESPACE, pod(name))
        await metrics.close()

    assert (found.value if isinstance(found, Measured) else found) == expected


HISTORY = Look(THIRTY / 6, signals=frozenset({Signal.PREEMPTIONS, Signal.REQUESTS_FINISHED}))
"""Five minutes."""
CAME = END - timedelta(minutes=20)
"""When the replicas of an earlier revision were last seen."""


async def test_the_replicas_of_an_earlier_revision_are_found_by_what_made_them(
    history: PrometheusServer,
) -> None:
    metrics = fleet_metrics(history.url)

    past = await metrics.observe_past("default", NAMESPACE, "gone-6f", CAME, HISTORY)
    await metrics.close()

    assert isinstance(past, Measured)
    assert sorted(past.value.pods) == ["gone-6f-abcde", "gone-6f-fghij"]
    calm, thrashing = (past.value.pods[name] for name in sorted(past.value.pods))
    assert [type(pod.number(Signal.REQUESTS_FINISHED)) for pod in (calm, thrashing)] == [Measured] * 2
    preempted = [pod.number(Signal.PREEMPTIONS) for pod in (calm, thrashing)]
    assert [round(one.value) for one in preempted if isinstance(one, Measured)] == [0, 150]
    assert past.value.window_seconds == 300


async def test_replicas_that_nobody_scraped_then_are_missing_and_not_calm(history: PrometheusServer) -> None:
    metrics = fleet_metrics(history.url)

    found = [
        await metrics.observe_past("default", namespace, replica_set, at, HISTORY)
        for namespace, replica_set, at in (
            (NAMESPACE, "never-5c", CAME),
            ("other", "gone-6f", CAME),
            (NAMESPACE, "gone-6f", END),
            (NAMESPACE, "gone-6f", END - timedelta(hours=3)),
        )
    ]
    await metrics.close()

    assert found == [Missing(Absence.NO_SERIES)] * 4


async def test_a_source_that_does_not_answer_knows_no_past() -> None:
    metrics = fleet_metrics("http://127.0.0.1:9")

    down = await metrics.observe_past("default", NAMESPACE, "gone-6f", CAME, HISTORY)
    unknown = await metrics.observe_past("defualt", NAMESPACE, "gone-6f", CAME, HISTORY)
    await metrics.close()

    assert down == unknown == UNAVAILABLE


@pytest.mark.parametrize(
    ("replica_set", "name", "made"),
    [
        ("llm-6f", "llm-6f-abc12", True),
        ("llm-6f", "llm-6f-abc123", False),
        ("llm-6f", "llm-6fx-abc12", False),
        ("llm-6f", "llm-6f-k2-abc12", False),
        ("llm.6f", "llm-6f-abc12", False),
        ("x" * 70, "x" * 58 + "abc12", True),
        ("x" * 57, "x" * 57 + "-abc12", True),
    ],
)
def test_a_pods_name_shows_what_made_it(replica_set: str, name: str, made: bool) -> None:
    assert is_made_by(replica_set, name) is made


async def test_a_signal_that_was_not_asked_for_is_not_queried(history: PrometheusServer) -> None:
    with Server(lambda request: forwarded(request, history.url)) as proxy:
        looked = source(proxy.url)
        seen = await looked.observe(
            [PodKey(NAMESPACE, "calm")], Look(FIVE, signals=frozenset({Signal.PREEMPTIONS}))
        )
        looked.close()

    assert len(proxy.requests) == len(["presence", "pool", "preemptions", "several pages"])
    assert set(seen.pods["calm"].numbers) == {Signal.PREEMPTIONS}


async def test_queries_do_not_grow_with_resources(history: PrometheusServer) -> None:
    async def queries(pods: int) -> int:
        with Server(lambda request: forwarded(request, history.url)) as proxy:
            looked = source(proxy.url)
            names = ["calm", "thrashing", *(f"pod-{i}" for i in range(pods))]
            await asyncio.gather(*(looked.observe([PodKey(NAMESPACE, n)], Look(FIVE, TWO)) for n in names))
            await looked.observe([PodKey(NAMESPACE, n) for n in names], Look(FIVE, TWO))
            looked.close()
        return len(proxy.requests)

    few, many = await queries(0), await queries(200)

    shared = 1  # finished and aborted are parts of one family
    assert few == len(["presence", "pool", "several pages"]) + len(EVERY_SIGNAL) - shared
    assert many == few + len(["series without a pod's name"])


async def test_an_answer_serves_for_the_reuse_time(history: PrometheusServer) -> None:
    now = [END]
    with Server(lambda request: forwarded(request, history.url)) as proxy:
        options = SourceOptions(url=proxy.url, reuse="10s")
        looked = PrometheusSource("default", PrometheusClient(options), options, VLLM_SIGNALS, lambda: now[0])
        look = Look(FIVE, signals=frozenset())
        counts = []
        for seconds in (0, 9.9, 10, 5):
            now[0] = END + timedelta(seconds=seconds)
            seen = await looked.observe([PodKey(NAMESPACE, "calm")], look)
            counts.append((len(proxy.requests), (seen.at - END).total_seconds()))
        looked.close()

    per_look = len(["presence", "pool"])
    reused, anew, clock_set_back = (per_look, 0), (2 * per_look, 10), (3 * per_look, 5)
    assert counts == [reused, reused, anew, clock_set_back]


async def test_one_caller_that_gives_up_does_not_take_the_answer_from_others(
    history: PrometheusServer,
) -> None:
    def slowly(request: Request) -> Reply:
        time.sleep(0.3)
        return forwarded(request, history.url)

    with Server(slowly) as proxy:
        looked = source(proxy.url)
        look = Look(FIVE, signals=frozenset())
        first = asyncio.create_task(looked.observe([PodKey(NAMESPACE, "calm")], look))
        second = asyncio.create_task(looked.observe([PodKey(NAMESPACE, "calm")], look))
        await asyncio.sleep(0.1)
        first.cancel()
        seen = await second
        looked.close()

    assert isinstance(seen.pods["calm"].pool, Measured)


async def test_the_peak_of_the_day_is_asked_once_for_all_replicas(history: PrometheusServer) -> None:
    with Server(lambda request: forwarded(request, history.url)) as proxy:
        looked = source(proxy.url)
        found = await looked.peaks([PodKey(NAMESPACE, name) for name in ("thrashing", "calm", "nobody")])
        looked.close()

    assert len(proxy.requests) == 2, "the peak, and whose series several pages write"
    ended, outputs = 1 + 0.25 + 0.1, 60 / 1.25
    for name in ("thrashing", "calm"):
        peak = found[name]
        assert isinstance(peak, Measured)
        assert peak.value == pytest.approx(ended * outputs, rel=0.1)
    assert found["nobody"] == Missing(Absence.NO_SERIES)


def out_of_reach(url: str, ahead: timedelta = timedelta(0)) -> FleetMetrics:
    """Return metrics of a source whose clock may be ahead, and of replicas at a port where nobody listens."""
    sources = {"default": SourceOptions(url=url)}
    scrape = ScrapeOptions(port=free_ports(1)[0])
    return FleetMetrics.from_options(sources, scrape, VLLM_SIGNALS, lambda: END - ahead)


@pytest.mark.parametrize(
    ("name", "out", "expected"),
    [
        pytest.param("calm", timedelta(minutes=3), 11.0, id="two minutes of samples"),
        pytest.param("calm", timedelta(minutes=2), 11.0, id="one minute of samples"),
        pytest.param("calm", timedelta(seconds=119), UNAVAILABLE, id="too early to know"),
        pytest.param("queue-of-a-minute", timedelta(minutes=9), 608.0, id="the most of them counts"),
        pytest.param("silent", timedelta(minutes=9), UNAVAILABLE, id="no sample of late"),
        pytest.param("nobody", timedelta(minutes=9), UNAVAILABLE, id="the source knows no engine"),
    ],
)
async def test_of_a_replica_out_of_reach_the_sources_own_samples_count(
    history: PrometheusServer, name: str, out: timedelta, expected: object
) -> None:
    metrics = out_of_reach(history.url)

    found = await metrics.count_in_flight("default", NAMESPACE, pod(name), out)
    await metrics.close()

    assert (found.value if isinstance(found, Measured) else found) == expected


async def test_where_the_sources_clock_is_ahead_its_samples_say_nothing(history: PrometheusServer) -> None:
    metrics = out_of_reach(history.url, ahead=timedelta(seconds=45))

    found = await metrics.count_in_flight("default", NAMESPACE, pod("calm"), timedelta(minutes=9))
    await metrics.close()

    assert found == UNAVAILABLE


async def test_a_replica_in_reach_is_asked_itself(history: PrometheusServer) -> None:
    with Server(lambda _: Reply(200, IDLE)) as replica:
        sources = {"default": SourceOptions(url=history.url)}
        scrape = ScrapeOptions(port=replica.port)
        metrics = FleetMetrics.from_options(sources, scrape, VLLM_SIGNALS, lambda: END)
        found = await metrics.count_in_flight("default", NAMESPACE, pod("nobody"), timedelta(minutes=9))
        await metrics.close()

    assert isinstance(found, Measured)
    assert found.value == 0.0


@pytest.mark.parametrize(
    ("name", "expected"), [("calm", Measured(Pool(149, 32, "auto"), END)), ("silent-long", UNAVAILABLE)]
)
async def test_of_a_replica_out_of_reach_the_source_reports_the_pool(
    history: PrometheusServer, name: str, expected: object
) -> None:
    metrics = out_of_reach(history.url)

    found = await metrics.pool("default", NAMESPACE, pod(name))
    await metrics.close()

    assert found == expected


RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


@dataclass
class Scripted:
    """A source with one replica: two engines that were seen, and what each query is answered for them."""

    samples: dict[tuple[str, str], float]
    """By series and engine; others have no samples."""
    is_narrowed: bool = False

    async def query(self, expression: str, at: datetime) -> Answer:
        if "resets(" in expression:
            return Answer({})  # one page alone writes its series
        if "timestamp(" in expression:
            return self._answer({engine: (at - 2 * MINUTE).timestamp() for engine in ("0", "1")})
        name = RUNNING if RUNNING in expression else WAITING if WAITING in expression else ""
        return self._answer({engine: value for (one, engine), value in self.samples.items() if one == name})

    async def query_range(self, expression: str, moments: Sequence[datetime]) -> Sequence[Answer]:
        raise NotImplementedError

    def close(self) -> None:
        """There is nothing to end."""

    def _answer(self, values: dict[str, float]) -> Answer:
        labels = {"instance": "10.0.0.9:8000", "model_name": "m"}
        series = (Series({**labels, "engine": engine}, value) for engine, value in values.items())
        return Answer({PodKey(NAMESPACE, "a"): tuple(series)})


NO_REQUEST = {(name, engine): 0.0 for name in (RUNNING, WAITING) for engine in ("0", "1")}


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param(NO_REQUEST, 0.0, id="none on either engine"),
        pytest.param({**NO_REQUEST, (WAITING, "1"): 3.0}, 3.0, id="some wait on the second engine"),
        pytest.param(
            {key: value for key, value in NO_REQUEST.items() if key != (WAITING, "1")},
            UNAVAILABLE,
            id="one engine does not report who waits",
        ),
        pytest.param({**NO_REQUEST, (RUNNING, "0"): nan}, UNAVAILABLE, id="no number"),
        pytest.param({}, UNAVAILABLE, id="too few samples"),
    ],
)
async def test_a_replica_out_of_reach_is_idle_only_where_each_engine_was_sampled(
    samples: dict[tuple[str, str], float], expected: object
) -> None:
    options = SourceOptions(url="http://source")
    seen = PrometheusSource("default", Scripted(samples), options, VLLM_SIGNALS, lambda: END)

    found = await seen.samples(PodKey(NAMESPACE, "a"), "10.0.0.9", timedelta(minutes=5), frozenset())

    assert (found.value if isinstance(found, Measured) else found) == expected
