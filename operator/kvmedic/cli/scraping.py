"""Pages of running engines, fetched twice, for `kvmedic diagnose --url`: no cluster, no Prometheus."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import httpx

from kvmedic.cli.saved import LARGEST_PAGE_BYTES, ScrapeError, pages_between
from kvmedic.metrics.page import Page
from kvmedic.model.redaction import redact

BETWEEN = timedelta(seconds=30)
"""Between both looks where nobody says: a window in which a loaded engine finishes requests, and a person
waits. The operator's own trigger looks over 5 minutes, so a longer `--interval` is surer."""
PATIENCE_SECONDS = 10.0
"""Until a page is there: Prometheus' own default (`scrape_timeout`)."""
_NAMED = re.compile(r"([\w.-]{1,253})=(https?://.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine."""

    name: str
    url: httpx.URL

    @property
    def shown(self) -> str:
        """Return its address as everybody may read it."""
        return redact(str(self.url))


def engines_named(arguments: Sequence[str]) -> tuple[Engine, ...]:
    """Return the engines that are meant.

    Raises:
        ScrapeError: an argument is no URL of a page, or one is named twice.
    """
    found = tuple(engine_named(each, "--url") for each in arguments)
    names = [each.name for each in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ScrapeError(f"--url: {twice[0]} is named twice; give each replica once, by its own name")
    return found


def look_twice(
    urls: Sequence[str], interval: timedelta | None
) -> tuple[Mapping[str, tuple[Page, ...]], timedelta]:
    """Return two pages of each engine that is named, and the time that really was between them.

    Raises:
        ScrapeError: an argument is no URL, or an engine gives no pages that can be compared.
    """
    return fetch_pages(engines_named(urls), interval or BETWEEN)


def engine_named(argument: str, option: str) -> Engine:
    """Return the engine that is meant by an option.

    Raises:
        ScrapeError: it is no URL of a page.
    """
    named = _NAMED.fullmatch(argument)
    name, text = (named[1], named[2]) if named else ("", argument)
    hint = "write http://HOST:PORT, or NAME=http://HOST:PORT with the replica's name"
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        raise ScrapeError(f"{option} {redact(argument)}: {hint}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ScrapeError(f"{option} {redact(argument)}: {hint}")
    place = url if url.path not in ("", "/") else url.copy_with(path="/metrics")
    return Engine(name or url.netloc.decode("ascii").rpartition("@")[2], place)


def fetch_pages(
    engines: Sequence[Engine], between: timedelta
) -> tuple[Mapping[str, tuple[Page, ...]], timedelta]:
    """Return two pages of each engine, and the time that really was between them.

    Raises:
        ScrapeError: an engine does not answer with a page, or its pages cannot be compared.
    """
    print(f"looking twice, {between.total_seconds():g} s apart", file=sys.stderr)
    with httpx.Client(timeout=PATIENCE_SECONDS, trust_env=False) as client:
        began = time.monotonic()
        first = {each.name: _fetch(client, each) for each in engines}
        time.sleep(max(0.0, began + between.total_seconds() - time.monotonic()))
        passed = time.monotonic() - began
        second = {each.name: _fetch(client, each) for each in engines}
    pages = {
        each.name: pages_between(
            [
                (f"the first page of {each.shown}", first[each.name]),
                (f"the second page of {each.shown}", second[each.name]),
            ]
        )
        for each in engines
    }
    return pages, timedelta(seconds=passed)


def _fetch(client: httpx.Client, engine: Engine) -> str:
    parts, size = [], 0
    try:
        with client.stream("GET", engine.url) as answer:
            if answer.status_code != httpx.codes.OK:
                raise ScrapeError(
                    f"{engine.shown} answers {answer.status_code}: give the URL of its /metrics page"
                )
            for part in answer.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > LARGEST_PAGE_BYTES:
                    raise ScrapeError(
                        f"{engine.shown} sends more than {LARGEST_PAGE_BYTES >> 20} MiB: no page"
                    )
    except httpx.HTTPError as error:
        why = type(error).__name__ if isinstance(error, httpx.TimeoutException) else str(error)
        raise ScrapeError(
            f"{engine.shown} cannot be reached: {redact(why)}; is the port forwarded, "
            "as by kubectl port-forward POD 8000?"
        ) from None
    return b"".join(parts).decode(errors="replace")
