"""Many texts that are alike, each kept in a fraction of its memory: objects of one kind, looks at fleets.

A small text compresses badly alone: what it repeats is in the others. So each is compressed with a dictionary
of earlier ones (zlib's `zdict`): a pod takes 0.1 KB in place of 0.6, of 1.1 as JSON (measured).
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from io import BytesIO
from typing import Any

from kvmedic.engines import ENGINES, profiles_for
from kvmedic.kube.objects import JsonObject
from kvmedic.model.engine import EngineProfile

MOST_COMMON = 32 << 10
"""Bytes of a dictionary: deflate looks no further back."""
_PROFILES = (*ENGINES, *(named for each in ENGINES for named in profiles_for(each.name)))
"""Every profile that a view may hold: of an engine that is recognised, and of one that a target names."""


class _Pickler(pickle.Pickler):
    """Writes an object with the places of engine profiles in place of their hundreds of options."""

    def persistent_id(self, obj: object) -> int | None:
        """Return a profile's place; None: the object is written as it is."""
        if not isinstance(obj, EngineProfile):
            return None
        return next((place for place, profile in enumerate(_PROFILES) if profile is obj), None)

    def reducer_override(self, obj: Any) -> Any:
        """Return how to make an object anew, in C where it can be: some are read with each look at a fleet.

        A frozen dataclass with slots is else filled by its name and field by field, a named tuple by Python.
        """
        kind = type(obj)
        if isinstance(obj, tuple):
            return tuple.__new__, (kind, tuple(obj))
        if not is_dataclass(obj) or isinstance(obj, type) or hasattr(obj, "__dict__"):
            return NotImplemented
        return _fill_slots, (kind, *(getattr(obj, each.name) for each in fields(obj)))


@cache
def _slots_of(kind: Any) -> tuple[Callable[[object, object], None], ...]:
    return tuple(getattr(kind, each.name).__set__ for each in fields(kind))


def _fill_slots(kind: Any, *values: object) -> object:
    """Return a dataclass with slots as it was: nothing is checked or computed."""
    made = object.__new__(kind)
    for put, value in zip(_slots_of(kind), values, strict=True):
        put(made, value)
    return made


class _Unpickler(pickle.Unpickler):
    """Reads an object with this process's own profiles."""

    def persistent_load(self, pid: int) -> EngineProfile:
        """Return a profile by its place."""
        return _PROFILES[pid]


@dataclass(frozen=True, slots=True)
class Packed:
    """A text as it is kept."""

    common: bytes = field(repr=False)
    """The dictionary that it was compressed with, which it shares with many."""
    rest: bytes

    def text(self) -> bytes:
        """Return the text as it was."""
        return zlib.decompressobj(zdict=self.common).decompress(self.rest)

    def body(self) -> JsonObject:
        """Return the object whose JSON the text is."""
        return dict(json.loads(self.text()))

    def object(self) -> Any:
        """Return the object whose pickle the text is."""
        return _Unpickler(BytesIO(self.text())).load()


@dataclass(slots=True)
class Packer:
    """Packs texts that are alike. Threads may share one."""

    _common: bytes = field(default=b"", repr=False)
    _packed: int = 0
    """How many were."""

    def pack(self, text: bytes) -> Packed:
        """Return a text as it is kept."""
        common = self._common
        squeezer = zlib.compressobj(zlib.Z_BEST_SPEED, zdict=common)
        packed = Packed(common, squeezer.compress(text) + squeezer.flush())
        self._packed += 1
        # The first may be unlike the others: the second, fourth, eighth … are added. What was packed with a
        # dictionary needs it as it was, so it is another each time: twenty for a million texts.
        if self._packed.bit_count() == 1:
            self._common = (common + text)[-MOST_COMMON:]
        return packed

    def pack_body(self, body: JsonObject) -> Packed:
        """Return an object as it is kept: as JSON."""
        return self.pack(json.dumps(body, separators=(",", ":")).encode())

    def pack_object(self, made: object) -> Packed:
        """Return an object of ours as it is kept: as a pickle, which is read sooner than JSON is."""
        written = BytesIO()
        _Pickler(written, pickle.HIGHEST_PROTOCOL).dump(made)
        return self.pack(written.getvalue())
