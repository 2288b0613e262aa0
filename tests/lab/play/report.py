"""The one table of all scenarios, and what was missed."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

from lab.play.chronicle import line
from lab.play.result import Result
from lab.play.schema import Scenario

WIDTH = 160
COLUMNS = (
    "scenario",
    "branch found",
    "moves",
    "verdict",
    "failed requests",
    "fewest in rotation",
    "seconds",
    "",
)


def table(results: Sequence[Result]) -> str:
    """Return the table as plain text, a line for each miss under it."""
    shown = Table(box=box.MARKDOWN, pad_edge=True)
    for column in COLUMNS:
        justify: JustifyMethod = "right" if column in COLUMNS[4:7] else "left"
        shown.add_column(column, justify=justify, overflow="fold")
    for result in sorted(results, key=lambda each: each.scenario.name):
        shown.add_row(*_row(result))
    console = Console(width=WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return "\n".join([captured.get().strip(), *_misses(results), ""])


def row(result: Result) -> str:
    """Return one play in one line, for whoever waits."""
    name, branch, moves, verdict, failed, fewest, seconds, end = _row(result)
    return f"{name}: {end}: {branch}; {moves}; {verdict}; {failed} failed, {fewest} in rotation, {seconds} s"


def listed(scenarios: Iterable[Scenario]) -> str:
    lines = []
    for each in scenarios:
        ends = ", ".join(_choice(verdict) for verdict in each.expect.verdicts)
        twin = f"  (twin: {each.twin})" if each.twin else ""
        lines.append(f"{each.name:<28} {each.expect.branch:<20} {ends or each.expect.held or 'no run':<24} ")
        lines[-1] += f"{each.title}{twin}"
    return "\n".join(lines)


def write(results: Iterable[Result], path: Path) -> None:
    path.write_text(json.dumps([each.as_json() for each in results], indent=2) + "\n", encoding="utf-8")


def _choice(verdict: object) -> str:
    return " or ".join(verdict) if isinstance(verdict, tuple) else str(verdict)


def _row(result: Result) -> tuple[str, ...]:
    moves = "; ".join(line(step) for step in result.moves) or "none"
    planned = "; ".join(line(step) for step in result.planned)
    return (
        result.scenario.name,
        result.branch or "-",
        moves if result.moves or not planned else f"none ({planned} is shown)",
        result.verdict,
        str(result.failed_requests),
        f"{result.min_in_rotation} of {result.scenario.fleet.replicas}",
        f"{result.seconds:.0f}",
        "MISSED" if result.missed else "ok",
    )


def _misses(results: Iterable[Result]) -> Iterable[str]:
    for result in results:
        for miss in result.missed:
            yield f"MISSED {result.scenario.name}: {miss}"
