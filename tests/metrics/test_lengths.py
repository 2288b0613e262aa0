"""The lengths of the last day, from a real source."""

from __future__ import annotations

from bisect import bisect_left
from datetime import timedelta

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.lengths import AGAIN, APART, FEWEST_REQUESTS, lengths_of
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.series import PodKey
from kvmedic.metrics.source import PrometheusSource
from kvmedic.model.evidence import Absence, Histogram, Measured, Missing, Observation, PodReadings, Signal
from kvmedic.settings import SourceOptions
from worlds.http_double import Reply, Server, forwarded
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import END, NAMESPACE, source

FLEET = [PodKey(NAMESPACE, name) for name in ("thrashing", "calm", "nobody")]
MINUTE = timedelta(minutes=1)
HALF_HOUR = APART.total_seconds()
MEAN = 60 / 1.25
DOWN = Reply(500, b"")
QUERIES = 5
"""Who is there, the pool, lengths of prompts and outputs, and whose series several pages write."""
SILENT = PodReadings({}, {}, Missing(Absence.NO_SERIES))


async def test_the_lengths_of_the_day_are_asked_for_once_in_half_an_hour(history: PrometheusServer) -> None:
    with Server(lambda request: forwarded(request, history.url)) as proxy:
        looked = source(proxy.url)
        found = [await looked.past_lengths(FLEET) for _ in range(2)]
        looked.close()

    assert found[0] == found[1]
    assert len(proxy.requests) == QUERIES
    assert all("query_range" in request.path for request in proxy.requests)
    assert 1 <= len(found[0]) <= 3
    last = found[0][-1]
    assert last.at.timestamp() % HALF_HOUR == 0
    assert timedelta(0) <= END - last.at < APART
    assert (last.prompt.mean, last.output.mean) == (pytest.approx(MEAN, 0.02),) * 2


def counted(times: float, *outputs: float) -> PodReadings:
    """Return a replica that finished so many requests for each of some lengths of the output."""
    bounds = (10.0, 100.0, 1000.0)
    counts = [0.0] * 4
    for each in outputs:
        counts[bisect_left(bounds, each)] += times
    output = Histogram(bounds, tuple(counts), times * sum(outputs))
    prompt = Histogram(bounds, (0.0, times * len(outputs), 0.0, 0.0), 64.0 * times * len(outputs))
    histograms = {Signal.PROMPT_LENGTH: Measured(prompt, END), Signal.OUTPUT_LENGTH: Measured(output, END)}
    return PodReadings({}, histograms, Missing(Absence.NO_SERIES))


def mean_lengths(*pods: PodReadings) -> tuple[float, float] | None:
    seen = Observation(END, HALF_HOUR, 0.0, {f"llm-{place}": pod for place, pod in enumerate(pods)})
    found = lengths_of(seen)
    return found and (found.prompt.mean, found.output.mean)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([counted(FEWEST_REQUESTS, 50)], (64, 50), id="just enough"),
        pytest.param([counted(FEWEST_REQUESTS - 1, 50)], None, id="too few"),
        pytest.param([counted(250, 50), counted(250, 90)], (64, 70), id="enough together"),
        pytest.param([counted(500, 50), SILENT], (64, 50), id="of those that report"),
        pytest.param([counted(500, 50), counted(0, 50)], (64, 50), id="one that finished none"),
        pytest.param([SILENT], None, id="nobody reports"),
        pytest.param([], None, id="nobody is there"),
        pytest.param([counted(250, 5, 5, 5, 5, 900)], None, id="too few for lengths this wide"),
        pytest.param([counted(20_000, 5, 5, 5, 5, 900)], (64, 184), id="enough for them"),
    ],
)
def test_lengths_are_known_from_enough_requests(
    pods: list[PodReadings], expected: tuple[float, float] | None
) -> None:
    assert mean_lengths(*pods) == expected


async def test_what_a_source_left_out_is_asked_for_again_after_a_while(history: PrometheusServer) -> None:
    """Not at once, since all would wait for it; and it says nothing about the source's other answers."""
    answers, clock, found = iter([DOWN]), [END], []

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
