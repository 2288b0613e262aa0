"""Budgets as a table: who has a place."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import permutations

import pytest

from kvmedic.model.reasons import Reason
from kvmedic.rollout.gates.runs_at_once import Budgets, Peer, find_full_budget
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
