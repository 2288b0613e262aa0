"""An ill replica is taken out of rotation while its peers carry the load, and put back when it is well.

A person is asked for in any case; this only keeps requests from a GPU that is ill. In mode `Auto` alone,
and within the limits of the spec. The record is written before the label is touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from kvmedic.controller.evidence import Survey, with_drivers
from kvmedic.controller.ports import Ports
from kvmedic.model.devices import Vitals
from kvmedic.model.evidence import Measured, Unsupported
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Outcome, terms_of, without_spec
from kvmedic.model.spec import Mode, Policy
from kvmedic.model.status import Record, Resource, SetAside
from kvmedic.rollout.gates import Blocked, Health, Stop, forward_gate, opening_gate
from kvmedic.rollout.moves import Cordon, Uncordon
from kvmedic.rollout.quarantine import Gone, Next, disorder, follow_pod
from kvmedic.runbooks.branches import Diagnosed
from kvmedic.runbooks.node_health import faults_of
from kvmedic.runbooks.planning import Workload
from kvmedic.runbooks.preemption.pressure import beyond_trigger, overload

ILL = frozenset({Reason.GPU_FAULT, Reason.THERMAL_EMERGENCY})
"""Diagnoses that are about single replicas."""


@dataclass(frozen=True, slots=True)
class Ward:
    """Everything that caring for an ill replica needs."""

    resource: Resource
    policy: Policy
    record: Record
    found: Survey
    ports: Ports
    now: datetime


@dataclass(frozen=True, slots=True)
class Cared:
    """What is to be written down, and what a person is told beside the diagnosis."""

    aside: SetAside | None
    told: str = ""


async def cared_for(ward: Ward) -> Cared | timedelta:
    """Return what is to be written down; or when to look again, where a move was made instead."""
    aside, ports = ward.record.aside, ward.ports
    why_not = ""
    if aside is not None and aside.is_active:
        coming: Next = follow_pod(aside, ward.found.view.fleet, await _why_back(ward, aside))
    else:
        wanted = await _pod_to_set_aside(ward)
        gone = aside is not None and isinstance(follow_pod(aside, ward.found.view.fleet, ""), Gone)
        coming = wanted if isinstance(wanted, SetAside) else Gone() if gone else None
        why_not = wanted if isinstance(wanted, str) else ""
    match coming:
        case Cordon() | Uncordon():
            if ports.leader.is_held():
                await ports.target.apply(ward.found.view.fleet, coming, "")
            return ports.pace.controller
        case SetAside() if not ward.resource.finalized:
            await ports.store.finalize(ward.resource, present=True)
            return timedelta(0)
        case SetAside():
            return Cared(coming, why_not)
        case Gone():
            return Cared(None, why_not)
        case None:
            return Cared(aside, why_not)


def describe_quarantine(cared: Cared, why: Outcome | Blocked | None) -> Outcome | Blocked | None:
    """Return why nothing else is done, with what was done about an ill replica."""
    if cared.aside is not None and cared.aside.is_active:
        said = cared.aside.line()
        return Outcome(why.reason, f"{why.message}; {said}") if why else Outcome(cared.aside.reason, said)
    if why is not None and why.reason in ILL and cared.told:
        return Outcome(why.reason, f"{why.message}; {cared.told}")
    return why


async def put_back(resource: Resource, record: Record, ports: Ports) -> timedelta | None:
    """Put a replica back whose resource is being deleted; None once nothing of ours is left on it."""
    aside = record.aside
    if aside is None or not aside.is_active:
        return None
    policy = resource.policy or without_spec(aside.target, aside.terms)
    view = await ports.target.look(resource.namespace, policy)
    pods = view.fleet.pods if view else ()
    pod = next((pod for pod in pods if pod.uid == aside.uid and not pod.terminating), None)
    if view is None or pod is None or not pod.cordoned:
        return None
    if ports.leader.is_held():
        await ports.target.apply(view.fleet, Uncordon(pod), "")
    return ports.pace.controller


async def _why_back(ward: Ward, aside: SetAside) -> str:
    """Return why a replica should be in rotation again; empty where it should not.

    What is not known brings nothing back: neither health nor load.
    """
    policy, stop = ward.policy, await ward.ports.stop.read()
    blocked = None if stop is Stop.UNREADABLE else forward_gate(policy, stop)
    if blocked is not None:
        return blocked.message
    if policy.mode is not Mode.AUTO:
        return f"spec.mode is {policy.mode}"
    peers = [pod for pod in ward.found.view.fleet.live if pod.uid != aside.uid and pod.ready]
    if len(peers) < max(1, policy.limits.min_healthy_replicas):
        return f"{len(peers)} of its peers are Ready"
    if hot := beyond_trigger(ward.found.evidence, aside.pod):
        return f"its peers do not carry the load: {', '.join(hot)} beyond the trigger"
    return "its GPUs are well again" if await _is_well(ward, aside) else ""


async def _is_well(ward: Ward, aside: SetAside) -> bool:
    """Return whether every GPU of a replica is known to be well.

    Of one that was broken only series can tell: its driver, asked, knows nothing of what went before.
    """
    policy, pods = ward.policy, ward.found.view.fleet.pods
    own = [pod for pod in pods if pod.uid == aside.uid]
    window = policy.windows.trigger
    seen = await ward.ports.metrics.devices(policy.source, own, ward.resource.namespace, window)
    vitals = {pod.name: Vitals(pod.node, seen.get(pod.name, Unsupported())) for pod in own}
    workload = ward.found.engine(policy)
    if aside.reason is Reason.THERMAL_EMERGENCY and isinstance(workload, Workload):
        place = ward.resource.namespace
        vitals = await with_drivers(vitals, place, own, workload, ward.ports.drivers)
    devices = vitals.get(aside.pod, Vitals()).devices
    known = isinstance(devices, Measured) and not any(device.unknown() for device in devices.value)
    return isinstance(devices, Measured) and known and not faults_of(devices.value)


async def _pod_to_set_aside(ward: Ward) -> SetAside | str:
    """Return the replica that is to be taken out of rotation, or why none is; empty: nobody is ill."""
    found, policy, record = ward.found, ward.policy, ward.record
    if not isinstance(found.diagnosis, Diagnosed) or found.diagnosis.reason not in ILL:
        return ""
    vitals = found.evidence.vitals
    ill = {
        name: faults_of(one.devices.value)
        for name, one in vitals.items()
        if isinstance(one.devices, Measured)
    }
    ill = {name: faults for name, faults in ill.items() if faults}
    if len(ill) != 1:
        return f"{len(ill)} replicas are ill, so they stay in rotation"
    ((name, faults),) = ill.items()
    pod = next((pod for pod in found.view.fleet.live if pod.name == name), None)
    why = await _why_kept(ward, name)
    if pod is None or (record.aside is not None and record.aside.uid == pod.uid):
        why = why or (record.aside.ended if record.aside else "it is gone")
    if pod is None or why:
        return f"{name} stays in rotation: {why}"
    return SetAside(
        pod=name,
        uid=pod.uid,
        node=pod.node,
        reason=found.diagnosis.reason,
        message="; ".join(faults),
        since=ward.now,
        target=policy.target,
        terms=terms_of(policy),
    )


async def _why_kept(ward: Ward, name: str) -> str:
    """Return why an ill replica is kept in rotation; empty where it can be spared."""
    policy, fleet = ward.policy, ward.found.view.fleet
    if policy.mode is not Mode.AUTO:
        return f"spec.mode is {policy.mode}"
    least = max(1, policy.limits.min_healthy_replicas)
    blocked = forward_gate(policy, await ward.ports.stop.read())
    blocked = blocked or opening_gate(policy.limits, ward.record.history, Health(fleet.ready), ward.now)
    if blocked is not None:
        return blocked.message
    if fleet.ready - 1 < least:
        return f"{fleet.ready - 1} replicas would be left (limit {least})"
    return disorder(fleet) or overload(ward.found.evidence, name)
