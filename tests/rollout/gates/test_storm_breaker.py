"""The storm breaker as a table: when no run is opened, and where."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.model.reasons import Reason, Trait, reasons_with
from kvmedic.rollout.gates.runs_at_once import BadEnd, Peer
from kvmedic.rollout.gates.storm_breaker import Breaker, find_any_trip, find_trip, report_trip
from run_builder import NOW

MINUTE = timedelta(minutes=1)
BREAKER = Breaker(runs=3, window=60 * MINUTE, lasts=30 * MINUTE)


def ended(*minutes_ago: float, of: str = "1", namespace: str = "a") -> Peer:
    ends = tuple(BadEnd(namespace, f"r{of}", Reason.CANARY_FAILED, NOW - m * MINUTE) for m in minutes_ago)
    return Peer(namespace, f"r{of}", of, f"t{of}", bad_ends=ends)


STORMS = [
    ("no bad end", (ended(),), None),
    ("one fewer than it takes", (ended(1, 2),), None),
    ("as many, on three resources", (ended(1), ended(20, of="2"), ended(61, of="3")), -1),
    ("as many, too far apart", (ended(1), ended(20, of="2"), ended(61.1, of="3")), None),
    ("as many, a moment before it is over", (ended(29.9, 40, 50),), -29.9),
    ("as many, when it is over", (ended(30, 40, 50),), None),
    ("more: the last three count", (ended(5, 10, 15, 90),), -5),
    ("an older group counts while its time is not over", (ended(25, 26, 27),), -25),
    ("those of another namespace", (ended(1, 2, 3, namespace="b"),), None),
    ("those of another and one of its own", (ended(1, 2, namespace="b"), ended(4)), -1),
    ("those of two others", (ended(1, 2, namespace="b"), ended(4, of="2", namespace="c")), -1),
    (
        "many of one other, then one of its own too long ago",
        (ended(1, 2, 3, namespace="b"), ended(63.1)),
        None,
    ),
    ("many of one other, and one between", (ended(1, 2, 3, 5, namespace="b"), ended(4)), -1),
    ("a later single end does not end an older trip", (ended(1), ended(25, 80, 84.9, of="2")), -25),
]


@pytest.mark.parametrize(("peers", "at"), [row[1:] for row in STORMS], ids=[row[0] for row in STORMS])
def test_when_the_breaker_has_tripped(peers: tuple[Peer, ...], at: float | None) -> None:
    found = find_trip(BREAKER, peers, None, NOW, "a")

    assert (None if found is None else found.at) == (None if at is None else NOW + at * MINUTE)
    assert found is None or found.until == found.at + BREAKER.lasts


@pytest.mark.parametrize(
    ("over", "stands"), [(0, False), (1, False), (1.1, False), (20, False), (20.1, True), (40, True)]
)
def test_bad_ends_before_the_administrators_word_do_not_count(over: float, stands: bool) -> None:
    found = find_trip(BREAKER, (ended(1, 5, 20),), NOW - over * MINUTE, NOW, "a")

    assert (found is not None) is stands


def test_it_says_who_why_until_when_and_what_to_type() -> None:
    found = find_trip(replace(BREAKER, runs=4), (ended(1, 5, 20, 21),), None, NOW, "a")

    blocked = report_trip(found, "kubectl create it")
    assert blocked.reason is Reason.STORM_BREAKER_TRIPPED
    assert "4 runs ended badly within 20 min (a/r1 CanaryFailed, " in blocked.message
    assert " and 1 before)" in blocked.message
    assert f"before {found.until:%Y-%m-%d %H:%M:%SZ}" in blocked.message
    assert blocked.message.endswith("kubectl create it")


@pytest.mark.parametrize(
    ("peers", "words"),
    [
        ((ended(1, 2, 3),), "no run of namespace a is opened"),
        ((ended(1, 2), ended(3, of="2", namespace="b")), "no run is opened"),
    ],
    ids=["of one namespace", "of all"],
)
def test_it_says_whose_runs_wait(peers: tuple[Peer, ...], words: str) -> None:
    found = find_trip(BREAKER, peers, None, NOW, "a")

    assert found is not None
    assert words in report_trip(found, "kubectl create it").message


@pytest.mark.parametrize(
    ("peers", "tripped"),
    [((ended(1, 2),), False), ((ended(1, 2, 3, namespace="b"), ended(of="2")), True)],
    ids=["two in one namespace", "three in one namespace"],
)
def test_the_metric_reports_a_trip_of_any_namespace(peers: tuple[Peer, ...], tripped: bool) -> None:
    assert (find_any_trip(BREAKER, peers, None, NOW) is not None) is tripped


def test_a_rollback_that_a_person_asked_for_is_no_bad_end() -> None:
    assert Trait.BAD_END not in Reason.ROLLED_BACK_BY_HAND.traits


def test_what_healed_is_no_bad_end() -> None:
    assert not reasons_with(Trait.BAD_END) & reasons_with(Trait.HELPED)
