"""What must confirm a setting beside the figures: hits for prefixes, smoother answers for host memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import (
    CALM,
    NO_SERIES,
    SOURCE_UNAVAILABLE,
    THRASHING,
    TRIGGER,
    Replica,
    an_observation,
    spread,
    with_number,
    without,
)
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Absence, Missing, Observation, PodReadings, Signal
from kvmedic.model.run import Baseline, Judged, Verdict
from kvmedic.model.spec import Objectives
from kvmedic.runbooks.preemption.levers import confirmation_of
from kvmedic.verdict.baseline import baseline_of
from kvmedic.verdict.comparison import Comparison
from kvmedic.verdict.goals import compare_for_relief, judge_relief
from kvmedic.verdict.vetoes import LEAST_HITS, VerdictInput

PREFIXES, HOST, SWAP = Knob.PREFIX_CACHING, Knob.KV_OFFLOADING_SIZE, Knob.SWAP_SPACE
SMOOTH = replace(THRASHING, stalls=0)
"""It preempts as before, and nobody hangs any more."""
NO_OBJECTIVES = Objectives()


def figures(replica: Replica) -> Baseline:
    found = baseline_of(an_observation(replica, replica), 0)
    assert isinstance(found, Baseline)
    return found


BEFORE = figures(THRASHING)


def looked(*replicas: Replica | PodReadings) -> Observation:
    return an_observation(*replicas)


def verdict(knob: Knob, seen: Observation, before: Baseline = BEFORE) -> Judged:
    return judge_relief(
        VerdictInput(before, seen, NO_OBJECTIVES, TRIGGER, confirmed_by=confirmation_of(knob))
    )


def sharing(share: float, replica: Replica = CALM) -> Observation:
    one = replace(replica, prefix_hit_share=share)
    return looked(one, one)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.4, Verdict.RECOVERED), (LEAST_HITS, Verdict.RECOVERED), (LEAST_HITS - 0.001, Verdict.NOT_RECOVERED)],
    ids=["two in five", "just enough", "just too few"],
)
def test_a_calm_fleet_without_hits_was_not_helped_by_shared_prefixes(share: float, expected: Verdict) -> None:
    found = verdict(PREFIXES, sharing(share))

    assert found.verdict is expected
    assert f"{share:.0%} of the looked-up tokens" in found.message


def test_hits_alone_are_no_recovery() -> None:
    assert verdict(PREFIXES, sharing(0.6, THRASHING)).verdict is Verdict.NOT_RECOVERED


def test_the_replicas_count_together() -> None:
    most, none = replace(CALM, prefix_hit_share=0.2), replace(CALM, prefix_hit_share=0.0)

    assert verdict(PREFIXES, looked(most, none)).verdict is Verdict.RECOVERED


def test_without_a_query_nothing_was_found() -> None:
    silent = with_number(CALM.readings(), Signal.PREFIX_CACHE_QUERIES, 0.0)

    assert verdict(PREFIXES, looked(silent, silent)).verdict is Verdict.NOT_RECOVERED


@pytest.mark.parametrize("why", [NO_SERIES, SOURCE_UNAVAILABLE])
def test_hits_that_nobody_can_tell_are_waited_for(why: Missing) -> None:
    blind = without(CALM.readings(), Signal.PREFIX_CACHE_HITS, why)

    assert verdict(PREFIXES, looked(CALM, blind)).verdict is Verdict.INCONCLUSIVE


def test_an_engine_that_counts_no_hits_is_judged_by_its_figures_and_says_so() -> None:
    old = CALM.readings()
    for signal in (Signal.PREFIX_CACHE_HITS, Signal.PREFIX_CACHE_QUERIES):
        old = without(old, signal, Missing(Absence.NOTHING_FOUND))

    found = verdict(PREFIXES, looked(old, old))

    assert found.verdict is Verdict.RECOVERED
    assert "counts no hits" in found.message


@pytest.mark.parametrize("knob", [HOST, SWAP])
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(SMOOTH, Verdict.IMPROVED, id="as many preemptions, no stalls"),
        pytest.param(CALM, Verdict.RECOVERED, id="calm and smooth"),
        pytest.param(THRASHING, Verdict.NOT_RECOVERED, id="nothing changed"),
        pytest.param(
            replace(THRASHING, preemptions=600), Verdict.NOT_RECOVERED, id="fewer preemptions, as many stalls"
        ),
        pytest.param(
            replace(SMOOTH, finished=700, in_flight_change=260),
            Verdict.NOT_RECOVERED,
            id="smooth, and much slower",
        ),
    ],
)
def test_host_memory_stays_for_smoother_answers_alone(knob: Knob, after: Replica, expected: Verdict) -> None:
    assert verdict(knob, looked(after, after)).verdict is expected


@pytest.mark.parametrize(
    ("stall_seconds", "factor", "expected"),
    [(6.0, 1.12, Verdict.IMPROVED), (6.0, 1.02, Verdict.NOT_RECOVERED), (9.0, 1.12, Verdict.NOT_RECOVERED)],
    ids=["shorter stalls, more served", "shorter stalls alone", "more served alone"],
)
def test_stalls_that_are_clearly_shorter_while_more_is_served_count(
    stall_seconds: float, factor: float, expected: Verdict
) -> None:
    before = figures(replace(THRASHING, stall_seconds=9.0))
    after = busier(factor, stall_seconds=stall_seconds)

    assert verdict(HOST, looked(after, after), before).verdict is expected


def test_where_hardly_anybody_hung_nothing_can_confirm_it() -> None:
    smooth = figures(SMOOTH)

    assert not Comparison(smooth, smooth, NO_OBJECTIVES, TRIGGER).is_smoother()
    assert verdict(HOST, looked(SMOOTH, SMOOTH), smooth).verdict is Verdict.NOT_RECOVERED


def test_a_breached_objective_is_no_smoother_answer() -> None:
    slow = replace(SMOOTH, e2e_seconds=28)

    assert Comparison(BEFORE, figures(slow), NO_OBJECTIVES, TRIGGER).is_smoother()
    assert not Comparison(BEFORE, figures(slow), Objectives(e2e_p95_seconds=15), TRIGGER).is_smoother()


@pytest.mark.parametrize("knob", [Knob.MAX_NUM_SEQS, Knob.WATERMARK, Knob.MAX_MODEL_LEN])
@pytest.mark.parametrize("after", [CALM, THRASHING, SMOOTH, replace(THRASHING, finished=1400)])
def test_other_settings_are_judged_by_figures_alone(knob: Knob, after: Replica) -> None:
    seen = looked(after, after)

    assert verdict(knob, seen) == compare_for_relief(
        Comparison(BEFORE, figures(after), NO_OBJECTIVES, TRIGGER)
    )


def busier(factor: float, **changes: float) -> Replica:
    """The same thrash on that many times the requests."""
    more = {name: factor * getattr(THRASHING, name) for name in ("finished", "preemptions", "stalls")}
    return replace(THRASHING, **{**more, **changes})


ROOM = [Knob.GPU_MEMORY_UTILIZATION, Knob.CHUNKED_PREFILL]


@pytest.mark.parametrize("knob", ROOM)
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(busier(1.12), Verdict.IMPROVED, id="clearly more"),
        pytest.param(busier(1.08), Verdict.NOT_RECOVERED, id="no more than windows differ by"),
        pytest.param(busier(1.6), Verdict.IMPROVED, id="so much more that the load looks like another"),
        pytest.param(busier(1.6, stall_seconds=8.0), Verdict.INCONCLUSIVE, id="more, and rougher"),
        pytest.param(CALM, Verdict.RECOVERED, id="calm"),
    ],
)
def test_room_in_the_cache_is_kept_where_more_is_served(
    knob: Knob, after: Replica, expected: Verdict
) -> None:
    assert verdict(knob, looked(after, after)).verdict is expected


def test_more_of_other_requests_is_not_more() -> None:
    other = busier(1.6, outputs=spread(100))  # type: ignore[arg-type]

    assert verdict(Knob.GPU_MEMORY_UTILIZATION, looked(other, other)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("share", "expected"), [(0.3, Verdict.IMPROVED), (0.0, Verdict.NOT_RECOVERED)])
def test_shared_prefixes_that_serve_more_stay_if_hits_say_so(share: float, expected: Verdict) -> None:
    assert verdict(PREFIXES, sharing(share, busier(1.6))).verdict is expected


@pytest.mark.parametrize("knob", [HOST, SWAP])
def test_host_memory_is_not_kept_for_serving_more_alone(knob: Knob) -> None:
    after = busier(1.12)

    assert verdict(knob, looked(after, after)).verdict is Verdict.NOT_RECOVERED


@pytest.mark.parametrize("knob", [PREFIXES, HOST])
def test_an_inconclusive_window_stays_one(knob: Knob) -> None:
    few = replace(SMOOTH, finished=10, preemptions=1)

    assert verdict(knob, looked(few, few)).verdict is Verdict.INCONCLUSIVE
