"""Incidents with names: for each branch of a runbook one that fires it and a near twin that must not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from builders import CALM, IDLE, THRASHING, Replica, an_evidence
from kvmedic.core.diagnosis import Evidence
from kvmedic.core.reasons import Reason

AT_THE_TRIGGER = replace(THRASHING, preemptions=0.5 * THRASHING.finished)
OVER_THE_TRIGGER = replace(THRASHING, preemptions=0.5 * THRASHING.finished + 1)
BUSY_AND_WELL_CAPPED = Replica(
    finished=1000,
    preemptions=400,
    running_mean=18.7,
    running_max=19,
    waiting_mean=40,
    usage_mean=0.97,
    stalls=10,
)


@dataclass(frozen=True, slots=True)
class Incident:
    """What was seen, and whether the branch applies."""

    name: str
    evidence: Evidence
    fires: bool


INCIDENTS: dict[Reason, tuple[Incident, ...]] = {
    Reason.HEALTHY: (
        Incident("nobody sends anything", an_evidence(IDLE, IDLE, IDLE), fires=True),
        Incident("a calm day", an_evidence(CALM, CALM, CALM), fires=True),
        Incident("full, capped right, requests wait", an_evidence(*[BUSY_AND_WELL_CAPPED] * 3), fires=True),
        Incident("at the trigger", an_evidence(*[AT_THE_TRIGGER] * 3), fires=True),
        Incident(
            "one of a hundred over the trigger", an_evidence(*[CALM] * 99, OVER_THE_TRIGGER), fires=False
        ),
        Incident("the fleet thrashes", an_evidence(*[THRASHING] * 3), fires=False),
    ),
    Reason.ONE_REPLICA_PRESSURED: (
        Incident("one of two", an_evidence(THRASHING, CALM), fires=True),
        Incident("one of three", an_evidence(CALM, CALM, THRASHING), fires=True),
        Incident("one of a hundred", an_evidence(*[CALM] * 99, THRASHING), fires=True),
        Incident("two of three", an_evidence(THRASHING, THRASHING, CALM), fires=False),
        Incident("half of four", an_evidence(THRASHING, THRASHING, CALM, CALM), fires=False),
        Incident("the fleet thrashes", an_evidence(*[THRASHING] * 3), fires=False),
        Incident("a single replica thrashes", an_evidence(THRASHING), fires=False),
        Incident("its peers get no requests", an_evidence(THRASHING, IDLE, IDLE), fires=False),
        Incident("its peers are just under the trigger", an_evidence(THRASHING, AT_THE_TRIGGER), fires=False),
    ),
    Reason.FLEET_WIDE_DEMAND: (
        Incident("the fleet thrashes", an_evidence(*[THRASHING] * 3), fires=True),
        Incident("a single replica thrashes", an_evidence(THRASHING), fires=True),
        Incident(
            "two of three, the third near it", an_evidence(THRASHING, THRASHING, AT_THE_TRIGGER), fires=True
        ),
        Incident("one preemption over the trigger", an_evidence(*[OVER_THE_TRIGGER] * 3), fires=True),
        Incident("at the trigger", an_evidence(*[AT_THE_TRIGGER] * 3), fires=False),
        Incident("one of two", an_evidence(THRASHING, CALM), fires=False),
        Incident("one of three", an_evidence(THRASHING, CALM, CALM), fires=False),
        Incident("half of four", an_evidence(THRASHING, THRASHING, CALM, CALM), fires=False),
        Incident("full, capped right, requests wait", an_evidence(*[BUSY_AND_WELL_CAPPED] * 3), fires=False),
    ),
}
"""By the reason of the branch."""
