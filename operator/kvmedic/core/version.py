"""An engine's version, and which of two is older."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

_PATTERN = re.compile(
    r"v?(?P<release>\d{1,9}(?:\.\d{1,9})*)"
    r"(?:(?P<stage>a|b|rc)(?P<pre>\d{1,9}))?"
    r"(?:\.post(?P<post>\d{1,9}))?"
    r"(?:\.dev(?P<dev>\d{1,9}))?"
    r"(?:\+(?P<local>[0-9A-Za-z.]+))?"
)
_STAGES = {"a": 0, "b": 1, "rc": 2, None: 3}
_RELEASE_PARTS = 4
"""Release numbers that are compared; vLLM's longest so far has four (0.10.1.1)."""


Key: TypeAlias = tuple[tuple[int, ...], int, int, int, float]


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version as Python packages write them (PEP 440): `0.10.2rc1`, `0.8.5.post1`, `0.32.0+cpu`.

    `0.9` and `0.9.0` are equal, and so are builds that differ in the local part alone. Made by
    `parse`.
    """

    key: Key
    """What is compared: release, stage, number within the stage, post release, development release."""
    text: str = field(compare=False)

    @classmethod
    def parse(cls, text: str) -> Version:
        """Return the version that a text names.

        Raises:
            ValueError: the text is not a version.
        """
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a version; expected one like 0.32.0 or 0.10.2rc1")
        return cls(_key(match), text.strip().removeprefix("v"))

    def __str__(self) -> str:
        return self.text


def _key(match: re.Match[str]) -> Key:
    numbers = [int(part) for part in match["release"].split(".")]
    stage, post, dev = match["stage"], match["post"], match["dev"]
    lone_dev = dev is not None and stage is None and post is None
    return (
        tuple(numbers + [0] * (_RELEASE_PARTS - len(numbers))),
        -1 if lone_dev else _STAGES[stage],
        int(match["pre"] or 0),
        -1 if post is None else int(post),
        float("inf") if dev is None else int(dev),
    )
