"""`kvmedic watch`: fleets as they change. A live table on a terminal; elsewhere a line for each change."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kvmedic.api.rules import parse_duration
from kvmedic.cli.access import NotThere, finish_look, load_body, name_in, open_client
from kvmedic.cli.app import USAGE, end_command
from kvmedic.cli.live.get import COLOURS, fleet_table, sort_rows
from kvmedic.cli.live.rows import FleetRow, change_line, row_from, short_time, whole_seconds
from kvmedic.kube.errors import ApiError, Expired, Refused
from kvmedic.kube.kubeconfig import ClusterChoice
from kvmedic.kube.objects import JsonObject, name_of, uid_of
from kvmedic.record.store import RESOURCES

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

REFRESH = 1.0
"""Seconds between two drawings: ages and lengths of time go on although nothing changes."""
AGAIN = 2.0
"""Seconds until a connection that broke is opened again."""
LASTS = timedelta(minutes=5)
"""After which the server ends a watch; kubectl asks for 5 to 10 minutes."""


@dataclass(slots=True)
class Followed:
    """The fleets as they were last reported."""

    name: str
    """Only this one; empty: all."""
    bodies: dict[str, JsonObject] = field(default_factory=dict)
    trouble: str = ""
    """Why nothing new is reported at the moment."""

    def take_all(self, bodies: list[JsonObject]) -> None:
        """Take over a list."""
        self.bodies = {uid_of(each): each for each in bodies if self._is_meant(each)}

    def take_event(self, event: JsonObject) -> None:
        """Take over an event of a watch."""
        body = event["object"]
        if event["type"] == "DELETED":
            self.bodies.pop(uid_of(body), None)
        elif event["type"] in ("ADDED", "MODIFIED") and self._is_meant(body):
            self.bodies[uid_of(body)] = body

    def rows(self, now: datetime) -> tuple[FleetRow, ...]:
        """Return the rows at a moment."""
        return sort_rows(row_from(each, now) for each in self.bodies.values())

    def _is_meant(self, body: JsonObject) -> bool:
        return not self.name or name_of(body) == self.name


def command(name: str, namespace: str, everywhere: bool, lasts: str, context: str, kubeconfig: str) -> None:
    """Follow fleets until Ctrl-C, or for as long as was asked."""
    cluster = ClusterChoice(kubeconfig, context)
    place = "" if everywhere else name_in(cluster, namespace, "").namespace
    seconds = _seconds_of(lasts)

    async def look() -> None:
        async with open_client(cluster) as client:
            if name and place:
                await load_body(client, name_in(cluster, namespace, name))
            with suppress(TimeoutError), _open_view(client, everywhere=everywhere) as show:
                async with asyncio.timeout(seconds):
                    await follow(client, place, Followed(name), show)

    with suppress(KeyboardInterrupt):
        finish_look(look())


def _seconds_of(lasts: str) -> float | None:
    try:
        return parse_duration(lasts).total_seconds() if lasts else None
    except ValueError as error:
        end_command(f"--for: {error}", USAGE)


async def follow(client: Client, place: str, seen: Followed, show: Callable[[Followed], None]) -> None:
    """Show fleets whenever one changes, and each second while nothing does; never returns.

    Raises:
        Refused: they may not be listed.
        NotThere: the server does not know the kind.
    """
    waiting: asyncio.Task[None] = asyncio.create_task(_keep_up(client, place, seen))
    try:
        while True:
            done, _ = await asyncio.wait({waiting}, timeout=REFRESH)
            if done:
                waiting.result()
            show(seen)
    finally:
        waiting.cancel()
        with suppress(asyncio.CancelledError, ApiError, NotThere):
            await waiting


async def _keep_up(client: Client, place: str, seen: Followed) -> None:
    """Keep what was seen up to date; what breaks is begun again, and said to be."""
    while True:
        try:
            pages = [page async for page in client.pages(RESOURCES, place)]
            seen.take_all([body for bodies, _ in pages for body in bodies])
            _, version = pages[-1]
            seen.trouble = ""
            async with client.watch(RESOURCES, place, version, LASTS) as events:
                await _take_events(events, seen)
        except Expired:
            continue
        except Refused:
            raise
        except ApiError as error:
            seen.trouble = str(error)
            await asyncio.sleep(AGAIN)


async def _take_events(events: AsyncIterator[JsonObject], seen: Followed) -> None:
    async for event in events:
        seen.take_event(event)


@contextmanager
def _open_view(client: Client, *, everywhere: bool) -> Iterator[Callable[[Followed], None]]:
    """Return how fleets are shown: drawn on a terminal, written line by line elsewhere."""
    if not sys.stdout.isatty():
        yield Lines(client, sys.stdout).write_changes
        return
    # Our own stream lets through no characters that move the cursor, which is how a live table is drawn. All
    # texts in it come from `rows`, without them.
    with open(sys.stdout.fileno(), "w", encoding=sys.stdout.encoding, closefd=False) as stream:
        console = Console(file=stream, highlight=False, markup=False)
        with Live(console=console, auto_refresh=False) as live:

            def show(seen: Followed) -> None:
                view = draw(seen, client.clock.now(), console.width, everywhere=everywhere)
                live.update(view, refresh=True)

            yield show


def draw(seen: Followed, now: datetime, width: int, *, everywhere: bool) -> Group:
    """Return the live view: the table of fleets, and what each open run and each urgent fleet waits for."""
    rows = seen.rows(now)
    parts: list[object] = [fleet_table(rows, width, everywhere=everywhere)]
    if not rows:
        parts = [Text("no KVRemediation yet")]
    for row in rows:
        parts += _details(row)
    if seen.trouble:
        parts.append(Text(f"\nnothing new is reported: {seen.trouble}", style="red"))
    parts.append(Text(f"\n{now:%H:%M:%SZ}  Ctrl-C ends this; nothing is changed", style="dim"))
    return Group(*parts)  # type: ignore[arg-type]


def _details(row: FleetRow) -> Iterator[Text]:
    """Yield what is under way on a fleet, or what a person must do; nothing for a calm one."""
    run, style = row.open_run, COLOURS.get(row.state, "")
    if run is None and row.state in ("Watching", "Unseen"):
        return
    yield Text(f"\n{row.resource.namespace}/{row.resource.name}", style="bold")
    if run is not None:
        yield Text(f"  {change_line(run.current)}, run {run.id}")
    yield Text(f"  {row.state} for {row.reason}: {' '.join((row.message or '').split())}", style=style)


@dataclass(slots=True)
class Lines:
    """Writes each change in one line, for a log or a pipe."""

    client: Client
    stream: TextIO
    shown: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def write_changes(self, seen: Followed) -> None:
        """Write a line for each fleet whose state, reason or step is another than before."""
        now = self.client.clock.now()
        rows = seen.rows(now)
        for row in rows:
            run = row.open_run
            step = (change_line(run.current), str(run.current.state)) if run else ()
            facts = (row.state, row.reason or "-", run.id if run else "-", *step)
            key = f"{row.resource.namespace}/{row.resource.name}"
            if self.shown.get(key) == facts:
                continue
            self.shown[key] = facts
            since = f" {short_time(whole_seconds(run.started_at, now))}" if run else ""
            print(f"{now:%Y-%m-%dT%H:%M:%SZ} {key} {' '.join(facts)}{since}", file=self.stream, flush=True)
        for gone in self.shown.keys() - {f"{each.resource.namespace}/{each.resource.name}" for each in rows}:
            del self.shown[gone]
            print(f"{now:%Y-%m-%dT%H:%M:%SZ} {gone} Gone", file=self.stream, flush=True)
