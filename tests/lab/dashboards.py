"""`make dashboard-pictures`: what the chart's dashboards show of a play, kept in docs/assets.

A fleet in thrash is healed on the real cluster; then each panel asks the lab's Prometheus its own queries, as
Grafana would, and is drawn at its own place. It is not Grafana that draws.
"""

import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
from PIL import Image

from chart.dashboards import COLUMNS, DASHBOARDS, Query, Shown, fill_in, places_of
from lab.browser import LARGEST_PICTURE, PICTURES
from lab.cluster.native import choose
from lab.demo import NAMESPACE, PlainView
from lab.play.files import read
from lab.play.lanes import most_gpus
from lab.play.schema import FLEET
from lab.play.stage import stage
from lab.prometheus import Prometheus

mpl.use("agg")
from matplotlib import dates
from matplotlib import pyplot as plt  # the backend comes first
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

SCENARIO, STEP, INTERVAL = "thrash", 5.0, "1m"
"""Seconds between two moments of a line, and what Grafana would take for `$__rate_interval`."""
INCHES, DPI = 0.62, 84
"""Of one column of the grid."""
ROW, UNDER = 0.62, 2.4
"""Height of a row in columns, and the rows under a plot that its legend takes."""
COLOURS = 64
"""Of a picture: what is drawn has few, and a picture of few is a third as large."""
GROUND, SOFT = "#ffffff", "#6b7280"
UNITS = {"percentunit": "{:.0%}", "s": "{:g} s", "ops": "{:g}/s", "Bps": "{:.3g} B/s", "short": "{:g}"}
_LABEL = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True)
class Recorded:
    """A play that is over, as its Prometheus has it, between two Unix times."""

    prometheus: Prometheus
    began: float
    ended: float

    def series(self, query: Query) -> list[dict[str, Any]]:
        """Return the series that a panel shows of one of its queries."""
        text = fill_in(query.expression, NAMESPACE, FLEET, INTERVAL)
        return self.prometheus.query_range(text, self.began, self.ended, STEP)


def name_of(query: Query, labels: Mapping[str, str]) -> str:
    """Return what a line is called."""
    return _LABEL.sub(lambda found: labels.get(found[1], ""), query.legend)


def draw_lines(axes: Axes, panel: Shown, recorded: Recorded) -> None:
    """Draw every series of a panel over time."""
    for query in panel.queries:
        for one in recorded.series(query):
            moments = [datetime.fromtimestamp(at, UTC) for at, _ in one["values"]]
            values = [float(value) for _, value in one["values"]]
            axes.plot(moments, values, linewidth=1.2, label=name_of(query, one["metric"]))
    axes.set_ylim(0, panel.most)
    axes.set_xlim(*(datetime.fromtimestamp(at, UTC) for at in (recorded.began, recorded.ended)))
    axes.xaxis.set_major_locator(dates.MinuteLocator())
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: UNITS[panel.unit].format(value)))
    axes.tick_params(labelsize=6, colors=SOFT)
    axes.grid(color="#e5e7eb", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        under = {"loc": "upper left", "bbox_to_anchor": (-0.04, -0.09), "ncols": 3}
        axes.legend(fontsize=5, frameon=False, columnspacing=0.8, **under)


def rows_of(panel: Shown, recorded: Recorded) -> Iterator[str]:
    """Yield what a table or a number shows: the last values there were."""
    for query in panel.queries:
        for one in recorded.series(query):
            if panel.kind == "stat":
                yield UNITS[panel.unit].format(round(float(one["values"][-1][1]), 1))
            else:
                yield "   ".join(value for _, value in sorted(one["metric"].items()) if value)


def draw(name: str, recorded: Recorded) -> Path:
    """Draw one dashboard and return its file."""
    placed = list(places_of(DASHBOARDS[name]))
    rows = max(place["y"] + place["h"] for _, place in placed)
    figure = plt.figure(figsize=(COLUMNS * INCHES, rows * INCHES * ROW), facecolor=GROUND)
    for panel, place in placed:
        box = figure.add_axes(
            (
                (place["x"] + 0.75) / COLUMNS,
                1 - (place["y"] + place["h"] - UNDER) / rows,
                (place["w"] - 1.1) / COLUMNS,
                (place["h"] - UNDER - 1) / rows,
            )
        )
        box.set_title(panel.title, fontsize=8, loc="left", fontweight="bold")
        if panel.kind == "timeseries":
            draw_lines(box, panel, recorded)
            continue
        box.axis("off")
        text = "\n".join(rows_of(panel, recorded))
        size = 16 if panel.kind == "stat" else 7
        box.text(0, 0.9, text, fontsize=size, va="top", transform=box.transAxes)
    file = PICTURES / f"dashboard-{name}.png"
    figure.savefig(file, dpi=DPI)
    plt.close(figure)
    with Image.open(file) as drawn:
        few = drawn.convert("RGB").quantize(COLOURS)
    few.save(file, optimize=True)
    return file


def main() -> int:
    """Play, draw both dashboards, and fail on a picture that is too large to be kept in a repository."""
    scenario, began = read(SCENARIO), time.time()
    with (
        tempfile.TemporaryDirectory() as scratch,
        stage(choose(), [scenario], most_gpus([scenario], 1)) as made,
    ):
        with made.set(scenario, NAMESPACE, PlainView()) as play:
            result = play.run(Path(scratch))
        recorded = Recorded(made.prometheus, began + 30, time.time())
        files = [draw(name, recorded) for name in DASHBOARDS]
    for file in files:
        print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")
    for missed in result.missed:
        print(f"the play did not end as it should: {missed}")
    return int(bool(result.missed) or max(file.stat().st_size for file in files) > LARGEST_PICTURE)


if __name__ == "__main__":
    sys.exit(main())
