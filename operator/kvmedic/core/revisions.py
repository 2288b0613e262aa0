"""The revision that a fleet runs against the one before it: which came when, and what it changed.

Nothing here holds a pod template: templates may contain secrets. What differs between two of them is read
by `kvmedic.manifests.revisions`, how the fleet fared before by `kvmedic.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from kvmedic.core.evidence import Observation, Reading
from kvmedic.core.fleet import Fleet, Pod, ReplicaSet
from kvmedic.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a workload's pod template, by the ReplicaSet that keeps it."""

    number: int
    """As `kubectl rollout history` shows it. It moves on when the revision is rolled out again."""
    replica_set: str
    template: str
    """Hash of the pod template."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that a revision changed and that the KV cache depends on."""

    what: str
    """A knob (`maxNumSeqs`), the engine's own name of an option (`dtype`), or `image`."""
    before: str | None
    """None: not given."""
    after: str | None

    def line(self) -> str:
        """Return the difference for a person."""
        return f"{self.what} {self.before or '(default)'} -> {self.after or '(default)'}"


@dataclass(frozen=True, slots=True)
class NoDeploy:
    """No revision came of late that changed anything the KV cache depends on; or nobody looked."""


@dataclass(frozen=True, slots=True)
class UnknownDeploy:
    """A revision came of late, and what it changed cannot be told."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Deploy:
    """A revision came of late and changed what the KV cache depends on."""

    now: Revision
    """The one that the fleet is to run."""
    previous: Revision
    """The one that it ran before."""
    came_at: datetime
    differences: tuple[Difference, ...]
    """At least one."""
    before: Reading[Observation]
    """The replicas of the previous revision, over one trigger window that ends when the new one came."""
    to_start: int
    """Replicas that a way back would have to start."""
    pods: frozenset[str]
    """Names of the replicas that run the new one; those of the one before may still run beside them."""
    start_seconds: float | None
    """How long a replica took from its making to Ready (median); None where none tells."""

    def line(self) -> str:
        """Return what came, in one clause."""
        changed = ", ".join(each.line() for each in self.differences)
        return f"revision {self.now.number} came at {self.came_at:%Y-%m-%dT%H:%M:%SZ}: {changed}"


LatestDeploy: TypeAlias = NoDeploy | UnknownDeploy | Deploy


@dataclass(frozen=True, slots=True)
class Newcomer:
    """The ReplicaSet of the present template, made of late, and the one that ran before it."""

    now: ReplicaSet
    previous: ReplicaSet
    came_at: datetime


def newcomer(fleet: Fleet, within: timedelta, at: datetime) -> Newcomer | None:
    """Return the revision that came within some time and could be taken back, or None.

    A first revision has none before it, and where the one before is gone (`revisionHistoryLimit`) nothing
    can be taken back. One that was brought back (`kubectl rollout undo`) is no news: its ReplicaSet was
    made before another's.
    """
    now, before = _present(fleet), previous(fleet)
    if now is None or before is None or now.created_at is None or at - now.created_at > within:
        return None
    if now.number < 2 or any(_is_younger(rs, now, now.created_at) for rs in fleet.replica_sets):
        return None
    return Newcomer(now, before, now.created_at)


def previous(fleet: Fleet) -> ReplicaSet | None:
    """Return what keeps the revision before the present one; None where nothing does."""
    now = _present(fleet)
    older = [rs for rs in fleet.replica_sets if now is not None and rs.number < now.number]
    return max(older, key=lambda rs: rs.number, default=None)


def rolled_out(fleet: Fleet) -> tuple[Revision, ...]:
    """Return the revisions up to the present one as they were rolled out, the newest first.

    One that was rolled out again has several numbers and is there once for each. A number that is not there
    is that of a revision whose ReplicaSet is gone.
    """
    now = _present(fleet)
    found = [
        Revision(number, rs.name, rs.revision)
        for rs in fleet.replica_sets
        for number in (rs.number, *rs.earlier_numbers)
        if now is not None and number <= now.number
    ]
    return tuple(sorted(found, key=lambda each: each.number, reverse=True))


def _present(fleet: Fleet) -> ReplicaSet | None:
    return next((rs for rs in fleet.replica_sets if rs.revision == fleet.revision), None)


def revision_of(replica_set: ReplicaSet) -> Revision:
    """Return the revision that a ReplicaSet keeps."""
    return Revision(replica_set.number, replica_set.name, replica_set.revision)


def start_seconds(fleet: Fleet) -> float | None:
    """Return how long the fleet's replicas took from their making to Ready (median).

    Of those that never restarted, where there are such: a restart makes a replica Ready anew. None where
    no replica is Ready.
    """
    ready = [pod for pod in fleet.live if pod.ready_at is not None]
    steady = [pod for pod in ready if not pod.restarts] or ready
    took = sorted(_seconds_to_ready(pod) for pod in steady)
    return took[len(took) // 2] if took else None


def to_start(fleet: Fleet, template: str) -> int:
    """Return how many replicas of a template have to be made: those that run it and are Ready are used."""
    running = sum(pod.ready for pod in fleet.serving(template))
    return max(0, fleet.replicas - running)


def _is_younger(replica_set: ReplicaSet, than: ReplicaSet, made_at: datetime) -> bool:
    """Return whether a ReplicaSet was made after another.

    The API server notes whole seconds. Of two that were made in one, that with the higher first number is
    the younger: numbers only grow, and the earlier ones are kept (Kubernetes 1.36, deployment_util.go,
    SetNewReplicaSetAnnotations).
    """
    made = replica_set.created_at
    return made is not None and (made, replica_set.first_number) > (made_at, than.first_number)


def _seconds_to_ready(pod: Pod) -> float:
    return (pod.ready_at - pod.created_at).total_seconds() if pod.ready_at else 0.0
