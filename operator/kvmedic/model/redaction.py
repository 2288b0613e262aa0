"""Texts that everybody may read, without what looks like a secret.

A message is redacted before it is cut to a length: a secret of which half is left is no longer recognised.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_SECRET_WORD = r"(?:api[-_]?key|token(?!s|iz)|secret|passw(?:or)?d|credential)"
_NAMED = re.compile(
    rf"((?:--[\w.-]*{_SECRET_WORD}[\w.-]*[\"']?(?:\s*[=:,]\s*|\s+)|\b[\w.-]*{_SECRET_WORD}[\w.-]*[\"']?[=:]\s*)[\"']?)"
    r"([^\s\"',;]+)",
    re.IGNORECASE,
)
"""A flag, variable or field whose name says that it holds a secret, and its value."""
_SHAPED = re.compile(
    r"\b(?:hf_|sk-(?=[\w-]*\d)[\w-]{8}|gh[opsu]_|glpat-|xox[abp]-|AKIA)[\w-]{8,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|(?i:\bbearer\s+)\S+"
)
"""Secrets that are known by how they begin."""
_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@]+@", re.IGNORECASE)


def redact(text: str) -> str:
    """Return a text with values in the place of which nothing but `HIDDEN` is told."""
    without = _URL.sub(rf"\1{HIDDEN}@", _SHAPED.sub(HIDDEN, text))
    return _NAMED.sub(rf"\1{HIDDEN}", without)


def names_secret(name: str) -> bool:
    """Return whether the name of a flag or a variable says that its value is a secret."""
    return re.search(_SECRET_WORD, name, re.IGNORECASE) is not None
