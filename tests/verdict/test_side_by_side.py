"""New replicas beside old ones: what takes a change back, what lets it go on, what says neither."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from math import inf, isnan
from random import Random

import pytest

from kvmedic.model.spec import Objectives
from kvmedic.verdict.counts import Arm, CapChange, Counts, Limits, Routing
from kvmedic.verdict.figure_intervals import MOMENTS, find_intervals
from kvmedic.verdict.side_by_side import (
    DECIDE_SECONDS,
    CanaryVerdict,
    Comparison,
    compare_arms,
    settling_time,
)
from run_builder import BASELINE

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
FULL = replace(MINUTE, waiting_seconds=3600, in_flight_seconds=6000, full_seconds=120)
QUEUES = replace(FULL, waiting_change=20, in_flight_change=20)
LIMIT = round(DECIDE_SECONDS / 60)
"""Looks until a change without a gain is taken back."""


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
            QUEUES,
            "queue",
            id="a fifth of the arrivals only joins the queue",
        ),
        pytest.param(
            replace(FULL, tokens=12_000),
            "served-when-full",
            id="full replicas serve six tokens of ten",
        ),
    ],
)
def test_what_users_feel_takes_the_change_back(worse: Counts, by: str):
    found = judge(minutes(5, worse))

    assert (found.verdict, found.decided_by) == (CanaryVerdict.ROLL_BACK, by)


def test_a_request_that_waits_is_late_though_no_histogram_has_counted_it():
    stuck = replace(MINUTE, finished=30, first_tokens=30, in_time=30, in_flight_change=70, tokens=6000)

    found = judge(minutes(5, stuck, waiting=350), limits=Limits(Objectives(), Routing.EVEN))

    assert found.verdict is CanaryVerdict.ROLL_BACK
    assert found.new.in_time_share < 0.6


@pytest.mark.parametrize("promised", [Objectives(), Objectives(time_to_first_token_p95_seconds=5.0)])
def test_fewer_tokens_and_first_tokens_after_ten_minutes_are_never_kept(promised: Objectives):
    """Tokens x 0.29 and first tokens after 600 s in place of 1 s, at equal arrivals."""
    before = minutes(10)
    after = replace(
        MINUTE, finished=29, tokens=5800, first_tokens=29, in_time=0, in_flight_change=71, waiting_change=71
    )

    found = judge(minutes(10, after, waiting=700), before, Limits(promised))

    assert found.verdict is CanaryVerdict.ROLL_BACK


def test_figures_of_a_side_say_what_it_serves_in_time_and_each_check_is_listed():
    found = judge(minutes(10, LATE))

    assert found.old.served_in_time_per_second == pytest.approx(20_000 / 120, rel=0.01)
    assert found.new.served_in_time_per_second == pytest.approx(0.6 * 20_000 / 120, rel=0.01)
    assert found.new.served_in_time_per_second / found.new.in_time_share == pytest.approx(20_000 / 120)
    assert {each.name for each in found.checks if each.fails} == {"served-in-time"}


def test_what_is_still_missing_is_said_in_numbers():
    few = replace(MINUTE, finished=10, first_tokens=10, in_time=10)

    assert "30 first tokens on the new replicas of 40" in judge(minutes(3, few)).message
    assert "100 first tokens on the new replicas of 150" in judge(minutes(10, few), minutes(10, few)).message


def test_one_bad_look_is_not_enough():
    sudden = replace(QUEUES, waiting_change=100, in_flight_change=100)

    found = judge(arm(*[MINUTE] * 4, sudden))

    assert found.verdict is CanaryVerdict.KEEP_WATCHING
    assert "one look more" in found.message


def test_a_single_stretch_of_time_must_be_the_surer():
    slightly = replace(MINUTE, in_time=82)

    assert judge(minutes(2, slightly)).verdict is CanaryVerdict.ROLL_BACK
    assert judge(arm(slightly + slightly)).verdict is CanaryVerdict.ROLL_BACK
    assert judge(arm(replace(MINUTE, in_time=84))).verdict is CanaryVerdict.KEEP_WATCHING


NOBODY = replace(MINUTE, finished=0, tokens=0, first_tokens=0, in_time=0, waiting_seconds=0, gaps=0)
"""Two replicas that nobody asks."""
STARVED = replace(NOBODY, in_flight_change=100, waiting_change=100)


@pytest.mark.parametrize(
    ("old", "new", "verdict", "says"),
    [
        pytest.param(
            minutes(10),
            minutes(
                10,
                replace(MINUTE, finished=3, tokens=600, first_tokens=3, in_time=0, in_flight_change=97),
                waiting=9,
            ),
            CanaryVerdict.KEEP_WATCHING,
            "30 first tokens on the new",
            id="few on the new side, and few wait",
        ),
        pytest.param(
            minutes(10),
            minutes(10, NOBODY),
            CanaryVerdict.KEEP_WATCHING,
            "0 first tokens on the new replicas of 40",
            id="nobody asks the new side",
        ),
        pytest.param(
            minutes(10),
            minutes(10, replace(NOBODY, in_flight_change=3, waiting_change=3), waiting=30),
            CanaryVerdict.KEEP_WATCHING,
            "0 first tokens and 28 requests aborted or overdue on the new replicas of 40",
            id="hardly anybody is starved",
        ),
        pytest.param(
            minutes(10),
            arm(STARVED, STARVED, waiting=35),
            CanaryVerdict.KEEP_WATCHING,
            "0 first tokens on the new replicas of 40",
            id="a canary that has just started: its requests wait for less than the limit",
        ),
        pytest.param(
            minutes(10),
            minutes(10, STARVED, waiting=1000),
            CanaryVerdict.ROLL_BACK,
            "x 0.00 of the old",
            id="the new side answers nobody",
        ),
        pytest.param(
            minutes(10),
            minutes(10, replace(MINUTE, finished=3, tokens=600, first_tokens=3, in_time=3, aborted=97)),
            CanaryVerdict.ROLL_BACK,
            "of the old",
            id="nearly everybody leaves the new side",
        ),
        pytest.param(
            minutes(10, NOBODY),
            minutes(10, replace(MINUTE, in_time=0)),
            CanaryVerdict.KEEP_WATCHING,
            "0 first tokens on the old replicas of 40",
            id="nobody asks the old side",
        ),
        pytest.param(
            minutes(10, replace(NOBODY, finished=0.3, first_tokens=0.3, in_time=0.3)),
            minutes(10, replace(MINUTE, in_time=0)),
            CanaryVerdict.KEEP_WATCHING,
            "3 first tokens on the old replicas of 40",
            id="few on the old side",
        ),
        pytest.param(
            minutes(10, STARVED, waiting=1000),
            minutes(10),
            CanaryVerdict.GO_ON,
            "no test fails",
            id="the old side answers nobody, the new one all",
        ),
    ],
)
def test_each_side_counts_by_the_requests_that_are_due(old: Arm, new: Arm, verdict: CanaryVerdict, says: str):
    found = compare_arms(
        replace(old, blocks=old.blocks[: len(new.blocks)], waiting=old.waiting[: len(new.blocks)]),
        new,
        Limits(),
    )

    assert found.verdict is verdict
    assert says in found.message


def test_a_side_that_nobody_asks_has_no_share():
    found = judge(minutes(10), minutes(10, NOBODY))

    assert isnan(found.old.in_time_share)
    assert isnan(found.old.served_in_time_per_second)
    assert found.new.in_time_share > 0.99


def scaled(counts: Counts, share: float) -> Counts:
    """Return what a share of the requests makes of a minute."""
    arrive = {
        name: share * getattr(counts, name) for name in ("finished", "first_tokens", "in_time", "tokens")
    }
    return replace(counts, **arrive)


MORE = replace(scaled(MINUTE, 2), in_flight_seconds=9600)
FEWER = replace(scaled(MINUTE, 0.5), in_flight_seconds=600)


@pytest.mark.parametrize(
    ("new", "verdict", "by"),
    [
        pytest.param(MORE, CanaryVerdict.GO_ON, "served-in-time", id="more requests, served as well"),
        pytest.param(
            replace(MORE, in_time=100),
            CanaryVerdict.KEEP_WATCHING,
            "routing",
            id="more requests, served late",
        ),
        pytest.param(
            replace(MORE, in_time=100, tokens=10_000, waiting_seconds=6000, full_seconds=120),
            CanaryVerdict.ROLL_BACK,
            "served-when-full",
            id="more requests, served late, and fewer tokens",
        ),
        pytest.param(
            replace(MORE, in_time=20, waiting_seconds=6000, full_seconds=120),
            CanaryVerdict.KEEP_WATCHING,
            "routing",
            id="more requests, served late by a full cache, and as many tokens",
        ),
        pytest.param(FEWER, CanaryVerdict.KEEP_WATCHING, "routing", id="fewer requests, served as well"),
        pytest.param(
            replace(FEWER, in_time=30),
            CanaryVerdict.ROLL_BACK,
            "served-in-time",
            id="fewer requests, served late",
        ),
    ],
)
def test_keys_make_replicas_comparable_in_one_direction_alone(new: Counts, verdict: CanaryVerdict, by: str):
    found = judge(minutes(10, new))

    assert (found.routing, found.verdict, found.decided_by) == (Routing.STICKY, verdict, by)
    assert by != "routing" or "before and after" in found.message


@pytest.mark.parametrize(
    "held", [pytest.param(2400, id="as many in flight"), pytest.param(3600, id="more in flight")]
)
def test_a_router_that_looks_at_the_load_shows_a_slow_replica_by_its_arrivals(held: float):
    spared = replace(scaled(MINUTE, 0.6), in_flight_seconds=held)

    found = judge(minutes(10, spared))

    assert (found.routing, found.decided_by) == (Routing.LOAD_AWARE, "arrivals")
    assert found.verdict is CanaryVerdict.ROLL_BACK


def test_where_old_replicas_are_full_too_fewer_arrivals_are_no_fault():
    stalling = replace(FULL, stalls=80)

    found = judge(minutes(10, scaled(FULL, 0.7)), minutes(10, stalling))

    assert (found.routing, found.verdict) == (Routing.LOAD_AWARE, CanaryVerdict.GO_ON)


def test_a_new_replica_may_fill_up_until_it_holds_as_many_as_the_others():
    behind = replace(FULL, waiting_seconds=30_000, in_flight_seconds=32_400)

    assert judge(minutes(5, QUEUES)).decided_by == "queue"
    assert judge(minutes(5, QUEUES), minutes(5, behind)).verdict is CanaryVerdict.KEEP_WATCHING


HASTY = replace(FULL, waiting_seconds=1200)


@pytest.mark.parametrize(
    ("old", "new", "cap", "lacks"),
    [
        pytest.param(MINUTE, MINUTE, None, "", id="another change is tried by any request"),
        pytest.param(MINUTE, MINUTE, CapChange.LOWERED, "untested", id="a lower cap that never binds"),
        pytest.param(FULL, FULL, CapChange.LOWERED, "", id="a lower cap that binds"),
        pytest.param(MINUTE, MINUTE, CapChange.RAISED, "untested", id="a raise of a cap that never bound"),
        pytest.param(FULL, FULL, CapChange.RAISED, "silent-seconds", id="a raise, and users wait as long"),
        pytest.param(FULL, HASTY, CapChange.RAISED, "", id="a raise, and users wait less"),
    ],
)
def test_a_cap_goes_on_once_it_was_tried_and_a_raise_once_users_wait_less(
    old: Counts, new: Counts, cap: CapChange | None, lacks: str
):
    found = judge(minutes(10, new), minutes(10, old), Limits(cap=cap))

    assert found.verdict is (CanaryVerdict.KEEP_WATCHING if lacks else CanaryVerdict.GO_ON)
    assert not lacks or found.decided_by == lacks


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(MINUTE, MINUTE, CanaryVerdict.ROLL_BACK, id="no gain"),
        pytest.param(replace(MINUTE, in_time=90), MINUTE, CanaryVerdict.GO_ON, id="more are served in time"),
        pytest.param(replace(MINUTE, waiting_seconds=300), MINUTE, CanaryVerdict.GO_ON, id="users wait less"),
        pytest.param(
            scaled(MINUTE, 0.04),
            scaled(MINUTE, 0.04),
            CanaryVerdict.KEEP_WATCHING,
            id="hardly a request came",
        ),
    ],
)
def test_what_was_not_tried_in_time_stays_only_where_users_gain(
    old: Counts, new: Counts, expected: CanaryVerdict
):
    limits = Limits(cap=CapChange.LOWERED, must_gain=True)

    assert (
        judge(minutes(LIMIT - 1, new), minutes(LIMIT - 1, old), limits).verdict is CanaryVerdict.KEEP_WATCHING
    )
    assert judge(minutes(LIMIT, new), minutes(LIMIT, old), limits).verdict is expected
    if expected is CanaryVerdict.ROLL_BACK:
        stays = judge(minutes(LIMIT, new), minutes(LIMIT, old), replace(limits, must_gain=False))
        assert stays.verdict is CanaryVerdict.GO_ON
        canary = judge(minutes(LIMIT, new), minutes(LIMIT, old), replace(limits, must_gain=None))
        assert canary.verdict is CanaryVerdict.KEEP_WATCHING


def test_more_tokens_of_full_replicas_are_a_gain_though_a_router_keeps_the_queues_alike():
    old, limits = replace(FULL, in_time=0), Limits(cap=CapChange.RAISED, must_gain=True)

    assert judge(minutes(LIMIT, old), minutes(LIMIT, old), limits).verdict is CanaryVerdict.ROLL_BACK
    more = judge(minutes(LIMIT, replace(old, tokens=28_000)), minutes(LIMIT, old), limits)
    assert more.verdict is CanaryVerdict.GO_ON


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


def a_random_minute(random: Random) -> Counts:
    """A replica over a minute: 20 requests of 100 tokens, a tenth late, a stall for every fifth."""
    came = sum(random.random() < 0.02 for _ in range(1000))
    return Counts(
        replica_seconds=60,
        finished=came,
        first_tokens=came,
        tokens=sum(random.expovariate(0.01) for _ in range(came)),
        in_time=sum(random.random() < 0.9 for _ in range(came)),
        stalls=sum(random.random() < 0.2 for _ in range(came)),
        waiting_seconds=60 * random.expovariate(1.0),
        in_flight_seconds=60 * (5 + random.expovariate(1.0)),
    )


@pytest.mark.parametrize("stretches", [2, 8])
def test_intervals_hold_what_is_true_nineteen_times_in_twenty(stretches: int):
    """True are the figures that the minutes are drawn from."""
    random = Random(7)
    true = {"arrivals_per_second": 1 / 3, "tokens_per_second": 100 / 3, "in_time_share": 0.9 * 0.8187}
    true |= {"stalls_per_request": 0.2, "served_in_time_per_second": 100 / 3 * 0.9 * 0.8187}
    if stretches >= MOMENTS - 1:
        true |= {"waiting": 1.0, "in_flight": 6.0}
    held = dict.fromkeys(true, 0)
    for _ in range(50):
        sides = [
            Arm(1, tuple(a_random_minute(random) for _ in range(stretches)), (0.0,) * stretches) for _ in "ab"
        ]
        for found in find_intervals(*sides, Limits()):
            for name, value in true.items():
                range_ = found[name]
                assert range_ is not None
                held[name] += range_.low <= value <= range_.high

    assert {name: count for name, count in held.items() if not 83 <= count <= 100} == {}
    assert sum(held.values()) >= 0.93 * 100 * len(held)


def test_where_nothing_was_served_no_interval_says_how_surely():
    found = find_intervals(minutes(6), minutes(6, replace(MINUTE, tokens=0, finished=0)), Limits())

    nothing = {name for name, interval in found[1].items() if interval is None}
    assert nothing == {
        "tokens_per_second",
        "served_in_time_per_second",
        "stalls_per_request",
        "queued_share",
    } | {"silent_seconds"}


def test_an_interval_is_around_its_figure_and_missing_where_moments_are_too_few():
    for number in (1, MOMENTS - 2, MOMENTS - 1, 20):
        old, new = minutes(number), minutes(number, replace(FULL, stalls=3))
        found = find_intervals(old, new, Limits())

        for side, ranges in zip((judge(new, old).old, judge(new, old).new), found, strict=True):
            for name, value in asdict(side).items():
                interval = ranges.get(name)
                assert interval is None or interval.low <= value <= interval.high, name
            assert (ranges["waiting"] is None) is (number < MOMENTS - 1)


@pytest.mark.parametrize(
    ("waiting", "running", "minutes"),
    [(0.0, None, 2), (3.0, 17.0, 2), (360.0, 360.0, 3), (14_400.0, 0.0, 10)],
    ids=["nothing is known", "requests stay for 3 s", "they stay for 120 s", "they queue for 40 min"],
)
def test_a_new_replica_is_looked_at_once_it_has_requests_like_the_old_ones(
    waiting: float, running: float | None, minutes: int
) -> None:
    before = replace(BASELINE, waiting_mean=waiting, running_mean=running, requests_per_second=6.0)

    assert settling_time(before) == timedelta(minutes=minutes)
    assert settling_time(None) == timedelta(minutes=2)
