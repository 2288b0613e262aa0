"""Prompts of rising length on one engine, with the memory of its devices read before and after each.

An engine keeps memory that it once took, so each prompt must be the longest so far: one that has computed
long prompts before shows nothing any more. Every prompt begins with another token, so that none of it is
found in a prefix cache. Device memory is the source's word, and only samples count that are newer than the
prompt.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import fsum
from typing import TypeAlias

import httpx

from kvmedic.core.evidence import Measured, Reading
from kvmedic.core.gating import Counted
from kvmedic.core.prompt_probe import LEAST_PROMPTS, LEAST_SPAN, Prompt
from kvmedic.core.trialling import Interrupted, Prompted
from kvmedic.core.vitals import MIB, Device, Vital
from kvmedic.metrics.generation import MOST_EVENT_BYTES, PATH, BrokenOffError, Course, Engine, accepted
from kvmedic.metrics.page import Page
from kvmedic.metrics.served import counted_of

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
    """From then on a sample was measured after the prompt: an exporter tells what it measured last, which
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
    """Device memory is not told; the message says why."""


def lengths_up_to(longest: int) -> tuple[int, ...]:
    """Return the tokens of each prompt, rising."""
    return tuple(longest * eighth // EIGHTHS[-1] for eighth in EIGHTHS)


async def limit_of(engine: Engine) -> int | None:
    """Return the longest request that an engine says it takes; None where it does not say.

    What cannot be read is no trouble yet: the prompts themselves will tell.
    """
    url, headers = engine.url + MODELS, {**engine.headers, "Accept-Encoding": "identity"}
    try:
        async with (
            asyncio.timeout(MODELS_SECONDS),
            engine.http.stream("GET", url, headers=headers) as response,
        ):
            told = json.loads(await _drained(accepted(response)))["data"]
        limits = [each.get("max_model_len") for each in told]
    except (httpx.HTTPError, httpx.InvalidURL, BrokenOffError, TimeoutError):
        return None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None
    return min((each for each in limits if isinstance(each, int) and each > 0), default=None)


async def compute(engine: Engine, sent: Sent, course: Course) -> Prompted | Interrupted:
    """Let an engine compute prompts, and return the device memory that was in use after each.

    Args:
        engine: that nobody else sends to, and that has computed no long prompt since it started.
        sent: the prompts.
        course: a new one; it tells others how far this is.
    """
    began = await _counted(engine)
    if began is None:
        return Interrupted("the engine's metrics do not tell its finished requests")
    if began.tokens > sent.lengths[0] / LEAST_SPAN:
        return Interrupted("the engine has served other requests already: only a new one shows what it takes")
    try:
        found = await _computed(engine, sent, course)
    except (BrokenOffError, _UnreadError) as error:
        return Interrupted(f"after {course.tokens} tokens of prompts {error}")
    ended = await _counted(engine)
    if ended is not None and ended.requests - began.requests > len(found.prompts) + 1:
        return Interrupted("other requests were served meanwhile")
    return found


async def _computed(engine: Engine, sent: Sent, course: Course) -> Prompted:
    """Return what was read, as far as the engine came with it.

    Raises:
        BrokenOffError: it broke off too early for any verdict.
        _UnreadError: device memory is not told.
    """
    await _send(engine, sent, 0, WARM_UP)
    start = await _memory(sent)
    before = fsum(device.memory_used() or 0 for device in start.values())
    prompts: list[Prompt] = []
    for place, tokens in enumerate(sent.lengths, 1):
        try:
            await _send(engine, sent, place, tokens)
        except BrokenOffError:
            if not _is_enough(prompts):
                raise
            break
        course.tokens += tokens
        prompts.append(Prompt(tokens, before + _more(start, await _memory(sent))))
    return Prompted(before, tuple(prompts), sent.in_chunks)


def _is_enough(prompts: list[Prompt]) -> bool:
    return len(prompts) >= LEAST_PROMPTS and prompts[-1].tokens >= LEAST_SPAN * prompts[0].tokens


def _more(start: Mapping[str, Device], now: Mapping[str, Device]) -> float:
    """Return the memory that is less free than at the start, over all devices, in bytes.

    Raises:
        _UnreadError: these are other devices.
    """
    if start.keys() != now.keys():
        raise _UnreadError("the source tells of other devices than before")
    return fsum(_free(start[name]) - _free(device) for name, device in now.items())


def _free(device: Device) -> float:
    return (device.value(Vital.MEMORY_FREE) or 0) * MIB


async def _counted(engine: Engine) -> Counted | None:
    """Return what the engine has done since it started; None where it does not tell."""
    page = await engine.pages()
    return counted_of(page, engine.table) if isinstance(page, Page) else None


async def _send(engine: Engine, sent: Sent, place: int, tokens: int) -> None:
    """Let the engine compute one prompt.

    Raises:
        BrokenOffError: it did not.
    """
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
            await _drained(accepted(response))
    except (TimeoutError, httpx.TimeoutException):
        raise BrokenOffError(f"no answer came for {sent.silence_seconds:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise BrokenOffError(f"the connection failed: {type(error).__name__}") from None


async def _drained(response: httpx.Response) -> bytes:
    """Return an answer, read to its end.

    Raises:
        BrokenOffError: it is larger than any answer of one token.
    """
    body = b""
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MOST_EVENT_BYTES:
            raise BrokenOffError("the engine sent an answer that is too large")
    return body


async def _memory(sent: Sent) -> dict[str, Device]:
    """Return the devices by samples that were measured after this was called, by name.

    Raises:
        _UnreadError: there are none in time.
    """
    pace, called_at = sent.pace, _now()
    begins_at = called_at + timedelta(seconds=pace.lag_seconds)
    while (now := _now()) - called_at < timedelta(seconds=pace.limit_seconds):
        window = now - begins_at - timedelta(seconds=pace.reuse_seconds)
        if window > timedelta(0):
            reading = await sent.devices(window)
            if isinstance(reading, Measured) and reading.at - window >= begins_at and _is_told(reading.value):
                return {device.name: device for device in reading.value}
        await asyncio.sleep(pace.interval_seconds)
    raise _UnreadError(
        "the source has no device memory of the trial pod: no new sample (DCGM exporter) within "
        f"{pace.limit_seconds:g} s"
    )


def _is_told(devices: tuple[Device, ...]) -> bool:
    return bool(devices) and all(device.memory_used() is not None for device in devices)


def _now() -> datetime:
    return datetime.now(UTC)
