"""The verdict on the step of an open run, once its sustained window is over. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from kvmedic.aftermath import count_new_ends, ends_since, in_view_of_the_rest
from kvmedic.core.applied import in_view_of_types
from kvmedic.core.bundle import BundleStep
from kvmedic.core.come_back import in_view_of_blocks
from kvmedic.core.confirm import confirmed
from kvmedic.core.diagnosis import Goal
from kvmedic.core.evidence import Measured, Observation
from kvmedic.core.fleet import Pod
from kvmedic.core.parity import judge_parity
from kvmedic.core.plan import (
    AutoscalerStep,
    Change,
    ConfigStep,
    FlagStep,
    OnTrial,
    ReplaceStep,
    RevisionStep,
    ScaleStep,
    Step,
)
from kvmedic.core.quorum import judged_part
from kvmedic.core.reasons import Reason
from kvmedic.core.run import Run, StepState
from kvmedic.core.scale_verdict import judge_fewer, judge_more, judge_without, share_of
from kvmedic.core.standing import Standing
from kvmedic.core.steadiness import steadiness
from kvmedic.core.surplus import newest_first
from kvmedic.core.verdict import Judged, Verdict, judge, judge_replacement
from kvmedic.engines.kv_methods import CACHE_TYPES
from kvmedic.ports import View
from kvmedic.runbooks.promises import promise_of
from kvmedic.walks import Tick, elapsed


async def judged_window(tick: Tick, view: View | None, stands: Standing) -> Judged | None:
    """Return the verdict over the sustained window; None while it is open or not to be judged."""
    record = tick.run.current
    if view is None or record.state is not StepState.VERIFYING or stands is not Standing.AS_RECORDED:
        return None
    if isinstance(record.step, OnTrial):
        return None
    if tick.problem is not None:
        return None
    window = tick.policy.windows.verify
    if record.settled_at is None or elapsed(tick, "settled", record.settled_at) < window:
        return None
    pods = view.fleet.serving(record.step.after_template)
    looked = await tick.ports.metrics.observe(
        tick.policy.source, pods, tick.resource.namespace, window, timedelta(0)
    )
    looked, unheard = part_to_judge(tick.run, pods, looked)
    tick = _at_like_share(tick, pods, looked)
    if not _reaches_all(record.step):
        # Who was down before the change, and is left out, does not speak against it by ending again.
        pods = tuple(pod for pod in pods if pod.name in looked.pods)
    ends = await ends_since(tick, pods)
    restarts = count_new_ends(tick, pods, record.settled_at, ends)
    judged = _judgement(tick, record.step, looked, restarts)
    judged = _in_view_of_types(judged, tick, pods, looked)
    judged = _in_view_of_blocks(judged, tick, view, looked)
    return await in_view_of_the_rest(tick, pods, replace(judged, message=unheard + judged.message), ends)


def part_to_judge(run: Run, pods: Sequence[Pod], looked: Observation) -> tuple[Observation, str]:
    """Return the look at those replicas that a run's change is judged on, and who is left out."""
    if run.goal is Goal.STEADINESS:
        return looked, ""
    newest = sorted(pods, key=newest_first)[: _added(run)]
    return judged_part(pods, looked, run.replicas - run.in_rotation, [pod.name for pod in newest])


def _reaches_all(step: Step) -> bool:
    """Return whether a step makes every replica anew."""
    return isinstance(step, FlagStep | ConfigStep | BundleStep | RevisionStep)


def _added(run: Run) -> int:
    """Return how many replicas a step made beside those that were there."""
    match run.current.step:
        case ReplaceStep():
            return 1
        case ScaleStep(before=before, after=after):
            return max(0, after - before)
        case AutoscalerStep(after=after):
            return max(0, after - run.replicas)
        case _:
            return 0


def _at_like_share(tick: Tick, pods: Sequence[Pod], looked: Observation) -> Tick:
    """Return the tick with a baseline of as large a part of the fleet's load as is judged now.

    Another number of replicas is judged by the sums of the whole fleet. Whoever takes requests and says
    nothing is missing in such a sum, before or now.
    """
    before, serving = tick.run.baseline, sum(pod.ready for pod in pods)
    if before is None or not isinstance(tick.run.current.step, ScaleStep | AutoscalerStep):
        return tick
    judged_before = min(1.0, max(1, before.replicas) / max(1, tick.run.in_rotation))
    judged_now = min(1.0, len(looked.pods) / max(1, serving))
    return replace(tick, run=replace(tick.run, baseline=share_of(before, judged_now / judged_before)))


def _in_view_of_types(judged: Judged, tick: Tick, pods: Sequence[Pod], looked: Observation) -> Judged:
    """Return the verdict on a replica that was replaced for its type of KV cache; any other as it is."""
    if tick.run.current.step.reason is not Reason.COMPRESSION_NOT_APPLIED:
        return judged
    new = [looked.pods[pod.name].pool for pod in pods if pod.created_at >= tick.run.started_at]
    types = {pool.value.cache_dtype for pool in new if isinstance(pool, Measured)}
    return in_view_of_types(judged, types, CACHE_TYPES)


def _in_view_of_blocks(judged: Judged, tick: Tick, view: View, looked: Observation) -> Judged:
    """Return a good verdict on a method that is to give blocks back, if they come; any other as it is."""
    step = tick.run.current.step
    if not isinstance(step, BundleStep) or judged.verdict not in (Verdict.RECOVERED, Verdict.IMPROVED):
        return judged
    promise = promise_of(step, tick.policy.compression, tick.record.answers, view.template)
    return in_view_of_blocks(judged, looked, promise) if promise else judged


def _judgement(tick: Tick, step: Change, looked: Observation, restarts: int) -> Judged:
    """Return the verdict on the step that is being verified; `restarts`: those that speak against it."""
    before, policy = tick.run.baseline, tick.policy
    if tick.run.goal is Goal.CALM:
        return _without(tick, looked, restarts)
    if before is None or tick.run.goal is Goal.STEADINESS:
        return steadiness(looked, restarts)
    if tick.run.goal is Goal.PARITY:
        return judge_parity(before, looked, policy.objectives, policy.trigger, restarts)
    match step:
        case ConfigStep(knob=knob) | FlagStep(knob=knob):
            judged = judge(before, looked, policy.objectives, policy.trigger, restarts)
            return judged if restarts else confirmed(knob, judged, before, looked, policy.objectives)
        case BundleStep() | RevisionStep():
            return judge(before, looked, policy.objectives, policy.trigger, restarts)
        case ReplaceStep():
            return judge_replacement(before, looked, policy.objectives, policy.trigger, restarts)
        case ScaleStep() | AutoscalerStep():
            return judge_more(before, looked, policy.objectives, policy.trigger, restarts)
        case _:
            assert_never(step)


def _without(tick: Tick, looked: Observation, restarts: int) -> Judged:
    """Return whether the fleet does without what was there for a while."""
    trigger = tick.policy.trigger
    if isinstance(tick.run.current.step, FlagStep | ConfigStep):
        return judge_without(tick.run.baseline, looked, trigger, restarts)
    return judge_fewer(looked, trigger)
