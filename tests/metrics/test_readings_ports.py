"""Engines with a port each in one pod: which are engines of their own, and whose figures count."""

from __future__ import annotations

import pytest

from kvmedic.metrics.series import Place, PodKey, Series, own_series
from kvmedic.model.evidence import Absence, Look, Measured, Missing, PodReadings, Pool, Signal
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import END, FIVE, NAMESPACE, TWO, source

BOTH = Place(ports=frozenset({8000, 8001}))
FIRST, SECOND, UNKNOWN = Place(only_port=8000), Place(only_port=8001), Place(only_port=0)
RATE = Signal.PREEMPTIONS_PER_REQUEST_HELD
"""Of half a preemption and 1.25 finished requests per second, or of a quarter."""


async def readings(history: PrometheusServer, pod: str, place: Place) -> PodReadings:
    looked = source(history.url)
    try:
        return (await looked.observe([PodKey(NAMESPACE, pod)], Look(FIVE, TWO), {pod: place})).pods[pod]
    finally:
        looked.close()


@pytest.mark.parametrize(
    ("pod", "place"),
    [("ranks", Place()), ("ranks", BOTH), ("processes", BOTH)],
    ids=["seen", "both", "declared"],
)
async def test_engines_with_a_port_each_are_added_up_and_the_worst_pulls_the_trigger(
    history: PrometheusServer, pod: str, place: Place
) -> None:
    found = await readings(history, pod, place)

    assert found.engines == 2
    assert found.number(Signal.PREEMPTIONS) == Measured(225.0, END)
    assert found.number(Signal.RUNNING_MEAN) == Measured(16.0, END)
    assert found.number(RATE) == Measured(pytest.approx(0.4), END)
    assert found.pool == Measured(Pool(298, 32, "auto"), END)
    prompts = found.histogram(Signal.PROMPT_LENGTH)
    assert isinstance(prompts, Measured)
    assert prompts.value.count == pytest.approx(2 * 1.25 * 300)


async def test_two_processes_that_nobody_declares_are_two_words_of_one_engine_and_do_not_agree(
    history: PrometheusServer,
) -> None:
    found = await readings(history, "processes", Place())

    assert found.engines == 1
    assert found.number(Signal.PREEMPTIONS) == Missing(Absence.AMBIGUOUS)
    assert found.number(RATE) == Missing(Absence.AMBIGUOUS)


async def test_an_engine_of_another_model_is_none_of_the_ranks(history: PrometheusServer) -> None:
    found = await readings(history, "models", Place())

    assert found.number(RATE) == Missing(Absence.AMBIGUOUS)


async def test_a_second_way_to_one_page_is_no_second_engine(history: PrometheusServer) -> None:
    found = await readings(history, "meshed", Place())

    assert (found.engines, found.number(Signal.PREEMPTIONS)) == (1, Measured(150.0, END))


@pytest.mark.parametrize(("place", "risen"), [(FIRST, 150.0), (SECOND, 75.0)], ids=["first", "second"])
async def test_of_engines_in_several_containers_only_the_one_that_is_named_counts(
    history: PrometheusServer, place: Place, risen: float
) -> None:
    found = await readings(history, "processes", place)

    assert (found.engines, found.number(Signal.PREEMPTIONS)) == (1, Measured(risen, END))
    assert found.pool == Measured(Pool(149, 32, "auto"), END)


@pytest.mark.parametrize(
    ("pod", "place"),
    [("processes", UNKNOWN), ("thrashing", BOTH), ("thrashing", SECOND)],
    ids=["whose port is not known", "one of two ports is scraped", "the other's port is scraped"],
)
async def test_figures_that_may_be_anothers_or_a_part_are_none(
    history: PrometheusServer, pod: str, place: Place
) -> None:
    found = await readings(history, pod, place)

    assert {found.number(signal) for signal in found.numbers} == {Missing(Absence.NO_SERIES)}


async def test_the_load_of_ranks_with_a_port_each_is_added_up(history: PrometheusServer) -> None:
    looked, keys = source(history.url), [PodKey(NAMESPACE, pod) for pod in ("processes", "thrashing")]
    try:
        both = await looked.peaks(keys, {"processes": BOTH})
        named = await looked.peaks(keys, {"processes": FIRST})
    finally:
        looked.close()

    one = named["processes"]
    assert isinstance(one, Measured)
    assert one == both["thrashing"]
    assert both["processes"] == Measured(pytest.approx(2 * one.value), END)


@pytest.mark.parametrize(
    ("instance", "address", "counts"),
    [
        ("10.0.0.1:8000", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.11:8000", "10.0.0.1", False),
        ("[fd00::1]:8000", "fd00::1", True),
        ("[fd00:0::1]:8000", "fd00::1", True),
        ("fd00::1:8000", "fd00::1", False),
        ("gateway:8000", "10.0.0.1", True),
        ("", "10.0.0.1", True),
    ],
)
def test_a_series_of_another_address_does_not_count(instance: str, address: str, counts: bool) -> None:
    series = (Series({"instance": instance}, 1.0),)
    beside = Series({"instance": "10.0.0.9:8000"}, 2.0)

    assert own_series(series, address) == (series if counts else ())
    assert own_series((*series, beside), address) == (series if counts else ())
