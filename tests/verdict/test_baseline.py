"""A fleet's figures: which replicas they rest on, when the pressure began, what of its traffic moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import (
    CALM,
    IDLE,
    NO_SERIES,
    THRASHING,
    TRIGGER,
    UNSUPPORTED,
    an_observation,
    spread,
    with_number,
    without,
)
from kvmedic.model.evidence import Signal
from kvmedic.model.run import Baseline
from kvmedic.model.spec import Objectives
from kvmedic.model.status import Traffic
from kvmedic.verdict.baseline import (
    MOVED,
    TRAFFIC,
    baseline_of,
    has_begun,
    moves,
    patient_baseline_of,
    preemptions,
    pressured_replicas,
    traffic_of,
)

PROMISED = Objectives(time_to_first_token_p95_seconds=20)


@pytest.mark.parametrize(
    ("waited", "objectives", "clients_stay", "limit"),
    [
        (1.2, Objectives(), True, 30),
        (30, Objectives(), True, 30),
        (35, Objectives(), True, 2 * 39.5),  # the p95 of the bucket from 30 to 40 s
        (35, Objectives(), False, 30),
        (35, PROMISED, True, 20),
    ],
    ids=["prompt", "as long as most sit through", "longer", "who waits for so long leaves", "promised"],
)
def test_who_sends_again_and_again_waits_twice_as_long_as_before(
    waited: float, objectives: Objectives, *, clients_stay: bool, limit: float
) -> None:
    seen = an_observation(replace(THRASHING, first_token_seconds=waited))

    found = patient_baseline_of(seen, 0, objectives, clients_stay=clients_stay)

    assert isinstance(found, Baseline)
    assert found.first_token_limit_seconds == pytest.approx(limit)
    assert found == baseline_of(seen, 0, limit)


THEN = Traffic(requests_per_second=10, prompt_tokens=200, output_tokens=190, limit_tokens=2000)


def test_traffic_is_that_of_the_whole_fleet() -> None:
    found = traffic_of(an_observation(THRASHING, replace(THRASHING, in_flight_change=60), window_seconds=300))

    assert found.requests_per_second == pytest.approx((960 + 960 + 60) / 300)
    assert found.prompt_tokens == pytest.approx(60, rel=0.02)
    assert found.output_tokens == pytest.approx(190, rel=0.02)
    assert found.limit_tokens == 2000


@pytest.mark.parametrize("signal", sorted(TRAFFIC))
def test_what_one_replica_does_not_report_is_not_known(signal: Signal) -> None:
    silent = without(CALM.readings(), signal, UNSUPPORTED)

    found, whole = traffic_of(an_observation(CALM, silent)), traffic_of(an_observation(CALM, CALM))

    assert found != whole
    assert None in (found.requests_per_second, found.prompt_tokens, found.output_tokens, found.limit_tokens)


def test_a_fleet_without_traffic_has_no_lengths() -> None:
    assert traffic_of(an_observation(IDLE)) == Traffic(requests_per_second=0.0)
    assert traffic_of(an_observation()) == Traffic()


def test_arrivals_need_a_window() -> None:
    assert traffic_of(an_observation(CALM, window_seconds=float("inf"))).requests_per_second is None


def test_each_figure_that_moved_is_named_with_both_values() -> None:
    now = Traffic(requests_per_second=25, prompt_tokens=50, output_tokens=700, limit_tokens=8000)

    assert moves(THEN, now) == (
        "arrivals 10 -> 25/s",
        "prompts 200 -> 50 tokens",
        "outputs 190 -> 700 tokens",
        "max_tokens 2000 -> 8000",
    )


@pytest.mark.parametrize(
    ("factor", "shown"),
    [(1.0, False), (MOVED, False), (MOVED - 0.01, True), (1 / MOVED, False), (1 / MOVED + 0.01, True)],
    ids=["the same", "at the bound below", "under it", "at the bound above", "over it"],
)
def test_small_differences_are_not_reported(factor: float, *, shown: bool) -> None:
    assert bool(moves(THEN, replace(THEN, limit_tokens=2000 * factor))) is shown


def test_what_nobody_knew_did_not_move() -> None:
    assert moves(Traffic(), THEN) == moves(THEN, Traffic()) == ()


def test_from_none_to_some_is_a_move() -> None:
    assert moves(replace(THEN, requests_per_second=0.0), THEN) == ("arrivals 0 -> 10/s",)


def test_longer_outputs_are_seen_in_what_replicas_report() -> None:
    before, after = (traffic_of(an_observation(one)) for one in (CALM, replace(CALM, outputs=spread(500))))

    assert [move.partition(" ")[0] for move in moves(before, after)] == ["outputs"]


def test_only_replicas_beyond_the_trigger_show_when_it_began() -> None:
    at = with_number(CALM.readings(), Signal.PREEMPTIONS_PER_REQUEST_HELD, 0.5)
    silent = without(THRASHING.readings(), Signal.PREEMPTIONS_PER_REQUEST_HELD, NO_SERIES)
    seen = an_observation(THRASHING, CALM, at, silent)

    assert pressured_replicas(seen, TRIGGER) == ("llm-0",)
    assert preemptions(seen, ("llm-0",)) == THRASHING.preemptions


def test_preemptions_are_added_up_and_what_is_not_reported_counts_nothing() -> None:
    silent = without(THRASHING.readings(), Signal.PREEMPTIONS, NO_SERIES)
    seen = an_observation(replace(THRASHING, preemptions=7), silent)

    assert preemptions(seen, seen.pods) == 7


@pytest.mark.parametrize(
    ("first_part", "begun"),
    [(10.0, True), (9.9, False), (0.0, False), (20.0, True)],
    ids=["at half its share", "under it", "nothing", "its share"],
)
def test_pressure_is_there_with_half_its_share_of_the_preemptions(first_part: float, *, begun: bool) -> None:
    """The window has 100 in five parts, so 20 are a part's share."""
    assert has_begun(100.0, 100.0 - first_part, 5) is begun


def test_without_preemptions_nothing_began() -> None:
    assert not has_begun(0.0, 0.0, 5)
