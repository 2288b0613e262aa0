"""Which replicas a fleet is judged on, and which are left out and named."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from builders import CALM, NO_SERIES, STALE, UNSUPPORTED, an_observation, without
from kvmedic.controller.verify import part_to_judge
from kvmedic.kube.objects import is_finished
from kvmedic.model.devices import ContainerEnd, Instance
from kvmedic.model.evidence import PodReadings, Signal
from kvmedic.model.fleet import CRASH_LOOP, Fleet, Pod
from kvmedic.model.plan import Goal, Step
from kvmedic.model.run import StepRecord, StepState
from kvmedic.rollout import row_of
from kvmedic.rollout.preconditions import Purpose
from kvmedic.verdict.baseline import exclude_pods, is_quorate, judged_part, quorum_line
from run_builder import BUNDLE, CONFIG, NOW, REPLACE, ROLLBACK, SCALE, STEP, a_fleet, a_pod, a_run
from worlds.steps import GATE, MINIMUM, a_minimum
from worlds.steps import TRIAL as ON_A_POD

HELD = Signal.PREEMPTIONS_PER_REQUEST_HELD
WINDOW = timedelta(minutes=5)
HOUR = timedelta(hours=1)
GOOD = CALM.readings()
SILENT = without(GOOD, HELD, NO_SERIES)
ENDED = ContainerEnd("vllm", 1, "Error", NOW - HOUR, NOW - timedelta(minutes=20), Instance.PRESENT)


def down(since: timedelta = timedelta(minutes=20), **changes: object) -> Pod:
    return a_pod("x", ready_at=None, unready_at=NOW - since, **changes)


def ready(age: timedelta) -> Pod:
    return a_pod("x", ready_at=NOW - age)


def out(pod: Pod, readings: PodReadings, peers: int) -> str:
    """Return why a replica is left out beside so many peers that can be judged; empty where it is not."""
    others = [a_pod(f"p{i}") for i in range(peers)]
    seen = an_observation(*[GOOD] * peers, readings, window_seconds=WINDOW.total_seconds())
    names = [*(one.name for one in others), pod.name]
    named = dict(zip(names, seen.pods.values(), strict=True))
    found = exclude_pods([*others, pod], replace(seen, pods=named), NOW)
    assert set(found) <= {pod.name}
    return found[pod.name].why if found else ""


ROWS = [
    ("one that serves", a_pod("x"), GOOD, 1, ""),
    ("one as old as the window", ready(WINDOW), GOOD, 1, ""),
    (
        "a younger one",
        ready(WINDOW - timedelta(seconds=1)),
        GOOD,
        2,
        "Ready for less than the trigger's window",
    ),
    ("a younger one that says nothing", ready(timedelta(seconds=9)), SILENT, 1, "Ready for less than the"),
    (
        "one that will only be Ready, by another clock",
        ready(-HOUR),
        GOOD,
        2,
        "Ready for less than the trigger's",
    ),
    ("a young one alone", ready(timedelta(seconds=9)), GOOD, 0, ""),
    ("one that crashes", down(waiting_reason=CRASH_LOOP), SILENT, 1, f"not Ready: {CRASH_LOOP}"),
    ("one without a place", down(unschedulable=True), SILENT, 1, "not Ready: it cannot be scheduled"),
    ("one whose engine ended", down(last_end=ENDED), SILENT, 1, "not Ready: its engine ended"),
    ("one that starts", down(HOUR), SILENT, 1, "not Ready: it starts"),
    ("one that nobody explains, of two", down(), GOOD, 1, ""),
    ("one that nobody explains, of four", down(), GOOD, 3, ""),
    ("one that nobody explains, of five", down(), GOOD, 4, "not Ready: nobody says why"),
    ("a silent one of four", a_pod("x"), SILENT, 3, ""),
    ("a silent one of five", a_pod("x"), SILENT, 4, "no metrics: NoSeries"),
    ("a stale one of five", a_pod("x"), without(GOOD, HELD, STALE), 4, "its metrics are stale"),
    ("one without that signal", a_pod("x"), without(GOOD, HELD, UNSUPPORTED), 4, ""),
    ("the only one, down", down(waiting_reason=CRASH_LOOP), SILENT, 0, ""),
    ("the only one, silent", a_pod("x"), SILENT, 0, ""),
]


@pytest.mark.parametrize(
    ("pod", "readings", "peers", "why"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_replica_is_left_out(pod: Pod, readings: PodReadings, peers: int, why: str) -> None:
    reason = out(pod, readings, peers)

    assert reason.startswith(why)
    assert bool(reason) is bool(why)


def test_a_fleet_that_was_started_as_one_is_judged_as_one() -> None:
    ages = [WINDOW + timedelta(seconds=late) for late in (40, 20, 0, -20, -40)]
    pods = [a_pod(f"llm-{i}", ready_at=NOW - age) for i, age in enumerate(ages)]

    assert exclude_pods(pods, an_observation(*[GOOD] * 5, window_seconds=300), NOW) == {}
    assert exclude_pods(pods[2:4], an_observation(GOOD, GOOD, SILENT, SILENT, window_seconds=300), NOW) == {}


@pytest.mark.parametrize(
    ("older", "young", "apart"), [(0, 5, 0), (1, 4, 0), (2, 3, 0), (2, 2, 0), (3, 2, 2), (4, 1, 1)]
)
def test_young_replicas_are_set_apart_where_most_are_older(older: int, young: int, apart: int) -> None:
    ages = [HOUR] * older + [timedelta(seconds=30)] * young
    pods = [a_pod(f"llm-{i}", ready_at=NOW - age) for i, age in enumerate(ages)]

    assert len(exclude_pods(pods, an_observation(*[GOOD] * len(pods), window_seconds=300), NOW)) == apart


def test_who_is_left_out_is_named_alike_from_look_to_look() -> None:
    ages = [HOUR] * 2 + [timedelta(seconds=9)] * 5
    pods = [a_pod(f"llm-{i}", ready_at=NOW - age) for i, age in enumerate(ages)]
    seen = an_observation(GOOD, GOOD, *[SILENT] * 5, window_seconds=300)

    lines = {quorum_line(2, exclude_pods(pods, seen, NOW + timedelta(seconds=later))) for later in (0, 30)}

    young = "(Ready for less than the trigger's window)"
    assert lines == {
        f"judged on 2 of 7 replicas, without llm-2 {young}, llm-3 {young}, llm-4 {young} and 2 more"
    }


@pytest.mark.parametrize(
    ("pod", "readings", "down_before", "judged_on"),
    [
        (a_pod("x"), GOOD, 0, 5),
        (a_pod("x"), SILENT, 0, 4),
        (down(waiting_reason=CRASH_LOOP), SILENT, 1, 4),
        (down(waiting_reason=CRASH_LOOP), SILENT, 0, 5),
    ],
    ids=["all report", "one is silent", "as many down as before", "one more down than before"],
)
def test_a_change_is_judged_without_whom_it_did_not_bring_down(
    pod: Pod, readings: PodReadings, down_before: int, judged_on: int
) -> None:
    peers = [a_pod(f"p{i}") for i in range(4)]
    seen = an_observation(*[GOOD] * 4, readings, window_seconds=WINDOW.total_seconds())
    named = replace(seen, pods=dict(zip(["p0", "p1", "p2", "p3", "x"], seen.pods.values(), strict=True)))

    part, line = judged_part([*peers, pod], named, down_before)

    assert len(part.pods) == judged_on
    assert ("without x (" in line) is (judged_on == 4)


@pytest.mark.parametrize(
    ("pods", "may"),
    [
        ([a_pod("a"), down()], False),
        ([*(a_pod(f"p{i}") for i in range(3)), down()], False),
        ([*(a_pod(f"p{i}") for i in range(4)), down()], True),
        ([a_pod("a"), down(waiting_reason=CRASH_LOOP), down(waiting_reason=CRASH_LOOP)], True),
        ([down(waiting_reason=CRASH_LOOP)], False),
    ],
    ids=["one of two", "one of four", "one of five", "two of three, explained", "the only one, explained"],
)
def test_replicas_that_are_not_ready_keep_no_change_from_the_others(pods: list[Pod], *, may: bool) -> None:
    assert is_quorate(pods) is may


# One of five, in each state, before and after each kind of step.

ROLLOUTS: dict[str, Step] = {"flag": STEP, "file": CONFIG, "bundle": BUNDLE, "revision": ROLLBACK}
REPLACED: dict[str, Step] = {"replace": replace(REPLACE, replicas=5)}
ADDING: dict[str, Step] = {"scale out": replace(SCALE, before=5, after=6), "minimum": MINIMUM}
ASKING: dict[str, Step] = {"trial": ON_A_POD, "gate": GATE}
CHANGES = {**ROLLOUTS, **REPLACED, **ADDING}
EVERY: dict[str, Step] = {**CHANGES, **ASKING}
GONE = a_pod("gone", terminating=True, ready_at=None, unready_at=NOW - HOUR, in_rotation=False)
STARTS = a_pod("x", created_at=NOW, ready_at=None, unready_at=NOW, in_rotation=False)
STATES: dict[str, tuple[tuple[Pod, ...], set[str]]] = {
    "young": ((ready(timedelta(seconds=9)),), set()),
    "unscraped": ((a_pod("x"),), set()),
    "starts": ((STARTS,), set()),
    "crashes": ((down(waiting_reason=CRASH_LOOP, in_rotation=False),), set()),
    "down, and nobody says why": ((down(in_rotation=False),), set()),
    "lingers on a node that is gone": ((GONE, STARTS), set()),
    "goes, and serves still": ((replace(GONE, ready_at=NOW - HOUR), STARTS), set(EVERY)),
    "finds no node": ((down(unschedulable=True, in_rotation=False),), {*ROLLOUTS, *REPLACED}),
}


def five(*more: Pod, peers: int = 4) -> Fleet:
    """Return a fleet with its own and another revision, and an autoscaler that keeps two."""
    pods = (*(a_pod(name) for name in "abcd"[:peers]), *more)
    live, up = (
        sum(not pod.terminating for pod in pods),
        sum(pod.ready and not pod.terminating for pod in pods),
    )
    own = replace(a_fleet().replica_sets[0], desired=live, available=up)
    kept = replace(
        own, name=ROLLBACK.after.replica_set, revision=ROLLBACK.after.template, desired=0, available=0
    )
    return a_fleet(replicas=live, pods=pods, replica_sets=(own, kept), minimum=a_minimum())


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("state", STATES)
def test_a_step_begins_beside_one_that_is_not_as_the_others(state: str, kind: str) -> None:
    pods, kept_from = STATES[state]

    refused = row_of(EVERY[kind]).find_blocker(five(*pods), Purpose.RELIEF)

    assert (refused is not None) is (kind in kept_from), refused


@pytest.mark.parametrize("kind", CHANGES)
def test_no_step_begins_where_too_few_are_ready_and_nobody_says_why(kind: str) -> None:
    refused = row_of(EVERY[kind]).find_blocker(five(down(in_rotation=False), peers=3), Purpose.RELIEF)

    assert "3 of 4 replicas are Ready: see why x is not" in refused.message


def test_an_evicted_pod_that_lingers_is_no_replica() -> None:
    assert is_finished({"status": {"phase": "Failed", "reason": "Evicted"}})


def test_a_bad_replica_is_replaced_though_it_is_not_ready() -> None:
    bad = replace(five(), pods=(down(in_rotation=False), *five().pods[1:3]), replicas=3)
    bad = replace(bad, replica_sets=(replace(bad.replica_sets[0], desired=3, available=2),))

    assert row_of(replace(REPLACE, uid="uid-x")).find_blocker(bad, Purpose.RELIEF) is None
    assert row_of(REPLACE).find_blocker(bad, Purpose.RELIEF) is not None


JUDGED: dict[str, tuple[Pod, PodReadings, int]] = {
    "young": (ready(timedelta(seconds=9)), GOOD, 0),
    "unscraped": (a_pod("x"), SILENT, 0),
    "down as before": (down(waiting_reason=CRASH_LOOP), SILENT, 1),
    "as the others": (a_pod("x"), GOOD, 0),
    "down since the change": (down(waiting_reason=CRASH_LOOP), SILENT, 0),
}


@pytest.mark.parametrize("goal", [Goal.RELIEF, Goal.CALM])
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("state", JUDGED)
def test_each_step_is_judged_without_it_and_names_it(state: str, kind: str, goal: Goal) -> None:
    pod, readings, down_before = JUDGED[state]
    steps = (StepRecord(CHANGES[kind], StepState.VERIFYING),)
    run = replace(a_run(), steps=steps, goal=goal, replicas=5, in_rotation=5 - down_before)
    peers = [*(a_pod(name) for name in "abcd"), a_pod("n", created_at=NOW - timedelta(minutes=9))]
    seen = an_observation(*[GOOD] * 5, readings, window_seconds=WINDOW.total_seconds())
    looked = replace(seen, pods=dict(zip([*"abcdn", "x"], seen.pods.values(), strict=True)))

    part, line = part_to_judge(run, [*peers, pod], looked)

    without_it = state in ("young", "unscraped", "down as before")
    assert ("x" not in part.pods) is without_it
    assert line.startswith("judged on 5 of 6 replicas, without x (") is without_it


@pytest.mark.parametrize("kind", [*REPLACED, "scale out"])
def test_a_replica_that_a_step_added_is_judged_or_nobody_is_left_out(kind: str) -> None:
    run = replace(a_run(), steps=(StepRecord(CHANGES[kind], StepState.VERIFYING),), replicas=5, in_rotation=5)
    pods = [*(a_pod(name) for name in "abcde"), replace(a_pod("x"), created_at=NOW - timedelta(minutes=9))]
    seen = an_observation(*[GOOD] * 5, SILENT, window_seconds=WINDOW.total_seconds())
    looked = replace(seen, pods=dict(zip([*"abcde", "x"], seen.pods.values(), strict=True)))

    assert part_to_judge(run, pods, looked) == (looked, "")
