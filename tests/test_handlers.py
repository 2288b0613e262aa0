"""The frame of the process: what the probe says, and how failures are spaced."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from weakref import WeakSet

from kopf._cogs.structs import references
from kopf._core.reactor import queueing

from kvmedic.controller.orphans import StandIns
from kvmedic.handlers import Operator, kopf_settings
from kvmedic.kube.backoff import Backoff
from kvmedic.kube.errors import Call, Conflict, Unavailable
from kvmedic.model.status import Key
from kvmedic.record.telemetry import Telemetry
from kvmedic.rollout.gates.one_resource_per_target import Roster

KEY = Key("serving", "llm", "uid-1")
SECOND = timedelta(seconds=1)


class Failing:
    """A store whose every load fails in one way."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def load(self, key: Key) -> None:
        raise self.error

    load_last_seen = load


def an_operator(error: Exception | None = None, idle: timedelta = 30 * SECOND) -> Operator:
    pace = SimpleNamespace(idle=idle, replica=SECOND)
    leader = SimpleNamespace(is_held=lambda: True)
    ports = SimpleNamespace(pace=pace, leader=leader, store=Failing(error or RuntimeError("unexpected")))
    roster = Roster()
    stand_ins = StandIns(ports.store, roster)
    return Operator(ports, Telemetry(), Backoff(SECOND, 60 * SECOND), 1, lambda uid: None, roster, stand_ins)


async def test_failures_in_a_row_wait_longer_each_time_up_to_the_bound():
    operator = an_operator(Unavailable(Call("get", "/x"), 503, "down"))

    delays = [await operator.tick(KEY) for _ in range(8)]

    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_a_process_that_does_not_lead_looks_at_nothing_and_ends_its_tests():
    operator, ended = an_operator(), []
    operator.ports.leader.is_held = operator.ports.leader.is_over = lambda: False
    operator.ports.probes = SimpleNamespace(forget_all=lambda: ended.append("tests"))
    operator.ports.watch = SimpleNamespace(forget_all=lambda: ended.append("time"))

    assert await operator.tick(KEY) == 1
    assert ended == ["tests", "time"]


async def test_a_conflict_is_tried_again_at_once_and_then_like_any_failure():
    operator = an_operator(Conflict(Call("patch", "/x"), 409, "moved"))

    delays = [await operator.tick(KEY) for _ in range(3)]

    assert delays == [0, 2, 4]


async def test_an_unexpected_error_is_reported_and_does_not_end_the_loop():
    operator = an_operator(KeyError("boom"))
    reported: list[Key] = []

    async def report_error(key: Key) -> None:
        reported.append(key)

    operator.report_error = report_error

    assert await operator.tick(KEY) == 1
    assert reported == [KEY]


def test_a_loop_that_looked_at_nothing_for_long_is_stuck():
    operator = an_operator()
    operator.loop._entries[KEY] = SimpleNamespace(due=0.0, working=True)
    operator._worked_at = 0.0

    assert operator.explain_lost_work(4 * 60) == ""
    assert operator.explain_lost_work(5 * 60) == "nothing was looked at for 300 s, at most 300 s"


def test_a_slow_pace_is_not_taken_for_a_stuck_loop():
    operator = an_operator(idle=timedelta(minutes=10))
    operator.loop._entries[KEY] = SimpleNamespace(due=0.0, working=True)
    operator._worked_at = 0.0

    assert operator.explain_lost_work(29 * 60) == ""
    assert operator.explain_lost_work(30 * 60)


def test_a_workload_of_another_shard_wakes_nobody_and_has_no_stand_in():
    operator = an_operator()
    operator.holds = "serving".__eq__
    noted = []
    operator.stand_ins = SimpleNamespace(note=lambda namespace, *_, **__: noted.append(namespace))

    for namespace in ("serving", "theirs"):
        operator.note_workload(
            "Deployment", "MODIFIED", {"metadata": {"namespace": namespace, "name": "llm"}}
        )

    assert noted == ["serving"]


class Body(dict):
    """An object of the API server's that can be seen to be gone."""

    __hash__ = object.__hash__


async def test_kopf_keeps_no_object_whose_event_was_handled(monkeypatch):
    kept, resource = WeakSet(), references.Resource("kvmedic.io", "v1alpha1", "kvremediations")

    async def list_objects(**_):
        for number in range(3):
            body = Body(metadata={"uid": f"uid-{number}"})
            kept.add(body)
            yield {"type": None, "object": body}
            del body
        await asyncio.Event().wait()

    async def process(**_):
        return None

    monkeypatch.setattr(queueing.watching, "infinite_watch", list_objects)
    watching = asyncio.create_task(
        queueing.watcher(namespace=None, settings=kopf_settings(), resource=resource, processor=process)
    )
    await asyncio.sleep(1)
    left = {body["metadata"]["uid"] for body in kept}
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching

    assert left == {"uid-2"}, "the last one is the watch's own until the next comes"
