"""A trial pod in one tick of a run: looked at, made, and gone again before the run is closed.

The run's record is there before the pod is made and until it is gone, so a crash leaves no pod behind. The
pod's name follows from the run: made twice it is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from kvmedic.api.resource import GROUP, KIND, VERSION
from kvmedic.controller.evidence import Survey, engine_of
from kvmedic.controller.next_move import Tick, as_watched, start_limits, watch_readiness
from kvmedic.controller.ports import Ports
from kvmedic.engines import VOCABULARIES, profiles_for
from kvmedic.kube.errors import Conflict
from kvmedic.manifests.trial_pod import (
    Evaluation,
    Owner,
    Trial,
    job_name,
    remote_cache_in_file,
    trial_pod,
    without_remote_cache,
)
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Pod
from kvmedic.model.plan import EvaluationStep, OnTrial, TrialStep
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.spec import TargetRef
from kvmedic.model.status import Resource
from kvmedic.model.trial import Answer, EvaluationResult, JobSight
from kvmedic.record.runs import with_answer, with_score
from kvmedic.rollout.moves import Failed
from kvmedic.rollout.trial import (
    NO_WORDS,
    EvaluationMove,
    EvaluationSight,
    LastWords,
    TrialMove,
    TrialSight,
    evaluation_move,
    has_ended_by_itself,
    trial_move,
)
from kvmedic.runbooks.workload import View, Workload

_REFUSALS = tuple(pattern for each in VOCABULARIES for pattern in each.refusals)
"""Of every engine: each one's are its own words."""
NO_QUOTA = "exceeded quota"
"""What the API server says of a pod that a ResourceQuota has no room for (Kubernetes 1.36, resourcequota
controller.go)."""
NAME_LENGTH = 200
"""Characters of the resource's name in that of a pod: with the run's id it stays under the 253 of a name."""


async def next_trial_move(tick: Tick, step: OnTrial) -> TrialMove | EvaluationMove:
    """Return the next move of the trial or the evaluation of an open run."""
    ports, namespace = tick.ports, tick.resource.namespace
    try:
        pod = await ports.trials.look(trial_of(tick, step), _target(tick, step))
        job = await _look_at_job(tick, step)
    except Conflict:
        return Failed(Reason.TRIAL_UNANSWERED, "a pod or Job of the trial's name belongs to someone else")
    seen, words = watch_readiness(tick, pod) if pod else None, await _last_words(tick, pod)
    run, limits = as_watched(tick), start_limits(tick)
    match step:
        case EvaluationStep():
            served = await ports.probes.read_served(namespace, pod) if pod and pod.ready else None
            return evaluation_move(EvaluationSight(seen, served, job, words), step, run, limits, tick.now)
        case TrialStep():
            progress = ports.probes.progress(pod) if pod else None
            return trial_move(TrialSight(seen, progress, words), step, run, limits, tick.now)
        case _:
            assert_never(step)


async def _look_at_job(tick: Tick, step: OnTrial) -> JobSight | None:
    """Return the Job that evaluates the trial pod; None where there is none, or the step has none."""
    match step:
        case EvaluationStep():
            return await tick.ports.evaluations.look(evaluation_of(tick, step))
        case TrialStep():
            return None
        case _:
            assert_never(step)


async def _last_words(tick: Tick, pod: Pod | None) -> LastWords:
    """Return what a trial pod that ended by itself reported of its end; its log goes with the pod."""
    if pod is None or not has_ended_by_itself(pod):
        return NO_WORDS
    return await tick.ports.trials.last_words(tick.resource.namespace, pod, _REFUSALS)


async def check_trial(found: Survey, resource: Resource, ports: Ports) -> Survey:
    """Return a survey that knows whether its trial could be made, where its plan is one.

    A blocker that was found before stays.
    """
    step = found.plan.steps[0] if found.plan else None
    if not isinstance(step, OnTrial) or found.blocked is not None:
        return found
    why = ports.trials.explain_refusal() or _why_no_job(step, ports)
    if not why:
        engine = resource.policy.target.engine if resource.policy else None
        manifest = await _manifest(found.view, step, _trial(resource, "", step), engine, ports)
        why = manifest.message if isinstance(manifest, Blocked) else ""
        workload = engine_of(found.view, resource.policy) if resource.policy else None
        if isinstance(workload, Workload):
            why = why or remote_cache_in_file(workload.file, workload.engine.profile)
    return replace(found, blocked=Blocked(Reason.TRIAL_IMPOSSIBLE, why)) if why else found


def _why_no_job(step: OnTrial, ports: Ports) -> str:
    """Return why the step's Job cannot be made; empty where it can be, or the step has none."""
    match step:
        case EvaluationStep():
            return ports.evaluations.explain_refusal()
        case TrialStep():
            return ""
        case _:
            assert_never(step)


async def make_trial(tick: Tick, view: View, step: OnTrial) -> str:
    """Make the trial pod; return why there can be none, or nothing."""
    trial = trial_of(tick, step)
    manifest = await _manifest(view, step, trial, tick.policy.target.engine, tick.ports)
    if isinstance(manifest, Blocked):
        return manifest.message
    return await tick.ports.trials.make(trial, manifest)


async def _manifest(
    view: View, step: OnTrial, trial: Trial, engine: str | None, ports: Ports
) -> dict[str, Any] | Blocked:
    template = without_remote_cache(_trial_template_of(view, step), step.container, profiles_for(engine))
    if isinstance(template, Blocked):
        return template
    claims = await ports.trials.held_claims(trial.namespace, template)
    return trial_pod(template, trial, claims)


def begin_test(tick: Tick, view: View, step: TrialStep, pod: Pod) -> None:
    """Begin the test on a trial pod that is Ready; nothing where this process has begun it."""
    tick.ports.probes.begin(tick.resource.namespace, pod, _trial_template_of(view, step), step)


def remember_failed_trial(tick: Tick, step: OnTrial, failed: Failed) -> Tick:
    """Return the tick with a trial on record that showed nothing: it is not asked again for a day."""
    if Trait.TRIAL_FAILED not in failed.reason.traits:
        return tick
    message, generation = failed.message, tick.run.spec_generation
    match step:
        case EvaluationStep():
            result = EvaluationResult(step.tried, step.evaluation, message, tick.now, generation)
            return replace(tick, record=with_score(tick.record, result))
        case TrialStep():
            beside = step.template if step.without else ""
            answer = Answer(step.question, step.answer_template, message, tick.now, generation, beside=beside)
            return replace(tick, record=with_answer(tick.record, answer))
        case _:
            assert_never(step)


async def delete_trial(tick: Tick) -> bool:
    """Remove the trial pods and evaluations of a run that ends; return whether none is left.

    Of a run whose step is none there are none.
    """
    step = tick.run.current.step
    if not isinstance(step, OnTrial):
        return True
    jobs = await tick.ports.evaluations.delete_evaluations(tick.resource.namespace, tick.resource.uid)
    try:
        pod = await tick.ports.trials.look(trial_of(tick, step), _target(tick, step))
    except Conflict:
        pod = None
    if pod is not None:
        tick.ports.probes.forget(pod)
    pods = await tick.ports.trials.delete_trials(tick.resource.namespace, tick.resource.uid)
    return not (jobs or pods)


def trial_of(tick: Tick, step: OnTrial) -> Trial:
    """Return the trial of an open run."""
    return _trial(tick.resource, tick.run.id, step)


def _target(tick: Tick, step: OnTrial) -> TargetRef:
    return replace(tick.policy.target, container=step.container)


def evaluation_of(tick: Tick, step: EvaluationStep) -> Evaluation:
    """Return the evaluation of an open run."""
    resource = tick.resource
    return Evaluation(
        name=job_name(resource.name, f"gate-{tick.run.id}"),
        namespace=resource.namespace,
        owner=_owner(resource),
        cron_job=step.cron_job,
        digest=step.evaluation,
        deadline_seconds=step.limit_seconds,
    )


def _trial(resource: Resource, run: str, step: OnTrial) -> Trial:
    return Trial(
        name=f"{resource.name[:NAME_LENGTH].rstrip('.-')}-trial-{run}",
        namespace=resource.namespace,
        owner=_owner(resource),
        deadline_seconds=step.limit_seconds,
    )


def _owner(resource: Resource) -> Owner:
    return Owner(f"{GROUP}/{VERSION}", KIND, resource.name, resource.uid)


def _trial_template_of(view: View, step: OnTrial) -> Mapping[str, object]:
    """Return the pod template of the trial pod: the target's, with the change under test.

    Raises:
        ValueError: the target's is not the one that the change was made for.
    """
    return view.template if step.change is None else step.change.apply(view.template)
