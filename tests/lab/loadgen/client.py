"""One client that streams completions and watches the clock.

Server-sent events are counted, not decoded: an event is a token unless it carries no choice (usage) or is
the end mark. Where the server says how many tokens it generated (`usage`), that number stands.
"""

import asyncio
import re
import time
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import urlsplit

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    TCPConnector,
)

from lab.loadgen.record import ConnectionMode, Outcome, Record

EVENT, ERROR, ABORT = b"data: {", b'data: {"error"', b'"finish_reason":"abort"'
NOT_TOKENS = (b'"choices":[]', b'"role":"assistant"', ERROR)
"""Marks of events that carry no token: token counts, the opening of a chat, an error."""
_USAGE = re.compile(rb'"usage":\{.*"completion_tokens":\s*(\d+)')


def base_url(text: str) -> str:
    """Return where requests go: a server's URL without a path, such as `http://chat-llm.serving:8000`."""
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{text!r} is not an http:// URL")
    return f"http://{parts.netloc}"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to be sent; `prompt` is its token ids, separated by commas."""

    url: str
    number: int
    prompt_tokens: int
    max_tokens: int
    prompt: bytes


@dataclass(slots=True)
class Watch:
    """What has been seen of the answer so far; monotonic seconds."""

    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)
    tokens: int = 0
    reported: int | None = None
    first: float | None = None
    last: float = 0.0
    gaps_ms: list[float] = field(default_factory=list)

    def see(self, tokens: int, now: float) -> None:
        """Count tokens that arrived together: all but the first of them waited 0."""
        if self.first is None:
            self.first = now
        else:
            self.gaps_ms.append(round((now - self.last) * 1e3, 1))
        self.gaps_ms.extend([0.0] * (tokens - 1))
        self.last = now
        self.tokens += tokens

    def record(self, ask: Ask, outcome: Outcome, detail: str, mode: ConnectionMode) -> Record:
        shift = self.started_at - self.started
        return Record(
            number=ask.number,
            outcome=outcome,
            connection=mode,
            started_at=round(self.started_at, 4),
            ended_at=round(time.monotonic() + shift, 4),
            first_token_at=None if self.first is None else round(self.first + shift, 4),
            prompt_tokens=ask.prompt_tokens,
            tokens=self.tokens if self.reported is None else self.reported,
            gaps_ms=tuple(self.gaps_ms),
            detail=detail,
            asked_tokens=ask.max_tokens,
        )


class Client:
    """Sends one request after the other, on fresh connections or on one that it keeps; a context manager."""

    def __init__(
        self, model: str, mode: ConnectionMode, timeout_seconds: float, patience_seconds: float | None = None
    ) -> None:
        self.mode = mode
        self._model, self._timeout_seconds = model, timeout_seconds
        self._patience_seconds = patience_seconds

    async def __aenter__(self) -> "Client":
        fresh = self.mode is ConnectionMode.FRESH
        connector = TCPConnector(limit=0, force_close=fresh, enable_cleanup_closed=False)
        self._http = ClientSession(connector=connector, timeout=ClientTimeout(total=self._timeout_seconds))
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._http.close()

    async def ask(self, ask: Ask) -> Record:
        """Send one request and return what became of it; never raises for what the server does.

        A client with a patience leaves when it has seen no token for so long, the first one or a later one.
        """
        watch, waits = Watch(), Wait(self._patience_seconds)
        url, headers = f"{ask.url}/v1/completions", {"content-type": "application/json"}
        try:
            async with waits.timer, self._http.post(url, data=self._spelt(ask), headers=headers) as answer:
                outcome, detail = await _read(answer, watch, waits)
        except TimeoutError:
            outcome, detail = Outcome.FAILED, f"no end after {self._timeout_seconds:g} s"
            if waits.timer.expired():
                outcome, detail = Outcome.LEFT, f"no token for {self._patience_seconds:g} s"
        except ClientConnectorError as error:
            outcome, detail = Outcome.REFUSED, str(error)
        except ClientPayloadError as error:
            outcome, detail = Outcome.ABORTED, f"stream cut: {error}"
        except (ClientError, OSError) as error:
            cut = watch.tokens > 0
            outcome = Outcome.ABORTED if cut else Outcome.FAILED
            detail = f"{'stream cut' if cut else 'closed before an answer'}: {error}"
        except asyncio.CancelledError:
            outcome, detail = Outcome.CANCELLED, "the load generator stopped"
        return watch.record(ask, outcome, detail, self.mode)

    def _spelt(self, ask: Ask) -> bytes:
        head = b'{"model":"%b","max_tokens":%d,"ignore_eos":true,"stream":true,' % (
            self._model.encode(),
            ask.max_tokens,
        )
        return head + b'"stream_options":{"include_usage":true},"prompt":[%b]}' % ask.prompt


class Wait:
    """How long a client goes on waiting for the next token."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self.timer = asyncio.timeout(seconds)

    def begin_again(self) -> None:
        """Wait as long again, from now on."""
        if self._seconds is not None:
            self.timer.reschedule(asyncio.get_running_loop().time() + self._seconds)


async def _read(answer: ClientResponse, watch: Watch, waits: Wait) -> tuple[Outcome, str]:
    """Count the tokens of an answer as they come; return how it ended, and why if not well."""
    if answer.status != 200:
        return Outcome.FAILED, f"HTTP {answer.status}: {(await answer.read())[:200]!r}"
    rest, end = b"", None
    async for data in answer.content.iter_any():
        events, separator, rest = (rest + data).rpartition(b"\n\n")
        if separator:
            tokens = watch.tokens
            found = _see(events, watch)
            end = end or found
            if watch.tokens > tokens:
                waits.begin_again()
    return end or (Outcome.ABORTED, "stream cut: closed")


def _see(events: bytes, watch: Watch) -> tuple[Outcome, str] | None:
    """Count the tokens of complete events; return how the stream ended, if it did."""
    tokens = events.count(EVENT) - sum(events.count(mark) for mark in NOT_TOKENS)
    if tokens > 0:
        watch.see(tokens, time.monotonic())
    if usage := _USAGE.search(events):
        watch.reported = int(usage[1])
    if ERROR in events:
        return Outcome.ABORTED, "error event in the stream"
    if ABORT in events or (b"[DONE]" in events and not watch.tokens):
        return Outcome.ABORTED, f"finish reason abort after {watch.tokens} tokens"
    return (Outcome.OK, "") if b"[DONE]" in events else None
