"""`kvmedic get`: every fleet in one line, with what is under way and for how long."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvmedic.api.crd import yaml_text
from kvmedic.cli.access import finish_look, load_body, name_in, open_client
from kvmedic.cli.app import NOT_FOUND
from kvmedic.cli.live.rows import (
    SCHEMA,
    FleetRow,
    Served,
    change_line,
    changed_replicas,
    row_from,
    short_time,
    whole_seconds,
)
from kvmedic.kube.kubeconfig import ClusterChoice
from kvmedic.record.store import RESOURCES

if TYPE_CHECKING:
    from kvmedic.cli.options import TableForm
    from kvmedic.kube.client import Client

UNBOUNDED = 100_000
"""Columns of what is no terminal: nothing is cut where a program reads."""
COLOURS = {
    "Watching": "green",
    "RollingOut": "cyan",
    "Verifying": "cyan",
    "RollingBack": "yellow",
    "Holding": "yellow",
    "AwaitingApproval": "yellow",
    "ActionRequired": "red",
    "Stalled": "red",
    "NotReady": "red",
}
"""Of a state, on a terminal. The word says the same without it."""


def command(
    name: str, namespace: str, everywhere: bool, output: TableForm, context: str, kubeconfig: str
) -> None:
    """List fleets with their states."""
    cluster = ClusterChoice(kubeconfig, context)
    place = "" if everywhere else name_in(cluster, namespace, "").namespace

    async def look() -> tuple[FleetRow, ...]:
        async with open_client(cluster) as client:
            if name:
                body = await load_body(client, name_in(cluster, namespace, name))
                return (row_from(body, client.clock.now()),)
            return await list_rows(client, place)

    rows = finish_look(look())
    if output in ("json", "yaml"):
        print_data({"schema": SCHEMA, "items": [each.describe_row() for each in rows]}, output)
        return
    if not rows:
        where = f"namespace {place}" if place else "any namespace"
        print(f"no KVRemediation in {where}; kvmedic init writes one", file=sys.stderr)
        raise typer.Exit(NOT_FOUND if name else 0)
    console = terminal_console()
    console.print(fleet_table(rows, console.width, everywhere=everywhere, wide=output == "wide"))


async def list_rows(client: Client, namespace: str) -> tuple[FleetRow, ...]:
    """Return the fleets of a namespace, or of all where it is empty; the urgent ones first."""
    bodies = await client.list(RESOURCES, namespace)
    return sort_rows(row_from(each, client.clock.now()) for each in bodies)


def sort_rows(rows: Iterable[FleetRow]) -> tuple[FleetRow, ...]:
    """Return rows as they are shown: by namespace and name."""
    return tuple(sorted(rows, key=lambda each: (each.resource.namespace, each.resource.name)))


def print_data(data: dict[str, Any], form: str) -> None:
    """Print what a program reads."""
    if form == "yaml":
        sys.stdout.write(yaml_text(data))
    else:
        print(json.dumps(data, indent=2))


def terminal_console() -> Console:
    """Return where tables are printed: as wide as a terminal, and uncut where there is none."""
    console = Console(highlight=False, markup=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=UNBOUNDED)


COLUMNS = ("NAME", "TARGET", "STATE", "REASON", "IN TIME", "RUN", "CHANGED", "AGE")
WIDE = ("MODE", "CHANGE", "MESSAGE")
FIRST_LEFT_OUT = ("RUN", "TARGET", "IN TIME", "AGE")
"""Columns that a narrow terminal does without, in this order: the others say whom it is about and why."""
GAP = 2
"""Blanks between two columns."""


def fleet_table(rows: Sequence[FleetRow], width: int, *, everywhere: bool, wide: bool = False) -> Table:
    """Return the table of fleets, with as many columns as a width has room for; then cells are cut."""
    names = ("NAMESPACE",) * everywhere + COLUMNS + WIDE * wide
    cells = {name: [_cell(row, name) for row in rows] for name in names}
    for each in FIRST_LEFT_OUT:
        if sum(_width_of(name, column) + GAP for name, column in cells.items()) > width:
            del cells[each]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name in cells:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    return table


def _width_of(name: str, column: Sequence[Text]) -> int:
    return max(len(name), *(each.cell_len for each in column))


def _cell(row: FleetRow, column: str) -> Text:
    run, policy = row.open_run, row.resource.policy
    texts = {
        "NAMESPACE": row.resource.namespace,
        "NAME": row.resource.name,
        "TARGET": row.spec_target.rpartition("/")[2],
        "STATE": row.state,
        "REASON": row.reason or "-",
        "IN TIME": served_text(row),
        "RUN": run.id if run else "-",
        "CHANGED": changed_text(row),
        "AGE": short_time(row.age_seconds),
        "MODE": str(policy.mode) if policy else "-",
        "CHANGE": change_line(run.current) if run else "-",
        "MESSAGE": " ".join((row.message or "-").split()),
    }
    return Text(texts[column], style=COLOURS.get(row.state, "") if column == "STATE" else "")


def served_text(row: FleetRow) -> str:
    """Return the share that is served in time; `before` where the change was not measured yet."""
    served = row.served
    if not isinstance(served, Served):
        return "-"
    share = f"{served.share:.0%}"
    return share if served.of == "after" else f"{share} {served.of}"


def changed_text(row: FleetRow) -> str:
    """Return how many replicas have the change of the open run, and since when it is open."""
    run = row.open_run
    if run is None:
        return "-"
    since = short_time(whole_seconds(run.started_at, row.now))
    step = f"step {run.index + 1}/{len(run.steps)}, " if len(run.steps) > 1 else ""
    return f"{step}{changed_replicas(run)} of {run.replicas}, {since}"
