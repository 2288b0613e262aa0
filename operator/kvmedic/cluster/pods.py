"""What is known of one pod, read from its object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvmedic.cluster.marks import CORDON_COST, CORDONED, DELETION_COST
from kvmedic.core.fleet import ContainerEnd, Instance, Pod, Rotation
from kvmedic.kube.objects import annotations_of, items, labels_of, moment, section, uid_of

PLACES = (("state", Instance.PRESENT), ("lastState", Instance.PREVIOUS))
"""Where the kubelet shows how an instance of a container ended, by instance. While it waits before it starts
a container again it shows the newest end in either, in turn (seen on Kubernetes 1.36)."""

FINISHED = frozenset({"Succeeded", "Failed"})
"""Phases in which a pod counts as gone: its ReplicaSet replaces it (Kubernetes 1.36
controller_utils.go, IsPodActive). An evicted pod stays in this state until it is cleaned up."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What has to be known beside a pod's own object."""

    revision: str
    """Hash of its ReplicaSet's pod template."""
    container: str | None
    """The engine's container; None: not known, so every container counts."""
    rotation: Rotation
    serving: Mapping[str, tuple[str, ...]]
    """Who leads requests to a pod, by its uid; others get none."""


def is_finished(body: Mapping[str, Any]) -> bool:
    """Return whether a pod has ended for good and no longer counts as a replica."""
    return section(body, "status").get("phase") in FINISHED


def pod_of(body: Mapping[str, Any], frame: Frame) -> Pod:
    """Return the facts of one pod."""
    metadata, status = section(body, "metadata"), section(body, "status")
    return Pod(
        name=str(metadata["name"]),
        uid=uid_of(body),
        resource_version=str(metadata["resourceVersion"]),
        revision=frame.revision,
        address=str(status.get("podIP", "")),
        created_at=moment(metadata["creationTimestamp"]),
        ready_at=_since(status, "True"),
        terminating="deletionTimestamp" in metadata,
        unschedulable=_condition(status, "PodScheduled").get("reason") == "Unschedulable",
        in_rotation=uid_of(body) in frame.serving,
        cordoned=is_cordoned(body, frame.rotation),
        half_cordoned=is_half_cordoned(body, frame.rotation),
        restarts=sum(int(each.get("restartCount", 0)) for each in _containers(status, frame.container)),
        waiting_reason=_waiting_reason(status, frame.container),
        node=str(section(body, "spec").get("nodeName", "")),
        last_end=_last_end(status, frame.container),
        unready_at=_since(status, "False"),
        image=_image(status, frame.container),
        runs_since=_runs_since(status, frame.container),
        is_stopped=_is_stopped(status, frame.container),
        ports=_ports(section(body, "spec")),
        listed_by=frame.serving.get(uid_of(body), ()),
    )


def is_cordoned(body: Mapping[str, Any], rotation: Rotation) -> bool:
    """Return whether a pod carries both marks of a cordon."""
    return (
        labels_of(body).get(rotation.label) == rotation.draining
        and annotations_of(body).get(DELETION_COST) == CORDON_COST
    )


def is_half_cordoned(body: Mapping[str, Any], rotation: Rotation) -> bool:
    """Return whether a pod carries a cordon's label and note, and another deletion cost than ours."""
    drains = labels_of(body).get(rotation.label) == rotation.draining
    return drains and CORDONED in annotations_of(body) and not is_cordoned(body, rotation)


def _since(status: Mapping[str, Any], wanted: str) -> datetime | None:
    """Return since when the Ready condition has a status; None where it has another, or is not there."""
    condition = _condition(status, "Ready")
    at = condition.get("lastTransitionTime")
    return moment(at) if at and condition.get("status") == wanted else None


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((each for each in items(status, "conditions") if each.get("type") == kind), {})


def _containers(status: Mapping[str, Any], name: str | None) -> list[dict[str, Any]]:
    found = items(status, "containerStatuses")
    return [each for each in found if name is None or each.get("name") == name]


def _last_end(status: Mapping[str, Any], name: str | None) -> ContainerEnd | None:
    """Return the newest end; of two within one second the present instance's."""
    found = _containers(status, name)
    if len(found) != 1:
        return None
    ends = (_end_in(found[0], place, instance) for place, instance in PLACES)
    return max((end for end in ends if end is not None), key=lambda end: end.ended_at, default=None)


def _end_in(container: Mapping[str, Any], place: str, instance: Instance) -> ContainerEnd | None:
    """Return an end; one that does not say since when the instance ran leaves it no time at all."""
    ended = section(container, place, "terminated")
    if not ended.get("finishedAt"):
        return None
    return ContainerEnd(
        container=str(container.get("name", "")),
        exit_code=int(ended.get("exitCode", 0)),
        reason=str(ended.get("reason", "")),
        started_at=moment(ended.get("startedAt") or ended["finishedAt"]),
        ended_at=moment(ended["finishedAt"]),
        instance=instance,
    )


def _runs_since(status: Mapping[str, Any], name: str | None) -> datetime | None:
    """Return since when the engine's container runs; of several that may be it, the one that runs longest."""
    began = (section(each, "state", "running").get("startedAt") for each in _containers(status, name))
    return min((moment(at) for at in began if at), default=None)


def _is_stopped(status: Mapping[str, Any], name: str | None) -> bool:
    """Return whether every container that may be the engine's is told of, and none runs."""
    found = _containers(status, name)
    return bool(found) and not any("running" in (each.get("state") or {}) for each in found)


def _ports(spec: Mapping[str, Any]) -> tuple[int, ...]:
    declared = (
        port
        for each in (*items(spec, "containers"), *items(spec, "initContainers"))
        for port in items(each, "ports")
    )
    return tuple(
        sorted({int(port["containerPort"]) for port in declared if port.get("protocol", "TCP") == "TCP"})
    )


def _image(status: Mapping[str, Any], name: str | None) -> str:
    found = _containers(status, name)
    return str(found[0].get("imageID", "")) if len(found) == 1 else ""


def _waiting_reason(status: Mapping[str, Any], name: str | None) -> str:
    reasons = (section(each, "state", "waiting").get("reason") for each in _containers(status, name))
    return next((str(reason) for reason in reasons if reason), "")
