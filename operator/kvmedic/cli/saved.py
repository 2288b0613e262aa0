"""Text files that a person saved: compressed or not, in whatever encoding a shell gave them."""

from __future__ import annotations

import codecs
import zlib
from pathlib import Path

_GZIP = b"\x1f\x8b"
_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
"""Marks at the start of a text, and its encoding; shells of Windows redirect into UTF-16."""


class UnfitError(Exception):
    """A file holds no text, or more than is read; the message names it and says why."""


def text_of(file: str, most_bytes: int) -> str:
    """Return a file's text, of one that is compressed the first part.

    A letter that was cut off at the end is left out.

    Raises:
        OSError: it cannot be read.
        UnfitError: it is larger than `most_bytes`, or no text.
    """
    with Path(file).open("rb") as source:
        data = source.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise UnfitError(f"{file} is larger than {most_bytes >> 20} MiB")
    try:
        text = _decoded(_decompressed(data, most_bytes) if data.startswith(_GZIP) else data)
    except (UnicodeDecodeError, zlib.error):
        raise UnfitError(f"{file} is neither text nor gzip") from None
    if "\0" in text:
        raise UnfitError(f"{file} is neither text nor gzip")
    return text.replace("\r\n", "\n")


def _decoded(data: bytes) -> str:
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    return codecs.getincrementaldecoder(encoding)().decode(data)


def _decompressed(data: bytes, most_bytes: int) -> bytes:
    return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, most_bytes)
