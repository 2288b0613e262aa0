"""Queries to one metrics source, bounded in time, number and size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from urllib3.exceptions import HTTPError

from kvmedic.metrics.deadline import ended_within
from kvmedic.metrics.options import SourceOptions
from kvmedic.metrics.promql import duration_text
from kvmedic.metrics.series import Answer, Reply, Series, Unanswered, by_pod, series_of
from kvmedic.metrics.session import PartialDataError, QueryError, SourceDownError, adapter, session_of

_CONNECT_SECONDS = 5.0
"""To reach the source at all; three SYNs of Linux fit in (0, 1 and 3 s)."""

_GRACE_SECONDS = 1.0
"""How much longer than the request's own time-out its thread is waited for."""

_FOREIGN = "did not answer as Prometheus does; check url"


class PrometheusClient:
    """Asks one source. `prometheus-api-client` is synchronous, so each query runs in one of a few threads
    of this source alone: a source that hangs takes no thread from any other, and is waited for no longer
    than its time-out.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._timeout = options.timeout.total_seconds()
        self._session = session_of(options)
        self._prometheus = PrometheusConnect(
            url=options.url,
            session=self._session,
            timeout=(min(_CONNECT_SECONDS, self._timeout), self._timeout),
            method="POST",
        )
        # The client mounts an adapter with retries; the last one mounted under a prefix counts.
        self._session.mount(options.url, adapter(options))
        self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix="metrics")
        self._turns = asyncio.Semaphore(options.concurrency)
        self._down: tuple[datetime, Unanswered] | None = None

    async def query(self, expression: str, at: datetime) -> Reply:
        """Return what the source answers to one query, evaluated at a moment.

        Once the source was found down for a moment, further queries for that moment are not sent.
        """
        async with self._turns:
            if self._down is not None and self._down[0] == at:
                return self._down[1]
            try:
                return await self._asked(expression, at)
            except SourceDownError as failure:
                self._down = (at, Unanswered(self._redacted(str(failure))))
                return self._down[1]
            except QueryError as failure:
                return Unanswered(self._redacted(str(failure)), partial=isinstance(failure, PartialDataError))

    def close(self) -> None:
        """Forget queries that wait; those under way end by their own time-outs."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._session.close()

    async def _asked(self, expression: str, at: datetime) -> Answer:
        future = self._threads.submit(self._ask, expression, at)
        try:
            async with asyncio.timeout(self._timeout + _GRACE_SECONDS):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            future.cancel()
            raise SourceDownError(f"did not answer within {self._timeout:g} s") from None

    def _ask(self, expression: str, at: datetime) -> Answer:
        """Ask in this thread, a second time where an idle connection had been closed at the other end."""
        with ended_within(self._timeout):
            try:
                return self._once(expression, at)
            except _DroppedError:
                return self._once(expression, at)

    def _once(self, expression: str, at: datetime) -> Answer:
        """Ask once.

        Raises:
            QueryError: without the cause chained to it, which may name secrets.
        """
        try:
            result = self._prometheus.custom_query(expression, params=self._params(at))
            return by_pod(_vector(result), self._options.labels.namespace, self._options.labels.pod)
        except requests.exceptions.InvalidJSONError:
            raise SourceDownError(_FOREIGN) from None
        except requests.exceptions.Timeout:
            raise SourceDownError(f"did not answer within {self._timeout:g} s") from None
        except requests.exceptions.SSLError:
            raise SourceDownError(
                "its certificate or ours was refused; check caFile, certFile and keyFile"
            ) from None
        except requests.exceptions.ConnectionError as error:
            raise (_DroppedError if _was_dropped(error) else SourceDownError)(
                "cannot be reached; check url"
            ) from None
        except (requests.exceptions.RequestException, HTTPError) as error:
            raise SourceDownError(f"cannot be asked ({type(error).__name__})") from None
        except (OSError, UnicodeError):
            raise SourceDownError("a file with credentials or certificates cannot be read any more") from None
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
            raise SourceDownError(_FOREIGN) from None

    def _params(self, at: datetime) -> Mapping[str, str]:
        extra = {name: value.get_secret_value() for name, value in self._options.params.items()}
        return {**extra, "time": f"{at.timestamp():.3f}", "timeout": duration_text(self._options.timeout)}

    def _redacted(self, text: str) -> str:
        for secret in self._options.secrets():
            text = text.replace(secret, "***")
        return text


class _DroppedError(SourceDownError):
    """The other end closed the connection before it answered."""


def _was_dropped(error: requests.exceptions.ConnectionError) -> bool:
    """Return whether a connection existed and was closed, rather than never made."""
    return any(type(cause).__name__ == "ProtocolError" for cause in error.args)


def _vector(result: object) -> Iterable[Series]:
    """Yield an instant vector's elements; those without a plain value (native histograms) are left out.

    Raises:
        TypeError: it is something else.
        ValueError: a value is no number.
    """
    if not isinstance(result, list):
        raise TypeError("no vector")
    for one in result:
        match one:
            case {"metric": dict(labels), "value": [int() | float(), str(value)]}:
                yield series_of(_texts(labels), float(value))
            case {"metric": dict(), "histogram": list()}:
                pass
            case _:
                raise TypeError("no element of a vector")


def _texts(labels: dict[Any, Any]) -> dict[str, str]:
    """Return labels, all of which must be texts.

    Raises:
        TypeError: one is none.
    """
    if not all(isinstance(value, str) for value in labels.values()):
        raise TypeError("a label is no text")
    return labels
