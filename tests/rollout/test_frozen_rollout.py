"""The frozen rollout against a model of the controllers, in every order of events that luck finds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet
from kvmedic.model.reasons import Reason
from kvmedic.model.run import DrainingPod
from kvmedic.rollout.draining import Drain, choose_pod
from kvmedic.rollout.drift import releasing_move
from kvmedic.rollout.frozen_rollout import next_template_move as next_move
from kvmedic.rollout.frozen_rollout import rest_template as resting_move
from kvmedic.rollout.moves import Failed, Move, Pause, Pulse, Release, Settled, Wait
from run_builder import NOW, a_pod
from worlds.model_controller import OWN_FIELDS, REFUSED, START, Model, ModelPod
from worlds.model_walk import ACTS, LIMIT, Walker


def broken(model: Model, numbers: Collection[int]) -> list[ModelPod]:
    """Let pods of a fleet be down for good, by number."""
    down = [pod for number, pod in enumerate(model.pods) if number in numbers]
    for pod in down:
        pod.broken, pod.ready, pod.in_rotation, pod.busy = True, False, False, False
    return down


def seen_by_its_controller(model: Model) -> None:
    """Let the ReplicaSet count who is Ready."""
    model.sets["old"].reported_available = sum(pod.ready for pod in model.pods)


def assert_taken_back(walker: Walker) -> None:
    """A way back is at its end: all is as it was, and nobody was lost who took requests."""
    model = walker.model
    assert isinstance(walker.ended, Settled)
    assert [p.revision for p in model.pods] == ["old"] * model.replicas
    assert model.fields == OWN_FIELDS
    assert model.lost_in_rotation == []


EVENTS = st.lists(st.tuples(st.integers(0, ACTS), st.integers(0, 7)), max_size=120)
MANY = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(replicas=st.integers(1, 5), events=EVENTS)
@MANY
def test_a_walk_reaches_every_replica_and_loses_nobody_who_takes_requests(replicas, events):
    model = Model.healthy(replicas)
    walker = Walker(model, "new")

    walker.run_to_end(events)

    assert isinstance(walker.ended, Settled)
    assert [p.revision for p in model.pods] == ["new"] * replicas
    assert model.fields == OWN_FIELDS
    assert model.lost_in_rotation == []
    assert model.fewest >= replicas


@pytest.mark.parametrize("mends", [True, False], ids=["mending", "beside a replica that is not Ready"])
@given(replicas=st.integers(1, 5), ill=st.sets(st.integers(0, 4), min_size=1), events=EVENTS)
@MANY
def test_a_walk_reaches_a_fleet_of_which_replicas_cannot_stay_up(mends, replicas, ill, events):
    model = Model.healthy(replicas)
    down = broken(model, ill)
    walker = Walker(model, "new", mends=mends, down=len(down))
    if not mends and len(down) == replicas:
        walker.tick()
        assert isinstance(walker.ended, Blocked), (
            "where nobody serves, a change for those who do says nothing"
        )
        return

    seen_by_its_controller(model)
    walker.run_to_end(events)

    assert isinstance(walker.ended, Settled)
    assert [p.revision for p in model.pods] == ["new"] * replicas
    assert model.fields == OWN_FIELDS
    assert model.lost_in_rotation == []
    assert model.fewest >= replicas - len(down)


@pytest.mark.parametrize("mends", [True, False], ids=["mending", "beside a replica that is not Ready"])
@given(replicas=st.integers(1, 5), ill=st.sets(st.integers(0, 4), min_size=1), events=EVENTS, after=EVENTS)
@MANY
def test_a_walk_that_does_not_mend_is_taken_back_though_replicas_are_still_down(
    mends, replicas, ill, events, after
):
    model = Model.healthy(replicas)
    model.broken_revisions = {"new"}
    down = broken(model, ill)
    if not mends and len(down) == replicas:
        return
    seen_by_its_controller(model)
    forth = Walker(model, "new", mends=mends, down=len(down))
    forth.run_to_end(events)
    back = forth.back()

    back.run_to_end(after)

    assert isinstance(forth.ended, Failed)
    assert_taken_back(back)
    assert model.fewest >= replicas - len(down)


def down_as_a_whole(replicas: int) -> Model:
    """A fleet of which no replica comes up, nor would one that is made anew."""
    model = Model.healthy(replicas)
    model.broken_revisions = {"old"}
    broken(model, range(replicas))
    model.fewest = 0
    return model


@given(replicas=st.integers(1, 5), ill=st.sets(st.integers(0, 5)), events=EVENTS)
@MANY
def test_a_fleet_that_is_down_as_a_whole_takes_a_change_as_far_as_replicas_come_up_with_it(
    replicas, ill, events
):
    model = down_as_a_whole(replicas)
    model.broken_numbers = {replicas + 1 + number for number in ill}
    walker = Walker(model, "new", mends=True, served=0)

    walker.run_to_end(events)

    first_fails = 0 in ill
    assert isinstance(walker.ended, Failed if first_fails else Settled)
    assert model.lost_in_rotation == []
    if not first_fails:
        assert [p.revision for p in model.pods] == ["new"] * replicas
        assert model.fields == OWN_FIELDS


MADE_LATE = [(0, 0)] * 3 + [(6, 0)] * 4
"""A replica is asked for and not made for longer than one that goes again is waited for."""
SEEN_LATE = [*[(0, 0)] * 3, (3, 0), (4, 1), (0, 0), (0, 0), (2, 0)]
"""The way back begins before the deployment controller has seen the newest spec."""


@given(
    replicas=st.integers(1, 5),
    ill=st.sets(st.integers(0, 5)),
    events=EVENTS,
    turn=st.integers(0, 120),
    after=EVENTS,
)
@example(replicas=1, ill=set(), events=MADE_LATE, turn=7, after=[(6, 0)] * 8)
@example(replicas=1, ill=set(), events=SEEN_LATE, turn=8, after=[(2, 0)])
@MANY
def test_a_change_of_a_fleet_that_was_down_is_taken_back_from_anywhere_though_nobody_serves_then(
    replicas, ill, events, turn, after
):
    model = down_as_a_whole(replicas)
    model.broken_numbers = {replicas + 1 + number for number in ill}
    forth = Walker(model, "new", mends=True, served=0)
    forth.take(events[:turn])
    back = forth.back()
    back.draining_pods = forth.draining_pods
    if model.revision == "old":
        return

    back.run_to_end(after)

    assert_taken_back(back)
    assert not any(p.cordoned for p in model.pods)


ITS_REPLICA_SET_IS_SLOW = [*[(0, 0)] * 3, (2, 0), (5, 0), (6, 0), (0, 0), (0, 0), (2, 0)]
"""A replica is let go, and its ReplicaSet does not end it yet."""


@given(replicas=st.integers(1, 5), events=EVENTS, after=EVENTS)
@example(replicas=2, events=[], after=ITS_REPLICA_SET_IS_SLOW)
@MANY
def test_a_change_that_all_replicas_run_is_taken_back_though_nobody_serves_then(replicas, events, after):
    model = down_as_a_whole(replicas)
    forth = Walker(model, "new", mends=True, served=0)
    forth.run_to_end(events)
    back = forth.back()

    back.run_to_end(after)

    assert isinstance(forth.ended, Settled)
    assert isinstance(back.ended, Settled)
    assert [p.revision for p in model.pods] == ["old"] * replicas
    assert model.lost_in_rotation == []


STUBBORN = st.sets(st.integers(0, 9), min_size=1)
"""Pods whose requests do not end, by the order in which they are made."""


@pytest.mark.parametrize("front", [False, True], ids=["they hang", "a Service does not let go of it"])
@given(replicas=st.integers(1, 5), stubborn=STUBBORN, events=EVENTS, turn=st.none() | st.integers(0, 120))
@MANY
def test_no_replica_whose_requests_do_not_end_is_let_go_either_way(front, replicas, stubborn, events, turn):
    model = Model.healthy(replicas)
    model.front = front
    model.stubborn_numbers = {number + 1 for number in stubborn}
    for pod in model.pods:
        pod.stubborn = pod.number in model.stubborn_numbers
    walker = Walker(model, "new")
    if turn is not None:
        walker.take(events[:turn])
        walker = walker.back()
    if turn is not None and model.revision == "old":
        return

    walker.run_to_end(events)

    left = [pod for pod in model.pods if pod.revision != walker.toward]
    assert model.lost_in_rotation == []
    assert model.undrained == []
    assert model.fewest >= replicas
    assert not any(pod.cordoned for pod in model.pods)
    if walker.stands:
        assert left
        assert all(pod.stubborn and pod.name in walker.stands.message for pod in left)
        for pod in model.pods:
            pod.stubborn = False
        model.stubborn_numbers, walker.held, walker.stands = set(), frozenset(), None
        walker.run_to_end([])
    assert isinstance(walker.ended, Settled)
    assert [p.revision for p in model.pods] == [walker.toward] * replicas


BETWEEN_THE_CONTROLLERS = [(0, 0)] * 3 + [(3, 0), (4, 2), (5, 0), (5, 0), (6, 0), (0, 0), (0, 0)]
"""The Deployment's controller has acted on a pulse, the ReplicaSet's has not yet."""
MADE_TOO_LATE = [(0, 0)] * 3 + [(6, 0)] * 11
"""The ReplicaSet's controller has not made a pod within the limit after which it counts as not made."""


@given(replicas=st.integers(1, 5), events=EVENTS, turn=st.integers(0, 80), after=EVENTS)
@example(replicas=2, events=BETWEEN_THE_CONTROLLERS, turn=10, after=[(0, 0), (5, 0)])
@example(replicas=1, events=MADE_TOO_LATE, turn=14, after=[(0, 0), (3, 0), (4, 1), (5, 0)])
@MANY
def test_a_walk_turned_round_anywhere_brings_the_old_setting_back_and_loses_nobody(
    replicas, events, turn, after
):
    model = Model.healthy(replicas)
    walker = Walker(model, "new")
    walker.take(events[:turn])
    back = walker.back()
    if model.revision == "old":
        return

    back.run_to_end(after)

    assert_taken_back(back)
    assert model.fewest >= replicas


@given(replicas=st.integers(1, 5), after=EVENTS)
@MANY
def test_a_walk_turned_round_with_every_replica_new_gets_a_spare_of_the_old_setting_first(replicas, after):
    model = Model.healthy(replicas)
    walker = Walker(model, "new")
    round_ = 0
    while any(p.revision == "old" for p in model.pods):
        walker.round(round_)
        round_ += 1
    back = walker.back()

    back.run_to_end(after)

    assert_taken_back(back)
    assert model.fewest >= replicas


@given(replicas=st.integers(1, 5), events=EVENTS)
@MANY
def test_a_canary_that_crashes_is_undone_and_no_old_replica_is_touched(replicas, events):
    model = Model.healthy(replicas)
    model.broken_revisions.add("new")
    before = [p.name for p in model.pods]
    forward = Walker(model, "new")

    forward.run_to_end(events)
    back = forward.back()
    back.run_to_end([])

    assert isinstance(forward.ended, Failed)
    assert isinstance(back.ended, Settled)
    assert [p.name for p in model.pods] == before
    assert model.lost_in_rotation == []
    assert model.fields == OWN_FIELDS


@given(replicas=st.integers(1, 5), events=EVENTS, stop=st.integers(0, 100))
@MANY
def test_a_fleet_at_rest_stands_still_with_every_replica_in_rotation(replicas, events, stop):
    model = Model.healthy(replicas)
    walker = Walker(model, "new")
    walker.take(events[:stop])

    for round_ in range(100):
        for act in range(ACTS):
            walker.happen(act, round_)
        move = resting_move(model.fleet(), model.now, walker.assigned_at)
        if not isinstance(move, Wait):
            model.apply(move)

    assert isinstance(move, Wait)
    assert not any(p.cordoned for p in model.pods)
    assert all(p.in_rotation for p in model.pods)
    assert len(model.pods) >= replicas
    assert model.lost_in_rotation == []


FULL_ROUNDS = [(act, round_) for round_ in range(20) for act in range(ACTS)]
"""Everything happens in turn: enough for a walk to replace a replica or two."""


@given(
    replicas=st.integers(2, 5),
    events=EVENTS,
    fails=st.integers(0, 140),
    which=st.integers(0, 4),
    after=EVENTS,
)
@MANY
def test_a_peer_that_fails_on_the_way_is_drained_like_any_other(replicas, events, fails, which, after):
    model = Model.healthy(replicas)
    walker = Walker(model, "new")
    walker.take((events + FULL_ROUNDS)[:fails])
    if not walker.break_peer(which):
        return

    walker.run_to_end(after)

    assert isinstance(walker.ended, Settled)
    assert [p.revision for p in model.pods] == ["new"] * replicas
    assert model.fields == OWN_FIELDS
    assert model.undrained == []


def test_of_two_that_are_not_ready_the_one_that_failed_goes_before_the_one_that_starts() -> None:
    failed = a_pod("z", ready_at=None, unready_at=NOW - timedelta(seconds=30))
    starting = a_pod("b", ready_at=None, created_at=NOW - timedelta(seconds=3), unready_at=None)
    ready = a_pod("a")

    assert choose_pod((ready, starting, failed), None) is failed
    assert choose_pod((ready, replace(failed, name="y", uid="y"), failed), None).name == "y"
    assert choose_pod((a_pod("d"), ready), None) is ready


@pytest.mark.parametrize(("since", "move"), [(19, Wait), (21, Pulse)])
def test_one_that_failed_is_let_go_once_no_peer_just_starts(since: int, move: type) -> None:
    model = Model.healthy(2)
    fleet = canary_of(model)
    failed, starting = (pod for pod in fleet.pods if pod.revision == "old")
    down = {"ready_at": None, "in_rotation": False}
    failed = replace(failed, cordoned=True, unready_at=LATER - timedelta(minutes=5), **down)
    starting = replace(starting, unready_at=LATER - timedelta(seconds=since), **down)
    new = tuple(pod for pod in fleet.pods if pod.revision == "new")
    walker = Walker(model, "new")
    order = replace(
        walker.order(),
        draining_pods=(DrainingPod(failed.name, failed.uid, LATER),),
        drains={failed.uid: Drain.IDLE},
    )

    found = next_move(replace(fleet, pods=(failed, starting, *new)), order, LATER)

    assert isinstance(found, move), found


@pytest.mark.parametrize("replicas", [1, 3])
def test_releasing_leaves_the_template_and_gives_the_fields_back(replicas):
    model = Model.healthy(replicas)
    walker = Walker(model, "new")
    walker.tick()

    move = releasing_move(model.fleet(), OWN_FIELDS)

    assert move == Release(OWN_FIELDS)
    assert model.fleet().revision == "new"


def test_a_pulse_that_is_not_spent_in_time_is_taken_back():
    model = Model.healthy(3)
    walker = Walker(model, "new")
    walker.tick()

    waited = next_move(model.fleet(), walker.order(), START + timedelta(seconds=5))
    given_up = next_move(model.fleet(), walker.order(), START + timedelta(seconds=11))

    assert isinstance(waited, Wait)
    assert isinstance(given_up, Pause)


LATER = START + timedelta(hours=2)


def canary_of(model: Model, **changes: object) -> Fleet:
    """A paused fleet with one new replica, which is changed as given."""
    walker = Walker(model, "new")
    for round_ in range(6):
        for act in range(ACTS):
            walker.happen(act, round_)
        if not model.fields.paused:
            walker.tick()
    fleet = model.fleet()
    pods = tuple(replace(pod, **changes) if pod.revision == "new" else pod for pod in fleet.pods)
    return replace(fleet, pods=pods)


STARTING = {"ready_at": None, "unready_at": LATER - LIMIT}
TOO_LATE = {"ready_at": None, "unready_at": LATER - LIMIT - timedelta(seconds=1)}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (TOO_LATE, Reason.CANARY_FAILED),
        (STARTING, None),
        ({"ready_at": None, "unready_at": None}, Reason.CANARY_FAILED),
        ({"restarts": 1}, None),
        ({"restarts": 2}, Reason.CANARY_FAILED),
        ({"waiting_reason": "CrashLoopBackOff"}, Reason.CANARY_FAILED),
        ({"waiting_reason": "ContainerCreating"}, None),
        ({"waiting_reason": "ImagePullBackOff", **STARTING}, None),
        ({"waiting_reason": "ImagePullBackOff", **TOO_LATE}, Reason.IMAGE_UNAVAILABLE),
        ({"waiting_reason": "CreateContainerConfigError", **STARTING}, None),
        ({"waiting_reason": "InvalidImageName", **STARTING}, Reason.CANARY_FAILED),
        ({"unschedulable": True, "ready_at": None, "unready_at": None}, Reason.SPARE_UNSCHEDULABLE),
    ],
    ids=[
        "not Ready for too long",
        "not Ready for just as long as allowed",
        "never Ready",
        "restarted once",
        "restarted twice",
        "crashes",
        "is being made",
        "its image cannot be pulled yet",
        "its image could not be pulled in time",
        "a Secret of it may yet be made",
        "its image has no name",
        "no node",
    ],
)
def test_when_a_new_replica_has_failed(changes: dict[str, object], reason: Reason | None) -> None:
    model = Model.healthy(2)
    fleet = canary_of(model, **changes)

    move = next_move(fleet, Walker(model, "new").order(), LATER)

    assert (move.reason if isinstance(move, Failed) else None) == reason


def walked(model: Model, swapped: int) -> Fleet:
    """A paused fleet with so many of its replicas swapped, and every one of them Ready."""
    walker = Walker(model, "new")
    for number in range(400):
        walker.round(number)
        fleet = model.fleet()
        if fleet.fields.paused and fleet.count_desired("old") == model.replicas - swapped:
            new = fleet.list_pods("new")
            if len(new) == swapped + 1 and all(pod.ready for pod in new):
                return fleet
    raise AssertionError("no replica was swapped")


@pytest.mark.parametrize(
    ("swapped", "ill", "changes", "expected"),
    [
        (0, 1, TOO_LATE, Failed),
        (1, 1, TOO_LATE, Wait),
        (1, 1, {"unschedulable": True, **TOO_LATE}, Wait),
        (1, 1, {"waiting_reason": "ErrImagePull", **TOO_LATE}, Wait),
        (1, 2, {"waiting_reason": "ErrImagePull", **TOO_LATE}, Wait),
        (1, 1, {"waiting_reason": "CrashLoopBackOff", **STARTING}, Wait),
        (1, 2, {"waiting_reason": "CrashLoopBackOff", **STARTING}, Failed),
        (1, 2, {"restarts": 2, **STARTING}, Failed),
        (0, 1, {"restarts": 2}, Failed),
    ],
    ids=[
        "the canary, late",
        "the second, late",
        "the second, without a node",
        "the second, without its image",
        "two, without their image",
        "the second crashes",
        "two crash",
        "two restarted and are down",
        "the canary restarted twice",
    ],
)
def test_one_unlucky_replica_does_not_undo_the_others(
    swapped: int, ill: int, changes: dict[str, object], expected: type[Move]
) -> None:
    model = Model.healthy(4)
    fleet = walked(model, swapped)
    unlucky = {pod.name for pod in fleet.list_pods("new")[:ill]}
    pods = tuple(replace(pod, **changes) if pod.name in unlucky else pod for pod in fleet.pods)

    move = next_move(replace(fleet, pods=pods), Walker(model, "new").order(), LATER)

    assert isinstance(move, expected)
    if isinstance(move, Wait):
        assert move.reason is Reason.REPLICA_NOT_STARTING
        assert any(name in move.message for name in unlucky)


def test_a_replica_that_comes_up_after_all_is_gone_on_with() -> None:
    model = Model.healthy(3)
    fleet = walked(model, 1)
    (one, *_) = fleet.list_pods("new")
    pods = tuple(replace(pod, **TOO_LATE) if pod.name == one.name else pod for pod in fleet.pods)
    order = Walker(model, "new").order()

    up = tuple(replace(pod, restarts=2) if pod.name == one.name else pod for pod in fleet.pods)
    held = next_move(replace(fleet, pods=pods), order, LATER)
    again = next_move(replace(fleet, pods=up), order, LATER)

    assert isinstance(held, Wait)
    assert held.reason is Reason.REPLICA_NOT_STARTING
    assert isinstance(again, Wait)
    assert again.reason is Reason.DRAINING


def test_a_new_replica_waits_for_the_device_of_one_that_is_on_its_way_out() -> None:
    model = Model.healthy(2)
    fleet = canary_of(model, unschedulable=True, ready_at=None, unready_at=LATER - timedelta(seconds=400))
    going = replace(fleet.pods[0], name="going", uid="going", revision="old", terminating=True)
    order = replace(Walker(model, "new").order(), spare_limit=timedelta(seconds=300))

    waits = next_move(replace(fleet, pods=(*fleet.pods, going)), order, LATER)
    fails = next_move(fleet, order, LATER)

    assert isinstance(waits, Wait)
    assert isinstance(fails, Failed)


SPARE = timedelta(seconds=30)


def unmade(failure: str = REFUSED) -> Fleet:
    """A paused fleet whose new replica was not made."""
    fleet = canary_of(Model.healthy(2))
    sets = (replace(rs, failure=failure) if rs.revision == "new" else rs for rs in fleet.replica_sets)
    return replace(fleet, pods=fleet.list_pods("old"), replica_sets=tuple(sets))


@pytest.mark.parametrize(
    ("fleet", "pulsed_at", "fails"),
    [
        (unmade(), LATER - SPARE - timedelta(seconds=1), True),
        (unmade(), LATER - SPARE, False),
        (unmade(), None, False),
        (unmade(""), LATER - 10 * SPARE, False),
        (canary_of(Model.healthy(2)), LATER - 10 * SPARE, False),
    ],
    ids=[
        "refused for too long",
        "for just as long as allowed",
        "since nobody knows when",
        "nobody refuses it",
        "it is there",
    ],
)
def test_a_new_replica_that_is_refused_fails_in_the_words_of_who_refuses(
    fleet: Fleet, pulsed_at: datetime | None, fails: bool
) -> None:
    order = replace(Walker(Model.healthy(2), "new").order(), spare_limit=SPARE, pulsed_at=pulsed_at)

    move = next_move(fleet, order, LATER)

    message = move.message if isinstance(move, Failed) and move.reason is Reason.SPARE_UNSCHEDULABLE else ""
    assert message == (f"no new replica was made within 30 s: {REFUSED}" if fails else "")


def test_a_refused_replica_waits_for_the_quota_of_one_that_is_on_its_way_out_and_on_the_way_back() -> None:
    order = replace(Walker(Model.healthy(2), "new").order(), spare_limit=SPARE, pulsed_at=LATER - 10 * SPARE)
    fleet = unmade()
    going = replace(fleet.pods[0], name="going", uid="going", terminating=True)

    assert not isinstance(next_move(replace(fleet, pods=(*fleet.pods, going)), order, LATER), Failed)
    assert not isinstance(next_move(fleet, replace(order, repairs=True), LATER), Failed)


def test_on_the_way_back_an_old_replica_with_many_restarts_stops_nothing() -> None:
    model = Model.healthy(2)
    fleet = canary_of(model)
    pods = tuple(replace(pod, restarts=9) if pod.revision == "old" else pod for pod in fleet.pods)
    retargeted = replace(fleet, pods=pods, revision="old")
    order = replace(Walker(model, "old").order(), repairs=True)

    assert not isinstance(next_move(retargeted, order, LATER), Failed)
    assert not isinstance(next_move(retargeted, replace(order, repairs=False), LATER), Failed)


def test_a_mending_change_that_was_taken_back_does_not_wait_for_those_that_could_not_stay_up() -> None:
    model = Model.healthy(2)
    model.pods[0].broken, model.pods[0].ready = True, False
    back = replace(Walker(model, "old").order(), repairs=True)

    assert isinstance(next_move(model.fleet(), back, LATER), Wait)
    assert isinstance(next_move(model.fleet(), replace(back, mends=True), LATER), Settled)
    forth = replace(Walker(model, "old", mends=True).order(), repairs=False)
    assert isinstance(next_move(model.fleet(), forth, LATER), Wait)
