"""The lengths of the last day, from a real source."""

from __future__ import annotations

import json
from datetime import timedelta
from urllib.parse import parse_qsl, unquote_plus, urlsplit

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.lengths import AGAIN, FEWEST_REQUESTS
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.promql import LENGTHS_APART
from kvmedic.metrics.series import PodKey
from kvmedic.metrics.source import PrometheusSource
from kvmedic.settings import SourceOptions
from worlds.http_double import Reply, Request, Server, forwarded
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import END, NAMESPACE, source

FLEET = [PodKey(NAMESPACE, name) for name in ("thrashing", "calm", "nobody")]
MINUTE = timedelta(minutes=1)
HALF_HOUR = LENGTHS_APART.total_seconds()
MEAN = 60 / 1.25
DOWN = Reply(500, b"")
JSON = {"Content-Type": "application/json"}


async def test_the_lengths_of_the_day_are_asked_for_once_in_half_an_hour(history: PrometheusServer) -> None:
    with Server(lambda request: forwarded(request, history.url)) as proxy:
        looked = source(proxy.url)
        found = [await looked.past_lengths(FLEET) for _ in range(2)]
        looked.close()

    assert found[0] == found[1]
    assert len(proxy.requests) == 3
    assert all("query_range" in request.path for request in proxy.requests)
    assert 1 <= len(found[0]) <= 3
    last = found[0][-1]
    assert last.at.timestamp() % HALF_HOUR == 0
    assert timedelta(0) <= END - last.at < LENGTHS_APART
    assert (last.prompt_tokens, last.output_tokens) == (pytest.approx(MEAN, 0.02),) * 2


@pytest.mark.parametrize(
    ("requests", "is_told"), [(FEWEST_REQUESTS, True), (FEWEST_REQUESTS - 1, False), (float("nan"), False)]
)
async def test_a_time_with_too_few_requests_tells_no_lengths(requests: float, *, is_told: bool) -> None:
    def reply(request: Request) -> Reply:
        text = unquote_plus(request.text)
        risen = 64 * FEWEST_REQUESTS if "prompt" in text else 9 * FEWEST_REQUESTS
        return told_of(request, requests if "_count" in text else risen)

    with Server(reply) as server:
        looked = source(server.url)
        found = await looked.past_lengths(FLEET[:1])
        looked.close()

    assert {(each.prompt_tokens, each.output_tokens) for each in found} == (
        {(64.0, 9.0)} if is_told else set()
    )


async def test_what_a_source_did_not_tell_is_asked_for_again_after_a_while(history: PrometheusServer) -> None:
    """Not at once, since all would wait for it; and it says nothing about the source's other answers."""
    answers, clock, found = iter([DOWN] * 3), [END], []

    with Server(lambda request: next(answers, None) or forwarded(request, history.url)) as proxy:
        options = SourceOptions(url=proxy.url, timeout="5s")
        client = PrometheusClient(options)
        looked = PrometheusSource("default", client, options, VLLM_SIGNALS, now=lambda: clock[-1])
        for later in (END, END + MINUTE, END + AGAIN):
            clock.append(later)
            found.append(await looked.past_lengths(FLEET))
            await looked.peaks(FLEET)
        looked.close()

    assert found[:2] == [(), ()]
    assert found[2]
    assert looked.trouble == ""


def told_of(request: Request, value: float) -> Reply:
    """Return a range of one replica and one moment, the last one that is asked for."""
    end = float(dict(parse_qsl(urlsplit(request.path).query))["end"])
    metric = {"namespace": NAMESPACE, "pod": FLEET[0].name}
    series = [{"metric": metric, "values": [[end, f"{value}"]]}]
    body = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    return Reply(200, json.dumps(body).encode(), JSON)
