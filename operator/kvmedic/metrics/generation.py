"""What one engine shows when it alone is asked: blocks over a long generation, device memory over prompts.

Where somebody else sends to the engine too, nothing can be concluded. The text that comes is thrown away, and
what the engine says of a failure is never repeated: it may hold the key that it was sent.

An engine keeps memory that it once took, so each prompt must be the longest so far, and begins with another
token so that no prefix cache has it. Only samples of device memory count that are newer than the prompt.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import fsum
from typing import TypeAlias

import httpx

from kvmedic.engines.signal_sources import SignalTable
from kvmedic.kube.cpu import in_thread
from kvmedic.metrics.page import Page, gauge, replica_of
from kvmedic.metrics.readings import read_pool as pool_of
from kvmedic.metrics.readings import window
from kvmedic.metrics.scrape import MOST_PIECES, pieces_of, read_body, read_finished_counts
from kvmedic.model.devices import MIB, Device, Vital
from kvmedic.model.evidence import Measured, Missing, Pool, Reading, Signal
from kvmedic.model.trial import Counted, Interrupted, Prompt, Prompted, Sample, Watched
from kvmedic.runbooks.compression.probes import LEAST_PROMPTS, LEAST_SPAN

PROMPT = tuple(range(1000, 1032))
"""Token ids that every vocabulary has; how many there are needs no tokenizer then."""
MOST_CROWDED = 0.05
"""Share of the readings that may see another request: one ends a moment after its last token."""
MOST_EVENT_BYTES = 64 * 1024
"""Size of one event, at most; one with a token is some 300 bytes (vLLM 0.32)."""
READ_AT_ONCE_BYTES = 4 * 1024
"""Of events that come together; more are read in a thread. 64 KiB of the shortest, `{}`, cost 16 ms of one
core, so that as many as these cost 1 ms; a token comes in some 300 bytes, which no thread is worth."""
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
    no_key: str = NO_KEY
    """What to do where the engine wants a key."""


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

    def show_progress(self, asked: int) -> str:
        """Return how far it is of the tokens that were asked for, in words."""
        return f"after {self.tokens} of {asked} tokens"


class BrokenOffError(Exception):
    """An engine did not go on, refused, or sent what is no answer; the message says how."""


async def generate(
    engine: Engine, model: str, tokens: int, course: Course, rhythm: Rhythm = Rhythm()
) -> Watched | Interrupted:
    """Let an engine generate tokens, and return how many blocks were used on the way.

    Args:
        engine: that nobody else sends to.
        model: name under which the engine serves.
        course: a new one; it shows others how far this is.
    """
    reading = asyncio.create_task(_read_blocks(course, engine, rhythm.interval_seconds))
    try:
        await _stream(engine, model, tokens, course, rhythm.silence_seconds)
    except BrokenOffError as error:
        return Interrupted(f"{course.show_progress(tokens)} {error}")
    except (TimeoutError, httpx.TimeoutException):
        return Interrupted(f"{course.show_progress(tokens)} nothing came for {rhythm.silence_seconds:g} s")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Interrupted(f"{course.show_progress(tokens)}: {type(error).__name__}")
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    if course.tokens < tokens:
        return Interrupted(f"the engine ended the answer {course.show_progress(tokens)}")
    pool = course.pool
    if pool is None:
        return Interrupted("the engine's metrics do not report its pool")
    if course.crowded > MOST_CROWDED * (len(course.samples) + course.crowded):
        return Interrupted("other requests were served meanwhile")
    return Watched(tuple(course.samples), course.tokens, pool.block_tokens, pool.blocks, course.window)


async def _stream(engine: Engine, model: str, tokens: int, course: Course, silence_seconds: float) -> None:
    """Count tokens as they come, until all have come or the engine ends its answer.

    What comes without a token, such as a comment that keeps a connection open, does not extend the wait.

    Raises:
        BrokenOffError: the engine refused, or sent what is no answer.
        TimeoutError: no token came for too long.
        httpx.HTTPError: the connection failed.
    """
    events, loop = 0, asyncio.get_running_loop()
    body = {
        "model": model,
        "prompt": list(PROMPT),
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    # Compressed text could grow beyond all bounds before a line of it is seen.
    headers = {**engine.headers, "Accept-Encoding": "identity"}
    url, limit = engine.url + PATH, httpx.Timeout(silence_seconds)
    most = MOST_PIECES + 4 * tokens  # each comes in a piece of its own, or in two
    async with (
        asyncio.timeout(silence_seconds) as patience,
        engine.http.stream("POST", url, json=body, headers=headers, timeout=limit) as response,
        aclosing(_lines(accept_response(response, engine.no_key), most)) as pieces,
    ):
        async for lines in pieces:
            before = course.tokens
            if sum(map(len, lines)) + len(lines) <= READ_AT_ONCE_BYTES:
                events = _count_tokens(lines, events, tokens, course)
            else:
                events = await in_thread(_count_tokens, lines, events, tokens, course)
            if course.tokens > before:
                patience.reschedule(loop.time() + silence_seconds)
            if course.tokens == tokens:
                return


def accept_response(response: httpx.Response, no_key: str) -> httpx.Response:
    """Return a response that is an answer; `no_key`: what to do where a key is missing."""
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise BrokenOffError(f"the engine answered {response.status_code}: {no_key}")
    if not response.is_success:
        raise BrokenOffError(f"the engine answered {response.status_code}")
    return response


async def _lines(response: httpx.Response, most: int) -> AsyncGenerator[Sequence[bytes], None]:
    """Yield the lines of an answer of so many pieces as they come, those that come together at once."""
    rest = b""
    try:
        async with aclosing(pieces_of(response, most)) as pieces:
            async for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                if whole:
                    yield whole
                if len(rest) > MOST_EVENT_BYTES:
                    raise BrokenOffError("the engine sent an event that is too large")
    except ValueError as error:
        raise BrokenOffError(f"the engine's answer cannot be read: {error}") from None


def _count_tokens(lines: Sequence[bytes], events: int, tokens: int, course: Course) -> int:
    """Write into the course how many tokens have come, up to all; return the events with text so far."""
    for line in lines:
        text = line.removeprefix(_DATA).strip()
        if not line.startswith(_DATA) or text == _DONE:
            continue
        events, reported = _count_events(text, events)
        course.tokens = max(course.tokens, min(max(events, reported), tokens))
        if course.tokens == tokens:
            break
    return events


def _count_events(text: bytes, events: int) -> tuple[int, int]:
    """Return the events with text so far, and the tokens that the engine itself says have come."""
    try:
        event = json.loads(text)
        usage = event.get("usage") or {}
        reported = int(usage.get("completion_tokens") or 0)
        return events + bool(event.get("choices")), reported
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
        raise BrokenOffError("the engine sent what is no event of a completion") from error


async def _read_blocks(seen: Course, engine: Engine, interval_seconds: float) -> None:
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
    pool = pool_of(replica, page.find(table.pool.name))
    usage, running, waiting = (
        gauge(replica, signal, [page])
        for signal in (Signal.KV_CACHE_USAGE_MEAN, Signal.RUNNING_MEAN, Signal.WAITING_MEAN)
    )
    if not (isinstance(pool, Measured) and isinstance(usage, Measured) and isinstance(running, Measured)):
        return
    seen.pool, seen.window = pool.value, window(replica, page.find(table.pool.name))
    beside = waiting.value if isinstance(waiting, Measured) else 0.0
    if running.value + beside > 1:
        seen.crowded += 1
    elif running.value == 1:
        seen.samples.append(Sample(len(PROMPT) + seen.tokens, usage.value * pool.value.blocks))


EIGHTHS = (1, 2, 4, 8)
"""Of the longest prompt. The first three are enough for a verdict (`LEAST_SPAN`): the last may well be the
end of an engine whose memory grows with the square."""
MODELS, MODELS_SECONDS = "/v1/models", 10.0
WARM_UP = 16
"""Tokens of a prompt before all others: the first makes room for much beside what its length takes."""
FIRST, TOKENS = 1000, tuple(range(1010, 1042))
"""Token ids that every vocabulary has: of the beginning of the first prompt, and what all go on with."""

Devices: TypeAlias = Callable[[timedelta], Awaitable[Reading[tuple[Device, ...]]]]
"""Returns the devices of the trial pod over a window that ends now."""


@dataclass(frozen=True, slots=True)
class MemoryPace:
    """How long is waited for device memory after a prompt."""

    lag_seconds: float = 30.0
    """From then on a sample was measured after the prompt: an exporter reports what it measured last, which
    dcgm-exporter does every 30 s (`--collect-interval`, its default)."""
    reuse_seconds: float = 10.0
    """How old an answer of the source may be (`reuse` of its options)."""
    interval_seconds: float = 5.0
    """Between two looks."""
    limit_seconds: float = 120.0
    """Longest wait: enough for samples that are a minute apart."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What is sent, and how its memory is read."""

    model: str
    """Name under which the engine serves."""
    lengths: tuple[int, ...]
    """Tokens of each prompt, rising."""
    in_chunks: bool
    """The engine may compute them in several steps."""
    devices: Devices = field(repr=False)
    silence_seconds: float
    """Longest wait for an answer."""
    pace: MemoryPace


class _UnreadError(Exception):
    """Device memory is not known; the message says why."""


def lengths_up_to(longest: int) -> tuple[int, ...]:
    """Return the tokens of each prompt, rising."""
    return tuple(longest * eighth // EIGHTHS[-1] for eighth in EIGHTHS)


async def limit_of(engine: Engine) -> int | None:
    """Return the longest request that an engine says it takes; None where it does not say.

    What cannot be read is no trouble yet: the prompts themselves will show it.
    """
    url, headers = engine.url + MODELS, {**engine.headers, "Accept-Encoding": "identity"}
    try:
        async with (
            asyncio.timeout(MODELS_SECONDS),
            engine.http.stream("GET", url, headers=headers) as response,
        ):
            models = json.loads(await _drain_answer(accept_response(response, engine.no_key)))["data"]
        limits = [each.get("max_model_len") for each in models]
    except (httpx.HTTPError, httpx.InvalidURL, BrokenOffError, TimeoutError):
        return None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None
    return min((each for each in limits if isinstance(each, int) and each > 0), default=None)


async def compute(engine: Engine, sent: Sent, course: Course) -> Prompted | Interrupted:
    """Let an engine compute prompts, and return the device memory that was in use after each.

    Args:
        engine: that nobody else sends to, and that has computed no long prompt since it started.
    """
    began = await _count_prompt(engine)
    if began is None:
        return Interrupted("the engine's metrics do not report its finished requests")
    if began.tokens > sent.lengths[0] / LEAST_SPAN:
        return Interrupted("the engine has served other requests already: only a new one shows what it takes")
    try:
        found = await _computed_course(engine, sent, course)
    except (BrokenOffError, _UnreadError) as error:
        return Interrupted(f"after {course.tokens} tokens of prompts {error}")
    ended = await _count_prompt(engine)
    if ended is not None and ended.requests - began.requests > len(found.prompts) + 1:
        return Interrupted("other requests were served meanwhile")
    return found


async def _computed_course(engine: Engine, sent: Sent, course: Course) -> Prompted:
    """Return what was read, as far as the engine came with it."""
    await _send(engine, sent, 0, WARM_UP)
    start = await _memory(sent)
    before = fsum(device.memory_used() or 0 for device in start.values())
    prompts: list[Prompt] = []
    for place, tokens in enumerate(sent.lengths, 1):
        try:
            await _send(engine, sent, place, tokens)
        except BrokenOffError:
            if len(prompts) < LEAST_PROMPTS or prompts[-1].tokens < LEAST_SPAN * prompts[0].tokens:
                raise
            break
        course.tokens += tokens
        now = await _memory(sent)
        if start.keys() != now.keys():
            raise _UnreadError("the source reports other devices than before")
        # What is less free than at the start, over all devices.
        free = [
            {name: each.value(Vital.MEMORY_FREE) or 0 for name, each in one.items()} for one in (start, now)
        ]
        more = fsum((free[0][name] - free[1][name]) * MIB for name in now)
        prompts.append(Prompt(tokens, before + more))
    return Prompted(before, tuple(prompts), sent.in_chunks)


async def _count_prompt(engine: Engine) -> Counted | None:
    """Return what the engine has done since it started; None where it does not report it."""
    page = await engine.pages()
    return read_finished_counts(page, engine.table) if isinstance(page, Page) else None


async def _send(engine: Engine, sent: Sent, place: int, tokens: int) -> None:
    """Let the engine compute one prompt."""
    prompt = [FIRST + place, *(TOKENS[at % len(TOKENS)] for at in range(tokens - 1))]
    body = {"model": sent.model, "prompt": prompt, "max_tokens": 1, "ignore_eos": True}
    # Compressed text could grow beyond all bounds before its size is seen.
    headers = {**engine.headers, "Accept-Encoding": "identity"}
    patience, url = httpx.Timeout(sent.silence_seconds), engine.url + PATH
    try:
        async with (
            asyncio.timeout(sent.silence_seconds),
            engine.http.stream("POST", url, json=body, headers=headers, timeout=patience) as response,
        ):
            await _drain_answer(accept_response(response, engine.no_key))
    except (TimeoutError, httpx.TimeoutException):
        raise BrokenOffError(f"no answer came for {sent.silence_seconds:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise BrokenOffError(f"the connection failed: {type(error).__name__}") from None


async def _drain_answer(response: httpx.Response) -> bytes:
    """Return an answer, read to its end."""
    try:
        return await read_body(response, MOST_EVENT_BYTES)
    except ValueError as error:
        raise BrokenOffError(f"the engine's answer cannot be read: {error}") from None


async def _memory(sent: Sent) -> dict[str, Device]:
    """Return the devices by samples that were measured after this was called, by name."""
    pace, called_at = sent.pace, _now()
    begins_at = called_at + timedelta(seconds=pace.lag_seconds)
    while (now := _now()) - called_at < timedelta(seconds=pace.limit_seconds):
        window = now - begins_at - timedelta(seconds=pace.reuse_seconds)
        if window > timedelta(0):
            reading = await sent.devices(window)
            if isinstance(reading, Measured) and reading.at - window >= begins_at:
                found = {device.name: device for device in reading.value}
                if found and all(device.memory_used() is not None for device in found.values()):
                    return found
        await asyncio.sleep(pace.interval_seconds)
    raise _UnreadError(
        "the source has no device memory of the trial pod: no new sample (DCGM exporter) within "
        f"{pace.limit_seconds:g} s"
    )


def _now() -> datetime:
    return datetime.now(UTC)
