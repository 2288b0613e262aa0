"""Readings that are all there, or the exact reason why not.

A judgement asks for the signals it needs once, here; after that it works on plain numbers. What is
missing is named: which replica, which signal, and what would provide it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.evidence import (
    HISTOGRAMS,
    Absence,
    Histogram,
    Measured,
    Missing,
    Observation,
    PodReadings,
    Pool,
    Reading,
    Signal,
    Stale,
)
from kvmedic.core.reasons import Reason

NAMED_GAPS = 3
"""Gaps that a message names; the rest is counted, so that a fleet of hundreds fits in one line."""

_ABSENT = {
    Absence.NO_SERIES: (
        Reason.METRICS_MISSING,
        "the source has no series for it; check that the replica is scraped, and that its engine exports "
        "statistics",
    ),
    Absence.NOTHING_FOUND: (
        Reason.METRICS_MISSING,
        "the replica is scraped, without this: its engine's version does not export it, the scrape drops "
        "it, or the replica is younger than the look",
    ),
    Absence.NOT_A_NUMBER: (
        Reason.METRICS_MISSING,
        "the source answered NaN; see what the replica itself exports",
    ),
    Absence.SOURCE_UNAVAILABLE: (
        Reason.SOURCE_UNAVAILABLE,
        "the source did not answer completely; check the metrics source",
    ),
    Absence.AMBIGUOUS: (
        Reason.METRICS_AMBIGUOUS,
        "the source has series that contradict each other; check that the replica is scraped once",
    ),
    Absence.OTHER_ADDRESS: (
        Reason.METRICS_MISSING,
        "its series come from a target that is not at the pod's IP address, so they are not used; have the "
        "scrape leave the label instance at ADDRESS:PORT of the pod, and see who else exports the pod's name",
    ),
    Absence.UNREADABLE: (
        Reason.METRICS_MISSING,
        "the source answered with something else; see what the replica itself exports",
    ),
}


AnyReading: TypeAlias = Reading[float] | Reading[Histogram] | Reading[Pool]


@dataclass(frozen=True, slots=True)
class Complete:
    """One replica with a value for every signal that was asked for."""

    numbers: Mapping[Signal, float]
    histograms: Mapping[Signal, Histogram]

    @property
    def preemptions_per_request(self) -> float:
        """Return preemptions per finished request; where none finished, per one."""
        return self.numbers[Signal.PREEMPTIONS] / max(1.0, self.numbers[Signal.REQUESTS_FINISHED])


def complete(observation: Observation, signals: frozenset[Signal]) -> Mapping[str, Complete] | Inconclusive:
    """Return every replica's values by pod name, or what is missing on which replica."""
    if not observation.pods:
        return Inconclusive(
            Reason.NO_REPLICAS,
            "no replica is expected to serve: scale the target out, or leave it; there is nothing to look at",
        )
    gaps = [gap for name in sorted(observation.pods) for gap in _gaps(observation, name, signals)]
    if gaps:
        return _inconclusive(gaps)
    return {name: _complete(observation.pods[name], signals) for name in sorted(observation.pods)}


def pools(observation: Observation) -> Mapping[str, Pool] | Inconclusive:
    """Return every replica's KV-cache pool by pod name, or which replica's is not known."""
    found = {name: readings.pool for name, readings in sorted(observation.pods.items())}
    whys = {name: _why(reading, observation) for name, reading in found.items()}
    gaps = [(why[0], f"{name}: KV-cache pool: {why[1]}") for name, why in whys.items() if why is not None]
    if gaps:
        return _inconclusive(gaps)
    return {name: reading.value for name, reading in found.items() if isinstance(reading, Measured)}


def total(found: Mapping[str, Complete], signal: Signal) -> float:
    """Return a number, added up over replicas."""
    return sum(one.numbers[signal] for one in found.values())


def total_if_told(observation: Observation, signal: Signal) -> float | None:
    """Return a number that a judgement can do without, added up; None where a replica does not tell."""
    told = [number(readings, signal) for readings in observation.pods.values()]
    known = [each for each in told if each is not None]
    return sum(known) if len(known) == len(told) else None


def total_of_told(observation: Observation, signal: Signal) -> float:
    """Return a number that a judgement can do without, added up over the replicas that tell it."""
    return sum(number(readings, signal) or 0.0 for readings in observation.pods.values())


def number(readings: PodReadings, signal: Signal) -> float | None:
    """Return a number that a judgement can do without, or None where it is not measured."""
    reading = readings.number(signal)
    return reading.value if isinstance(reading, Measured) else None


def histogram(readings: PodReadings, signal: Signal) -> Histogram | None:
    """Return a histogram that a judgement can do without, or None where it is not measured."""
    reading = readings.histogram(signal)
    return reading.value if isinstance(reading, Measured) else None


def _gaps(observation: Observation, name: str, signals: frozenset[Signal]) -> list[tuple[Reason, str]]:
    readings = observation.pods[name]
    found = []
    for signal in sorted(signals):
        reading = readings.histogram(signal) if signal in HISTOGRAMS else readings.number(signal)
        why = _why(reading, observation)
        if why is not None:
            found.append((why[0], f"{name}: {signal}: {why[1]}"))
    return found


def _why(reading: AnyReading, observation: Observation) -> tuple[Reason, str] | None:
    """Return why a reading has no value, or None where it has one."""
    if isinstance(reading, Measured):
        return None
    if isinstance(reading, Missing):
        return _ABSENT[reading.reason]
    if isinstance(reading, Stale):
        age = (observation.at - reading.at).total_seconds()
        return Reason.METRICS_STALE, f"the newest sample is {age:.0f} s old; check the scrape"
    return Reason.SIGNAL_UNSUPPORTED, "this engine does not export it; a newer version may"


def _inconclusive(gaps: list[tuple[Reason, str]]) -> Inconclusive:
    named = "; ".join(text for _, text in gaps[:NAMED_GAPS])
    rest = f"; and {len(gaps) - NAMED_GAPS} more" if len(gaps) > NAMED_GAPS else ""
    return Inconclusive(gaps[0][0], named + rest)


def _complete(readings: PodReadings, signals: frozenset[Signal]) -> Complete:
    wanted = {signal: readings.number(signal) for signal in signals - HISTOGRAMS}
    counted = {signal: readings.histogram(signal) for signal in signals & HISTOGRAMS}
    return Complete(
        {signal: one.value for signal, one in wanted.items() if isinstance(one, Measured)},
        {signal: one.value for signal, one in counted.items() if isinstance(one, Measured)},
    )
