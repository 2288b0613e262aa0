"""What a verdict rests on beside the engines' metrics: how engines ended, and what their GPUs have left."""

from __future__ import annotations

from datetime import datetime

from kvmedic.core.diagnosis import Goal
from kvmedic.core.edge import (
    LATELY,
    count_ends_against,
    in_view_of_ends,
    in_view_of_memory,
    least_free_mib,
    window_began_at,
)
from kvmedic.core.fleet import Pod
from kvmedic.core.steadiness import in_view_of_none_before
from kvmedic.core.verdict import Judged, Verdict
from kvmedic.walks import Tick, unjudged_answer


async def count_new_ends(tick: Tick, pods: tuple[Pod, ...], settled_at: datetime) -> int:
    """Return how many ends of engines since the sustained window began speak against the change."""
    ended, since = [pod for pod in pods if pod.ends > 0], window_began_at(pods, settled_at)
    ends = await tick.ports.target.ends(tick.resource.namespace, ended, since) if ended else {}
    return count_ends_against(pods, ends, since)


async def in_view_of_the_rest(tick: Tick, pods: tuple[Pod, ...], judged: Judged) -> Judged:
    """Return the verdict on some replicas in view of what their metrics do not tell.

    Nothing that is not known makes it worse.
    """
    judged = await _in_view_of_ends_and_memory(tick, pods, judged)
    if tick.run.goal is not Goal.STEADINESS or tick.run.in_rotation > 0:
        return judged
    up = sum(pod.ready for pod in pods)
    return in_view_of_none_before(judged, up, unjudged_answer(tick))


async def _in_view_of_ends_and_memory(tick: Tick, pods: tuple[Pod, ...], judged: Judged) -> Judged:
    namespace, policy = tick.resource.namespace, tick.policy
    match judged.verdict:
        case Verdict.INCONCLUSIVE:
            return judged
        case Verdict.NOT_RECOVERED:
            ended = [pod for pod in pods if pod.ends > 0]
            return in_view_of_ends(
                judged, await tick.ports.target.ends(namespace, ended, tick.run.started_at)
            )
        case Verdict.RECOVERED | Verdict.IMPROVED:
            found = await tick.ports.metrics.devices(policy.source, pods, namespace, LATELY)
            return in_view_of_memory(judged, tick.run.baseline, least_free_mib(found.values()))
