"""The figures before and after a change, compared at like load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from math import exp

import pytest

from builders import (
    AMBIGUOUS,
    CALM,
    GAP_BOUNDS,
    IDLE,
    NO_SERIES,
    NOT_A_NUMBER,
    NOW,
    SOURCE_UNAVAILABLE,
    STALE,
    THRASHING,
    TRIGGER,
    UNSUPPORTED,
    Nothing,
    Replica,
    an_observation,
    spread,
    with_histogram,
    with_number,
    without,
)
from kvmedic.model.evidence import Histogram, Inconclusive, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Judged, Verdict
from kvmedic.model.spec import Objectives
from kvmedic.verdict.baseline import FEWEST_FINISHED, NEEDED, baseline_of
from kvmedic.verdict.comparison import Comparison
from kvmedic.verdict.goals import compare_for_relief, judge_relief, judge_replacement
from kvmedic.verdict.vetoes import VerdictInput

NONE = Objectives()
CAPPED = Replica(
    finished=1050,
    preemptions=130,
    running_mean=18.6,
    running_max=19,
    waiting_mean=13.4,
    usage_mean=0.9,
    stalls=8,
    prefill_seconds=0.08,
    first_token_seconds=4.0,
)
BEFORE = Baseline(
    window_seconds=300,
    replicas=2,
    preemptions_per_request=2.0,
    requests_per_second=10.0,
    prompt_tokens_mean=60.0,
    output_tokens_mean=200.0,
    generated_tokens_per_second=2000.0,
    inter_token_p95_seconds=0.05,
    inter_token_tail_seconds=8.0,
    stalls_per_request=0.5,
    time_to_first_token_p95_seconds=2.0,
    first_token_limit_seconds=30.0,
    in_time_share=1.0,
    served_in_time_per_second=1213,
    end_to_end_p95_seconds=20.0,
    kv_cache_usage_ratio=0.95,
    waiting_mean=30.0,
    restarts=1,
)
AFTER = replace(
    BEFORE,
    preemptions_per_request=0.1,
    inter_token_tail_seconds=0.4,
    stalls_per_request=0.01,
    time_to_first_token_p95_seconds=6.0,
    waiting_mean=45.0,
    restarts=0,
)


def verdict_of(objectives: Objectives = NONE, **after: float) -> Verdict:
    return compare_for_relief(Comparison(BEFORE, replace(AFTER, **after), objectives, TRIGGER)).verdict


def baseline(*replicas: Replica, restarts: int = 0) -> Baseline:
    found = baseline_of(an_observation(*replicas), restarts)
    assert not isinstance(found, Inconclusive)
    return found


def judged(*replicas: Replica, restarts: int = 0, objectives: Objectives = NONE) -> Judged:
    return judge_relief(
        VerdictInput(baseline(*[THRASHING] * 3), an_observation(*replicas), objectives, TRIGGER, restarts)
    )


# The figures.
def test_a_baseline_is_the_whole_fleets_figures() -> None:
    found = baseline(*[replace(THRASHING, in_flight_change=30)] * 3, restarts=2)

    assert found.window_seconds == 300
    assert found.replicas == 3
    assert found.preemptions_per_request == pytest.approx(1680 / 960)
    assert found.requests_per_second == pytest.approx(3 * (960 + 30) / 300)
    assert found.prompt_tokens_mean == pytest.approx(60, rel=0.01)
    assert found.output_tokens_mean == pytest.approx(190, rel=0.01)
    assert found.generated_tokens_per_second == pytest.approx(3 * 960 * 190 / 300, rel=0.01)
    assert 0.025 < found.inter_token_p95_seconds <= 0.05
    assert 1.0 < found.inter_token_tail_seconds <= 2.5
    assert found.stalls_per_request == pytest.approx(192 / 960 / 3)
    assert 1 < found.time_to_first_token_p95_seconds <= 1.5
    assert found.first_token_limit_seconds == 30
    assert found.in_time_share == pytest.approx(1, abs=0.001)
    assert found.served_in_time_per_second == pytest.approx(
        3 * 960 * 190 / 300 * exp(-192 / 960 / 3), rel=0.01
    )
    assert 10 < found.end_to_end_p95_seconds <= 15
    assert found.kv_cache_usage_ratio == pytest.approx(0.99)
    assert found.waiting_mean == pytest.approx(3 * 9.2)
    assert found.restarts == 2
    assert found.models == ("llm",)
    assert found.aborted_share == 0


@pytest.mark.parametrize(
    ("limit", "waiting", "share"),
    [(0.5, 0.0, 0.0), (2.0, 0.0, 1.0), (2.0, 960 / 300 * 2.0, 1.0), (2.0, 960 / 300 * 2.0 + 960, 0.5)],
    ids=["all are late", "all are in time", "those that wait may be in time", "those that wait are late"],
)
def test_first_tokens_are_in_time_by_a_limit_and_those_that_wait_for_longer_are_late(
    limit: float, waiting: float, share: float
) -> None:
    queued = with_number(THRASHING.readings(), Signal.WAITING_AT_END, waiting)

    found = baseline_of(an_observation(queued), 0, limit)

    assert not isinstance(found, Inconclusive)
    assert found.first_token_limit_seconds == limit
    assert found.in_time_share == pytest.approx(share, abs=0.001)
    assert found.served_in_time_per_second == pytest.approx(
        found.generated_tokens_per_second * found.in_time_share * exp(-found.stalls_per_request)
    )


def test_requests_that_were_given_up_have_arrived_too() -> None:
    hasty = with_number(THRASHING.readings(), Signal.REQUESTS_ABORTED, 240)

    found = baseline_of(an_observation(hasty), 0)

    assert not isinstance(found, Inconclusive)
    assert found.aborted_share == pytest.approx(240 / 1200)
    assert found.in_time_share == pytest.approx(960 / 1200, abs=0.001)
    assert found.requests_per_second == pytest.approx(1200 / 300)


def test_a_replica_that_does_not_report_given_up_requests_leaves_them_unknown() -> None:
    silent = without(THRASHING.readings(), Signal.REQUESTS_ABORTED, UNSUPPORTED)

    found = baseline_of(an_observation(THRASHING, silent), 0)

    assert not isinstance(found, Inconclusive)
    assert found.aborted_share is None


def test_the_tail_sees_the_stall_of_one_request_in_twenty_whatever_the_output_length() -> None:
    one_in_ten = replace(THRASHING, stalls=0.1 * 960, stall_seconds=30)
    long = replace(one_in_ten, outputs=spread(1900))

    for replica in (one_in_ten, long):
        assert 20 < baseline(replica).inter_token_tail_seconds <= 40


def test_a_tail_above_every_bucket_is_the_top_bound_so_that_it_can_be_stored() -> None:
    assert baseline(replace(THRASHING, stall_seconds=500)).inter_token_tail_seconds == GAP_BOUNDS[-1]


def test_a_histogram_without_bounds_gives_its_mean() -> None:
    coarse = Histogram((), (5000.0,), 150.0)
    readings = with_histogram(THRASHING.readings(), Signal.INTER_TOKEN_SECONDS, coarse)

    found = baseline_of(an_observation(readings), 0)

    assert not isinstance(found, Inconclusive)
    assert found.inter_token_p95_seconds == 0.03


def test_a_falling_queue_never_makes_arrivals_negative() -> None:
    assert baseline(replace(THRASHING, in_flight_change=-5000)).requests_per_second == 0.0


@pytest.mark.parametrize("signal", sorted(NEEDED))
@pytest.mark.parametrize(
    ("why", "reason"),
    [
        (NO_SERIES, Reason.METRICS_MISSING),
        (NOT_A_NUMBER, Reason.METRICS_MISSING),
        (SOURCE_UNAVAILABLE, Reason.SOURCE_UNAVAILABLE),
        (AMBIGUOUS, Reason.METRICS_AMBIGUOUS),
        (STALE, Reason.METRICS_STALE),
        (UNSUPPORTED, Reason.SIGNAL_UNSUPPORTED),
    ],
    ids=["missing", "not a number", "source unavailable", "ambiguous", "stale", "unsupported"],
)
def test_one_gap_on_one_replica_leaves_it_open(signal: Signal, why: Nothing, reason: Reason) -> None:
    looked = an_observation(CAPPED, without(CAPPED.readings(), signal, why), CAPPED)

    found = baseline_of(looked, 0)
    verdict = judge_relief(VerdictInput(BEFORE, looked, NONE, TRIGGER, 0))

    assert isinstance(found, Inconclusive)
    assert (verdict.verdict, verdict.reason) == (Verdict.INCONCLUSIVE, reason)
    assert f"llm-1: {signal}: " in verdict.message


def test_no_replica_leaves_it_open() -> None:
    assert judged().reason is Reason.NO_REPLICAS


@pytest.mark.parametrize(
    ("each", "known"),
    [(FEWEST_FINISHED - 1, False), (FEWEST_FINISHED, True), (FEWEST_FINISHED + 1, True)],
    ids=["below", "at", "above"],
)
def test_too_few_finished_requests_leave_it_open(each: int, *, known: bool) -> None:
    few = replace(CAPPED, finished=each, preemptions=5, stalls=0)

    verdict = judge_relief(VerdictInput(BEFORE, an_observation(few), NONE, TRIGGER, 0))

    assert (verdict.reason is not Reason.TOO_FEW_REQUESTS) is known


def test_a_silent_fleet_is_no_recovery() -> None:
    verdict = judged(IDLE, IDLE, IDLE)

    assert (verdict.verdict, verdict.reason) == (Verdict.INCONCLUSIVE, Reason.TOO_FEW_REQUESTS)


@pytest.mark.parametrize(
    "signal", [Signal.E2E_SECONDS, Signal.TIME_TO_FIRST_TOKEN_SECONDS, Signal.INTER_TOKEN_SECONDS]
)
def test_an_empty_histogram_beside_finished_requests_leaves_it_open(signal: Signal) -> None:
    readings = CAPPED.readings()
    counted = readings.histograms[signal].value
    empty = Histogram(counted.bounds, (0.0,) * len(counted.counts), 0.0)

    found = baseline_of(an_observation(with_histogram(readings, signal, empty)), 0)

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.TOO_FEW_REQUESTS


def test_replicas_that_count_in_different_buckets_leave_it_open() -> None:
    other = Histogram((1.0, 2.0), (500.0, 500.0, 50.0), 1500.0)
    looked = an_observation(CAPPED, with_histogram(CAPPED.readings(), Signal.OUTPUT_LENGTH, other))

    found = baseline_of(looked, 0)

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.REPLICAS_DIFFER
    assert str(Signal.OUTPUT_LENGTH) in found.message


@pytest.mark.parametrize(
    ("age", "cold"), [(299, True), (300, False), (301, False)], ids=["below", "at", "above"]
)
def test_a_replica_that_started_within_the_window_leaves_it_open(age: int, *, cold: bool) -> None:
    young = replace(CAPPED, started_at=NOW - timedelta(seconds=age))

    verdict = judged(CAPPED, young, CAPPED)

    assert (verdict.reason is Reason.TOO_FEW_REQUESTS) is cold
    assert ("llm-1 started 299 s ago" in verdict.message) is cold


def test_an_engine_that_does_not_report_its_start_counts_as_old_enough() -> None:
    silent = without(CAPPED.readings(), Signal.STARTED_SECONDS, UNSUPPORTED)

    assert judge_relief(
        VerdictInput(baseline(*[THRASHING] * 3), an_observation(silent), NONE, TRIGGER, 0)
    ).verdict is (Verdict.RECOVERED)


# The verdict on whole fleets.
def test_a_right_cap_is_recovery_although_the_fleet_stays_full_and_requests_wait() -> None:
    verdict = judged(CAPPED, CAPPED, CAPPED)

    assert (verdict.verdict, verdict.reason) == (Verdict.RECOVERED, Reason.RECOVERED)
    assert "reported only" in verdict.message
    assert "usage 0.99 -> 0.90, waiting 28 -> 40" in verdict.message


def test_nothing_changed_is_no_recovery() -> None:
    assert judged(THRASHING, THRASHING, THRASHING).verdict is Verdict.NOT_RECOVERED


def test_a_cap_that_halves_throughput_without_stalls_before_is_no_recovery() -> None:
    calm_before = baseline(*[replace(THRASHING, stalls=0)] * 3)
    halved = replace(CAPPED, finished=480, preemptions=0, stalls=0)

    verdict = judge_relief(
        VerdictInput(calm_before, an_observation(halved, halved, halved), NONE, TRIGGER, 0)
    )

    assert verdict.verdict is Verdict.NOT_RECOVERED


def test_fewer_requests_arriving_is_no_recovery() -> None:
    quiet = replace(CALM, finished=500, preemptions=10)

    verdict = judged(quiet, quiet, quiet)

    assert (verdict.verdict, verdict.reason) == (Verdict.INCONCLUSIVE, Reason.LOAD_DIFFERS)
    assert "nothing waits" in verdict.message


@pytest.mark.parametrize("looked", [an_observation(CAPPED), an_observation(), an_observation(IDLE)])
def test_a_restart_of_a_new_replica_is_no_recovery_whatever_the_metrics_say(looked: object) -> None:
    verdict = judge_relief(VerdictInput(BEFORE, looked, NONE, TRIGGER, 1))  # type: ignore[arg-type]

    assert verdict.verdict is Verdict.NOT_RECOVERED
    assert "1 restarts" in verdict.message


def test_a_fleet_that_was_scaled_is_compared_per_replica() -> None:
    assert judged(CAPPED, CAPPED).verdict is Verdict.RECOVERED


@pytest.mark.parametrize(
    ("waiting", "verdict"),
    [(9.9, Verdict.RECOVERED), (10.0, Verdict.NOT_RECOVERED)],
    ids=["spread", "queued"],
)
def test_a_load_that_one_more_replica_shares_is_no_loss_of_throughput(
    waiting: float, verdict: Verdict
) -> None:
    """One of ten was not Ready before: the others had all its requests."""
    before = replace(BEFORE, replicas=9, stalls_per_request=0.01)

    assert (
        compare_for_relief(
            Comparison(before, replace(AFTER, replicas=10, waiting_mean=waiting), NONE, TRIGGER)
        ).verdict
        is verdict
    )


def test_half_the_preemptions_are_an_improvement() -> None:
    milder = replace(THRASHING, preemptions=800, stalls=150)

    assert judged(milder, milder, milder).verdict is Verdict.IMPROVED


# Every threshold: below, at, above.
ROWS: Mapping[str, tuple[Mapping[str, float], Verdict]] = {
    "as planned": ({}, Verdict.RECOVERED),
    "preemptions 75 % down, beyond the trigger": ({"preemptions_per_request": 0.5}, Verdict.RECOVERED),
    "a little less than 75 % down": ({"preemptions_per_request": 0.51}, Verdict.IMPROVED),
    "preemptions halved": ({"preemptions_per_request": 1.0}, Verdict.IMPROVED),
    "a little less than halved": (
        {"preemptions_per_request": 1.01, "stalls_per_request": 0.5},
        Verdict.NOT_RECOVERED,
    ),
    "a little less than halved, but more in time": ({"preemptions_per_request": 1.01}, Verdict.IMPROVED),
    "tail halved": ({"inter_token_tail_seconds": 4.0}, Verdict.RECOVERED),
    "tail a little more than half": ({"inter_token_tail_seconds": 4.01}, Verdict.IMPROVED),
    "tail as before": ({"inter_token_tail_seconds": 8.0}, Verdict.IMPROVED),
    "tail rougher than before": (
        {"inter_token_tail_seconds": 8.01, "stalls_per_request": 0.5},
        Verdict.NOT_RECOVERED,
    ),
    "throughput up": ({"generated_tokens_per_second": 2200}, Verdict.RECOVERED),
    "throughput held": ({"generated_tokens_per_second": 1900, "stalls_per_request": 0.5}, Verdict.RECOVERED),
    "throughput not held and nothing won": (
        {"generated_tokens_per_second": 1899, "stalls_per_request": 0.5},
        Verdict.NOT_RECOVERED,
    ),
    "throughput paid for with more in time": (
        {"generated_tokens_per_second": 1600},
        Verdict.RECOVERED,
    ),
    "throughput paid for with too little": (
        {"generated_tokens_per_second": 1330},
        Verdict.NOT_RECOVERED,
    ),
    "fewer arrivals and a queue": ({"requests_per_second": 5, "waiting_mean": 2.0}, Verdict.RECOVERED),
    "fewer arrivals and hardly a queue": (
        {"requests_per_second": 5, "waiting_mean": 1.9},
        Verdict.INCONCLUSIVE,
    ),
    "arrivals at the bound": ({"requests_per_second": 8, "waiting_mean": 0}, Verdict.RECOVERED),
    "arrivals under the bound": ({"requests_per_second": 7.99, "waiting_mean": 0}, Verdict.INCONCLUSIVE),
    "more arrivals do not spoil a good verdict": ({"requests_per_second": 20}, Verdict.RECOVERED),
    "more arrivals than the bound spoil a bad one": (
        {"requests_per_second": 13.01, "preemptions_per_request": 2, "stalls_per_request": 0.5},
        Verdict.INCONCLUSIVE,
    ),
    "arrivals at the bound do not": (
        {"requests_per_second": 13, "preemptions_per_request": 2, "stalls_per_request": 0.5},
        Verdict.NOT_RECOVERED,
    ),
    "prompts shorter, at the bound": ({"prompt_tokens_mean": 48}, Verdict.RECOVERED),
    "prompts shorter, under the bound": ({"prompt_tokens_mean": 47.9}, Verdict.INCONCLUSIVE),
    "prompts longer, at the bound": ({"prompt_tokens_mean": 75}, Verdict.RECOVERED),
    "prompts longer, over the bound": ({"prompt_tokens_mean": 75.1}, Verdict.INCONCLUSIVE),
    "outputs shorter, at the bound": ({"output_tokens_mean": 160}, Verdict.RECOVERED),
    "outputs shorter, under the bound": ({"output_tokens_mean": 159}, Verdict.INCONCLUSIVE),
    "outputs longer, over the bound": ({"output_tokens_mean": 251}, Verdict.INCONCLUSIVE),
}


@pytest.mark.parametrize(("after", "verdict"), ROWS.values(), ids=ROWS)
def test_every_threshold(after: Mapping[str, float], verdict: Verdict) -> None:
    assert verdict_of(**after) is verdict


@pytest.mark.parametrize(
    ("remaining", "verdict"),
    [(0.24, Verdict.RECOVERED), (0.25, Verdict.IMPROVED), (0.26, Verdict.IMPROVED)],
    ids=["below half the trigger", "at it", "above it"],
)
def test_few_preemptions_are_no_trouble_however_many_there_were(remaining: float, verdict: Verdict) -> None:
    before = replace(BEFORE, preemptions_per_request=0.6)

    after = replace(AFTER, preemptions_per_request=remaining)

    assert compare_for_relief(Comparison(before, after, NONE, TRIGGER)).verdict is verdict


@pytest.mark.parametrize(
    ("tail", "verdict"),
    [(0.99, Verdict.RECOVERED), (1.0, Verdict.RECOVERED), (1.01, Verdict.IMPROVED)],
    ids=["below", "at", "above"],
)
def test_a_tail_under_a_second_hangs_for_nobody(tail: float, verdict: Verdict) -> None:
    before = replace(BEFORE, inter_token_tail_seconds=1.1)

    after = replace(AFTER, inter_token_tail_seconds=tail)

    assert compare_for_relief(Comparison(before, after, NONE, TRIGGER)).verdict is verdict


def test_without_preemptions_before_and_after_nothing_recovered_or_got_worse() -> None:
    calm = replace(BEFORE, preemptions_per_request=0, stalls_per_request=0, inter_token_tail_seconds=0.1)

    assert compare_for_relief(Comparison(calm, calm, NONE, TRIGGER)).verdict is Verdict.RECOVERED


def test_preemptions_and_stalls_out_of_nothing_are_no_recovery() -> None:
    calm = replace(BEFORE, preemptions_per_request=0, stalls_per_request=0, inter_token_tail_seconds=0)

    assert compare_for_relief(Comparison(calm, BEFORE, NONE, TRIGGER)).verdict is Verdict.NOT_RECOVERED


# Objectives.
@pytest.mark.parametrize(
    ("p95", "verdict"),
    [(0.05, Verdict.RECOVERED), (0.051, Verdict.IMPROVED)],
    ids=["at the objective", "above the objective"],
)
def test_an_inter_token_objective_that_is_met_makes_answers_smooth(p95: float, verdict: Verdict) -> None:
    objectives = Objectives(inter_token_p95_seconds=0.05)
    before = replace(BEFORE, inter_token_p95_seconds=0.06)

    after = replace(AFTER, inter_token_tail_seconds=6.0, inter_token_p95_seconds=p95)

    assert compare_for_relief(Comparison(before, after, objectives, TRIGGER)).verdict is verdict


@pytest.mark.parametrize(
    ("objectives", "after"),
    [
        (Objectives(inter_token_p95_seconds=0.05), {"inter_token_p95_seconds": 0.051}),
        (Objectives(e2e_p95_seconds=20.0), {"end_to_end_p95_seconds": 20.1}),
    ],
    ids=["between tokens", "end to end"],
)
def test_an_objective_that_was_met_and_is_not_any_more_is_no_recovery(
    objectives: Objectives, after: Mapping[str, float]
) -> None:
    assert verdict_of(objectives, **after) is Verdict.NOT_RECOVERED
    assert verdict_of(objectives) is Verdict.RECOVERED


@pytest.mark.parametrize(
    ("objectives", "name"),
    [
        (Objectives(e2e_p95_seconds=19.0), "e2eP95 20 s, objective 19 s"),
        (Objectives(inter_token_p95_seconds=0.04), "interTokenP95 0.05 s, objective 0.04 s"),
    ],
)
def test_an_objective_that_is_still_not_met_is_no_recovery_yet_and_the_change_stays(
    objectives: Objectives, name: str
) -> None:
    found = compare_for_relief(Comparison(BEFORE, AFTER, objectives, TRIGGER))

    assert (found.verdict, found.reason) == (Verdict.IMPROVED, Reason.IMPROVED)
    assert f"not met: {name}; served in time x" in found.message


def test_an_objective_that_is_met_at_last_is_part_of_a_recovery() -> None:
    before = replace(BEFORE, end_to_end_p95_seconds=25)

    assert (
        compare_for_relief(Comparison(before, AFTER, Objectives(e2e_p95_seconds=20), TRIGGER)).verdict
        is Verdict.RECOVERED
    )


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (0.01, 0.06, Verdict.RECOVERED),
        (0.01, 0.061, Verdict.NOT_RECOVERED),
        (0.5, 0.5, Verdict.RECOVERED),
        (None, 0.5, Verdict.RECOVERED),
        (0.0, None, Verdict.RECOVERED),
    ],
    ids=["at the bound", "above it", "as many as before", "not known before", "not known after"],
)
def test_clients_that_gave_up_are_no_recovery(
    before: float | None, after: float | None, verdict: Verdict
) -> None:
    had, has = replace(BEFORE, aborted_share=before), replace(AFTER, aborted_share=after)

    found = compare_for_relief(Comparison(had, has, NONE, TRIGGER))

    assert found.verdict is verdict
    assert ("requests without an answer +5.1%" in found.message) is (verdict is Verdict.NOT_RECOVERED)


@pytest.mark.parametrize(
    ("before", "after", "alike"),
    [(("a",), ("a",), True), (("a",), ("b",), False), (("a",), ("a", "b"), False), ((), ("b",), True)],
    ids=["the same", "another", "one more", "not known before"],
)
def test_another_model_is_no_like(before: tuple[str, ...], after: tuple[str, ...], *, alike: bool) -> None:
    found = compare_for_relief(
        Comparison(replace(BEFORE, models=before), replace(AFTER, models=after), NONE, TRIGGER)
    )

    assert (found.reason is not Reason.LOAD_DIFFERS) is alike
    assert alike or f"{', '.join(after)} is served, a before" in found.message


def test_a_verdict_keeps_the_figures_it_rests_on() -> None:
    assert compare_for_relief(Comparison(BEFORE, AFTER, NONE, TRIGGER)).after == AFTER
    unlike = replace(AFTER, prompt_tokens_mean=600)
    assert compare_for_relief(Comparison(BEFORE, unlike, NONE, TRIGGER)).after == unlike
    assert judged(CAPPED, CAPPED, CAPPED).after == baseline(CAPPED, CAPPED, CAPPED)
    assert relieved(SERVING, SERVING, SERVING).after == baseline(SERVING, SERVING, SERVING)
    assert judged(IDLE).after is None


@pytest.mark.parametrize(
    ("objective", "verdict"),
    [(5.9, Verdict.NOT_RECOVERED), (6.0, Verdict.RECOVERED), (None, Verdict.RECOVERED)],
    ids=["over it", "at it", "none"],
)
def test_a_first_token_objective_that_was_met_and_is_not_any_more_is_no_recovery(
    objective: float | None, verdict: Verdict
) -> None:
    objectives = Objectives(time_to_first_token_p95_seconds=objective)

    assert compare_for_relief(Comparison(BEFORE, AFTER, objectives, TRIGGER)).verdict is verdict


def test_a_number_that_is_replaced_changes_the_figures() -> None:
    readings = with_number(CAPPED.readings(), Signal.PREEMPTIONS, 0.0)

    found = baseline_of(an_observation(readings), 0)

    assert not isinstance(found, Inconclusive)
    assert found.preemptions_per_request == 0.0


# One replica was replaced.
SERVING = replace(CALM, finished=960)
NEAR = replace(SERVING, preemptions=0.5 * 960)
OVER = replace(SERVING, preemptions=0.5 * 960 + 1)


def relieved(*replicas: Replica, restarts: int = 0, objectives: Objectives = NONE) -> Judged:
    before = baseline(THRASHING, SERVING, SERVING)
    return judge_replacement(VerdictInput(before, an_observation(*replicas), objectives, TRIGGER, restarts))


def test_a_fleet_without_a_pressured_replica_has_recovered() -> None:
    found = relieved(SERVING, SERVING, SERVING)

    assert (found.verdict, found.reason) == (Verdict.RECOVERED, Reason.RECOVERED)
    assert "no replica is beyond the trigger" in found.message


def test_at_the_trigger_is_calm_and_over_it_the_trouble_has_moved() -> None:
    assert relieved(SERVING, NEAR, SERVING).verdict is Verdict.RECOVERED
    found = relieved(SERVING, OVER, SERVING)
    assert found.verdict is Verdict.NOT_RECOVERED
    assert "beyond the trigger: llm-1 (0.50 per request)" in found.message


def test_one_pressured_among_a_hundred_is_seen_although_the_fleets_figures_hardly_move() -> None:
    before = baseline(THRASHING, *[SERVING] * 99)

    found = judge_replacement(
        VerdictInput(before, an_observation(*[SERVING] * 99, THRASHING), NONE, TRIGGER, 0)
    )

    assert compare_for_relief(Comparison(before, before, NONE, TRIGGER)).verdict is not Verdict.NOT_RECOVERED
    assert found.verdict is Verdict.NOT_RECOVERED


def test_a_replacement_that_costs_throughput_did_not_help() -> None:
    slow = replace(SERVING, outputs=spread(160), waiting_mean=5)

    assert relieved(slow, slow, slow).verdict is Verdict.NOT_RECOVERED


def test_restarts_since_the_replacement_speak_against_it() -> None:
    assert relieved(SERVING, SERVING, SERVING, restarts=1).verdict is Verdict.NOT_RECOVERED


def test_an_objective_that_is_still_not_met_keeps_a_replacement_from_being_a_recovery() -> None:
    found = relieved(SERVING, SERVING, SERVING, objectives=Objectives(e2e_p95_seconds=5))

    assert found.verdict is Verdict.IMPROVED
    assert "no replica is beyond the trigger; not met: e2eP95" in found.message


def test_a_breached_objective_speaks_against_a_replacement() -> None:
    late = replace(SERVING, e2e_seconds=30)

    found = relieved(late, late, late, objectives=Objectives(e2e_p95_seconds=20))

    assert found.verdict is Verdict.NOT_RECOVERED


@pytest.mark.parametrize(
    ("replica", "reason"),
    [
        pytest.param(
            replace(SERVING, finished=600, outputs=spread(190)), Reason.LOAD_DIFFERS, id="less to do"
        ),
        pytest.param(
            replace(THRASHING, finished=1400, preemptions=1400), Reason.LOAD_DIFFERS, id="more to do and hot"
        ),
        pytest.param(replace(SERVING, prompts=spread(200)), Reason.LOAD_DIFFERS, id="longer prompts"),
        pytest.param(
            replace(SERVING, finished=10, in_flight_change=950),
            Reason.TOO_FEW_REQUESTS,
            id="too few finished",
        ),
    ],
)
def test_unlike_load_gives_no_verdict_on_a_replacement(replica: Replica, reason: Reason) -> None:
    found = relieved(replica, replica, replica)

    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, reason)
