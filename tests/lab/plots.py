"""`make plots`: draw the pictures of the docs from what benchmarks printed, kept in `tests/data/bench`.

    make bench-verdict FLEETS="--first 11001 --starving 100" | tee tests/data/bench/verdict.txt
    make bench-day | tee tests/data/bench/day.txt
    build/venv/bin/python -m lab.plots caps | tee tests/data/bench/caps.txt      # PYTHONPATH=operator:tests

The same text gives the same bytes: no date, no random names, letters as text. A white ground makes pictures
readable on light and dark pages.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from lab.bench.verdict import RULES
from lab.bench.workloads import WORKLOADS
from lab.world.fleet import UNCAPPED, serve
from lab.world.traffic import Load, capacities, closed_traffic, engine_of, mean_of, open_traffic

mpl.use("svg")
from matplotlib import pyplot as plt  # the backend comes first

ROOT = Path(__file__).parent.parent.parent
DATA, ASSETS = ROOT / "tests" / "data" / "bench", ROOT / "docs" / "assets"
GOOD, BAD, OTHER = "#0f766e", "#b91c1c", "#6b7280"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kvmedic",
    "font.size": 9,
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
}
CHAT, CLIENTS, SECONDS, WARM, LIMIT, SEED = WORKLOADS[0], 32, 1800.0, 600.0, 30.0, 7
CAPS = (6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40)
LOADS = (0.8, 0.9, 1.05)
"""Caps and loads of the sweep of `chat`; loads over what the best of these caps serves without a stall."""


def sweep_caps() -> str:
    """Return what each cap serves in time, of a closed loop and of arrivals that do not wait."""
    mean, sequence = mean_of(CHAT)
    running = CHAT.blocks / sequence.mean_blocks
    best = max(good for good, _ in capacities(CHAT, CAPS, running).values())
    most = round(1.5 * SECONDS * best / mean)
    worlds = {"closed": closed_traffic(CHAT, CLIENTS, 2 * most, SEED)} | {
        f"open {load}": open_traffic(CHAT, load * best / mean, SECONDS, Load(), SEED) for load in LOADS
    }
    lines = ["cap      " + "".join(f"{name:>12}" for name in worlds)]
    for cap in (*CAPS, UNCAPPED):
        served = [
            serve(engine_of(CHAT), [cap], traffic, 0, SECONDS).in_time(WARM, SECONDS, LIMIT)
            for traffic in worlds.values()
        ]
        name = "none" if cap == UNCAPPED else str(cap)
        lines.append(f"{name:9}" + "".join(f"{each:12.0f}" for each in served))
    return "\n".join(lines)


def _rows(path: Path) -> list[str]:
    return path.read_text().splitlines()


def draw_verdict(path: Path) -> None:
    """Draw which harm each rule keeps, and which better changes it takes back."""
    lines = _rows(path)
    begin = next(place for place, line in enumerate(lines) if line.startswith("all: "))
    names, kept, back = [], [], []
    for line in lines[begin + 2 : begin + 2 + len(RULES)]:
        names.append(line[2:36].strip())
        shares = [100 * int(a) / int(b) for a, b in re.findall(r"(\d+)/(\d+) =", line)]
        kept.append(shares[0])
        back.append(shares[1])
    figure, axes = plt.subplots(figsize=(7.2, 3.0))
    places = range(len(names))
    axes.barh([each - 0.2 for each in places], kept, 0.38, color=BAD, label="harm kept")
    axes.barh([each + 0.2 for each in places], back, 0.38, color=OTHER, label="better taken back")
    for place, values in ((-0.2, kept), (0.2, back)):
        for each, value in enumerate(values):
            axes.text(value + 0.4, each + place, f"{value:.0f} %", va="center")
    axes.set_yticks(list(places), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"% of such changes ({lines[begin].removeprefix('all: ')})")
    axes.legend(frameon=False)
    _save(figure, "verdict-rules.svg")


def draw_day(path: Path) -> None:
    """Draw what each rule loses to the best setting of each hour."""
    mixes: dict[str, dict[str, float]] = {}
    for line in _rows(path):
        if ": the pool holds" in line:
            found = mixes.setdefault(line.partition(",")[0], {})
        elif row := re.match(r"(no cap|only lowered|both ways(?:, from \d+)?)\s+\d+\s+(-?[\d.]+)%", line):
            found[row[1]] = float(row[2])
    figure, panels = plt.subplots(1, len(mixes), figsize=(7.2, 2.4), sharey=True)
    for axes, (mix, losses) in zip(panels, mixes.items(), strict=True):
        names, values = list(losses), list(losses.values())
        axes.barh(names, values, 0.6, color=[OTHER, BAD, GOOD, GOOD][: len(names)])
        for each, value in enumerate(values):
            axes.text(value + 0.5, each, f"{value:.1f} %", va="center")
        axes.set_xlim(0, 75)
        axes.set_title(mix, fontsize=9)
        axes.set_xlabel("% lost of what is served in time")
    panels[0].invert_yaxis()  # the panels share it
    _save(figure, "day-loss.svg")


def draw_caps(path: Path) -> None:
    """Draw what each cap serves in time."""
    head, *rows = _rows(path)
    worlds = re.split(r"\s{2,}", head.strip())[1:]
    cells = [row.split() for row in rows]
    capped = [row for row in cells if row[0] != "none"]
    free = next(row for row in cells if row[0] == "none")
    figure, axes = plt.subplots(figsize=(7.2, 3.2))
    for place, (world, color) in enumerate(zip(worlds, (BAD, OTHER, GOOD, "#1d4ed8"), strict=True), 1):
        dashes = "--" if world == "closed" else "-"
        caps, served = [int(row[0]) for row in capped], [float(row[place]) for row in capped]
        name = f"closed loop, {CLIENTS} clients" if world == "closed" else f"open, load {world.split()[1]}"
        axes.plot(caps, served, dashes, color=color, marker="o", markersize=3, label=name)
        axes.plot([caps[-1] + 4], [float(free[place])], "x", color=color)
    axes.set_xticks([*range(8, 41, 4), 44], [*map(str, range(8, 41, 4)), "none"])
    axes.set_xlabel("cap on running sequences (chat)")
    axes.set_ylabel("tokens/s served in time")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    _save(figure, "caps-open-closed.svg")


def _save(figure: plt.Figure, name: str) -> None:
    ASSETS.mkdir(exist_ok=True)
    figure.savefig(ASSETS / name, metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    plt.close(figure)


def main(arguments: Sequence[str]) -> int:
    """Draw all pictures, or print the sweep of caps; return 0."""
    if "caps" in arguments:
        print(sweep_caps())
        return 0
    with mpl.rc_context(STYLE):
        for draw, name in ((draw_verdict, "verdict"), (draw_day, "day"), (draw_caps, "caps")):
            draw(DATA / f"{name}.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
