"""Plays several scenarios side by side, each in a namespace of its own."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

from lab.play.course import line
from lab.play.result import Result
from lab.play.schema import Scenario

Played = Callable[[Scenario, Event], Result]


def in_order(scenarios: Sequence[Scenario], first: Sequence[str] = ()) -> list[Scenario]:
    """Return the scenarios in the order of playing.

    Those that take long come early, so that none of them is left over alone.
    """
    place = {name: number for number, name in enumerate(first)}
    return sorted(
        scenarios, key=lambda each: (place.get(each.name, len(place)), -_expected_seconds(each), each.name)
    )


def play_all(
    scenarios: Sequence[Scenario], lanes: int, played: Played, on_result: Callable[[Result], None]
) -> list[Result]:
    """Play all scenarios, so many at once; return what is left of each, in the order of their ends.

    Args:
        scenarios: what is played, in this order; those that stop the operator last, one at a time.
        lanes: how many at once.
        played: plays one, until it is over or the event is set; what it raises is that play's trouble and
            nobody else's.
        on_result: called with each result as soon as there is one.
    """
    alone = [each for each in scenarios if each.stops_everything]
    beside = [each for each in scenarios if not each.stops_everything]
    return [*_all(beside, lanes, played, on_result), *_all(alone, 1, played, on_result)]


def _all(
    scenarios: Sequence[Scenario], lanes: int, played: Played, on_result: Callable[[Result], None]
) -> Iterator[Result]:
    stopped = Event()
    with ThreadPoolExecutor(lanes, thread_name_prefix="lane") as pool:
        waiting = [pool.submit(_guarded, played, each, stopped) for each in scenarios]
        try:
            for done in as_completed(waiting):
                on_result(done.result())
                yield done.result()
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def most_gpus(scenarios: Sequence[Scenario], lanes: int) -> int:
    """Return the GPUs of the fleets that may stand at once, with a spare for each."""
    needed = sorted((each.gpus for each in scenarios), reverse=True)
    return sum(needed[:lanes])


def forbidden(name: str, scenarios: Sequence[Scenario]) -> frozenset[str]:
    """Return the branches of the scenarios whose near twin this one is."""
    return frozenset(each.expect.branch for each in scenarios if each.twin == name)


def _expected_seconds(scenario: Scenario) -> float:
    """Return about how long a play takes: two to four minutes for a run, one without."""
    return 200.0 * scenario.expect.runs + scenario.limits.quiet + 20.0 * scenario.fleet.replicas


def _guarded(played: Played, scenario: Scenario, stopped: Event) -> Result:
    began = time.time()
    try:
        return played(scenario, stopped)
    except Exception as error:  # noqa: BLE001 - one play's trouble must not end the others
        trouble = f"{type(error).__name__}: {error}"
        missed = [f"it could not be played to its end: {trouble}"]
        return Result(scenario, seconds=time.time() - began, trouble=trouble, missed=missed)


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
    """Return one play in one line, for the one who waits."""
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
