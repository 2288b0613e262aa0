"""Draining without a label: which labels to change, when not to, and every order of events in the model."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmedic.model.fleet import Fleet, OrphanDrain, freeze_fields
from kvmedic.model.reasons import Reason
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.moves import (
    AdoptPod,
    CordonOrphan,
    DeletePod,
    MarkStandIn,
    Pulse,
    ReleasePod,
    Settled,
    Wait,
)
from kvmedic.rollout.orphan_drain import (
    LONGEST_DRAIN,
    QUICK_START,
    RELEASE_LIMIT,
    OrphanInput,
    choose_keys,
    explain_blocked_drain,
    leaving_orphan_move,
    linger_of,
    next_release,
    orphan_move,
    resting_orphan_move,
)
from kvmedic.rollout.preconditions import find_rollout_blocker
from worlds.model_controller import OWN_FIELDS, START
from worlds.orphan_model import OrphanModel, OrphanWalk

APP, TIER, ZONE = {"app": "llm"}, {"tier": "chat"}, {"zone": "a"}
LABELS = {**APP, **TIER, **ZONE}


@pytest.mark.parametrize(
    ("selectors", "read", "keys"),
    [
        ([APP], (), ("app",)),
        ([APP, TIER], (), ("app", "tier")),
        ([APP, TIER, {**APP, **TIER}], (), ("app", "tier")),
        ([{**APP, **TIER}, {**TIER, **ZONE}], (), ("tier",)),
        ([{**APP, **TIER}], ("app",), ("tier",)),
        ([{**APP, **TIER}, {**APP, **ZONE}], ("app",), ("tier", "zone")),
        ([APP], ("app",), ("app",)),
        ([{}, {"app": "other"}], (), ()),
        ([APP, {"app": "other"}, {}], (), ("app",)),
    ],
    ids=[
        "one Service",
        "two Services of one label each",
        "three Services, two labels",
        "one label that all go by",
        "one that no policy goes by",
        "two that no policy goes by rather than one",
        "the only one, though a policy goes by it",
        "nothing selects the pod",
        "what selects others counts for nothing",
    ],
)
def test_the_labels_to_change(selectors, read, keys) -> None:
    def affected(after: dict[str, str]) -> int:
        return sum(after[key] != LABELS[key] for key in read)

    assert choose_keys(LABELS, selectors, affected) == keys


HEALTHY = OrphanModel.healthy(3).fleet()


def with_way(**changes: object) -> Fleet:
    way = replace(OrphanDrain(("app",)), **changes)
    return replace(HEALTHY, rotation=replace(HEALTHY.rotation, orphan=way))


def started_in(took: timedelta, **changes: object) -> Fleet:
    fleet = with_way(**changes)
    first, *others = (replace(pod, ready_at=pod.created_at + timedelta(hours=1)) for pod in fleet.pods)
    return replace(fleet, pods=(replace(first, ready_at=first.created_at + took), *others))


SHORT = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        (with_way(), ""),
        (with_way(blocked="NetworkPolicy n would"), "NetworkPolicy n would"),
        (started_in(QUICK_START - SHORT, has_device=False), "starts in 14 s"),
        (started_in(QUICK_START, has_device=False), ""),
        (started_in(QUICK_START - SHORT, has_device=True), ""),
    ],
    ids=["nothing in the way", "a policy", "quick without a device", "just slow enough", "it needs a device"],
)
def test_when_replicas_are_not_drained_as_orphans(fleet: Fleet, words: str) -> None:
    refused = find_rollout_blocker(fleet)

    assert words in explain_blocked_drain(fleet)
    assert (refused is None) is (words == "")
    assert refused is None or refused.reason is Reason.DRAIN_IMPOSSIBLE


def test_a_released_replica_lingers_past_the_time_out_by_little_where_it_may_be_cut() -> None:
    minutes = timedelta(minutes=10)

    assert linger_of(minutes, proceeds=True) < 2 * minutes
    assert linger_of(minutes, proceeds=False) > LONGEST_DRAIN


EVENTS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=120)
MANY = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def assert_whole(model: OrphanModel, revision: str) -> None:
    assert [pod.revision for pod in model.pods] == [revision] * model.replicas
    assert model.orphans == []
    assert model.fields == OWN_FIELDS
    assert model.lost_in_rotation == []


@given(replicas=st.integers(1, 5), events=EVENTS)
@MANY
def test_a_walk_reaches_every_replica_and_loses_nobody_who_takes_requests(replicas, events) -> None:
    model = OrphanModel.healthy(replicas)
    walk = OrphanWalk(model, "new")

    walk.run_to_end(events)

    assert isinstance(walk.ended, Settled)
    assert_whole(model, "new")
    assert model.fewest >= replicas


@given(replicas=st.integers(1, 4), first=EVENTS, second=EVENTS, back=st.booleans())
@MANY
def test_another_process_that_remembers_nothing_ends_it_either_way(replicas, first, second, back) -> None:
    model = OrphanModel.healthy(replicas)
    walk = OrphanWalk(model, "new")
    walk.take(first)
    next_life = walk.another_life("old" if back else "new")

    next_life.run_to_end(second)

    assert isinstance(next_life.ended, Settled)
    assert_whole(model, "old" if back else "new")
    assert model.fewest >= replicas


@given(replicas=st.integers(1, 4), events=EVENTS)
@MANY
def test_where_replicas_start_at_once_nobody_goes_but_one_that_was_just_made(replicas, events) -> None:
    """A stand-in may be Ready before its ReplicaSet lets it go; what served before is drained as ever."""
    model = OrphanModel.healthy(replicas)
    model.quick = True
    walk = OrphanWalk(model, "new")

    walk.take(events)
    for number in range(200):
        if walk.ended:
            break
        walk.round(number)

    assert set(model.lost_in_rotation) <= model.stand_ins
    assert model.fewest >= replicas


def released(revision: str = "new", **changes: object) -> Fleet:
    """Three replicas, one of them changed, whose first old one was released; its stand-in is being made."""
    model = OrphanModel.healthy(3)
    walk = OrphanWalk(model, "new")
    number = 0
    while not model.orphans:
        walk.round(number := number + 1)
    walk.happen(2, 0)
    fleet = model.fleet()
    unready = {pod.name: None if pod.name in model.stand_ins else pod.ready_at for pod in fleet.pods}
    pods = tuple(replace(pod, ready_at=unready[pod.name]) for pod in fleet.pods)
    return replace(fleet, pods=pods, revision=revision, **changes)


def with_pods(fleet: Fleet, **changes: object) -> Fleet:
    """The fleet with its stand-in changed: the one that is not Ready."""
    return replace(fleet, pods=tuple(replace(p, **changes) if not p.ready else p for p in fleet.pods))


def with_orphan(fleet: Fleet, **changes: object) -> Fleet:
    (orphan,) = fleet.orphans
    pod = {name: changes.pop(name) for name in ("cordoned", "in_rotation", "terminating") if name in changes}
    return replace(fleet, orphans=(replace(orphan, pod=replace(orphan.pod, **pod), **changes),))


def known(fleet: Fleet, **changes: object) -> OrphanInput:
    since = {each.pod.uid: RELEASED_AT for each in fleet.orphans}
    seen = dict.fromkeys(since, START)
    return replace(OrphanInput(since, {}, MINUTE, toward="new", needed=3, taken_at=seen), **changes)


MINUTE = timedelta(minutes=1)
RELEASED_AT = START
SEEN = with_pods(released(), is_stand_in=True)
OUT = with_orphan(SEEN, cordoned=True, in_rotation=False)
NAME = OUT.orphans[0].pod.name
LATE = START + RELEASE_LIMIT + SHORT
MOVES = {
    "its ReplicaSet has not seen it": (with_orphan(SEEN, is_owned=True), {}, START, Wait),
    "its ReplicaSet does not let go": (with_orphan(SEEN, is_owned=True), {}, LATE, AdoptPod),
    "nobody knows since when": (with_orphan(SEEN, is_owned=True), {"taken_at": {}}, LATE, Wait),
    "its stand-in is not marked": (released(), {}, START, MarkStandIn),
    "its stand-in is marked": (SEEN, {}, START, Pulse),
    "new pods count as Available": (SEEN, {"is_frozen": False}, START, Wait),
    "its own template is put back": (SEEN, {"toward": "old"}, START, AdoptPod),
    "the other template is about to be put back": (replace(SEEN, revision="old"), {}, START, type(None)),
    "more pods than one beyond the number": (replace(SEEN, replicas=2), {}, START, Wait),
    "its stand-in serves": (with_pods(SEEN, ready_at=START), {}, START, CordonOrphan),
    "a peer is out of rotation": (with_pods(SEEN, ready_at=START), {"needed": 4}, START, Wait),
    "the rollout is not frozen": (replace(SEEN, fields=OWN_FIELDS), {"needed": 2}, START, CordonOrphan),
    "it is busy": (OUT, {"drains": {NAME: Drain.BUSY}}, START, Wait),
    "nobody counts its requests": (OUT, {}, START, Wait),
    "it has no requests": (OUT, {"drains": {NAME: Drain.IDLE}}, START, DeletePod),
    "it may go with its requests": (OUT, {"drains": {NAME: Drain.TIMED_OUT}}, START, DeletePod),
    "it may not go with its requests": (OUT, {"drains": {NAME: Drain.HELD}}, START, Wait),
    "a Service still has it": (
        with_orphan(OUT, in_rotation=True),
        {"drains": {NAME: Drain.TIMED_OUT}},
        START,
        Wait,
    ),
    "the record names another": (OUT, {"draining_since": {}}, START, CordonOrphan),
    "a router was named only now": (
        with_orphan(OUT, led_by=("served-by",)),
        {"drains": {NAME: Drain.HELD}},
        START,
        CordonOrphan,
    ),
    "the kubelet ended it": (with_orphan(OUT, has_ended=True), {}, START, DeletePod),
    "it is being deleted": (with_orphan(OUT, terminating=True), {}, START, Wait),
}


@pytest.mark.parametrize(("fleet", "changes", "now", "move"), MOVES.values(), ids=MOVES)
def test_what_comes_next_for_a_released_replica(fleet, changes, now, move) -> None:
    assert isinstance(orphan_move(fleet, known(fleet, **changes), now), move)


def test_the_stand_in_goes_and_no_other_is_made_before_the_drain_is_over() -> None:
    """With a surge of one the next replica would wait for a device all the while."""
    move = orphan_move(SEEN, known(SEEN), START)

    stand_in = next(pod for pod in SEEN.pods if not pod.ready)
    assert move == Pulse((stand_in.name,), freeze_fields(surge=0, max_unavailable=1, paused=False))


@pytest.mark.parametrize(
    ("fleet", "move"),
    [
        (SEEN, AdoptPod),
        (with_pods(SEEN, ready_at=START), Wait),
        (with_orphan(SEEN, is_owned=True), Wait),
        (with_orphan(OUT, has_ended=True), DeletePod),
        (replace(SEEN, orphans=()), type(None)),
    ],
    ids=["its stand-in has not served", "it has", "not seen yet", "ended", "none"],
)
def test_a_fleet_that_comes_to_rest_takes_a_released_replica_back_where_it_can(fleet, move) -> None:
    assert isinstance(resting_orphan_move(fleet, known(fleet), START), move)


def test_what_is_left_behind_leaves_rotation_and_is_drained() -> None:
    idle = {NAME: Drain.IDLE}

    assert isinstance(leaving_orphan_move(SEEN, known(SEEN, needed=0), START), CordonOrphan)
    assert isinstance(leaving_orphan_move(OUT, known(OUT), START), Wait)
    assert isinstance(leaving_orphan_move(OUT, known(OUT, drains=idle), START), DeletePod)


def after_steps(steps: str) -> Fleet:
    """Nine old replicas after steps of which each made a new one (n) or left a stand-in behind (s)."""
    fleet = OrphanModel.healthy(9 - steps.count("n")).fleet()
    first, *plain = fleet.pods
    made = [
        replace(
            first,
            name=f"{step}{number}",
            revision="new" if step == "n" else "old",
            is_stand_in=step == "s",
            created_at=START + number * MINUTE,
        )
        for number, step in enumerate(steps, start=1)
    ]
    pods = (first, *plain[steps.count("s") :], *made)
    return replace(fleet, replicas=fleet.total_desired - 1, pods=pods)


@pytest.mark.parametrize(
    ("steps", "holds"),
    [
        ("ss", False),
        ("sss", True),
        ("nssnsnss", False),
        ("nnnnnsss", True),
        ("sssn", False),
        ("ssnnsn", False),
    ],
)
def test_after_three_steps_in_a_row_in_which_the_stand_in_served_a_person_is_asked(steps, holds) -> None:
    """A rollout that gets on all the same goes on, however many replicas were restarted twice."""
    fleet = after_steps(steps)

    found = next_release(fleet, fleet.list_pods("old"))

    if holds:
        assert isinstance(found, Wait)
        assert found.reason is Reason.DRAIN_IMPOSSIBLE
        assert all(f"s{number}" in found.message for number in range(len(steps) - 2, len(steps) + 1))
    else:
        assert isinstance(found, ReleasePod)
        assert found.pod.revision == "old"
