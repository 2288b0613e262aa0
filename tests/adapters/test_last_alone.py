"""When a ReplicaSet was last alone in its fleet, as a real Prometheus tells it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.fleet import FleetMetrics
from kvmedic.metrics.options import Labels, ScrapeOptions, SourceOptions
from kvmedic.metrics.series import STEP, on_grid
from kvmedic.model.evidence import Absence, Look, Measured, Missing, Reading
from kvmedic.model.readings import Alone
from metric_tape import Tape
from prometheus_server import PrometheusServer
from scripted_fleet import END, NAMESPACE, TWO

SECOND = timedelta(seconds=1)
WEEK = timedelta(days=7)
SCRAPE = timedelta(seconds=15)
UNKNOWN = Missing(Absence.NO_SERIES)
UNAVAILABLE = Missing(Absence.SOURCE_UNAVAILABLE)

Stretch = tuple[float, float]
"""Seconds before the end of the tape."""


@dataclass(frozen=True)
class Life:
    """Replicas of one ReplicaSet, and when they were sampled."""

    replica_set: str
    stretches: tuple[Stretch, ...]
    value: float = 3.0
    engines: tuple[str, ...] = ("0",)
    namespace: str = NAMESPACE

    def record(self, tape: Tape, label: str = "pod") -> None:
        for number, (first, last) in enumerate(self.stretches):
            for engine in self.engines:
                labels = {"namespace": self.namespace, label: f"{self.replica_set}-abcd{number}"}
                labels |= {
                    "job": "vllm",
                    "instance": f"{number}:8000",
                    "engine": engine,
                    "model_name": "tiny",
                }
                tape.add(
                    "vllm:num_requests_running",
                    labels,
                    lambda t, first=first, last=last: self.value if first <= t <= last else None,
                )


CAME = -900.0
"""When the newest revision's first replica was sampled first."""
OFF_AND_ON = (
    Life("llm-6f", ((-3900, -2600), (-1800, -800))),
    Life("llm-7c", ((-2700, -1700), (CAME, 0))),
)
"""Turned on, taken back by `kubectl rollout undo`, and turned on again, both with an overlap."""
LIVES = (
    *OFF_AND_ON,
    Life("plain-6f", ((-3900, -850),)),
    Life("plain-7c", ((CAME, 0),)),
    Life("nan-6f", ((-3900, -850),), value=math.nan),
    Life("nan-7c", ((CAME, 0),)),
    Life("parallel-6f", ((-3900, -850),), engines=("0", "1")),
    Life("parallel-7c", ((CAME, 0),), engines=("0", "1")),
    Life("mixed-6f", ((-3900, -850),)),
    Life("mixed-7c", ((-3900, 0),)),
    Life("brief-6f", ((-960, -850),)),
    Life("brief-7c", ((CAME, 0),)),
    Life("crashed-6f", ((-3900, -2000),)),
    Life("crashed-7c", ((-2100, -1950),)),
    Life("alone-6f", ((-3900, 0),)),
    Life("alone-6f-k2", ((-3900, 0),)),
    Life("plain-7c", ((-3900, 0),), namespace="other"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    directory = tmp_path_factory.mktemp("revisions")
    tape = Tape(END, length=timedelta(minutes=65))
    for life in LIVES:
        life.record(tape)
    for life in OFF_AND_ON:
        life.record(tape, label="exported_pod")
    tape.write(directory)
    with PrometheusServer(directory) as running:
        yield running


async def asked(
    url: str,
    fleet: str,
    *,
    at: datetime = END,
    within: timedelta = WEEK,
    pod: str = "pod",
    where: str = NAMESPACE,
) -> Reading[datetime]:
    options = SourceOptions(url=url, timeout="5s", labels=Labels(pod=pod))
    metrics = FleetMetrics.from_options({"default": options}, ScrapeOptions(), VLLM_SIGNALS)
    try:
        sought = Alone(f"{fleet}-6f", (f"{fleet}-7c", f"{fleet}-5b"), TWO, within)
        return await metrics.last_alone("default", where, sought, at)
    finally:
        await metrics.close()


def is_right_before(found: Reading[datetime], seconds: float) -> bool:
    """Return whether a moment is one of the last in which nobody else was there."""
    came = END + seconds * SECOND
    return isinstance(found, Measured) and came - STEP - SCRAPE <= found.value < came


@pytest.mark.parametrize("fleet", ["plain", "nan", "parallel", "llm"])
async def test_it_is_the_last_moment_before_another_revision_came(
    server: PrometheusServer, fleet: str
) -> None:
    assert is_right_before(await asked(server.url, fleet), CAME)


async def test_a_look_at_that_moment_finds_its_replicas_and_no_others(server: PrometheusServer) -> None:
    last = await asked(server.url, "plain")
    assert isinstance(last, Measured)
    metrics = FleetMetrics.from_options(
        {"default": SourceOptions(url=server.url)}, ScrapeOptions(), VLLM_SIGNALS
    )

    seen = await metrics.past("default", NAMESPACE, "plain-6f", last.value, Look(TWO, signals=frozenset()))
    later = await metrics.past("default", NAMESPACE, "plain-7c", last.value, Look(TWO, signals=frozenset()))
    await metrics.close()

    assert isinstance(seen, Measured)
    assert list(seen.value.pods) == ["plain-6f-abcd0"]
    assert later == UNKNOWN


async def test_an_earlier_round_is_told_from_the_newest(server: PrometheusServer) -> None:
    between = await asked(server.url, "llm", at=END - 930 * SECOND)
    first = await asked(server.url, "llm", at=END - 1650 * SECOND)

    assert isinstance(between, Measured)
    assert END - 1700 * SECOND < between.value <= END - 930 * SECOND
    assert is_right_before(first, -2700)


async def test_pods_that_a_source_calls_otherwise_are_found(server: PrometheusServer) -> None:
    assert is_right_before(await asked(server.url, "llm", pod="exported_pod"), CAME)


async def test_who_was_never_alone_for_a_whole_window_is_not_known(server: PrometheusServer) -> None:
    assert [await asked(server.url, fleet) for fleet in ("mixed", "brief")] == [UNKNOWN] * 2


async def test_a_replica_that_ended_is_not_alone_once_the_other_ends_too(server: PrometheusServer) -> None:
    assert is_right_before(await asked(server.url, "crashed"), -2100)


async def test_pods_of_another_replica_set_are_not_taken_for_its_own(server: PrometheusServer) -> None:
    found = await asked(server.url, "alone")

    assert isinstance(found, Measured)
    assert found.value > on_grid(END) - SCRAPE


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param({"fleet": "never"}, id="nobody scraped it"),
        pytest.param({"fleet": "plain", "within": timedelta(minutes=10)}, id="longer ago than is looked"),
        pytest.param({"fleet": "plain", "at": END - timedelta(hours=3)}, id="before the first sample"),
        pytest.param({"fleet": "plain", "where": "other"}, id="another namespace"),
    ],
)
async def test_what_no_sample_tells_is_not_known(
    server: PrometheusServer, missing: dict[str, object]
) -> None:
    assert await asked(server.url, **missing) == UNKNOWN  # type: ignore[arg-type]


async def test_a_source_that_does_not_answer_is_said_so(server: PrometheusServer) -> None:
    metrics = FleetMetrics.from_options({}, ScrapeOptions(), VLLM_SIGNALS)
    sought = Alone("llm-6f", ("llm-7c",), TWO, WEEK)

    unknown = await metrics.last_alone("defualt", NAMESPACE, sought, END)
    gpus = await metrics.past_devices("defualt", NAMESPACE, ["a"], END, TWO)
    await metrics.close()

    assert await asked("http://127.0.0.1:9", "plain") == unknown == UNAVAILABLE
    assert gpus == {"a": UNAVAILABLE}
