"""The report on a run as one page: no network, no script; light and dark, for 380 and for 1440 px.

A plot is drawn as SVG from the same moments as the Markdown table. A gap in the figures is a gap in its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from math import floor, log10
from string import Template
from typing import Any

from kvmedic.cli.live.report_text import number_text

PLOTS: Mapping[str, Sequence[tuple[str, str]]] = {
    "Replicas that reported figures": (("replicas", ""),),
    "Share of requests served in time": (("servedInTime", ""),),
    "Tokens per second served in time, whole fleet": (("servedInTimePerSecond", ""),),
    "Share served in time that never hung, new setting beside old": (
        ("servedInTimeOfNew", "new"),
        ("servedInTimeOfOld", "old"),
    ),
    "Silent seconds per request, before the first token and while preempted": (
        ("silentSecondsPerRequest", ""),
    ),
    "Stalls over 2 s per request": (("stallsPerRequest", ""),),
    "Time to first token, p95, seconds": (("timeToFirstTokenP95Seconds", ""),),
    "Preemptions per second, whole fleet": (("preemptionsPerSecond", ""),),
    "KV cache usage, mean of replicas (0-1)": (("kvCacheUsage", ""),),
    "Running and waiting requests, whole fleet": (("running", "running"), ("waiting", "waiting")),
}
"""What each plot shows, with its unit: its lines, each by the name of its figure and what it is called."""
WIDTH, HEIGHT = 380.0, 140.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 6.0, 8.0, 22.0
"""Room around a plot, in the units of its view box: for numbers at the left, for times below."""
ROUND = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Ends of a scale, times a power of ten."""
STYLES = ("first", "second")
"""Of the lines of a plot: solid and dashed, in two colours."""
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --page: #ffffff; --text: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --data: #0b5fc0; --second: #9a4f00; --span: #0b5fc01f; --box: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --text: #e6edf3; --soft: #9da7b1;
  --line: #30363d; --data: #6cb6ff; --second: #f0a45d; --span: #6cb6ff2b; --box: #161b22; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 84rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); }
figure { margin: 0; padding: .5rem; border: 1px solid var(--line); border-radius: 6px; }
figcaption { color: var(--soft); font-size: .9rem; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
.data { fill: none; stroke: var(--data); stroke-width: 2; } .dot { fill: var(--data); }
.second.data { stroke: var(--second); stroke-dasharray: 6 3; } .second.dot { fill: var(--second); }
.keys { display: block; } .key { display: inline-block; margin-right: 1rem; white-space: nowrap; }
.key::before { content: ""; display: inline-block; width: 1.5rem; margin-right: .35rem;
  vertical-align: middle; border-top: 2px solid var(--data); }
.second.key::before { border-top: 2px dashed var(--second); }
.span { fill: var(--span); } .axis { stroke: var(--line); }
.wide { overflow-x: auto; } table { border-collapse: collapse; min-width: min(100%, 30rem); }
th, td { text-align: left; vertical-align: top; padding: .25rem 1.5rem .25rem 0;
  border-top: 1px solid var(--line); font-variant-numeric: tabular-nums; overflow-wrap: normal; }
.moves td:first-child { white-space: nowrap; } .moves td:nth-child(2) { font-weight: 600; }
.moves td:nth-child(3) { overflow-wrap: anywhere; }
@media (max-width: 40rem) { th, td { padding-right: .75rem; } .moves thead { display: none; }
  .moves table, .moves tbody { display: block; } .moves tr { display: grid; grid-template-columns: auto 1fr;
  border-top: 1px solid var(--line); padding: .25rem 0; } .moves td { border: 0; padding-top: 0; }
  .moves td:nth-child(3) { grid-column: 1 / -1; padding-bottom: 0; } }
pre { background: var(--box); padding: .75rem; border-radius: 6px; overflow-x: auto; white-space: pre-wrap; }
:focus-visible { outline: 2px solid var(--data); }
</style>
</head>
<body>
<main>
$body
</main>
</body>
</html>
""")


def report_as_page(facts: Mapping[str, Any]) -> str:
    """Return the whole page."""
    title = f"Run {facts['run']['id']} of {facts['namespace']}/{facts['name']}"
    return _PAGE.substitute(title=escape(title), body="\n".join(_sections(title, facts)))


def _sections(title: str, facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    yield from (f"<p>{escape(each)}</p>" for each in facts["sentences"])
    yield "<h2>When</h2>"
    days = {each["at"][:10] for each in facts["timeline"]}
    shown = slice(11, 19) if len(days) == 1 else slice(5, 19)
    rows = [(e["at"][shown].replace("T", " "), e["what"], e["message"]) for e in facts["timeline"]]
    yield f"<p>Times are UTC, {' and '.join(sorted(days))}.</p>"
    yield _table(("UTC", "What", "Message"), rows, "wide moves")
    yield "<h2>Over time</h2>"
    yield _plots(facts)
    yield "<h2>Before and after</h2>"
    if facts["figures"] is None:
        yield _unknown(facts, "figures")
    else:
        rows = [
            (_words_of(e["name"]), number_text(e["before"]), number_text(e["after"]))
            for e in facts["figures"]
        ]
        yield _table(("Figure", "Before", "After"), rows)
    yield "<h2>Evidence and arithmetic</h2>"
    yield f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in facts['decisions'])}</ul>"
    yield "<h2>Cost</h2>"
    yield _cost(facts)
    yield "<h2>To undo it</h2>"
    commands = "\n".join(f"# {each['for']}\n{each['command']}" for each in facts["undo"])
    nothing = "<p>Nothing is left to undo: the run kept no change.</p>"
    yield f'<pre tabindex="0">{escape(commands)}</pre>' if commands else nothing
    if facts["unknown"]:
        listed = "".join(f"<li>{escape(f'{name}: {why}')}</li>" for name, why in facts["unknown"].items())
        yield f"<h2>What is not known</h2>\n<ul>{listed}</ul>"


def _unknown(facts: Mapping[str, Any], field: str) -> str:
    return f"<p>Not known: {escape(facts['unknown'][field])}.</p>"


def _cost(facts: Mapping[str, Any]) -> str:
    cost = facts["cost"]
    if cost is None:
        return _unknown(facts, "cost")
    rows = [("Replicas started", number_text(cost["replicasStarted"]))]
    rows.append(("Replica-seconds of spares", number_text(cost["spareReplicaSeconds"])))
    rows.append(("GPU-seconds of spares", number_text(cost["spareGpuSeconds"])))
    return _table(("Cost", "Amount"), rows)


def _words_of(name: str) -> str:
    """Return the name of a figure, which is one word for a program, as words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], style: str = "wide") -> str:
    cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    heads = "".join(f'<th scope="col">{each}</th>' for each in head)
    return (
        f'<div class="{style}" tabindex="0" role="group" aria-label="{escape(head[0])}"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>"
    )


def _plots(facts: Mapping[str, Any]) -> str:
    series = facts["series"]
    if series is None:
        return _unknown(facts, "series")
    figures = "".join(plot(title, lines, series["moments"], facts["run"]) for title, lines in PLOTS.items())
    note = (
        f"Each point is a look over {series['windowSeconds']:.0f} s, from source {series['source']}; times "
        "are UTC. The shaded part is the run. Where a line is broken no figure is known."
    )
    return f'<p>{escape(note)}</p>\n<div class="plots">{figures}</div>'


def plot(
    title: str, lines: Sequence[tuple[str, str]], moments: Sequence[Mapping[str, Any]], run: Mapping[str, Any]
) -> str:
    """Return figures over time as SVG, with what they say in words for those who do not see it.

    Args:
        title: what is shown, with its unit.
        lines: the name of each figure, and what its line is called; without the first there is no plot.
        moments: of the figures.
        run: from when to when.
    """
    values: dict[str, list[float | None]] = {name: [each[name] for each in moments] for name, _ in lines}
    known = [each for one in values.values() for each in one if each is not None]
    keys = "".join(
        f'<span class="{style} key">{label}</span>'
        for (_, label), style in zip(lines, STYLES, strict=False)
        if label
    )
    legend = f'<span class="keys">{keys}</span>' if keys else ""
    caption = f"<figcaption>{escape(title)}{legend}</figcaption>"
    if all(each is None for each in values[lines[0][0]]):
        return f"<figure>{caption}<p>no figure at any moment</p></figure>"
    most = top_of_scale(max(known))
    times = [_seconds(each["at"]) for each in moments]
    first, last = times[0], max(times[-1], times[0] + 1.0)

    def across(seconds: float) -> float:
        inner = WIDTH - LEFT - RIGHT
        return LEFT + inner * (min(max(seconds, first), last) - first) / (last - first)

    def up(value: float | None) -> float | None:
        return None if value is None else TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most)

    strokes = "".join(
        stroke
        for one, style in zip(values.values(), STYLES, strict=False)
        for stroke in _strokes([(across(t), up(v)) for t, v in zip(times, one, strict=True)], style)
    )
    begin, end = across(_seconds(run["startedAt"])), across(_seconds(run["endedAt"] or moments[-1]["at"]))
    words = "; ".join(_in_words(label, values[name]) for name, label in lines)
    return (
        f'<figure>{caption}<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{escape(f"{title}: {words}")}">'
        f"{_frame(begin, end, number_text(most), (moments[0]['at'], moments[-1]['at']))}{strokes}"
        "</svg></figure>"
    )


def top_of_scale(most: float) -> float:
    """Return the end of a scale that begins at 0: a round number, not under the largest figure."""
    if most <= 0:
        return 1.0
    power = 10.0 ** floor(log10(most))
    return next(step * power for step in ROUND if step * power >= most * (1 - 1e-9))


def _in_words(label: str, values: Sequence[float | None]) -> str:
    known = [each for each in values if each is not None]
    name = f"{label} " if label else ""
    if not known:
        return f"{name}no figure at any moment"
    return (
        f"{name}from {number_text(min(known))} to {number_text(max(known))}, at last "
        f"{number_text(known[-1])}; {len(values) - len(known)} of {len(values)} moments without a figure"
    )


def _frame(begin: float, end: float, most: str, times: tuple[str, str]) -> str:
    """Return axes with their numbers, and the part that is the run, by where it begins and ends."""
    bottom = HEIGHT - BOTTOM
    return (
        f'<rect class="span" x="{begin:.1f}" y="{TOP:g}" width="{max(1.0, end - begin):.1f}" '
        f'height="{bottom - TOP:g}"/>'
        f'<path class="axis" d="M{LEFT:g} {TOP:g}V{bottom:g}H{WIDTH - RIGHT:g}" fill="none"/>'
        f'<text x="{LEFT - 6:g}" y="{TOP + 10:g}" text-anchor="end">{most}</text>'
        f'<text x="{LEFT - 6:g}" y="{bottom:g}" text-anchor="end">0</text>'
        f'<text x="{LEFT:g}" y="{HEIGHT - 6:g}">{times[0][11:16]}</text>'
        f'<text x="{WIDTH - RIGHT:g}" y="{HEIGHT - 6:g}" text-anchor="end">{times[1][11:16]}</text>'
    )


def _strokes(points: Sequence[tuple[float, float | None]], style: str) -> Iterator[str]:
    """Yield a line for each stretch without a gap, and a dot for a moment that stands alone."""
    stretch: list[str] = []
    for x, y in (*points, (0.0, None)):
        if y is not None:
            stretch.append(f"{x:.1f},{y:.1f}")
            continue
        if len(stretch) == 1:
            across, _, up = stretch[0].partition(",")
            yield f'<circle class="{style} dot" cx="{across}" cy="{up}" r="2.5"/>'
        elif stretch:
            yield f'<polyline class="{style} data" points="{" ".join(stretch)}"/>'
        stretch = []


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
