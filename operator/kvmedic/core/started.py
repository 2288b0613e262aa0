"""What an engine's start-up log tells of how its KV cache is kept.

A log may hold prompts and secrets. Only what the patterns of an engine's vocabulary match is kept of it, from
lines before the first request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias

from kvmedic.core.logged_pool import LogForms, LoggedSize, logged_size

MODELS_OWN = "auto"
"""The type of the cache where the command line names none: the model's own, or that of its checkpoint."""
LINE_LENGTH = 2000
"""Characters of a line that are looked at: what is looked for is shorter, and so are its lines."""
DIFFERENT = 8
"""Different phrases of one kind that are kept; an engine has one or two."""


@dataclass(frozen=True, slots=True)
class StartForms:
    """How the log of one engine tells of its start."""

    pool: LogForms
    begins: re.Pattern[str]
    """A line before all the others that are read; where it is missing the beginning was rotated away."""
    cache_type: re.Pattern[str]
    """A line that names the type in which keys and values are stored, its first group."""
    backends: tuple[re.Pattern[str], ...]
    """Lines that name what computes attention, the first group, by generation."""
    methods: tuple[re.Pattern[str], ...]
    """Phrases by which methods of compression say that they are on."""


@dataclass(frozen=True, slots=True)
class Started:
    """What one engine said of itself when it started."""

    methods: tuple[str, ...] = ()
    """Phrases of methods of compression, as they were matched."""
    cache_type: str = ""
    """The type in which keys and values are stored; empty: no line names it."""
    backends: tuple[str, ...] = ()
    """What computes attention. It decides nothing by itself: one fused kernel may take the place of another,
    and a method may replace attention after its name is logged."""
    size: LoggedSize | None = None
    is_whole: bool = False
    """The log goes from the beginning to the pool, so that what it does not say was not said."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A log that tells nothing, because it could not be read."""

    why: str
    """For a person; never a part of a log."""


Start: TypeAlias = Started | Unread


def started_of(lines: Iterable[str], forms: StartForms) -> Started:
    """Return what a log tells of the start of its engine; of a log without a start, nothing."""
    taken = takewhile(lambda line: not forms.pool.serving.search(line), lines)
    start = [line[:LINE_LENGTH] for line in taken]
    size = logged_size(start, forms.pool)
    return Started(
        methods=_kept(start, forms.methods, 0),
        cache_type=next(iter(_kept(start, (forms.cache_type,), 1)), ""),
        backends=_kept(start, forms.backends, 1),
        size=size,
        is_whole=size is not None and any(forms.begins.search(line) for line in start),
    )


def phrases(starts: Mapping[str, Start]) -> tuple[str, ...]:
    """Return the phrases of methods that any of some replicas logged, by pod name, without doubles."""
    told = (starts[name] for name in sorted(starts))
    return tuple(dict.fromkeys(each for one in told if isinstance(one, Started) for each in one.methods))


def _kept(start: Iterable[str], patterns: tuple[re.Pattern[str], ...], group: int) -> tuple[str, ...]:
    found = (pattern.search(line) for line in start for pattern in patterns)
    return tuple(dict.fromkeys(match.group(group) for match in found if match))[:DIFFERENT]
