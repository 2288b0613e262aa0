"""What a tick knows of the replica that it drains."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kvmedic.controller.next_move import (
    Tick,
    _find_held_pods,
    _watched_fleet,
    _with_arrivals,
    drains_of,
    observe_draining_pods,
)
from kvmedic.model.evidence import Absence, Measured, Missing
from kvmedic.model.fleet import Orphan
from kvmedic.model.reasons import Reason
from kvmedic.model.run import DrainingPod, StepState, TimedOut
from kvmedic.model.spec import OnDrainTimeout
from kvmedic.model.status import Record
from kvmedic.rollout.draining import Drain, draining_move, held_move
from kvmedic.rollout.moves import Uncordon, Wait
from run_builder import NOW, a_fleet, a_pod, a_run, an_intent

LIMIT = timedelta(minutes=10)
FRONT = ("EndpointSlice mine", "Service llm")


def a_tick(
    waited: timedelta, answer: OnDrainTimeout, *, left: bool, timed_out: tuple[TimedOut, ...] = ()
) -> Any:
    """A tick in which the replica `a` has been drained for so long; it counts no requests."""

    async def count_in_flight(*_: object) -> Measured[float]:
        return Measured(0.0, NOW)

    rollout = SimpleNamespace(drain_timeout=LIMIT, on_drain_timeout=answer)
    draining_pod = DrainingPod("a", "a", NOW, NOW if left else None)
    pace = SimpleNamespace(drain_quiet=timedelta(seconds=5), drain_interval=timedelta(0))
    watch = SimpleNamespace(measure_wait=lambda *_: waited)
    return SimpleNamespace(
        policy=SimpleNamespace(rollout=rollout, source="default"),
        run=SimpleNamespace(draining_pods=(draining_pod,), timed_out=timed_out, id="1"),
        resource=SimpleNamespace(uid="r", namespace="n"),
        ports=SimpleNamespace(
            watch=watch, pace=pace, metrics=SimpleNamespace(count_in_flight=count_in_flight)
        ),
        now=NOW,
    )


@pytest.mark.parametrize("left", [False, True], ids=["it never left", "it left, and was taken in again"])
@pytest.mark.parametrize("answer", OnDrainTimeout)
def test_a_replica_that_a_service_does_not_let_go_of_is_put_back_at_the_time_out(
    answer: OnDrainTimeout, left: bool
) -> None:
    pod = replace(a_pod("a", "old"), uid="a", cordoned=True, in_rotation=True, listed_by=FRONT)
    fleet = a_fleet(pods=(pod,))

    def move(waited: timedelta) -> object:
        tick = a_tick(waited, answer, left=left)
        return draining_move(
            fleet, pod, tick.run.draining_pods[0], asyncio.run(drains_of(tick, fleet))["a"], 0
        )

    assert isinstance(move(LIMIT), Wait)
    assert move(LIMIT + timedelta(seconds=1)) == Uncordon(pod, timed_out=True)


@pytest.mark.parametrize("answer", OnDrainTimeout)
def test_then_it_is_held_and_the_message_names_the_service_and_what_to_type(answer: OnDrainTimeout) -> None:
    tick = a_tick(LIMIT, answer, left=False, timed_out=(TimedOut("a", "a", LIMIT, FRONT),))
    fleet = _watched_fleet(tick, a_fleet(pods=(replace(a_pod("a", "old"), uid="a"),)))

    held = held_move(fleet, fleet.pods)

    assert _find_held_pods(tick) == {"a"}
    assert isinstance(held, Wait)
    assert "a stayed in the EndpointSlices of EndpointSlice mine, Service llm" in held.message
    assert "raise spec.rollout.drainTimeout" in held.message


def test_one_that_waits_for_the_device_of_a_released_replica_has_its_time_from_when_that_is_gone() -> None:
    asked: list[tuple[object, ...]] = []
    tick = a_tick(LIMIT, OnDrainTimeout.HOLD, left=True)
    tick.ports.watch.measure_wait = lambda *what: asked.append(what) or LIMIT
    waiting = replace(a_pod("new", "new"), ready_at=None, node="", unready_at=None)
    placed = replace(waiting, name="placed", uid="placed", node="gpu-1")
    held = Orphan(replace(a_pod("a", "old"), uid="a"), is_owned=False, has_ended=False)

    def counted(*orphans: Orphan) -> dict[str, tuple[object, ...]]:
        asked.clear()
        _watched_fleet(tick, a_fleet(pods=(waiting, placed), orphans=orphans))
        return {str(what[3]): what for what in asked}

    before, after = counted(held), counted()

    assert before[waiting.uid] != after[waiting.uid]
    assert before["placed"] == after["placed"], "it has its own device"


def test_proceed_takes_again_whom_hold_had_put_back() -> None:
    busy = (TimedOut("a", "a", LIMIT),)

    assert _find_held_pods(a_tick(LIMIT, OnDrainTimeout.HOLD, left=True, timed_out=busy)) == {"a"}
    assert _find_held_pods(a_tick(LIMIT, OnDrainTimeout.PROCEED, left=True, timed_out=busy)) == frozenset()


def test_an_idle_replica_that_left_is_idle_also_after_the_time_out() -> None:
    fleet = a_fleet(pods=(replace(a_pod("a", "old"), uid="a", cordoned=True, in_rotation=False),))
    tick = a_tick(LIMIT + timedelta(seconds=1), OnDrainTimeout.PROCEED, left=True)

    assert asyncio.run(drains_of(tick, fleet)) == {"a": Drain.IDLE}


def test_a_source_is_asked_about_the_time_since_requests_have_stopped_for_sure() -> None:
    fleet = a_fleet(pods=(replace(a_pod("a", "old"), uid="a", cordoned=True, in_rotation=False),))
    tick = a_tick(timedelta(minutes=4), OnDrainTimeout.HOLD, left=True)
    asked: list[timedelta] = []

    async def count_in_flight(source: str, namespace: str, pod: object, out: timedelta) -> Measured[float]:
        asked.append(out)
        return Measured(0.0, NOW)

    tick.ports.metrics.count_in_flight = count_in_flight
    asyncio.run(drains_of(tick, fleet))

    assert asked == [timedelta(minutes=4) - timedelta(seconds=5)] * 2


class Engine:
    """An engine that is given requests while it drains; None: its page cannot be read."""

    def __init__(self, *received: float | None) -> None:
        self.left = list(received)

    async def count_in_flight(self, *_: object) -> Measured[float]:
        return Measured(1.0, NOW)

    async def count_received(self, *_: object) -> object:
        count = self.left.pop(0)
        return Missing(Absence.SOURCE_UNAVAILABLE) if count is None else Measured(count, NOW)


def drained(engine: Engine, seconds: list[int], settle: int = 15) -> tuple[Any, list[str]]:
    """Look at a released, draining replica after so many seconds; return the move and when it is reported."""
    pod = replace(a_pod("a", "old"), uid="a", cordoned=True, in_rotation=False, is_released=True)
    orphan = Orphan(pod, is_owned=False, has_ended=False)
    draining_pod, seconds_reported = DrainingPod("a", "a", NOW, NOW), []
    move: Any = None
    for second in seconds:
        tick = a_tick(timedelta(seconds=second), OnDrainTimeout.HOLD, left=True)
        tick.policy.rollout.settle = timedelta(seconds=settle)
        tick.ports.metrics = engine
        run = replace(a_run(StepState.ROLLING_OUT, an_intent()), draining_pods=(draining_pod,))
        record: Any = Tick(
            tick.resource, tick.policy, Record(), run, tick.ports, NOW + timedelta(seconds=second)
        )
        seen = asyncio.run(observe_draining_pods(record, a_fleet(orphans=(orphan,))))
        (draining_pod,) = seen.run.draining_pods
        move = _with_arrivals(seen, Wait(Reason.DRAINING, "it finishes its requests"))
        seconds_reported += [str(second)] if move.reason is Reason.REQUESTS_STILL_ARRIVE else []
    return move, seconds_reported


def test_requests_that_keep_coming_are_reported_long_before_the_time_out_with_figures_and_the_fix() -> None:
    move, reported = drained(Engine(400, 403, 410), [5, 16, 40, 50, 80])

    assert reported == ["80"]
    assert "a left every Service, and 10 requests came to it within 64 s all the same" in move.message
    assert "spec.rollout.routers" in move.message


@pytest.mark.parametrize(
    ("received", "seconds"),
    [
        ([400] * 9, [16, 50, 90, 150, 210]),
        ([400, 404, 404, 404], [16, 50, 90, 150]),
        ([400, 404, 3, 5], [16, 50, 90, 130]),
        ([None] * 5, [16, 50, 90, 150]),
        ([400, None, 410, None, None], [16, 50, 90, 150]),
        ([400, 500, 600], [1, 5, 10]),
    ],
    ids=[
        "old ones end",
        "what was on its way",
        "the engine was started again",
        "nobody counts",
        "one rise, and then nobody knows",
        "not settled yet",
    ],
)
def test_without_evidence_of_new_ones_it_waits_as_ever(
    received: list[float | None], seconds: list[int]
) -> None:
    move, reported = drained(Engine(*received), seconds)

    assert reported == []
    assert move.reason is Reason.DRAINING


def test_once_they_stop_coming_it_is_reported_no_more() -> None:
    _, reported = drained(Engine(400, 410, 420, 420, 420), [16, 50, 90, 150, 200])

    assert reported == ["90", "150"]
