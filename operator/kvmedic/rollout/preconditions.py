"""When a change may begin: each row was seen to break it on a real controller when ignored.

Who else has a say in a target's replicas and pods: autoscalers and disruption budgets. Never fought.

An autoscaler of replicas in the middle of a rollout takes or adds its share, undrained as always, plus
at most one replica (Kubernetes 1.36, tests/controller/test_people.py and test_neighbours.py). The spare
hardly moves it: a HorizontalPodAutoscaler that averages over pods multiplies that average by the Ready
pods, so that the spare cancels out; one with a Value target may add a replica while the spare is there
(kube-controller-manager 1.36, podautoscaler/replica_calculator.go). So a run goes on beside one. A
VerticalPodAutoscaler that evicts takes pods that nobody drained and makes others of another size than
were judged: beside it none begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import TypeAlias

from kvmedic.model.config_edits import Revision
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ROLLING, SURGE, Fleet, ObjectRef, Owner, OwnerKind, ReplicaSet, Rotation
from kvmedic.model.plan import MinimumHolder, ReplaceStep, ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.rollout.moves import Failed, kubectl_name
from kvmedic.rollout.orphan_drain import explain_blocked_drain
from kvmedic.rollout.owners.reversion import Reversion
from kvmedic.verdict.baseline import NAMED, is_quorate

HARMLESS_MODES = frozenset({"Off", "Initial"})
"""Update modes in which a VerticalPodAutoscaler leaves pods alone that run (autoscaling.k8s.io/v1)."""


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """Sets the target's number of replicas."""

    kind: str
    name: str
    minimum: int
    maximum: int
    desired: int | None = None
    """Replicas that it wants now; None: it did not say, or does not know."""
    paused: bool = False
    """Somebody set it to leave the number alone."""
    may_add: bool = True
    """Otherwise somebody set it to add no replica. It would all the same where its minimum is raised: on the
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
    reversion: Reversion | None = None
    """What the owner of the target does with the change; None: nobody was asked, or nobody owns it."""


def find_blocker(neighbours: Neighbours, fleet: Fleet) -> Blocked | None:
    """Return why no run may begin beside these neighbours, or None."""
    return next(find_blockers(neighbours, fleet), None)


def find_blockers(neighbours: Neighbours, fleet: Fleet) -> Iterator[Blocked]:
    """Yield everything about these neighbours by which no run may begin, in reporting order."""
    if doubt := find_draining_blocker(neighbours, fleet):
        yield doubt
    for vertical in neighbours.vertical:
        if vertical.mode not in HARMLESS_MODES:
            yield Blocked(
                Reason.MANAGED_BY_VPA,
                f"VerticalPodAutoscaler {vertical.name} evicts pods and changes their resources (updateMode "
                f"{vertical.mode}), also in the middle of a run: set spec.updatePolicy.updateMode to "
                '"Off" or "Initial"',
            )
    for scaler in neighbours.autoscalers:
        if scaler.desired is not None and scaler.desired != fleet.replicas:
            yield Blocked(
                Reason.AUTOSCALER_ACTIVE,
                f"{scaler.kind} {scaler.name} wants {scaler.desired} replicas and there are "
                f"{fleet.replicas}; a run begins when they agree",
            )


def find_reversion_blocker(neighbours: Neighbours, fleet: Fleet) -> Blocked | None:
    """Return why a change would be put back in the middle of its run, or None where that is not known.

    A person's word that a revert is fine does not count here: such a run cannot end but by that revert.
    """
    found, owner = neighbours.reversion, fleet.owner
    if found is None or owner is None or not found.at_once:
        return None
    return Blocked(owner.reason, found.message)


def find_draining_blocker(neighbours: Neighbours, fleet: Fleet) -> Blocked | None:
    """Return why no replica may be drained beside these neighbours, or None."""
    if not neighbours.of_draining:
        return None
    return Blocked(Reason.ROTATION_LABEL_UNUSABLE, draining_message(fleet.rotation, neighbours.of_draining))


def draining_message(rotation: Rotation, others: Sequence[str]) -> str:
    """Return who else goes by the value that a replica gets while it drains, and the two ways out."""
    return (
        f"{', '.join(others)} selects pods by {rotation.label}={rotation.draining}, the value of a replica "
        "that still answers requests: name a value that no Service selects in "
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
    if neighbours.reversion is not None:
        yield neighbours.reversion.message
    if neighbours.disruption_budgets:
        names = ", ".join(neighbours.disruption_budgets)
        yield f"PodDisruptionBudget {names} does not limit a rollout; kvmedic keeps the count itself"


def via_autoscaler(step: ReplicasStep, neighbours: Neighbours, fleet: Fleet) -> ReplicasStep | Blocked:
    """Return the step that adds replicas through the autoscaler that decides their number, or why none can.

    Its own maximum is a bound too.
    """
    if len(neighbours.autoscalers) > 1 or step.gives_back:
        names = ", ".join(f"{each.kind} {each.name}" for each in neighbours.autoscalers)
        return Blocked(Reason.REPLICAS_AUTOSCALED, f"{names} decide the number of replicas; set it there")
    scaler = neighbours.autoscalers[0]
    desired = min(step.after, scaler.maximum)
    if blocked := _find_scaler_blocker(scaler, desired, fleet):
        return blocked
    holder = MinimumHolder(ObjectRef(scaler.kind, scaler.name), scaler.uid, scaler.is_given)
    return replace(step, before=scaler.minimum, after=desired, holder=holder)


def _find_scaler_blocker(scaler: Autoscaler, desired: int, fleet: Fleet) -> Blocked | None:
    who = f"{scaler.kind} {scaler.name}"
    if scaler.paused:
        return Blocked(Reason.REPLICAS_AUTOSCALED, f"{who} is paused: resume it, or scale by hand")
    if not scaler.may_add:
        text = f"{who} is set to add no replicas: allow it there, or scale by hand"
        return Blocked(Reason.REPLICAS_AUTOSCALED, text)
    if scaler.owner:
        text = f"{scaler.owner} applies {who} and would put its minimum back: set it to {desired} there"
        return Blocked(Reason.REPLICAS_AUTOSCALED, text)
    if desired <= fleet.replicas:
        text = f"{who} keeps {scaler.maximum} replicas at most, and {fleet.replicas} are there: raise that"
        return Blocked(Reason.LEVER_AT_BOUND, text)
    if desired <= scaler.minimum:
        text = f"{who} keeps {scaler.minimum} replicas already, and {fleet.replicas} are asked for"
        return Blocked(Reason.REPLICAS_AUTOSCALED, f"{text}: wait until it follows")
    return None


Row: TypeAlias = tuple[bool, Reason, str]
"""Whether it applies, and what is said then."""


WRITTEN = frozenset(
    {OwnerKind.INFERENCE_SERVICE, OwnerKind.LLM_INFERENCE_SERVICE, OwnerKind.OME, OwnerKind.VLLM_RUNTIME}
)
"""Owners whose own field is written, where a person lets it and the field is certain."""

RELEASED_IS_LEFT = "a replica that was released to be drained is still there"


class Purpose(Enum):
    """What a change is for; it says what a fleet must be like before it begins."""

    RELIEF = "relief"
    """Nearly every replica is Ready, and all that are take requests; those that are not go first. Nobody else
    owns the template."""
    BESIDE = "beside"
    """The same, but one that finds no node keeps nothing: replicas are added."""
    MENDING = "mending"
    """For replicas that cannot stay up, which are the first to be replaced. Nobody else owns the template."""
    RETURN = "return"
    """To what was there before: neither may keep a broken setting in place, nor an owner that came meanwhile
    keep ours."""


def purpose_of(step: ReplicasStep) -> Purpose:
    """Return what another number of replicas is for."""
    return Purpose.RETURN if step.gives_back else Purpose.BESIDE


def find_rollout_blocker(fleet: Fleet, purpose: Purpose = Purpose.RELIEF) -> Blocked | None:
    """Return why a frozen rollout cannot begin, or None. Each row, ignored, was seen to break one."""
    return next(iter(find_rollout_blockers(fleet, purpose)), None)


def find_rollout_blockers(fleet: Fleet, purpose: Purpose = Purpose.RELIEF) -> tuple[Blocked, ...]:
    """Return everything that keeps a frozen rollout from beginning on this fleet, in reporting order."""
    return _all_blockers(
        _frozen_row(fleet),
        _owner_row(None if purpose is Purpose.RETURN else owner_of_template(fleet)),
        *_rows(fleet, _unsettled_state(fleet, purpose), _drain_rows(fleet)),
    )


def find_owner_rollout_blocker(fleet: Fleet, purpose: Purpose = Purpose.RELIEF) -> Blocked | None:
    """Return why an owner's own rollout may not be set off on this fleet, or None.

    Nobody drains its replicas, so that of two there must always be as many to serve as before.
    """
    rolls = fleet.strategy == ROLLING
    fewer = fleet.fields.may_lack(fleet.replicas) if rolls else fleet.replicas
    why = (
        f"it ends every replica at once (strategy {fleet.strategy})"
        if not rolls
        else f"it lets {fewer} of {fleet.replicas} replicas be missing (maxUnavailable "
        f"{fleet.fields.max_unavailable}): set its strategy to maxUnavailable 0"
    )
    who = fleet.owner.name if fleet.owner else "the owner"
    text = f"{who} replaces the replicas by its own rollout, and"
    alone = f"{text} there is only one: make the change there"
    return _first_blocker(
        _frozen_row(fleet),
        (fleet.replicas == 1, Reason.OWNED_BY_CONTROLLER, alone),
        (fewer > 0, Reason.OWNED_BY_CONTROLLER, f"{text} {why}, or make the change there"),
        *_rows(fleet, _unsettled_state(fleet, purpose), ()),
    )


def find_halfway_blocker(fleet: Fleet, earlier: str) -> Blocked | None:
    """Return why a rollout that is under way cannot be turned into one back to an earlier revision, or None.

    Replicas of both revisions run then, and one more than the Deployment asks for: a paused controller
    scales both in proportion while there are more or fewer (Kubernetes 1.36, deployment sync.go, scale),
    which takes replicas undrained.
    """
    strategy = f"strategy is {fleet.strategy}, and its rollout cannot be turned: wait for its end"
    return _first_blocker(
        _frozen_row(fleet),
        (fleet.strategy != "RollingUpdate", Reason.STRATEGY_UNSUPPORTED, strategy),
        _owner_row(owner_of_template(fleet)),
        *_rows(fleet, _unbalanced_state(fleet, earlier), _drain_rows(fleet)),
    )


def _unbalanced_state(fleet: Fleet, earlier: str) -> str:
    """Return what of a fleet with two revisions is moving right now; empty when nothing is."""
    live, total = fleet.live, fleet.total_desired
    desired, known = fleet.replicas + SURGE, (fleet.revision, earlier)
    for applies, text in (
        (not fleet.observed, "the deployment controller has not seen the newest spec yet"),
        (fleet.is_losing, "a pod is terminating"),
        (
            any(pod.revision not in known for pod in live),
            "pods of a third revision exist",
        ),
        (len(live) != desired or total != desired, f"{len(live)} replicas exist in the middle of a rollout"),
        (any(not pod.ready for pod in live), f"{fleet.ready} of {len(live)} replicas are Ready"),
        (any(pod.cordoned for pod in live), "a replica carries the draining label"),
        (bool(fleet.orphans), RELEASED_IS_LEFT),
        (any(not pod.in_rotation for pod in live), "a replica is in no Service's EndpointSlices"),
        (_is_over(fleet), "the rollout is complete but for replicas of before, which go now"),
    ):
        if applies:
            return text
    return ""


def _is_over(fleet: Fleet) -> bool:
    """Return whether the present revision has every replica Available: a controller keeps no other then."""
    return any(rs.revision == fleet.revision and rs.available >= fleet.replicas for rs in fleet.replica_sets)


def find_replacement_blocker(fleet: Fleet, step: ReplaceStep) -> Blocked | None:
    """Return why a replica of this fleet cannot be replaced, or None; it need not be Ready itself.

    The strategy does not matter, since nothing is rolled out. Somebody who decides the number of
    replicas does where the spare is one more: it would be taken away again, and not by the order that was
    prepared. A replica that is released makes room for the spare without another number: then nothing of the
    Deployment changes that anybody could own.
    """
    way = fleet.rotation.orphan
    doubt = way.blocked if way else ""
    drains = ((doubt != "", Reason.DRAIN_IMPOSSIBLE, doubt),) if way else _label_rows(fleet)
    down = next((pod.uid for pod in fleet.live if pod.uid == step.uid and not pod.ready), "")
    who = fleet.scaler.name if fleet.scaler else "nobody"
    scaled = (
        f"{who} decides the number of replicas and would undo the spare: replace the replica by hand, or "
        "have the autoscaler leave the number alone for a while"
    )
    return _first_blocker(
        _frozen_row(fleet),
        (fleet.scaler is not None and way is None, Reason.REPLICAS_AUTOSCALED, scaled),
        _owner_row(owner_of_number(fleet) if way is None else None),
        *_rows(fleet, _unsettled_state(fleet, Purpose.RELIEF, down), drains),
    )


def find_ordinal_replacement_blocker(fleet: Fleet, step: ReplaceStep) -> Blocked | None:
    """Return why a StatefulSet's replica cannot be replaced, or None; it need not be Ready itself.

    Nothing of the StatefulSet changes that anybody could own, nor its number of replicas.
    """
    down = next((pod.uid for pod in fleet.live if pod.uid == step.uid and not pod.ready), "")
    alone = (
        f"a {fleet.kind} makes no spare, and nobody serves while its only replica is away: set its "
        "spec.replicas to 2, or delete the pod by hand when nobody needs it"
    )
    return _first_blocker(
        _frozen_row(fleet),
        (fleet.replicas == 1 and not down, Reason.SPARE_NEEDED, alone),
        *_rows(fleet, _unsettled_state(fleet, Purpose.RELIEF, down), _drain_rows(fleet)),
    )


def find_autoscaling_blocker(fleet: Fleet, step: ReplicasStep) -> Blocked | None:
    """Return why an autoscaler's minimum cannot be changed by a step, or None.

    Who owns the Deployment's template does not matter: nothing of it is changed. Nor does the rotation
    label, as no replica is drained.
    """
    found, holder = fleet.minimum, step.number_in
    gone = f"{holder.kind} {holder.name} is gone, or is another one"
    moved = "" if found is None else f"it keeps {found.number} replicas and {step.before} were planned with"
    unsettled = _unsettled_state(fleet, purpose_of(step))
    return _first_blocker(
        _frozen_row(fleet),
        (found is None or found.uid != step.holder_uid, Reason.REPLICAS_CHANGED, gone),
        (found is not None and found.number != step.before, Reason.REPLICAS_CHANGED, moved),
        (fleet.replicas < 1, Reason.NO_REPLICAS, "spec.replicas is 0: nothing serves"),
        (unsettled != "" and not step.gives_back, Reason.TARGET_NOT_SETTLED, unsettled),
    )


def find_scaling_blocker(fleet: Fleet, step: ReplicasStep) -> Blocked | None:
    """Return why this fleet's number of replicas cannot be changed by a step, or None.

    What is given back was ours: a replica that is not Ready does not keep it from going, it goes first.
    """
    who = fleet.scaler.name if fleet.scaler else "nobody"
    scaled = f"{who} decides the number of replicas: set {step.after} there"
    purpose = purpose_of(step)
    return _first_blocker(
        _frozen_row(fleet),
        (fleet.scaler is not None, Reason.REPLICAS_AUTOSCALED, scaled),
        _owner_row(None if purpose is Purpose.RETURN else owner_of_number(fleet)),
        *_rows(fleet, _unsettled_state(fleet, purpose), _drain_rows(fleet)),
    )


def find_rollback_blocker(fleet: Fleet, desired: Revision) -> Blocked | None:
    """Return why a fleet cannot be brought to another of its revisions, or None."""
    kept = next((rs for rs in fleet.replica_sets if _is_kept_by(rs, desired)), None)
    if kept is None:
        return Blocked(
            Reason.REVISION_GONE,
            f"ReplicaSet {desired.replica_set} does not keep pod template {desired.template} any more "
            "(revisionHistoryLimit, or someone deleted or edited it): apply its manifest by hand",
        )
    if not kept.reachable:
        services = ", ".join(fleet.rotation.services)
        return Blocked(
            Reason.REVISION_UNREACHABLE,
            f"the pods of ReplicaSet {kept.name} carry other labels than today's, and {services} would not "
            "lead requests to them: take the change back by hand, with the labels of today",
        )
    return None


def find_start_blocker(fleet: Fleet, desired: Revision, purpose: Purpose = Purpose.RELIEF) -> Blocked | None:
    """Return why a way back to an earlier revision cannot begin, or None."""
    if doubt := find_rollback_blocker(fleet, desired):
        return doubt
    if is_halfway(fleet, desired):
        return find_halfway_blocker(fleet, desired.template)
    return find_rollout_blocker(fleet, purpose)


def is_halfway(fleet: Fleet, desired: Revision) -> bool:
    """Return whether somebody's rollout away from a revision is under way: replicas of it still run."""
    left = fleet.revision != desired.template and not fleet.fields.is_frozen
    return left and fleet.count_desired(desired.template) > 0


def find_trial_blocker(fleet: Fleet) -> Blocked | None:
    """Return why no trial can begin on a fleet's present setting, or None.

    Nothing of the fleet is changed, so neither its strategy nor its owners matter.
    """
    unsettled = _unsettled_state(fleet, Purpose.MENDING)
    return _first_blocker(
        _frozen_row(fleet),
        (fleet.replicas < 1, Reason.NO_REPLICAS, "spec.replicas is 0: nothing serves"),
        (unsettled != "", Reason.TARGET_NOT_SETTLED, unsettled),
    )


def end_as_begun(blocked: Blocked | None, assigned_at: datetime | None) -> Blocked | Failed | None:
    """Return what blocks a run so that it ends: as one that had begun, where an intent was written down."""
    if blocked is None or assigned_at is None:
        return blocked
    return Failed(blocked.reason, blocked.message)


def _is_kept_by(replica_set: ReplicaSet, desired: Revision) -> bool:
    return (replica_set.name, replica_set.revision) == (desired.replica_set, desired.template)


def _first_blocker(*rows: Row) -> Blocked | None:
    return next(iter(_all_blockers(*rows)), None)


def _all_blockers(*rows: Row) -> tuple[Blocked, ...]:
    return tuple(Blocked(reason, message) for applies, reason, message in rows if applies)


def _frozen_row(fleet: Fleet) -> Row:
    return fleet.fields.is_frozen, Reason.CLAIMED_BY_ANOTHER, frozen_message(fleet)


def _drain_rows(fleet: Fleet) -> tuple[Row, ...]:
    """Return what keeps a replica from being drained in the way that the fleet has."""
    if relabel := fleet.rotation.relabel:
        return ((relabel.blocked != "", Reason.DRAIN_IMPOSSIBLE, relabel.blocked),)
    if fleet.rotation.orphan is None:
        return _label_rows(fleet)
    doubt = explain_blocked_drain(fleet)
    return ((doubt != "", Reason.DRAIN_IMPOSSIBLE, doubt),)


def _label_rows(fleet: Fleet) -> tuple[Row, ...]:
    """Return what keeps a replica from being drained by its label."""
    return (
        (
            fleet.rotation.in_selector,
            Reason.ROTATION_LABEL_UNUSABLE,
            f"label {fleet.rotation.label} is in the Deployment's selector: changing it on a pod orphans "
            "the pod; name another label in spec.rollout.rotationLabel.key",
        ),
        (
            bool(fleet.rotation.rivals),
            Reason.ROTATION_LABEL_UNUSABLE,
            draining_message(fleet.rotation, [f"Service {name}" for name in fleet.rotation.rivals]),
        ),
        (
            not fleet.rotation.effective,
            Reason.ROTATION_LABEL_WITHOUT_EFFECT,
            _rotation_message(fleet),
        ),
    )


def owner_of_template(fleet: Fleet) -> Owner | None:
    """Return who would take back a change of the pod template; None: nobody is known to, or it gives way."""
    return None if fleet.owner is None or fleet.owner.gives_way else fleet.owner


def owner_of_number(fleet: Fleet) -> Owner | None:
    """Return who would take back another number of replicas; None: nobody is known to.

    A release does not: nothing of its template changes, and it applies only when a person upgrades it.
    """
    owner = owner_of_template(fleet)
    return None if owner is None or owner.is_release else owner


def _rows(fleet: Fleet, unsettled: str, drain: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return what keeps any change from a fleet, in reporting order.

    Args:
        fleet: the fleet.
        unsettled: what of it is in the middle of another change.
        drain: what keeps a replica from being drained.
    """
    unfit = fleet.groups.unfit if fleet.groups else ""
    return (
        (unfit != "", Reason.KIND_UNSUPPORTED, unfit),
        *drain,
        (fleet.replicas < 1, Reason.NO_REPLICAS, "spec.replicas is 0: nothing serves"),
        (
            fleet.fields.paused,
            Reason.TARGET_PAUSED,
            f"someone paused it: kubectl rollout resume {kubectl_name(fleet)}; what was changed in its "
            "template meanwhile is then rolled out undrained",
        ),
        (unsettled != "", Reason.TARGET_NOT_SETTLED, unsettled),
    )


def _unsettled_state(fleet: Fleet, purpose: Purpose, apart: str = "") -> str:
    """Return what of the fleet is in the middle of another change; empty when nothing is.

    Args:
        fleet: the fleet.
        purpose: what the change is for.
        apart: uid of a replica without which the others must be enough; empty: all of them count.
    """
    whole = purpose in (Purpose.RELIEF, Purpose.BESIDE)
    live = [pod for pod in fleet.pods if not pod.terminating]
    current = fleet.list_pods(fleet.revision)
    active = [rs for rs in fleet.replica_sets if rs.desired > 0]
    lacking = _lacking_replicas(fleet, purpose, apart)
    for applies, text in (
        (not fleet.observed, f"the {fleet.kind.lower()} controller has not seen the newest spec yet"),
        (fleet.is_losing, "a pod is terminating"),
        (bool(fleet.orphans), RELEASED_IS_LEFT),
        (len(active) != 1 or len(live) != len(current), "pods of more than one revision exist"),
        (
            whole and not fleet.is_complete,
            f"its rollout is not complete (partition {fleet.fields.partition}, {fleet.fields.strategy}): "
            "what dies comes back from the revision before",
        ),
        (len(current) != fleet.replicas, f"{len(current)} of {fleet.replicas} replicas exist"),
        (whole and lacking != "", lacking),
        (
            purpose is Purpose.RELIEF and sum(rs.available for rs in active) != fleet.ready,
            "not every Ready replica is Available",
        ),
        (any(pod.cordoned for pod in current), "a replica carries the draining label"),
        (
            whole and any(pod.ready and not pod.in_rotation for pod in current),
            f"{fleet.in_rotation} of {fleet.replicas} replicas are in a Service's EndpointSlices",
        ),
    ):
        if applies:
            return text
    return ""


def _lacking_replicas(fleet: Fleet, purpose: Purpose, apart: str) -> str:
    current = [pod for pod in fleet.list_pods(fleet.revision) if pod.uid != apart]
    down = [pod.name for pod in current if not pod.ready]
    placeless = [pod.name for pod in current if pod.unschedulable]
    text = f"{fleet.ready} of {fleet.replicas} replicas are Ready"
    if placeless and purpose is Purpose.RELIEF:
        return f"{text}: {placeless[0]} cannot be scheduled, so there is no room for a spare either"
    if not down or is_quorate(current):
        return ""
    return f"{text}: see why {', '.join(down[:NAMED])} {'is' if len(down) == 1 else 'are'} not"


def frozen_message(fleet: Fleet) -> str:
    """Return what to do about a rollout that is held frozen without a run of ours."""
    return (
        f"a run holds the rollout frozen (claim {fleet.fence or 'gone'}); if no resource has that run open, "
        "put back what annotation kvmedic.io/recorded says, "
        f"kubectl -n {fleet.namespace} get {fleet.kind.lower()} {fleet.name} "
        "-o jsonpath='{.metadata.annotations.kvmedic\\.io/recorded}': "
        "docs/howto/roll-back-by-hand.md, section 2"
    )


def _owner_row(owner: Owner | None) -> Row:
    if owner is None:
        return False, Reason.OWNED_BY_CONTROLLER, ""
    text = f"{owner.name} decides what this Deployment looks like and would revert a change"
    text = f"{text}: make the change there"
    settled = owner.is_controller and (owner.template is None or owner.template.kind not in WRITTEN)
    return True, owner.reason, text if settled else f"{text}, or see spec.ownership"


def _rotation_message(fleet: Fleet) -> str:
    label, services = fleet.rotation.label, ", ".join(fleet.rotation.services)
    if not services:
        return (
            f"no Service leads requests to the pods, so label {label} takes none out of rotation: name what "
            "your router selects by in spec.rollout.routers (with rotation: Auto), or make a Service that "
            "selects the pods by that label"
        )
    return (
        f"{services} selects the pods without label {label}: first add the label to the pod template, which "
        "replaces every replica undrained; only once every pod has it, of all Deployments behind it, add it "
        "to the selector of every Service in front. Both at once leave no replica to serve"
    )
