"""What the verdict on the step of an open run rests on, once its window is over. Changes nothing.

How urgent the trouble of a fleet with an open run is, looked at whenever the run waits.

A run may take an hour; whether somebody suffers changes meanwhile. Nothing is asked where the spec
names no objective, nor between two moves that a controller is still acting on.

The figures that a change is judged against: of the fleet under pressure, and of nothing before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from kvmedic.controller.evidence import Survey
from kvmedic.controller.next_move import Tick, elapsed_time, unjudged_answer
from kvmedic.controller.ports import Metrics
from kvmedic.model.devices import EngineEnd
from kvmedic.model.evidence import Inconclusive, Look, Measured, Observation, Signal
from kvmedic.model.fleet import Fleet, Pod
from kvmedic.model.plan import (
    BundleStep,
    EvaluationStep,
    FlagStep,
    Goal,
    OnTrial,
    ReplaceStep,
    ReplicasStep,
    RevisionStep,
    Step,
    TrialStep,
)
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Judged, Run, StepState
from kvmedic.model.spec import Policy
from kvmedic.rollout.draining import newest_first
from kvmedic.rollout.drift import Standing
from kvmedic.runbooks.compression.trial_plans import expectation_of
from kvmedic.runbooks.preemption.levers import confirmation_of
from kvmedic.runbooks.severity import SERVED, are_served, signals_of, urgency
from kvmedic.runbooks.workload import View
from kvmedic.verdict.baseline import (
    NEEDED,
    PARTS,
    SHORTEST,
    has_begun,
    judged_part,
    preemptions,
    pressured_replicas,
)
from kvmedic.verdict.blocks_reclaimed import Expectation
from kvmedic.verdict.goals import judge, share_of
from kvmedic.verdict.vetoes import (
    LATELY,
    Confirmation,
    VerdictInput,
    count_ends_against,
    has_ended_as_before,
    least_free_mib,
    window_began_at,
)


async def judge_window(tick: Tick, view: View | None, stands: Standing) -> Judged | None:
    """Return the verdict over the sustained window; None while it is open or not to be judged."""
    record = tick.run.current
    if view is None or record.state is not StepState.VERIFYING or stands is not Standing.AS_RECORDED:
        return None
    if isinstance(record.step, OnTrial) or tick.problem is not None:
        return None
    window = tick.policy.windows.verify
    if record.settled_at is None or elapsed_time(tick, "settled", record.settled_at) < window:
        return None
    pods = view.fleet.list_pods(record.step.after_template)
    looked = await tick.ports.metrics.observe(
        tick.policy.source, pods, tick.resource.namespace, window, timedelta(0)
    )
    looked, left_out = part_to_judge(tick.run, pods, looked)
    if record.step.template_change is None:
        # Who was down before the change, and is left out, does not speak against it by ending again.
        pods = tuple(pod for pod in pods if pod.name in looked.pods)
    given = await verdict_input(tick, view, pods, looked)
    judged = judge(tick.run.goal, record.step, given)
    return replace(judged, message=left_out + judged.message)


async def verdict_input(tick: Tick, view: View, pods: tuple[Pod, ...], looked: Observation) -> VerdictInput:
    """Return what the verdict rests on. Of devices nobody is asked where engines ended by the change."""
    run, policy, namespace = tick.run, tick.policy, tick.resource.namespace
    step, metrics = run.current.step, tick.ports.metrics
    ended = [pod for pod in pods if pod.ends > 0]
    ends = await tick.ports.target.last_ends(namespace, ended, run.started_at) if ended else {}
    restarts = count_new_ends(tick, pods, ends)
    devices = {} if restarts else await metrics.devices(policy.source, pods, namespace, LATELY)
    is_first = run.goal is Goal.STAYS_UP and run.in_rotation == 0
    return VerdictInput(
        before=_comparable_baseline(run, pods, looked),
        looked=looked,
        objectives=policy.objectives,
        trigger=policy.trigger,
        restarts=restarts,
        confirmed_by=_confirmation_for(step),
        ends=ends,
        free_mib=least_free_mib(devices.values()),
        cache_types=_new_cache_types(run, pods, looked),
        expected=_expectation_of(tick, step, view),
        first_up=sum(pod.ready for pod in pods) if is_first else 0,
        on_inconclusive=unjudged_answer(tick),
    )


def _confirmation_for(step: Step) -> Confirmation:
    """Return what must show that a step is what helped."""
    match step:
        case FlagStep(knob=knob):
            return confirmation_of(knob)
        case BundleStep() | RevisionStep() | ReplaceStep() | ReplicasStep() | TrialStep() | EvaluationStep():
            return Confirmation.FIGURES
        case _:
            assert_never(step)


def _expectation_of(tick: Tick, step: Step, view: View) -> Expectation | None:
    """Return what is to be seen of a step on the fleet; None: nothing but its figures."""
    match step:
        case BundleStep():
            return expectation_of(step, tick.policy.compression, tick.record.answers, view.template)
        case FlagStep() | RevisionStep() | ReplaceStep() | ReplicasStep() | TrialStep() | EvaluationStep():
            return None
        case _:
            assert_never(step)


def count_new_ends(tick: Tick, pods: tuple[Pod, ...], ends: Mapping[str, EngineEnd]) -> int:
    """Return how many ends of engines since the sustained window began speak against the change.

    None do where engines ended as often before; a change that is to keep engines up must end that, too.
    """
    settled_at = tick.run.current.settled_at or tick.now
    if tick.run.goal is not Goal.STAYS_UP and has_ended_as_before(pods, ends, tick.run.baseline, tick.now):
        return 0
    return count_ends_against(pods, ends, window_began_at(pods, settled_at))


def part_to_judge(run: Run, pods: Sequence[Pod], looked: Observation) -> tuple[Observation, str]:
    """Return the look at those replicas that a run's change is judged on, and who is left out."""
    if run.goal is Goal.STAYS_UP:
        return looked, ""
    added = max(0, run.current.step.most_replicas - run.replicas)
    newest = sorted(pods, key=newest_first)[:added]
    return judged_part(pods, looked, run.replicas - run.in_rotation, [pod.name for pod in newest])


def _comparable_baseline(run: Run, pods: Sequence[Pod], looked: Observation) -> Baseline | None:
    """Return the figures of before, of as large a part of the fleet's load as is judged now.

    Another number of replicas is judged by the sums of the whole fleet. One that takes requests and says
    nothing is missing in such a sum, before or now.
    """
    before, serving = run.baseline, sum(pod.ready for pod in pods)
    if before is None or not run.current.step.is_a_number:
        return before
    judged_before = min(1.0, max(1, before.replicas) / max(1, run.in_rotation))
    judged_now = min(1.0, len(looked.pods) / max(1, serving))
    return share_of(before, judged_now / judged_before)


def _new_cache_types(run: Run, pods: Sequence[Pod], looked: Observation) -> AbstractSet[str]:
    """Return the types of KV cache of a replica that was replaced for its type; empty for any other step."""
    if run.current.step.reason is not Reason.COMPRESSION_NOT_APPLIED:
        return frozenset()
    new = [looked.pods[pod.name].pool for pod in pods if pod.created_at >= run.started_at]
    return {pool.value.cache_dtype for pool in new if isinstance(pool, Measured)}


async def grade_urgency(tick: Tick, fleet: Fleet) -> Tick:
    """Return the tick with the urgency as it is now; as it was where nobody can look at the objectives."""
    shown, policy = tick.record.urgency, tick.policy
    signals, windows = signals_of(policy.objectives), policy.windows
    if tick.problem is not None or not windows.trigger:
        # What goes by the record alone has no windows.
        return tick

    async def look(window: timedelta) -> Observation:
        asked = Look(window, signals=signals or SERVED)
        return await tick.ports.metrics.look(policy.source, fleet.live, tick.resource.namespace, asked)

    looks = [await look(windows.trigger)]
    if not signals and not are_served(looks[0]):
        looks.append(await look(windows.sizing))
    return replace(tick, urgency=urgency(looks, policy.objectives, shown))


_ASKED = NEEDED | {Signal.STARTED_SECONDS, Signal.REQUESTS_ABORTED}
_BEGIN = frozenset({Signal.PREEMPTIONS})


async def pressed_baseline(
    found: Survey, policy: Policy, namespace: str, metrics: Metrics
) -> Baseline | Inconclusive | None:
    """Return the fleet's figures under pressure, or why there are none; None where none are needed.

    Where the pressure began within the trigger's window, they are of the part since then. Where the
    trigger held for as long as a window, or that is no longer than the shortest, the window does. It does
    also where no replica preempts beyond the trigger: preemptions do not show when users began to wait.
    """
    window = policy.windows.trigger
    if found.goal is not Goal.RELIEF or policy.windows.hold >= window or window <= SHORTEST:
        return found.baseline(policy.objectives)
    if not pressured_replicas(found.burn, policy.trigger):
        return found.baseline(policy.objectives)
    since = await _time_pressure(found, policy, namespace, metrics)
    if since >= window:
        return found.baseline(policy.objectives)
    if since < SHORTEST:
        text = (
            f"the pressure began less than {SHORTEST.total_seconds():.0f} s ago, too short a time for the "
            "figures that a change is judged against; wait"
        )
        return Inconclusive(Reason.TOO_FEW_REQUESTS, text)
    look = Look(since, signals=_ASKED)
    seen = await metrics.look(policy.source, found.judged, namespace, look)
    return found.baseline_over(seen, policy.objectives)


async def _time_pressure(found: Survey, policy: Policy, namespace: str, metrics: Metrics) -> timedelta:
    """Return for how long the pressured replicas preempt, in whole parts of the window; at most the window.

    The part in which it began is not counted: nobody knows how much of it was calm.
    """
    names = pressured_replicas(found.burn, policy.trigger)
    part = policy.windows.trigger / PARTS

    async def count_preemptions(parts: int) -> float:
        asked = Look(part * parts, signals=_BEGIN)
        seen = await metrics.look(policy.source, found.judged, namespace, asked)
        return preemptions(seen, names)

    longer = await count_preemptions(PARTS + 1)
    for parts in range(PARTS, 0, -1):
        shorter = await count_preemptions(parts)
        if has_begun(longer, shorter, parts + 1):
            return part * parts
        longer = shorter
    return timedelta(0)
