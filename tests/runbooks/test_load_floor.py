"""A cap that would serve fewer tokens than are offered is not planned."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from builders import (
    CALM,
    NO_SERIES,
    NOT_A_NUMBER,
    NOW,
    STALE,
    THRASHING,
    TRIGGER,
    UNSUPPORTED,
    Nothing,
    Replica,
    an_observation,
    without,
)
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Measured, Reading, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Advice, Assignment, Evidence, NoChange, Setting
from kvmedic.runbooks.preemption.branches import pressured_case, right_size
from kvmedic.runbooks.preemption.cap import cap_of, carries, cut_cap
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.verdict.sizing import BOLDEST_FIT, Offered, cap_at, most_throughput
from runbooks.cases import CASE

ALLOWED = Setting(None, (LeverBound(Knob.MAX_NUM_SEQS),))
POOL = (CASE.blocks, CASE.block_tokens)
BOLDEST = cap_at(CASE.blocks, CASE.sequence, BOLDEST_FIT)
DEAR = replace(CASE.strain, prefill_extra_seconds=0.25)
"""Prefills are dear, so that a cut raises throughput."""


def most(case: Case, cap: int) -> float:
    return most_throughput(case.strain, case.sequence, POOL, cap)


def test_more_sequences_serve_more_tokens_until_they_do_not_fit() -> None:
    assert most(CASE, 12) < most(CASE, 16) < most(CASE, 20)
    assert most(CASE, round(CASE.strain.running_mean)) < 1.1


def test_a_cap_that_serves_what_is_offered_says_so() -> None:
    found = cut_cap(replace(CASE, strain=DEAR, offered=Offered(1.0, 600, 500, is_full=True)), ALLOWED)

    assert isinstance(found, Assignment)
    assert "predicted at most " in found.message
    assert "tokens/s, served 600 and offered 600 now and 500 at the last day's peak" in found.message


def test_without_a_clock_it_says_how_many_times_as_much() -> None:
    found = cut_cap(replace(CASE, strain=DEAR, offered=Offered(1.02, is_full=True)), ALLOWED)

    assert isinstance(found, Assignment)
    assert "of the tokens that are served now, offered x1.02" in found.message


def test_a_cap_that_would_serve_less_is_raised_to_the_lowest_that_serves_it() -> None:
    strain = replace(CASE.strain, prefill_extra_seconds=0.15, stalls_per_request=0.6)
    alone, load = replace(CASE, strain=strain), Offered(1.0, is_full=True)

    raised = cap_of(replace(alone, offered=load))

    assert cap_of(alone) < raised <= BOLDEST
    assert carries(replace(alone, offered=load), raised)
    assert not carries(replace(alone, offered=load), raised - 1)


@pytest.mark.parametrize(
    "offered",
    [
        pytest.param(Offered(1.0, 600), id="it keeps up"),
        pytest.param(Offered(1.2, 600, is_full=True), id="a queue grows"),
        pytest.param(Offered(1.0, 600, 900), id="it kept up with a peak"),
    ],
)
@pytest.mark.parametrize("bound", [None, 12.0], ids=["any cap", "a low one only"])
def test_where_no_cap_serves_it_none_is_planned(offered: Offered, bound: float | None) -> None:
    given = Setting(None, (LeverBound(Knob.MAX_NUM_SEQS, maximum=bound),))

    found = cut_cap(replace(CASE, offered=offered), given)

    assert isinstance(found, NoChange)
    assert found.reason is (Reason.CAP_BELOW_LOAD if bound is None else found.reason)
    assert bound or "requests would wait in front of the engine" in found.message


def test_a_low_bound_of_the_lever_does_not_undercut_the_load() -> None:
    fits = replace(CASE, strain=replace(DEAR, stalls_per_request=3.0), offered=Offered(1.0, is_full=True))
    given = Setting(None, (LeverBound(Knob.MAX_NUM_SEQS, maximum=cap_of(fits) - 6),))

    assert isinstance(cut_cap(fits, ALLOWED), Assignment)
    assert cut_cap(fits, given).reason is Reason.CAP_BELOW_LOAD


def test_without_the_lever_a_cap_that_would_starve_is_not_told_either() -> None:
    case = replace(CASE, offered=Offered(1.0, 600))

    assert cut_cap(case, Setting(None, ())).reason is Reason.CAP_BELOW_LOAD


# From evidence.

QUIET = replace(THRASHING, waiting_mean=1.0)
GROWING = replace(THRASHING, in_flight_change=200)


def looked(*replicas: Replica, peaks: Mapping[str, Reading[float]] | None = None) -> tuple[Case, Advice]:
    seen = an_observation(*replicas)
    evidence = Evidence(seen, seen, TRIGGER, peaks=peaks or {})
    case = pressured_case(evidence)
    assert isinstance(case, Case)
    return case, right_size(evidence, ALLOWED)


def test_the_same_clients_that_wait_are_planned_for_as_before() -> None:
    case, advice = looked(THRASHING, THRASHING)

    assert case.offered == Offered(1.0, pytest.approx(608, rel=0.001), None, is_full=True, is_steady=True)
    assert isinstance(advice, Assignment)


def test_what_joins_the_queue_is_offered_too() -> None:
    case, _ = looked(GROWING, GROWING)

    assert case.offered.now == pytest.approx((960 + 200) / 960, rel=0.01)
    assert (case.offered.is_full, case.offered.is_steady) == (True, False)


def test_a_fleet_that_keeps_up_is_not_cut_below_what_it_serves() -> None:
    case, advice = looked(QUIET, QUIET)

    assert not case.offered.is_full
    assert advice.reason is Reason.CAP_BELOW_LOAD


def test_the_peak_of_the_day_counts_where_history_tells_it() -> None:
    at_peak, _ = looked(QUIET, QUIET, peaks={"llm-0": Measured(900.0, NOW), "llm-1": NO_SERIES})
    untold, _ = looked(QUIET, QUIET, peaks={"llm-0": NO_SERIES, "llm-1": STALE})

    assert at_peak.offered.peak_per_second == 900
    assert at_peak.offered.peak == pytest.approx(900 / 608, rel=0.01)
    assert untold.offered.peak == untold.offered.now == 1.0


@pytest.mark.parametrize("signal", [Signal.WAITING_MEAN, Signal.REQUESTS_IN_FLIGHT_CHANGE])
@pytest.mark.parametrize(
    "why", [NO_SERIES, NOT_A_NUMBER, STALE, UNSUPPORTED], ids=["missing", "NaN", "stale", "unsupported"]
)
def test_without_a_word_of_what_waits_nothing_is_cut(signal: Signal, why: Nothing) -> None:
    seen = an_observation(THRASHING, without(THRASHING.readings(), signal, why))

    advice = right_size(Evidence(seen, seen, TRIGGER), ALLOWED)

    assert isinstance(advice, NoChange)
    assert str(signal) in advice.message


def test_calm_replicas_are_not_asked_what_waits() -> None:
    seen = an_observation(THRASHING, without(CALM.readings(), Signal.WAITING_MEAN, UNSUPPORTED))

    assert isinstance(pressured_case(Evidence(seen, seen, TRIGGER)), Case)
