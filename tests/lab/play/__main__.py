"""`make scenarios`: play every scenario and its near twin, print one table; exit 1 when one ended otherwise.

SCENARIOS="thrash healthy" plays some of them, FIRST="thrash healthy" plays these first and then the rest,
LIST=1 only checks and lists them, LANES=2 plays two at once instead of three. The table of what has ended so
far is in build/scenarios/table.md.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import httpx

from lab.cluster.api import ApiError
from lab.cluster.machine import ROOT, say
from lab.cluster.native import choose
from lab.play import lanes
from lab.play.files import read_all
from lab.play.result import Result
from lab.play.schema import Engine, Scenario
from lab.play.stage import Stage, stage
from lab.play.story import Notes

OUT = ROOT / "build" / "scenarios"
EXPECTED = (RuntimeError, OSError, LookupError, ValueError, ApiError, httpx.HTTPError)
LANES = 3
"""Plays at once on two cores. Most of a play is waiting: 63 of them, 85 minutes in all, took 24 so."""


def main() -> int:
    try:
        known = read_all()
        named, first = (os.environ.get(name, "").split() for name in ("SCENARIOS", "FIRST"))
        require_known(known, first, "FIRST")
        chosen = lanes.in_order(_chosen(known, named), first)
        if os.environ.get("LIST"):
            print(lanes.listed(chosen))
            return 0
        return _play(chosen, known, int(os.environ.get("LANES") or LANES))
    except KeyboardInterrupt:
        say("interrupted; `make lab-down` removes everything")
        return 130
    except EXPECTED as error:
        say(str(error))
        return 1


def _chosen(known: Sequence[Scenario], named: Sequence[str]) -> list[Scenario]:
    """Return the scenarios of some names, of all those of the lab engine without a name.

    Raises:
        ValueError: there is none of a name.
    """
    require_known(known, named, "SCENARIOS")
    by_name = {each.name: each for each in known}
    return [by_name[name] for name in named] or [e for e in known if e.fleet.engine is Engine.LAB]


def require_known(known: Sequence[Scenario], named: Sequence[str], variable: str) -> None:
    names = [each.name for each in known]
    if unknown := [name for name in named if name not in names]:
        raise ValueError(f"{variable}={' '.join(unknown)}: there are {', '.join(names)}")


def _play(chosen: Sequence[Scenario], known: Sequence[Scenario], at_once: int) -> int:
    began = time.time()
    with stage(choose(), chosen, lanes.most_gpus(chosen, at_once)) as made:
        made.vacate()

        def played(scenario: Scenario, stopped: Event) -> Result:
            return _played(made, scenario, lanes.forbidden(scenario.name, known), stopped)

        results = lanes.play_all(chosen, at_once, played, make_reporter([]))
    print(lanes.table(results))
    missed = sum(bool(each.missed) for each in results)
    say(f"{len(results)} scenarios in {(time.time() - began) / 60:.1f} min, {missed} ended otherwise")
    return 1 if missed else 0


def make_reporter(so_far: list[Result]) -> Callable[[Result], None]:
    """Return what reports each play as soon as it has ended, and keeps summary and table of all so far."""
    OUT.mkdir(parents=True, exist_ok=True)

    def report(result: Result) -> None:
        so_far.append(result)
        lanes.write(so_far, OUT / "summary.json")
        (OUT / "table.md").write_text(lanes.table(so_far), encoding="utf-8")
        say("\n".join([lanes.row(result), *result.missed]))

    return report


def _played(made: Stage, scenario: Scenario, forbidden: frozenset[str], stopped: Event) -> Result:
    """Play one scenario in a namespace of its name, and take it away again."""
    directory = OUT / scenario.name
    directory.mkdir(parents=True, exist_ok=True)
    namespace, notes = f"scenario-{scenario.name}", Notes()
    try:
        with made.set(scenario, namespace, notes) as play:
            return play.run(directory, forbidden, stopped)
    finally:
        _keep(directory / "story.txt", notes)
        _remove(made, namespace)


def _remove(made: Stage, namespace: str) -> None:
    """Take a fleet away; one that stays says nothing about the play, and the next of its name clears it."""
    try:
        made.remove(namespace)
    except EXPECTED as error:
        say(f"namespace {namespace} is left: {error}")


def _keep(path: Path, notes: Notes) -> None:
    path.write_text("\n".join([*notes.lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
