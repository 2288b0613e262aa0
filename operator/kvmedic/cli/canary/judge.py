"""`kvmedic judge`: saved pages of new replicas beside those of old ones, for a canary by hand or in CI.

Both sides serve at the same moment under the same arrivals, so neither the hour nor the load explains a
difference. No cluster is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from math import isfinite
from typing import NoReturn

import typer

from kvmedic.api.resource import SpecInvalid, objectives_from
from kvmedic.cli.app import REFUSED, USAGE, Form, end_command
from kvmedic.cli.canary.figures import comparison_as_json, comparison_as_text, error_as_json
from kvmedic.cli.saved import ScrapeError, doubt_of, interval_between, named_file, pages_of, signals_of
from kvmedic.engines.signal_sources import CounterSource, SignalTable
from kvmedic.metrics.page import Page, find_unseen, gauge, observe_pages, observe_saved_pages, replica_of
from kvmedic.model.evidence import Inconclusive, Measured, Observation, Signal
from kvmedic.model.readings import count_above, gather_values
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Objectives
from kvmedic.verdict.counts import Arm, Counts, Limits, Routing, count_replica, list_needs
from kvmedic.verdict.figure_intervals import find_intervals
from kvmedic.verdict.side_by_side import TIME, CanaryVerdict, compare_arms

ROLLED_BACK = 1
"""Exit code for: roll the change back."""
_ONE_PAGE = (
    "one page shows counters since the start, not what happens now: give two or more pages of each replica, "
    "taken at the same moments, the oldest first (%s T0.txt,T1.txt)"
)
LONGER = 1.5
"""What an engine's steps took over the time that was given, from which a remark is made: a choice. Their time
is read off gaps between tokens, of which full steps have more: it reads too long where long and short steps
alternate."""
_BY_STEPS = (
    " by the engines' own steps, in which idle time is missing; "
    "--interval DURATION gives the time between pages"
)

Pages = Mapping[str, tuple[Page, ...]]
Stretch = Mapping[str, tuple[Page, Page]]
"""Two pages of each replica, one moment and the next."""


def judge_canary(
    old: list[str],
    new: list[str],
    objective: list[str] | None,
    interval: str,
    routing: str | None,
    output: Form,
) -> None:
    """Compare both sides, and print the verdict."""
    try:
        limits = Limits(_objectives(objective or ()), Routing(routing) if routing else None)
        olds, news = _read_sides(old, new)
        given = interval_between(interval)
        arms = count_sides(olds, news, limits, given)
    except ScrapeError as error:
        _end_unjudged(str(error), output)
    if isinstance(arms, Inconclusive):
        _end_unjudged(arms.line(), output)
    found, intervals = compare_arms(*arms, limits), find_intervals(*arms, limits)
    remark = _remark_on_time({**olds, **news}, given, is_short=found.decided_by == TIME)
    found = replace(found, message=f"{found.message}{remark}")
    as_form = comparison_as_json if output is Form.JSON else comparison_as_text
    print(as_form(found, *intervals))
    codes = {CanaryVerdict.GO_ON: 0, CanaryVerdict.ROLL_BACK: ROLLED_BACK}
    raise typer.Exit(codes.get(found.verdict, REFUSED))


def _end_unjudged(message: str, output: Form) -> NoReturn:
    """End the command without a verdict; a program that reads JSON gets the reason there too."""
    if output is Form.JSON:
        print(error_as_json(message))
    end_command(message, USAGE)


def _remark_on_time(pages: Pages, given: timedelta | None, *, is_short: bool) -> str:
    """Return what a reader must know about the time between two pages; empty: nothing.

    What an engine's steps took is no proof against the time that was given, so it is said and not refused.

    Args:
        is_short: too little time was watched for a verdict.
    """
    if given is None:
        return _BY_STEPS if is_short else ""
    seconds = _seconds_by_steps(pages, signals_of(pages))
    if not isfinite(seconds) or seconds <= LONGER * given.total_seconds():
        return ""
    return (
        f"; an engine's own steps took about {seconds:.0f} s between two pages, and --interval gives "
        f"{given.total_seconds():g} s: see which of them is right, as all that is per second rests on it"
    )


def _seconds_by_steps(pages: Pages, signals: SignalTable) -> float:
    """Return what the busiest engine's steps took, by the mean of two pages; infinite where none shows it."""
    moments = len(next(iter(pages.values())))
    return observe_saved_pages(pages, signals, None).observation.window_seconds / (moments - 1)


def count_sides(
    old: Pages, new: Pages, limits: Limits, interval: timedelta | None
) -> tuple[Arm, Arm] | Inconclusive:
    """Return what both sides did, whose pages were saved at the same moments, oldest first.

    A rollback needs two looks in a row: over all pages, and over all but the newest ones. With only two
    moments, the one look must be surer.

    Args:
        interval: between two pages; None: the engines' busy time, from their steps.

    Raises:
        ScrapeError: some replicas have more pages than others, are of another model, or show that more time
            passed than was given.
    """
    pages = {**old, **new}
    _refuse_unequal(pages)
    if doubt := doubt_of(pages):
        return doubt
    signals = signals_of(pages)
    _refuse_other_models(pages, signals)
    seconds = _seconds_by_steps(pages, signals) if interval is None else interval.total_seconds()
    if not isfinite(seconds) or seconds <= 0:
        return Inconclusive(Reason.METRICS_MISSING, "the time between the pages is unknown: give --interval")
    if interval is not None:
        _refuse_short(pages, seconds, signals)
    before, after = (_arm(side, seconds, limits, signals) for side in (old, new))
    if isinstance(before, Inconclusive):
        return before
    return after if isinstance(after, Inconclusive) else (before, after)


def _refuse_unequal(pages: Pages) -> None:
    """Refuse replicas that were not seen at the same moments.

    Raises:
        ScrapeError: some replicas have more pages than others.
    """
    fewest = min(pages, key=lambda name: len(pages[name]))
    most = max(pages, key=lambda name: len(pages[name]))
    if len(pages[fewest]) != len(pages[most]):
        both = (
            f"{len(pages[name])} of {name} (the last is {pages[name][-1].origin})" for name in (fewest, most)
        )
        raise ScrapeError(
            f"some replicas have more pages than others: {' and '.join(both)}; give one of each replica for "
            "every moment"
        )


def _arm(pages: Pages, seconds: float, limits: Limits, signals: SignalTable) -> Arm | Inconclusive:
    """Return the counts of one side for each stretch of time between two pages."""
    blocks, waiting = [], []
    moments = len(next(iter(pages.values())))
    for earlier, later in pairwise(range(moments)):
        stretch = {name: (many[earlier], many[later]) for name, many in pages.items()}
        seen = observe_pages(stretch, signals)
        needed = list_needs(limits.objectives)
        if gap := _find_gap(seen, stretch, needed) or _find_cut_page(stretch, needed, signals):
            return gap
        queues = {name: [_count_waiting(page, signals) for page in two] for name, two in stretch.items()}
        counts = [count_replica(seen.pods[name], seconds, limits, queues[name]) for name in sorted(stretch)]
        blocks.append(sum((each for each in counts if isinstance(each, Counts)), Counts()))
        waiting.append(sum(two[-1] for two in queues.values()))
    return Arm(len(pages), tuple(blocks), tuple(waiting))


def _find_gap(seen: Observation, stretch: Stretch, needed: frozenset[Signal]) -> Inconclusive | None:
    """Return what is missing of the first replica that lacks something, and in which files; None: nothing."""
    for name, (first, last) in sorted(stretch.items()):
        alone = replace(seen, pods={name: seen.pods[name]})
        gap = gather_values(alone, needed)
        if isinstance(gap, Inconclusive):
            return replace(gap, message=f"{gap.message} (in {first.origin} or {last.origin})")
    return None


def _find_cut_page(stretch: Stretch, needed: frozenset[Signal], signals: SignalTable) -> Inconclusive | None:
    """Return which page lacks what the next one counts; None: none does.

    vLLM's V1 exports every series from its start on (0.32, recorded), V0 with the first request that is
    counted. So what is not there counts from 0 only where the page shows that no token was generated yet.
    """
    for name, (first, last) in sorted(stretch.items()):
        begun = sum(one.value for one in first.find(*_names_of_tokens(signals))) > 0
        unseen = (find_unseen(signals.signals[each], first, last) for each in sorted(needed))
        if begun and (metric := next(filter(None, unseen), "")):
            return Inconclusive(
                Reason.METRICS_MISSING,
                f"{name}: {first.origin} has no {metric}, and {last.origin} has it, which would count since "
                "the start: save whole pages, the first one when some requests have finished",
            )
    return None


def _names_of_tokens(signals: SignalTable) -> Sequence[str]:
    source = signals.signals[Signal.GENERATED_TOKENS]
    return source.names if isinstance(source, CounterSource) else ()


def _refuse_other_models(pages: Pages, signals: SignalTable) -> None:
    """Refuse pages of unlike models: clients ask for one by name, and send these other requests.

    Raises:
        ScrapeError: a page is of another model than the first one.
    """
    known: tuple[str, str] | None = None
    for name, page in ((name, page) for name, many in pages.items() for page in many):
        replica, place = replica_of(page, signals), f"{page.origin} ({name})"
        models = ", ".join(replica.presence.models) if replica else ""
        if models and known is not None and models != known[0]:
            raise ScrapeError(
                f"{place} is of model {models}, and {known[1]} of {known[0]}: they do not serve the same "
                "requests; compare replicas of one model, under one --served-model-name"
            )
        known = known or ((models, place) if models else None)


_SECONDS = (Signal.E2E_SECONDS, Signal.TIME_TO_FIRST_TOKEN_SECONDS, Signal.INTER_TOKEN_SECONDS)
"""What a request waited for, each measured when it ends."""
_UNCOUNTED, _UNCOUNTED_SHARE = 10, 0.1
"""Requests that the server may have had at the moment of a page beyond those that its gauges show: some, and
some more of a full one. A margin that was chosen, so that nothing is refused for a gauge that lagged."""


def _refuse_short(pages: Pages, seconds: float, signals: SignalTable) -> None:
    """Refuse a time between pages that is shorter than what began and ended between them.

    Of the requests that a stretch counts, no more began before it than were in flight then. If more took over
    some time, one of them did so from its beginning to its end between both pages.

    Raises:
        ScrapeError: more time passed than was given.
    """
    for name, many in pages.items():
        for first, last in pairwise(many):
            seen = observe_pages({name: (first, last)}, signals).pods[name]
            gauges = first.find(*signals.in_flight, *signals.in_flight_optional)
            before = sum(one.value for one in gauges)
            most = before + _UNCOUNTED + _UNCOUNTED_SHARE * before
            found = [each.value for each in map(seen.histogram, _SECONDS) if isinstance(each, Measured)]
            proven = max(
                (bound for each in found for bound in each.bounds if count_above(each, bound) > most),
                default=0.0,
            )
            if proven >= seconds:
                raise ScrapeError(
                    f"--interval {seconds:g}s: more than {proven:g} s passed from {first.origin} to "
                    f"{last.origin}, as requests took longer that began and ended between them; give the "
                    "time that was really between two pages"
                )


def _count_waiting(page: Page, signals: SignalTable) -> float:
    replica = replica_of(page, signals)
    found = None if replica is None else gauge(replica, Signal.WAITING_MEAN, (page,))
    return found.value if isinstance(found, Measured) else 0.0


def _read_sides(old: Sequence[str], new: Sequence[str]) -> tuple[Pages, Pages]:
    olds, news = _files_of("--old", old), _files_of("--new", new)
    if both := sorted(olds.keys() & news.keys()):
        files = f"{olds[both[0]][0]} and {news[both[0]][0]}"
        raise ScrapeError(f"{both[0]} is on both sides ({files}): a replica runs the change or does not")
    pages = pages_of([f"{name}={file}" for name, many in {**olds, **news}.items() for file in many])
    return {name: pages[name] for name in olds}, {name: pages[name] for name in news}


def _files_of(option: str, given: Sequence[str]) -> Mapping[str, Sequence[str]]:
    found: dict[str, Sequence[str]] = {}
    for place, argument in enumerate(given, 1):
        replica, files = named_file(option, argument)
        many = [each.strip() for each in files.split(",") if each.strip()]
        if len(many) < 2:
            raise ScrapeError(f"{option} {argument}: {_ONE_PAGE % option}")
        name = replica or f"{option.removeprefix('--')}-{place}"
        if name in found:
            raise ScrapeError(f"{option} {argument}: {name} is given twice; give all its pages in one option")
        found[name] = many
    return found


def _objectives(given: Sequence[str]) -> Objectives:
    pairs = [each.partition("=") for each in given]
    if wrong := next((each for each, (_, _, value) in zip(given, pairs, strict=True) if not value), None):
        raise ScrapeError(f"--objective {wrong}: write NAME=DURATION, such as ttftP95=5s")
    if joined := next((each for each in given if "," in each), None):
        raise ScrapeError(f"--objective {joined}: give --objective twice, each with one objective")
    named = Counter(name for name, _, _ in set(pairs))
    if twice := next((name for name, count in named.items() if count > 1), ""):
        raise ScrapeError(f"--objective {twice} is given twice with different durations; leave one out")
    try:
        return objectives_from({name: value for name, _, value in pairs})
    except SpecInvalid as error:
        raise ScrapeError(f"--objective: {'; '.join(error.problems)}") from None
