"""The resource on the API server: loaded with its version, its status written only onto that version.

A peer is what one resource's status shows to all others: its open run, and how earlier ones ended. Peers are
read for every event of every resource, so only the few needed fields are read from the JSON, and an
unreadable
status counts on the safe side.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from kvmedic.api.resource import (
    GROUP,
    PLURAL,
    VERSION,
    RunUnreadable,
    SpecInvalid,
    find_unimplemented,
    policy_of,
    spec_from_wire,
)
from kvmedic.api.status import record_from_wire, record_to_wire
from kvmedic.kube.errors import ApiError, Refused
from kvmedic.kube.objects import (
    NAMESPACES,
    JsonObject,
    Ref,
    annotations_of,
    is_earlier,
    is_every_namespace_ours,
    items,
    moment,
    namespace_of,
    section,
    uid_of,
    version_of,
    without_bookkeeping,
)
from kvmedic.kube.objects import Resource as Kind
from kvmedic.kube.packing import Packed, Packer
from kvmedic.model.edits import PatchOperation
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import DEPLOYMENT
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.run import StepState
from kvmedic.model.spec import Policy, place_of
from kvmedic.model.status import ConditionType, Key, Record, Resource, Wish, phase
from kvmedic.record.surveys import with_problem
from kvmedic.rollout.gates.runs_at_once import BadEnd, Peer
from kvmedic.runbooks.compression.allowed_settings import AllowedSettings

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""Start of a run whose own start cannot be read: before all others, so that it keeps its place."""


def peer_of(body: JsonObject) -> Peer:
    """Return a resource as its peers see it. A run that cannot be read counts as open and begun."""
    metadata, run = section(body, "metadata"), section(body, "status").get("run")
    opened_at = _moment(section(body, "status", "run").get("startedAt")) if run else None
    deployment, target = section(body, "status", "run").get("targetUid"), section(body, "spec", "targetRef")
    takes_place = bool(run) and not _waits_for_a_verdict(body)
    return Peer(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        target=place_of(str(target.get("kind", DEPLOYMENT)), str(target.get("name", ""))),
        opened_at=(opened_at or LONG_AGO) if takes_place else None,
        begun=bool(run) and (opened_at is None or bool(section(body, "status", "run", "intent"))),
        bad_ends=tuple(_bad_ends(body)),
        created_at=str(metadata.get("creationTimestamp", "")),
        deployment=deployment if isinstance(deployment, str) else "",
        is_unclear=bool(run) and not isinstance(deployment, str),
    )


def _waits_for_a_verdict(body: JsonObject) -> bool:
    """Return whether a run changes nothing any more, and is held because its evidence allows no verdict."""
    steps = items(section(body, "status", "run"), "steps")
    reasons = [
        each.get("reason")
        for each in items(section(body, "status"), "conditions")
        if each.get("type") == ConditionType.PROGRESSING
    ]
    is_judged = any(step.get("state") == StepState.VERIFYING for step in steps)
    return is_judged and bool(reasons) and reasons != [Reason.VERIFYING]


def _bad_ends(body: JsonObject) -> Iterator[BadEnd]:
    metadata = section(body, "metadata")
    for each in items(section(body, "status"), "history"):
        at = _moment(each.get("endedAt"))
        with suppress(ValueError):
            reason = Reason(str(each.get("outcome")))
            if at is not None and Trait.BAD_END in reason.traits:
                yield BadEnd(str(metadata.get("namespace", "")), str(metadata.get("name", "")), reason, at)


def _moment(text: object) -> datetime | None:
    """Return a stored time, or None where it is none or names no zone."""
    try:
        found = moment(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else None


RESOURCES = Kind(f"{GROUP}/{VERSION}", PLURAL)
FINALIZER = f"{GROUP}/run"
"""Keeps a resource until its open run is walked back; it is there only while a run is open."""
ABANDON = f"{GROUP}/abandon"
"""Annotation of a resource that is being deleted: leave the change in place."""
ROLL_BACK = f"{GROUP}/rollback"
KEEP = f"{GROUP}/keep"
"""Annotation of a resource: take the run of this id back."""
TRY_AGAIN = f"{GROUP}/try-again"
"""Annotation of a resource: the run of this id was reverted by somebody else; try again all the same."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A resource, packed: thousands are known, and each is looked at every 30 s."""

    resource_version: str
    packed: Packed
    """Its JSON; what was read from that, once somebody asked for it."""
    is_read: bool = False


@dataclass(slots=True)
class Known:
    """Resources as they were seen last, by their uid; each is made anew when it is asked for."""

    allowed: AllowedSettings | None = None
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _bodies: Packer = field(default_factory=Packer)
    _read: Packer = field(default_factory=Packer)

    def take_over(self, body: JsonObject, read: Resource | None = None) -> None:
        """Take over a resource that a watch or a list reported, or what was read of it.

        Where a later version is known, either of the two is wrong: a watch lags behind our own write, an
        answer behind the watch, or an etcd was restored. Nothing is known then, so that the next look asks.
        """
        uid, version = uid_of(body), version_of(body)
        seen = self._seen.get(uid)
        before = seen.resource_version if seen is not None else ""
        if is_earlier(version, before):
            self.forget(uid)
        elif version != before and read is not None:
            self._keep(uid, version, read)
        elif version != before:
            self._seen[uid] = _Seen(version, self._bodies.pack_body(without_bookkeeping(body)))

    def remember(self, body: JsonObject) -> Resource:
        """Return a resource from what the API server answered, and remember it."""
        resource = resource_of(body, self.allowed)
        self.take_over(body, resource)
        return resource

    def find(self, uid: str) -> Resource | None:
        """Return a resource as it was seen last; None: nothing is known of it."""
        seen = self._seen.get(uid)
        if seen is None:
            return None
        if not seen.is_read:
            read = resource_of(seen.packed.body(), self.allowed)
            return self._keep(uid, seen.resource_version, read)
        resource: Resource = seen.packed.object()
        return resource

    def _keep(self, uid: str, version: str, read: Resource) -> Resource:
        self._seen[uid] = _Seen(version, self._read.pack_object(read), is_read=True)
        return read

    def forget(self, uid: str) -> None:
        """Drop a resource that is gone, or of which nothing is sure."""
        self._seen.pop(uid, None)


@dataclass(frozen=True, slots=True)
class Store:
    """Resources on the API server."""

    client: Client
    known: Known = field(default_factory=Known)
    holds: Callable[[str], bool] = is_every_namespace_ours
    """Whether the resources of a namespace are ours."""

    async def load(self, key: Key) -> Resource | None:
        """Return the resource as it is now, or None when it is gone or another took its name."""
        body = await self.client.get(Ref(RESOURCES, key.namespace, key.name))
        if body is None or section(body, "metadata").get("uid") != key.uid:
            return None
        return self.known.remember(body)

    async def load_last_seen(self, key: Key) -> Resource | None:
        """Return the resource as it was seen last, or as it is now where it never was."""
        return self.known.find(key.uid) or await self.load(key)

    async def save(self, resource: Resource, record: Record) -> Resource:
        """Write the status onto the loaded version; return the resource as it is then.

        Raises:
            Conflict: it changed since it was loaded.
        """
        body = _body(resource, record_to_wire(record, phase(record)))
        self.known.forget(resource.uid)  # whatever comes of it, what is known is behind
        return self.known.remember(await self.client.put_status(_resource_ref(resource), body))

    async def is_open(self, namespace: str, claim: str) -> bool:
        """Return whether a resource exists whose open run made a claim; one that cannot be read counts."""
        uid, _, rest = claim.partition("/")
        bodies = await self.client.list(RESOURCES, namespace)
        runs = [section(body, "status").get("run") for body in bodies if uid_of(body) == uid]
        ids = [run.get("id") if isinstance(run, dict) else None for run in runs if run]
        return any(each in (None, rest.rpartition("/")[0]) for each in ids)

    async def is_ending(self, namespace: str) -> bool:
        """Return whether a namespace is being deleted; who may not ask does not know of it."""
        try:
            body = await self.client.get(Ref(NAMESPACES, "", namespace))
        except Refused:
            return False
        return body is not None and "deletionTimestamp" in section(body, "metadata")

    async def peers(self, namespaces: Sequence[str]) -> tuple[Peer, ...]:
        """Return every resource of ours as the others see it, as it is stored; without namespaces in all."""
        found = []
        for place in namespaces or ("",):
            async for body in self.client.read_each(RESOURCES, place):
                if self.holds(namespace_of(body)):
                    self.known.take_over(body)
                    found.append(peer_of(body))
        return tuple(found)

    async def report_problem(self, resource: Resource, problem: Blocked) -> tuple[Record, Record] | None:
        """Write conditions that report a problem; every other part of the status stays as it is stored.

        Returns the conditions before and after, or None where they said so already.
        """
        body = await self.client.get(_resource_ref(resource))
        if body is None:
            return None
        status = section(body, "status")
        try:
            known = record_from_wire({"conditions": status.get("conditions", [])})
        except RunUnreadable:
            known = Record()
        after = with_problem(known, problem, resource.generation, self.client.clock.now())
        if after.conditions == known.conditions:
            return None
        wire = record_to_wire(replace(known, conditions=after.conditions), phase(after))
        body["status"] = {**status, "conditions": wire["conditions"], "phase": wire.get("phase", "")}
        self.known.remember(await self.client.put_status(_resource_ref(resource), body))
        return known, after

    async def finalize(self, resource: Resource, present: bool) -> None:  # noqa: FBT001 - the desired state
        """Put our finalizer on the loaded version, or take it off; another's stays as it is."""
        body = await self.client.get(_resource_ref(resource))
        if body is None:
            return
        held = list(section(body, "metadata").get("finalizers") or [])
        if (FINALIZER in held) is present:
            return
        desired = [*held, FINALIZER] if present else [name for name in held if name != FINALIZER]
        version = section(body, "metadata")["resourceVersion"]
        guard = PatchOperation("test", "/metadata/resourceVersion", version)
        change = PatchOperation("add", "/metadata/finalizers", tuple(desired))
        self.known.remember(await self.client.json_patch(_resource_ref(resource), (guard, change)))


def resource_of(body: JsonObject, allowed: AllowedSettings | None = None) -> Resource:
    """Return a resource as the core reads it; what cannot be read is a problem, never an exception.

    Args:
        body: as it is stored.
        allowed: what its spec may set beside what known methods name; None: nobody asks.
    """
    metadata = section(body, "metadata")
    policy, problem = _policy(body, allowed)
    record, unreadable, salvage = _record(body)
    return Resource(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=int(metadata.get("generation", 1)),
        wish=_wish(body, record),
        finalized=FINALIZER in (metadata.get("finalizers") or []),
        policy=policy,
        problem=unreadable or problem,
        record=record,
        salvage=salvage,
        retried=annotations_of(body).get(TRY_AGAIN, ""),
    )


def _policy(body: JsonObject, allowed: AllowedSettings | None) -> tuple[Policy | None, Blocked | None]:
    try:
        spec = spec_from_wire(body.get("spec"))
    except SpecInvalid as error:
        return None, Blocked(Reason.SPEC_INVALID, "; ".join(error.problems))
    if pending := find_unimplemented(spec):
        return None, Blocked(Reason.SPEC_INVALID, "; ".join(pending))
    policy = policy_of(spec)
    if allowed is not None and (refused := allowed.refusals(policy.compression)):
        return None, Blocked(Reason.SPEC_INVALID, "; ".join(refused))
    return policy, None


def _record(body: JsonObject) -> tuple[Record | None, Blocked | None, Record | None]:
    """Return the record; or why it cannot be read, with what it says beside a run that somebody damaged."""
    status = section(body, "status")
    try:
        return record_from_wire(status), None, None
    except RunUnreadable as error:
        rest = {field: value for field, value in status.items() if field != "run"}
        salvage = record_from_wire(rest) if error.is_damaged else None
        return *_readable_run(body, error), salvage


NEEDED_AT_THE_END = (
    frozenset({"run", "temporary", "conditions"}),
    frozenset({"run", "conditions"}),
)
"""What a resource that is being deleted needs of its status: the first where that can be read."""


def _readable_run(body: JsonObject, error: RunUnreadable) -> tuple[Record | None, Blocked | None]:
    """Return what a record that cannot be read still says, or what a person has to type.

    A resource that is being deleted needs no budget and no history any more: its run is enough.
    """
    status = section(body, "status")
    for needed in NEEDED_AT_THE_END if section(body, "metadata").get("deletionTimestamp") else ():
        with suppress(RunUnreadable):
            return record_from_wire({k: v for k, v in status.items() if k in needed}), None
    return None, Blocked(Reason.RUN_UNREADABLE, f"{'; '.join(error.problems)}: {_advice(body)}")


def _advice(body: JsonObject) -> str:
    """Return what to do about a record that cannot be read, as it is typed."""
    metadata = section(body, "metadata")
    kubectl = f"kubectl -n {metadata['namespace']}"
    resource = f"{PLURAL}.{GROUP} {metadata['name']}"
    if metadata.get("deletionTimestamp"):
        return (
            "the resource is being deleted, and its open run cannot be read; roll the target back by "
            "hand (docs/howto/roll-back-by-hand.md, section 2), then release the resource: "
            f"{kubectl} annotate {resource} {ABANDON}=true"
        )
    removal = '[{"op": "remove", "path": "/status/run"}]'
    return (
        "repair the status, or remove the run; a fleet that it froze is then unfrozen by the note on "
        f"its Deployment: {kubectl} patch {resource} --subresource=status --type=json -p '{removal}'"
    )


def _wish(body: JsonObject, record: Record | None) -> Wish:
    annotations = annotations_of(body)
    if section(body, "metadata").get("deletionTimestamp"):
        return Wish.ABANDON if annotations.get(ABANDON) == "true" else Wish.DELETE
    run = record.run if record else None
    if run is not None and annotations.get(ROLL_BACK) == run.id:
        return Wish.ROLL_BACK
    if run is not None and annotations.get(KEEP) == run.id:
        return Wish.KEEP
    return Wish.NONE


def _resource_ref(resource: Resource) -> Ref:
    return Ref(RESOURCES, resource.namespace, resource.name)


def _body(resource: Resource, status: dict[str, Any]) -> JsonObject:
    """Return what a status write sends: the API server ignores everything but the status."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "KVRemediation",
        "metadata": {
            "name": resource.name,
            "namespace": resource.namespace,
            "uid": resource.uid,
            "resourceVersion": resource.resource_version,
        },
        "status": status,
    }


LOG = logging.getLogger("kvmedic")
OFTENEST = timedelta(seconds=2)
"""Between two looks, at most: somebody who installs by hand is watching."""
ADVICE = (
    f"CustomResourceDefinition {PLURAL}.{GROUP} is not installed: apply it (`kvmedic crd` prints it; chart: "
    "crds.enabled); waiting for it"
)


async def wait_until_defined(client: Client, pace: timedelta) -> None:
    """Wait until the API server serves the resource; say so once while it does not.

    Nothing answers the liveness probe meanwhile, so Kubernetes restarts a process that waits for long.
    """
    logged = ""
    while True:
        try:
            if await client.serves(RESOURCES):
                return
            problem = ADVICE
        except ApiError as error:
            problem = f"the API server does not say whether it knows {PLURAL}.{GROUP}: {error}; asking again"
        if problem != logged:
            LOG.warning("reason=ResourceUnknown message=%r", problem)
            logged = problem
        await asyncio.sleep(min(pace, OFTENEST).total_seconds())
