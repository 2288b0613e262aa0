"""The cap on sequences."""

from __future__ import annotations

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
from kvmedic.runbooks.preemption.branches import right_size
from kvmedic.runbooks.preemption.cap import LEAST_GAIN, LEAST_GROWTH, cap_of, carries, cut_cap
from kvmedic.runbooks.preemption.cap_size import BOLDEST_FIT, Offered, cap_at, most_throughput
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.runbooks.preemption.symptoms import pressured_case
from kvmedic.verdict.occupancy import Occupancy
from runbooks.cases import CASE

CAP = 20


def setting(*levers: LeverBound, now: int | None = None) -> Setting:
    return Setting(max_num_seqs=now, levers=levers or (LeverBound(Knob.MAX_NUM_SEQS),))


def reason_of(case: Case, given: Setting | None = None) -> Reason:
    return cut_cap(case, given or setting()).reason


def assigned(found: Advice) -> int | float:
    assert isinstance(found, Assignment)
    assert found.knob is Knob.MAX_NUM_SEQS
    return found.value


def test_the_cap_is_the_safest_of_those_with_about_the_highest_expected_goodput() -> None:
    found = cut_cap(CASE, setting())

    assert (assigned(found), found.reason) == (CAP, Reason.CAP_RIGHT_SIZED)
    assert "149 blocks for sequences of 7.2 +- 5.0 hold 20" in found.message
    assert "served in time x1." in found.message
    assert "longer waits for them" in found.message


@pytest.mark.parametrize(
    ("growth", "cheap"),
    [(LEAST_GROWTH - 0.01, True), (LEAST_GROWTH, False), (LEAST_GROWTH + 0.01, False)],
    ids=["below", "at", "above"],
)
def test_where_prompts_dominate_preemptions_are_cheap(growth: float, *, cheap: bool) -> None:
    case = replace(CASE, sequence=replace(CASE.sequence, growth_share=growth))

    found = cut_cap(case, setting())

    assert (found.reason is Reason.PREEMPTIONS_CHEAP) is cheap
    assert not cheap or "watermark" in found.message


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [(5, Reason.POOL_TOO_SMALL), (14, Reason.POOL_TOO_SMALL), (30, Reason.CAP_RIGHT_SIZED)],
    ids=["not even one fits", "one fits", "two fit"],
)
def test_a_pool_for_one_sequence_is_not_mended_by_a_cap(blocks: float, reason: Reason) -> None:
    strain = replace(CASE.strain, running_mean=3)

    assert reason_of(replace(CASE, blocks=blocks, strain=strain)) is reason


@pytest.mark.parametrize(
    ("cap_now", "running_max", "reason"),
    [
        pytest.param(None, CAP - 1, Reason.CAP_WITHOUT_EFFECT, id="fewer ran than the cap"),
        pytest.param(None, CAP, Reason.CAP_WITHOUT_EFFECT, id="as many ran"),
        pytest.param(None, CAP + 1, Reason.CAP_RIGHT_SIZED, id="more ran"),
        pytest.param(CAP - 1, 32, Reason.CAP_WITHOUT_EFFECT, id="the present cap is lower"),
        pytest.param(CAP, 32, Reason.CAP_WITHOUT_EFFECT, id="the present cap is the same"),
        pytest.param(CAP + 2, 32, Reason.CAP_WITHOUT_EFFECT, id="the present cap is higher by a tenth"),
        pytest.param(CAP + 3, 32, Reason.CAP_RIGHT_SIZED, id="the present cap is higher"),
    ],
)
def test_a_cap_that_changes_nothing_is_not_set(
    cap_now: int | None, running_max: float, reason: Reason
) -> None:
    assert reason_of(replace(CASE, running_max=running_max), setting(now=cap_now)) is reason


@pytest.mark.parametrize(
    ("rooms", "reason"),
    [
        pytest.param((), Reason.CAP_RIGHT_SIZED, id="no cap of ours"),
        pytest.param(((3600, 20), (3600, 32)), Reason.CAP_WITHOUT_EFFECT, id="raised from there an hour ago"),
        pytest.param(((18_000, 20), (18_000, 32)), Reason.CAP_RIGHT_SIZED, id="raised five hours ago"),
    ],
)
def test_a_cap_that_was_just_raised_is_not_lowered_to_where_it_was(
    rooms: tuple[tuple[float, int], ...], reason: Reason
) -> None:
    assert reason_of(CASE, replace(setting(now=32), cap_rooms=rooms)) is reason


def test_a_gain_within_the_noise_is_no_reason_for_a_cut() -> None:
    smooth = replace(CASE.strain, stalls_per_request=0.01, prefill_extra_seconds=0.0)

    found = cut_cap(replace(CASE, strain=smooth), setting())

    assert found.reason is Reason.GAIN_WITHIN_NOISE
    assert f"under x{1 + LEAST_GAIN:.2f}" in found.message


@pytest.mark.parametrize(
    ("stalls", "reason"),
    [(0.2, Reason.GAIN_WITHIN_NOISE), (0.35, Reason.CAP_RIGHT_SIZED)],
    ids=["few stalls", "more stalls"],
)
def test_stalls_must_be_worth_the_throughput(stalls: float, reason: Reason) -> None:
    strain = replace(CASE.strain, stalls_per_request=stalls, prefill_extra_seconds=0.0)

    assert reason_of(replace(CASE, strain=strain)) is reason


def test_without_the_lever_the_cap_is_only_reported() -> None:
    found = cut_cap(CASE, setting(LeverBound(Knob.WATERMARK)))

    assert isinstance(found, NoChange)
    assert found.reason is Reason.LEVER_NOT_ALLOWED
    assert f"a cap of {CAP} would help" in found.message
    assert "add maxNumSeqs to spec.levers" in found.message


@pytest.mark.parametrize(
    ("minimum", "cap", "reason"),
    [
        (CAP - 1, CAP, Reason.CAP_RIGHT_SIZED),
        (CAP, CAP, Reason.CAP_RIGHT_SIZED),
        (CAP + 1, CAP + 1, Reason.CAP_RIGHT_SIZED),
        (31.0, None, Reason.GAIN_WITHIN_NOISE),
        (32, None, Reason.LEVER_NOT_ALLOWED),
        (256, None, Reason.LEVER_NOT_ALLOWED),
    ],
    ids=["below the cap", "at it", "above it", "hardly a cut", "no cut", "far from one"],
)
def test_a_lower_bound_is_applied_if_it_is_still_a_cut(
    minimum: float, cap: int | None, reason: Reason
) -> None:
    found = cut_cap(CASE, setting(LeverBound(Knob.MAX_NUM_SEQS, minimum=minimum)))

    assert found.reason is reason
    assert (found.value if isinstance(found, Assignment) else None) == cap
    text = "lower min of maxNumSeqs" if reason is Reason.LEVER_NOT_ALLOWED else "by the lever's bounds"
    assert (text in found.message) is (minimum > CAP)


@pytest.mark.parametrize(
    ("maximum", "cap", "reason"),
    [
        (CAP - 1, CAP - 1, Reason.CAP_RIGHT_SIZED),
        (CAP, CAP, Reason.CAP_RIGHT_SIZED),
        (CAP + 1, CAP, Reason.CAP_RIGHT_SIZED),
    ],
    ids=["below the cap", "at it", "above it"],
)
def test_an_upper_bound_is_kept(maximum: float, cap: int, reason: Reason) -> None:
    found = cut_cap(CASE, setting(LeverBound(Knob.MAX_NUM_SEQS, maximum=maximum)))

    assert (assigned(found), found.reason) == (cap, reason)


@pytest.mark.parametrize(
    ("spread", "cap"), [(0.0, 9), (0.5, 11), (1.0, 14)], ids=["waves", "half way", "varied"]
)
def test_outputs_that_end_in_waves_lower_the_cap(spread: float, cap: int) -> None:
    equal = replace(
        CASE,
        sequence=Occupancy(mean_blocks=10.0, deviation_blocks=4.0, growth_share=0.8),
        strain=replace(
            CASE.strain, running_mean=15, stalls_per_request=1, output_tokens=512, prefill_tokens=64
        ),
        prompt_tokens=64,
        output_tokens=512,
        spread=spread,
    )

    assert cap_of(equal) == cap
    assert ("end in waves" in cut_cap(equal, setting()).message) is (spread < 1)


def test_waves_never_raise_the_cap() -> None:
    wide = replace(CASE, sequence=replace(CASE.sequence, mean_blocks=20.0, deviation_blocks=30.0), spread=0.0)

    assert cap_of(wide) == cap_of(replace(wide, spread=1.0))


@pytest.mark.parametrize(
    ("growth", "blocks", "warned"),
    [(0.7, 149, False), (0.51, 70, True), (0.5, 70, False)],
    ids=["room for many", "room for few long ones", "room for few, mostly prompt"],
)
def test_a_small_pool_is_said_to_be_small(growth: float, blocks: float, *, warned: bool) -> None:
    case = replace(
        CASE,
        blocks=blocks,
        sequence=replace(CASE.sequence, growth_share=growth),
        strain=replace(CASE.strain, running_mean=12, stalls_per_request=1.0),
    )

    found = cut_cap(case, setting())

    assert isinstance(found, Assignment)
    assert ("more KV cache or replicas would help more" in found.message) is warned


LARGER = 1.25 * CASE.sequence.mean_blocks
WIDER = replace(CASE, measured=(LARGER, 1.6 * CASE.sequence.deviation_blocks))


def test_a_cap_of_ours_that_does_not_fit_is_corrected_by_what_is_seen_to_run() -> None:
    """Without it the same lengths lead to the cap that is set already."""
    kept = replace(setting(now=CAP), is_our_cap=True)

    found = cut_cap(WIDER, kept)

    assert cut_cap(WIDER, setting(now=CAP)).reason is Reason.CAP_WITHOUT_EFFECT
    assert assigned(found) < CAP
    assert f"{LARGER:.1f} +- {1.6 * CASE.sequence.deviation_blocks:.1f}" in found.message


def test_a_cap_that_is_not_ours_is_sized_from_the_lengths_alone() -> None:
    assert assigned(cut_cap(WIDER, setting(now=64))) == CAP


@pytest.mark.parametrize(
    "measured", [None, (5.0, 3.0)], ids=["an engine that does not report it", "a spread as expected"]
)
def test_without_a_wider_spread_nothing_is_corrected(measured: tuple[float, float] | None) -> None:
    kept = replace(setting(now=CAP), is_our_cap=True)

    assert cut_cap(replace(CASE, measured=measured), kept).reason is Reason.CAP_WITHOUT_EFFECT


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
        pytest.param(Offered(1.04, 600, is_full=True), id="it is full"),
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


def test_what_falls_short_anyway_is_capped_where_that_costs_little() -> None:
    full = replace(CASE, offered=Offered(1.2, 600, is_full=True))

    found = cut_cap(full, ALLOWED)

    assert isinstance(found, Assignment)
    assert carries(full, int(found.value))
    assert not carries(replace(CASE, offered=Offered(1.04, 600, is_full=True)), int(found.value))


def test_a_low_bound_of_the_lever_does_not_undercut_the_load() -> None:
    fits = replace(CASE, strain=replace(DEAR, stalls_per_request=3.0), offered=Offered(1.0, is_full=True))
    given = Setting(None, (LeverBound(Knob.MAX_NUM_SEQS, maximum=cap_of(fits) - 10),))

    assert isinstance(cut_cap(fits, ALLOWED), Assignment)
    assert cut_cap(fits, given).reason is Reason.CAP_BELOW_LOAD


def test_without_the_lever_a_cap_that_would_starve_is_not_reported_either() -> None:
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


def test_the_peak_of_the_day_counts_where_history_has_it() -> None:
    at_peak, _ = looked(QUIET, QUIET, peaks={"llm-0": Measured(900.0, NOW), "llm-1": NO_SERIES})
    unknown, _ = looked(QUIET, QUIET, peaks={"llm-0": NO_SERIES, "llm-1": STALE})

    assert at_peak.offered.peak_per_second == 900
    assert at_peak.offered.peak == pytest.approx(900 / 608, rel=0.01)
    assert unknown.offered.peak == unknown.offered.now == 1.0


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
