"""New replicas beside old ones: what takes a change back, what lets it go on, what says neither."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from kvmedic.model.spec import Objectives
from kvmedic.verdict.side_by_side import (
    Arm,
    CanaryVerdict,
    Comparison,
    Counts,
    Limits,
    Routing,
    compare_arms,
)

MINUTE = Counts(
    replica_seconds=120,
    finished=100,
    tokens=20_000,
    first_tokens=100,
    in_time=100,
    waiting_seconds=24,
    in_flight_seconds=2400,
    gaps=19_900,
)
"""Two replicas over a minute, well."""
LATE = replace(MINUTE, in_time=60)


def arm(*blocks: Counts, waiting: float = 0) -> Arm:
    return Arm(2, blocks, (waiting,) * len(blocks))


def minutes(number: int, counts: Counts = MINUTE, waiting: float = 0) -> Arm:
    return arm(*[counts] * number, waiting=waiting)


def judge(new: Arm, old: Arm | None = None, limits: Limits | None = None) -> Comparison:
    return compare_arms(old or minutes(len(new.blocks)), new, limits or Limits())


def test_replicas_that_serve_alike_let_the_change_go_on_after_ten_minutes():
    assert judge(minutes(9)).verdict is CanaryVerdict.KEEP_WATCHING
    assert judge(minutes(9)).decided_by == "time"
    assert judge(minutes(10)).verdict is CanaryVerdict.GO_ON


@pytest.mark.parametrize(
    ("worse", "by"),
    [
        pytest.param(LATE, "served-in-time", id="four of ten first tokens are late"),
        pytest.param(replace(MINUTE, stalls=100), "served-in-time", id="each answer hangs once"),
        pytest.param(replace(MINUTE, aborted=40, finished=60), "served-in-time", id="clients leave"),
        pytest.param(
            replace(MINUTE, waiting_change=20, in_flight_change=20, waiting_seconds=3600, full_seconds=120),
            "queue",
            id="a fifth of the arrivals only joins the queue",
        ),
        pytest.param(
            replace(MINUTE, tokens=12_000, waiting_seconds=3600, full_seconds=120),
            "served-when-full",
            id="full replicas serve six tokens of ten",
        ),
    ],
)
def test_what_users_feel_takes_the_change_back(worse: Counts, by: str):
    found = judge(minutes(5, worse))

    assert (found.verdict, found.decided_by) == (CanaryVerdict.ROLL_BACK, by)


def test_whoever_still_waits_is_late_though_no_histogram_has_counted_it():
    stuck = replace(MINUTE, finished=30, first_tokens=30, in_time=30, in_flight_change=70, tokens=6000)

    found = judge(minutes(5, stuck, waiting=350), limits=Limits(Objectives(), Routing.EVEN))

    assert found.verdict is CanaryVerdict.ROLL_BACK
    assert found.new.in_time_share < 0.6


def test_fewer_tokens_and_first_tokens_after_ten_minutes_are_never_kept():
    before = minutes(10)
    after = replace(
        MINUTE, finished=29, tokens=5800, first_tokens=29, in_time=0, in_flight_change=71, waiting_change=71
    )

    assert judge(minutes(10, after, waiting=700), before).verdict is CanaryVerdict.ROLL_BACK


def test_one_bad_look_is_not_enough():
    sudden = replace(MINUTE, waiting_change=150, in_flight_change=150, waiting_seconds=9000)

    found = judge(arm(*[MINUTE] * 4, sudden))

    assert found.verdict is CanaryVerdict.KEEP_WATCHING
    assert "one look more" in found.message


def test_a_single_stretch_of_time_must_be_the_surer():
    slightly = replace(MINUTE, in_time=82)

    assert judge(minutes(2, slightly)).verdict is CanaryVerdict.ROLL_BACK
    assert judge(arm(slightly + slightly)).verdict is CanaryVerdict.ROLL_BACK
    assert judge(arm(replace(MINUTE, in_time=84))).verdict is CanaryVerdict.KEEP_WATCHING


def test_few_first_tokens_say_nothing():
    few = replace(MINUTE, finished=3, tokens=600, first_tokens=3, in_time=0, in_flight_change=97)

    found = judge(minutes(10, few, waiting=9))

    assert (found.verdict, found.decided_by) == (CanaryVerdict.KEEP_WATCHING, "first-tokens")


def test_replicas_that_keys_lead_requests_to_are_not_compared():
    crowded = replace(
        MINUTE, finished=200, first_tokens=200, in_time=100, tokens=40_000, in_flight_seconds=9600
    )

    found = judge(minutes(10, crowded))

    assert (found.routing, found.verdict) == (Routing.STICKY, CanaryVerdict.KEEP_WATCHING)
    assert "before and after" in found.message


def test_a_router_that_looks_at_the_load_shows_a_slow_replica_by_its_arrivals():
    spared = replace(MINUTE, finished=60, first_tokens=60, in_time=60, tokens=12_000)

    found = judge(minutes(10, spared))

    assert (found.routing, found.decided_by) == (Routing.LOAD_AWARE, "arrivals")
    assert found.verdict is CanaryVerdict.ROLL_BACK


@pytest.mark.parametrize(
    ("old_late", "new_late", "expected"),
    [
        pytest.param(0, 30, CanaryVerdict.ROLL_BACK, id="missed on the new replicas alone"),
        pytest.param(30, 60, CanaryVerdict.ROLL_BACK, id="missed on both, by twice as many"),
        pytest.param(30, 31, CanaryVerdict.GO_ON, id="missed on both alike"),
        pytest.param(60, 10, CanaryVerdict.GO_ON, id="met by more than before"),
    ],
)
def test_an_objective_that_the_old_replicas_meet_is_not_given_up(
    old_late: int, new_late: int, expected: CanaryVerdict
):
    promised = Limits(Objectives(e2e_p95_seconds=20.0))
    old, new = (replace(MINUTE, slow_requests=late) for late in (old_late, new_late))

    assert judge(minutes(10, new), minutes(10, old), promised).verdict is expected


def test_silence_without_arrivals_is_endless_and_not_an_error():
    stuck = Counts(replica_seconds=120, waiting_seconds=600)

    found = judge(minutes(3, stuck, waiting=5))

    assert found.new.silent_seconds == inf
    assert found.verdict is CanaryVerdict.KEEP_WATCHING
