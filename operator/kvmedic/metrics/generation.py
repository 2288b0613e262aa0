"""One long generation on one engine, with its used blocks read on the way.

Nobody else sends to the engine; where somebody does, nothing can be told. The text that comes is counted and
thrown away.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import httpx

from kvmedic.core.evidence import Measured, Missing, Pool, Signal
from kvmedic.core.reclamation_probe import Sample
from kvmedic.core.signals import SignalTable
from kvmedic.metrics.exposition import Page, gauge, replica_of
from kvmedic.metrics.pools import pool as pool_of

PROMPT = tuple(range(1000, 1032))
"""Token ids that every vocabulary has; how many there are needs no tokenizer then."""
INTERVAL_SECONDS = 1.0
"""Between two readings of used blocks."""
SILENCE_SECONDS = 120.0
"""Longest wait for the next token: a trial pod serves nobody else, so that more is a hang."""
MOST_CROWDED = 0.05
"""Share of the readings that may see another request: one ends a moment after its last token."""
PATH = "/v1/completions"
_DATA, _DONE = "data:", "[DONE]"

Pages: TypeAlias = Callable[[], Awaitable[Page | Missing]]
"""Returns the engine's metrics as they are now."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is generated."""

    model: str
    """Name under which the engine serves."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Watched:
    """A generation that came to its end."""

    samples: tuple[Sample, ...]
    generated: int
    """Tokens that came."""
    pool: Pool


@dataclass(frozen=True, slots=True)
class Interrupted:
    """It tells nothing, and why."""

    why: str


@dataclass(slots=True)
class _Progress:
    """What came so far."""

    tokens: int = 0
    samples: list[Sample] = field(default_factory=list)
    crowded: int = 0
    pool: Pool | None = None


class _BrokenOffError(Exception):
    """The engine did not go on; the message says how."""


async def generate(
    http: httpx.AsyncClient,
    table: SignalTable,
    asked: Asked,
    pages: Pages,
    interval_seconds: float = INTERVAL_SECONDS,
) -> Watched | Interrupted:
    """Let an engine generate tokens, and return how many blocks were used on the way.

    Args:
        http: connections to the engine, with its address and, where it asks for one, its key.
        table: the engine's signals.
        asked: model and number of tokens.
        pages: the engine's own metrics.
        interval_seconds: between two readings.
    """
    seen = _Progress()
    reading = asyncio.create_task(_read(seen, table, pages, interval_seconds))
    try:
        async for count in _streamed(http, asked):
            seen.tokens = max(count, seen.tokens)
    except _BrokenOffError as error:
        return Interrupted(f"after {seen.tokens} of {asked.tokens} tokens {error}")
    except httpx.HTTPError as error:
        return Interrupted(f"after {seen.tokens} of {asked.tokens} tokens: {type(error).__name__}")
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    if seen.tokens < asked.tokens:
        return Interrupted(f"the engine ended the answer after {seen.tokens} of {asked.tokens} tokens")
    if seen.pool is None:
        return Interrupted("the engine's metrics do not tell its pool")
    if seen.crowded > MOST_CROWDED * (len(seen.samples) + seen.crowded):
        return Interrupted("other requests were served meanwhile")
    return Watched(tuple(seen.samples), seen.tokens, seen.pool)


async def _streamed(http: httpx.AsyncClient, asked: Asked) -> AsyncIterator[int]:
    """Yield the number of tokens so far, each time more have come.

    Raises:
        _BrokenOffError: the engine refused, or fell silent.
    """
    body = {
        "model": asked.model,
        "prompt": list(PROMPT),
        "max_tokens": asked.tokens,
        "min_tokens": asked.tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    patience = httpx.Timeout(SILENCE_SECONDS)
    async with http.stream("POST", PATH, json=body, timeout=patience) as response:
        if response.is_error:
            raise _BrokenOffError(f"the engine answered {response.status_code}")
        events = 0
        async for line in response.aiter_lines():
            text = line.removeprefix(_DATA).strip()
            if not line.startswith(_DATA) or text == _DONE:
                continue
            events, told = _counted(text, events)
            yield max(events, told)


def _counted(text: str, events: int) -> tuple[int, int]:
    """Return the events with text so far, and the tokens that the engine itself says have come."""
    try:
        event = json.loads(text)
        usage = event.get("usage") or {}
        told = int(usage.get("completion_tokens") or 0)
        return events + bool(event.get("choices")), told
    except (AttributeError, TypeError, ValueError) as error:
        raise _BrokenOffError("the engine sent what is no event of a completion") from error


async def _read(seen: _Progress, table: SignalTable, pages: Pages, interval_seconds: float) -> None:
    """Read used blocks again and again, until it is cancelled."""
    while True:
        page = await pages()
        if isinstance(page, Page) and seen.tokens:
            _note(seen, page, table)
        await asyncio.sleep(interval_seconds)


def _note(seen: _Progress, page: Page, table: SignalTable) -> None:
    replica = replica_of(page, table)
    if replica is None:
        return
    pool = pool_of(replica, page.of(table.pool.name))
    usage, running, waiting = (
        gauge(replica, signal, [page])
        for signal in (Signal.KV_CACHE_USAGE_MEAN, Signal.RUNNING_MEAN, Signal.WAITING_MEAN)
    )
    if not (isinstance(pool, Measured) and isinstance(usage, Measured) and isinstance(running, Measured)):
        return
    seen.pool = pool.value
    beside = waiting.value if isinstance(waiting, Measured) else 0.0
    if running.value + beside > 1:
        seen.crowded += 1
    elif running.value == 1:
        seen.samples.append(Sample(len(PROMPT) + seen.tokens, usage.value * pool.value.blocks))
