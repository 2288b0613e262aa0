"""`kvmedic judge`: saved pages of new replicas against those of old ones, for a canary by hand or in CI.

Both sides serve at the same moment under the same arrivals, so neither the hour nor the load explains what
differs between them. No cluster is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from itertools import pairwise
from math import isfinite
from typing import Annotated

import typer

from kvmedic.api.resource import SpecInvalid, objectives_from
from kvmedic.cli.app import REFUSED, USAGE, Form, end_command
from kvmedic.cli.saved import ScrapeError, doubt_of, interval_between, named_file, pages_of
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import Page, gauge, glimpse, observe_pages, replica_of
from kvmedic.model.evidence import Inconclusive, Measured, Signal
from kvmedic.model.readings import complete
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Objectives
from kvmedic.verdict.side_by_side import (
    NEEDED,
    SURE,
    Arm,
    CanaryVerdict,
    Comparison,
    Counts,
    Limits,
    Routing,
    compare_arms,
    count_replica,
)

ROLLED_BACK = 1
"""Exit code where the change is to be taken back."""
_ONE_PAGE = (
    "one page shows counters since the start, not what happens now: give two or more of each replica, taken "
    "at the same moments, the oldest first (%s T0.txt,T1.txt)"
)
_ROWS = (
    ("first_tokens", "first tokens", "{:.0f}"),
    ("arrivals_per_second", "requests/s of a replica", "{:.3g}"),
    ("tokens_per_second", "tokens/s of a replica", "{:.4g}"),
    ("in_time_share", "share served in time", "{:.1%}"),
    ("served_in_time_per_second", "tokens/s served in time", "{:.4g}"),
    ("stalls_per_request", "stalls over 2 s per request", "{:.3f}"),
    ("silent_seconds", "silent seconds per request", "{:.1f}"),
    ("waiting", "waiting on a replica", "{:.1f}"),
    ("in_flight", "in flight on a replica", "{:.1f}"),
    ("queued_share", "arrivals that only queued", "{:+.1%}"),
)
"""Figures of both sides: field, name, and how it is printed."""

Pages = Mapping[str, tuple[Page, ...]]


def command(
    old: Annotated[
        list[str],
        typer.Option(
            metavar="[REPLICA=]FILE,FILE[,...]",
            help="Saved /metrics pages of a replica without the change, oldest first; once per replica.",
        ),
    ],
    new: Annotated[
        list[str],
        typer.Option(
            metavar="[REPLICA=]FILE,FILE[,...]",
            help="The same of a replica with the change, taken at the same moments.",
        ),
    ],
    objective: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DURATION", help="ttftP95=5s, interTokenP95=200ms or e2eP95=1m."),
    ] = None,
    interval: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Time between two pages, such as 5m; else the engines' own."),
    ] = "",
    routing: Annotated[
        Routing | None,
        typer.Option(help="How requests find a replica; else as arrivals and requests in flight tell."),
    ] = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print it.")] = Form.TEXT,
) -> None:
    """Judge a canary: do new replicas serve as much in time as old ones beside them?

    Save the pages of all replicas at the same moments, the first one a few minutes after the new replicas
    became Ready: curl -s http://POD:8000/metrics >new-0.txt. Three moments or more judge better than two.

    Exit code 0: go on; 1: roll back; 2: wrong usage or an unusable file; 3: keep watching, it says what for.
    """
    try:
        limits = Limits(_objectives(objective or ()), routing)
        olds, news = _read_side("--old", old), _read_side("--new", new)
        found = judge_pages(olds, news, limits, interval_between(interval))
    except ScrapeError as error:
        end_command(error, USAGE)
    if isinstance(found, Inconclusive):
        end_command(found.line(), REFUSED)
    print(_as_json(found) if output is Form.JSON else _as_text(found))
    codes = {
        CanaryVerdict.GO_ON: 0,
        CanaryVerdict.ROLL_BACK: ROLLED_BACK,
        CanaryVerdict.KEEP_WATCHING: REFUSED,
    }
    raise typer.Exit(codes[found.verdict])


def judge_pages(
    old: Pages, new: Pages, limits: Limits, interval: timedelta | None
) -> Comparison | Inconclusive:
    """Return what pages of both sides say of the change.

    A rollback needs two looks in a row: over all pages, and over all but the newest ones. Where there are two
    moments alone, one look must be the surer.

    Args:
        old: pages by replica, the oldest first, of all replicas at the same moments.
        new: the same of replicas with the change.
        limits: what counts as in time.
        interval: between two pages; None: read off the engines' steps.

    Raises:
        ScrapeError: some replicas have more pages than others, or one is on both sides.
    """
    if both := sorted(old.keys() & new.keys()):
        raise ScrapeError(f"{both[0]} is on both sides: a replica runs the change or does not")
    pages = {**old, **new}
    if len({len(many) for many in pages.values()}) > 1:
        raise ScrapeError("some replicas have more pages than others: give pages of the same moments")
    if doubt := doubt_of(pages):
        return doubt
    moments = len(next(iter(pages.values())))
    steps = glimpse(pages, VLLM_SIGNALS, None).observation.window_seconds / (moments - 1)
    seconds = steps if interval is None else interval.total_seconds()
    if not isfinite(seconds) or seconds <= 0:
        return Inconclusive(
            Reason.METRICS_MISSING, "nothing tells the time between the pages: give --interval"
        )
    before, after = (_arm(side, seconds, limits) for side in (old, new))
    if isinstance(before, Inconclusive):
        return before
    return after if isinstance(after, Inconclusive) else compare_arms(before, after, limits)


def _arm(pages: Pages, seconds: float, limits: Limits) -> Arm | Inconclusive:
    """Return one side, with a stretch of time between each two pages."""
    blocks, waiting = [], []
    moments = len(next(iter(pages.values())))
    for earlier, later in pairwise(range(moments)):
        stretch = {name: (many[earlier], many[later]) for name, many in pages.items()}
        seen = observe_pages(stretch, VLLM_SIGNALS)
        gap = complete(seen, NEEDED)
        if isinstance(gap, Inconclusive):
            return gap
        queues = {name: [_count_waiting(page) for page in two] for name, two in stretch.items()}
        counts = [count_replica(seen.pods[name], seconds, limits, queues[name]) for name in sorted(stretch)]
        blocks.append(sum((each for each in counts if isinstance(each, Counts)), Counts()))
        waiting.append(sum(two[-1] for two in queues.values()))
    return Arm(len(pages), tuple(blocks), tuple(waiting))


def _count_waiting(page: Page) -> float:
    replica = replica_of(page, VLLM_SIGNALS)
    found = None if replica is None else gauge(replica, Signal.WAITING_MEAN, (page,))
    return found.value if isinstance(found, Measured) else 0.0


def _read_side(option: str, given: Sequence[str]) -> Pages:
    """Return the pages of one side by replica.

    Raises:
        ScrapeError: a file cannot be used, or a replica has fewer than two pages.
    """
    arguments: list[str] = []
    for place, argument in enumerate(given, 1):
        replica, files = named_file(option, argument)
        many = [each.strip() for each in files.split(",") if each.strip()]
        if len(many) < 2:
            raise ScrapeError(f"{option} {argument}: {_ONE_PAGE % option}")
        name = replica or f"{option.removeprefix('--')}-{place}"
        if any(each.startswith(f"{name}=") for each in arguments):
            raise ScrapeError(f"{option} {argument}: {name} is given twice; give all its pages in one option")
        arguments += [f"{name}={each}" for each in many]
    return pages_of(arguments)


def _objectives(given: Sequence[str]) -> Objectives:
    pairs = [each.partition("=") for each in given]
    if wrong := next((each for each, (_, _, value) in zip(given, pairs, strict=True) if not value), None):
        raise ScrapeError(f"--objective {wrong}: write NAME=DURATION, such as ttftP95=5s")
    try:
        return objectives_from({name: value for name, _, value in pairs})
    except SpecInvalid as error:
        raise ScrapeError(f"--objective: {'; '.join(error.problems)}") from None


def _as_text(found: Comparison) -> str:
    rows = [("", "old", "new"), ("replicas", str(found.old_replicas), str(found.new_replicas))]
    for name, title, form in _ROWS:
        old, new = (form.format(getattr(side, name)) for side in (found.old, found.new))
        rows.append((title, old, new))
    table = "\n".join(f"  {title:<28}{old:>12}{new:>12}" for title, old, new in rows)
    checks = "\n".join(
        f"  {'FAILS' if each.fails else 'passes':<7} {each.name}: {each.message}" for each in found.checks
    )
    return (
        f"{found.verdict} ({found.decided_by}): {found.message}\n"
        f"watched {found.seconds:.0f} s, routing {found.routing}\n{table}\n{checks}"
    ).rstrip()


def _as_json(found: Comparison) -> str:
    """Return the comparison with names as in the CRD; a number that is not known, or infinite, is null."""
    return json.dumps(
        {
            "verdict": found.verdict,
            "decidedBy": found.decided_by,
            "message": found.message,
            "seconds": found.seconds,
            "routing": found.routing,
            "old": {"replicas": found.old_replicas, **_in_camel_case(asdict(found.old))},
            "new": {"replicas": found.new_replicas, **_in_camel_case(asdict(found.new))},
            "checks": [
                {
                    "name": each.name,
                    "value": each.value,
                    "interval": [each.value - SURE * each.error, each.value + SURE * each.error],
                    "limit": each.limit,
                    "fails": each.fails,
                    "message": each.message,
                }
                for each in found.checks
            ],
        },
        indent=2,
    )


def _in_camel_case(figures: Mapping[str, float]) -> dict[str, float | None]:
    def camel(name: str) -> str:
        first, *rest = name.split("_")
        return first + "".join(each.title() for each in rest)

    return {camel(name): value if isfinite(value) else None for name, value in figures.items()}
