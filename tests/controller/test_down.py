"""A fleet of which no replica comes up for want of GPU memory: who may mend it, and how far that goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from builders import an_observation
from kvmedic.controller.blockers import gate, health_of
from kvmedic.controller.evidence import Survey
from kvmedic.controller.next_move import Tick, drains_of
from kvmedic.controller.ports import EveryNamespace, SurveyInput
from kvmedic.controller.survey import survey
from kvmedic.controller.verify import verdict_input
from kvmedic.kube.clock import Stopwatch
from kvmedic.model.devices import Cause, ContainerEnd, EngineEnd, Instance
from kvmedic.model.evidence import Absence, Blocked, Measured, Missing
from kvmedic.model.fleet import Owner, OwnerKind, Pod, TemplateOwner
from kvmedic.model.plan import Goal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import DrainingPod, Judged, Run, StepState, Verdict
from kvmedic.model.status import Record
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.gates.opening import Health, Stop
from kvmedic.runbooks.workload import View
from kvmedic.verdict.vetoes import keep_first_replicas
from lab.scripted.readings import State
from run_builder import NEW, NOW, a_fleet, a_pod, a_run, an_intent
from worlds.asked import Asked, Replicas, spec
from worlds.ending import LEVERS, PROMPT, TORCH, all_crash, touched
from worlds.vitals_builder import an_end
from worlds.world import Eye, deployment

ENDED = ContainerEnd(
    "vllm", 1, "Error", NOW - timedelta(minutes=2), NOW - timedelta(minutes=1), Instance.PREVIOUS
)
DOWN: Mapping[str, Any] = {
    "ready_at": None,
    "in_rotation": False,
    "unready_at": NOW - timedelta(minutes=9),
    "last_end": ENDED,
    "restarts": 3,
}
HANGS: Mapping[str, Any] = {**DOWN, "last_end": None, "restarts": 0}
STARTS: Mapping[str, Any] = {**HANGS, "runs_since": NOW - timedelta(minutes=8)}
MEMORY, OTHER, UNREAD = (an_end(cause) for cause in (Cause.DEVICE_MEMORY, Cause.ANOTHER, Cause.UNKNOWN))


@dataclass
class Ended(Asked):
    """A fleet without metrics whose replicas ended as given, by name."""

    ends_by_pod: Mapping[str, EngineEnd] = field(default_factory=dict)

    async def last_ends(self, namespace: str, pods: Sequence[Pod], since: datetime) -> dict[str, EngineEnd]:
        return {pod.name: self.ends_by_pod[pod.name] for pod in pods if pod.name in self.ends_by_pod}


class Switch:
    async def read(self) -> Stop:
        return Stop.OFF


PORTS: Any = SimpleNamespace(stop=Switch(), namespaces=EveryNamespace())


async def found(
    pods: Sequence[Pod], ends: Mapping[str, EngineEnd], *, owner: Any = None, **more: Any
) -> tuple[Survey, Blocked | None]:
    """Return what a look at a fleet finds, and what the gate says."""
    fleet = a_fleet(pods=tuple(pods), owner=owner)
    view = View(fleet=fleet, template=deployment(3)["spec"]["template"])
    resource, world = spec(levers=LEVERS, **more), Ended(State.MISSING, ends_by_pod=ends)
    seen = await survey(resource, resource.policy, view, SurveyInput(world, world))
    return seen, await gate(resource.policy, Record(), seen, PORTS, NOW)


def down(*names: str, **changes: Any) -> list[Pod]:
    return [a_pod(name, **{**DOWN, **changes}) for name in names]


async def test_replicas_that_are_all_down_for_what_the_plan_mends_are_enough():
    seen, blocked = await found(down("a", "b", "c"), dict.fromkeys("abc", MEMORY))

    assert seen.diagnosis.reason is Reason.CUDA_OUT_OF_MEMORY
    assert (seen.blocked, blocked) == (None, None)
    assert health_of(seen) == Health(ready=0, mendable=3)


class NotHere:
    async def refuse_unlabelled(self, namespace: str) -> Blocked:
        return Blocked(Reason.NAMESPACE_NOT_LABELLED, namespace)


async def test_where_the_namespace_lacks_its_label_the_plan_is_shown_and_no_run_is_opened():
    seen, _ = await found(down("a", "b", "c"), dict.fromkeys("abc", MEMORY))
    resource = spec(levers=LEVERS)
    ports: Any = SimpleNamespace(stop=Switch(), namespaces=NotHere())

    blocked = await gate(resource.policy, Record(), seen, ports, NOW)

    assert (seen.plan is not None, seen.diagnosis.reason) == (True, Reason.CUDA_OUT_OF_MEMORY)
    assert blocked == Blocked(Reason.NAMESPACE_NOT_LABELLED, seen.view.fleet.namespace)


@pytest.mark.parametrize(
    ("pods", "ends", "health"),
    [
        ([*down("a", "b"), a_pod("c", **HANGS)], {"a": MEMORY, "b": MEMORY}, Health(0, 2, 1)),
        (down("a", "b", "c"), {"a": MEMORY, "b": MEMORY, "c": OTHER}, Health(0, 2, 1)),
        (down("a", "b", "c"), {"a": MEMORY, "b": UNREAD, "c": UNREAD}, Health(0, 1, 2)),
        (
            [*down("a", "b"), *down("c", waiting_reason="ImagePullBackOff")],
            dict.fromkeys("abc", MEMORY),
            Health(0, 2, 1),
        ),
        (
            [*down("a", "b"), *down("c", unready_at=NOW)],
            dict.fromkeys("abc", MEMORY),
            Health(0, 2, 1),
        ),
    ],
    ids=[
        "one hangs",
        "one ended for another cause",
        "logs that cannot be read",
        "one waits for its image",
        "one was Ready since",
    ],
)
async def test_one_that_is_down_for_anything_else_leaves_it_to_a_person(pods, ends, health):
    seen, blocked = await found(pods, ends)

    assert health_of(seen) == health
    assert blocked.reason is Reason.TOO_FEW_HEALTHY


async def test_a_replica_that_is_not_there_is_none_that_is_mended():
    seen, blocked = await found(down("a", "b"), dict.fromkeys("ab", MEMORY))

    assert health_of(seen) == Health(ready=0, mendable=2, others=1)
    assert blocked is not None


async def test_without_any_log_nothing_is_known_and_nothing_planned():
    seen, blocked = await found(down("a", "b", "c"), dict.fromkeys("abc", UNREAD))

    assert (seen.diagnosis.reason, seen.plan) == (Reason.LOG_UNREADABLE, None)
    assert blocked is None, "there is nothing to hold back"


async def test_no_other_plan_counts_replicas_that_are_down():
    seen, _ = await found(down("a", "b", "c"), dict.fromkeys("abc", MEMORY))
    step = replace(seen.plan.steps[0], reason=Reason.CAP_RIGHT_SIZED)

    assert health_of(replace(seen, plan=replace(seen.plan, steps=(step,)))) == Health(0, 0, 3)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"mode": "Observe"}, Reason.OBSERVE_ONLY),
        ({"suspend": True}, Reason.SUSPENDED),
        ({"limits": {"minHealthyReplicas": 4}}, Reason.TOO_FEW_HEALTHY),
    ],
)
async def test_nothing_else_about_the_gate_is_loosened(more, reason):
    _, blocked = await found(down("a", "b", "c"), dict.fromkeys("abc", MEMORY), **more)

    assert blocked.reason is reason


async def test_who_owns_the_template_is_not_fought_though_nothing_serves():

    argo = Owner(Reason.MANAGED_BY_GITOPS, "Argo CD", TemplateOwner(OwnerKind.ARGO_CD, "Argo CD"))

    seen, _ = await found(down("a", "b", "c"), dict.fromkeys("abc", MEMORY), owner=argo)

    assert seen.blocked.reason is Reason.MANAGED_BY_GITOPS


def a_tick(run: Run, metrics: Replicas, **more: Any) -> Tick:
    resource = spec(**more)
    pace = SimpleNamespace(drain_quiet=timedelta(seconds=5), drain_interval=timedelta(0))
    ports: Any = SimpleNamespace(metrics=metrics, pace=pace, watch=Stopwatch())
    return Tick(resource, resource.policy, Record(), run, ports, NOW)


@pytest.mark.parametrize(
    ("pod", "count", "drain", "asked"),
    [
        (down("a")[0], Missing(Absence.SOURCE_UNAVAILABLE), Drain.DOWN, 1),
        (down("a")[0], Measured(0.0, NOW), Drain.DOWN, 1),
        (down("a")[0], Measured(2.0, NOW), Drain.BUSY, 1),
        (down("a")[0], Missing(Absence.NO_SERIES), Drain.UNKNOWN, 1),
        (a_pod("a", **STARTS), Missing(Absence.SOURCE_UNAVAILABLE), Drain.DOWN, 1),
        (a_pod("a", **HANGS, is_stopped=True), Missing(Absence.SOURCE_UNAVAILABLE), Drain.DOWN, 1),
        (a_pod("a", **HANGS, address=""), Missing(Absence.SOURCE_UNAVAILABLE), Drain.DOWN, 1),
        (a_pod("a", in_rotation=False), Measured(0.0, NOW), Drain.BUSY, 0),
        (a_pod("a", ready_at=None, in_rotation=False), Measured(0.0, NOW), Drain.BUSY, 0),
    ],
    ids=[
        "nothing answers",
        "it loads",
        "somebody goes past the Service",
        "it answers with half a page",
        "it has never been Ready",
        "its container does not run",
        "it has no address",
        "it was Ready: requests may still come",
        "nobody says that it never was Ready",
    ],
)
async def test_a_replica_that_never_was_ready_takes_no_wait(pod, count, drain, asked):
    metrics = Replicas(count)
    run = replace(
        a_run(StepState.ROLLING_OUT, an_intent()), draining_pods=(DrainingPod("a", "uid-a", NOW, out_at=NOW),)
    )

    found = await drains_of(a_tick(run, metrics), a_fleet(pods=(replace(pod, cordoned=True),)))

    assert found == {"uid-a": drain}
    assert metrics.asked == asked


LATE = DrainingPod("a", "uid-a", NOW - timedelta(minutes=11), out_at=NOW - timedelta(minutes=11))
UNKNOWN = Missing(Absence.SOURCE_UNAVAILABLE)
OUT: Mapping[str, Any] = {"cordoned": True, "in_rotation": False}
PROBES_FAIL = a_pod("a", ready_at=None, unready_at=NOW, runs_since=NOW - timedelta(hours=1), **OUT)


@pytest.mark.parametrize(
    ("pod", "count", "draining_pod", "held", "let_go"),
    [
        (PROBES_FAIL, UNKNOWN, replace(LATE, cordoned_at=NOW), Drain.UNKNOWN, Drain.UNKNOWN),
        (PROBES_FAIL, UNKNOWN, LATE, Drain.HELD, Drain.TIMED_OUT),
        (a_pod("a", **OUT), UNKNOWN, LATE, Drain.HELD, Drain.TIMED_OUT),
        (a_pod("a", **OUT), Measured(37.0, NOW), LATE, Drain.HELD, Drain.TIMED_OUT),
        (
            a_pod("a", cordoned=True),
            Measured(0.0, NOW),
            replace(LATE, out_at=None),
            Drain.HELD,
            Drain.TIMED_OUT,
        ),
        (a_pod("a", **OUT), Measured(0.0, NOW), LATE, Drain.IDLE, Drain.IDLE),
        (replace(down("a")[0], cordoned=True), Measured(37.0, NOW), LATE, Drain.TIMED_OUT, Drain.TIMED_OUT),
        (
            replace(down("a")[0], cordoned=True),
            Missing(Absence.NO_SERIES),
            LATE,
            Drain.TIMED_OUT,
            Drain.TIMED_OUT,
        ),
    ],
    ids=[
        "not Ready and silent: waits like requests",
        "and is held when the time is over",
        "silent",
        "with requests",
        "never out of the EndpointSlices",
        "idle at last",
        "down, and an old page counts requests",
        "down, and nobody knows",
    ],
)
async def test_after_the_time_out_a_replica_with_requests_is_held_unless_it_is_down_or_the_spec_lets_it_go(
    pod, count, draining_pod, held, let_go
):
    run = replace(a_run(StepState.ROLLING_OUT, an_intent()), draining_pods=(draining_pod,))
    minutes = 1 if draining_pod.cordoned_at == NOW else 11

    found = {}
    for way in ("Hold", "Proceed"):
        seconds = 0.0
        tick = a_tick(run, Replicas(count), rollout={"onDrainTimeout": way})
        ports = SimpleNamespace(**vars(tick.ports))
        ports.watch = Stopwatch(lambda: seconds)  # noqa: B023 - read within the same turn
        tick = replace(tick, ports=ports)
        await drains_of(tick, a_fleet(pods=(pod,)))
        seconds = 60.0 * minutes
        found[way] = (await drains_of(tick, a_fleet(pods=(pod,))))["uid-a"]

    assert found == {"Hold": held, "Proceed": let_go}


@pytest.mark.parametrize(
    ("served", "goal", "verdict"),
    [
        (0, Goal.STAYS_UP, Verdict.IMPROVED),
        (1, Goal.STAYS_UP, Verdict.INCONCLUSIVE),
        (0, Goal.RELIEF, Verdict.INCONCLUSIVE),
    ],
    ids=["nobody served before", "somebody did", "another change"],
)
async def test_what_came_up_where_nothing_served_is_not_taken_away(served, goal, verdict):
    run = replace(a_run(StepState.VERIFYING, an_intent()), in_rotation=served, goal=goal)
    tick = a_tick(run, Replicas(Measured(0.0, NOW)), verify={"for": "1m", "onInconclusive": "RollBack"})
    judged = Judged(Verdict.INCONCLUSIVE, Reason.TOO_FEW_REQUESTS, "3 requests")

    pods = (a_pod("a", NEW), a_pod("b", NEW, ready_at=None))
    view = View(fleet=a_fleet(pods=pods), template=deployment(2)["spec"]["template"])
    found = keep_first_replicas(judged, await verdict_input(tick, view, pods, an_observation()))

    assert found.verdict is verdict


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_fleet_that_is_down_as_a_whole_is_healed(a_world, replicas):
    world = a_world(replicas=replicas, spec={"levers": LEVERS})
    world.proxy.log = f"{PROMPT}\n{TORCH}\n"
    all_crash(world)

    with Eye(world.cluster, world.namespace, replicas) as eye:
        world.start()
        world.wait(world.is_closed, 120, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert world.status()["history"][0]["reason"] == "CudaOutOfMemory"
    assert [one["share"] for one in world.status()["oomShares"]] == [0.92], "never gone back to"
    assert [arg for arg in world.args() if "memory" in arg] == ["--gpu-memory-utilization=0.9"]
    assert "--max-num-seqs=64" in world.args()
    for private in (PROMPT, "Tried to allocate"):
        assert private not in world.log + str(world.status())
    assert world.endpoints() == replicas
    assert world.traces() == []
    assert eye.lost == []


def test_a_replica_that_hangs_beside_those_that_crash_keeps_everything_as_it_is(a_world):
    world = a_world(spec={"levers": LEVERS})
    world.proxy.log = TORCH
    all_crash(world, hanging=1)

    world.start()
    world.wait(lambda: world.condition("Progressing")[1] == "TooFewHealthy", 60, "the gate is closed")

    assert world.condition("Diagnosed") == ("True", "CudaOutOfMemory")
    assert touched(world) == []
