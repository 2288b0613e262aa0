"""The verdict on the step of an open run, once its sustained window is over. Nothing is changed here.

What a verdict rests on beside the engines' metrics: how engines ended, and what their GPUs have left.

How urgent the trouble of a fleet with an open run is, looked at whenever the run waits.

A run may take an hour; whether somebody suffers changes meanwhile. Nothing is asked where the spec
names no objective, nor between two moves that a controller is still acting on.

The figures that a change is judged against: of the fleet under pressure, and of nothing before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from kvmedic.controller.evidence import Survey
from kvmedic.controller.next_move import Tick, elapsed_time, unjudged_answer
from kvmedic.controller.ports import Metrics, View
from kvmedic.engines.kv_methods import CACHE_TYPE_PREFIXES as CACHE_TYPES
from kvmedic.model.devices import EngineEnd
from kvmedic.model.edits import BundleStep
from kvmedic.model.evidence import Inconclusive, Look, Measured, Observation, Signal
from kvmedic.model.fleet import Fleet, Pod
from kvmedic.model.plan import (
    AutoscalerStep,
    Change,
    ConfigStep,
    FlagStep,
    Goal,
    OnTrial,
    ReplaceStep,
    RevisionStep,
    ScaleStep,
    Step,
)
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Judged, Run, StepState, Verdict
from kvmedic.model.spec import Policy
from kvmedic.rollout.draining import newest_first
from kvmedic.rollout.drift import Standing
from kvmedic.runbooks.compression.trial_plans import promise_of
from kvmedic.runbooks.severity import NO_OBJECTIVES, signals_of, unmeasured_urgency, urgency
from kvmedic.verdict.baseline import (
    NEEDED,
    PARTS,
    SHORTEST,
    has_begun,
    judged_part,
    preemptions,
    pressured_replicas,
)
from kvmedic.verdict.blocks_reclaimed import in_view_of_blocks
from kvmedic.verdict.comparison import judge, judge_replacement
from kvmedic.verdict.goals import (
    in_view_of_none_before,
    judge_fewer,
    judge_more,
    judge_parity,
    judge_without,
    share_of,
    steadiness,
)
from kvmedic.verdict.vetoes import (
    LATELY,
    confirm_setting,
    count_ends_against,
    ended_as_before,
    in_view_of_ends,
    in_view_of_memory,
    in_view_of_types,
    least_free_mib,
    window_began_at,
)


async def ends_since(tick: Tick, pods: tuple[Pod, ...]) -> Mapping[str, EngineEnd]:
    """Return how each engine ended last, by pod, where that was in this run."""
    ended = [pod for pod in pods if pod.ends > 0]
    return (
        await tick.ports.target.last_ends(tick.resource.namespace, ended, tick.run.started_at)
        if ended
        else {}
    )


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
    if record.settled_at is None or elapsed_time(tick, "settled", record.settled_at) < window:
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
    newest = sorted(pods, key=newest_first)[: _added_replicas(run)]
    return judged_part(pods, looked, run.replicas - run.in_rotation, [pod.name for pod in newest])


def _reaches_all(step: Step) -> bool:
    """Return whether a step makes every replica anew."""
    return isinstance(step, FlagStep | ConfigStep | BundleStep | RevisionStep)


def _added_replicas(run: Run) -> int:
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
        return _does_without(tick, looked, restarts)
    if before is None or tick.run.goal is Goal.STEADINESS:
        return steadiness(looked, restarts)
    if tick.run.goal is Goal.PARITY:
        return judge_parity(before, looked, policy.objectives, policy.trigger, restarts)
    match step:
        case ConfigStep(knob=knob) | FlagStep(knob=knob):
            judged = judge(before, looked, policy.objectives, policy.trigger, restarts)
            return judged if restarts else confirm_setting(knob, judged, before, looked, policy.objectives)
        case BundleStep() | RevisionStep():
            return judge(before, looked, policy.objectives, policy.trigger, restarts)
        case ReplaceStep():
            return judge_replacement(before, looked, policy.objectives, policy.trigger, restarts)
        case ScaleStep() | AutoscalerStep():
            return judge_more(before, looked, policy.objectives, policy.trigger, restarts)
        case _:
            assert_never(step)


def _does_without(tick: Tick, looked: Observation, restarts: int) -> Judged:
    """Return whether the fleet does without what was there for a while."""
    trigger = tick.policy.trigger
    if isinstance(tick.run.current.step, FlagStep | ConfigStep):
        return judge_without(tick.run.baseline, looked, trigger, restarts)
    return judge_fewer(looked, trigger)


async def grade_urgency(tick: Tick, fleet: Fleet) -> Tick:
    """Return the tick with the urgency as it is now; as it was where nobody can look at the objectives."""
    shown, policy = tick.record.urgency, tick.policy
    signals = signals_of(policy.objectives)
    if tick.problem is not None:
        return tick
    if not signals:
        return replace(tick, urgency=unmeasured_urgency(NO_OBJECTIVES, tick.now, shown))
    asked = Look(policy.windows.trigger, signals=signals)
    seen = await tick.ports.metrics.look(policy.source, fleet.live, tick.resource.namespace, asked)
    return replace(tick, urgency=urgency(seen, policy.objectives, shown))


_ASKED = NEEDED | {Signal.STARTED_SECONDS, Signal.REQUESTS_ABORTED}
_BEGIN = frozenset({Signal.PREEMPTIONS})


async def pressed_baseline(
    found: Survey, policy: Policy, namespace: str, metrics: Metrics
) -> Baseline | Inconclusive | None:
    """Return the fleet's figures under pressure, or why there are none; None where none are needed.

    Where the pressure began within the trigger's window, they are of the part since then. Where the
    trigger held for as long as a window, or that is no longer than the shortest, the window does.
    """
    window = policy.windows.trigger
    if found.goal is not Goal.RELIEF or policy.windows.hold >= window or window <= SHORTEST:
        return found.baseline()
    since = await _pressed_for(found, policy, namespace, metrics)
    if since >= window:
        return found.baseline()
    if since < SHORTEST:
        text = (
            f"the pressure began less than {SHORTEST.total_seconds():.0f} s ago, too short a time for the "
            "figures that a change is judged against; wait"
        )
        return Inconclusive(Reason.WINDOW_TOO_SHORT, text)
    look = Look(since, signals=_ASKED)
    return found.baseline_over(await metrics.look(policy.source, found.judged, namespace, look))


async def _pressed_for(found: Survey, policy: Policy, namespace: str, metrics: Metrics) -> timedelta:
    """Return for how long the pressured replicas preempt, in whole parts of the window; at most the window.

    The part in which it began is not counted: nobody knows how much of it was calm.
    """
    names = pressured_replicas(found.burn, policy.trigger)
    part = policy.windows.trigger / PARTS

    async def counted(parts: int) -> float:
        asked = Look(part * parts, signals=_BEGIN)
        seen = await metrics.look(policy.source, found.judged, namespace, asked)
        return preemptions(seen, names)

    longer = await counted(PARTS + 1)
    for parts in range(PARTS, 0, -1):
        shorter = await counted(parts)
        if has_begun(longer, shorter, parts + 1):
            return part * parts
        longer = shorter
    return timedelta(0)
