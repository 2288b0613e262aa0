"""What a lower cap must still serve: offered load against what is given, now and at the day's peak."""

from dataclasses import replace
from math import inf, nan

import pytest

from builders import NOW
from kvmedic.model.evidence import Absence, Measured, Missing, Stale, Unsupported
from kvmedic.verdict.sizing import ENOUGH, KEEPING_UP, MARGIN, WAVES_MARGIN, Offered, Queue, peak_of

SERVED = Offered(1.0, served_per_second=1000.0)
FULL = replace(SERVED, is_full=True)
SAME_CLIENTS = replace(FULL, is_steady=True)
WANTED, WANTED_FULL = 1 + MARGIN + KEEPING_UP, 1 + MARGIN


@pytest.mark.parametrize(
    ("offered", "stalls", "least"),
    [
        pytest.param(SERVED, 0.1, WANTED, id="served: as much as is offered"),
        pytest.param(replace(SERVED, now=0.9), 0.1, WANTED, id="a queue that was worked off hides nothing"),
        pytest.param(replace(SERVED, now=1.1), 0.1, 1.1 * WANTED, id="more comes than is given"),
        pytest.param(replace(SERVED, peak_per_second=999), 0.1, WANTED, id="more now than at the peak"),
        pytest.param(replace(SERVED, peak_per_second=1500), 0.1, 1.5 * WANTED, id="the peak, where served"),
        pytest.param(replace(SERVED, peak_per_second=nan), 0.1, WANTED, id="a peak that is no number"),
        pytest.param(
            Offered(1.0, None, 1500), 0.1, WANTED, id="a peak, and nobody knows how much is given a second"
        ),
        pytest.param(Offered(1.0, 0.0, 1500), 0.1, WANTED, id="a peak, and nothing is given"),
        pytest.param(
            replace(FULL, peak_per_second=1500), 0.1, WANTED_FULL, id="the peak is not served: as now"
        ),
        pytest.param(replace(FULL, now=1.3), 0.1, WANTED_FULL, id="more comes than can be given: as now"),
        pytest.param(FULL, 9.0, WANTED_FULL, id="stalls excuse no queue where others still come"),
        pytest.param(replace(SERVED, is_steady=True), 9.0, WANTED, id="steady and not full: as it is"),
        pytest.param(SAME_CLIENTS, 0.69, ENOUGH, id="the same clients adapt"),
        pytest.param(SAME_CLIENTS, 0.7, 0.0, id="the same clients, half of whose answers hang"),
    ],
)
def test_a_cap_must_serve(offered: Offered, stalls: float, least: float) -> None:
    assert offered.least(stalls, spread=1.0) == pytest.approx(least)


def test_outputs_of_one_length_take_a_wider_margin() -> None:
    assert SERVED.least(0.1, spread=0.0) == pytest.approx(WANTED + WAVES_MARGIN)
    assert SERVED.least(0.1, spread=0.5) == pytest.approx(WANTED + WAVES_MARGIN / 2)


@pytest.mark.parametrize(
    ("queue", "steady", "full", "grows"),
    [
        pytest.param(Queue(40, 10, 0), True, True, False, id="as many, and they wait"),
        pytest.param(Queue(41, 9.9, 5), True, False, False, id="a few more, hardly any wait"),
        pytest.param(Queue(40, 10, 5.1), False, True, True, id="more come"),
        pytest.param(Queue(40, 10, -5.1), False, True, False, id="a queue is worked off"),
        pytest.param(Queue(8, 0, 2), True, False, False, id="two of a handful"),
        pytest.param(Queue(8, 0, 2.1), False, False, True, id="over two of a handful"),
        pytest.param(Queue(40, 10, 1, is_glimpsed=True), True, True, False, id="two pages, one more"),
        pytest.param(Queue(40, 10, 1.1, is_glimpsed=True), False, True, True, id="two pages, over one more"),
        pytest.param(Queue(40, 10, inf), False, True, True, id="a replica does not tell"),
    ],
)
def test_a_queue_is(queue: Queue, *, steady: bool, full: bool, grows: bool) -> None:
    assert (queue.is_steady, queue.is_full, queue.grows) == (steady, full, grows)


@pytest.mark.parametrize(
    ("peaks", "expected"),
    [
        ({}, None),
        ({"a": Measured(900.0, NOW), "b": Measured(700.0, NOW)}, 800.0),
        ({"a": Measured(900.0, NOW), "b": Missing(Absence.NO_SERIES)}, 900.0),
        ({"a": Missing(Absence.SOURCE_UNAVAILABLE), "b": Stale(NOW), "c": Unsupported()}, None),
        ({"a": Measured(nan, NOW), "b": Measured(inf, NOW), "c": Measured(-5.0, NOW)}, None),
    ],
    ids=["nobody looked", "mean of the replicas", "one is not known", "none is known", "no numbers"],
)
def test_history_counts_as_far_as_it_goes(peaks: dict[str, object], expected: float | None) -> None:
    assert peak_of(peaks) == expected  # type: ignore[arg-type]
