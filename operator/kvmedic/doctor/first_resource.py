"""The resource that fits a fleet: what has to be named for it, and everything else with its default.

Lines that begin with `#` and no blank after it are settings to be taken in by removing that sign.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvmedic.doctor.checks import labels_that_change
from kvmedic.engines import ENGINES
from kvmedic.manifests.documents import reads_as_text
from kvmedic.model.edits import containers_of
from kvmedic.model.engine import Knob
from kvmedic.model.fleet import DEPLOYMENT, Fleet
from kvmedic.model.spec import Ownership, Policy, Spare, TargetRef
from kvmedic.rollout.preconditions import Neighbours
from kvmedic.rollout.start_failure import start_limit
from kvmedic.runbooks.workload import EngineLine, View, Workload

MANY_REPLICAS = 8
"""From so many on a quarter is two replicas or more, so that waves are quicker than one by one."""
HEALTHY_SHARE = 0.75
"""Of the replicas, Ready ones without which no run shall begin: a choice, so that a change does not meet a
fleet that lost a quarter."""


def fitting_target(view: View, target: TargetRef) -> TargetRef:
    """Return the reference to a target that its resource should have.

    The engine is named where neither the image's name nor the command line says it, and exactly one container
    has arguments that an engine reads, one of them for a knob that is known.
    """
    found = view.engine_line(target)
    if isinstance(found, EngineLine):
        return replace(target, container=str(found.container.get("name")))
    if target.engine is not None:
        return target
    names = [str(each.get("name")) for each in containers_of(view.template)]
    fitting = [
        named
        for profile in ENGINES
        for name in names
        if _sets_knob(view, named := replace(target, container=name, engine=profile.name))
    ]
    return fitting[0] if len(fitting) == 1 else target


def fitting_policy(view: View, policy: Policy) -> Policy:
    """Return what the resource of a target should say: the reference to it, and what its owner is asked.

    A Helm release does nothing until a person upgrades it, so it is asked to give way; who applies the
    file says so with it. Of any other owner only a person knows whether it leaves a run's fields alone.
    """
    owner = view.fleet.owner
    ownership = Ownership.APPLY if owner is not None and owner.is_release else policy.ownership
    return replace(policy, target=fitting_target(view, policy.target), ownership=ownership)


def _sets_knob(view: View, target: TargetRef) -> bool:
    """Return whether a container's arguments set a knob of the engine that a reference names."""
    found = view.workload(target)
    return isinstance(found, Workload) and bool(found.flags.values())


def resource_text(view: View, policy: Policy, neighbours: Neighbours | str, mode: str) -> str:
    """Return the manifest of a resource that fits a target, with a word on each choice.

    Args:
        view: the target.
        policy: of what the resource will say, with the fitting reference to the target.
        neighbours: who else has a say in it, or why that is not known.
        mode: how far kvmedic may go.
    """
    fleet = view.fleet
    return "\n".join(
        (
            "apiVersion: kvmedic.io/v1alpha1",
            "kind: KVRemediation",
            "metadata:",
            f"  name: {_scalar(fleet.name)}",
            f"  namespace: {_scalar(fleet.namespace)}",
            "spec:",
            *_target_lines(view, policy.target),
            "  # Observe shows what it would do. Approve does it once a person approved. Auto does it.",
            f"  mode: {mode}",
            *_owner_lines(fleet, policy),
            *_objective_lines(),
            *_lever_lines(view, policy, neighbours),
            *_rollout_lines(fleet, policy),
            *_limit_lines(fleet),
            "",
        )
    )


def _scalar(text: str) -> str:
    """Return a name as YAML: one that Kubernetes would take is plain, unless it reads as something else."""
    is_plain = re.fullmatch("[a-z0-9]([-a-z0-9.]*[a-z0-9])?", text) and reads_as_text(text)
    return text if is_plain else json.dumps(text)


def _target_lines(view: View, target: TargetRef) -> Iterator[str]:
    yield "  targetRef:"
    if target.kind != DEPLOYMENT:
        yield f"    kind: {target.kind}"
    yield f"    name: {_scalar(target.name)}"
    found = view.workload(target)
    if target.container is not None:
        engine = found.engine if isinstance(found, Workload) else None
        version = (engine.version if engine else None) or "(version unknown)"
        runs = f"  # it runs {engine.profile.name} {version}" if engine else ""
        yield f"    container: {_scalar(target.container)}{runs}"
    else:
        names = [str(each.get("name")) for each in containers_of(view.template)]
        yield f"    # Nothing shows which container runs the engine, of {json.dumps(names)}: name it."
        yield f"    #container: {_scalar(names[0]) if names else 'vllm'}"
    if target.engine is not None:
        yield f"    engine: {target.engine}  # its image's name does not say so, its arguments do"
    elif not isinstance(found, Workload):
        yield "    #engine: vLLM"
    if target.port is not None:
        yield f"    port: {target.port}"
    elif target.ports:
        yield f"    ports: {list(target.ports)}"
    elif all(pod.port is None for pod in view.fleet.live):
        yield "    # Nothing shows where replicas serve /metrics: the operator's own port counts."
        yield "    #port: 8000"


def _owner_lines(fleet: Fleet, policy: Policy) -> Iterator[str]:
    owner = fleet.owner
    if owner is None or owner.is_controller:
        return
    named = json.dumps(owner.name)[1:-1]
    yield f"  # {named} owns it. With Respect a change is proposed. With Apply it is made, and"
    yield "  # what keeps it is named: until its owner has that, it may put the old value back, undrained."
    yield f"  {'' if policy.ownership is Ownership.APPLY else '#'}ownership: {Ownership.APPLY}"


def _objective_lines() -> Iterator[str]:
    yield "  # What users are promised: a change must not break it, and trouble that does pages you."
    yield "  #objectives:"
    yield "  #  ttftP95: 5s"
    yield "  #  interTokenP95: 200ms"
    yield "  #  e2eP95: 60s"


def _lever_lines(view: View, policy: Policy, neighbours: Neighbours | str) -> Iterator[str]:
    found, replicas = view.workload(policy.target), view.fleet.replicas
    given = found.value_of(Knob.MAX_NUM_SEQS) if isinstance(found, Workload) else None
    yield "  # What may be changed, in the order of trying. What is not here is left alone."
    yield "  levers:"
    now = f"--max-num-seqs is {given} now" if given is not None else "--max-num-seqs is not given now"
    yield f"  - name: maxNumSeqs  # {now}"
    if view.fleet.groups is not None:
        return
    scalers = neighbours.autoscalers if isinstance(neighbours, Neighbours) else ()
    most = scalers[0].maximum if scalers else replicas + 1
    yield "  # More replicas for a while, where no setting helps: each takes as many GPUs as a replica."
    yield f"  #- name: scaleOut\n  #  maxReplicas: {max(most, replicas)}"
    yield "  # Back to the revision before, where a deploy brought the trouble."
    yield "  #- name: revisionRollback"


def _rollout_lines(fleet: Fleet, policy: Policy) -> Iterator[str]:
    orphan = fleet.rotation.orphan
    how = (
        f"Here: released from its ReplicaSet, then {labels_that_change(orphan.keys)}."
        if orphan and orphan.keys
        else f"Here {labels_that_change(fleet.rotation.relabel.keys)} of the pod, and it goes then."
        if fleet.rotation.relabel and fleet.rotation.relabel.keys
        else f"Here: by label {fleet.rotation.label}."
        if fleet.rotation.services
        else "Here nothing is known to lead requests to the pods."
    )
    limit = start_limit(fleet.fields.progress_deadline_seconds, None, fleet.live)
    minutes = int(limit.total_seconds() / 60)
    yield "  rollout:"
    yield f"    # How a replica leaves. {how}"
    yield f"    rotation: {policy.rollout.rotation}"
    if policy.rollout.spare is not Spare.REQUIRED:
        yield "    # Without a place for a spare: one replica short at a time, where the others carry it."
        yield f"    spare: {policy.rollout.spare}"
    yield f"    # A new replica may take {minutes} min to become Ready: raise it for large weights."
    yield f"    #startTimeout: {2 * minutes}m"
    if fleet.replicas >= MANY_REPLICAS:
        yield "    # A quarter of the fleet at once, as far as there are free devices."
        yield "    #waves: Quarter"


def _limit_lines(fleet: Fleet) -> Sequence[str]:
    least = max(1, int(fleet.replicas * HEALTHY_SHARE))
    return (
        "  limits:",
        f"    # Of {fleet.replicas} replicas; with fewer that are Ready no run begins.",
        f"    minHealthyReplicas: {least}",
        "    # When runs may begin; without it at any time.",
        "    #windows:",
        "    #- days: [Mon, Tue, Wed, Thu]",
        '    #  start: "09:00"',
        '    #  end: "16:00"',
        "    #  timeZone: UTC",
    )
