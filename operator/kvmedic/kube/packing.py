"""Many texts that are alike, each kept in a fraction of its memory: objects of one kind, looks at fleets.

A small text compresses badly alone: what it repeats is in the others. So each is compressed with a dictionary
of earlier ones (zlib's `zdict`): a pod takes 0.1 KB in place of 0.6, of 1.1 as JSON (measured).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvmedic.kube.objects import JsonObject

MOST_COMMON = 32 << 10
"""Bytes of a dictionary: deflate looks no further back."""


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
