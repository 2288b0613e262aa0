"""Queries to one metrics source, bounded in time, number and size.

`prometheus-api-client` drops status, warnings and size: a hook sees every response first. The time-outs of
`requests` begin anew with every byte: here each read gets what is left of the exchange's time. What the
source took for its answer, and what we took to read it, are kept apart: our own slowness is not the source's.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import logging
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ReadTimeoutError

from kvmedic.metrics.promql import duration_text
from kvmedic.metrics.series import Answer, Excess, Reply, Series, Unanswered, by_pod, vector_of, vectors_at
from kvmedic.model.redaction import redact
from kvmedic.settings import SourceOptions

_BUSY_SHARE = 0.8
"""Processor time of ours over an exchange's time, from which on we were late and not the source. One core is
all that Python's threads have together."""


@dataclass(slots=True)
class _Course:
    """How far an exchange came; by the monotonic clock (seconds)."""

    began: float = field(default_factory=time.monotonic)
    cpu: float = field(default_factory=time.process_time)
    answered: float | None = None
    """When all of the answer was there."""
    size: int = 0
    """Of the answer, in bytes."""

    def why_late(self, otherwise: str) -> str:
        """Return why an exchange took too long; `otherwise`: what to say where we had time for it."""
        now = time.monotonic()
        if self.answered is not None:
            return (
                f"answered {self.size / 2**20:.1f} MiB within {self.answered - self.began:.1f} s, which "
                f"kvmedic did not read in {now - self.answered:.1f} s more; raise kvmedic's CPU limit"
            )
        busy, lasted = time.process_time() - self.cpu, now - self.began
        if busy < _BUSY_SHARE * lasted:
            return otherwise
        return (
            f"was not heard within {lasted:.1f} s, for {busy:.1f} s of which kvmedic itself was busy; raise "
            "kvmedic's CPU limit"
        )

    def error_of(self, otherwise: str) -> QueryError:
        """Return what an exchange ends with that took too long."""
        why = self.why_late(otherwise)
        return (LateError if why == otherwise else SourceDownError)(why)


class _Exchange(threading.local):
    """The exchange of this thread: when it must have ended, by the monotonic clock, and how far it came."""

    ends = inf
    course = _Course()


_EXCHANGE = _Exchange()


@contextmanager
def limit_exchange(seconds: float) -> Iterator[None]:
    """Let what this thread exchanges meanwhile end in time, all of it together."""
    _EXCHANGE.ends = time.monotonic() + seconds
    try:
        yield
    finally:
        _EXCHANGE.ends = inf


class _TimedReader(io.RawIOBase):
    """Reads a socket until the thread's exchange must have ended."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock
        # A file of the socket keeps it open for as long as an answer is read.
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read once.

        Raises:
            TimeoutError: the time of the exchange is over.
        """
        left = _EXCHANGE.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the exchange takes too long")
        self._sock.settimeout(None if left == inf else left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Let go of the socket."""
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    """An answer that is read in time."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_TimedReader(sock))


class _Pool(HTTPConnectionPool):
    class ConnectionCls(HTTPConnection):
        response_class = _TimedResponse


class _SecurePool(HTTPSConnectionPool):
    class ConnectionCls(HTTPSConnection):
        response_class = _TimedResponse


class TimedAdapter(HTTPAdapter):
    """Connections whose exchanges end in time, directly and through a proxy."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Prepare connections."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Return the connections through a proxy."""
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager


_POOLS: Any = {"http": _Pool, "https": _SecurePool}


_INFO = "PromQL info"
"""Prometheus 2.48 to 2.54 put remarks on style among the warnings, with this prefix."""

_IDENTITY = "identity"
_PARTIAL = b'"isPartial":true'
"""How a cluster of VictoriaMetrics says it (its documentation, "cluster availability"); within a text the
quotes would have backslashes."""

_QUOTED = 200
"""Characters of a source's own message that are repeated."""


class QueryError(Exception):
    """A query has no complete answer. The text is for a person, and free of secrets."""


class ExcessError(QueryError):
    """The query asked for too much; the same about fewer replicas may fare better."""

    def __init__(self, text: str, excess: Excess) -> None:
        super().__init__(text)
        self.excess = excess


class SourceDownError(QueryError):
    """The source cannot be reached, is too slow or refuses us: no other query will fare better."""


class LateError(SourceDownError):
    """It did not answer in time: it is down, or the query was too much for it."""


class PartialDataError(QueryError):
    """The source says that its answer lacks data."""


class _Identity(AuthBase):
    """Puts credentials on each request; files are read anew, so that rotated ones count."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for name, secret in self._options.headers.items():
            request.headers[name] = secret.read()
        token, basic = self._options.bearer_token(), self._options.basic_auth
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        if basic is not None:
            pair = f"{basic.username}:{basic.password.read()}".encode()
            request.headers["Authorization"] = f"Basic {base64.b64encode(pair).decode('ascii')}"
        return request


class _BoundedBody:
    """A response's body that ends with an error when it is too large or comes too slowly."""

    def __init__(self, raw: Any, limit_bytes: int) -> None:
        self._raw, self._limit = raw, limit_bytes

    def stream(self, amount: int, decode_content: bool) -> Iterator[bytes]:  # noqa: FBT001 - urllib3's signature
        """Yield the body in pieces."""
        seen = 0
        try:
            for piece in self._raw.stream(amount, decode_content=decode_content):
                seen += len(piece)
                if seen > self._limit:
                    self._raw.close()
                    raise ExcessError(
                        f"answered with more than {self._limit >> 20} MiB; raise responseLimitMib, or keep "
                        "fewer series: drop labels and metrics that are not used when scraping",
                        Excess.SIZE,
                    )
                yield piece
        except ReadTimeoutError:
            raise _EXCHANGE.course.error_of("answers too slowly; raise timeout") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _Session(requests.Session):
    """Sends a query as a form, whose length nobody limits as that of a URL (8 KB by nginx)."""

    def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
        """Return a request as it is sent."""
        if isinstance(request.params, dict) and "query" in request.params:
            request.data = {"query": request.params["query"]}
            request.params = {name: text for name, text in request.params.items() if name != "query"}
        return super().prepare_request(request)


def session_of(options: SourceOptions) -> requests.Session:
    """Return a session with the source's credentials, certificates and checks.

    Nothing of the environment counts (proxies, .netrc), and redirects are refused: both could hand
    credentials to somebody else.
    """
    # At DEBUG it writes whole URLs, whose parameters may be secret.
    logging.getLogger("urllib3").setLevel(logging.INFO)
    session = _Session()
    session.trust_env = False
    # What is encoded may grow beyond every bound before its size is seen: gzip within gzip.
    session.headers["Accept-Encoding"] = _IDENTITY
    session.max_redirects = 0
    session.auth = _Identity(options)
    session.verify = str(options.ca_file) if options.ca_file else True
    if options.cert_file:
        cert, key = str(options.cert_file), options.key_file
        session.cert = (cert, str(key)) if key else cert
    if options.proxy:
        session.proxies = {"all": options.proxy.get_secret_value()}
    session.hooks["response"] = [_response_check(options)]
    return session


def _response_check(options: SourceOptions) -> Any:
    """Return the hook that reads a response within bounds and refuses what is no complete answer."""
    limit = options.response_limit_mib << 20

    def check(response: requests.Response, **_: object) -> requests.Response:
        if response.is_redirect:
            response.close()
            raise SourceDownError("answered with a redirect; write the URL that it leads to")
        if response.headers.get("Content-Encoding", _IDENTITY).strip().lower() not in {"", _IDENTITY}:
            response.close()
            raise SourceDownError(
                "answered with an encoding, which was not accepted; let no proxy compress its answers"
            )
        response.raw = _BoundedBody(response.raw, limit)
        body = response.content
        if response.status_code != requests.codes.ok:
            raise _query_error(response.status_code, body)
        # Cheap test first: a large answer is parsed once only, by the client.
        if b'"warnings"' in body:
            _refuse_warnings(body)
        if _PARTIAL in body:
            raise PartialDataError("answered with partial data: isPartial")
        return response

    return check


_EXCESSIVE = {"execution": Excess.SIZE, "timeout": Excess.TIME}
"""Prometheus' word (`errorType`) for what it refused because of what the query selects: too many samples, or
too much time."""


def _query_error(status: int, body: bytes) -> QueryError:
    """Return why the source refused: 400 and 422 concern the one query, everything else all of them.

    All but the source's own word that a query takes too long.
    """
    try:
        error = json.loads(body)
        message, kind = redact(str(error["error"]))[:_QUOTED], str(error.get("errorType"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message, kind = "", ""
    text = f"answered {status}" + (f": {message}" if message else "")
    if kind in _EXCESSIVE:
        return ExcessError(text, _EXCESSIVE[kind])
    if status in {requests.codes.bad_request, requests.codes.unprocessable}:
        return QueryError(text)
    if status in {requests.codes.unauthorized, requests.codes.forbidden}:
        return SourceDownError(f"{text}; check bearerTokenFile, basicAuth and headers")
    return SourceDownError(text)


def _refuse_warnings(body: bytes) -> None:
    """Refuse an answer with warnings: Thanos and others say so that data is missing."""
    try:
        warnings = json.loads(body).get("warnings") or []
    except (ValueError, AttributeError, RecursionError):
        return
    for one in warnings if isinstance(warnings, list) else [warnings]:
        if not str(one).startswith(_INFO):
            raise PartialDataError(f"answered with partial data: {str(one)[:_QUOTED]}")


_CONNECT_SECONDS = 5.0
"""To reach the source at all; three SYNs of Linux fit in (0, 1 and 3 s)."""

_GRACE_SECONDS = 1.0
"""How much longer than the request's own time-out its thread is waited for."""

_READING_SECONDS = 5.0
"""How long reading an answer may take, once it is there. The largest that is let in by default (12 MiB) took
0.5 s of one core."""

_PULSE = "vector(1)"
"""A query that costs nothing."""
_PULSE_SECONDS = 2.0
"""How long a source may take for it. A choice: Prometheus answers within milliseconds."""

_FOREIGN = "did not answer as Prometheus does; check url"


@dataclass(slots=True)
class Spent:
    """What a source was asked."""

    queries: int = 0
    received_bytes: int = 0
    """Of answers, without headers; they are not compressed."""
    source_seconds: float = 0.0
    """From the question to the whole answer: what the source and the network took."""
    own_seconds: float = 0.0
    """From the whole answer to what it says: what we took."""


class PrometheusClient:
    """Asks one source. `prometheus-api-client` is synchronous, so each query runs in one of a few threads
    of this source alone: a source that hangs takes no thread from any other, and is waited for no longer
    than its time-out.
    """

    is_narrowed = False

    def __init__(self, options: SourceOptions) -> None:
        self.spent = Spent()
        """So far."""
        self._counting = threading.Lock()
        self._options = options
        self._timeout = options.timeout.total_seconds()
        self._session = session_of(options)
        self._session.hooks["response"].append(self._count)
        self._prometheus = PrometheusConnect(
            url=options.url,
            session=self._session,
            timeout=(min(_CONNECT_SECONDS, self._timeout), self._timeout),
            method="POST",
        )
        # The client mounts an adapter with retries; the last one mounted under a prefix counts.
        self._session.mount(options.url, TimedAdapter(pool_maxsize=options.concurrency, max_retries=0))
        self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix="metrics")
        self._turns = asyncio.Semaphore(options.concurrency)
        self._down: tuple[datetime, Unanswered] | None = None

    async def query(self, expression: str, at: datetime) -> Reply:
        """Return what the source answers to one query, evaluated at a moment.

        Once the source was found down for a moment, further queries for that moment are not sent. A source
        that answers another query is not down: then the one was too much for it.
        """
        answers = await self._answer(expression, (at,))
        return answers if isinstance(answers, Unanswered) else answers[0]

    async def query_range(self, expression: str, moments: Sequence[datetime]) -> Sequence[Reply]:
        """Return what the source answers at each of several moments, equally far apart, by one query.

        Some front ends move a range onto a grid of their own (Thanos' query frontend): each moment is asked
        for by itself then.
        """
        answers = await self._answer(expression, moments)
        if isinstance(answers, Unanswered):
            return [answers] * len(moments)
        return answers or await asyncio.gather(*(self.query(expression, at) for at in moments))

    async def _answer(self, expression: str, moments: Sequence[datetime]) -> Sequence[Answer] | Unanswered:
        at = moments[-1]
        async with self._turns:
            if self._down is not None and self._down[0] == at:
                return self._down[1]
            try:
                answers = await self._ask_in_time(expression, moments, self._timeout)
            except ExcessError as failure:
                return Unanswered(self._redact_secrets(str(failure)), excess=failure.excess)
            except SourceDownError as failure:
                if isinstance(failure, LateError) and await self._has_pulse(at):
                    return Unanswered(self._redact_secrets(str(failure)), excess=Excess.TIME)
                self._down = (at, Unanswered(self._redact_secrets(str(failure))))
                return self._down[1]
            except QueryError as failure:
                return Unanswered(
                    self._redact_secrets(str(failure)), partial=isinstance(failure, PartialDataError)
                )
            if self._down is not None and self._down[0] < at:
                self._down = None  # It answers again: what an earlier moment lacks may be asked for.
            return answers

    def close(self) -> None:
        """Forget queries that wait; those under way end by their own time-outs."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._session.close()

    async def _has_pulse(self, at: datetime) -> bool:
        """Return whether the source answers a query that costs it nothing."""
        try:
            await self._ask_in_time(_PULSE, (at,), min(_PULSE_SECONDS, self._timeout))
        except QueryError:
            return False
        return True

    async def _ask_in_time(
        self, expression: str, moments: Sequence[datetime], seconds: float
    ) -> Sequence[Answer]:
        course = _Course()
        future = asyncio.wrap_future(self._threads.submit(self._ask, expression, moments, course, seconds))
        # Where the caller was cancelled, nobody else takes what it failed with, and asyncio would log it.
        future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        done, _ = await asyncio.wait({future}, timeout=seconds + _GRACE_SECONDS)
        if not done and course.answered is not None:
            done, _ = await asyncio.wait({future}, timeout=_READING_SECONDS)
        if done:
            return future.result()
        future.cancel()
        raise course.error_of(f"did not answer within {seconds:g} s")

    def _ask(
        self, expression: str, moments: Sequence[datetime], course: _Course, seconds: float
    ) -> Sequence[Answer]:
        """Ask in this thread, a second time where an idle connection had been closed at the other end."""
        _EXCHANGE.course = course
        with limit_exchange(seconds):
            try:
                return self._once(expression, moments)
            except _DroppedError:
                return self._once(expression, moments)
            finally:
                self._add_times(course)

    def _add_times(self, course: _Course) -> None:
        now = time.monotonic()
        answered = now if course.answered is None else course.answered
        with self._counting:
            self.spent.source_seconds += answered - course.began
            self.spent.own_seconds += now - answered

    def _once(self, expression: str, moments: Sequence[datetime]) -> Sequence[Answer]:
        """Ask once; no answers where the source answers about other moments than it was asked for.

        Raises:
            QueryError: without the cause chained to it, which may name secrets.
        """
        try:
            names = self._options.labels.namespace, self._options.labels.pod
            return tuple(by_pod(each, *names) for each in self._vectors(expression, moments))
        except requests.exceptions.InvalidJSONError:
            raise SourceDownError(_FOREIGN) from None
        except requests.exceptions.Timeout:
            raise _EXCHANGE.course.error_of(f"did not answer within {self._timeout:g} s") from None
        except requests.exceptions.SSLError:
            raise SourceDownError(
                "its certificate or ours was refused; check caFile, certFile and keyFile"
            ) from None
        except requests.exceptions.ConnectionError as error:
            # A connection existed and was closed, rather than never made.
            dropped = any(type(cause).__name__ == "ProtocolError" for cause in error.args)
            raise (_DroppedError if dropped else SourceDownError)("cannot be reached; check url") from None
        except (requests.exceptions.RequestException, HTTPError) as error:
            raise SourceDownError(f"cannot be asked ({type(error).__name__})") from None
        except (OSError, UnicodeError):
            raise SourceDownError("a file with credentials or certificates cannot be read any more") from None
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
            raise SourceDownError(_FOREIGN) from None

    def _count(self, response: requests.Response, **_: object) -> None:
        course = _EXCHANGE.course
        course.answered, course.size = time.monotonic(), len(response.content)
        with self._counting:
            self.spent.queries += 1
            self.spent.received_bytes += course.size

    def _vectors(self, expression: str, moments: Sequence[datetime]) -> Sequence[Iterable[Series]]:
        first, last = moments[0], moments[-1]
        if first == last:
            result = self._prometheus.custom_query(expression, params=self._params(time=first))
            return [vector_of(result)]
        # The client would round to whole seconds.
        result = self._prometheus.custom_query_range(
            expression,
            first,
            last,
            duration_text((last - first) / (len(moments) - 1)),
            params=self._params(start=first, end=last),
        )
        return vectors_at(result, moments)

    def _params(self, **times: datetime) -> Mapping[str, str]:
        extra = {name: value.get_secret_value() for name, value in self._options.params.items()}
        stamps = {name: f"{at.timestamp():.3f}" for name, at in times.items()}
        return {**extra, **stamps, "timeout": duration_text(self._options.timeout)}

    def _redact_secrets(self, text: str) -> str:
        for secret in self._options.secrets():
            text = text.replace(secret, "***")
        return text


class _DroppedError(SourceDownError):
    """The other end closed the connection before it answered."""
