"""What a trial pod does in one tick of a run: looked at, made, and gone again before the run is closed.

The run's record is there before the pod is made and until it is gone, so whoever reads it after a crash goes
on with both. The pod's name follows from the run: made twice it is one.
"""

from __future__ import annotations

from dataclasses import replace

from kvmedic.api.resource import GROUP, KIND, VERSION
from kvmedic.core.fleet import Pod
from kvmedic.core.moves import Failed
from kvmedic.core.reasons import Reason
from kvmedic.core.resource import Resource
from kvmedic.core.run import Outcome
from kvmedic.core.trial_moves import TrialMove, TrialSight, trial_move
from kvmedic.core.trialling import TrialStep
from kvmedic.findings import Survey
from kvmedic.kube.errors import Conflict
from kvmedic.manifests.trial_pod import NoTrial, Owner, Trial, trial_pod
from kvmedic.ports import View
from kvmedic.trial_ports import Trials
from kvmedic.walks import Tick, start_limits

NAME_LENGTH = 200
"""Characters of the resource's name in that of a pod: with the run's id it stays under the 253 of a name."""


async def next_trial_move(tick: Tick, step: TrialStep) -> TrialMove:
    """Return the next move of the trial of an open run."""
    try:
        pod = await tick.ports.trials.look(trial_of(tick, step), step.container)
    except Conflict:
        return Failed(Reason.TRIAL_UNANSWERED, "a pod of the trial's name is somebody else's")
    sight = TrialSight(pod, tick.ports.probes.progress(pod) if pod else None)
    return trial_move(sight, step, tick.run, start_limits(tick), tick.now)


async def triable(found: Survey, resource: Resource, trials: Trials) -> Survey:
    """Return a survey that knows whether its trial could be made, where its plan is one.

    An obstacle that was found before stays.
    """
    step = found.plan.steps[0] if found.plan else None
    if not isinstance(step, TrialStep) or found.obstacle is not None:
        return found
    why = trials.forbidden()
    if not why:
        claims = await trials.held_claims(resource.namespace, found.view.template)
        manifest = trial_pod(found.view.template, _trial(resource, "", step), claims)
        why = manifest.why if isinstance(manifest, NoTrial) else ""
    return replace(found, obstacle=Outcome(Reason.TRIAL_IMPOSSIBLE, why)) if why else found


async def make_trial(tick: Tick, view: View, step: TrialStep) -> str:
    """Make the trial pod; return why there can be none, or nothing."""
    claims = await tick.ports.trials.held_claims(tick.resource.namespace, view.template)
    trial = trial_of(tick, step)
    manifest = trial_pod(view.template, trial, claims)
    if isinstance(manifest, NoTrial):
        return manifest.why
    return await tick.ports.trials.make(trial, manifest)


def begin_test(tick: Tick, view: View, step: TrialStep, pod: Pod) -> None:
    """Begin the test on a trial pod that is Ready; nothing where this process has begun it."""
    template = step.change.apply(view.template) if step.change else view.template
    tick.ports.probes.begin(tick.resource.namespace, pod, template, step)


async def cleared(tick: Tick) -> bool:
    """Remove the trial pods of a run that ends; return whether none is left.

    Of a run whose step is none there are none.
    """
    step = tick.run.current.step
    if not isinstance(step, TrialStep):
        return True
    try:
        pod = await tick.ports.trials.look(trial_of(tick, step), step.container)
    except Conflict:
        pod = None
    if pod is not None:
        tick.ports.probes.forget(pod)
    return not await tick.ports.trials.sweep(tick.resource.namespace, tick.resource.uid)


def trial_of(tick: Tick, step: TrialStep) -> Trial:
    """Return the trial of an open run."""
    return _trial(tick.resource, tick.run.id, step)


def _trial(resource: Resource, run: str, step: TrialStep) -> Trial:
    return Trial(
        name=f"{resource.name[:NAME_LENGTH]}-trial-{run}",
        namespace=resource.namespace,
        owner=Owner(f"{GROUP}/{VERSION}", KIND, resource.name, resource.uid),
        deadline_seconds=step.limit_seconds,
    )
