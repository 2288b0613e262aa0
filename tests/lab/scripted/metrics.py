"""The metrics port, answered from a script that a test may rewrite at any time.

The script is a JSON file: `{"old": "thrash", "new": "recovered", "pods": {"NAME": "missing"},
"inFlight": 0}`. `old` and `new` tell replicas by their engine's cap: the old value stands in `cap`.
`"byCount": {"3": "recovered"}` tells every replica by how many there are, where that number is named.
`"devices": {"NAME": {"lastXid": 79}}` gives a replica one GPU, `*` every other replica; without it no
exporter tells of any GPU. `memoryInUse` and `memoryFreeMiB` of such a GPU are not known unless they are told.
`"before": "recovered"` is how the replicas of an earlier revision fared; without it nobody remembers.
`"peak": 900` is the most tokens per second that each replica was asked for; without it no history tells.
`"version": "0.32.0"` is what every engine calls itself; without it none has such a page.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kvmedic.model.devices import Device, Vital
from kvmedic.model.engine import Version
from kvmedic.model.evidence import Absence, Look, Measured, Missing, Observation, Pool, Reading
from kvmedic.model.fleet import Pod
from kvmedic.model.readings import Alone
from lab.scripted.readings import POOL, State, only, readings


@dataclass(frozen=True, slots=True)
class ScriptedMetrics:
    """Answers from the script; what a test says of a pod by name wins over what it says of a revision."""

    path: Path

    def _script(self) -> dict[str, Any]:
        return json.loads(self.path.read_text())

    async def observe(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta, hold: timedelta
    ) -> Observation:
        return await self.look(source, pods, namespace, Look(window, hold))

    async def look(self, source: str, pods: Sequence[Pod], namespace: str, look: Look) -> Observation:
        script, at = self._script(), datetime.now(UTC)
        named, counted = script.get("pods", {}), script.get("byCount", {}).get(str(len(pods)))
        states = {
            pod.name: State(
                named.get(pod.name)
                or counted
                or script["old" if pod.revision == script["revision"] else "new"]
            )
            for pod in pods
        }
        return Observation(
            at,
            look.window.total_seconds(),
            look.hold.total_seconds(),
            {name: only(readings(state, at), look.signals) for name, state in states.items()},
        )

    async def past(
        self, source: str, namespace: str, replica_set: str, at: datetime, look: Look
    ) -> Reading[Observation]:
        before = self._script().get("before")
        if before is None:
            return Missing(Absence.NO_SERIES)
        pods = {f"{replica_set}-{end}": only(readings(State(before), at), look.signals) for end in "ab"}
        return Measured(Observation(at, look.window.total_seconds(), 0.0, pods), at)

    async def last_alone(self, source: str, namespace: str, sought: Alone, at: datetime) -> Reading[datetime]:
        if self._script().get("before") is None:
            return Missing(Absence.NO_SERIES)
        return Measured(at - sought.window, at)

    async def past_devices(
        self, source: str, namespace: str, pods: Iterable[str], at: datetime, window: timedelta
    ) -> Mapping[str, Reading[tuple[Device, ...]]]:
        return dict.fromkeys(pods, Missing(Absence.NO_SERIES))

    async def devices(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta
    ) -> Mapping[str, Reading[tuple[Device, ...]]]:
        script, at = self._script(), datetime.now(UTC)
        told = script.get("devices", {})
        return {pod.name: _device(told.get(pod.name, told.get("*")), at) for pod in pods}

    async def peaks(self, source: str, pods: Sequence[Pod], namespace: str) -> Mapping[str, Reading[float]]:
        script, at = self._script(), datetime.now(UTC)
        told = script.get("peak")
        peak: Reading[float] = Missing(Absence.NO_SERIES) if told is None else Measured(float(told), at)
        return dict.fromkeys((pod.name for pod in pods), peak)

    async def in_flight(self, source: str, namespace: str, pod: Pod) -> Reading[float]:
        count = self._script().get("inFlight", 0)
        return (
            Missing(Absence.SOURCE_UNAVAILABLE)
            if count is None
            else Measured(float(count), datetime.now(UTC))
        )

    async def pool(self, namespace: str, pod: Pod) -> Reading[Pool]:
        return Measured(POOL, datetime.now(UTC))

    async def version(self, namespace: str, pod: Pod) -> Reading[Version]:
        told = self._script().get("version")
        return Measured(Version.parse(told), datetime.now(UTC)) if told else Missing(Absence.NOTHING_FOUND)


def _device(told: Mapping[str, float] | None, at: datetime) -> Reading[tuple[Device, ...]]:
    """Return one GPU that is well but for what is told; None: no exporter tells of it."""
    if told is None:
        return Missing(Absence.NO_SERIES)
    vitals = (Vital.CLOCK_REASONS, Vital.LAST_XID, Vital.UNCORRECTABLE_ERRORS, Vital.ROW_REMAP_FAILED)
    readings: dict[Vital, Reading[float]] = {v: Measured(float(told.get(v, 0)), at) for v in vitals}
    for vital in (Vital.MEMORY_IN_USE, Vital.MEMORY_FREE):
        if vital in told:
            readings[vital] = Measured(float(told[vital]), at)
    return Measured((Device("GPU 0", readings),), at)
