"""A whole pod template put in place of another, by name and hash.

The templates themselves are in nobody's record: they may contain secrets. The one that is put is read from
its ReplicaSet when that happens, and its hash must be the recorded one.

A field of the object that a controller renders the template from.

A ConfigMap that an engine's configuration file is in, and the copy of it in which one value differs.

A ConfigMap is never changed in place: a pod that restarts would read the new value beside peers that
still run the old one, and nobody could put it back for sure. What it holds may be secret: it is read
when it is needed and never stored; of it a plan has names, hashes and the one value.

The revision that a fleet runs against the one before it: which came when, and what it changed.

Nothing here holds a pod template: templates may contain secrets. What differs between two of them is read
by `kvmedic.runbooks.revisions`, how the fleet fared before by `kvmedic.metrics`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from kvmedic.model.edits import EARLIER_DIGITS, Digest, EditState, PatchOperation, TemplateEdit
from kvmedic.model.evidence import Inconclusive, Observation, Reading
from kvmedic.model.fleet import Fleet, Owner, Pod, ReplicaSet

NAME_LENGTH = 253
"""Characters of a ConfigMap's name, at most (a DNS subdomain, RFC 1123)."""
SIZE_LIMIT = 1024 * 1024
"""Bytes that the values of a ConfigMap may have together (Kubernetes core/v1 validation, MaxSecretSize)."""
_COPIED = re.compile(r"-[0-9a-f]{10}\Z")
"""What the name of a copy ends with."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that a ConfigMap holds. It may be secret: never print it, never store it."""

    data: Mapping[str, str] = field(repr=False)
    binary: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values in base64."""

    @property
    def digest(self) -> Digest:
        """Return the identity of the contents."""
        return Digest.of({"data": dict(self.data), "binaryData": dict(self.binary)})

    @property
    def size(self) -> int:
        """Return how many bytes the values have together, as the API server counts them."""
        encoded = sum(len(text) // 4 * 3 for text in self.binary.values())
        return encoded + sum(len(text.encode()) for text in self.data.values())


@dataclass(frozen=True, slots=True)
class FileEdit:
    """One value in one file of a ConfigMap: before in the ConfigMap, after in its copy."""

    config_map: str
    """Name of the ConfigMap that is read; it stays as it is."""
    copy: str
    """Name of the copy: it follows from what is in it, and from whose it is."""
    key: str
    """The file."""
    at: int
    """The character of the file at which the value begins."""
    before: str
    after: str
    before_content: str
    """Hash of everything in the ConfigMap."""
    after_content: str
    """Hash of everything in the copy."""

    def make_copy(self, contents: Contents) -> Contents:
        """Return what the copy holds.

        Raises:
            ValueError: the contents are not those that the edit was made for.
        """
        if contents.digest != self.before_content:
            raise ValueError(f"ConfigMap {self.config_map} is not what the edit was made for")
        changed = with_value(contents, self.key, slice(self.at, self.at + len(self.before)), self.after)
        if changed.digest != self.after_content:
            raise ValueError(f"ConfigMap {self.config_map} does not give the copy that was planned")
        return changed


def with_value(contents: Contents, key: str, span: slice, value: str) -> Contents:
    """Return contents with a part of one file's text replaced."""
    text = contents.data[key]
    changed = text[: span.start] + value + text[span.stop :]
    return Contents({**contents.data, key: changed}, contents.binary)


def copy_name(config_map: str, contents: Contents, target_uid: str = "") -> str:
    """Return the name of a copy: that of the ConfigMap, and a hash of what is in the copy and whose it is.

    So the same change gives the same copy, if a process dies in the middle; another target has one of its
    own, which nobody removes for the first one's sake. A copy of a copy has one hash at its end.
    It only distinguishes copies; what is in one is compared by the whole digest.
    """
    short = contents.digest[:EARLIER_DIGITS]
    digits = hashlib.sha256(f"{target_uid}/{short}".encode()).hexdigest()[:10]
    base = _COPIED.sub("", config_map)[: NAME_LENGTH - len(digits) - 1]
    return f"{base.rstrip('.-')}-{digits}"


@dataclass(frozen=True, slots=True)
class ConfigMap:
    """A ConfigMap as it was read."""

    contents: Contents
    owner: Owner | None = None
    """Somebody else who decides what is in it; None where nobody is known to."""
    edited_at: datetime | None = None
    """When its contents were last written, where the API server has noted that."""
    copy_of: str = ""
    """The ConfigMap that it is a copy of, by our own note; empty where it is none."""
    copied_content: str = ""
    """Hash of that ConfigMap's contents when it was copied."""
    for_target: str = ""
    """Uid of the Deployment that it is a copy for; empty where it is none."""


class Unseen(StrEnum):
    """Why a ConfigMap is not known."""

    GONE = "does not exist"
    UNREADABLE = "may not be read by the operator (rbac.configFiles of the chart grants that)"


Sight: TypeAlias = ConfigMap | Unseen
"""A ConfigMap, or why it is not known."""


def names_in(spec: object) -> frozenset[str]:
    """Return the names of all ConfigMaps that a pod's spec refers to, in whatever way."""
    found: set[str] = set()
    waiting = [spec]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            named = (part.get(key) for key in ("configMap", "configMapRef", "configMapKeyRef"))
            found |= {str(each["name"]) for each in named if isinstance(each, Mapping) and "name" in each}
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return frozenset(found)


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
    """How long a replica took from its making to Ready (median); None: not known."""

    def line(self) -> str:
        """Return what came, in one clause."""
        changed = ", ".join(each.line() for each in self.differences)
        return f"revision {self.now.number} came at {self.came_at:%Y-%m-%dT%H:%M:%SZ}: {changed}"


LatestDeploy: TypeAlias = NoDeploy | Inconclusive | Deploy


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
    now, before = _find_present(fleet), find_previous(fleet)
    if now is None or before is None or now.created_at is None or at - now.created_at > within:
        return None
    if now.number < 2 or any(_is_younger(rs, now, now.created_at) for rs in fleet.replica_sets):
        return None
    return Newcomer(now, before, now.created_at)


def find_previous(fleet: Fleet) -> ReplicaSet | None:
    """Return what keeps the revision before the present one; None where nothing does."""
    now = _find_present(fleet)
    older = [rs for rs in fleet.replica_sets if now is not None and rs.number < now.number]
    return max(older, key=lambda rs: rs.number, default=None)


def list_revisions(fleet: Fleet) -> tuple[Revision, ...]:
    """Return the revisions up to the present one as they were rolled out, the newest first.

    One that was rolled out again has several numbers and is there once for each. A number that is not there
    is that of a revision whose ReplicaSet is gone.
    """
    now = _find_present(fleet)
    found = [
        Revision(number, rs.name, rs.revision)
        for rs in fleet.replica_sets
        for number in (rs.number, *rs.earlier_numbers)
        if now is not None and number <= now.number
    ]
    return tuple(sorted(found, key=lambda each: each.number, reverse=True))


def _find_present(fleet: Fleet) -> ReplicaSet | None:
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
    running = sum(pod.ready for pod in fleet.list_pods(template))
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


@dataclass(frozen=True, slots=True)
class TemplateSwap:
    """The pod template of one revision takes the place of another's."""

    before: Revision
    after: Revision

    def inverse(self) -> TemplateSwap:
        """Return the swap that puts the other template back."""
        return TemplateSwap(self.after, self.before)


TemplateChange: TypeAlias = TemplateEdit | TemplateSwap
"""What turns one pod template into another."""


@dataclass(frozen=True, slots=True)
class EditedTemplate:
    """A pod template that is put as a whole: the live one with a run's change taken out of it.

    It may hold secrets: it goes from the look into the patch, and is nowhere else.
    """

    template: Mapping[str, object] = field(repr=False)


class Roller(StrEnum):
    """Who replaces the replicas once a field of the owner's object has another value."""

    OWNER = "Owner"
    """The owner's controller, by the Deployment's own strategy: it puts back what would hold a rollout."""
    KVMEDIC = "kvmedic"
    """kvmedic, drained as anywhere: the controller neither carries the value over nor reverts it."""


@dataclass(frozen=True, slots=True)
class OwnerField:
    """A field of the object that a controller renders the pod template from: before -> after.

    Both are texts of a scalar, or one token of a text that begins at `at`; the text around it is never kept.
    None: the list ends before that place.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    path: str
    """Within the object (RFC 6901): `/spec/model/maxNumSeqs`."""
    before: str | None
    after: str | None
    rolled_by: Roller
    at: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}, {self.path[1:].replace('/', '.')}"

    def inverse(self) -> OwnerField:
        """Return the same field with the recorded value put back."""
        return replace(self, before=self.after, after=self.before)

    def state(self, body: Mapping[str, object]) -> EditState:
        """Return whether an object has the value before or after."""
        *parents, last = self.path[1:].split("/")
        holder: object = body
        for key in parents:
            holder = _child(holder, key)
        if isinstance(holder, list) and last.isdigit() and None in (self.before, self.after):
            rest = [_text_of(each) for each in holder[int(last) :]]
            for desired, state in ((self.before, EditState.BEFORE), (self.after, EditState.AFTER)):
                if len(holder) >= int(last) and rest == ([] if desired is None else [desired]):
                    return state
            return EditState.OTHER
        return self._state_of(_text_of(_child(holder, last)))

    def _state_of(self, found: str | None) -> EditState:
        """Return the state of a value; the longer of two tokens in a text may begin with the other."""
        states = [(self.before or "", EditState.BEFORE), (self.after or "", EditState.AFTER)]
        if found is None:
            return EditState.OTHER
        if self.at is None:
            return next((state for text, state in states if text == found), EditState.OTHER)
        states.sort(key=lambda each: -len(each[0]))
        return next((state for text, state in states if found.startswith(text, self.at)), EditState.OTHER)

    def patch(self, body: Mapping[str, object]) -> tuple[PatchOperation, ...]:
        """Return the operations that give an object the value, each old value tested.

        Raises:
            ValueError: it does not have the value before.
        """
        if self.state(body) is not EditState.BEFORE:
            raise ValueError(f"{self} is not {self.before}")
        if self.before is None:
            return (PatchOperation("add", self.path, self.after),)
        live: object = body
        for key in self.path[1:].split("/"):
            live = _child(live, key)
        if not isinstance(live, str | int | float):
            raise ValueError(f"{self} is no scalar")  # noqa: TRY004 - of an object, not of our own call
        test = PatchOperation("test", self.path, live)
        if self.after is None:
            return test, PatchOperation("remove", self.path)
        return test, PatchOperation("replace", self.path, self._make_change(live))

    def _make_change(self, live: str | float) -> str | float:
        """Return a live value with the change made in it, of the same type."""
        after = self.after or ""
        if isinstance(live, bool):
            return after == "true"
        if isinstance(live, int):
            return int(after)
        if isinstance(live, float):
            return float(after)
        if self.at is None:
            return after
        return live[: self.at] + after + live[self.at + len(self.before or "") :]


def _child(holder: object, key: str) -> object:
    """Return what is at a key or a place of a list; None where nothing is."""
    if isinstance(holder, Mapping):
        return holder.get(key)
    if isinstance(holder, Sequence) and not isinstance(holder, str) and key.isdigit():
        return holder[int(key)] if int(key) < len(holder) else None
    return None


def _text_of(value: object) -> str | None:
    """Return a scalar as it is written; None for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None
