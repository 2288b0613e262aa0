"""What an open run goes by: the spec as it is now, or its own record where the spec cannot be followed.

Whatever becomes of the spec, an open run must be able to end: what it borrowed is on the target, and
its resource's finalizer waits for it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import assert_never

from kvmedic.core.bundle import BundleStep
from kvmedic.core.diagnosis import Trigger
from kvmedic.core.gating import GateStep
from kvmedic.core.plan import AutoscalerStep, ConfigStep, FlagStep, ReplaceStep, RevisionStep, ScaleStep, Step
from kvmedic.core.policy import (
    Limits,
    Mode,
    OnInconclusive,
    Policy,
    RolloutPolicy,
    Spare,
    TargetRef,
    Windows,
)
from kvmedic.core.run import Run, Terms
from kvmedic.core.trialling import TrialStep
from kvmedic.core.verdict import Objectives
from kvmedic.core.vitals import NodeHealth

NEVER = timedelta(0)


def terms_of(policy: Policy) -> Terms:
    """Return what is to be remembered of a spec, so that what is begun by it can be ended without it."""
    rollout = policy.rollout
    return Terms(rollout.rotation_label, rollout.drain_timeout, rollout.on_drain_timeout)


def policy_during(run: Run, policy: Policy | None) -> Policy | None:
    """Return what an open run goes by; None where neither the spec nor the record says enough.

    The rotation label is always the one that the run began with: replicas may carry it.
    """
    if run.terms is None:
        return policy
    if policy is None:
        return policy_from(run.current.step, run.terms)
    return replace(policy, rollout=replace(policy.rollout, rotation_label=run.terms.rotation_label))


def policy_from(step: Step, terms: Terms) -> Policy:
    """Return a policy with which a step can be taken back, and nothing else can be done."""
    return without_spec(TargetRef(step.target.kind, step.target.name, _container(step)), terms)


def without_spec(target: TargetRef, terms: Terms) -> Policy:
    """Return a policy with which what was done to a target can be taken back, and nothing else."""
    return Policy(
        target=target,
        mode=Mode.OBSERVE,
        suspended=True,
        runbooks=(),
        source="",
        objectives=Objectives(),
        trigger=Trigger(inf, inf),
        windows=Windows(NEVER, NEVER, NEVER, NEVER),
        node_health=NodeHealth.REQUIRED,
        levers=(),
        rollout=RolloutPolicy(
            Spare.REQUIRED,
            terms.drain_timeout,
            terms.rotation_label,
            on_drain_timeout=terms.on_drain_timeout,
        ),
        on_inconclusive=OnInconclusive.HOLD,
        limits=Limits(NEVER, 0, 0),
        hold_at_most=NEVER,
    )


def _container(step: Step) -> str | None:
    match step:
        case FlagStep():
            return step.edit.container
        case AutoscalerStep() | BundleStep() | ConfigStep() | ReplaceStep() | RevisionStep() | ScaleStep():
            return step.container
        case TrialStep() | GateStep():
            return step.container
        case _:
            assert_never(step)
