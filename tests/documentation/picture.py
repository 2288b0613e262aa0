"""The pictures that follow from code: the README's, and that of one tick in docs/explanation/flow.md.

`chart.generated` writes them to docs/images/ with the other files that follow from code.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 880, 400
INK, PALE, OLD, NEW, DRAINING = "#1f2937", "#e5e7eb", "#94a3b8", "#16a34a", "#ffffff"
STAGES = (
    ("look", "metrics, fleet, nodes"),
    ("diagnose", "first branch that fits"),
    ("plan", "one value at a time"),
    ("roll out", "one by one, drained"),
    ("verify", "same load, sustained"),
)
"""The stages of a run, each with what it is about."""


@dataclass(frozen=True)
class Moment:
    """One row: what the replicas are at a moment of a rollout."""

    name: str
    replicas: str
    """A letter for each place: o old, d old and draining, n new, - none."""
    text: str


WALK = (
    Moment("before", "ooo-", "three replicas serve with the old value"),
    Moment("spare", "ooon", "one new replica comes up beside them: spare and canary; the rest is frozen"),
    Moment("drain", "doon", "one old replica leaves its Service and finishes what it has"),
    Moment("swap", "-oonn", "exactly that one goes, the next new one comes, and so on"),
    Moment("after", "---nnn", "kept if users are better off; else taken back in the same way"),
)

TICK_HEIGHT = 300
WITHOUT_RUN = (
    ("look", "survey.py", "evidence.py"),
    ("diagnose, plan", "plans.py", ""),
    ("may it begin?", "blockers.py", "spares.py"),
    ("open a run", "reconcile.py", "temporary.py"),
)
WITH_RUN = (
    ("judge", "replica_comparison.py", "verify.py"),
    ("decide", "execute.py", "next_move.py"),
    ("save the intent", "execute.py", ""),
    ("one effect", "trial.py", "temporary.py"),
)
"""What a tick does one after the other without an open run, and with one: each with its files."""


def picture() -> str:
    """Return the README's picture as an SVG document."""
    title = "What kvmedic does, and what a change does to three replicas"
    return _document(title, HEIGHT, (*_loop(), *_walk()))


def tick_picture() -> str:
    """Return the way of one tick through the files of `controller/` as an SVG document."""
    return _document("One tick: the files that it goes through", TICK_HEIGHT, _tick())


def _document(title: str, height: int, parts: Iterable[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            'font-family="Helvetica, Arial, sans-serif" font-size="13">',
            f"<title>{title}</title>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _tick() -> Iterator[str]:
    wide, tall, middle = 140, 66, TICK_HEIGHT / 2
    yield from _stage(20, middle - tall / 2, wide, ("load", "reconcile.py", "orphans.py, finalizer.py"))
    yield from _stage(700, middle - tall / 2, 160, ("save the outcome", "through ports.py, by record/", ""))
    for top, name, stages in ((50, "no open run", WITHOUT_RUN), (204, "an open run", WITH_RUN)):
        yield _text(190, top - 14, name, bold=True)
        for index, stage in enumerate(stages):
            left = 190 + index * 124
            yield from _stage(left, top, 112, stage)
            if index:
                yield _arrow(f"M{left - 12} {top + tall / 2}H{left - 1}")
        yield _arrow(f"M{160} {middle}H{174}V{top + tall / 2}H{189}")
        yield _arrow(f"M{674} {top + tall / 2}H{686}V{middle}H{699}")


def _stage(left: float, top: float, wide: float, stage: tuple[str, str, str]) -> Iterator[str]:
    name, *files = stage
    yield f'<rect x="{left:g}" y="{top:g}" width="{wide:g}" height="66" rx="6" fill="{PALE}"/>'
    yield _text(left + wide / 2, top + 22, name, bold=True, middle=True)
    lines = (_text(left + wide / 2, top + 40 + row * 15, file, middle=True) for row, file in enumerate(files))
    yield f'<g font-size="10">{"".join(lines)}</g>'


def _loop() -> Iterator[str]:
    wide, gap, top = 150, 22, 24
    for index, (name, about) in enumerate(STAGES):
        left = 20 + index * (wide + gap)
        yield f'<rect x="{left}" y="{top}" width="{wide}" height="52" rx="6" fill="{PALE}"/>'
        yield _text(left + wide / 2, top + 22, name, bold=True, middle=True)
        yield f'<g font-size="11">{_text(left + wide / 2, top + 40, about, middle=True)}</g>'
        if index:
            yield _arrow(f"M{left - gap} {top + 26}H{left - 1}")
    last, fourth = 20 + 4 * (wide + gap) + wide / 2, 20 + 3 * (wide + gap) + wide / 2
    yield _arrow(f"M{last} {top + 52}V{top + 72}H{fourth}V{top + 54}")
    yield _text(fourth - 8, top + 76, "no better: that one value goes back", end=True)


def _walk() -> Iterator[str]:
    for row, moment in enumerate(WALK):
        middle = 142 + row * 44
        yield _text(24, middle + 5, moment.name, bold=True)
        for place, kind in enumerate(moment.replicas):
            if kind != "-":
                yield _replica(112 + place * 40, middle, kind)
        yield _text(350, middle + 5, moment.text)
    for place, (kind, text) in enumerate((("o", "old"), ("d", "old, draining"), ("n", "new"))):
        left = 37 + place * 160
        yield _replica(left, HEIGHT - 30, kind)
        yield _text(left + 22, HEIGHT - 25, text)


def _replica(x: float, y: float, kind: str) -> str:
    fill, stroke, dashes = {
        "o": (OLD, OLD, ""),
        "d": (DRAINING, OLD, ' stroke-dasharray="4 3"'),
        "n": (NEW, NEW, ""),
    }[kind]
    return f'<circle cx="{x}" cy="{y}" r="13" fill="{fill}" stroke="{stroke}" stroke-width="2"{dashes}/>'


def _arrow(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.5" marker-end="url(#tip)"/>'


def _text(
    x: float, y: float, text: str, *, bold: bool = False, middle: bool = False, end: bool = False
) -> str:
    anchor = "middle" if middle else "end" if end else "start"
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" fill="{INK}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
