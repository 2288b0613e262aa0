"""Whether blocks come back on the fleet: what live traffic shows, and when it shows nothing."""

from __future__ import annotations

from dataclasses import replace
from math import nan, sqrt

import pytest

from builders import (
    LENGTH_BOUNDS,
    NO_SERIES,
    NOT_A_NUMBER,
    STALE,
    TRIGGER,
    UNSUPPORTED,
    Nothing,
    Replica,
    a_histogram,
    an_observation,
    with_histogram,
    with_number,
    without,
)
from kvmedic.model.compression import Compacted, Keep
from kvmedic.model.evidence import Inconclusive, Observation, PodReadings, Pool, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Judged, Verdict
from kvmedic.model.spec import Objectives
from kvmedic.verdict.baseline import FEWEST_FINISHED
from kvmedic.verdict.blocks_reclaimed import (
    DISTINGUISHABLE,
    FEWEST_MOMENTS,
    FEWEST_RUNNING,
    BlocksTaken,
    Expectation,
    measure_blocks,
)
from kvmedic.verdict.occupancy import SHARED_PREFIXES, Passes, blocks_per_running
from kvmedic.verdict.vetoes import VerdictInput, veto_blocks

POOL = Pool(2000, 16)
LONG = Replica(
    finished=200,
    preemptions=0,
    running_mean=10,
    running_max=12,
    waiting_mean=0,
    prompts={60: 1},
    outputs={2000: 1},
    stalls=0,
    e2e_seconds=100,
    pool=POOL,
)
PASSES = Passes(Keep(256), Compacted())
EXPECTATION = Expectation("Mine", PASSES, "Reclaims: 875 of 1000 blocks came back", 1000)
GOOD = Judged(Verdict.RECOVERED, Reason.RECOVERED, "no worse than before")
JUST = 1e-6


def look(*replicas: Replica | PodReadings, window_seconds: float = 300) -> Observation:
    return an_observation(*(replicas or (LONG, LONG)), window_seconds=window_seconds)


def taken(looked: Observation | None = None, passes: Passes = PASSES) -> BlocksTaken:
    found = measure_blocks(looked or look(), passes)
    assert isinstance(found, BlocksTaken), found
    return found


def find_doubt(looked: Observation, passes: Passes | None = PASSES) -> str:
    found = measure_blocks(looked, passes)
    assert isinstance(found, Inconclusive), found
    return found.message


EXPECTED = taken()


def at(blocks: float) -> Observation:
    """Return a fleet whose running sequences take so many blocks by the gauges."""
    replica = replace(LONG, usage_mean=blocks * LONG.running_mean / POOL.blocks)
    return look(replica, replica)


def judged(looked: Observation, expected: Expectation = EXPECTATION, verdict: Judged = GOOD) -> Judged:
    given = VerdictInput(None, looked, Objectives(), TRIGGER, expected=expected)
    return veto_blocks(verdict, given)


def test_expectations_are_of_the_lengths_and_of_what_is_kept() -> None:
    kept = (256 + 64) / 16

    assert EXPECTED.whole == pytest.approx((60 + 2000 / 2 + 7.5) / 16, rel=0.1)
    assert 0.7 * kept < EXPECTED.returning < kept
    assert taken(at(33.0)).measured == pytest.approx(33.0)


def test_the_fewer_passes_there_are_the_more_is_expected_between_them() -> None:
    seldom = taken(passes=replace(PASSES, every=512))

    assert seldom.returning > 1.2 * EXPECTED.returning
    assert seldom.whole == EXPECTED.whole


def test_a_share_is_kept_in_proportion_to_what_was_there() -> None:
    found = taken(passes=Passes(Keep(share=0.25), Compacted()))

    between = PASSES.every / 2 / 16
    assert found.returning == pytest.approx(0.25 * found.whole + between, rel=0.1)


@pytest.mark.parametrize(
    ("blocks", "verdict", "start"),
    [
        (EXPECTED.returning, Verdict.RECOVERED, "blocks come back on the fleet: "),
        (
            sqrt(EXPECTED.returning * EXPECTED.whole) * (1 - JUST),
            Verdict.RECOVERED,
            "blocks come back on the fleet: ",
        ),
        (
            sqrt(EXPECTED.returning * EXPECTED.whole) * (1 + JUST),
            Verdict.NOT_RECOVERED,
            "blocks do not come back on the fleet: ",
        ),
        (EXPECTED.whole, Verdict.NOT_RECOVERED, "blocks do not come back on the fleet: "),
        (1.1 * EXPECTED.whole, Verdict.NOT_RECOVERED, "blocks do not come back on the fleet: "),
    ],
    ids=["in proportion", "just nearer to it", "just nearer to nothing", "nothing", "more than all"],
)
def test_the_nearer_expectation_decides(blocks: float, verdict: Verdict, start: str) -> None:
    found = judged(at(blocks))

    assert (found.verdict, found.reason) == (verdict, Reason(verdict.value))
    assert found.message.startswith(f"{start}a running sequence takes {blocks:.1f} blocks")
    assert f"{EXPECTED.returning:.1f}" in found.message
    assert f"{EXPECTED.whole:.1f}" in found.message
    assert found.message.endswith("no worse than before")


def test_thrash_and_another_window_do_not_hide_that_nothing_comes_back() -> None:
    at_the_limit = BlocksTaken(measured=0.75 * 0.95 * 100, returning=DISTINGUISHABLE * 100, whole=100)

    assert not at_the_limit.are_returned


def test_an_improvement_stays_one_and_figures_stay_with_the_verdict() -> None:
    good = replace(GOOD, verdict=Verdict.IMPROVED, reason=Reason.IMPROVED)

    assert judged(at(EXPECTED.returning), verdict=good).verdict is Verdict.IMPROVED
    assert judged(at(EXPECTED.whole), verdict=good).verdict is Verdict.NOT_RECOVERED


def test_requests_must_be_long_enough_to_distinguish_the_two() -> None:
    shares = [DISTINGUISHABLE - PASSES.every / 2 / 16 / EXPECTED.whole + more for more in (-0.05, 0.05)]
    apart, alike = (Passes(Keep(share=share), Compacted()) for share in shares)

    assert taken(passes=apart).returning < DISTINGUISHABLE * EXPECTED.whole
    assert find_doubt(look(), alike).startswith("requests are too short: ")


def test_short_requests_leave_the_verdict_to_the_trial_pod() -> None:
    short = replace(LONG, outputs={200: 1}, usage_mean=0.99)

    found = judged(look(short, short))

    assert found.verdict is Verdict.RECOVERED
    assert found.message.startswith(
        "live traffic does not show whether blocks of Mine come back (requests are too short: "
    )
    assert (
        "the trial with this very pod template did: Reclaims: 875 of 1000 blocks came back; " in found.message
    )
    assert found.message.endswith("no worse than before")


NOTHING_BACK = replace(LONG, usage_mean=EXPECTED.whole * LONG.running_mean / POOL.blocks)
"""What it shows counts as a failure, unless something keeps it from being judged."""
MOST_HITS = SHARED_PREFIXES


def test_the_replica_of_these_cases_is_one_on_which_nothing_comes_back() -> None:
    assert judged(look(NOTHING_BACK)).verdict is Verdict.NOT_RECOVERED


def few_moments(running: float, samples: int) -> PodReadings:
    usage = EXPECTED.whole * running / POOL.blocks
    replica = replace(LONG, running_mean=running, usage_mean=usage)
    return replace(replica.readings(), gauge_samples=samples)


@pytest.mark.parametrize(
    ("looked", "why"),
    [
        (look(replace(NOTHING_BACK, finished=FEWEST_FINISHED)), ""),
        (look(replace(NOTHING_BACK, finished=FEWEST_FINISHED - 1)), "49 requests finished, 50 are needed"),
        (look(replace(NOTHING_BACK, prefix_hit_share=MOST_HITS)), ""),
        (look(replace(NOTHING_BACK, prefix_hit_share=MOST_HITS + 0.01)), "6% of the looked-up tokens"),
        (look(NOTHING_BACK, window_seconds=120), ""),
        (look(NOTHING_BACK, window_seconds=119), "longer than the window of 119 s"),
        (look(few_moments(FEWEST_RUNNING, 50)), ""),
        (look(few_moments(0.9, 1000)), "0.9 requests ran on average, 1 are needed"),
        (look(few_moments(FEWEST_MOMENTS / 10, 10)), ""),
        (look(few_moments(FEWEST_MOMENTS / 10, 9)), "gauges saw 45 running requests, 50 are needed"),
    ],
    ids=[
        "enough requests",
        "too few",
        "few hits",
        "prefixes are shared",
        "a window as long as requests",
        "a shorter one",
        "one runs",
        "none does most of the time",
        "enough moments",
        "too few moments",
    ],
)
def test_what_keeps_the_fleet_from_being_judged(looked: Observation, why: str) -> None:
    found = judged(looked)

    assert found.verdict is (Verdict.RECOVERED if why else Verdict.NOT_RECOVERED)
    assert why in found.message


@pytest.mark.parametrize("nothing", [NO_SERIES, NOT_A_NUMBER, STALE, UNSUPPORTED])
@pytest.mark.parametrize(
    "signal",
    [
        Signal.PROMPT_LENGTH,
        Signal.OUTPUT_LENGTH,
        Signal.E2E_SECONDS,
        Signal.KV_CACHE_USAGE_MEAN,
        Signal.RUNNING_MEAN,
        Signal.PREFIX_CACHE_QUERIES,
        Signal.PREFIX_CACHE_HITS,
    ],
)
def test_one_replica_without_a_signal_keeps_the_verdict(signal: Signal, nothing: Nothing) -> None:
    found = judged(look(NOTHING_BACK, without(NOTHING_BACK.readings(), signal, nothing)))

    assert found.verdict is Verdict.RECOVERED
    assert f"llm-1: {signal}: " in found.message


@pytest.mark.parametrize("signal", [Signal.KV_CACHE_USAGE_MEAN, Signal.RUNNING_MEAN])
def test_what_is_no_number_keeps_the_verdict(signal: Signal) -> None:
    found = judged(look(with_number(NOTHING_BACK.readings(), signal, nan)))

    assert found.verdict is Verdict.RECOVERED
    assert "live traffic does not show" in found.message


def test_a_pool_that_nobody_knows_keeps_the_verdict() -> None:
    found = judged(look(NOTHING_BACK, replace(NOTHING_BACK.readings(), pool=NO_SERIES)))

    assert found.verdict is Verdict.RECOVERED
    assert "llm-1: KV-cache pool: " in found.message


def test_replicas_that_count_differently_are_not_added_up() -> None:
    other = a_histogram(LENGTH_BOUNDS[:-1], {2000: 200})
    counting = with_histogram(NOTHING_BACK.readings(), Signal.OUTPUT_LENGTH, other)
    finer = replace(NOTHING_BACK, pool=Pool(2 * POOL.blocks, 8))

    assert "differently" in find_doubt(look(NOTHING_BACK, counting))
    assert "differently" in find_doubt(look(NOTHING_BACK, finer))


@pytest.mark.parametrize("signal", [Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH])
def test_lengths_of_nothing_but_zeros_are_no_lengths(signal: Signal) -> None:
    empty = replace(LONG.histograms()[signal], total=0.0)

    assert find_doubt(look(with_histogram(NOTHING_BACK.readings(), signal, empty))).startswith("0 requests")


def test_a_fleet_without_replicas_shows_nothing() -> None:
    assert "no replica" in find_doubt(an_observation())


def test_a_method_of_which_nothing_is_on_record_is_not_judged() -> None:
    found = judged(look(NOTHING_BACK), replace(EXPECTATION, passes=None, trial=""))

    assert found.verdict is Verdict.RECOVERED
    assert "what the method keeps is not known any more" in found.message
    assert "not on record any more" in found.message


@pytest.mark.parametrize(
    ("values", "length", "text"),
    [
        ({2000: 200}, 2000, "no answer of over 2000 tokens came in this window; "),
        ({2000: 200}, 1000, "; 200 answers of over 1000 tokens were completed; "),
        ({2000: 200}, 1500, "; about 100 answers of over 1500 tokens were completed; "),
        ({2000: 200, 9000: 3}, 5000, "; 3 answers of over 5000 tokens were completed; "),
        ({2000: 200, 9000: 3}, 6000, ""),
        ({2000: 200}, 6000, "no answer of over 6000 tokens came in this window; "),
    ],
)
def test_answers_as_long_as_the_one_that_was_tried_are_counted(
    values: dict[float, float], length: int, text: str
) -> None:
    counted = a_histogram(LENGTH_BOUNDS, values)
    looked = look(with_histogram(LONG.readings(), Signal.OUTPUT_LENGTH, counted))

    found = judged(looked, replace(EXPECTATION, length=length))

    assert text in found.message
    assert ("answer" in found.message) is bool(text)


def test_long_answers_are_counted_where_all_replicas_count_them() -> None:
    readings = without(LONG.readings(), Signal.OUTPUT_LENGTH, STALE)

    assert "answer" not in judged(look(LONG, readings)).message


def test_blocks_per_sequence_are_those_of_the_whole_fleet() -> None:
    small = replace(LONG, pool=Pool(1000, 16), usage_mean=0.5, running_mean=5)
    large = replace(LONG, pool=Pool(3000, 16), usage_mean=0.5, running_mean=10)

    assert taken(look(small, large)).measured == pytest.approx((500 + 1500) / 15)


def test_a_gauge_that_missed_the_running_set_does_not_divide_by_zero() -> None:
    assert blocks_per_running({}, {}) == 0.0
