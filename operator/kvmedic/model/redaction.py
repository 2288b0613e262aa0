"""Texts that everybody may read: without what looks like a secret, and without characters that nobody sees.

A message is redacted before it is cut to a length: a secret of which half is left is no longer recognised.
Whatever a tenant wrote may be in it, so each pattern takes time in proportion to a text, never by its square.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_SECRET = re.compile(r"api[-_]?key|token(?!s|iz)|secret|passw(?:or)?d|credential", re.IGNORECASE)
_WORD = re.compile(r"[\w.-]++")
_VALUE = re.compile(r"([\"']?(?:(?P<set>[=:])\s*+|\s*+[=:,]\s*+|\s++)[\"']?)([^\s\"',;]++)")
"""What follows the name of a flag, variable or field, and its value."""
_SHAPED = re.compile(
    r"\b(?:hf_|sk-(?=[\w-]{0,256}?\d)[\w-]{8}|gh[opsu]_|glpat-|xox[abp]-|AKIA)[\w-]{8,}+"
    r"|\beyJ[\w-]{8,2048}+\.[\w-]{1,4096}+\.?[\w-]*+|(?i:\bbearer\s{1,64}+)\S++"
)
"""Secrets that are known by how they begin."""
_URL = re.compile(r"(\b[a-z][a-z0-9+.-]{0,32}+://)[^\s/@]++@", re.IGNORECASE)
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
"""Controls of a terminal, of the direction of text and of its lines, what has no width, and halves of
characters. Tabs and ends of lines stay."""


def redact(text: str) -> str:
    """Return a text with values in the place of which nothing but `HIDDEN` is left, and only what is seen."""
    without = _URL.sub(rf"\1{HIDDEN}@", _SHAPED.sub(HIDDEN, without_controls(text)))
    pieces, done = [], 0
    for word in _WORD.finditer(without):
        if word.start() < done or not names_secret(word[0]):
            continue
        value = _VALUE.match(without, word.end())
        if value is not None and (value["set"] or "--" in word[0]):
            pieces += [without[done : value.start(3)], HIDDEN]
            done = value.end()
    return "".join([*pieces, without[done:]])


def names_secret(name: str) -> bool:
    """Return whether the name of a flag or a variable says that its value is a secret."""
    return _SECRET.search(name) is not None


def without_controls(text: str) -> str:
    """Return a text without characters that change what people see beside it, or that nobody sees.

    A tenant's text in a log, an Event or a terminal could else hide lines, or write what looks like ours.
    """
    return _CONTROL.sub("", text)
