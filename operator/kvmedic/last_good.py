"""The last revision that proved healthy: what proves it, and what is not as it was then."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from kvmedic.core.diagnosis import Diagnosed, Diagnosis, Evidence, Finding, Inconclusive
from kvmedic.core.evidence import Look, Measured, Observation, Signal
from kvmedic.core.moved import TRAFFIC, moves, traffic_of
from kvmedic.core.policy import Policy
from kvmedic.core.reasons import Reason
from kvmedic.core.record import LastGood
from kvmedic.core.resource import Resource
from kvmedic.findings import Survey
from kvmedic.gathering import expected
from kvmedic.ports import Metrics, View
from kvmedic.runbooks.node_health import told_by_driver
from kvmedic.runbooks.planning import Fault
from kvmedic.versions import engine_of


def healthy_revision(found: Survey, policy: Policy, now: datetime) -> LastGood | None:
    """Return the fleet's revision as a good one, when it is settled and proved healthy under traffic."""
    fleet = found.view.fleet
    healthy = isinstance(found.diagnosis, Diagnosed) and found.diagnosis.reason is Reason.HEALTHY
    one_revision = all(pod.revision == fleet.revision for pod in fleet.pods)
    if (
        found.evidence.left_out
        or not healthy
        or not one_revision
        or not fleet.observed
        or fleet.ready != fleet.replicas
    ):
        return None
    finished = [pod.number(Signal.REQUESTS_FINISHED) for pod in found.evidence.burn.pods.values()]
    if not finished or not all(isinstance(count, Measured) and count.value >= 1 for count in finished):
        return None
    workload = engine_of(found.view, policy)
    flags = {} if isinstance(workload, Fault) else workload.given_flags()
    return LastGood(fleet.revision, flags, fleet.replicas, found.blocks(), now)


async def proved_good(
    found: Survey, resource: Resource, policy: Policy, metrics: Metrics, now: datetime
) -> LastGood | None:
    """Return the fleet's revision as a good one, with its traffic where it is not on record yet.

    That is one more look for each new revision, when it proves healthy.
    """
    good = healthy_revision(found, policy, now)
    known = resource.record.last_good if resource.record else None
    if good is None or (known is not None and known.revision == good.revision):
        return good
    asked = Look(policy.windows.trigger, signals=TRAFFIC)
    seen = await metrics.look(policy.source, expected(found.view), resource.namespace, asked)
    return replace(good, traffic=traffic_of(seen))


def unproved(resource: Resource, view: View) -> frozenset[Signal]:
    """Return what proves a revision good, where that is not on record yet."""
    good = resource.record.last_good if resource.record else None
    known = good is not None and good.revision == view.fleet.revision
    return frozenset() if known else frozenset({Signal.REQUESTS_FINISHED})


def in_context(diagnosis: Diagnosis, resource: Resource, view: View, evidence: Evidence) -> Diagnosis:
    """Return the diagnosis of a trouble with what moved since it was healthy, and who told of its GPUs."""
    moved, told = _with_moves(diagnosis, resource, view, evidence.burn), told_by_driver(evidence)
    if told is None or isinstance(moved, Inconclusive) or moved.branch.then is None:
        return moved
    return Diagnosed(moved.branch, (*moved.findings, told))


def _with_moves(diagnosis: Diagnosis, resource: Resource, view: View, burn: Observation) -> Diagnosis:
    """Return the diagnosis of a trouble with what is not as it was when the fleet was last healthy."""
    good = resource.record.last_good if resource.record else None
    if good is None or isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is None:
        return diagnosis
    told = list(moves(good.traffic, traffic_of(burn)) if good.traffic else ())
    if good.revision != view.fleet.revision:
        told.append(f"pod template {good.revision} -> {view.fleet.revision}")
    if good.traffic is None and not told:
        return diagnosis
    moved = ", ".join(told) or "nothing that is recorded"
    text = f"moved since it was healthy ({good.recorded_at:%Y-%m-%dT%H:%M:%SZ}): {moved}"
    return Diagnosed(diagnosis.branch, (Finding("fleet", None, None, None, text), *diagnosis.findings))
