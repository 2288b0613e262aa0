"""Pages of `/metrics` that a person saved: whose they are, and what is in the files.

--scrape T0.txt --scrape T1.txt                      one replica, the older page first
--scrape a=a0.txt --scrape a=a1.txt --scrape b=…     several replicas, by name
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from math import isfinite
from pathlib import Path

from kvmedic.cli.saved import UnfitError, text_of
from kvmedic.core.diagnosis import Evidence, Inconclusive, Trigger
from kvmedic.core.reasons import Reason
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.exposition import replica_of
from kvmedic.metrics.glimpse import Glimpse, glimpse, moment, start_of, was_restarted
from kvmedic.metrics.page import Page, parse_page

ONLY = "replica"
"""Name of the replica where none is given."""
LARGEST_BYTES = 64 << 20
"""A page of vLLM 0.32 is 50 kB; a file beyond this is something else."""


class ScrapeError(Exception):
    """The files cannot be used as they were given; the message says why and what to do."""


def pages_of(arguments: Sequence[str]) -> Mapping[str, tuple[Page, ...]]:
    """Return the pages by replica, in the order in which they were given.

    Raises:
        ScrapeError: a file cannot be read, or the pages cannot be compared.
    """
    named = [named_file("--scrape", argument) for argument in arguments]
    if len({bool(replica) for replica, _ in named}) > 1:
        raise ScrapeError("some scrapes name their replica and some do not; write NAME=FILE for each")
    files: dict[str, list[str]] = {}
    for replica, file in named:
        files.setdefault(replica or ONLY, []).append(file)
    return {replica: _pages(replica, many) for replica, many in files.items()}


def evidence_of(
    pages: Mapping[str, tuple[Page, ...]], trigger: Trigger, interval: timedelta | None
) -> tuple[Evidence, tuple[str, ...]]:
    """Return both looks, and what a reader must know about them.

    The trouble is looked for over the later half of the pages, the lengths over all of them.
    """
    recent = {name: many[(len(many) - 1) // 2 :] for name, many in pages.items()}
    burn, sizing = (_look(part, interval) for part in (recent, pages))
    notes = _notes(sizing, interval)
    return Evidence(burn.observation, sizing.observation, trigger), notes


def doubt_of(pages: Mapping[str, tuple[Page, ...]]) -> Inconclusive | None:
    """Return why the pages themselves say nothing, or None."""
    for name, many in sorted(pages.items()):
        if any(replica_of(page, VLLM_SIGNALS) is None for page in many):
            return Inconclusive(
                Reason.METRICS_MISSING,
                f"{name}: no series {VLLM_SIGNALS.presence}: not an engine's page, or one that runs with "
                "--disable-log-stats; scrape /metrics of the engine's own port",
            )
        if was_restarted(many, VLLM_SIGNALS):
            return Inconclusive(Reason.METRICS_MISSING, _restart(name, many))
    return None


def _look(pages: Mapping[str, tuple[Page, ...]], interval: timedelta | None) -> Glimpse:
    steps = max(len(many) for many in pages.values()) - 1
    seconds = None if interval is None else interval.total_seconds() * steps
    return glimpse(pages, VLLM_SIGNALS, seconds)


def _notes(seen: Glimpse, interval: timedelta | None) -> tuple[str, ...]:
    notes = () if interval is not None else (_time_note(seen.observation.window_seconds),)
    if not seen.resting:
        return notes
    return (
        *notes,
        f"nothing ran on {', '.join(seen.resting)} at the moment of any scrape, so gauges tell nothing; "
        "scrape while requests are being served",
    )


def _time_note(seconds: float) -> str:
    if isfinite(seconds):
        return (
            f"the engine was busy for {seconds:.0f} s between the first and the last scrape, "
            "by its own steps; --interval tells the time itself"
        )
    return (
        "nothing tells the time between the scrapes, so whether requests stay longer than that is not "
        "checked; give --interval"
    )


def _restart(name: str, pages: Sequence[Page]) -> str:
    starts = [start_of(page) for page in pages]
    if None not in starts and len(set(starts)) > 1:
        return (
            f"{name}: the scrapes are of different processes: the engine restarted in between, or they are "
            "of several replicas (then write NAME=FILE); scrape twice without a restart"
        )
    return (
        f"{name}: counters fell from one scrape to the next: the older scrape must come first, "
        "and the engine must not restart in between"
    )


def named_file(option: str, argument: str) -> tuple[str, str]:
    """Return replica and file; a file whose own name has an equals sign counts as a file.

    Raises:
        ScrapeError: it is neither FILE nor NAME=FILE.
    """
    replica, sign, file = argument.partition("=")
    if not sign or Path(argument).exists():
        return "", argument
    if not replica or not file:
        raise ScrapeError(f"{option} {argument}: write FILE, or NAME=FILE with the replica's name")
    return replica, file


def _pages(replica: str, files: Sequence[str]) -> tuple[Page, ...]:
    if len(files) < 2:
        which = "" if replica == ONLY else f" of {replica}"
        raise ScrapeError(
            f"one scrape{which} shows counters since the start, not what happens now: give two, taken some "
            "minutes apart (--scrape T0.txt --scrape T1.txt)"
        )
    texts = [_text(file) for file in files]
    for (older, before), (newer, after) in pairwise(zip(files, texts, strict=True)):
        if before == after:
            raise ScrapeError(f"{older} and {newer} are the same scrape: take the second some minutes later")
    return tuple(
        _page(file, text, place) for place, (file, text) in enumerate(zip(files, texts, strict=True))
    )


def _page(file: str, text: str, place: int) -> Page:
    try:
        return parse_page(text, moment(place))
    except ValueError as error:
        raise ScrapeError(
            f"{file} is no metrics page in Prometheus' text format ({error}); save it with "
            "curl -s http://POD:8000/metrics"
        ) from None


def _text(file: str) -> str:
    """Return a file's text: compressed or not, with or without the headers that curl -i adds."""
    try:
        text = text_of(file, LARGEST_BYTES)
    except OSError as error:
        raise ScrapeError(f"{file}: {error.strerror}; correct the path") from None
    except UnfitError as error:
        raise ScrapeError(f"{error}; save the page as it is served") from None
    return text.partition("\n\n")[2] if text.startswith("HTTP/") else text
