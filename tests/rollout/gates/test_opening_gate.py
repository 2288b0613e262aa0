"""Gates: an unanswerable one blocks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from kvmedic.model.devices import NodeHealth
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import (
    Limits,
    MaintenanceWindow,
    Mode,
    Objectives,
    OnInconclusive,
    Policy,
    RolloutPolicy,
    RotationLabel,
    Runbook,
    Spare,
    TargetRef,
    Trigger,
    Windows,
)
from kvmedic.model.status import ClosedRun
from kvmedic.rollout.gates.opening import Health, Stop, forward_gate, opening_gate
from run_builder import NOW

MINUTE = timedelta(minutes=1)
LIMITS = Limits(cooldown=30 * MINUTE, max_runs_per_day=2, min_healthy_replicas=2)
AUTO = Policy(
    target=TargetRef("Deployment", "llm", None),
    mode=Mode.AUTO,
    suspended=False,
    runbooks=(Runbook.PREEMPTION_THRASH,),
    source="default",
    objectives=Objectives(),
    trigger=Trigger(0.5, 0.85),
    windows=Windows(MINUTE, timedelta(0), MINUTE, MINUTE),
    node_health=NodeHealth.IF_AVAILABLE,
    levers=(),
    rollout=RolloutPolicy(Spare.REQUIRED, MINUTE, RotationLabel("serving", "draining")),
    on_inconclusive=OnInconclusive.HOLD,
    limits=LIMITS,
)


def ended(minutes_ago: float) -> ClosedRun:
    at = NOW - minutes_ago * MINUTE
    return ClosedRun("r", Reason.FLEET_WIDE_DEMAND, Reason.RECOVERED, "", (), at - MINUTE, at)


def on_trial(minutes_ago: float) -> ClosedRun:
    return replace(ended(minutes_ago), outcome=Reason.TRIAL_UNANSWERED, on_trial_pod=True)


@pytest.mark.parametrize(
    ("policy", "stop", "expected"),
    [
        (AUTO, Stop.OFF, None),
        (AUTO, Stop.ON, Reason.STOPPED),
        (AUTO, Stop.UNREADABLE, Reason.STOP_UNREADABLE),
        (replace(AUTO, suspended=True), Stop.OFF, Reason.SUSPENDED),
        (replace(AUTO, mode=Mode.OBSERVE), Stop.OFF, Reason.OBSERVE_ONLY),
    ],
    ids=["open", "stopped", "unreadable: blocked", "suspended", "observe"],
)
def test_what_lets_a_run_move_forward(policy, stop, expected):
    blocked = forward_gate(policy, stop)

    assert (blocked.reason if blocked else None) is expected


@pytest.mark.parametrize(
    ("history", "ready", "expected"),
    [
        ([], 2, None),
        ([], 1, Reason.TOO_FEW_HEALTHY),
        ([ended(29.9)], 3, Reason.IN_COOLDOWN),
        ([ended(30)], 3, None),
        ([ended(60), ended(600)], 3, Reason.BUDGET_EXHAUSTED),
        ([ended(60), ended(24 * 60)], 3, None),
        ([on_trial(1), on_trial(2), on_trial(3)], 3, None),
    ],
    ids=[
        "first run",
        "too few healthy",
        "in cooldown",
        "cooldown over",
        "budget used",
        "budget of yesterday",
        "trial pods, whatever they showed",
    ],
)
def test_what_lets_a_run_open(history, ready, expected):
    blocked = opening_gate(LIMITS, history, Health(ready), NOW)

    assert (blocked.reason if blocked else None) is expected


def test_a_cooldown_of_days_is_reported_with_its_day():
    limits = replace(LIMITS, cooldown=timedelta(days=2))

    blocked = opening_gate(limits, [ended(60)], Health(3), NOW)

    assert blocked.message.endswith("the next may start 2026-03-03T02:00:00Z")


@pytest.mark.parametrize(
    ("health", "opens"),
    [
        (Health(ready=0, mendable=2), True),
        (Health(ready=0, mendable=1), False),
        (Health(ready=1, mendable=1), True),
        (Health(ready=1, mendable=0), False),
        (Health(ready=0, mendable=2, others=1), False),
        (Health(ready=1, mendable=4, others=1), False),
        (Health(ready=2, mendable=1, others=1), True),
        (Health(ready=0, mendable=0, others=2), False),
    ],
    ids=[
        "as many as are demanded, and all to be mended",
        "one fewer than is demanded",
        "with one that serves",
        "one serves and the other is not there",
        "another is down for another cause",
        "however many are to be mended",
        "enough serve, whatever the others do",
        "nobody knows why",
    ],
)
def test_replicas_that_are_down_for_what_is_mended_count_where_no_other_is_down(health, opens):
    blocked = opening_gate(LIMITS, [], health, NOW)

    assert (blocked is None) is opens
    assert blocked is None or blocked.reason is Reason.TOO_FEW_HEALTHY


def test_a_person_sees_which_replicas_keep_a_fleet_from_being_mended():
    blocked = opening_gate(LIMITS, [], Health(ready=0, mendable=2, others=1), NOW)

    assert blocked.message == (
        "0 replicas are Ready, 3 are not, 2 of these for the cause that the plan mends: see why the others "
        "are down; spec.limits.minHealthyReplicas is 2"
    )


@pytest.mark.parametrize(
    ("history", "limits", "reason"),
    [
        ([ended(1)], LIMITS, Reason.IN_COOLDOWN),
        ([ended(60), ended(600)], LIMITS, Reason.BUDGET_EXHAUSTED),
    ],
)
def test_a_fleet_that_is_down_has_no_more_runs_than_another(history, limits, reason):
    blocked = opening_gate(limits, history, Health(ready=0, mendable=3), NOW)

    assert blocked.reason is reason


def test_no_run_opens_outside_of_the_windows_and_the_next_opening_is_named():
    window = MaintenanceWindow(frozenset({"Sat"}), time(22), time(6), ZoneInfo("Europe/Berlin"))
    limits = replace(LIMITS, windows=(window,))

    friday, saturday = (datetime(2026, 11, day, 21, 30, tzinfo=UTC) for day in (20, 21))

    blocked = opening_gate(limits, [], Health(2), friday)
    assert blocked.reason is Reason.OUTSIDE_WINDOWS
    assert blocked.message == "spec.limits.windows opens next at 2026-11-21 21:00Z (a Saturday)"
    assert opening_gate(limits, [], Health(2), saturday) is None
