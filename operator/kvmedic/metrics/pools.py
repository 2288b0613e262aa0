"""One replica's KV-cache pool, from the labels of its information series.

Labels are the text of Python values: a number, or `None` for what the engine did not know when it wrote
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from kvmedic.core.evidence import Absence, Measured, Missing, Pool, Reading, Unsupported
from kvmedic.core.signals import PoolSource
from kvmedic.metrics.readings import Replica
from kvmedic.metrics.series import Scraper, Series

_UNTOLD = "None"
"""Text of a value that the engine does not tell."""

_DIGITS = 15
"""A number of more is no count of blocks or tokens; Python refuses to read one of thousands of digits."""

_Told: TypeAlias = Pool | Missing | Unsupported
"""What one series says: the pool, or why it says none."""

_HYBRID = 0.05
"""Where the engine's own count of tokens differs from blocks times block size by more than this, a
block does not hold its size in tokens (models that mix kinds of attention). Rounding to whole blocks
per request stays under it for any request length over 20 blocks."""


@dataclass(frozen=True, slots=True)
class _Frontend:
    """What one frontend says: the engines behind it, and their pool."""

    engines: frozenset[str]
    pool: Pool


def pool(replica: Replica, series: Iterable[Series]) -> Reading[Pool]:
    """Return the pool of all engines of a replica together.

    Frontends with the same engines are duplicates and must say the same; frontends with different
    engines are parts of one replica.
    """
    scraped = _by_scraper(replica, series)
    if not scraped:
        return Missing(Absence.NOTHING_FOUND)
    frontends = set()
    for many in scraped.values():
        frontend = _frontend(replica, many)
        if not isinstance(frontend, _Frontend):
            return frontend
        frontends.add(frontend)
    return _joined(replica, sorted(frontends, key=lambda f: sorted(f.engines)))


def block_tokens(replica: Replica, series: Iterable[Series]) -> int | None:
    """Return tokens per block as the labels declare them; None where they do not, or not with one voice."""
    labels = [one.labels for many in _by_scraper(replica, series).values() for one in many]
    said = {_declared(replica.table.pool, each) for each in labels}
    return said.pop() or None if len(said) == 1 else None


def window(replica: Replica, series: Sequence[Series]) -> str:
    """Return what of the model frees blocks without any method, for a person; empty where no label tells."""
    source = replica.table.pool
    for one in series:
        if tokens := _whole(one.labels.get(source.window, "")):
            return f"{source.window} is {tokens} in {source.name}"
    found, declared = pool(replica, series), block_tokens(replica, series)
    if declared and isinstance(found, Measured) and found.value.block_tokens != declared:
        return (
            f"{source.name} tells {found.value.block_tokens} tokens per block of {declared}, as models "
            "do that mix kinds of attention"
        )
    return ""


def _by_scraper(replica: Replica, series: Iterable[Series]) -> dict[Scraper, list[Series]]:
    found: dict[Scraper, list[Series]] = {}
    for one in series:
        scraper = replica.presence.scraper_of(one)
        if scraper is not None:
            found.setdefault(scraper, []).append(one)
    return found


def _frontend(replica: Replica, series: Sequence[Series]) -> _Frontend | Missing | Unsupported:
    """Return what one frontend says; each of its engines has a series with the same text."""
    engines = frozenset(one.labels.get(replica.table.engine_label, "") for one in series)
    told = {_told(replica.table.pool, one, len(engines)) for one in series}
    if len(told) > 1:
        return Missing(Absence.AMBIGUOUS)
    only = told.pop()
    return _Frontend(engines, only) if isinstance(only, Pool) else only


def _joined(replica: Replica, frontends: Sequence[_Frontend]) -> Reading[Pool]:
    engines = [engine for frontend in frontends for engine in frontend.engines]
    kinds = {replace(frontend.pool, blocks=0) for frontend in frontends}
    if len(engines) > len(set(engines)) or len(kinds) > 1:
        return Missing(Absence.AMBIGUOUS)
    if set(engines) < replica.presence.engines:
        return Missing(Absence.NOTHING_FOUND)
    blocks = sum(frontend.pool.blocks for frontend in frontends)
    return Measured(replace(kinds.pop(), blocks=blocks), replica.presence.at)


def _told(source: PoolSource, series: Series, engines: int) -> _Told:
    """Return the pool that one series describes, or why its labels describe none."""
    sizes = [series.labels.get(name, _UNTOLD) for name in source.block_tokens]
    if series.labels.get(source.blocks, _UNTOLD) == _UNTOLD or all(size == _UNTOLD for size in sizes):
        return Unsupported()
    total = _whole(series.labels[source.blocks])
    declared = _declared(source, series.labels)
    usable = total - engines * source.null_blocks
    if usable < 1 or not declared:
        return Missing(Absence.NOT_A_NUMBER)
    held = _whole(series.labels.get(source.engine_tokens, ""))
    return Pool(
        usable,
        _block_tokens(declared, held, total / engines),
        series.labels.get(source.cache_dtype, "auto"),
        {"True": True, "False": False}.get(series.labels.get(source.caches_prefixes, _UNTOLD)),
    )


def _declared(source: PoolSource, labels: Mapping[str, str]) -> int:
    """Return tokens per block by the labels; 0 where none of them is a number."""
    return next(filter(None, (_whole(labels.get(name, _UNTOLD)) for name in source.block_tokens)), 0)


def _block_tokens(declared: int, held: int, blocks: float) -> int:
    """Return tokens per block: as declared, or as one engine's own count of tokens says where it differs."""
    is_hybrid = held > 0 and abs(held - blocks * declared) > _HYBRID * blocks * declared
    return max(1, round(held / blocks)) if is_hybrid else declared


def _whole(text: str) -> int:
    """Return a label as a number; 0 for `None`, an empty text and anything else that is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
