"""The report on a run as Markdown: for a ticket, a pull request or a chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from kvmedic.cli.live.past_figures import SERIES

PERIODS = ("before", "during", "after")
"""Of a run: up to its start, up to its end, and since."""


def report_as_markdown(facts: Mapping[str, Any]) -> str:
    """Return the whole report."""
    return "\n".join(_parts(facts)).rstrip() + "\n"


def _parts(facts: Mapping[str, Any]) -> Iterator[str]:
    run = facts["run"]
    yield f"# Run {run['id']} of {facts['namespace']}/{facts['name']}\n"
    yield " ".join(facts["sentences"]) + "\n"
    yield "## When\n"
    yield from table(
        ("time", "what", "message"), [(e["at"], e["what"], e["message"]) for e in facts["timeline"]]
    )
    yield "## Before and after\n"
    yield from _figures_table(facts)
    yield "## Over time\n"
    yield from _series(facts)
    yield "## Evidence and arithmetic\n"
    yield from (f"* {_escape(each)}" for each in facts["decisions"])
    yield "\n## Cost\n"
    yield from _cost(facts)
    yield "## To undo it\n"
    yield from _undo(facts)
    if facts["unknown"]:
        yield "## What is not known\n"
        yield from (f"* {field}: {_escape(why)}" for field, why in facts["unknown"].items())


def _figures_table(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts["figures"] is None:
        yield f"Not known: {facts['unknown']['figures']}.\n"
        return
    rows = [
        (each["name"], number_text(each["before"]), number_text(each["after"])) for each in facts["figures"]
    ]
    yield from table(("figure", "before", "after"), rows)


def _series(facts: Mapping[str, Any]) -> Iterator[str]:
    series = facts["series"]
    if series is None:
        yield f"Not known: {facts['unknown']['series']}.\n"
        return
    looks = by_period(series["moments"], facts["run"])
    rows = [(name, *(_mean_text([m[name] for m in looks[period]]) for period in PERIODS)) for name in SERIES]
    rows.append(("moments (of them without a figure)", *(_count_text(looks[period]) for period in PERIODS)))
    window = series["windowSeconds"]
    yield f"Means over looks of {window:.0f} s, from source {series['source']}; a gap counts for nothing.\n"
    yield from table(("figure", *PERIODS), rows)


def by_period(
    moments: Sequence[Mapping[str, Any]], run: Mapping[str, Any]
) -> dict[str, list[Mapping[str, Any]]]:
    """Return moments by their period of a run; times are RFC 3339 in UTC, which sort as texts."""
    found: dict[str, list[Mapping[str, Any]]] = {period: [] for period in PERIODS}
    for each in moments:
        if each["at"] < run["startedAt"]:
            found["before"].append(each)
        elif run["endedAt"] is None or each["at"] <= run["endedAt"]:
            found["during"].append(each)
        else:
            found["after"].append(each)
    return found


def _mean_text(numbers: Sequence[float | None]) -> str:
    known = [each for each in numbers if each is not None]
    return number_text(fmean(known)) if known else "-"


def _count_text(moments: Sequence[Mapping[str, Any]]) -> str:
    return f"{len(moments)} ({sum(each['why'] is not None for each in moments)})"


def _cost(facts: Mapping[str, Any]) -> Iterator[str]:
    cost = facts["cost"]
    if cost is None:
        yield f"Not known: {facts['unknown']['cost']}.\n"
        return
    gpus = cost["spareGpuSeconds"]
    spare = f"{cost['spareReplicaSeconds']:g} replica-seconds" if gpus is None else f"{gpus:g} GPU-seconds"
    yield f"{cost['replicasStarted']} replicas started; {spare} of spares.\n"


def _undo(facts: Mapping[str, Any]) -> Iterator[str]:
    if not facts["undo"]:
        yield "Nothing is left to undo: the run kept no change.\n"
        return
    yield "```bash"
    for each in facts["undo"]:
        yield f"# {each['for']}\n{each['command']}"
    yield "```\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table line by line."""
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    yield from (f"| {' | '.join(_escape(cell) for cell in row)} |" for row in rows)
    yield ""


def number_text(number: float | None) -> str:
    """Return a number with three digits that say something; a dash for none."""
    if number is None:
        return "-"
    return f"{number:.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _escape(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line: it may quote a tenant."""
    plain = " ".join(text.split())
    return "".join(f"\\{each}" if each in "\\`*_{}[]<>|#~" else each for each in plain)
