"""A look at a fleet without an open run: a calm one is glanced at, and the diagnosis is the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kvmedic.core.evidence import EVERY_SIGNAL, Look, Observation, Signal
from kvmedic.core.fleet import Pod
from kvmedic.core.moved import TRAFFIC, Traffic
from kvmedic.core.reasons import Reason
from kvmedic.core.record import LastGood, Record
from kvmedic.core.resource import Resource
from kvmedic.record.store import resource_of
from kvmedic.runbooks.preemption_thrash import TRIGGER
from kvmedic.survey import Survey, examine, healthy_revision, proved_good, survey
from lab.scripted.readings import State, only, readings
from reconcile.world import deployment, remediation
from run_builder import NOW, OLD, UID, a_fleet


@dataclass
class Asked:
    """Metrics of replicas that are all in one state, and what was asked of them."""

    state: State
    looks: list[Look] = field(default_factory=list)

    async def look(self, source: str, pods: Sequence[Pod], namespace: str, look: Look) -> Observation:
        self.looks.append(look)
        seen = {pod.name: only(readings(self.state, NOW), look.signals) for pod in pods}
        return Observation(NOW, look.window.total_seconds(), look.hold.total_seconds(), seen)

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
    return SimpleNamespace(fleet=a_fleet(), template=deployment(3)["spec"]["template"])


async def looked(state: State, good: str = "") -> tuple[Survey, Asked]:
    metrics, resource = Asked(state), a_resource(good)
    assert resource.policy is not None
    return await survey(resource, resource.policy, view(), metrics), metrics


async def test_a_calm_fleet_on_record_is_asked_for_the_trigger_alone() -> None:
    found, metrics = await looked(State.RECOVERED, good=OLD)

    assert [look.signals for look in metrics.looks] == [TRIGGER]
    assert found.diagnosis.reason is Reason.HEALTHY


@pytest.mark.parametrize("good", ["", "another"])
async def test_a_new_revision_is_asked_for_its_traffic_too(good: str) -> None:
    found, metrics = await looked(State.RECOVERED, good)
    policy = a_resource().policy
    assert policy is not None

    proved = healthy_revision(found, policy, datetime.now(NOW.tzinfo))

    assert [look.signals for look in metrics.looks] == [TRIGGER | {Signal.REQUESTS_FINISHED}]
    assert proved is not None
    assert (proved.revision, proved.blocks, proved.flags["maxNumSeqs"]) == (OLD, 149, "64")


async def test_a_fleet_that_cannot_be_seen_is_not_asked_for_more() -> None:
    found, metrics = await looked(State.MISSING, good=OLD)

    assert [look.signals for look in metrics.looks] == [TRIGGER]
    assert found.diagnosis.reason is Reason.METRICS_MISSING


async def test_a_fleet_in_trouble_is_looked_at_as_a_whole() -> None:
    found, metrics = await looked(State.THRASH, good=OLD)

    assert [look.signals for look in metrics.looks] == [TRIGGER, EVERY_SIGNAL, EVERY_SIGNAL]
    assert found.diagnosis.reason is Reason.FLEET_WIDE_DEMAND
    assert found.plan is not None


@pytest.mark.parametrize("state", list(State))
async def test_the_diagnosis_is_that_of_a_whole_look(state: State) -> None:
    found, _ = await looked(state, good=OLD)
    resource = a_resource()
    assert resource.policy is not None

    whole = await examine(resource, resource.policy, view(), Asked(state))

    assert found.diagnosis == whole.diagnosis
    assert (found.runbook, found.plan, found.obstacle) == (whole.runbook, whole.plan, whole.obstacle)


@pytest.mark.parametrize("good", ["", "another"])
async def test_a_revision_that_proves_good_is_recorded_with_its_traffic(good: str) -> None:
    found, metrics = await looked(State.RECOVERED, good)
    resource = a_resource(good)
    assert resource.policy is not None

    proved = await proved_good(found, resource, resource.policy, metrics, NOW)

    assert metrics.looks[-1].signals == TRAFFIC
    assert proved is not None
    assert proved.traffic is not None
    assert proved.traffic.output_tokens == pytest.approx(190)
    assert proved.traffic.requests_per_second == pytest.approx(3 * 400 / 60)


async def test_a_revision_on_record_is_not_looked_at_again() -> None:
    found, metrics = await looked(State.RECOVERED, good=OLD)
    resource = a_resource(OLD)
    assert resource.policy is not None
    looks = len(metrics.looks)

    await proved_good(found, resource, resource.policy, metrics, NOW)

    assert len(metrics.looks) == looks


THEN = Traffic(requests_per_second=10, prompt_tokens=64, output_tokens=90, limit_tokens=190)


@pytest.mark.parametrize(
    ("good", "says"),
    [
        (LastGood(OLD, {}, 3, 149, NOW, THEN), "arrivals 10 -> 20/s, outputs 90 -> 190 tokens"),
        (LastGood("before", {}, 3, 149, NOW, None), f"pod template before -> {OLD}"),
        (LastGood(OLD, {}, 3, 149, NOW, Traffic()), "nothing that is recorded"),
    ],
    ids=["traffic", "the template", "nothing"],
)
async def test_the_diagnosis_of_a_trouble_says_what_moved_since_it_was_healthy(
    good: LastGood, says: str
) -> None:
    resource = replace(a_resource(), record=Record(last_good=good))
    assert resource.policy is not None

    found = await survey(resource, resource.policy, view(), Asked(State.THRASH))

    assert f"moved since it was healthy (2026-03-01T03:00:00Z): {says}" in found.diagnosis.line()
    assert found.plan is not None


async def test_a_calm_fleet_is_not_compared() -> None:
    resource = replace(a_resource(), record=Record(last_good=LastGood("before", {}, 3, 149, NOW, THEN)))
    assert resource.policy is not None

    found = await survey(resource, resource.policy, view(), Asked(State.RECOVERED))

    assert "moved" not in found.diagnosis.line()
