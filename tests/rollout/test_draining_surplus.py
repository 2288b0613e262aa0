"""Replicas beyond the number that stays: when they count as gone, and what is left to do about them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.model.fleet import Fleet
from kvmedic.model.reasons import Reason
from kvmedic.rollout.draining import (
    AWAIT_REMOVAL,
    is_followed,
    is_whole,
    newest_first,
    parting_move,
    surplus_of,
)
from kvmedic.rollout.moves import Settled, Uncordon, Wait
from run_builder import NEW, NOW, a_fleet, a_pod

FLEET = a_fleet()
CORDONED = a_pod("c", cordoned=True, in_rotation=False)


def with_desired(desired: int) -> Fleet:
    return replace(FLEET, replica_sets=(replace(FLEET.replica_sets[0], desired=desired),))


def more_pods(*, revision: str = FLEET.revision) -> Fleet:
    return replace(FLEET, pods=(*FLEET.pods, a_pod("more", revision)))


@pytest.mark.parametrize(
    ("fleet", "followed", "whole"),
    [
        pytest.param(FLEET, True, True, id="as many as asked for"),
        pytest.param(replace(FLEET, observed=False), False, False, id="the newest spec was not seen"),
        pytest.param(with_desired(FLEET.replicas - 1), True, False, id="fewer are desired"),
        pytest.param(with_desired(FLEET.replicas + 1), False, False, id="more are desired"),
        pytest.param(more_pods(), False, False, id="one is still there"),
        pytest.param(
            replace(FLEET, pods=(*FLEET.pods[1:], a_pod("unready", ready_at=None))),
            True,
            False,
            id="one is not Ready",
        ),
    ],
)
def test_a_number_is_followed_and_the_fleet_whole(fleet: Fleet, followed: bool, whole: bool) -> None:
    assert (is_followed(fleet, fleet.replicas), is_whole(fleet)) == (followed, whole)


def test_the_newest_come_first_and_by_name_where_they_are_as_old():
    old, b, a = (
        a_pod("old", created_at=NOW - timedelta(hours=1)),
        a_pod("b", created_at=NOW),
        a_pod("a", created_at=NOW),
    )

    assert sorted((old, b, a), key=newest_first) == [a, b, old]


WAITS = surplus_of(replace(FLEET, replicas=4), 3)
PARTINGS = [
    pytest.param(FLEET, None, Settled(), id="nothing of ours is there"),
    pytest.param(FLEET, WAITS, WAITS, id="ours wait for the end of the rollout"),
    pytest.param(more_pods(), None, AWAIT_REMOVAL, id="the controller has yet to take one"),
    pytest.param(more_pods(revision=NEW), None, Settled(), id="somebody's rollout has one more"),
    pytest.param(
        replace(FLEET, pods=(*FLEET.pods[:2], CORDONED)), WAITS, Uncordon(CORDONED), id="one carries marks"
    ),
]


@pytest.mark.parametrize(("fleet", "surplus", "move"), PARTINGS)
def test_what_is_left_behind(fleet: Fleet, surplus: Wait | None, move: object) -> None:
    assert parting_move(fleet, surplus) == move


@pytest.mark.parametrize(("asked", "how"), [(4, "one goes,"), (5, "they go one by one,")])
def test_how_many_go_is_said(asked: int, how: str) -> None:
    wait = surplus_of(replace(FLEET, replicas=asked), 3)

    assert wait.reason is Reason.TARGET_NOT_SETTLED
    assert wait.message.startswith(f"{asked} replicas are asked for, 3 were; {how} drained")
