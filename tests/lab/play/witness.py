"""What really happened to the fleet, seen from outside of it: rotation, pods, the operator's words."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from kvmedic.model.fleet import POD_TEMPLATE_HASH
from kvmedic.rollout.orphan_drain import RELEASED_HASH, draining_value
from lab.cluster.api import Api
from lab.cluster.pki import Access
from lab.cluster.watch import Mirror, Watches
from lab.lws import installation as lws
from lab.play.course import Chronicle
from lab.play.figures import Scraper
from lab.play.manifests import PORT, ROTATION_LABEL
from lab.play.picker import GROUPS, KIND, Picker
from lab.play.schema import CAP, FLEET, Cue

Object = dict[str, Any]
SERVICE_NAME = "kubernetes.io/service-name"
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")
"""Kinds of a fleet; the last is served only by some clusters."""
REPORTER = "kvmedic.io/operator"
EXPIRED = "DeadlineExceeded"
"""Reason of a pod that the kubelet ended at its activeDeadlineSeconds (kubelet 1.36)."""
EDITOR = "kubectl-edit"
"""Field manager of a person at a terminal."""
OWNERS = frozenset(
    {"kubectl", EDITOR, "kube-controller-manager", "kubelet", "kube-scheduler", lws.PROGRAM, lws.MANAGER}
)
"""Field managers that write to a fleet which nobody heals: its owner, people, and its controllers."""


@dataclass(frozen=True, slots=True)
class Said:
    """One Event of the operator."""

    at: float
    reason: str
    note: str
    warning: bool


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod of the fleet as it is now."""

    name: str
    address: str
    cap: int | None
    """Its --max-num-seqs."""
    ready: bool
    cordoned: bool
    """It carries the value of the rotation label that no Service selects."""
    in_rotation: bool
    terminating: bool
    trouble: str
    """Why its container does not run, such as CrashLoopBackOff; empty otherwise."""


@dataclass(slots=True)
class Facts:
    """What is added up over the whole play."""

    fewest_in_rotation: int | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    """Of containers, by pod uid, of every pod there ever was."""
    served: set[str] = field(default_factory=set)
    """Uids of all pods that were ever in rotation."""
    versions: dict[str, str] = field(default_factory=dict)
    """resourceVersion of the workload and its first pods, by name, when the play began."""
    managers: set[str] = field(default_factory=set)
    """Field managers that ever wrote to the workload or to a pod."""
    in_rotation: frozenset[str] = frozenset()
    """Pod uids."""
    most_pods: int = 0
    """That there were at once, without those that have ended or are being deleted."""
    cues: set[Cue] = field(default_factory=set)
    """What has happened to pods."""
    expired: set[str] = field(default_factory=set)
    """Uids of pods that the kubelet ended at their deadline."""


class Witness:
    """Follows the fleet and its resource from `start` to `stop`; every state in between counts."""

    def __init__(self, access: Access, namespace: str, picker: Picker | None = None) -> None:
        self.facts = Facts()
        self.chronicle = Chronicle()
        self.picker = picker
        """Leads requests to the fleet; None where its Service does."""
        self._lock = threading.Lock()
        self._armed = False
        self._said: deque[Said] = deque()
        self._known: set[str] = set()
        self._access, self._namespace = access, namespace
        self._pods = Mirror(self._see_pods)
        self._workloads = {kind: Mirror(self._see_workloads) for kind in WORKLOADS}
        self._mirrors = {
            "EndpointSlice": Mirror(self._see_slices),
            "Pod": self._pods,
            **self._workloads,
            "KVRemediation": Mirror(self._see_resources),
            "Event": Mirror(self._see_events),
        }
        self._watches: Watches | None = None
        self.scraper = Scraper(self.addresses, PORT)

    def start(self) -> None:
        """Begin to follow; returns when every kind that is served was listed once."""
        with Api(self._access) as api:
            handlers = {
                api.resource(kind).path(self._namespace): mirror.handle
                for kind, mirror in self._mirrors.items()
                if kind not in WORKLOADS or api.serves(kind)
            }
            if self.picker is not None and self.picker.pool is not None:
                path = api.resource(KIND, GROUPS[self.picker.pool]).path(self._namespace)
                handlers[path] = Mirror(self._see_pools).handle
        self._watches = Watches(self._access, handlers)
        self._watches.start()
        self.scraper.start()

    def stop(self) -> None:
        if self._watches is not None:
            self._watches.stop()
        self.scraper.stop()

    def arm(self) -> None:
        """The fleet is whole: from now on the fewest replicas in rotation are noted."""
        with self._lock:
            self._armed = True
            self.facts.fewest_in_rotation = len(self.facts.in_rotation)
            self.facts.served = set(self.facts.in_rotation)
            self.facts.versions = self._versions()

    def workload(self) -> Object:
        """Return the fleet's workload; empty when it is gone."""
        found = (each for mirror in self._workloads.values() for each in mirror.objects())
        return next((each for each in found if name(each) == FLEET), {})

    def rewritten(self) -> list[str]:
        """Return the objects of the fleet that were written to since it was whole, or are gone."""
        now = self._versions()
        return sorted(each for each, version in self.facts.versions.items() if now.get(each) != version)

    def _versions(self) -> dict[str, str]:
        objects = [
            self.workload(),
            *(pod for pod in self._pods.objects() if _labels(pod).get("app") == FLEET),
        ]
        return {name(each): str(each["metadata"]["resourceVersion"]) for each in objects if each}

    def hear(self) -> list[Said]:
        """Return the operator's Events since the last call, oldest first."""
        with self._lock:
            events = sorted(self._said, key=lambda said: said.at)
            self._said.clear()
        return events

    def pods(self) -> list[str]:
        """Return the names of the pods that are there and stay, oldest first."""
        return [each.name for each in self.replicas() if not each.terminating]

    def replicas(self) -> list[Replica]:
        pods = sorted(self._pods.objects(), key=lambda pod: (pod["metadata"]["creationTimestamp"], name(pod)))
        return [_replica(pod, self.facts.in_rotation) for pod in pods if _is_replica(pod)]

    def addresses(self) -> dict[str, str]:
        """Return the addresses of the replicas whose engine answers, by pod name."""
        return {each.name: each.address for each in self.replicas() if each.address and each.ready}

    def _see_pods(self, pods: dict[str, Object]) -> None:
        with self._lock:
            for uid, pod in pods.items():
                if _is_replica(pod):
                    statuses = pod.get("status", {}).get("containerStatuses", ())
                    restarts = sum(each["restartCount"] for each in statuses)
                    self.facts.restarts[uid] = max(restarts, self.facts.restarts.get(uid, 0))
                    self.facts.managers |= managers(pod)
                    self.facts.cues |= _cues(pod)
                    if pod.get("status", {}).get("reason") == EXPIRED:
                        self.facts.expired.add(uid)
            running = sum(_is_replica(pod) and _is_there(pod) for pod in pods.values())
            self.facts.most_pods = max(running, self.facts.most_pods)
        if self.picker is not None:
            self._note_rotation(self.picker.pick(pods.values()))

    def _see_pools(self, pools: dict[str, Object]) -> None:
        if self.picker is not None:
            self.picker.follow(pools.values())
            self._note_rotation(self.picker.pick(self._pods.objects()))

    def _see_slices(self, slices: dict[str, Object]) -> None:
        if self.picker is None:
            self._note_rotation(frozenset(uid for each in slices.values() for uid in _serving(each)))

    def _note_rotation(self, serving: frozenset[str]) -> None:
        with self._lock:
            self.facts.in_rotation = serving
            if self._armed and self.facts.fewest_in_rotation is not None:
                self.facts.fewest_in_rotation = min(self.facts.fewest_in_rotation, len(serving))
                self.facts.served |= serving

    def _see_resources(self, resources: dict[str, Object]) -> None:
        for each in resources.values():
            if name(each) == FLEET:
                self.chronicle.learn(each.get("status", {}))

    def _see_workloads(self, workloads: dict[str, Object]) -> None:
        with self._lock:
            for each in workloads.values():
                self.facts.managers |= managers(each)

    def _see_events(self, events: dict[str, Object]) -> None:
        with self._lock:
            for uid, event in events.items():
                if uid not in self._known and _is_ours(event):
                    self._known.add(uid)
                    warning = event["type"] == "Warning"
                    self._said.append(Said(time.time(), event["reason"], _note(event), warning))


def name(body: Object) -> str:
    return str(body["metadata"]["name"])


def managers(body: Object) -> set[str]:
    return {str(entry.get("manager")) for entry in body["metadata"].get("managedFields", ())}


def _labels(body: Object) -> dict[str, str]:
    return dict(body["metadata"].get("labels") or {})


def _is_replica(pod: Object) -> bool:
    return _labels(pod).get("app") == FLEET or _is_draining(pod)


def _is_draining(pod: Object) -> bool:
    """Return whether a replica is out of rotation by its label, or by one of its workload's selector."""
    labels = _labels(pod)
    by_label = labels.get(ROTATION_LABEL["key"]) == ROTATION_LABEL["draining"]
    return by_label or any(value.startswith(draining_value("")) for value in labels.values())


def _is_there(pod: Object) -> bool:
    has_ended = pod.get("status", {}).get("phase") in ("Failed", "Succeeded")
    return not has_ended and "deletionTimestamp" not in pod["metadata"]


def _cues(pod: Object) -> set[Cue]:
    """Return what has happened to a replica by its labels."""
    released = _labels(pod).get(POD_TEMPLATE_HASH, "").startswith(RELEASED_HASH)
    come = {Cue.RELEASED: released, Cue.DRAINING: _is_draining(pod)}
    return {cue for cue, has_come in come.items() if has_come}


def _serving(piece: Object) -> list[str]:
    """Return the uids of the pods that a slice of the fleet's Service sends requests to."""
    if _labels(piece).get(SERVICE_NAME) != FLEET:
        return []
    endpoints = piece.get("endpoints") or ()
    return [each["targetRef"]["uid"] for each in endpoints if each.get("conditions", {}).get("ready")]


def _is_ours(event: Object) -> bool:
    """Return whether an Event is the operator's, on the resource; those on the workload say the same."""
    regarding = event.get("regarding") or event.get("involvedObject") or {}
    reporter = event.get("reportingController") or event.get("reportingComponent")
    return reporter == REPORTER and regarding.get("kind") == "KVRemediation"


def _note(event: Object) -> str:
    return str(event.get("note") or event.get("message") or "")


def _replica(pod: Object, serving: frozenset[str]) -> Replica:
    status = pod.get("status", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
    waiting = [
        str(each["state"]["waiting"].get("reason", ""))
        for each in status.get("containerStatuses", ())
        if "waiting" in each.get("state", {})
    ]
    return Replica(
        name=name(pod),
        address=str(status.get("podIP", "")),
        cap=cap_of(pod["spec"]["containers"][0].get("args") or []),
        ready=conditions.get("Ready") == "True",
        cordoned=_is_draining(pod),
        in_rotation=pod["metadata"]["uid"] in serving,
        terminating="deletionTimestamp" in pod["metadata"],
        trouble=next((reason for reason in waiting if reason != "ContainerCreating"), ""),
    )


def cap_of(args: list[str]) -> int | None:
    """Return the value of --max-num-seqs on a command line, None when it is not given."""
    for index, token in enumerate(args):
        if token == f"--{CAP}" and index + 1 < len(args):
            return int(args[index + 1])
        if token.startswith(f"--{CAP}="):
            return int(token.partition("=")[2])
    return None
