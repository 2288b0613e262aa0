"""One long generation on one engine, with its used blocks read on the way.

Nobody else sends to the engine; where somebody does, nothing can be told. The text that comes is counted and
thrown away, and what the engine says of a failure is never repeated: it may hold the key that it was sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import TypeAlias

import httpx

from kvmedic.core.evidence import Measured, Missing, Pool, Signal
from kvmedic.core.reclamation_probe import Sample
from kvmedic.core.signals import SignalTable
from kvmedic.core.trialling import Interrupted, Watched
from kvmedic.metrics.exposition import gauge, replica_of
from kvmedic.metrics.page import Page
from kvmedic.metrics.pools import pool as pool_of
from kvmedic.metrics.pools import window

PROMPT = tuple(range(1000, 1032))
"""Token ids that every vocabulary has; how many there are needs no tokenizer then."""
MOST_CROWDED = 0.05
"""Share of the readings that may see another request: one ends a moment after its last token."""
MOST_EVENT_BYTES = 64 * 1024
"""Size of one event, at most; one with a token is some 300 bytes (vLLM 0.32)."""
PATH = "/v1/completions"
NO_KEY = (
    "it wants an API key that the operator was not given, or another one: set probe.apiKey in the operator's "
    "configuration (probe.apiKeySecret in the chart's values)"
)
_DATA, _DONE = b"data:", b"[DONE]"

Pages: TypeAlias = Callable[[], Awaitable[Page | Missing]]
"""Returns the engine's metrics as they are now."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One running engine, as it is spoken to."""

    http: httpx.AsyncClient
    url: str
    """Of its API, without `/v1`."""
    headers: Mapping[str, str] = field(repr=False)
    """Sent with the request; they may hold a key."""
    table: SignalTable
    pages: Pages


@dataclass(frozen=True, slots=True)
class Asked:
    """What is generated."""

    model: str
    """Name under which the engine serves."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often is looked, and how long is waited."""

    interval_seconds: float = 1.0
    """Between two readings of used blocks."""
    silence_seconds: float = 120.0
    """Longest wait for the next token: a trial pod serves nobody else, so that more is a hang."""


@dataclass(slots=True)
class Course:
    """How far a generation is. It is read while the generation goes on, which alone writes it."""

    tokens: int = 0
    samples: list[Sample] = field(default_factory=list)
    crowded: int = 0
    pool: Pool | None = None
    window: str = ""


class BrokenOffError(Exception):
    """An engine did not go on; the message says how."""


async def generate(
    engine: Engine, asked: Asked, course: Course, rhythm: Rhythm = Rhythm()
) -> Watched | Interrupted:
    """Let an engine generate tokens, and return how many blocks were used on the way.

    Args:
        engine: that nobody else sends to.
        asked: model and number of tokens.
        course: a new one; it tells others how far this is.
        rhythm: of readings, and of patience.
    """
    reading = asyncio.create_task(_read(course, engine, rhythm.interval_seconds))
    try:
        await _stream(engine, asked, course, rhythm.silence_seconds)
    except BrokenOffError as error:
        return Interrupted(f"{_so_far(asked, course)} {error}")
    except (TimeoutError, httpx.TimeoutException):
        return Interrupted(f"{_so_far(asked, course)} nothing came for {rhythm.silence_seconds:g} s")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Interrupted(f"{_so_far(asked, course)}: {type(error).__name__}")
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return _outcome(asked, course)


def _so_far(asked: Asked, course: Course) -> str:
    return f"after {course.tokens} of {asked.tokens} tokens"


def _outcome(asked: Asked, course: Course) -> Watched | Interrupted:
    """Return what an answer that came to its end tells."""
    if course.tokens < asked.tokens:
        return Interrupted(f"the engine ended the answer {_so_far(asked, course)}")
    if course.pool is None:
        return Interrupted("the engine's metrics do not tell its pool")
    if course.crowded > MOST_CROWDED * (len(course.samples) + course.crowded):
        return Interrupted("other requests were served meanwhile")
    pool = course.pool
    return Watched(tuple(course.samples), course.tokens, pool.block_tokens, pool.blocks, course.window)


async def _stream(engine: Engine, asked: Asked, course: Course, silence_seconds: float) -> None:
    """Count tokens as they come, until all have come or the engine ends its answer.

    What comes without a token, such as a comment that keeps a connection open, does not extend the wait.

    Raises:
        BrokenOffError: the engine refused, or sent what is no answer.
        TimeoutError: no token came for too long.
        httpx.HTTPError: the connection failed.
    """
    events, loop = 0, asyncio.get_running_loop()
    async with (
        asyncio.timeout(silence_seconds) as patience,
        _request(engine, asked, silence_seconds) as response,
        aclosing(_lines(accepted(response))) as lines,
    ):
        async for line in lines:
            text = line.removeprefix(_DATA).strip()
            if not line.startswith(_DATA) or text == _DONE:
                continue
            events, told = _counted(text, events)
            count = min(max(events, told), asked.tokens)
            if count > course.tokens:
                course.tokens = count
                patience.reschedule(loop.time() + silence_seconds)
            if count == asked.tokens:
                return


def _request(
    engine: Engine, asked: Asked, silence_seconds: float
) -> AbstractAsyncContextManager[httpx.Response]:
    body = {
        "model": asked.model,
        "prompt": list(PROMPT),
        "max_tokens": asked.tokens,
        "min_tokens": asked.tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    # Compressed text could grow beyond all bounds before a line of it is seen.
    headers = {**engine.headers, "Accept-Encoding": "identity"}
    patience = httpx.Timeout(silence_seconds)
    return engine.http.stream("POST", engine.url + PATH, json=body, headers=headers, timeout=patience)


def accepted(response: httpx.Response) -> httpx.Response:
    """Return a response that is an answer.

    Raises:
        BrokenOffError: it is a refusal.
    """
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise BrokenOffError(f"the engine answered {response.status_code}: {NO_KEY}")
    if not response.is_success:
        raise BrokenOffError(f"the engine answered {response.status_code}")
    return response


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield the lines of an answer as they come.

    Raises:
        BrokenOffError: one is longer than any event.
    """
    rest = b""
    async for piece in response.aiter_raw():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > MOST_EVENT_BYTES:
            raise BrokenOffError("the engine sent an event that is too large")


def _counted(text: bytes, events: int) -> tuple[int, int]:
    """Return the events with text so far, and the tokens that the engine itself says have come."""
    try:
        event = json.loads(text)
        usage = event.get("usage") or {}
        told = int(usage.get("completion_tokens") or 0)
        return events + bool(event.get("choices")), told
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
        raise BrokenOffError("the engine sent what is no event of a completion") from error


async def _read(seen: Course, engine: Engine, interval_seconds: float) -> None:
    """Read used blocks again and again, until it is cancelled."""
    while True:
        page = await engine.pages()
        if isinstance(page, Page) and seen.tokens:
            _note(seen, page, engine.table)
        await asyncio.sleep(interval_seconds)


def _note(seen: Course, page: Page, table: SignalTable) -> None:
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
    seen.pool, seen.window = pool.value, window(replica, page.of(table.pool.name))
    beside = waiting.value if isinstance(waiting, Measured) else 0.0
    if running.value + beside > 1:
        seen.crowded += 1
    elif running.value == 1:
        seen.samples.append(Sample(len(PROMPT) + seen.tokens, usage.value * pool.value.blocks))
