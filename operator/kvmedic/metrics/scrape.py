"""What a replica says of itself by its own `/metrics`, read directly.

A replica may have several engines, behind one port or several. It is idle only where each engine that anybody
knows of says so now: what a page does not report is never taken for zero.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from ipaddress import ip_address
from math import fsum, isfinite
from typing import TypeAlias

import httpx
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kvmedic.engines.signal_sources import CounterSource, HistogramSource, SignalTable
from kvmedic.kube.cpu import in_thread
from kvmedic.metrics.page import (
    LIMIT_BYTES,
    Page,
    names_of,
    parse_page,
    replica_of,
    version_on,
    version_url_of,
)
from kvmedic.metrics.readings import join_pools, read_pool
from kvmedic.metrics.series import PodKey, Series, port_of_instance
from kvmedic.model.engine import Version
from kvmedic.model.evidence import Absence, Measured, Missing, Pool, Reading, Signal, Stale
from kvmedic.model.trial import Counted, Served
from kvmedic.settings import ScrapeOptions


def read_served(page: Page, table: SignalTable, url: str) -> Served | str:
    """Return what an engine serves and has done so far, or why its page does not say."""
    model = model_of(page, table)
    if model is None:
        return "the engine's metrics do not report its model"
    counted = read_finished_counts(page, table)
    if counted is None:
        return "the engine's metrics do not report its finished requests"
    found = pool_of_page(page, table)
    return Served(url, model, found.value.cache_dtype if isinstance(found, Measured) else "", counted)


def pool_of_page(page: Page, table: SignalTable) -> Reading[Pool]:
    """Return an engine's pool by its page."""
    replica = replica_of(page, table)
    return read_pool(replica, page.find(table.pool.name)) if replica else Missing(Absence.NO_SERIES)


def model_of(page: Page, table: SignalTable) -> str | None:
    """Return the name under which an engine serves; None where its page does not say."""
    return next(filter(None, (one.labels.get(table.model_label) for one in page.find(table.presence))), None)


def read_finished_counts(page: Page, table: SignalTable) -> Counted | None:
    """Return an engine's finished requests and their tokens; None where a number is none."""
    finished = table.signals[Signal.REQUESTS_FINISHED]
    lengths = (table.signals[signal] for signal in (Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH))
    if not isinstance(finished, CounterSource):
        return None
    part = finished.part
    answered = [
        one
        for one in _first_series(page, finished.names)
        if part is None or part.includes(one.labels.get(part.label, ""))
    ]
    requests = fsum(one.value for one in answered)
    sums = ([f"{name}_sum" for name in one.names] for one in lengths if isinstance(one, HistogramSource))
    tokens = fsum(one.value for names in sums for one in _first_series(page, names))
    return Counted(round(requests), tokens) if isfinite(requests) and isfinite(tokens) else None


def _first_series(page: Page, names: Iterable[str]) -> tuple[Series, ...]:
    """Return the series of the first name that the page has."""
    return next(filter(None, (page.find(name) for name in names)), ())


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine of a replica, as its series name it."""

    label: str
    """Distinguishes the engines behind one frontend; empty where there is one."""
    model: str
    port: int | None = None
    """Where its page is; None: not known, so that any page of the replica will do."""

    def is_on(self, others: Iterable[Engine]) -> bool:
        """Return whether one of some engines is this one; what is not known of this one may be anything."""
        return any(
            self.label in ("", one.label)
            and self.model in ("", one.model)
            and (one.port == self.port or None in (one.port, self.port))
            for one in others
        )


def engines_of(series: Iterable[Series], table: SignalTable) -> frozenset[Engine]:
    """Return the engines that a source's series name, with the ports that they were scraped at."""
    return frozenset(_engine(one, table, port_of_instance(one)) for one in series)


def engines_on(pages: Mapping[int | None, Page], table: SignalTable) -> frozenset[Engine]:
    """Return the engines that pages name, by the ports of the pages; none of a page of something else."""
    names = (*table.in_flight, *table.in_flight_optional)
    return frozenset(_engine(one, table, port) for port, page in pages.items() for one in page.find(*names))


def sum_in_flight(
    pages: Mapping[int | None, Page], known: Iterable[Engine], table: SignalTable, oldest: timedelta
) -> Reading[float]:
    """Return running plus waiting requests of all engines of a replica.

    Args:
        pages: of the replica, by port; of one port that nobody names the key is None.
        known: engines that the replica was seen with, whether they are on these pages or not.
        oldest: how far the time that a sample itself carries may be from that of its page.
    """
    engines = engines_on(pages, table)
    if not engines or not all(one.is_on(engines) for one in known):
        return Missing(Absence.NO_SERIES)
    series: list[Series] = []
    for engine in engines:
        page = pages[engine.port]
        for name in (*table.in_flight, *table.in_flight_optional):
            found = [one for one in page.find(name) if _engine(one, table, engine.port) == engine]
            if not found and name in table.in_flight:
                return Missing(Absence.NO_SERIES)
            series += found
    if old := _find_stale_time(pages.values(), (*table.in_flight, *table.in_flight_optional), oldest):
        return Stale(old)
    total = sum(one.value for one in series)
    if not math.isfinite(total) or any(one.value < 0 for one in series):
        return Missing(Absence.NOT_A_NUMBER)
    return Measured(total, max(page.at for page in pages.values()))


def sum_received(
    pages: Mapping[int | None, Page], known: Iterable[Engine], table: SignalTable, oldest: timedelta
) -> Reading[float]:
    """Return how many requests all engines of a replica were given since they were started.

    Those that ended and those in its hands. A request that is aborted may be missing (not every version
    counts it), so what was given is never less. The arguments are those of `sum_in_flight`.
    """
    held = sum_in_flight(pages, known, table, oldest)
    if not isinstance(held, Measured):
        return held
    if old := _find_stale_time(pages.values(), table.ended.names, oldest):
        return Stale(old)
    total = held.value + fsum(
        one.value for page in pages.values() for one in _first_series(page, table.ended.names)
    )
    return Measured(total, held.at) if isfinite(total) else Missing(Absence.NOT_A_NUMBER)


def _find_stale_time(pages: Iterable[Page], names: Sequence[str], oldest: timedelta) -> datetime | None:
    """Return the time of a sample that is not of now; None where there is none.

    Engines write no times. Something between that keeps their page for a while may.
    """
    for page in pages:
        for stamp in (page.stamps[name] for name in names if name in page.stamps):
            if not math.isfinite(stamp) or abs(page.at.timestamp() - stamp) > oldest.total_seconds():
                return datetime.fromtimestamp(stamp, UTC) if 0 <= stamp < page.at.timestamp() else page.at
    return None


def _engine(series: Series, table: SignalTable, port: int | None) -> Engine:
    return Engine(series.labels.get(table.engine_label, ""), series.labels.get(table.model_label, ""), port)


Otherwise: TypeAlias = Callable[[frozenset[Engine]], Awaitable[Reading[float]]]
"""Returns the requests on a replica whose pages cannot be read, of all engines that were seen on it."""

_CONNECTIONS = 64
"""Scrapes at the same time, at most; replicas are drained one by one per resource."""

_REMEMBERED = 1024
"""Replicas whose engines are remembered: drained ones are asked again and again, and are few at a time."""

_REACHED_SECONDS = 3.0
"""How long a connection may take: one packet lost, which TCP repeats after a second, and one more after two
(RFC 6298). An engine that is busy is connected to at once; only its answer takes time."""


@dataclass(frozen=True, slots=True)
class PodAddress:
    """Where a pod is."""

    pod: PodKey
    address: str
    """Its IP address; empty before it has one."""
    ports: tuple[int, ...] = ()
    """TCP ports that its containers declare."""
    port: int | None = None
    """The port to ask; None: the one that the configuration names."""


_PARSERS = 4
"""Threads in which pages are parsed. A full page of the most costly lines took 1.6 s; one of vLLM 15 ms."""
_IDENTITY = "identity"
"""The only encoding that is accepted: 269 bytes of gzip within gzip come to 3 GB before a limit sees them."""

Resolver: TypeAlias = Callable[[PodAddress], str | None]
"""Returns the URL of a pod's metrics, or None where it has none."""


def resolver_of(options: ScrapeOptions) -> Resolver:
    """Return how an installation finds a pod's metrics: the addresses file first, then the template."""

    def resolve(where: PodAddress) -> str | None:
        listed, address = _listed_address(options, where.pod), where.address
        if listed is not None or not address:
            return listed
        with suppress(ValueError):
            address = f"[{address}]" if ip_address(address).version == 6 else address
        return options.url_template.format(
            address=address,
            port=where.port or options.port,
            namespace=where.pod.namespace,
            name=where.pod.name,
        )

    return resolve


def _listed_address(options: ScrapeOptions, pod: PodKey) -> str | None:
    """Return what the addresses file says of a pod; a file that cannot be read now says nothing."""
    listed = None
    if options.addresses_file is not None:
        with suppress(OSError, UnicodeError, YAMLError):
            listed = YAML(typ="safe", pure=True).load(options.addresses_file.read_text(encoding="utf-8"))
    url = listed.get(f"{pod.namespace}/{pod.name}") if isinstance(listed, dict) else None
    return url if isinstance(url, str) else None


@cache
def load_authorities() -> ssl.SSLContext:
    """Return what replicas' certificates are checked by; one for all clients, as loading it takes 40 ms."""
    return httpx.create_ssl_context(trust_env=False)


class _NoSuchPageError(httpx.HTTPError):
    """The replica answers, and has no page of this name."""


class _BrokenError(httpx.HTTPError):
    """The replica answers that it cannot answer now."""


class _Other(Enum):
    """What is behind a port that has no page."""

    ELSE = "else"
    """Nobody, or something that is no engine."""
    SILENT = "silent"
    """Somebody who does not answer: it may be an engine that is busy."""


PIECES_AT_ONCE = 64
"""Pieces of an answer after which others have a turn: 0.6 ms of CPU (measured)."""
MOST_PIECES = 20_000
"""Pieces of an answer, at most: an engine sends a page in a few. They take 0.2 s of CPU (measured)."""


async def pieces_of(response: httpx.Response, most: int = MOST_PIECES) -> AsyncGenerator[bytes, None]:
    """Yield an answer's body as it comes: who sends each byte apart does not keep others from the loop.

    Raises:
        ValueError: an answer in more pieces than `most`.
    """
    count = 0
    async for piece in response.aiter_raw():
        count += 1
        if count > most:
            raise ValueError(f"the answer comes in more than {most} pieces")
        if count % PIECES_AT_ONCE == 0:
            await asyncio.sleep(0)
        yield piece


async def read_body(response: httpx.Response, limit_bytes: int) -> bytes:
    """Return an answer's body, read to its end.

    Raises:
        ValueError: a body that is too large, or comes in too many pieces.
    """
    body = bytearray()
    async with aclosing(pieces_of(response)) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > limit_bytes:
                raise ValueError("the answer is too large")
    return bytes(body)


class Scraper:
    """Reads replicas' own pages, one at a time each, bounded in time and size."""

    def __init__(self, options: ScrapeOptions, table: SignalTable, resolve: Resolver | None = None) -> None:
        self._table, self._resolve = table, resolve or resolver_of(options)
        self._seconds, self._port = options.timeout.total_seconds(), options.port
        self._seen: dict[PodAddress, frozenset[Engine]] = {}
        self._limit_bytes = options.response_limit_mib << 20
        self._names = names_of(table)
        self._parsers = ThreadPoolExecutor(_PARSERS, thread_name_prefix="pages")
        # At INFO it writes a line per scrape.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._http = httpx.AsyncClient(
            verify=load_authorities(),
            timeout=self._seconds,
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """End all that is under way."""
        self._parsers.shutdown(wait=False, cancel_futures=True)
        await self._http.aclose()

    async def page(self, where: PodAddress) -> Page | Missing:
        """Return a replica's page as it is now."""
        url = self._resolve(where)
        if url is None:
            return Missing(Absence.SOURCE_UNAVAILABLE)
        try:
            return await self._page(url, httpx.Timeout(self._seconds))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError):
            return Missing(Absence.SOURCE_UNAVAILABLE)

    async def count_in_flight(
        self, where: PodAddress, known: Iterable[Engine] = (), otherwise: Otherwise | None = None
    ) -> Reading[float]:
        """Return the requests that a replica has in its hands, running and waiting, of all its engines.

        Args:
            where: the replica is.
            known: engines that the source has seen on it.
            otherwise: returns it where no page of the replica can be read at all; None: nobody does.
        """
        pages, seen, silent = await self._all_pages(where, known)
        if not pages:
            reported = await otherwise(self._seen.get(where, frozenset())) if otherwise else None
            return reported if isinstance(reported, Measured) else Missing(Absence.SOURCE_UNAVAILABLE)
        found = sum_in_flight(pages, (*known, *seen), self._table, timedelta(seconds=self._seconds))
        if silent and isinstance(found, Measured) and found.value == 0:
            return Missing(Absence.SOURCE_UNAVAILABLE)
        return found

    async def count_received(self, where: PodAddress, known: Iterable[Engine] = ()) -> Reading[float]:
        """Return how many requests a replica was given since its engines were started; all must answer."""
        pages, seen, silent = await self._all_pages(where, known)
        if not pages or silent:
            return Missing(Absence.SOURCE_UNAVAILABLE)
        return sum_received(pages, (*known, *seen), self._table, timedelta(seconds=self._seconds))

    async def _all_pages(
        self, where: PodAddress, known: Iterable[Engine]
    ) -> tuple[Mapping[int | None, Page], frozenset[Engine], bool]:
        """Return a replica's pages by port, the engines seen on it, and whether a port keeps silent.

        Every port is asked that a container declares or that a known engine was scraped at. An engine that
        this process has once seen on the replica is known from then on.
        """
        ports = sorted({where.port or self._port, *where.ports, *(one.port for one in known if one.port)})
        urls = {port: self._resolve(replace(where, port=port)) for port in ports}
        by_url = {url: port for port, url in urls.items() if url is not None}
        asked: dict[int | None, str] = {port: url for url, port in by_url.items()}
        if len(by_url) == 1 < len(ports):
            # One URL serves for all ports.
            asked = dict.fromkeys([None], next(iter(by_url)))
        answers = await asyncio.gather(*(self._answer(url) for url in asked.values()))
        pages = {port: one for port, one in zip(asked, answers, strict=True) if isinstance(one, Page)}
        silent = any(one is _Other.SILENT for one in answers)
        if not pages:
            return pages, frozenset(), silent
        seen = engines_on(pages, self._table) | self._seen.pop(where, frozenset())
        self._seen[where] = seen
        while len(self._seen) > _REMEMBERED:
            # Those asked about longest ago are forgotten.
            del self._seen[next(iter(self._seen))]
        return pages, seen, silent

    async def _answer(self, url: str) -> Page | _Other:
        """Return the page behind one port of a replica, or what is there instead."""
        patience = httpx.Timeout(self._seconds, connect=_REACHED_SECONDS)
        try:
            return await self._page(url, patience)
        except httpx.ConnectTimeout:
            return _Other.ELSE
        except (TimeoutError, httpx.TimeoutException, _BrokenError):
            return _Other.SILENT
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return _Other.ELSE

    async def _page(self, url: str, patience: httpx.Timeout) -> Page:
        """Return the page at a URL, within the time-out as a whole; raises like `_text`."""
        async with asyncio.timeout(self._seconds):
            text = await self._read_page(url, "text/plain", self._limit_bytes, patience)
            return await in_thread(parse_page, text, datetime.now(UTC), self._names, pool=self._parsers)

    async def pool(self, where: PodAddress, ports: Sequence[int] = ()) -> Reading[Pool]:
        """Return the KV-cache pool of all engines of a replica together.

        Args:
            where: the replica.
            ports: where each engine has a page of its own; empty: there is one page.
        """
        pages = await asyncio.gather(
            *(self.page(replace(where, port=port)) for port in ports or (where.port,))
        )
        return join_pools(
            page if isinstance(page, Missing) else pool_of_page(page, self._table) for page in pages
        )

    async def version(self, where: PodAddress) -> Reading[Version]:
        """Return the version of a replica's engine, by its own word."""
        metrics, page = self._resolve(where), self._table.version
        url = version_url_of(metrics, page) if metrics else None
        if url is None:
            return Missing(Absence.SOURCE_UNAVAILABLE)
        try:
            patience = httpx.Timeout(self._seconds, connect=_REACHED_SECONDS)
            async with asyncio.timeout(self._seconds):
                text = await self._read_page(url, "application/json", LIMIT_BYTES, patience)
        except _NoSuchPageError:
            return Missing(Absence.NOTHING_FOUND)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
            return Missing(Absence.SOURCE_UNAVAILABLE)
        except ValueError:
            return Missing(Absence.UNREADABLE)
        return version_on(text, page, datetime.now(UTC))

    async def _read_page(self, url: str, accept: str, limit_bytes: int, patience: httpx.Timeout) -> str:
        """Return a page's text; who calls it bounds the time.

        Raises:
            httpx.HTTPError: no answer, another status than 200, or an encoding that was not asked for.
            ValueError: a page that is too large or no text.
        """
        headers = {"Accept": accept, "Accept-Encoding": _IDENTITY}
        async with self._http.stream("GET", url, headers=headers, timeout=patience) as response:
            if response.status_code == httpx.codes.NOT_FOUND:
                raise _NoSuchPageError("no such page")
            if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
                raise _BrokenError(f"status {response.status_code}")
            if response.status_code != httpx.codes.OK:
                raise httpx.HTTPError(f"status {response.status_code}")
            if response.headers.get("Content-Encoding", _IDENTITY).strip().lower() not in {"", _IDENTITY}:
                raise httpx.HTTPError("encoded, although that was not accepted")
            return (await read_body(response, limit_bytes)).decode("utf-8")
