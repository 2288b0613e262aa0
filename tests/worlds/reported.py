"""A run as `kvmedic report` has it: its sentences are the recorded demo's, its figures are made up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import sin
from typing import Any

from kvmedic.cli.live.past_figures import SERIES, PastFigures
from kvmedic.cli.live.run_report import ReportedRun, facts_of
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Cost, Shift, Summary
from kvmedic.model.status import ClosedRun
from kvmedic.record.store import resource_of
from run_builder import NOW
from worlds.api_double import CALM, a_resource

OPENED = NOW - timedelta(minutes=26)
ENDED = ClosedRun(
    id=f"{OPENED:%Y%m%d-%H%M%S}",
    reason=Reason.FLEET_WIDE_DEMAND,
    outcome=Reason.RECOVERED,
    message="preemptions per request 0.51 -> 0.02, stalls over 2 s per request 0.17 -> 0.01",
    steps=("Deployment/inference-llm: maxNumSeqs 128 -> 43: Kept",),
    started_at=OPENED,
    ended_at=OPENED + timedelta(minutes=12),
)
BROUGHT = (
    Shift("servedInTimePerSecond", 1480.0, 1909.0),
    Shift("stallsPerRequest", 0.17, 0.01),
    Shift("preemptionsPerRequest", 0.51, 0.02),
    Shift("timeToFirstTokenP95Seconds", 16.1, 7.4),
)
SUMMARY = Summary(
    ENDED.id,
    ENDED.ended_at,
    ENDED.outcome,
    "Served in time went from 1480 to 1909 tokens per second; nothing was lost.",
    ENDED.steps,
    Cost(3, 410.0, 410.0),
    BROUGHT,
)
MOVES = (
    (
        0.0,
        "Planned",
        "Deployment/inference-llm: maxNumSeqs 128 -> 43. 299 blocks for sequences of 6.8 +- 4.5 hold 43",
    ),
    (0.2, "RollingOut", "The change is being rolled out, one replica at a time."),
    (0.6, "AwaitingCanary", "0 of 1 new replicas are Ready"),
    (1.1, "Draining", "inference-llm-7c9d8f6b54-d42kn is out of rotation and finishes its requests"),
    (4.0, "Comparing", "new and old replicas serve beside each other; they are compared after 2 min"),
    (7.5, "Verifying", "Every replica runs the change; the sustained window is open."),
)
SILENT_AT = range(33, 37)
"""Moments at which the source did not answer."""


def an_example_report() -> dict[str, Any]:
    """Return the facts of a run with every part that a report can have."""
    record = replace(CALM, history=(ENDED,), summary=SUMMARY)
    resource = resource_of(a_resource("inference-llm", record))
    events = [
        {"eventTime": f"{OPENED + timedelta(minutes=at):%Y-%m-%dT%H:%M:%S.%fZ}", "reason": what, "note": note}
        for at, what, note in MOVES
    ]
    moments = tuple(_moment(number) for number in range(60))
    return facts_of(resource, ReportedRun(ENDED), events, PastFigures("default", moments), NOW)


def _moment(number: int) -> dict[str, Any]:
    """Return one minute: a burst comes at the 12th, the run lasts from the 20th to the 32nd."""
    at = f"{OPENED + timedelta(minutes=number - 20):%Y-%m-%dT%H:%M:%SZ}"
    if number in SILENT_AT:
        return {"at": at, **dict.fromkeys(SERIES), "why": "no replica reported anything"}
    changed = min(1.0, max(0.0, (number - 21) / 9))
    trouble = (0.0 if number < 12 else min(1.0, (number - 12) / 4)) * (1 - changed)
    wave = 0.03 * sin(1.7 * number)
    new = 0.97 + wave / 4 if number >= 23 else None
    old = 0.98 - 0.62 * (trouble if number < 23 else 0.95) + wave / 2 if number < 31 else None
    return {
        "at": at,
        "replicas": 4 if 20 < number < 30 else 3,
        "servedInTime": round(0.98 - 0.4 * trouble + wave / 4, 4),
        "servedInTimePerSecond": round(1900 - 900 * trouble + 900 * wave, 2),
        "servedInTimeOfNew": new and round(new, 4),
        "servedInTimeOfOld": old and round(old, 4),
        "silentSecondsPerRequest": round(0.4 + 11 * trouble + 2 * abs(wave), 3),
        "stallsPerRequest": round(0.01 + 0.16 * trouble, 4),
        "timeToFirstTokenP95Seconds": round(2.1 + 14 * trouble + 8 * abs(wave), 3),
        "preemptionsPerSecond": round(15.8 * trouble, 4),
        "kvCacheUsage": round(0.55 + 0.43 * trouble + wave / 2, 4),
        "running": round(68 + 72 * trouble + 60 * wave, 4),
        "waiting": round(2 + 160 * trouble + 30 * abs(wave), 4),
        "why": None,
    }
