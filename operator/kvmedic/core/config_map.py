"""A ConfigMap that an engine's configuration file is in, and the copy of it in which one value differs.

A ConfigMap is never changed in place: a pod that restarts would read the new value beside peers that
still run the old one, and nobody could put it back for sure. What it holds may be secret: it is read
when it is needed and never stored; of it a plan has names, hashes and the one value.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from kvmedic.core.fleet import Owner

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
    def digest(self) -> str:
        """Return the identity of the contents: 16 hexadecimal digits over their canonical JSON."""
        body = {"data": dict(self.data), "binaryData": dict(self.binary)}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

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

    def copied(self, contents: Contents) -> Contents:
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

    So the same change gives the same copy, whoever dies in the middle; another target has one of its
    own, which nobody removes for the first one's sake. A copy of a copy has one hash at its end.
    """
    told = hashlib.sha256(f"{target_uid}/{contents.digest}".encode()).hexdigest()[:10]
    base = _COPIED.sub("", config_map)[: NAME_LENGTH - len(told) - 1]
    return f"{base.rstrip('.-')}-{told}"


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
    UNREADABLE = "may not be read by the operator"


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
