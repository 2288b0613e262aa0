"""A pod template cut off from what other engines share: remote KV stores, transfers and events of blocks.

A trial pod is a copy of the fleet's engine. With the fleet's connector it would store its trial's blocks
where the fleet reads, or be a peer that others fetch from. What cannot be taken off is refused by name.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvmedic.core.engine import Engine, EngineProfile, RemoteCache
from kvmedic.manifests.configuration import Configuration
from kvmedic.manifests.invocation import NotAnEngine, invocation_of, version_of
from kvmedic.manifests.refusal import Refusal
from kvmedic.manifests.removal import taken_off
from kvmedic.manifests.trial_pod import NoTrial


def without_remote_cache(
    template: Mapping[str, Any], container: str, profiles: Sequence[EngineProfile]
) -> dict[str, Any] | NoTrial:
    """Return a pod template whose engine shares no blocks with others, or why it cannot be cut off.

    Args:
        template: the pod template.
        container: name of the engine's container.
        profiles: of the engines that it may be.
    """
    alone = copy.deepcopy(dict(template))
    containers = (alone.get("spec") or {}).get("containers") or []
    index = next((at for at, each in enumerate(containers) if each.get("name") == container), None)
    if index is None:
        return alone
    known = (each for each in profiles if not isinstance(invocation_of(containers[index], each), NotAnEngine))
    profile = next(known, None)
    remote = profile.remote_cache if profile else None
    if profile is None or remote is None:
        return alone
    for field in ("command", "args"):
        if isinstance(containers[index].get(field), list):
            containers[index][field] = _without_dotted(containers[index][field], remote)
    for option in remote.options:
        engine = Engine(profile, version_of(containers[index], profile))
        edits = taken_off(containers[index], index, option, engine)
        if isinstance(edits, Refusal):
            return NoTrial(f"a trial pod must not share the fleet's KV store: {edits.message}")
        for edit in edits:
            alone = edit.apply(alone)
        containers = alone["spec"]["containers"]
    _without_variables(containers[index], remote)
    return alone


def remote_cache_in_file(file: Configuration | Refusal | None, profile: EngineProfile) -> str:
    """Return why an engine's configuration file keeps it from being cut off; empty where it does not."""
    remote = profile.remote_cache
    if remote is None or file is None:
        return ""
    if isinstance(file, Refusal):
        return f"whether the configuration file names a remote KV store is not known: {file.message}"
    given = [each.dest for each in remote.options if file.read.parsed.last(each.dest) is not None]
    if not given:
        return ""
    return (
        f"the configuration file gives {', '.join(given)}, and a trial pod must not share the fleet's KV "
        "store: give it on the command line, where it can be left out"
    )


def _without_dotted(words: list[Any], remote: RemoteCache) -> list[Any]:
    """Return the words of a list without `--option.key value` and `--option.key=value` of these options."""
    names = tuple(f"{each.dest}." for each in remote.options)
    kept, rest = [], iter(words)
    for word in rest:
        text = str(word)
        if not text.startswith("--") or not text[2:].replace("-", "_").startswith(names):
            kept.append(word)
        elif "=" not in text:
            next(rest, None)
    return kept


def _without_variables(container: dict[str, Any], remote: RemoteCache) -> None:
    """Take the variables off that only a remote store reads; one that something else refers to stays."""
    env, sources = container.get("env"), container.get("envFrom")
    if isinstance(env, list):
        text = json.dumps({key: each for key, each in container.items() if key != "name"}, default=str)
        container["env"] = [
            each
            for each in env
            if not str(each.get("name")).startswith(remote.variables)
            or any(f"{opening}{each.get('name')}" in text for opening in ("$(", "${", "$"))
        ]
    if isinstance(sources, list):
        container["envFrom"] = [
            each for each in sources if not str(each.get("prefix") or "").startswith(remote.variables)
        ]
