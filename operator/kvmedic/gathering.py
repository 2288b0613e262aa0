"""The evidence for one target: two looks at the same replicas, how they fare, what was deployed of late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.core.compressed import Compressed
from kvmedic.core.diagnosis import Evidence
from kvmedic.core.driver import filled, may_fill
from kvmedic.core.evidence import Measured, Observation, PodReadings, Reading, Unsupported
from kvmedic.core.fleet import Pod
from kvmedic.core.logged_pool import LoggedSize
from kvmedic.core.policy import Policy, Runbook
from kvmedic.core.quorum import left_out
from kvmedic.core.record import ClosedRun
from kvmedic.core.spending import whole_devices_of
from kvmedic.core.vitals import Device, Vitals
from kvmedic.deploys import Moment, latest_deploy
from kvmedic.engines import SIGNALS, STARTS
from kvmedic.ports import Drivers, Logs, Senses, View
from kvmedic.runbooks.cache_types import logs_that_tell
from kvmedic.runbooks.planning import Workload


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
    burn, sizing, devices, peaks = await asyncio.gather(
        metrics.observe(policy.source, pods, namespace, windows.trigger, windows.hold),
        metrics.observe(policy.source, pods, namespace, windows.sizing, timedelta(0)),
        metrics.devices(policy.source, pods, namespace, windows.trigger),
        metrics.peaks(policy.source, pods, namespace),
    )
    vitals = await vitals_of(burn, namespace, view, senses.logs, devices)
    deploy = await latest_deploy(policy, namespace, view, metrics, Moment(burn.at, history))
    evidence = Evidence(burn, sizing, policy.trigger, vitals, policy.node_health, deploy, peaks=peaks)
    return judgeable(evidence, pods, senses.now)


def judgeable(evidence: Evidence, pods: Sequence[Pod], now: datetime | None) -> Evidence:
    """Return evidence without the replicas that the fleet is not to be judged on, where they may be left out.

    Args:
        evidence: of all replicas.
        pods: the replicas.
        now: the operator's own time; None: that of the look.
    """
    out = left_out(pods, evidence.burn, now or evidence.burn.at)
    kept = [name for name in evidence.burn.pods if name not in out]
    burn, sizing = evidence.burn.only(kept), evidence.sizing.only(kept)
    return replace(evidence, burn=burn, sizing=sizing, left_out=out)


async def vitals_of(
    burn: Observation,
    namespace: str,
    view: View,
    logs: Logs,
    devices: Mapping[str, Reading[tuple[Device, ...]]],
) -> dict[str, Vitals]:
    """Return how each replica fares: its devices, and its engine's last end inside the look's window."""
    pods = expected(view)
    ended = await logs.ends(namespace, pods, burn.at - timedelta(seconds=burn.window_seconds))
    return {
        pod.name: Vitals(pod.node, devices.get(pod.name, Unsupported()), ended.get(pod.name)) for pod in pods
    }


def silent_on_pools(evidence: Evidence, view: View) -> tuple[Pod, ...]:
    """Return the replicas whose metrics never tell their pool; their engine's log may."""
    silent = {name for name, readings in evidence.burn.pods.items() if _lone_tokens(readings) is not None}
    return tuple(pod for pod in expected(view) if pod.name in silent)


async def with_logged_pools(
    evidence: Evidence, namespace: str, silent: Sequence[Pod], workload: Workload, logs: Logs
) -> Evidence:
    """Return evidence with the pools of those replicas whose engine tells its pool in its log alone.

    Args:
        evidence: as the metrics tell.
        namespace: of the target.
        silent: replicas whose metrics never tell their pool.
        workload: their engine.
        logs: what the engines wrote.
    """
    signals = SIGNALS[workload.engine.profile.name].pool
    if signals.logged is None:
        return evidence
    container = str(workload.container.get("name"))
    told = await logs.logged_pools(namespace, silent, container, signals.logged)
    null = signals.null_blocks
    burn, sizing = (completed(seen, told, null) for seen in (evidence.burn, evidence.sizing))
    return replace(evidence, burn=burn, sizing=sizing)


def silent_on_methods(
    method: Compressed | None, policy: Policy, evidence: Evidence, view: View
) -> tuple[Pod, ...]:
    """Return the replicas whose start-up log would tell of KV compression what nothing else does.

    None where nobody asks for its runbook.

    Args:
        method: as settings and labels tell.
        policy: the spec.
        evidence: with the replicas' labels.
        view: the target.
    """
    if Runbook.COMPRESSION_WITHOUT_SAVINGS not in policy.runbooks:
        return ()
    names = logs_that_tell(method, evidence.burn)
    return tuple(pod for pod in expected(view) if pod.name in names)


async def with_starts(
    evidence: Evidence, namespace: str, asked: Sequence[Pod], workload: Workload, logs: Logs
) -> Evidence:
    """Return evidence with what the logs of some replicas tell of their start.

    Args:
        evidence: without.
        namespace: of the target.
        asked: replicas whose logs are needed.
        workload: their engine.
        logs: what the engines wrote.
    """
    container, forms = str(workload.container.get("name")), STARTS[workload.engine.profile.name]
    return replace(evidence, started=await logs.starts(namespace, asked, container, forms))


async def with_drivers(
    vitals: Mapping[str, Vitals], namespace: str, pods: Sequence[Pod], workload: Workload, drivers: Drivers
) -> dict[str, Vitals]:
    """Return vitals in which the drivers under replicas tell what no series does of their GPUs.

    Args:
        vitals: as the series tell, by pod name.
        namespace: of the target.
        pods: the replicas that may be asked.
        workload: their engine.
        drivers: who asks.
    """
    blind = [pod for pod in pods if pod.node and may_fill(vitals.get(pod.name, Vitals()))]
    if not blind:
        return dict(vitals)
    answers = await drivers.ask(namespace, blind, str(workload.container.get("name")))
    expected = whole_devices_of(workload.container)
    told = {name: filled(vitals[name], answer, expected) for name, answer in answers.items()}
    return {**vitals, **told}


def _lone_tokens(readings: PodReadings) -> int | None:
    """Return the tokens of a block where no metric ever tells how many blocks there are; None elsewhere."""
    return readings.block_tokens if isinstance(readings.pool, Unsupported) else None


def completed(seen: Observation, told: Mapping[str, LoggedSize], null_blocks: int) -> Observation:
    """Return a look with the pools that logs told, where no metric tells them.

    Args:
        seen: as the metrics tell.
        told: what logs tell, by pod name.
        null_blocks: blocks of each engine that never hold a token.
    """
    pods = dict(seen.pods)
    for name, readings in seen.pods.items():
        tokens, size = _lone_tokens(readings), told.get(name)
        if tokens is None or size is None:
            continue
        pool = size.pool(tokens, readings.engines, null_blocks)
        if pool is not None:
            pods[name] = replace(readings, pool=Measured(pool, seen.at))
    return replace(seen, pods=pods)
