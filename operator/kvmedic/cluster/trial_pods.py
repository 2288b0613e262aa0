"""Trial pods in a cluster: made, looked at, and removed by nobody but the resource that they were made for.

A pod's manifest may hold secrets, so the server's words on one that it refuses are never repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvmedic.cluster.engine_logs import last_words_of
from kvmedic.cluster.snapshot import Frame, pod_of, selects
from kvmedic.kube.client import Client, Preconditions, Propagation
from kvmedic.kube.errors import Call, Conflict, Refused
from kvmedic.kube.objects import (
    CLAIMS,
    PODS,
    SERVICES,
    JsonObject,
    Ref,
    Resource,
    controller_uid,
    items,
    labels_of,
    section,
    uid_of,
)
from kvmedic.manifests.trial_pod import TRIAL_LABEL, Trial
from kvmedic.model.fleet import Pod, Rotation
from kvmedic.rollout.trial import LastWords

ONE_AT_A_TIME = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})
"""Access modes under which a second pod may not get the volume, or only on the same node."""
_NOWHERE = Rotation("", "", (), effective=False, in_selector=False)
"""No Service leads to a trial pod, so that it is in no rotation."""


@dataclass(frozen=True, slots=True)
class Trials:
    """Trial pods in one cluster."""

    client: Client

    def forbidden(self) -> str:
        """Return nothing: trial pods are made."""
        return ""

    async def look(self, trial: Trial, container: str) -> Pod | None:
        """Return the pod of a trial, None where there is none.

        Args:
            trial: which one.
            container: the engine's.

        Raises:
            Conflict: a pod of that name is somebody else's.
        """
        body = await self.client.get(_trial_ref(trial))
        if body is None:
            return None
        if not is_of(body, trial.owner.uid):
            raise Conflict(Call("get", _trial_ref(trial).path), None, "a pod of that name is not ours")
        return pod_of(body, Frame("", container, _NOWHERE, {}))

    async def last_words(self, namespace: str, pod: Pod, refusals: Sequence[re.Pattern[str]]) -> LastWords:
        """Return what the log of a trial pod that ended says of it; that it cannot be read is a value."""
        return await last_words_of(self.client, namespace, pod, refusals)

    async def make(self, trial: Trial, manifest: JsonObject) -> str:
        """Make a trial's pod; return why the API server will not have it, or nothing.

        One that is there already is what was asked for.

        Raises:
            Conflict: a pod of that name is somebody else's.
            Unavailable: the API did not answer.
        """
        try:
            for service in await self.client.list(SERVICES, trial.namespace):
                if selects(service, labels_of(manifest)):
                    name = section(service, "metadata").get("name")
                    return f"Service {name} selects labels that the trial pod needs to start: it would serve"
            await self.client.create(_trial_ref(trial), manifest)
        except Conflict:
            body = await self.client.get(_trial_ref(trial))
            if body is not None and not is_of(body, trial.owner.uid):
                raise
        except Refused as error:
            return str(error)
        return ""

    async def sweep(self, namespace: str, owner_uid: str, but: str = "") -> tuple[str, ...]:
        """Remove all trial pods of a resource but one; return the names of those that were there.

        Raises:
            Unavailable: the API did not answer.
        """
        going = await made_for(self.client, PODS, namespace, owner_uid)
        going.pop(but, None)
        return await swept(self.client, PODS, going)

    async def held_claims(self, namespace: str, template: Mapping[str, Any]) -> frozenset[str]:
        """Return those PersistentVolumeClaims of a template that are not for several pods.

        A claim that is not there counts as one of them.
        """
        claims = [
            section(volume, "persistentVolumeClaim") for volume in items(section(template, "spec"), "volumes")
        ]
        held: set[str] = set()
        for name in sorted({str(claim["claimName"]) for claim in claims if claim}):
            claim = await self.client.get(Ref(CLAIMS, namespace, name))
            modes = section(claim or {}, "spec").get("accessModes") or ()
            if not modes or ONE_AT_A_TIME & set(modes):
                held.add(name)
        return frozenset(held)


def _trial_ref(trial: Trial) -> Ref:
    return Ref(PODS, trial.namespace, trial.name)


def is_of(body: JsonObject, owner_uid: str) -> bool:
    """Return whether an object is controlled by the resource of that uid."""
    return controller_uid(body) == owner_uid


async def made_for(
    client: Client, resource: Resource, namespace: str, owner_uid: str
) -> dict[str, JsonObject]:
    """Return what was made for a resource's trials, by name."""
    found = await client.list(resource, namespace, f"{TRIAL_LABEL}={owner_uid}")
    return {str(section(body, "metadata")["name"]): body for body in found if is_of(body, owner_uid)}


async def swept(
    client: Client,
    resource: Resource,
    going: Mapping[str, JsonObject],
    propagation: Propagation = Propagation.DEFAULT,
) -> tuple[str, ...]:
    """Remove what was made for trials; return the names of what was there.

    One that changed in the middle, as a pod does while it starts and a Job whenever its pod moves on, is left
    to the next time.
    """
    for name, body in going.items():
        metadata = section(body, "metadata")
        if "deletionTimestamp" not in metadata:
            preconditions = Preconditions(uid_of(body), str(metadata["resourceVersion"]))
            with suppress(Conflict):
                ref = Ref(resource, str(metadata["namespace"]), name)
                await client.delete(ref, preconditions, propagation)
    return tuple(sorted(going))
