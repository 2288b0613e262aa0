"""One tenant's page may say what it likes: every other fleet is answered for, beside it and in one query.

A real Prometheus scrapes honest fleets and, for each shape of poison, one page of another tenant's.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.batches import KEPT_APART, MOST_SLOW, Closeness, Moment, Outliers
from kvmedic.metrics.page import names_of
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.series import Answer, Excess, Place, PodKey, Unanswered
from kvmedic.metrics.source import PrometheusSource
from kvmedic.model.evidence import (
    AT_REST,
    EVERY_SIGNAL,
    Absence,
    Look,
    Measured,
    Missing,
    Observation,
    PodReadings,
    Unsupported,
)
from kvmedic.settings import Labels, SourceOptions
from worlds.http_double import Reply, Request, Server, forwarded
from worlds.prometheus_server import PrometheusServer

PAGE = (Path(__file__).parents[1] / "data" / "vllm" / "metrics-idle.txt").read_text()
WINDOW = timedelta(seconds=12)
MANY = 6000
"""Series of a poisonous page: more than any engine's, and beyond the limit of an answer here."""
LIMIT_MIB = 1
LONG = "x" * (3 << 19)
SCRAPES = 6
HONEST = tuple(f"honest-{number}" for number in range(4))
MODEL = re.search(r'model_name="([^"]+)"', PAGE)[1]  # type: ignore[index]


def many(name: str, label: str, value: str = "1") -> str:
    """As many series of one metric, distinguished by one label."""
    rest = {"engine": "0", "model_name": MODEL} | ({"le": "1.0"} if name.endswith("_bucket") else {})
    labels = ",".join(f'{key}="{text}"' for key, text in rest.items() if key != label)
    return "".join(f'{name}{{{labels},{label}="{number}"}} {value}\n' for number in range(MANY))


def without(name: str) -> str:
    return "".join(line for line in PAGE.splitlines(keepends=True) if not line.startswith(name))


def renamed(model: str) -> str:
    """The page with another model's name where an engine shows that it is there."""
    seen = '(vllm:num_requests_running{.*model_name=")[^"]*'
    return re.sub(seen, lambda found: found[1] + model, PAGE)


POISON: Mapping[str, Callable[[], str]] = {
    "pools": lambda: without("vllm:cache_config_info") + many("vllm:cache_config_info", "num_gpu_blocks"),
    "long-pool": lambda: PAGE.replace(
        "vllm:cache_config_info{", f'vllm:cache_config_info{{sliding_window="{LONG}",', 1
    ).replace('sliding_window="None"', 'other="None"'),
    "models": lambda: PAGE + many("vllm:num_requests_running", "model_name"),
    "engines": lambda: PAGE + many("vllm:num_preemptions_total", "engine"),
    "labels": lambda: PAGE + many("vllm:num_requests_waiting", "mine"),
    "bounds": lambda: PAGE + many("vllm:time_to_first_token_seconds_bucket", "le"),
    "reasons": lambda: PAGE + many("vllm:request_success_total", "finished_reason"),
    "long-model": lambda: renamed(LONG),
    "ports": lambda: PAGE + many("vllm:num_requests_waiting", "instance"),
}
"""What a page says, by the pod whose it is."""
PLACES = {pod: f"10.0.0.{number}" for number, pod in enumerate((*HONEST, *POISON), 1)}
CROWDED = frozenset(POISON) - {"long-pool", "long-model"}
"""Those with more series than any engine has."""


def namespace_of(pod: str) -> str:
    return "serving" if pod in HONEST else "tenant"


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A Prometheus that has scraped all pages for a while; it is scraping on."""
    pages = {pod: PAGE.encode() for pod in HONEST} | {pod: text().encode() for pod, text in POISON.items()}
    with Server(lambda request: Reply(200, pages[request.path.strip("/")])) as server:
        where = server.url.removeprefix("http://")
        targets = [
            {
                "targets": [where],
                "labels": {
                    "__metrics_path__": f"/{pod}",
                    "namespace": namespace_of(pod),
                    "pod": pod,
                    "instance": f"{address}:8000",
                },
            }
            for pod, address in PLACES.items()
        ]
        config = {
            "global": {"scrape_interval": "3s", "scrape_timeout": "3s"},
            "scrape_configs": [
                {"job_name": "vllm", "static_configs": targets[:-1]},
                # Only so may a page say that it is at other ports than where it was scraped.
                {"job_name": "honored", "honor_labels": True, "static_configs": targets[-1:]},
            ],
        }
        with PrometheusServer(tmp_path_factory.mktemp("poisoned"), config=config) as prometheus:
            prometheus.wait_for(f"min(sum_over_time(up[5m])) >= {SCRAPES}", 120)
            yield prometheus


class Watched:
    """A source whose clock is the test's."""

    def __init__(self, url: str, **more: object) -> None:
        self.now = datetime.now(UTC)
        options = SourceOptions(
            url=url, resolution="3s", response_limit_mib=LIMIT_MIB, **{"timeout": "30s", **more}
        )
        client = PrometheusClient(options)
        self.spent = client.spent
        self.source = PrometheusSource("default", client, options, VLLM_SIGNALS, lambda: self.now)

    async def look(self, look: Look, *pods: str) -> dict[str, PodReadings]:
        """What a look of each fleet reports, each of one pod, all at once."""

        async def observe(pod: str) -> Observation:
            places = {pod: Place(PLACES[pod])}
            return await self.source.observe([PodKey(namespace_of(pod), pod)], look, places)

        seen = await asyncio.gather(*map(observe, pods))
        return {name: each for one in seen for name, each in one.pods.items()}

    def later(self) -> None:
        self.now = datetime.now(UTC) + timedelta(seconds=1)
        self.source._moment = self.source._calm = None


def gaps_of(readings: PodReadings) -> list[object]:
    """Readings that are not a measurement although the page has all."""
    every = {**readings.numbers, **readings.histograms}
    return [one for one in (*every.values(), readings.pool) if not isinstance(one, Measured | Unsupported)]


@pytest.mark.parametrize("poison", list(POISON))
async def test_a_close_look_beside_a_poisonous_page_shows_all(scraped: PrometheusServer, poison: str) -> None:
    watched = Watched(scraped.url)
    try:
        alone = await watched.look(Look(WINDOW), *HONEST)
        watched.later()
        beside = await watched.look(Look(WINDOW), *HONEST, poison)
        again, queries = watched.later(), watched.spent.queries
        again = await watched.look(Look(WINDOW), *HONEST, poison)
        queries = watched.spent.queries - queries
    finally:
        watched.source.close()

    for pod in HONEST:
        for seen in (beside, again):
            assert len(gaps_of(seen[pod])) == len(gaps_of(alone[pod])), (poison, pod, gaps_of(seen[pod]))
    readings = {*again[poison].numbers.values(), *again[poison].histograms.values(), again[poison].pool}
    assert Missing(Absence.TOO_MUCH) in readings, poison
    if poison in CROWDED:
        assert readings == {Missing(Absence.TOO_MUCH)}
    assert watched.source.trouble == ""
    # Asked about alone from then on, it costs nobody else a query that fails.
    assert queries <= 2 * (len(EVERY_SIGNAL) + 4)


async def test_a_round_beside_poisonous_pages_reports_all_honest_fleets(scraped: PrometheusServer) -> None:
    watched = Watched(scraped.url)
    try:
        quick_look = Look(WINDOW, signals=AT_REST)
        first = await watched.look(quick_look, *HONEST)
        asked = watched.spent.queries
        watched.later()
        second = await watched.look(quick_look, *HONEST)
        later = watched.spent.queries - asked
        watched.later()
        poisoned = await watched.look(quick_look, *HONEST, *POISON)
        present = await watched.source.find_pods(WINDOW, "tenant", "model")
    finally:
        watched.source.close()

    assert asked == len(["pools", "several pages", "round"])
    assert later == len(["new pools", "round"])
    for seen in (first, second, poisoned):
        assert [pod for pod in HONEST if gaps_of(seen[pod])] == []
    # Of these a round reports the sums, and what is reported of their own port.
    for pod in CROWDED - {"bounds", "reasons", "ports"}:
        assert set(poisoned[pod].numbers.values()) == {Missing(Absence.TOO_MUCH)}, pod
    assert present == (PodKey("tenant", "models"),)  # it is there, though nothing is known of it


TOO_LONG = json.dumps({"status": "error", "errorType": "timeout", "error": "query timed out"}).encode()
JSON = {"Content-Type": "application/json"}
SLOW = HONEST[0]


@pytest.mark.parametrize("says_so", [True, False], ids=["which the source says", "which never answers"])
async def test_replicas_that_are_too_slow_to_be_asked_about_are_found_in_a_few_looks(
    scraped: PrometheusServer, says_so: bool
) -> None:
    def slowly(request: Request) -> Reply:
        if SLOW not in request.text:
            return forwarded(request, scraped.url)
        if not says_so:
            proxy.released.wait(3)
        return Reply(503, TOO_LONG, JSON)

    others = [pod for pod in HONEST if pod != SLOW]
    with Server(slowly) as proxy:
        watched = Watched(proxy.url, timeout="1s" if not says_so else "30s")
        try:
            found = []
            for _ in range(3):  # halves of four, halves of two, and each by itself
                seen = await watched.look(Look(WINDOW, timedelta(seconds=1)), *HONEST)
                found.append([pod for pod in others if isinstance(seen[pod].pool, Measured)])
                watched.later()
            before = len(proxy.requests)
            last = await watched.look(Look(WINDOW), *HONEST)
            asked = [request for request in proxy.requests[before:] if SLOW in request.text]
        finally:
            watched.source.close()

    assert found[-1] == others
    assert all(isinstance(last[pod].pool, Measured) for pod in others)
    assert set(gaps_of(last[SLOW])) == {Missing(Absence.TOO_MUCH)}
    assert len(asked) == len(["presence"])


async def test_where_a_round_is_too_slow_all_are_asked_about_by_name_and_it_is_spared_for_a_while(
    scraped: PrometheusServer,
) -> None:
    def slowly(request: Request) -> Reply:
        is_about_all = "honest" not in request.text
        return Reply(503, TOO_LONG, JSON) if is_about_all else forwarded(request, scraped.url)

    with Server(slowly) as proxy:
        watched = Watched(proxy.url)
        try:
            seen = await watched.look(Look(WINDOW, signals=AT_REST), *HONEST)
            watched.later()
            again = await watched.look(Look(WINDOW, signals=AT_REST), *HONEST)
        finally:
            watched.source.close()

    assert [pod for pod in HONEST if gaps_of(seen[pod]) or gaps_of(again[pod])] == []
    assert len([request for request in proxy.requests if "honest" not in request.text]) == 1


AT = datetime(2026, 1, 1, tzinfo=UTC)
PODS = [PodKey("serving", f"pod-{number}") for number in range(8)]


def moment_of(asked: list[str], outliers: Outliers, at: datetime, excess: Excess, *culprits: str) -> Moment:
    async def ask(text: str, _: datetime) -> Answer | Unanswered:
        asked.append(text)
        if any(pod in text for pod in culprits):
            return Unanswered("too much", excess=excess)
        return Answer({pod: () for pod in PODS if pod.name in text})

    return Moment(at, ask, Labels(), names_of(VLLM_SIGNALS), outliers=outliers)


async def all_ask(moment: Moment) -> list[str]:
    """Who is answered for, of eight that look closely at once."""

    async def ask(pod: PodKey) -> bool:
        batch = await moment.batch_of([pod], Closeness.WHOLE)
        return isinstance(await batch.reply("vllm:num_requests_running", [pod]), Answer)

    answered = await asyncio.gather(*map(ask, PODS))
    return [pod.name for pod, is_answered in zip(PODS, answered, strict=True) if is_answered]


async def test_an_answer_that_is_too_large_costs_two_queries_a_step_once() -> None:
    outliers, asked, others = Outliers(), list[str](), [pod.name for pod in PODS if pod.name != "pod-5"]

    assert await all_ask(moment_of(asked, outliers, AT, Excess.SIZE, "pod-5")) == others
    assert len(asked) == 1 + 2 * 3
    asked.clear()
    assert await all_ask(moment_of(asked, outliers, AT + KEPT_APART / 2, Excess.SIZE, "pod-5")) == others
    assert len(asked) == len(["everybody else", "pod-5"])
    asked.clear()
    assert len(await all_ask(moment_of(asked, outliers, AT + 2 * KEPT_APART, Excess.SIZE))) == len(PODS)
    assert len(asked) == 1


async def test_a_source_that_is_slow_about_everybody_is_asked_no_more_than_in_a_few_parts() -> None:
    outliers, at, costs = Outliers(), AT, []
    for _ in range(6):
        asked = list[str]()
        assert await all_ask(moment_of(asked, outliers, at, Excess.TIME, "pod-")) == []
        costs.append(len(asked))
        at += timedelta(seconds=10)

    assert max(costs) <= 2 * MOST_SLOW
    assert costs[0] == len(["everybody", "one half", "the other"])
