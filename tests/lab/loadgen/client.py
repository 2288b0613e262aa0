"""One connection that streams completions and watches the clock.

Server-sent events are counted, not decoded: an event is a token unless it carries no choice (usage) or is
the end mark. Where the server says how many tokens it generated (`usage`), that number stands.
"""

import asyncio
import re
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from lab.loadgen.record import ConnectionMode, Outcome, Record

EVENT = b"data: {"
NOT_TOKENS = (b'"choices":[]', b'"role":"assistant"', b'data: {"error"')
"""Marks of events that carry no token: token counts, the opening of a chat, an error."""

_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: the base URL of a server, without a path."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Return the target of a URL such as `http://chat-llm.serving:8000`.

        Raises:
            ValueError: not plain HTTP.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// URL")
        return cls(parts.hostname, parts.port or 80)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to be sent; `prompt` is its token ids, separated by commas."""

    target: Target
    number: int
    prompt_tokens: int
    max_tokens: int
    prompt: bytes


@dataclass(frozen=True, slots=True)
class End:
    """How an exchange ended, and why if not well."""

    outcome: Outcome
    detail: str = ""


@dataclass(slots=True)
class Watch:
    """What has been seen of the answer so far; monotonic seconds."""

    started: float
    started_at: float
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

    def record(self, ask: Ask, end: End, mode: ConnectionMode) -> Record:
        shift = self.started_at - self.started
        return Record(
            number=ask.number,
            outcome=end.outcome,
            connection=mode,
            started_at=round(self.started_at, 4),
            ended_at=round(time.monotonic() + shift, 4),
            first_token_at=None if self.first is None else round(self.first + shift, 4),
            prompt_tokens=ask.prompt_tokens,
            tokens=self.tokens if self.reported is None else self.reported,
            gaps_ms=tuple(self.gaps_ms),
            detail=end.detail,
        )


class StreamProtocol(asyncio.Protocol):
    """The bytes of one connection, turned into sightings of tokens."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._watch: Watch | None = None
        self._done: asyncio.Future[End] | None = None
        self._rest = b""
        self._status = 0
        self._end: End | None = None

    @property
    def is_usable(self) -> bool:
        """Whether the connection can take a request."""
        return self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request under way: cut if the answer had begun, failed if not."""
        self.transport = None
        if self._end is None and self._status == 200:
            self._end = End(Outcome.ABORTED, f"stream cut: {exc or 'closed'}")
        elif self._end is None:
            self._end = End(Outcome.FAILED, f"closed before an answer: {exc or 'closed'}")
        self._finish()

    def send(self, request: bytes, watch: Watch) -> "asyncio.Future[End]":
        assert self.transport is not None
        self._watch, self._rest, self._status, self._end = watch, b"", 0, None
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        """Count the tokens of one segment."""
        self._rest += data
        if self._status == 0 and not self._read_head():
            return
        if self._status != 200:
            self._end = End(Outcome.FAILED, f"HTTP {self._status}: {self._rest[:200]!r}")
            self.close()
            return
        events, separator, rest = self._rest.rpartition(b"\n\n")
        self._rest = rest
        if separator:
            self._see(events)
        if self._end is not None and self._rest.endswith(b"0\r\n\r\n"):
            self._finish()

    def close(self) -> None:
        """Close the connection; a request under way ends."""
        if self.transport is not None:
            self.transport.abort()

    def _read_head(self) -> bool:
        """Take the status once the head is complete."""
        head, separator, rest = self._rest.partition(b"\r\n\r\n")
        if not separator:
            return False
        status = _STATUS.match(head)
        self._status = int(status[1]) if status else 599
        self._rest = rest
        return True

    def _see(self, events: bytes) -> None:
        """Count the tokens of complete events and notice the end."""
        watch = self._watch
        if watch is None:
            return
        tokens = events.count(EVENT)
        for mark in NOT_TOKENS:
            if mark in events:
                tokens -= events.count(mark)
        if tokens > 0:
            watch.see(tokens, time.monotonic())
        usage = _USAGE.search(events) if b'"usage":{' in events else None
        if usage is not None:
            watch.reported = int(usage[1])
        if b"[DONE]" in events or b'data: {"error"' in events or b'"finish_reason":"abort"' in events:
            self._end = self._end or end_of(events, watch)

    def _finish(self) -> None:
        self._watch = None
        done, self._done = self._done, None
        if done is not None and not done.done() and self._end is not None:
            done.set_result(self._end)


def end_of(events: bytes, watch: Watch) -> End:
    """Return how a stream ended whose last events are these."""
    if b'data: {"error"' in events:
        return End(Outcome.ABORTED, "error event in the stream")
    if b'"finish_reason":"abort"' in events or watch.tokens == 0:
        return End(Outcome.ABORTED, f"finish reason abort after {watch.tokens} tokens")
    return End(Outcome.OK)


class Client:
    """Sends one request after the other, on fresh connections or on one that it keeps."""

    def __init__(self, model: str, mode: ConnectionMode, timeout_seconds: float) -> None:
        self.mode = mode
        self._model = model
        self._timeout_seconds = timeout_seconds
        self._kept: dict[Target, StreamProtocol] = {}

    async def ask(self, ask: Ask) -> Record:
        """Send one request and return what became of it; never raises for what the server does."""
        watch = Watch(time.monotonic(), time.time())
        try:
            end = await asyncio.wait_for(self._exchange(ask, watch), self._timeout_seconds)
        except TimeoutError:
            end = End(Outcome.FAILED, f"no end after {self._timeout_seconds:g} s")
        except OSError as error:
            end = End(Outcome.REFUSED, str(error))
        except asyncio.CancelledError:
            end = End(Outcome.CANCELLED, "the load generator stopped")
        return watch.record(ask, end, self.mode)

    def close(self) -> None:
        """Close the kept connections."""
        for protocol in self._kept.values():
            protocol.close()
        self._kept.clear()

    async def _exchange(self, ask: Ask, watch: Watch) -> End:
        protocol = await self._connection(ask.target)
        try:
            end = await protocol.send(self._spelt(ask), watch)
        except asyncio.CancelledError:
            protocol.close()
            raise
        if self.mode is ConnectionMode.FRESH:
            protocol.close()
        return end

    async def _connection(self, target: Target) -> StreamProtocol:
        kept = self._kept.get(target)
        if kept is not None and kept.is_usable:
            return kept
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(StreamProtocol, target.host, target.port)
        if self.mode is ConnectionMode.KEEP_ALIVE:
            self._kept[target] = protocol
        return protocol

    def _spelt(self, ask: Ask) -> bytes:
        body = b'{"model":"%b","max_tokens":%d,"ignore_eos":true,"stream":true,' % (
            self._model.encode(),
            ask.max_tokens,
        )
        body += b'"stream_options":{"include_usage":true},"prompt":[%b]}' % ask.prompt
        connection = "close" if self.mode is ConnectionMode.FRESH else "keep-alive"
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {ask.target.host}:{ask.target.port}\r\n"
            f"connection: {connection}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body
