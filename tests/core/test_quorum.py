"""Which replicas a fleet is judged on, and which are left out and named."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from builders import CALM, NO_SERIES, STALE, UNSUPPORTED, an_observation, without
from kvmedic.core.evidence import PodReadings, Signal
from kvmedic.core.fleet import CRASH_LOOP, ContainerEnd, Instance, Pod
from kvmedic.core.quorum import is_quorate, judged_part, left_out, quorum_line
from run_builder import NOW, a_pod

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
    found = left_out([*others, pod], replace(seen, pods=named), NOW)
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
    told = out(pod, readings, peers)

    assert told.startswith(why)
    assert bool(told) is bool(why)


def test_a_fleet_that_was_started_as_one_is_judged_as_one() -> None:
    ages = [WINDOW + timedelta(seconds=late) for late in (40, 20, 0, -20, -40)]
    pods = [a_pod(f"llm-{i}", ready_at=NOW - age) for i, age in enumerate(ages)]

    assert left_out(pods, an_observation(*[GOOD] * 5, window_seconds=300), NOW) == {}
    assert left_out(pods[2:4], an_observation(GOOD, GOOD, SILENT, SILENT, window_seconds=300), NOW) == {}


@pytest.mark.parametrize(("older", "apart"), [(0, 0), (1, 0), (2, 0), (3, 2), (4, 1)])
def test_young_replicas_are_set_apart_where_most_are_older(older: int, apart: int) -> None:
    ages = [HOUR] * older + [timedelta(seconds=30)] * (5 - older)
    pods = [a_pod(f"llm-{i}", ready_at=NOW - age) for i, age in enumerate(ages)]

    assert len(left_out(pods, an_observation(*[GOOD] * 5, window_seconds=300), NOW)) == apart


def test_who_is_left_out_is_told_the_same_from_look_to_look() -> None:
    ages = [HOUR] * 2 + [timedelta(seconds=9)] * 5
    pods = [a_pod(f"llm-{i}", ready_at=NOW - age) for i, age in enumerate(ages)]
    seen = an_observation(GOOD, GOOD, *[SILENT] * 5, window_seconds=300)

    told = {quorum_line(2, left_out(pods, seen, NOW + timedelta(seconds=later))) for later in (0, 30)}

    young = "(Ready for less than the trigger's window)"
    assert told == {
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
    ids=["all tell", "one is silent", "as many down as before", "one more down than before"],
)
def test_a_change_is_judged_without_whom_it_did_not_bring_down(
    pod: Pod, readings: PodReadings, down_before: int, judged_on: int
) -> None:
    peers = [a_pod(f"p{i}") for i in range(4)]
    seen = an_observation(*[GOOD] * 4, readings, window_seconds=WINDOW.total_seconds())
    named = replace(seen, pods=dict(zip(["p0", "p1", "p2", "p3", "x"], seen.pods.values(), strict=True)))

    part, told = judged_part([*peers, pod], named, down_before)

    assert len(part.pods) == judged_on
    assert ("without x (" in told) is (judged_on == 4)


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
