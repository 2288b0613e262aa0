"""How many of a fleet's replicas must be pressured for which change, and a change for some of them alone.

All replicas have one pod template, so what a change costs the calm ones decides how many must be pressured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from kvmedic.core.complete import number
from kvmedic.core.diagnosis import Assignment, NoChange, Setting, SettingAdvice
from kvmedic.core.engine import Knob
from kvmedic.core.evidence import PodReadings, Signal
from kvmedic.core.reasons import Reason
from kvmedic.runbooks.case import Case
from kvmedic.runbooks.levers import first_that_applies

FLEET_SHARE = 2 / 3
"""Share of the replicas that must be pressured before any setting of the fleet is changed: with one or two
replicas all of them, of three two. Replicas behind one Service see the same requests; under demand the
last one is near the trigger too, and where a third or more are calm the cause is not what they share."""
CAP_SHARE, CAP_LEAST = 1 / 4, 2
"""Share and number of the replicas that must be pressured for a cap on sequences: a cap over what the calm
ones run costs them nothing. One alone is another branch's; of fewer than a quarter the cause is their own."""


def most_of(replicas: int) -> int:
    """Return how many of some replicas are most of them."""
    return ceil(FLEET_SHARE * replicas)


def enough_for_a_cap(replicas: int) -> int:
    """Return how many of some replicas must be pressured for a cap on sequences."""
    return min(replicas, max(CAP_LEAST, ceil(CAP_SHARE * replicas)))


def cap_over_calm(case: Case, setting: Setting, calm: Mapping[str, PodReadings]) -> SettingAdvice:
    """Return a cap for the pressured replicas that the calm ones stay under, or why there is none.

    Args:
        case: of the pressured replicas.
        setting: the present setting.
        calm: readings of the others, by name.
    """
    caps = tuple(bound for bound in setting.levers if bound.knob is Knob.MAX_NUM_SEQS)
    advice = first_that_applies(case, replace(setting, levers=caps))
    if not isinstance(advice, Assignment):
        return advice
    for name, readings in sorted(calm.items()):
        running = number(readings, Signal.RUNNING_MEAN)
        each = None if running is None else running / readings.engines
        if each is None or each > float(advice.value):
            told = "nobody knows how many sequences it runs" if each is None else f"it runs {each:.0f}"
            text = f"a cap of {advice.value} would hold up {name}, which is calm: {told} on average"
            return NoChange(Reason.PARTIAL_PRESSURE, text)
    return advice
