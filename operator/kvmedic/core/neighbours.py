"""Who else has a say in a target's replicas and pods: autoscalers and disruption budgets. Never fought.

An autoscaler of replicas in the middle of a rollout takes or adds its share, undrained as always, plus
at most one replica (Kubernetes 1.36, tests/reconcile/test_people.py and test_neighbours.py). The spare
hardly moves it: a HorizontalPodAutoscaler that averages over pods multiplies that average by the Ready
pods, so that the spare cancels out; one with a Value target may add a replica while the spare is there
(kube-controller-manager 1.36, podautoscaler/replica_calculator.go). So a run goes on beside one. A
VerticalPodAutoscaler that evicts takes pods that nobody drained and makes others of another size than
were judged: beside it none begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvmedic.core.fleet import Fleet, Rotation
from kvmedic.core.plan import AutoscalerStep, ObjectRef, ScaleStep
from kvmedic.core.reasons import Reason
from kvmedic.core.run import Outcome

HARMLESS_MODES = frozenset({"Off", "Initial"})
"""Update modes in which a VerticalPodAutoscaler leaves pods alone that run (autoscaling.k8s.io/v1)."""


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """Sets the target's number of replicas."""

    kind: str
    name: str
    minimum: int
    maximum: int
    wanted: int | None = None
    """Replicas that it wants now; None: it did not say, or cannot tell."""
    paused: bool = False
    """Somebody told it to leave the number alone."""
    may_add: bool = True
    """Otherwise somebody told it to add no replica. It would all the same where its minimum is raised: on the
    way there no policy is asked (kube-controller-manager 1.36, podautoscaler/horizontal.go)."""
    uid: str = field(default="", compare=False)
    is_given: bool = field(default=True, compare=False)
    """The minimum stands in the object; otherwise its kind's default counts."""
    owner: str = field(default="", compare=False)
    """Who would put a changed minimum back; empty where nobody is known to."""


@dataclass(frozen=True, slots=True)
class VerticalAutoscaler:
    """Changes the resources of the target's pods."""

    name: str
    mode: str


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Everybody who has a say, each kind by name."""

    autoscalers: tuple[Autoscaler, ...] = ()
    vertical: tuple[VerticalAutoscaler, ...] = ()
    disruption_budgets: tuple[str, ...] = ()
    """Names of the PodDisruptionBudgets that select the target's pods."""
    of_draining: tuple[str, ...] = ()
    """Policies, by kind and name, that treat a replica differently while it drains."""


def hindrance(neighbours: Neighbours, fleet: Fleet) -> Outcome | None:
    """Return why no run may begin beside these neighbours, or None."""
    if doubt := draining_hindrance(neighbours, fleet):
        return doubt
    for vertical in neighbours.vertical:
        if vertical.mode not in HARMLESS_MODES:
            return Outcome(
                Reason.MANAGED_BY_VPA,
                f"VerticalPodAutoscaler {vertical.name} evicts pods and changes their resources (updateMode "
                f"{vertical.mode}), also in the middle of a run: set spec.updatePolicy.updateMode to "
                '"Off" or "Initial"',
            )
    for scaler in neighbours.autoscalers:
        if scaler.wanted is not None and scaler.wanted != fleet.replicas:
            return Outcome(
                Reason.AUTOSCALER_ACTIVE,
                f"{scaler.kind} {scaler.name} wants {scaler.wanted} replicas and there are {fleet.replicas}; "
                "a run begins when they agree",
            )
    return None


def draining_hindrance(neighbours: Neighbours, fleet: Fleet) -> Outcome | None:
    """Return why no replica may be drained beside these neighbours, or None."""
    if not neighbours.of_draining:
        return None
    return Outcome(Reason.DRAINING_VALUE_SELECTED, draining_message(fleet.rotation, neighbours.of_draining))


def draining_message(rotation: Rotation, others: Sequence[str]) -> str:
    """Return who else goes by the value that a replica gets while it drains, and the two ways out."""
    return (
        f"{', '.join(others)} selects pods by {rotation.label}={rotation.draining}, the value of a replica "
        "that still answers requests: name a value that nobody selects in "
        "spec.rollout.rotationLabel.draining, or take the label out of that selector"
    )


def remarks(neighbours: Neighbours) -> Iterator[str]:
    """Yield what a person should know who looks at a run beside these neighbours."""
    for scaler in neighbours.autoscalers:
        if scaler.paused or scaler.minimum == scaler.maximum:
            continue
        zero = "; at 0 a run ends" if scaler.minimum == 0 else ""
        yield (
            f"{scaler.kind} {scaler.name} goes on setting the replicas ({scaler.minimum} to "
            f"{scaler.maximum}{zero})"
        )
    if neighbours.disruption_budgets:
        names = ", ".join(neighbours.disruption_budgets)
        yield f"PodDisruptionBudget {names} does not limit a rollout; kvmedic keeps the count itself"


def rerouted(step: ScaleStep, neighbours: Neighbours, fleet: Fleet) -> AutoscalerStep | Outcome:
    """Return the step that adds replicas through the autoscaler that decides their number, or why none can.

    Its own maximum is a bound too.
    """
    if len(neighbours.autoscalers) > 1 or step.gives_back:
        names = ", ".join(f"{each.kind} {each.name}" for each in neighbours.autoscalers)
        return Outcome(Reason.REPLICAS_AUTOSCALED, f"{names} decide the number of replicas; set it there")
    scaler = neighbours.autoscalers[0]
    wanted = min(step.after, scaler.maximum)
    if obstacle := _unmovable(scaler, wanted, fleet):
        return obstacle
    return AutoscalerStep(
        target=step.target,
        container=step.container,
        holder=ObjectRef(scaler.kind, scaler.name),
        holder_uid=scaler.uid,
        before=scaler.minimum,
        after=wanted,
        is_given=scaler.is_given,
        template=step.template,
        reason=step.reason,
    )


def _unmovable(scaler: Autoscaler, wanted: int, fleet: Fleet) -> Outcome | None:
    """Return why an autoscaler's minimum cannot be raised to a number, or None."""
    who = f"{scaler.kind} {scaler.name}"
    if scaler.paused:
        return Outcome(Reason.REPLICAS_AUTOSCALED, f"{who} is paused: resume it, or scale by hand")
    if not scaler.may_add:
        text = f"{who} is told to add no replicas: allow it there, or scale by hand"
        return Outcome(Reason.REPLICAS_AUTOSCALED, text)
    if scaler.owner:
        text = f"{scaler.owner} applies {who} and would put its minimum back: set it to {wanted} there"
        return Outcome(Reason.REPLICAS_AUTOSCALED, text)
    if wanted <= fleet.replicas:
        text = f"{who} keeps {scaler.maximum} replicas at most, and {fleet.replicas} are there: raise that"
        return Outcome(Reason.LEVER_AT_BOUND, text)
    return None
