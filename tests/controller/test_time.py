"""Clocks that are set or that differ, in every phase: they cost delay, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kvmedic.controller.next_move import Tick, as_watched, drains_of, walking_move
from kvmedic.controller.verify import judge_window
from kvmedic.kube.clock import Stopwatch
from kvmedic.model.evidence import Measured
from kvmedic.model.fleet import ADDING, STILL, Fleet, ReplicaSet
from kvmedic.model.run import DrainingPod, Run, StepState
from kvmedic.model.status import Record
from kvmedic.rollout.decide import Direction
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.drift import Standing
from kvmedic.rollout.moves import Failed, Pause, Wait
from kvmedic.runbooks.workload import View
from run_builder import NEW, NOW, OLD, a_fleet, a_pod, a_run, an_intent
from worlds.asked import Replicas, spec
from worlds.phases import PATIENCE_SECONDS, Phase, drained, let_go, reach
from worlds.world import Eye, World, deployment

HOUR = timedelta(hours=1)
LOOKS = 10
"""Looks at the Deployment after a clock was set: each of them would act on a time that is over."""


class LookedError(Exception):
    """The window was over: its figures were asked for."""


@dataclass
class Busy(Replicas):
    """Replicas with a request each, whose figures nobody should ask for before the window is over."""

    async def observe(self, *_: object) -> Any:
        raise LookedError


class Watched:
    """A run that a process with a wrong clock follows, and the process's own stopwatch."""

    def __init__(self, run: Run, wrong_by: timedelta) -> None:
        self.seconds, self.metrics = 0.0, Busy(Measured(1.0, NOW))
        pace = SimpleNamespace(
            drain_quiet=timedelta(seconds=5), drain_interval=timedelta(0), spare_limit=timedelta(minutes=5)
        )
        watch = Stopwatch(lambda: self.seconds)
        ports: Any = SimpleNamespace(metrics=self.metrics, pace=pace, watch=watch)
        resource = spec(verify={"for": "10m"})
        self.tick = Tick(resource, resource.policy, Record(), run, ports, NOW + wrong_by)

    def set_by(self, step: timedelta) -> None:
        self.tick = replace(self.tick, now=self.tick.now + step)


def swapping(*, paused: bool) -> Fleet:
    """A fleet in the middle of a run, whose newest replica has just been made."""
    made = a_pod("n", NEW, ready_at=None, unready_at=NOW, created_at=NOW, in_rotation=False)
    sets = (
        ReplicaSet("llm-old", OLD, 1, 3, 3, 0, observed=True),
        ReplicaSet("llm-new", NEW, 2, 1, 0, 0, observed=True),
    )
    return a_fleet(
        fields=STILL if paused else ADDING,
        revision=NEW,
        observed=paused,
        replica_sets=sets,
        pods=(*a_fleet().pods, made),
    )


ROLLING = a_run(StepState.ROLLING_OUT, an_intent())
DRAINING = replace(ROLLING, draining_pods=(DrainingPod("a", "uid-a", NOW, out_at=NOW),))
VERIFYING = replace(
    a_run(StepState.VERIFYING, an_intent()),
    steps=tuple(replace(step, settled_at=NOW) for step in a_run(StepState.VERIFYING, an_intent()).steps),
)
OUT = a_fleet(pods=(a_pod("a", cordoned=True, in_rotation=False), a_pod("b"), a_pod("c")))


async def draining(seen: Watched) -> bool:
    return (await drains_of(seen.tick, OUT))["uid-a"] is not Drain.BUSY


async def counting(seen: Watched) -> bool:
    await drains_of(seen.tick, OUT)
    return seen.metrics.asked > 0


async def starting(seen: Watched) -> bool:
    return isinstance(await walking_move(seen.tick, swapping(paused=True), Direction.FORWARD), Failed)


async def pulsing(seen: Watched) -> bool:
    move = await walking_move(seen.tick, swapping(paused=False), Direction.FORWARD)
    assert isinstance(move, Pause | Wait)
    return isinstance(move, Pause)


async def verifying(seen: Watched) -> bool:
    view = View(fleet=a_fleet(revision=NEW), template=deployment(3)["spec"]["template"])
    try:
        await judge_window(seen.tick, view, Standing.AS_RECORDED)
    except LookedError:
        return True
    return False


async def trying(seen: Watched) -> bool:
    return seen.tick.now - as_watched(seen.tick).started_at > timedelta(minutes=30)


@pytest.mark.parametrize("first", [-HOUR, timedelta(0), HOUR], ids=["behind", "right", "ahead"])
@pytest.mark.parametrize("then", [-HOUR, HOUR], ids=["set back", "set forward"])
@pytest.mark.parametrize(
    ("is_over", "run", "limit"),
    [
        pytest.param(draining, DRAINING, timedelta(minutes=30), id="drain"),
        pytest.param(counting, DRAINING, timedelta(seconds=5), id="before requests are counted"),
        pytest.param(starting, ROLLING, timedelta(minutes=10), id="start of a replica"),
        pytest.param(pulsing, ROLLING, timedelta(seconds=10), id="pulse"),
        pytest.param(verifying, VERIFYING, timedelta(minutes=10), id="window"),
        pytest.param(trying, ROLLING, timedelta(minutes=30), id="trial"),
    ],
)
async def test_no_clock_that_is_wrong_or_set_ends_a_phase_and_none_keeps_it_from_its_end(
    is_over, run, limit, first, then
):
    seen = Watched(run, first)

    begun = await is_over(seen)
    seen.seconds += limit.total_seconds() - 1
    seen.set_by(then)
    nearly = await is_over(seen)
    seen.seconds += 2
    over = await is_over(seen)

    assert (begun, nearly, over) == (False, False, True)


def test_a_drain_goes_on_under_clocks_that_are_days_wrong_and_under_who_comes_after(a_world):
    world = a_world(replicas=2, spec={"rollout": {"drainTimeout": "24h"}})
    days = timedelta(hours=25).total_seconds()

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, Phase.DRAIN)
        draining_pods = drained(world)
        for wrong_by in (days, -days, 2 * days):
            world.rewrite(clock=wrong_by)
            if wrong_by < 0:
                world.kill()
            reads = len(world.proxy.reads)
            world.wait(lambda reads=reads: looks(world, reads) >= LOOKS, PATIENCE_SECONDS, "it is looked at")
            assert drained(world) == draining_pods
        let_go(world)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert eye.lost == []
    assert eye.fewest >= 2


def looks(world: World, since: int) -> int:
    """Return how often the operator has read the Deployment since some number of reads."""
    return sum(path.endswith("/deployments/llm") for path in world.proxy.reads[since:])
