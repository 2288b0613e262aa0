"""What of a target's pod template changed of late, and how the fleet fared before; read, never changed.

A source of metrics is asked about the past only where a revision came of late that changed what the KV
cache depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from kvmedic.core.evidence import Look
from kvmedic.core.policy import Policy
from kvmedic.core.reasons import Reason
from kvmedic.core.record import ClosedRun
from kvmedic.core.revisions import (
    Deploy,
    Difference,
    LatestDeploy,
    Newcomer,
    NoDeploy,
    UnknownDeploy,
    newcomer,
    revision_of,
    start_seconds,
    to_start,
)
from kvmedic.engines import ENGINES
from kvmedic.manifests.revisions import Revised, Unreadable, differences
from kvmedic.ports import Metrics, View
from kvmedic.runbooks.deploy import HISTORY


@dataclass(frozen=True, slots=True)
class Moment:
    """When a look was made, and what had been done to the target before."""

    at: datetime
    history: Sequence[ClosedRun]
    """Closed runs of the resource."""


async def latest_deploy(
    policy: Policy, namespace: str, view: View, metrics: Metrics, moment: Moment
) -> LatestDeploy:
    """Return the revision that came of late, if what it changed matters to the KV cache.

    Args:
        policy: the spec.
        namespace: of the target.
        view: the target.
        metrics: what knows the past.
        moment: of the look that found the trouble.
    """
    came = newcomer(view.fleet, policy.rollback.within, moment.at)
    if came is None or is_ours(came, moment.history):
        return NoDeploy()
    found = _differences(came, view, policy.target.container)
    if isinstance(found, UnknownDeploy):
        return found
    if not found:
        return NoDeploy()
    previous, look = revision_of(came.previous), Look(policy.windows.trigger, signals=HISTORY)
    return Deploy(
        now=revision_of(came.now),
        previous=previous,
        came_at=came.came_at,
        differences=found,
        before=await metrics.past(policy.source, namespace, previous.replica_set, came.came_at, look),
        to_start=to_start(view.fleet, previous.template),
        pods=frozenset(pod.name for pod in view.fleet.serving(came.now.revision)),
        start_seconds=start_seconds(view.fleet),
    )


def is_ours(came: Newcomer, history: Sequence[ClosedRun]) -> bool:
    """Return whether a revision is what a run of ours made.

    It came before the run's end, in place of the template that the run began on, and nobody else changed the
    template meanwhile.
    """
    return any(
        run.template == came.previous.revision
        and came.came_at <= run.ended_at
        and run.outcome is not Reason.FLAG_DRIFTED
        for run in history
        if run.template
    )


def _differences(came: Newcomer, view: View, container: str | None) -> tuple[Difference, ...] | UnknownDeploy:
    """Return what the revision changed that matters, or why that cannot be told."""
    what = f"revision {came.now.number} came at {came.came_at:%Y-%m-%dT%H:%M:%SZ}"
    before = view.templates[came.previous.name]
    compared = differences(Revised(before, view.template, view.config_maps), container, ENGINES)
    if isinstance(compared, Unreadable):
        text = f"{what}, and what it changed cannot be read: {compared.message}"
        return UnknownDeploy(Reason.REVISION_UNREADABLE, text)
    return compared
