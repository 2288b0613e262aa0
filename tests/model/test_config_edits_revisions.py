"""Which revision is new, which one ran before it, and how long a way back takes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from kvmedic.model.config_edits import list_revisions, newcomer, revision_of, start_seconds, to_start
from kvmedic.model.fleet import Fleet, ReplicaSet
from run_builder import NEW, NOW, OLD, a_fleet, a_pod

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def a_set(revision: str, number: int, age: timedelta | None, desired: int = 0) -> ReplicaSet:
    made = None if age is None else NOW - age
    return ReplicaSet(
        f"llm-{revision[:2]}", revision, number, desired, desired, 0, observed=True, created_at=made
    )


def fleet_of(*sets: ReplicaSet) -> Fleet:
    return a_fleet(revision=NEW, replica_sets=sets)


LAST, BEFORE, FIRST = a_set(NEW, 7, 10 * MINUTE, 3), a_set(OLD, 6, 5 * HOUR), a_set("cc", 2, 9 * HOUR)


def came(fleet: Fleet, at: datetime = NOW) -> tuple[int, int] | None:
    """Return the numbers of the revision that came and of the one before."""
    found = newcomer(fleet, HOUR, at)
    return None if found is None else (found.now.number, found.previous.number)


@pytest.mark.parametrize(
    ("fleet", "numbers"),
    [
        pytest.param(fleet_of(FIRST, BEFORE, LAST), (7, 6), id="one that came, and the one before"),
        pytest.param(
            fleet_of(LAST, FIRST), (7, 2), id="the one right before is gone, an older one ran before"
        ),
        pytest.param(fleet_of(LAST), None, id="none is left of those before"),
        pytest.param(fleet_of(BEFORE, a_set(NEW, 7, HOUR)), (7, 6), id="as old as counts"),
        pytest.param(fleet_of(BEFORE, a_set(NEW, 7, HOUR + MINUTE)), None, id="older than counts"),
        pytest.param(fleet_of(a_set(NEW, 1, MINUTE)), None, id="the first one has none before it"),
        pytest.param(fleet_of(BEFORE, a_set(NEW, 7, None)), None, id="nobody says when it came"),
        pytest.param(fleet_of(BEFORE), None, id="its ReplicaSet is not there yet"),
        pytest.param(
            fleet_of(a_set(NEW, 7, 20 * MINUTE), a_set(OLD, 6, 10 * MINUTE)),
            None,
            id="one that was brought back ran before the other",
        ),
        pytest.param(
            fleet_of(replace(a_set(NEW, 7, MINUTE), earlier_numbers=(5,)), a_set(OLD, 6, MINUTE)),
            None,
            id="brought back over one that was made in the same second",
        ),
        pytest.param(
            fleet_of(replace(a_set(NEW, 10, MINUTE), earlier_numbers=(8,)), a_set(OLD, 9, MINUTE)),
            None,
            id="the same, and numbers are compared as numbers",
        ),
        pytest.param(
            fleet_of(a_set(NEW, 10, MINUTE), a_set(OLD, 9, MINUTE)),
            (10, 9),
            id="the second of two that were made in the same second",
        ),
        pytest.param(
            fleet_of(a_set(NEW, 7, MINUTE), replace(a_set(OLD, 6, MINUTE), earlier_numbers=(2, 4))),
            (7, 6),
            id="one that was rolled out often before, all in the same second",
        ),
    ],
)
def test_the_latest_revision(fleet: Fleet, numbers: tuple[int, int] | None) -> None:
    assert came(fleet) == numbers


def test_a_revision_grows_old() -> None:
    fleet = fleet_of(BEFORE, LAST)

    assert came(fleet, NOW + 50 * MINUTE) == (7, 6)
    assert came(fleet, NOW + 51 * MINUTE) is None


def test_a_revision_is_named_by_what_keeps_it() -> None:
    found = revision_of(BEFORE)

    assert (found.number, found.replica_set, found.template) == (6, "llm-aa", OLD)


@pytest.mark.parametrize(
    ("seconds", "restarts", "expected"),
    [
        pytest.param((60, 90, 300), (0, 0, 0), 90, id="the middle one"),
        pytest.param((60, 90, 300), (0, 1, 1), 60, id="those that restarted became Ready anew"),
        pytest.param((60, 90, 300), (1, 1, 1), 90, id="all restarted: better than nothing"),
        pytest.param((), (), None, id="none is Ready"),
    ],
)
def test_a_start_is_measured(
    seconds: tuple[int, ...], restarts: tuple[int, ...], expected: float | None
) -> None:
    made = NOW - HOUR
    pods = tuple(
        a_pod(f"p{place}", created_at=made, ready_at=made + timedelta(seconds=took), restarts=often)
        for place, (took, often) in enumerate(zip(seconds, restarts, strict=True))
    )
    unready = a_pod("unready", ready_at=None)

    assert start_seconds(a_fleet(pods=(*pods, unready))) == expected


def test_ready_replicas_of_the_desired_revision_need_no_start() -> None:
    pods = (a_pod("a", NEW), a_pod("b", NEW), a_pod("c"), a_pod("d", ready_at=None))
    fleet = replace(a_fleet(revision=NEW), replicas=3, pods=pods)

    assert (to_start(fleet, OLD), to_start(fleet, "gone"), to_start(fleet, NEW)) == (2, 3, 1)


@pytest.mark.parametrize(
    ("fleet", "numbers"),
    [
        pytest.param(fleet_of(FIRST, LAST, BEFORE), ((7, NEW), (6, OLD), (2, "cc")), id="newest first"),
        pytest.param(
            fleet_of(replace(LAST, earlier_numbers=(3, 5)), BEFORE),
            ((7, NEW), (6, OLD), (5, NEW), (3, NEW)),
            id="rolled out again: once for each number",
        ),
        pytest.param(
            fleet_of(replace(LAST, number=5), BEFORE), ((5, NEW),), id="what came after is not of the past"
        ),
        pytest.param(fleet_of(BEFORE), (), id="the present one has no ReplicaSet yet"),
    ],
)
def test_revisions_as_they_were_rolled_out(fleet: Fleet, numbers: tuple[tuple[int, str], ...]) -> None:
    assert tuple((each.number, each.template) for each in list_revisions(fleet)) == numbers
