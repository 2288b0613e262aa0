"""ConfigMaps that engines' configuration files are in, as they are now.

What they hold may be secret: it is never logged and never stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvmedic.cluster.marks import COPY_OF, TARGET
from kvmedic.cluster.ownership import DATA, owner_of_data
from kvmedic.core.config_map import ConfigMap, Contents, Sight, Unseen
from kvmedic.core.engine import Engine
from kvmedic.engines import ENGINES
from kvmedic.kube.client import Client
from kvmedic.kube.errors import Refused
from kvmedic.kube.objects import (
    CONFIG_MAPS,
    Ref,
    annotations_of,
    items,
    labels_of,
    moment,
    section,
)
from kvmedic.manifests.budget import Budget
from kvmedic.manifests.flags import parsed_of
from kvmedic.manifests.invocation import version_of
from kvmedic.manifests.mounts import mounted_file
from kvmedic.manifests.refusal import Refusal


async def config_maps_of(
    client: Client, namespace: str, templates: Sequence[Mapping[str, Any]], container: str | None
) -> dict[str, Sight]:
    """Return the ConfigMaps that the engines of templates read their configuration from, by name.

    That of which one is a copy is there too. A target without such a file costs no read.

    Args:
        client: the API.
        namespace: of the target.
        templates: its `spec.template`, and earlier ones.
        container: the engine's; None: any that runs an engine.

    Raises:
        ApiError: a read failed otherwise than by a missing right.
    """
    found: dict[str, Sight] = {}
    names = (name for template in templates for name in _mounted(template, container))
    for name in dict.fromkeys(names):
        seen = found[name] = await read_config_map(client, namespace, name)
        original = seen.copy_of if isinstance(seen, ConfigMap) else ""
        if original and original not in found:
            found[original] = await read_config_map(client, namespace, original)
    return found


async def read_config_map(client: Client, namespace: str, name: str) -> Sight:
    """Return a ConfigMap as it is now; without it, or the right to read it, that is a value.

    Raises:
        Unavailable: the API did not answer.
    """
    try:
        body = await client.get(Ref(CONFIG_MAPS, namespace, name))
    except Refused:
        return Unseen.UNREADABLE
    if body is None or section(body, "metadata").get("deletionTimestamp"):
        return Unseen.GONE
    note = _note(annotations_of(body).get(COPY_OF, ""))
    return ConfigMap(
        contents=contents_of(body),
        owner=owner_of_data(body),
        edited_at=max(_edits(body), default=None),
        copy_of=str(note.get("name", "")),
        copied_content=str(note.get("content", "")),
        for_target=labels_of(body).get(TARGET, ""),
    )


def contents_of(body: Mapping[str, Any]) -> Contents:
    """Return everything that a ConfigMap holds."""
    return Contents(section(body, "data"), section(body, "binaryData"))


def _note(text: str) -> Mapping[str, object]:
    """Return our note on a copy; it is for people, so one that cannot be read is none."""
    try:
        note = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _edits(body: Mapping[str, Any]) -> Iterator[Any]:
    for entry in items(section(body, "metadata"), "managedFields"):
        if "time" in entry and any(name in section(entry, "fieldsV1") for name in DATA):
            yield moment(str(entry["time"]))


def _mounted(template: Mapping[str, Any], wanted: str | None) -> Iterator[str]:
    """Yield the names of the ConfigMaps that engines' configuration files are mounted from."""
    budget = Budget()
    for container in items(section(template, "spec"), "containers"):
        if wanted not in (None, container.get("name")):
            continue
        for profile in ENGINES:
            parsed = parsed_of(container, Engine(profile, version_of(container, profile)), budget)
            path = None if isinstance(parsed, Refusal) else parsed.config
            file = None if path is None else mounted_file(template, container, path)
            if file is not None and not isinstance(file, Refusal):
                yield file.config_map
