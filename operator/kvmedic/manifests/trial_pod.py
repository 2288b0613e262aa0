"""A trial pod: a target's pod template, alone and out of everybody's sight, for a limited time.

Nothing selects it: it carries one label of its own and none of the template's. It never restarts, ends by
itself, makes no room for itself by evicting others, and goes with the resource that owns it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TRIAL_LABEL = "kvmedic.io/trial"
"""The only label of a trial pod, and one of an evaluation's Job, not of its pods; its value is the uid of the
resource that it is made for."""
PRIORITY_CLASS = "kvmedic-trial"
"""Its PriorityClass must be in the cluster, and must never preempt (`preemptionPolicy: Never`)."""
GRACE_SECONDS = 1
"""Between SIGTERM and the end: a trial serves nobody."""
KEPT_ANNOTATIONS = "container.apparmor.security.beta.kubernetes.io/"
"""Beginning of annotations that decide whether a pod may run; any other is for those who watch the fleet."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The resource that a trial is made for."""

    api_version: str
    kind: str
    name: str
    uid: str

    def reference(self) -> dict[str, Any]:
        """Return the reference by which an object goes with its owner, and does not hold it up."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial."""

    name: str
    """Of the pod; the same for the same trial, so that a second creation finds the first."""
    namespace: str
    owner: Owner
    deadline_seconds: int
    """After that the pod is ended by the kubelet, whatever became of everybody else."""


@dataclass(frozen=True, slots=True)
class NoTrial:
    """A template of which no trial pod can be made, and why."""

    why: str


def trial_pod(
    template: Mapping[str, Any], trial: Trial, held_claims: frozenset[str] = frozenset()
) -> dict[str, Any] | NoTrial:
    """Return the manifest of a trial pod.

    Args:
        template: a pod template as the API server returns it, with the change under test where there is one.
        trial: name, owner and time limit.
        held_claims: PersistentVolumeClaims of the namespace that only one node or pod may use at a time.
    """
    spec = copy.deepcopy(dict(template.get("spec") or {}))
    for why in _obstacles(spec, held_claims):
        return NoTrial(why)
    for name in ("priority", "preemptionPolicy"):
        spec.pop(name, None)
    spec |= {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": trial.deadline_seconds,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "priorityClassName": PRIORITY_CLASS,
    }
    metadata: dict[str, Any] = {
        "name": trial.name,
        "namespace": trial.namespace,
        "labels": {TRIAL_LABEL: trial.owner.uid},
        "ownerReferences": [trial.owner.reference()],
    }
    if annotations := _annotations(template):
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _annotations(template: Mapping[str, Any]) -> dict[str, str]:
    given = (template.get("metadata") or {}).get("annotations") or {}
    return {name: text for name, text in given.items() if name.startswith(KEPT_ANNOTATIONS)}


def _obstacles(spec: Mapping[str, Any], held_claims: frozenset[str]) -> Iterator[str]:
    """Yield what would keep a second pod of this template from running, or let it disturb the others."""
    if spec.get("hostNetwork"):
        yield "the template uses its host's network, where a second engine would take the same ports"
    if spec.get("nodeName"):
        yield f"the template names its node ({spec['nodeName']}), past the scheduler that knows what is free"
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                name, number = container.get("name"), port["hostPort"]
                yield f"container {name} takes port {number} of its host (hostPort), which only one pod can"
    for volume in spec.get("volumes") or ():
        name, claim = volume.get("name"), (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim in held_claims:
            yield f"volume {name} is PersistentVolumeClaim/{claim}, which is not for several pods"
