"""ConfigMaps that engines' configuration files are in, and copies of them that a step refers to.

Only our copies are ever changed or removed. What ConfigMaps hold may be secret: it is never logged or stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvmedic.cluster.ownership import COPY_OF, DATA, TARGET, owner_of_data
from kvmedic.kube.errors import Call, Conflict, Refused
from kvmedic.kube.objects import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    FIELD_MANAGER,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Preconditions,
    Ref,
    items,
    labels_of,
    moment,
    note_on,
    section,
    uid_of,
)
from kvmedic.manifests.engine_file import mounted_file
from kvmedic.manifests.errors import ManifestError
from kvmedic.model.config_edits import ConfigMap, Contents, FileEdit, Sight, Unseen, names_in
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet
from kvmedic.model.status import ConfigCopy
from kvmedic.rollout.config_copy import Files, files_of
from kvmedic.runbooks.workload import EngineLine

if TYPE_CHECKING:
    from kvmedic.kube.client import Client, Reader


async def config_maps_of(
    client: Reader, namespace: str, engines: Iterable[EngineLine | Blocked]
) -> dict[str, Sight]:
    """Return the ConfigMaps that engines read their configuration from, by name.

    That of which one is a copy is there too. A target without such a file costs no read.

    Raises:
        ApiError: a read failed otherwise than by a missing right.
    """
    found: dict[str, Sight] = {}
    for each in engines:
        if isinstance(each, Blocked) or each.line.config is None:
            continue
        file = mounted_file(each.template, each.container, each.line.config)
        if isinstance(file, ManifestError) or file.config_map in found:
            continue
        name = file.config_map
        seen = found[name] = await read_config_map(client, namespace, name)
        original = seen.copy_of if isinstance(seen, ConfigMap) else ""
        if original and original not in found:
            found[original] = await read_config_map(client, namespace, original)
    return found


async def read_config_map(client: Reader, namespace: str, name: str) -> Sight:
    """Return a ConfigMap as it is now; without it, or the right to read it, that is a value."""
    try:
        body = await client.get(Ref(CONFIG_MAPS, namespace, name))
    except Refused:
        return Unseen.UNREADABLE
    if body is None or section(body, "metadata").get("deletionTimestamp"):
        return Unseen.GONE
    # Our note on a copy is for people, so one that cannot be read is none.
    note = note_on(body, COPY_OF)
    edits = (
        moment(str(entry["time"]))
        for entry in items(section(body, "metadata"), "managedFields")
        if "time" in entry and any(name in section(entry, "fieldsV1") for name in DATA)
    )
    return ConfigMap(
        contents=contents_of(body),
        owner=owner_of_data(body),
        edited_at=max(edits, default=None),
        copy_of=str(note.get("name", "")),
        copied_content=str(note.get("content", "")),
        for_target=labels_of(body).get(TARGET, ""),
    )


def contents_of(body: Mapping[str, Any]) -> Contents:
    """Return everything that a ConfigMap holds."""
    return Contents(section(body, "data"), section(body, "binaryData"))


@dataclass(frozen=True, slots=True)
class StoredCopies:
    """Copies in one cluster."""

    client: Client

    async def stand(self, fleet: Fleet, file: FileEdit) -> Files:
        """Return how the ConfigMap of an open step and its copy stand to the step."""
        source = await read_config_map(self.client, fleet.namespace, file.config_map)
        copy = await read_config_map(self.client, fleet.namespace, file.copy)
        return files_of(file, source, copy, fleet.uid)

    async def make(self, fleet: Fleet, file: FileEdit) -> str:
        """Make the copy that a step is to refer to; return why the API server will not have it, or nothing.

        The copy belongs to the Deployment, so that it goes with it whatever becomes of us, and nobody can
        change what is in it. Dying before changes nothing, and after it the copy is there to be used. Marks
        of the ConfigMap are not copied: a tool that applies manifests would take the copy for its own.

        Raises:
            Conflict: the ConfigMap is not what was planned on, or something else has the copy's name.
        """
        source = Ref(CONFIG_MAPS, fleet.namespace, file.config_map)
        body = await self.client.get(source)
        if body is None or contents_of(body).digest != file.before_content:
            raise Conflict(Call("get", source.path), None, "it changed since it was looked at")
        contents = file.make_copy(contents_of(body))
        owner = {"apiVersion": "apps/v1", "kind": fleet.kind, "name": fleet.name, "uid": fleet.uid}
        note = json.dumps({"name": file.config_map, "content": file.before_content})
        copy = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": file.copy,
                "namespace": fleet.namespace,
                "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER, TARGET: fleet.uid},
                "annotations": {COPY_OF: note},
                "ownerReferences": [owner],
            },
            "immutable": True,
            "data": dict(contents.data),
            "binaryData": dict(contents.binary),
        }
        try:
            await self.client.create(Ref(CONFIG_MAPS, fleet.namespace, file.copy), copy)
        except Refused as error:
            return str(error)
        return ""

    async def delete_unused(self, fleet: Fleet, copies: Sequence[ConfigCopy]) -> tuple[ConfigCopy, ...]:
        """Remove those copies that nothing in the namespace refers to any more; return the others.

        A ReplicaSet that is kept for `kubectl rollout undo` needs its copy too. Everything in the namespace
        is asked only once no ReplicaSet of the fleet is known to need a copy. Repeating it changes nothing
        more; one that is not ours, or that may not be removed, is left alone.

        Raises:
            Conflict: a copy changed in the middle.
        """
        known = {fleet.revision, *(each.revision for each in fleet.replica_sets)}
        kept = [copy for copy in copies if copy.template in known]
        idle = [copy for copy in copies if copy.template not in known]
        if not idle:
            return tuple(kept)
        used: set[str] = set()
        try:
            for kind in (DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, PODS):
                for body in await self.client.list(kind, fleet.namespace):
                    used |= names_in(section(body, "spec"))
            for copy in idle:
                if copy.name in used:
                    kept.append(copy)
                    continue
                ref = Ref(CONFIG_MAPS, fleet.namespace, copy.name)
                found = await self.client.get(ref)
                if found is not None and labels_of(found).get(TARGET) == fleet.uid:
                    version = str(section(found, "metadata")["resourceVersion"])
                    await self.client.delete(ref, Preconditions(uid_of(found), version))
        except Refused:
            return tuple(copies)
        return tuple(kept)
