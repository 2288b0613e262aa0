"""The evidence for one target: two looks at the same replicas, how they fare, what was deployed of late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta

from kvmedic.core.diagnosis import Evidence
from kvmedic.core.evidence import Observation, Reading, Unsupported
from kvmedic.core.fleet import Pod
from kvmedic.core.policy import Policy
from kvmedic.core.record import ClosedRun
from kvmedic.core.vitals import Device, Vitals
from kvmedic.deploys import Moment, latest_deploy
from kvmedic.ports import Ends, Senses, View


def expected(view: View) -> tuple[Pod, ...]:
    """Return the pods that should serve: every one that is not terminating, by name."""
    return tuple(sorted((p for p in view.fleet.pods if not p.terminating), key=lambda p: p.name))


async def gather(
    policy: Policy, namespace: str, view: View, senses: Senses, history: Sequence[ClosedRun] = ()
) -> Evidence:
    """Return the evidence for one target: two looks at the same replicas, how they fare, what was deployed.

    Args:
        policy: the spec.
        namespace: of the target.
        view: the target.
        senses: what to look with.
        history: closed runs of the resource, whose changes are no deploys.
    """
    pods, metrics = expected(view), senses.metrics
    windows = policy.windows
    burn, sizing, devices = await asyncio.gather(
        metrics.observe(policy.source, pods, namespace, windows.trigger, windows.hold),
        metrics.observe(policy.source, pods, namespace, windows.sizing, timedelta(0)),
        metrics.devices(policy.source, pods, namespace, windows.trigger),
    )
    vitals = await vitals_of(burn, namespace, view, senses.ends, devices)
    deploy = await latest_deploy(policy, namespace, view, metrics, Moment(burn.at, history))
    return Evidence(burn, sizing, policy.trigger, vitals, policy.node_health, deploy)


async def vitals_of(
    burn: Observation,
    namespace: str,
    view: View,
    ends: Ends,
    devices: Mapping[str, Reading[tuple[Device, ...]]],
) -> dict[str, Vitals]:
    """Return how each replica fares: its devices, and its engine's last end inside the look's window."""
    pods = expected(view)
    ended = await ends.ends(namespace, pods, burn.at - timedelta(seconds=burn.window_seconds))
    return {
        pod.name: Vitals(pod.node, devices.get(pod.name, Unsupported()), ended.get(pod.name)) for pod in pods
    }
