"""What a verdict rests on beside the engines' metrics: how engines ended, and what their GPUs have left."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from kvmedic.core.diagnosis import Goal
from kvmedic.core.edge import (
    LATELY,
    count_ends_against,
    ended_as_before,
    in_view_of_ends,
    in_view_of_memory,
    least_free_mib,
    window_began_at,
)
from kvmedic.core.fleet import Pod
from kvmedic.core.steadiness import in_view_of_none_before
from kvmedic.core.verdict import Judged, Verdict
from kvmedic.core.vitals import EngineEnd
from kvmedic.walks import Tick, unjudged_answer


async def ends_since(tick: Tick, pods: tuple[Pod, ...]) -> Mapping[str, EngineEnd]:
    """Return how each engine ended last, by pod, where that was in this run."""
    ended = [pod for pod in pods if pod.ends > 0]
    return await tick.ports.target.ends(tick.resource.namespace, ended, tick.run.started_at) if ended else {}


def count_new_ends(
    tick: Tick, pods: tuple[Pod, ...], settled_at: datetime, ends: Mapping[str, EngineEnd]
) -> int:
    """Return how many ends of engines since the sustained window began speak against the change.

    None do where engines ended as often before; a change that is to keep engines up must end that, too.
    """
    if tick.run.goal is not Goal.STEADINESS and ended_as_before(pods, ends, tick.run.baseline, tick.now):
        return 0
    return count_ends_against(pods, ends, window_began_at(pods, settled_at))


async def in_view_of_the_rest(
    tick: Tick, pods: tuple[Pod, ...], judged: Judged, ends: Mapping[str, EngineEnd]
) -> Judged:
    """Return the verdict on some replicas in view of what their metrics do not tell.

    Nothing that is not known makes it worse.
    """
    judged = await _in_view_of_ends_and_memory(tick, pods, judged, ends)
    if tick.run.goal is not Goal.STEADINESS or tick.run.in_rotation > 0:
        return judged
    up = sum(pod.ready for pod in pods)
    return in_view_of_none_before(judged, up, unjudged_answer(tick))


async def _in_view_of_ends_and_memory(
    tick: Tick, pods: tuple[Pod, ...], judged: Judged, ends: Mapping[str, EngineEnd]
) -> Judged:
    namespace, policy = tick.resource.namespace, tick.policy
    match judged.verdict:
        case Verdict.INCONCLUSIVE:
            return judged
        case Verdict.NOT_RECOVERED:
            return in_view_of_ends(judged, ends)
        case Verdict.RECOVERED | Verdict.IMPROVED:
            found = await tick.ports.metrics.devices(policy.source, pods, namespace, LATELY)
            return in_view_of_memory(judged, tick.run.baseline, least_free_mib(found.values()))
