"""A fleet that is looked at without a cluster: its metrics and logs, and what was asked of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from kvmedic.engines.engine_log import Start, StartForms, Unread
from kvmedic.model.devices import Device, EngineEnd
from kvmedic.model.engine import Version
from kvmedic.model.evidence import (
    Absence,
    LogForms,
    LoggedSize,
    Look,
    Measured,
    Missing,
    Observation,
    PastLengths,
    Reading,
    Unsupported,
)
from kvmedic.model.fleet import Pod
from kvmedic.model.status import LastGood, Record, Resource, Traffic
from kvmedic.record.store import resource_of
from kvmedic.runbooks.workload import View
from lab.scripted.readings import State, only, readings
from run_builder import NOW, OLD, UID, a_fleet
from worlds.world import deployment, remediation


@dataclass
class Asked:
    """Metrics of replicas that are all in one state, and what was asked of them."""

    state: State
    looks: list[Look] = field(default_factory=list)
    gpus: Reading[tuple[Device, ...]] = field(default_factory=lambda: Missing(Absence.NO_SERIES))
    peak: Reading[float] = field(default_factory=lambda: Missing(Absence.NO_SERIES))
    """The most tokens per second that each replica was asked for."""
    ended: EngineEnd | None = None
    """Of the first replica."""
    silent: bool = False
    """The engine reports how large its blocks are, and not how many."""
    logged: LoggedSize | None = None
    """What each log says."""
    read: list[tuple[str, ...]] = field(default_factory=list)
    """Whose logs were asked for a pool."""
    started: Start = field(default_factory=lambda: Unread("gone"))
    """What each log says of the start of its engine."""
    asked_for_starts: list[tuple[str, ...]] = field(default_factory=list)
    """Whose logs were asked for the start."""
    asked_for_devices: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    """What replicas call their engine's version, `*` all others; who is not there has no such page."""
    asked_for_versions: list[str] = field(default_factory=list)
    named: Mapping[str, State] = field(default_factory=dict)
    """Replicas that are in a state of their own, by name."""
    lengths: tuple[PastLengths, ...] = ()
    """What the source says of the lengths of the last day."""

    async def look(self, source: str, pods: Sequence[Pod], namespace: str, look: Look) -> Observation:
        self.looks.append(look)
        states = {pod.name: self.named.get(pod.name, self.state) for pod in pods}
        seen = {name: only(readings(state, NOW), look.signals) for name, state in states.items()}
        if self.silent:
            seen = {name: replace(one, pool=Unsupported(), block_tokens=32) for name, one in seen.items()}
        return Observation(NOW, look.window.total_seconds(), look.hold.total_seconds(), seen)

    async def observe_past(
        self, source: str, namespace: str, replica_set: str, at: datetime, look: Look
    ) -> Reading[Observation]:
        return Missing(Absence.NO_SERIES)

    async def devices(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta
    ) -> dict[str, Reading[tuple[Device, ...]]]:
        self.asked_for_devices += 1
        return dict.fromkeys((pod.name for pod in pods), self.gpus)

    async def peaks(self, source: str, pods: Sequence[Pod], namespace: str) -> dict[str, Reading[float]]:
        return dict.fromkeys((pod.name for pod in pods), self.peak)

    async def past_lengths(self, source: str, pods: Sequence[Pod], namespace: str) -> tuple[PastLengths, ...]:
        return self.lengths

    async def version(self, namespace: str, pod: Pod) -> Reading[Version]:
        self.asked_for_versions.append(pod.name)
        text = self.versions.get(pod.name, self.versions.get("*"))
        return Measured(Version.parse(text), NOW) if text else Missing(Absence.NOTHING_FOUND)

    async def last_ends(self, namespace: str, pods: Sequence[Pod], since: datetime) -> dict[str, EngineEnd]:
        return {pod.name: self.ended for pod in pods[:1] if self.ended}

    async def logged_pools(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: LogForms
    ) -> dict[str, LoggedSize]:
        self.read.append((container, *(pod.name for pod in pods)))
        return {pod.name: self.logged for pod in pods if self.logged}

    async def starts(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: StartForms
    ) -> dict[str, Start]:
        self.asked_for_starts.append((container, *(pod.name for pod in pods)))
        return {pod.name: self.started for pod in pods}

    async def observe(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta, hold: timedelta
    ) -> Observation:
        return await self.look(source, pods, namespace, Look(window, hold))


def a_resource(good: str = "", traffic: Traffic | None = None) -> Resource:
    body = remediation()
    body["metadata"] |= {"namespace": "serving", "uid": UID, "resourceVersion": "1"}
    record = Record(last_good=LastGood(good, {}, 3, 149, NOW, traffic) if good else None)
    return replace(resource_of(body), record=record)


def view() -> Any:
    return View(fleet=a_fleet(), template=deployment(3)["spec"]["template"], templates={})


def spec(**more: Any) -> Resource:
    resource = a_resource(good=OLD)
    body = remediation(**more)
    body["metadata"] |= {"namespace": "serving", "uid": UID, "resourceVersion": "1"}
    return replace(resource_of(body), record=resource.record)


@dataclass
class Replicas:
    """Requests on every replica, and how often somebody asked."""

    count: Reading[float]
    asked: int = 0

    async def count_received(self, source: str, namespace: str, pod: Pod) -> Reading[float]:
        return Missing(Absence.NO_SERIES)

    async def count_in_flight(self, source: str, namespace: str, pod: Pod, out: timedelta) -> Reading[float]:
        self.asked += 1
        return self.count

    async def devices(self, *_: object) -> dict[str, Any]:
        return {}
