"""The round of calm fleets reports what a close look does, and costs the same however many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Thread

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics import calm
from kvmedic.metrics.batches import MOST_CHARACTERS, Closeness, Moment, characters, parts_of
from kvmedic.metrics.calm import MOST_PARTS, POOLS_LAST, CalmRounds, parts_of_pods
from kvmedic.metrics.page import names_of
from kvmedic.metrics.promql import Span, make_narrow
from kvmedic.metrics.series import Answer, Place, PodKey, Reply, Series, Unanswered
from kvmedic.model.evidence import AT_REST, Look, Measured, PodReadings, Signal
from kvmedic.settings import Labels
from lab.bench.scale_fleets import SPARSE, ScaleFleet, fleets
from lab.bench.scale_looks import Cost, Looker
from lab.bench.scale_promql import Element, evaluate
from lab.bench.scale_source import Source, serve
from worlds.http_double import Server, forwarded
from worlds.metric_tape import rising
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import END, FIVE, NAMESPACE, SINGLES, STEADY, Engine, fleet_tape, source

QUICK_LOOK = Look(FIVE, signals=AT_REST)
SEVERAL = (
    "twice",
    "contradicted",
    "moved",
    "parallel",
    "half-dead",
    "half-said",
    "ranks",
    "processes",
    "models",
    "meshed",
    "recorded",
    "two-servers",
    "nobody",
)
"""Replicas of several scrapers, engines, ports or processes, and one that is not there."""


async def closely(server: PrometheusServer, pods: Sequence[str], look: Look) -> Mapping[str, PodReadings]:
    """Return what queries about these replicas report, each series with all its labels."""
    looked = source(server.url)
    seen = await looked.as_of(END).observe([PodKey(NAMESPACE, pod) for pod in pods], look)
    looked.close()
    return seen.pods


async def test_the_round_reports_of_each_replica_what_a_close_look_does(history: PrometheusServer) -> None:
    pods = [*SINGLES, *SEVERAL]
    looked = source(history.url)
    seen = await looked.observe([PodKey(NAMESPACE, pod) for pod in pods], QUICK_LOOK)
    looked.close()

    assert seen.pods == await closely(history, pods, QUICK_LOOK)
    assert isinstance(seen.pods["thrashing"].number(Signal.PREEMPTIONS), Measured)


@pytest.mark.parametrize("pod", ["calm", "thrashing", "queueing", "recorded"])
async def test_a_plain_replica_costs_two_queries_whatever_it_reports(
    history: PrometheusServer, pod: str
) -> None:
    with Server(lambda request: forwarded(request, history.url)) as proxy:
        looked = source(proxy.url)
        await looked.observe([PodKey(NAMESPACE, pod)], QUICK_LOOK)
        looked.close()

    assert len(proxy.requests) == len(["round", "pools", "several pages"])


async def test_what_a_round_leaves_out_is_asked_for_by_the_replicas_names(history: PrometheusServer) -> None:
    with Server(lambda request: forwarded(request, history.url)) as proxy:
        looked = source(proxy.url)
        look = replace(QUICK_LOOK, signals=AT_REST | {Signal.E2E_SECONDS})
        seen = await looked.observe([PodKey(NAMESPACE, "calm")], look)
        looked.close()

    assert seen.pods == await closely(history, ["calm"], look)
    of_all, of_one = ["round", "pools", "several pages"], ["presence", "histogram", "several pages"]
    assert len(proxy.requests) == len(of_all) + len(of_one)
    assert all("calm" in request.text for request in proxy.requests[len(of_all) :])


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A Prometheus with pages of others that name a replica, as `honor_labels` lets them."""
    directory, tape = tmp_path_factory.mktemp("forged"), fleet_tape()
    for number, (pod, lie) in enumerate(LIES.items()):
        target = {"namespace": NAMESPACE, "pod": pod, "job": "vllm", "instance": f"10.0.0.{number}:8000"}
        for name, labels, curve in STEADY.curves():
            tape.add(name, target | STEADY.own | labels, curve)
        config = {"num_gpu_blocks": "150", "block_size": "32", "cache_dtype": "auto", "engine": "0"}
        tape.add("vllm:cache_config_info", target | config, lambda _: 1.0)
        for name, labels, curve in Engine(preemptions=rising(50.0)).curves():
            if lie.get("only", name) == name:
                forged = {key: text for key, text in lie.items() if key != "only"}
                tape.add(name, target | STEADY.own | labels | forged, curve)
    tape.write(directory)
    with PrometheusServer(directory) as server:
        yield server


LIES = {
    "page-elsewhere": {"instance": "10.9.9.9:8000"},
    "counter-elsewhere": {"instance": "10.9.9.9:8000", "only": "vllm:num_preemptions_total"},
    "other-job": {"job": "forged"},
    "counter-of-other-job": {"job": "forged", "only": "vllm:num_preemptions_total"},
    "finished-of-other-job": {"job": "forged", "only": "vllm:request_success_total"},
    "other-port": {"instance": "10.0.0.5:9000", "job": "forged"},
}
"""What another page says of a replica beside its own: labels that it sets, and of which metric alone."""


async def test_what_others_say_of_a_replica_changes_nothing_that_a_close_look_would_not(
    forged: PrometheusServer,
) -> None:
    places = {pod: Place(f"10.0.0.{number}") for number, pod in enumerate(LIES)}
    keys = [PodKey(NAMESPACE, pod) for pod in LIES]
    looked = source(forged.url)
    seen = await looked.observe(keys, QUICK_LOOK, places)
    close = await looked.as_of(END).observe(keys, QUICK_LOOK, places)
    looked.close()

    assert seen.pods == close.pods
    for pod in ("page-elsewhere", "counter-elsewhere", "counter-of-other-job", "finished-of-other-job"):
        held = seen.pods[pod].number(Signal.PREEMPTIONS_PER_REQUEST_HELD)
        assert isinstance(held, Measured)
        assert held.value < 1


A, B = PodKey("ns", "a"), PodKey("ns", "b")


@dataclass
class ScriptedSource:
    """A source that answers as of a list."""

    replies: list[Reply]
    asked: list[str] = field(default_factory=list)

    async def ask(self, text: str, at: datetime) -> Reply:
        self.asked.append(text)
        return self.replies.pop(0)

    def moment(self, at: datetime) -> Moment:
        return Moment(at, self.ask, Labels(), names_of(VLLM_SIGNALS))


def pool(blocks: int, port: str = "10.0.0.1:8000") -> Series:
    return Series({"instance": port, "num_gpu_blocks": str(blocks)}, 1.0)


async def test_pools_are_asked_for_once_and_then_what_is_new() -> None:
    nobody = Answer({})
    scripted = ScriptedSource(
        [
            Answer({A: (pool(1),), B: (pool(2),)}),
            nobody,
            Answer({}),
            Unanswered("down"),
            Answer({A: (pool(3),)}),
            Answer({B: (pool(4, "10.0.0.2:8000"),)}),
            Answer({A: (pool(5),)}),
            nobody,
        ]
    )
    rounds, found = CalmRounds(VLLM_SIGNALS, Labels()), []
    for at in (0, 10, 20, 30, 40, POOLS_LAST.total_seconds()):
        moment = scripted.moment(END + timedelta(seconds=at))
        reply = await rounds._pools_at(moment, Span(FIVE))
        found.append(reply if isinstance(reply, Unanswered) else dict(reply.by_pod))

    both = {A: (pool(1),), B: (pool(2),)}
    assert found[:3] == [both, both, Unanswered("down")]
    assert found[3] == {**both, A: (pool(3),)}
    assert found[4] == {A: (pool(3),), B: (pool(2), pool(4, "10.0.0.2:8000"))}
    assert found[5] == {A: (pool(5),)}
    asked = [text for text in scripted.asked if VLLM_SIGNALS.pool.name in text]
    assert ["offset 10s" in text or "offset 20s" in text for text in asked] == [
        False,
        True,
        True,
        True,
        True,
        False,
    ]
    assert "offset 20s" in asked[3]


async def test_without_an_answer_about_pools_no_replica_is_plain() -> None:
    row = Series({"instance": "10.0.0.1:8000", "kvmedic_signal": "present"}, END.timestamp())
    scripted = ScriptedSource([Unanswered("too much"), Answer({A: (row,)})])

    found = await CalmRounds(VLLM_SIGNALS, Labels()).answers_at(scripted.moment(END), Span(FIVE))

    assert found == Unanswered("too much")


async def test_those_who_look_closely_at_once_share_their_queries() -> None:
    scripted = ScriptedSource([Answer({})] * 3)
    moment = scripted.moment(END)
    first, second = await asyncio.gather(*(moment.batch_of([one], Closeness.WHOLE) for one in (A, B)))
    again, quick = await moment.batch_of([A], Closeness.WHOLE), await moment.batch_of([A], Closeness.QUICK)
    late = await moment.batch_of([PodKey("ns", "c.d")], Closeness.WHOLE)
    for batch in (first, second, again, late):
        await batch.reply("vllm:num_requests_running")

    assert first is second is again
    assert first is not quick
    assert scripted.asked == [
        'vllm:num_requests_running{namespace=~"ns", pod=~"a|b"}',
        'vllm:num_requests_running{namespace=~"ns", pod=~"c[.]d"}',
    ]


@pytest.mark.parametrize("length", [1, 40, 200])
def test_replicas_are_asked_for_in_parts_that_fit_a_query(length: int) -> None:
    pods = [PodKey("ns", f"{number:0{length}}"[-length:]) for number in range(500)]
    parts = list(parts_of(pods))

    assert [pod for part in parts for pod in part] == pods
    assert all(characters(part) <= MOST_CHARACTERS for part in parts)
    assert len(parts) <= characters(pods) // (MOST_CHARACTERS - 210) + 1


def test_the_more_queries_a_round_takes_the_longer_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calm, "MOST_AT_ONCE", 10)
    made = Source(fleets(20, 2))
    made.make_sick(0)
    server = serve(made)
    Thread(target=server.serve_forever, daemon=True).start()
    looker = Looker(f"http://127.0.0.1:{server.server_port}")
    began, asked = looker.at, []
    # A calm round is not of the moment at which one in trouble was looked at: it would be old the sooner.
    looker.at = began - timedelta(seconds=5)
    looker.loop.run_until_complete(looker.whole(made.all[0]))

    for seconds in (0, 18, 19):
        looker.at = began + timedelta(seconds=seconds)
        for each in made.all:
            looker.loop.run_until_complete(looker.quick_look(each))
        asked.append(looker.spent()["queries"])
    looker.close()
    server.shutdown()
    server.server_close()

    round_of_forty = ["pools", *range(4)]
    assert asked[1:] == [asked[0], asked[0] + len(round_of_forty)]


def cost(count: int, sick: int) -> tuple[Cost, Cost]:
    """Return what a round of so many fleets costs while all are calm, and with some that are sick."""
    made = Source(fleets(count, 2))
    made.make_sick(0)
    server = serve(made)
    Thread(target=server.serve_forever, daemon=True).start()
    everybody: list[ScaleFleet] = sorted(made.all, key=SPARSE)
    looker = Looker(f"http://127.0.0.1:{server.server_address[1]}")
    looker.cost(looker.round(everybody, ()))
    calm = looker.cost(looker.round(everybody, ()))
    made.make_sick(sick)
    troubled = looker.cost(looker.round(everybody[sick:], everybody[:sick]))
    looker.close()
    server.shutdown()
    server.server_close()
    return calm, troubled


def test_a_round_costs_eight_queries_at_most_and_trouble_what_those_in_trouble_have_to_report() -> None:
    few, many = cost(5, 1), cost(20, 1)

    assert few[0].queries == many[0].queries <= 8
    assert many[0].received / 20 < 1500, "3 MB a minute at 1,000 fleets"
    assert few[1].queries == many[1].queries
    more = [sick.received - calm.received for calm, sick in (few, many)]
    assert more[0] == pytest.approx(more[1], rel=0.02)
    assert more[1] < 1e6


@pytest.mark.parametrize(
    ("replicas", "parts"), [(0, 1), (2000, 1), (2001, 2), (5000, 3), (10**6, MOST_PARTS)]
)
def test_a_round_is_divided_so_that_each_pod_is_in_exactly_one_part(replicas: int, parts: int) -> None:
    names = [f"chat-7d9c6b5f4d-{'b' * 4}{last}" for last in "bcdfghjklmnpqrstvwxz2456789"]
    names += ["llm-0", "llm-11", "a", "z-é", "odd_"]
    divided = parts_of_pods(replicas, "pod")
    every = {("up", ""): [Element({"__name__": "up", "pod": name}, 1.0) for name in names]}

    found = [evaluate(make_narrow(each, ["up"])("up"), every) for each in divided]

    assert len(divided) == parts
    assert sorted(e.labels["pod"] for one in found for e in one) == sorted(names)
    assert all(len(one) > 27 / parts / 2 for one in found)


async def test_a_round_of_many_is_asked_in_parts_and_answered_as_one() -> None:
    pods = [
        PodKey("ns", f"pod-{number}{last}")
        for number in range(70)
        for last in "bcdfghjklmnpqrstvwxz2456789013"
    ]
    present = Series({"instance": "10.0.0.1:8000", "kvmedic_signal": "present"}, END.timestamp())
    halves = [pods[::2], pods[1::2]]
    scripted = ScriptedSource(
        [
            Answer({pod: (pool(1),) for pod in pods}),
            *(Answer({}) for _ in range(5)),  # several pages write none
            *(Answer(dict.fromkeys(h, (present,))) for h in halves),
        ]
    )

    found = await CalmRounds(VLLM_SIGNALS, Labels()).answers_at(scripted.moment(END), Span(FIVE))

    assert not isinstance(found, Unanswered)
    assert len(scripted.asked) == len(["pools"]) + 5 + len(halves)
    assert len(found.presence.by_pod) == len(pods) == 2100
    assert all(len(answer.by_pod) == len(pods) for answer in found.signals.values())
