"""Budgets and the storm breaker, as tables: who has a place, and when no run is opened anywhere."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import permutations

import pytest

from kvmedic.model.reasons import Reason, Trait, reasons_with
from kvmedic.rollout.gates.runs_at_once import (
    BadEnd,
    Breaker,
    Budgets,
    Peer,
    any_trip,
    find_full_budget,
    stormy,
    trip,
)
from run_builder import NOW

MINUTE = timedelta(minutes=1)
WIDE = Budgets(runs=100, runs_per_namespace=100, fleet_share=1.0)


def peer(uid: str, *, opened: int | None = None, begun: bool = False, namespace: str = "a") -> Peer:
    """Return a resource whose run was opened some minutes ago, if it has one."""
    opened_at = None if opened is None else NOW - opened * MINUTE
    return Peer(namespace, f"r{uid}", uid, f"t{uid}", opened_at, begun)


def idle(count: int, namespace: str = "idle") -> tuple[Peer, ...]:
    return tuple(peer(f"idle{i}", namespace=namespace) for i in range(count))


ASKS = peer("me")
ROWS = [
    ("nobody has a run", replace(WIDE, runs=1), (ASKS,), ""),
    (
        "one place, and another has it",
        replace(WIDE, runs=1),
        (ASKS, peer("1", opened=5)),
        "budgets.runs is 1",
    ),
    ("two places, one taken", replace(WIDE, runs=2), (ASKS, peer("1", opened=5)), ""),
    (
        "the namespace is full",
        replace(WIDE, runs_per_namespace=1),
        (ASKS, peer("1", opened=5)),
        "budgets.runsPerNamespace is 1",
    ),
    (
        "another namespace is full",
        replace(WIDE, runs_per_namespace=1),
        (ASKS, peer("1", opened=5, namespace="b")),
        "",
    ),
    (
        "runs of one other namespace, and no place is left",
        replace(WIDE, runs=2),
        (ASKS, *(peer(str(i), opened=5, namespace="b") for i in range(2))),
        "",
    ),
    (
        "runs of two other namespaces, and no place is left",
        replace(WIDE, runs=2),
        (ASKS, peer("1", opened=5, namespace="b"), peer("2", opened=4, namespace="c")),
        "budgets.runs is 2",
    ),
    (
        "a quarter of eight is two, and two have a run",
        replace(WIDE, fleet_share=0.25),
        (ASKS, peer("1", opened=5), peer("2", opened=4), *idle(5)),
        "2 of 8 targets",
    ),
    (
        "a quarter of eight, one has",
        replace(WIDE, fleet_share=0.25),
        (ASKS, peer("1", opened=5), *idle(6)),
        "",
    ),
    (
        "a share that is less than one leaves one place",
        replace(WIDE, fleet_share=0.01),
        (ASKS, *idle(3)),
        "",
    ),
    (
        "29 % of 100 are 29, whatever floating point says",
        replace(WIDE, fleet_share=0.29),
        (ASKS, *(peer(str(i), opened=1) for i in range(28)), *idle(71)),
        "",
    ),
    (
        "two resources on one target are one target",
        replace(WIDE, fleet_share=0.5),
        (ASKS, peer("1", opened=5), *(replace(p, target="same") for p in idle(4))),
        "1 of 3 targets",
    ),
]


@pytest.mark.parametrize(
    ("budgets", "peers", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_whether_one_run_more_has_a_place(budgets: Budgets, peers: tuple[Peer, ...], words: str) -> None:
    blocked = find_full_budget(budgets, peers, "me")

    assert (blocked is not None) is bool(words)
    if blocked is not None:
        assert blocked.reason is Reason.RUNS_AT_LIMIT
        assert words in blocked.message
        assert "/r1" in blocked.message, "who has the place is named"


def test_of_many_that_have_a_run_the_first_are_named() -> None:
    peers = (ASKS, *(peer(str(i), opened=9 - i) for i in range(5)))

    blocked = find_full_budget(replace(WIDE, runs=5), peers, "me")

    assert blocked.message.startswith(
        "a/r0, a/r1, a/r2 and 2 more have runs open; the operator's budgets.runs"
    )


BUSY = (peer("1", opened=1), peer("2", opened=3), peer("3", opened=2, begun=True), peer("4", opened=3))


@pytest.mark.parametrize("places", [1, 2, 3, 4])
@pytest.mark.parametrize("peers", list(permutations(BUSY)))
def test_of_runs_that_were_opened_exactly_as_many_keep_a_place_as_there_are(
    peers: tuple[Peer, ...], places: int
) -> None:
    budgets = replace(WIDE, runs=places)

    kept = {p.uid for p in peers if find_full_budget(budgets, peers, p.uid) is None}

    assert kept == set(("3", "2", "4", "1")[:places]), "begun first, then by age, then by uid"


def test_a_run_that_has_begun_is_never_asked_to_leave() -> None:
    peers = tuple(peer(str(i), opened=i, begun=True) for i in range(5))

    assert [find_full_budget(replace(WIDE, runs=1), peers, p.uid) for p in peers] == [None] * 5


def test_a_resource_that_the_list_does_not_know_gets_no_place_that_is_taken() -> None:
    assert find_full_budget(replace(WIDE, runs=1), (peer("1", opened=1),), "new") is not None


BREAKER = Breaker(runs=3, window=60 * MINUTE, lasts=30 * MINUTE)


def ended(*minutes_ago: float, of: str = "1", namespace: str = "a") -> Peer:
    ends = tuple(BadEnd(namespace, f"r{of}", Reason.CANARY_FAILED, NOW - m * MINUTE) for m in minutes_ago)
    return replace(peer(of, namespace=namespace), bad_ends=ends)


STORMS = [
    ("no bad end", (peer("1"),), None),
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
    found = trip(BREAKER, peers, None, NOW, "a")

    assert (None if found is None else found.at) == (None if at is None else NOW + at * MINUTE)
    assert found is None or found.until == found.at + BREAKER.lasts


@pytest.mark.parametrize(
    ("over", "stands"), [(0, False), (1, False), (1.1, False), (20, False), (20.1, True), (40, True)]
)
def test_bad_ends_before_the_administrators_word_do_not_count(over: float, stands: bool) -> None:
    found = trip(BREAKER, (ended(1, 5, 20),), NOW - over * MINUTE, NOW, "a")

    assert (found is not None) is stands


def test_it_says_who_why_until_when_and_what_to_type() -> None:
    found = trip(replace(BREAKER, runs=4), (ended(1, 5, 20, 21),), None, NOW, "a")

    blocked = stormy(found, "kubectl create it")
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
    found = trip(BREAKER, peers, None, NOW, "a")

    assert found is not None
    assert words in stormy(found, "kubectl create it").message


@pytest.mark.parametrize(
    ("peers", "tripped"),
    [((ended(1, 2),), False), ((ended(1, 2, 3, namespace="b"), peer("2")), True)],
    ids=["two in one namespace", "three in one namespace"],
)
def test_the_metric_reports_a_trip_of_any_namespace(peers: tuple[Peer, ...], tripped: bool) -> None:
    assert (any_trip(BREAKER, peers, None, NOW) is not None) is tripped


def test_a_rollback_that_a_person_asked_for_is_no_bad_end() -> None:
    assert Trait.BAD_END not in Reason.ROLLED_BACK_BY_HAND.traits


def test_what_healed_is_no_bad_end() -> None:
    assert not reasons_with(Trait.BAD_END) & reasons_with(Trait.HELPED)
