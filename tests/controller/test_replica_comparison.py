"""New replicas beside old ones: when both are compared, over which time, and what follows for the walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kvmedic.controller.next_move import Tick
from kvmedic.controller.replica_comparison import compare_replicas, limits_of
from kvmedic.kube.clock import Stopwatch
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import (
    Absence,
    Histogram,
    LookSeries,
    Measured,
    Missing,
    Observation,
    PodReadings,
    Signal,
)
from kvmedic.model.fleet import STILL, Fleet, Pod, ReplicaSet
from kvmedic.model.plan import Goal, Step
from kvmedic.model.run import ComparisonState, ReplicaComparison, Run, StepState
from kvmedic.model.status import Record, Wish
from kvmedic.rollout.drift import Standing
from kvmedic.runbooks.workload import View
from kvmedic.verdict.counts import CapChange
from run_builder import (
    BASELINE,
    BUNDLE,
    NEW,
    NOW,
    OLD,
    REPLACE,
    ROLLBACK,
    STEP,
    a_fleet,
    a_pod,
    a_run,
    an_intent,
)
from worlds.asked import spec
from worlds.world import deployment

MINUTE = timedelta(minutes=1)
RATE = 1.0
"""Requests per second of one replica."""
CALM = replace(BASELINE, waiting_mean=0.0)


@dataclass
class Served:
    """Replicas that all get the same requests, and in which share of them the first token is late."""

    late: Mapping[str, float] = field(default_factory=dict)
    """By the beginning of the replica's name."""
    arrivals: Mapping[str, float] = field(default_factory=dict)
    """Requests of a replica, times the usual; by the beginning of its name."""
    waiting: float = 1.0
    """Requests that wait on each replica, on average."""
    missing: str = ""
    """A replica of which nothing is known."""
    unmeasured: str = ""
    """A replica that does not export how long whole requests take."""
    asked: list[LookSeries] = field(default_factory=list)

    async def look_series(
        self, source: str, pods: Sequence[Pod], namespace: str, series: LookSeries
    ) -> Sequence[Observation]:
        self.asked.append(series)
        seconds = series.look.window.total_seconds()
        seen = {pod.name: self._readings(pod.name, seconds) for pod in pods}
        moments = (NOW - series.apart * ago for ago in reversed(range(series.count)))
        return [Observation(at, seconds, 0.0, seen) for at in moments]

    def _readings(self, name: str, seconds: float) -> PodReadings:
        if name == self.missing:
            return PodReadings({}, {}, Missing(Absence.NO_SERIES))
        side = name[0]
        count = RATE * seconds * self.arrivals.get(side, 1.0)
        late = self.late.get(side, 0.0)
        numbers = {
            Signal.REQUESTS_FINISHED: count,
            Signal.REQUESTS_ABORTED: 0.0,
            Signal.GENERATED_TOKENS: 200 * count,
            Signal.WAITING_MEAN: self.waiting,
            Signal.RUNNING_MEAN: 10.0 * count / seconds,
            Signal.REQUESTS_IN_FLIGHT_CHANGE: 0.0,
        }
        histograms = {
            Signal.TIME_TO_FIRST_TOKEN_SECONDS: Histogram(
                (1.0, 30.0), (count * (1 - late), 0, count * late), 9
            ),
            Signal.INTER_TOKEN_SECONDS: Histogram((0.1, 2.0), (199 * count, 0.0, 0.0), 9),
        }
        if name != self.unmeasured:
            histograms[Signal.E2E_SECONDS] = Histogram((10.0, 60.0), (count, 0.0, 0.0), 9)
        return PodReadings(
            {each: Measured(value, NOW) for each, value in numbers.items()},
            {each: Measured(value, NOW) for each, value in histograms.items()},
            Missing(Absence.NOTHING_FOUND),
        )


def mid_walk(old: int = 3, new: int = 1, replicas: int = 3, **changes: Any) -> Fleet:
    """A fleet that stands still in the middle of a walk, with every replica in rotation."""
    pods = [a_pod(f"old-{number}") for number in range(old)]
    pods += [a_pod(f"new-{number}", NEW, created_at=NOW) for number in range(new)]
    sets = (
        ReplicaSet("llm-old", OLD, 1, old, old, 0, observed=True),
        ReplicaSet("llm-new", NEW, 2, new, 0, STILL.min_ready_seconds, observed=True),
    )
    fleet = a_fleet(fields=STILL, revision=NEW, replicas=replicas, replica_sets=sets, pods=tuple(pods))
    return replace(fleet, **changes)


def rolling(**changes: Any) -> Run:
    return replace(a_run(StepState.ROLLING_OUT, an_intent()), baseline=CALM, **changes)


@dataclass
class Watched:
    """A walk that a process follows from minute to minute; what it writes down is what it reads next."""

    metrics: Served
    run: Run = field(default_factory=rolling)
    fleet: Fleet = field(default_factory=mid_walk)
    wish: Wish = Wish.NONE
    verify: Mapping[str, str] = field(default_factory=dict)
    objectives: Mapping[str, str] = field(default_factory=dict)
    stands: Standing = Standing.AS_RECORDED
    seconds: float = 0.0
    watch: Stopwatch | None = None

    def restart(self) -> None:
        """Let another process follow it."""
        self.watch = None

    async def look(self) -> ReplicaComparison | None:
        self.watch = self.watch or Stopwatch(lambda: self.seconds)
        resource = replace(
            spec(verify={"for": "10m", **self.verify}, objectives=self.objectives), wish=self.wish
        )
        pace = SimpleNamespace(spare_limit=timedelta(minutes=5))
        ports: Any = SimpleNamespace(metrics=self.metrics, pace=pace, watch=self.watch)
        now = NOW + timedelta(seconds=self.seconds)
        tick = Tick(resource, resource.policy, Record(), self.run, ports, now)
        view = View(fleet=self.fleet, template=deployment(3)["spec"]["template"])
        tick, found = await compare_replicas(tick, view, self.stands)
        assert found is None or tick.run.current.comparison == found
        self.run = tick.run
        return found

    async def minutes(self, number: int) -> ReplicaComparison | None:
        """Look once a minute for so long, or until it is decided."""
        found = await self.look()
        for _ in range(number):
            self.seconds += 60
            found = await self.look()
            if found is None or found.is_decided:
                break
        return found


async def test_replicas_that_serve_alike_let_the_rollout_go_on_after_twelve_minutes() -> None:
    seen = Watched(Served())

    nearly = await seen.minutes(11)
    found = await seen.minutes(1)

    assert nearly is not None
    assert (nearly.state, nearly.minutes) == (ComparisonState.WATCHING, 9)
    assert found is not None
    assert (found.state, found.minutes, found.routing) == (ComparisonState.GO_ON, 10, "even")
    assert found.since == NOW
    assert found.pods == ("new-0",)
    assert found.old is not None
    assert found.new is not None
    assert (found.old.replicas, found.new.replicas) == (3, 1)
    assert found.new.served_in_time_per_second == pytest.approx(200, rel=0.01)
    assert "1 new: 199.8 tokens/s each served in time (100%)" in found.message
    assert await seen.look() is None, "what was decided is not looked at again"


async def test_harm_is_seen_within_minutes_and_named_with_the_figures_of_both_sides() -> None:
    seen = Watched(Served(late={"n": 0.5}))

    found = await seen.minutes(20)

    assert found is not None
    assert (found.state, seen.seconds) == (ComparisonState.ROLL_BACK, 180)
    assert found.message.startswith("served-in-time: ")
    assert "1 new: 100." in found.message
    assert "3 old: 19" in found.message


async def test_requests_that_go_by_keys_let_the_rollout_go_on_and_are_judged_afterwards() -> None:
    seen = Watched(Served(arrivals={"n": 0.4}))

    nearly = await seen.minutes(11)
    found = await seen.minutes(1)

    assert nearly is not None
    assert nearly.state is ComparisonState.WATCHING
    assert found is not None
    assert (found.state, found.routing) == (ComparisonState.NOT_COMPARABLE, "sticky")


@pytest.mark.parametrize(
    ("answer", "after_minutes", "state"),
    [
        ("Hold", 2 + 10 + 60, ComparisonState.UNJUDGED),
        ("Keep", 2 + 10 + 60, ComparisonState.NOT_COMPARABLE),
        ("RollBack", 2 + 10 - 1, ComparisonState.UNJUDGED),
    ],
)
async def test_missing_figures_are_waited_for_and_then_the_spec_answers(
    answer: str, after_minutes: int, state: ComparisonState
) -> None:
    verify = {"onInconclusive": answer, "holdAtMost": "1h"}
    seen = Watched(Served(missing="old-1"), verify=verify)

    nearly = await seen.minutes(after_minutes)
    found = await seen.minutes(1)

    assert nearly is not None
    assert nearly.state is ComparisonState.WATCHING
    assert "old-1: " in nearly.message
    assert found is not None
    assert found.state is state


@pytest.mark.parametrize("side", ["old-1", "new-0"])
@pytest.mark.parametrize(
    ("objectives", "state"),
    [({}, ComparisonState.GO_ON), ({"e2eP95": "30s"}, ComparisonState.WATCHING)],
    ids=["nothing promised", "promised"],
)
async def test_the_histogram_of_an_objective_is_needed_with_it(
    side: str, objectives: Mapping[str, str], state: ComparisonState
) -> None:
    found = await Watched(Served(unmeasured=side), objectives=objectives).minutes(12)

    assert found is not None
    assert found.state is state
    assert not objectives or f"{side}: e2eSeconds" in found.message


async def test_figures_that_come_late_are_compared_all_the_same() -> None:
    seen = Watched(Served(missing="new-0"))

    await seen.minutes(30)
    seen.metrics.missing = ""
    found = await seen.minutes(1)

    assert found is not None
    assert found.state is ComparisonState.GO_ON


@pytest.mark.parametrize(
    ("late", "goal", "state"),
    [
        ({"n": 0.2, "o": 0.15}, Goal.RELIEF, ComparisonState.ROLL_BACK),
        ({"n": 0.2, "o": 0.15}, Goal.NO_WORSE, ComparisonState.GO_ON),
    ],
    ids=["that was to help", "that was to do no harm"],
)
async def test_after_37_minutes_of_doubt_a_change_stays_where_it_need_not_help(
    late: Mapping[str, float], goal: Goal, state: ComparisonState
) -> None:
    seen = Watched(Served(late), run=rolling(goal=goal))

    nearly = await seen.minutes(36)
    found = await seen.minutes(1)

    assert nearly is not None
    assert nearly.state is ComparisonState.WATCHING
    assert found is not None
    assert found.state is state


@pytest.mark.parametrize("waiting", [0.0, 0.4], ids=["nothing waits", "hardly anything waits"])
async def test_a_lower_cap_that_held_nothing_up_was_not_tried(waiting: float) -> None:
    seen = Watched(Served(waiting=waiting))

    nearly = await seen.minutes(36)
    found = await seen.minutes(1)

    assert nearly is not None
    assert nearly.state is ComparisonState.WATCHING
    assert nearly.message.startswith("untested: ")
    assert found is not None
    assert found.state is ComparisonState.ROLL_BACK
    assert found.message.startswith("deadline: no gain ")


@pytest.mark.parametrize(
    ("step", "cap"),
    [
        (STEP, CapChange.LOWERED),
        (replace(STEP, before="16", after="64"), CapChange.RAISED),
        (replace(STEP, before=None), None),
        (replace(STEP, knob=Knob.GPU_MEMORY_UTILIZATION, before="0.8", after="0.9"), None),
        (BUNDLE, None),
    ],
    ids=["lowered", "raised", "nobody knows from what", "another flag", "a method"],
)
def test_what_a_change_does_to_the_cap_is_known_by_its_values(step: Step, cap: CapChange | None) -> None:
    run = a_run(StepState.ROLLING_OUT, an_intent(), step=step)
    resource = spec()

    limits = limits_of(Tick(resource, resource.policy, Record(), run, SimpleNamespace(), NOW))

    assert (limits.cap, limits.must_gain) == (cap, True)


async def test_too_few_requests_never_decide() -> None:
    seen = Watched(Served(arrivals={"n": 0.04, "o": 0.04}), verify={"holdAtMost": "2h"})

    found = await seen.minutes(60)

    assert found is not None
    assert found.state is ComparisonState.WATCHING
    assert found.message.startswith("first-tokens: ")


async def test_both_sides_are_looked_at_once_a_minute_over_the_same_stretches() -> None:
    seen = Watched(Served())
    await seen.minutes(2 + 3)
    asked = len(seen.metrics.asked)
    again = await seen.look()

    assert again is not None
    assert len(seen.metrics.asked) == asked
    stretches, ends = seen.metrics.asked[-2:]
    assert (stretches.look.window, stretches.apart, stretches.count) == (MINUTE, MINUTE, 3)
    assert (ends.look.window, ends.apart, ends.count) == (MINUTE, MINUTE, 4)

    await seen.minutes(6)
    stretches, ends = seen.metrics.asked[-2:]
    assert (stretches.look.window, stretches.apart, stretches.count) == (2 * MINUTE, 2 * MINUTE, 4)
    assert (ends.look.window, ends.apart, ends.count) == (MINUTE, 2 * MINUTE, 5)


async def test_another_process_counts_the_time_anew_and_keeps_since_when_they_are_compared() -> None:
    seen = Watched(Served())
    await seen.minutes(8)
    seen.restart()

    nearly = await seen.minutes(11)
    found = await seen.minutes(1)

    assert nearly is not None
    assert nearly.state is ComparisonState.WATCHING
    assert found is not None
    assert (found.state, found.since) == (ComparisonState.GO_ON, NOW)


async def test_a_new_replica_that_was_down_meanwhile_begins_anew() -> None:
    seen = Watched(Served())
    await seen.minutes(8)
    *others, new = seen.fleet.pods
    seen.fleet = replace(seen.fleet, pods=(*others, replace(new, ready_at=NOW + 8 * MINUTE)))

    nearly = await seen.minutes(11)
    found = await seen.minutes(1)

    assert nearly is not None
    assert nearly.state is ComparisonState.WATCHING
    assert found is not None
    assert found.state is ComparisonState.GO_ON


async def test_an_old_replica_that_came_meanwhile_is_left_out() -> None:
    seen = Watched(Served())
    await seen.minutes(4)
    first, *others = seen.fleet.pods
    seen.fleet = replace(seen.fleet, pods=(replace(first, uid="other", name="old-9"), *others))

    found = await seen.minutes(8)

    assert found is not None
    assert found.state is ComparisonState.GO_ON
    assert found.old is not None
    assert found.old.replicas == 2


NOT_READY = {"ready_at": None, "in_rotation": False}


def with_newest(**changes: Any) -> Fleet:
    *others, new = mid_walk().pods
    return mid_walk(pods=(*others, replace(new, **changes)))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"fleet": with_newest(**NOT_READY)}, id="the new replica is not Ready"),
        pytest.param({"fleet": with_newest(in_rotation=False)}, id="no Service leads to the new replica yet"),
        pytest.param({"fleet": mid_walk(fields=replace(STILL, paused=False))}, id="the walk is not paused"),
        pytest.param({"fleet": mid_walk(old=1, new=1, replicas=1)}, id="there is one replica"),
        pytest.param({"fleet": mid_walk(old=4, new=1, replicas=4)}, id="of four replicas one is changed"),
        pytest.param({"run": rolling(goal=Goal.STAYS_UP)}, id="the change is to keep engines up"),
        pytest.param({"run": replace(a_run(StepState.ROLLING_BACK, an_intent()), baseline=CALM)}, id="back"),
        pytest.param(
            {"run": replace(a_run(StepState.VERIFYING, an_intent()), baseline=CALM)}, id="all changed"
        ),
        pytest.param({"run": a_run(StepState.ROLLING_OUT, an_intent(), step=REPLACE)}, id="a replacement"),
        pytest.param({"wish": Wish.KEEP}, id="a person keeps the change"),
        pytest.param({"verify": {"sideBySide": "Never"}}, id="the spec wants none"),
        pytest.param({"stands": Standing.DRIFTED}, id="somebody edited the template"),
    ],
)
async def test_nothing_is_compared_where(change: dict[str, Any]) -> None:
    assert await Watched(Served(), **change).look() is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({}, id="of three replicas one is changed"),
        pytest.param({"fleet": mid_walk(old=3, new=2, replicas=4)}, id="of four replicas two are"),
        pytest.param({"run": rolling(goal=Goal.NO_WORSE)}, id="the change is to do no harm"),
        pytest.param(
            {"run": replace(a_run(StepState.ROLLING_OUT, an_intent(), step=BUNDLE), baseline=CALM)},
            id="a method of compression is turned off",
        ),
        pytest.param(
            {"run": replace(a_run(StepState.ROLLING_OUT, an_intent(), step=ROLLBACK), baseline=CALM)},
            id="an earlier revision comes back",
        ),
    ],
)
async def test_both_sides_are_compared_where(change: dict[str, Any]) -> None:
    found = await Watched(Served(), **change).look()

    assert found is not None
    assert found.state is ComparisonState.WATCHING
    assert "compared after 2 min" in found.message
