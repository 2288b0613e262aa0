"""Gates: an unanswerable one blocks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from kvmedic.core.diagnosis import Trigger
from kvmedic.core.gates import Stop, forward_gate, opening_gate
from kvmedic.core.maintenance import MaintenanceWindow
from kvmedic.core.policy import (
    Limits,
    Mode,
    OnInconclusive,
    Policy,
    RolloutPolicy,
    RotationLabel,
    Runbook,
    Spare,
    TargetRef,
    Windows,
)
from kvmedic.core.reasons import Reason
from kvmedic.core.record import ClosedRun
from kvmedic.core.verdict import Objectives
from kvmedic.core.vitals import NodeHealth
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
    ],
    ids=[
        "first run",
        "too few healthy",
        "in cooldown",
        "cooldown over",
        "budget used",
        "budget of yesterday",
    ],
)
def test_what_lets_a_run_open(history, ready, expected):
    blocked = opening_gate(LIMITS, history, ready, NOW)

    assert (blocked.reason if blocked else None) is expected


def test_no_run_opens_outside_of_the_windows_and_the_next_opening_is_told():
    window = MaintenanceWindow(frozenset({"Sat"}), time(22), time(6), ZoneInfo("Europe/Berlin"))
    limits = replace(LIMITS, windows=(window,))

    friday, saturday = (datetime(2026, 11, day, 21, 30, tzinfo=UTC) for day in (20, 21))

    blocked = opening_gate(limits, [], 2, friday)
    assert blocked is not None
    assert blocked.reason is Reason.OUTSIDE_WINDOWS
    assert blocked.message == "spec.limits.windows opens next at 2026-11-21 21:00Z (a Saturday)"
    assert opening_gate(limits, [], 2, saturday) is None
