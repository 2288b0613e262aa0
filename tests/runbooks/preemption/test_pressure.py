"""What the sizing of a thrashing fleet rests on, and when its evidence does not suffice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from builders import (
    CALM,
    GAP_BOUNDS,
    LENGTH_BOUNDS,
    NOW,
    THRASHING,
    TRIGGER,
    UNSUPPORTED,
    Replica,
    a_histogram,
    an_evidence,
    spread,
    with_histogram,
    with_number,
    without,
)
from kvmedic.model.compression import Compacted, TokenEviction
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Histogram, Inconclusive, Measured, PodReadings, Pool, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Verdict
from kvmedic.model.spec import LeverBound, Objectives
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Assignment, Diagnosed, Evidence, Setting, diagnose
from kvmedic.runbooks.preemption.cap import cap_of
from kvmedic.runbooks.preemption.pressure import (
    FEWEST_REQUESTS,
    Case,
    case_of,
    doubt_of,
    measured_blocks,
    misfit_of,
    residence_seconds,
    seen_of,
    size_fleet,
)
from kvmedic.verdict.baseline import baseline_of
from kvmedic.verdict.goals import judge_relief
from kvmedic.verdict.occupancy import WINDOW_READS
from kvmedic.verdict.vetoes import VerdictInput
from worlds.recorded import look

FREE = Setting(max_num_seqs=None, levers=(LeverBound(Knob.MAX_NUM_SEQS),))
GAUGES = {
    Signal.RUNNING_MEAN: 13.4,
    Signal.RUNNING_MAX: 25.0,
    Signal.WAITING_MEAN: 36.3,
    Signal.WAITING_AT_END: 10.0,
    Signal.KV_CACHE_USAGE_MEAN: 0.94,
    Signal.REQUESTS_IN_FLIGHT_CHANGE: 21.0,
}
"""Of the recorded thrash, averaged over its one-second samples."""


def case(evidence: Evidence) -> Case:
    seen = seen_of(evidence, evidence.burn.pods)
    assert not isinstance(seen, Inconclusive)
    return case_of(seen)


def cap(evidence: Evidence) -> float:
    found = diagnose(RUNBOOKS["PreemptionThrash"], evidence)
    assert isinstance(found, Diagnosed)
    assert found.branch.then is not None
    advice = found.branch.then(evidence, FREE)
    assert isinstance(advice, Assignment)
    return advice.value


def test_strain_is_per_engine_and_per_request() -> None:
    found = case(an_evidence(THRASHING, THRASHING)).strain

    assert found.running_mean == pytest.approx(22.8)
    assert found.preemptions_per_request == pytest.approx(1.75)
    assert found.stalls_per_request == pytest.approx(0.2 / 3, rel=0.01)
    assert found.step_seconds == pytest.approx(0.028, rel=0.05)
    assert found.prefill_extra_seconds == pytest.approx(0.15 - found.step_seconds)
    assert found.prefill_tokens == pytest.approx(60, rel=0.01)
    assert found.output_tokens == pytest.approx(190, rel=0.01)


def test_more_tokens_than_finished_requests_show_do_not_change_what_is_per_request() -> None:
    unfinished = with_number(THRASHING.readings(), Signal.REQUESTS_FINISHED, 1)

    assert case(an_evidence(unfinished)).strain.preemptions_per_request == pytest.approx(1.75)


def test_without_prefill_times_recomputation_counts_as_free() -> None:
    empty = with_histogram(THRASHING.readings(), Signal.PREFILL_SECONDS, a_histogram(GAP_BOUNDS, {}))

    assert case(an_evidence(empty)).strain.prefill_extra_seconds == 0.0


def test_a_fleet_uses_its_smallest_pool_and_its_largest_running_set() -> None:
    smaller = replace(THRASHING, pool=Pool(146, 32), running_max=40)

    found = case(an_evidence(THRASHING, smaller))

    assert (found.blocks, found.running_max, found.block_tokens) == (146, 40, 32)
    assert found.requests == pytest.approx(2 * THRASHING.finished)


def test_a_cap_holds_for_each_engine_of_a_replica() -> None:
    doubled = replace(
        THRASHING,
        engines=2,
        pool=Pool(298, 32),
        running_mean=45.6,
        running_max=64,
        waiting_mean=18.4,
        finished=1920,
        preemptions=3360,
        stalls=384,
    )

    assert cap(an_evidence(doubled)) == cap(an_evidence(THRASHING))


def test_a_gauge_that_missed_the_running_set_does_not_divide_by_zero() -> None:
    blind = with_number(THRASHING.readings(), Signal.RUNNING_MEAN, 0.0)
    seen = seen_of(an_evidence(blind), ["llm-0"])

    assert not isinstance(seen, Inconclusive)
    assert case_of(seen).strain.running_mean == 1.0
    assert measured_blocks(seen) == pytest.approx(149 * 0.99)


def test_the_residence_time_is_the_p99_of_the_whole_fleet() -> None:
    seen = seen_of(an_evidence(THRASHING, replace(THRASHING, e2e_seconds=45)), ["llm-0"])

    assert not isinstance(seen, Inconclusive)
    assert 40 < residence_seconds(seen) <= 50


# Shared prefixes.
def shared(hit_share: float) -> Replica:
    """Return replicas whose prompts of 512 tokens begin alike; a sequence takes the rest alone."""
    return replace(
        THRASHING,
        prompts={540: 1},
        prefix_hit_share=hit_share,
        pool=Pool(149, 32),
        running_mean=20,
        usage_mean=0.99,
    )


def test_hits_in_the_prefix_cache_make_sequences_smaller_and_prefills_shorter() -> None:
    alone, together = case(an_evidence(shared(0.0))), case(an_evidence(shared(0.9)))

    assert together.sequence.mean_blocks < 0.5 * alone.sequence.mean_blocks
    assert together.sequence.deviation_blocks == alone.sequence.deviation_blocks
    assert together.strain.prefill_tokens == pytest.approx(0.1 * alone.strain.prefill_tokens)


@pytest.mark.parametrize(
    ("hit_share", "counts"), [(0.04, False), (0.05, False), (0.06, True)], ids=["below", "at", "above"]
)
def test_a_few_hits_change_nothing(hit_share: float, *, counts: bool) -> None:
    alone, together = case(an_evidence(shared(0.0))), case(an_evidence(shared(hit_share)))

    assert (together.sequence != alone.sequence) is counts


def test_more_hits_than_queries_count_as_all() -> None:
    readings = with_number(shared(0.5).readings(), Signal.PREFIX_CACHE_HITS, 1e9)

    assert case(an_evidence(readings)).strain.prefill_tokens == 0.0


# Equal lengths.
def equal(output: float) -> Replica:
    return replace(
        THRASHING,
        prompts={64: 1},
        outputs={output: 1},
        running_mean=15,
        running_max=34,
        stalls=1000,
        stall_seconds=8,
    )


def outputs(readings: PodReadings, *values: float) -> PodReadings:
    counted = a_histogram(LENGTH_BOUNDS, dict.fromkeys(values, 400.0))
    return with_histogram(readings, Signal.OUTPUT_LENGTH, counted)


def test_requests_of_equal_length_get_the_cap_of_a_wave() -> None:
    assert cap(an_evidence(equal(512))) == 9
    assert cap(an_evidence(equal(512), equal(512), equal(512))) == 9


def test_replicas_that_differ_in_their_mean_prove_a_spread() -> None:
    bucket = [outputs(equal(700).readings(), mean) for mean in (660, 700, 740)]

    assert case(an_evidence(*bucket)).spread == 1.0


def test_the_time_before_and_within_the_trigger_window_are_two_groups() -> None:
    recent = outputs(equal(700).readings(), 761)
    whole = outputs(equal(700).readings(), 600, 761)

    assert case(an_evidence(recent, sizing=[whole])).spread == 1.0
    assert case(an_evidence(whole, sizing=[whole])).spread == 0.5


@pytest.mark.parametrize(
    "recent",
    [
        pytest.param(a_histogram(LENGTH_BOUNDS, {760: 9}), id="too few in the trigger's window"),
        pytest.param(a_histogram((1000.0,), {760: 400}), id="other buckets in the trigger's window"),
        pytest.param(a_histogram(LENGTH_BOUNDS, {760: 795}), id="too few before it"),
        pytest.param(
            Histogram(LENGTH_BOUNDS, (0.0,) * 9 + (400.0,) + (0.0,) * 3, 1e6), id="more tokens than in all"
        ),
    ],
)
def test_a_window_that_cannot_be_split_is_one_group(recent: Histogram) -> None:
    readings = equal(700).readings()
    whole = outputs(readings, 600, 761)

    found = case(an_evidence(with_histogram(readings, Signal.OUTPUT_LENGTH, recent), sizing=[whole]))

    assert found.spread == 0.5


def test_replicas_with_hardly_a_request_are_one_group() -> None:
    few = [
        with_histogram(equal(700).readings(), Signal.OUTPUT_LENGTH, a_histogram(LENGTH_BOUNDS, {m: 9}))
        for m in (600, 761)
    ]

    assert case(an_evidence(*few)).spread == 0.5


# Recorded from a real engine.
def test_the_recorded_thrash_is_diagnosed_and_sized_as_the_measured_table_says() -> None:
    """128 requests of 64 + 512 tokens after 56 of 64 + 256; of the measured caps 12 and 16 were best."""
    burn = look("metrics-idle.txt", "metrics-thrash.txt", window_seconds=120, gauges=GAUGES)
    evidence = Evidence(burn, burn, TRIGGER)

    found = diagnose(RUNBOOKS["PreemptionThrash"], evidence)

    assert isinstance(found, Diagnosed)
    assert found.reason is Reason.FLEET_WIDE_DEMAND
    assert 12 <= cap(evidence) <= 16


def test_the_recorded_lengths_alone_ask_for_the_cap_of_a_wave() -> None:
    burn = look("metrics-idle.txt", "metrics-thrash.txt", window_seconds=120, gauges=GAUGES)
    readings = burn.pods["vllm-0"]
    counted = readings.histograms[Signal.OUTPUT_LENGTH].value
    long = max(counted.counts)
    only = Histogram(counted.bounds, tuple(c if c == long else 0.0 for c in counted.counts), long * 512)
    fixed = with_histogram(readings, Signal.OUTPUT_LENGTH, only)
    looked = replace(burn, pods={"vllm-0": fixed})

    assert cap_of(case(Evidence(looked, looked, TRIGGER))) == 9


def test_the_recorded_restart_with_a_lower_cap_is_recovery() -> None:
    burn = look("metrics-idle.txt", "metrics-thrash.txt", window_seconds=120, gauges=GAUGES)
    capped = {
        **GAUGES,
        Signal.RUNNING_MEAN: 7.9,
        Signal.RUNNING_MAX: 8.0,
        Signal.WAITING_MEAN: 40.6,
        Signal.KV_CACHE_USAGE_MEAN: 0.59,
    }
    after = look("metrics-idle.txt", "metrics-after-restart-seqs8.txt", window_seconds=120, gauges=capped)
    before = baseline_of(burn, 0)
    assert not isinstance(before, Inconclusive)

    verdict = judge_relief(VerdictInput(before, after, Objectives(), TRIGGER, 0))

    assert verdict.verdict is Verdict.RECOVERED
    assert before.inter_token_tail_seconds > 2.5


def test_the_recorded_idle_engine_is_healthy() -> None:
    idle = {**GAUGES, Signal.RUNNING_MEAN: 0.0, Signal.KV_CACHE_USAGE_MEAN: 0.0}
    looked = look("metrics-idle.txt", "metrics-idle.txt", window_seconds=120, gauges=idle)

    found = diagnose(RUNBOOKS["PreemptionThrash"], Evidence(looked, looked, TRIGGER))

    assert isinstance(found, Diagnosed)
    assert found.reason is Reason.HEALTHY


def test_long_outputs_of_many_lengths_are_no_wave() -> None:
    assert case(an_evidence(replace(THRASHING, outputs=spread(300)))).spread == 1.0


# How long requests were at most.
def test_the_longest_requests_of_the_whole_fleet_count() -> None:
    longer = replace(THRASHING, outputs={**THRASHING.outputs, 3000: 1})

    found = case(an_evidence(THRASHING, longer)).reach

    assert (found.prompt_tokens, found.output_tokens, found.limit_tokens) == (500, 5000, 2000)
    assert found.counted_tokens == LENGTH_BOUNDS[-1]


def test_a_replica_that_does_not_report_what_was_asked_for_leaves_it_unknown() -> None:
    silent = without(THRASHING.readings(), Signal.OUTPUT_LIMIT, UNSUPPORTED)
    empty = with_histogram(THRASHING.readings(), Signal.OUTPUT_LIMIT, a_histogram(LENGTH_BOUNDS, {}))

    assert case(an_evidence(THRASHING, silent)).reach.limit_tokens is None
    assert case(an_evidence(THRASHING, empty)).reach.limit_tokens is None


def test_the_spread_of_what_runs_is_read_off_the_gauge() -> None:
    """A deviation of 0.02 of 149 blocks, by 22.8 sequences: each has its root of 22.8th part."""
    found = case(an_evidence(*[THRASHING] * 3)).measured

    assert found == pytest.approx((149 * 0.99 / 22.8, 149 * 0.02 / 22.8**0.5))


def test_of_several_engines_each_has_its_share_of_pool_and_sequences() -> None:
    parallel = replace(THRASHING, engines=2, pool=Pool(298, 32), running_mean=45.6, running_max=64)

    found = case(an_evidence(parallel)).measured

    assert found == pytest.approx((149 * 0.99 / 22.8, 149 * 0.02 / 22.8**0.5))


def test_an_engine_that_does_not_report_its_spread_leaves_it_unknown() -> None:
    silent = without(THRASHING.readings(), Signal.KV_CACHE_USAGE_DEVIATION, UNSUPPORTED)

    assert case(an_evidence(THRASHING, silent)).measured is None


def doubt(*replicas: Replica | PodReadings, burn: Replica | PodReadings | None = None) -> Inconclusive | None:
    """Return the doubt about a fleet whose first replica is pressured."""
    evidence = an_evidence(burn or replicas[0], *replicas[1:], sizing=replicas)
    seen = seen_of(evidence, ["llm-0"])
    assert not isinstance(seen, Inconclusive)
    found = doubt_of(seen)
    return misfit_of(seen, case_of(seen)) if found is None else found


def test_a_thrashing_fleet_is_beyond_doubt() -> None:
    assert doubt(THRASHING, THRASHING, CALM) is None


@pytest.mark.parametrize(
    ("models", "doubtful"),
    [
        pytest.param([("a",), ("a",)], False, id="one model"),
        pytest.param([("a",), ("b",)], True, id="a model each"),
        pytest.param([("a", "b"), ("a", "b")], True, id="two models on each"),
        pytest.param([(), ("a",)], False, id="one does not report it"),
    ],
)
def test_several_models_are_named(models: list[tuple[str, ...]], *, doubtful: bool) -> None:
    found = doubt(*[replace(THRASHING, models=names) for names in models])

    assert (found is not None and found.reason is Reason.REPLICAS_DIFFER) is doubtful
    assert found is None or "a, b" in found.message


@pytest.mark.parametrize(
    ("pool", "doubtful"),
    [
        pytest.param(Pool(1000, 32), False, id="same"),
        pytest.param(Pool(951, 32), False, id="nearly the same"),
        pytest.param(Pool(950, 32), False, id="5 % less"),
        pytest.param(Pool(949, 32), True, id="over 5 % less"),
        pytest.param(Pool(1000, 16), True, id="other blocks"),
        pytest.param(Pool(1000, 32, "fp8"), True, id="other type"),
    ],
)
def test_replicas_with_other_pools_are_named(pool: Pool, *, doubtful: bool) -> None:
    large = replace(THRASHING, pool=Pool(1000, 32), running_mean=150, running_max=200)

    found = doubt(large, replace(large, pool=pool))

    assert (found is not None) is doubtful
    assert found is None or (found.reason is Reason.REPLICAS_DIFFER and "llm-1" in found.message)


def test_replicas_with_other_numbers_of_engines_differ() -> None:
    found = doubt(THRASHING, replace(THRASHING, engines=2))

    assert found.reason is Reason.REPLICAS_DIFFER


@pytest.mark.parametrize("signal", [Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH, Signal.E2E_SECONDS])
def test_replicas_that_count_in_other_buckets_differ(signal: Signal) -> None:
    other = Histogram((1.0, 7000.0), (0.0, 960.0, 0.0), 96000.0)

    found = doubt(THRASHING, with_histogram(THRASHING.readings(), signal, other))

    assert found.reason is Reason.REPLICAS_DIFFER


def test_pressured_replicas_that_count_gaps_in_other_buckets_differ() -> None:
    other = Histogram((1.0,), (100000.0, 400.0), 4000.0)
    evidence = an_evidence(
        THRASHING,
        with_histogram(THRASHING.readings(), Signal.INTER_TOKEN_SECONDS, other),
        sizing=[THRASHING, THRASHING],
    )
    seen = seen_of(evidence, ["llm-0", "llm-1"])
    assert not isinstance(seen, Inconclusive)

    found = doubt_of(seen)

    assert found.reason is Reason.REPLICAS_DIFFER


@pytest.mark.parametrize(
    ("each", "doubtful"),
    [(FEWEST_REQUESTS / 2 - 1, True), (FEWEST_REQUESTS / 2, False), (FEWEST_REQUESTS / 2 + 1, False)],
    ids=["below", "at", "above"],
)
def test_too_few_requests_are_counted_over_the_whole_fleet(each: float, *, doubtful: bool) -> None:
    few = replace(THRASHING, finished=each, preemptions=100, stalls=10)

    found = doubt(few, few, burn=THRASHING)

    assert (found is not None) is doubtful
    assert found is None or (found.reason is Reason.TOO_FEW_REQUESTS and "98 requests" in found.message)


@pytest.mark.parametrize("signal", [Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH])
def test_requests_without_a_length_do_not_count(signal: Signal) -> None:
    empty = a_histogram(LENGTH_BOUNDS, {0: 960})

    found = doubt(with_histogram(THRASHING.readings(), signal, empty), burn=THRASHING)

    assert found.message.startswith("0 requests")


def test_pressure_without_a_generated_token_shows_nothing() -> None:
    found = doubt(THRASHING, burn=with_number(THRASHING.readings(), Signal.GENERATED_TOKENS, 0))

    assert found.reason is Reason.TOO_FEW_REQUESTS
    assert "no token was generated" in found.message


def test_pressure_without_a_gap_between_tokens_shows_nothing() -> None:
    none = a_histogram((1.0,), {})

    found = doubt(THRASHING, burn=with_histogram(THRASHING.readings(), Signal.INTER_TOKEN_SECONDS, none))

    assert found.reason is Reason.TOO_FEW_REQUESTS


def test_an_empty_residence_histogram_shows_nothing() -> None:
    none = a_histogram((1.0,), {})

    found = doubt(with_histogram(THRASHING.readings(), Signal.E2E_SECONDS, none))

    assert found.reason is Reason.TOO_FEW_REQUESTS


@pytest.mark.parametrize(
    ("bounds", "residence", "doubtful"),
    [
        pytest.param((1799.0, 1800.0), 1799.5, False, id="shorter"),
        pytest.param((1800.0, 1800.0 / 0.99), 1801, False, id="as long, by the quantile"),
        pytest.param((1800.0, 1900.0), 1850, True, id="longer"),
        pytest.param((1800.0, 1801.0), 9999, True, id="above the top bucket"),
    ],
)
def test_a_window_shorter_than_the_residence_time_does_not_do(
    bounds: tuple[float, ...], residence: float, *, doubtful: bool
) -> None:
    if not doubtful and bounds[0] == 1800.0:
        stays = Histogram((1800.0,), (960.0, 0.0), 960 * 1000.0)
    else:
        stays = a_histogram(bounds, {residence: 960})

    found = doubt(with_histogram(THRASHING.readings(), Signal.E2E_SECONDS, stays))

    assert (found is not None) is doubtful
    assert found is None or found.reason is Reason.TOO_FEW_REQUESTS


def test_a_residence_above_the_top_bucket_is_said_so() -> None:
    stays = a_histogram((10.0,), {500: 960})

    found = doubt(with_histogram(THRASHING.readings(), Signal.E2E_SECONDS, stays))

    assert "up to which this engine counts" in found.message


@pytest.mark.parametrize(
    ("age", "doubtful"),
    [(14.9, True), (14.95, False), (15, False)],
    ids=["below the p99", "at the p99: 11 s lies in the bucket from 10 to 15 s", "above the p99"],
)
def test_a_replica_younger_than_the_residence_time_is_named(age: float, *, doubtful: bool) -> None:
    found = doubt(THRASHING, replace(THRASHING, started_at=NOW - timedelta(seconds=age)))

    assert (found is not None) is doubtful
    assert found is None or (
        found.reason is Reason.TOO_FEW_REQUESTS and "llm-1 started 15 s" in found.message
    )


def test_a_replica_that_does_not_report_its_start_counts_as_old_enough() -> None:
    silent = without(THRASHING.readings(), Signal.STARTED_SECONDS, UNSUPPORTED)

    assert doubt(silent) is None


def filled(ratio: float) -> tuple[PodReadings, float]:
    """Return a replica whose sequences take so many times the blocks that lengths predict, and those."""
    seen = seen_of(an_evidence(THRASHING), ["llm-0"])
    assert not isinstance(seen, Inconclusive)
    predicted = case_of(seen).sequence.mean_blocks
    running = THRASHING.pool.blocks * 0.5 / (predicted * ratio)
    readings = with_number(THRASHING.readings(), Signal.KV_CACHE_USAGE_MEAN, 0.5)
    return with_number(readings, Signal.RUNNING_MEAN, running), predicted


@pytest.mark.parametrize(
    ("ratio", "doubtful"), [(0.59, True), (0.61, False), (1.0, False), (1.29, False), (1.31, True)]
)
def test_a_pool_that_is_not_filled_by_the_lengths_is_no_ground_for_a_cap(
    ratio: float, *, doubtful: bool
) -> None:
    readings, _ = filled(ratio)

    found = doubt(readings)

    assert (found is not None) is doubtful
    assert found is None or found.reason is Reason.LENGTHS_MISFIT


@pytest.mark.parametrize(
    ("ratio", "budget", "doubtful"),
    [(0.3, None, False), (0.59, None, False), (0.7, None, False), (0.3, 10_000, True)],
)
def test_where_tokens_are_evicted_a_sequence_may_take_far_less_than_its_length(
    ratio: float, budget: int | None, *, doubtful: bool
) -> None:
    readings, predicted = filled(ratio)
    evicts = TokenEviction("TriAttention", Compacted(), budget)

    found = size_fleet(replace(an_evidence(readings), evicts=evicts), ["llm-0"])

    assert isinstance(found, Inconclusive) is doubtful
    if isinstance(found, Case):
        assert found.evicted_by == "TriAttention"
        assert found.spread == 1.0
        assert found.sequence.mean_blocks <= predicted


@pytest.mark.parametrize("ratio", [0.76, 0.9, 1.29])
def test_a_method_that_takes_nothing_from_sequences_counts_as_off(ratio: float) -> None:
    readings, _ = filled(ratio)
    evidence = an_evidence(readings)

    sized = size_fleet(replace(evidence, evicts=TokenEviction("TriAttention", Compacted(), 64)), ["llm-0"])

    assert sized == size_fleet(evidence, ["llm-0"])
    assert isinstance(sized, Case)


def windowed(ratio: float) -> PodReadings:
    """Return a replica like `filled` whose model has layers with a sliding window."""
    return replace(filled(ratio)[0], pool=Measured(replace(THRASHING.pool, has_window=True), NOW))


@pytest.mark.parametrize("ratio", [0.15, 0.5, 1.0, 4.0])
def test_where_layers_see_a_window_the_gauges_say_what_a_sequence_takes(ratio: float) -> None:
    by_lengths = size_fleet(an_evidence(filled(1.0)[0]), ["llm-0"])
    found = size_fleet(an_evidence(windowed(ratio)), ["llm-0"])

    assert isinstance(found, Case)
    assert isinstance(by_lengths, Case)
    share = ratio / WINDOW_READS
    assert found.sequence.mean_blocks == pytest.approx(share * by_lengths.sequence.mean_blocks)
    assert found.sequence.deviation_blocks == pytest.approx(share * by_lengths.sequence.deviation_blocks)
    assert found.block_tokens == pytest.approx(by_lengths.block_tokens / share), (
        "a sequence has the same tokens"
    )


@pytest.mark.parametrize(
    ("lately", "peer", "doubtful"),
    [(1.1, 1.0, False), (1.2, 1.0, True), (0.8, 1.0, True), (1.0, 1.2, True), (1.05, 0.95, False)],
)
def test_gauges_of_windows_count_only_where_all_replicas_and_windows_agree(
    lately: float, peer: float, *, doubtful: bool
) -> None:
    found = doubt(windowed(1.0), windowed(peer), burn=windowed(lately))

    assert (found is not None) is doubtful
    assert found is None or (found.reason is Reason.LENGTHS_MISFIT and "sliding window" in found.message)


@pytest.mark.parametrize("signal", [Signal.KV_CACHE_USAGE_MEAN, Signal.RUNNING_MEAN])
def test_where_layers_see_a_window_a_gauge_that_is_not_reported_makes_no_cap(signal: Signal) -> None:
    found = doubt(without(windowed(1.0), signal, UNSUPPORTED), burn=windowed(1.0))

    assert found is not None
    assert found.reason is Reason.LENGTHS_MISFIT
    assert "not known" in found.message


def test_the_first_doubt_is_reported() -> None:
    found = doubt(replace(THRASHING, models=("a", "b"), finished=10, preemptions=1, stalls=0))

    assert found.reason is Reason.REPLICAS_DIFFER


def test_shapes_of_many_lengths_are_beyond_doubt() -> None:
    assert doubt(replace(THRASHING, outputs=spread(190, variation=0.75))) is None
