"""`make demo`: one scenario of `lab/scenarios` in a terminal; exit 1 for an end that is not the expected one.

SCENARIO=thrash|healthy|bad-canary|compression or any other name of a file there; ENGINE=lab|vllm. What is
played, and the runner, are `lab.play`'s; here is only how it is shown: a calm live screen where there is a
terminal, plain lines with times everywhere else, and a table of before, during and after at the end.
"""

import json
import math
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lab.cluster.api import ApiError
from lab.cluster.machine import KUBECONFIG, ROOT, say
from lab.cluster.native import choose
from lab.play.figures import Figures
from lab.play.files import names, read
from lab.play.lanes import most_gpus
from lab.play.result import Result
from lab.play.schema import FLEET, Engine, Scenario
from lab.play.stage import stage
from lab.play.story import ReplicaLine, Scene, View

STATUS_SECONDS = 15.0
"""Between two looks at every replica in the plain view."""
WIDTH = 112
INDENT = " " * 17
KEPT = 14
"""Lines of the story that stay on the live screen."""
PICTURE_SECONDS = 20.0
"""How long a picture takes the place of replicas and story there: read twice, and both are missed."""


def view_for(stdout_is_terminal: bool) -> View:
    return LiveView() if stdout_is_terminal else PlainView()


def clock(elapsed: float) -> str:
    return f"{int(elapsed) // 60:2d}:{int(elapsed) % 60:02d}"


def summary_line(scene: Scene) -> str:
    gap = "-" if math.isnan(scene.longest_gap_p95) else f"{scene.longest_gap_p95:.1f} s"
    return (
        f"{scene.in_rotation} in rotation | {scene.preemptions_per_second:.1f} preemptions/s | "
        f"{scene.tokens_per_second:.0f} tokens/s | longest gap p95 {gap} | "
        f"lost {scene.lost} of {scene.answered}"
    )


def replica_line(each: ReplicaLine) -> str:
    head = f"{each.name}  cap {each.cap:<4} {each.state:<12}"
    if not each.answers:
        return head.rstrip()
    return (
        f"{head} {each.running:3d} running {each.waiting:3d} waiting   KV {_bar(each.usage)}   "
        f"{each.preemptions_per_second:4.1f} preemptions/s"
    )


def memory_line(scene: Scene) -> str:
    """Return what a dashboard of the GPUs shows in one line; empty where there is none."""
    used = ", ".join(f"{pod} {mib:.0f} MiB" for pod, mib in scene.device_mib.items())
    return f"GPU memory in use: {used}" if used else ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the story."""

    elapsed: float
    who: str
    lines: tuple[str, ...]
    short: str
    """In one line."""

    def print(self) -> None:
        print(f"{clock(self.elapsed)}  {self.who:<9} " + f"\n{INDENT}".join(self.lines), flush=True)


def line_of(elapsed: float, who: str, text: str) -> Entry:
    """Return a line of the story, broken at spaces."""
    lines = textwrap.wrap(text, WIDTH - len(INDENT), break_long_words=False, break_on_hyphens=False)
    return Entry(elapsed, who, tuple(lines), text)


class PlainView:
    """One line per event; a look at every replica each quarter of a minute."""

    def __init__(self) -> None:
        self._shown_at = -math.inf

    def add_line(self, elapsed: float, who: str, text: str) -> None:
        line_of(elapsed, who, text).print()

    def draw(self, elapsed: float, who: str, lines: Sequence[str]) -> None:
        Entry(elapsed, who, tuple(lines), "").print()

    def show(self, scene: Scene) -> None:
        """Print the status, if the last one is old enough."""
        if scene.elapsed - self._shown_at >= STATUS_SECONDS:
            self._shown_at = scene.elapsed
            line_of(scene.elapsed, "fleet", summary_line(scene)).print()
            for line in filter(None, (*map(replica_line, scene.replicas), memory_line(scene))):
                print(f"{INDENT}{line}", flush=True)

    def close(self) -> None:
        """Nothing is held."""


class LiveView:
    """A screen that is redrawn in place: the phase, each replica, the clients, the story so far."""

    def __init__(self) -> None:
        self._console = Console()
        self._story: list[Entry] = []
        self._picture: Entry | None = None
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)

    def add_line(self, elapsed: float, who: str, text: str) -> None:
        self._story.append(line_of(elapsed, who, text))

    def draw(self, elapsed: float, who: str, lines: Sequence[str]) -> None:
        """Add a picture to the story, and show it for a while."""
        self._picture = Entry(elapsed, who, tuple(lines), lines[-1])
        self._story.append(self._picture)

    def show(self, scene: Scene) -> None:
        """Draw the screen anew; it begins with the first scene."""
        if not self._live.is_started:
            self._live.start()
        head, foot = Text(scene.phase, style="bold"), Text(summary_line(scene))
        memory = [Text(memory_line(scene))] if scene.device_mib else []
        drawn = self._picture
        if drawn is not None and scene.elapsed - drawn.elapsed < PICTURE_SECONDS:
            whole = Group(head, Text("\n".join(drawn.lines), no_wrap=True), foot, *memory)
        else:
            whole = Group(head, _replicas(scene), foot, *memory, self._draw_story())
        self._live.update(Panel(whole, title=f"kvmedic {clock(scene.elapsed)}", title_align="left"))

    def close(self) -> None:
        """Take the screen away and leave the whole story behind as plain lines."""
        self._live.stop()
        for each in self._story:
            each.print()

    def _draw_story(self) -> Table:
        story = Table.grid(padding=(0, 1))
        for each in self._story[-KEPT:]:
            story.add_row(
                Text(clock(each.elapsed), style="dim"), Text(each.who, style="cyan"), Text(each.short)
            )
        return story


def _replicas(scene: Scene) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("replica", "cap", "state"):
        shown.add_column(column)
    for column in ("running", "waiting", "KV cache", "preemptions/s"):
        shown.add_column(column, justify="right")
    for each in scene.replicas:
        shown.add_row(each.name, each.cap, each.state, *_numbers(each))
    return shown


def _numbers(each: ReplicaLine) -> tuple[str, ...]:
    if not each.answers:
        return ("", "", "", "")
    rate = f"{each.preemptions_per_second:.1f}"
    return str(each.running), str(each.waiting), _bar(each.usage), rate


def _bar(usage: float) -> str:
    """Return a ratio as a bar of ten with its percentage."""
    filled = round(usage * 10)
    return f"{'█' * filled}{'·' * (10 - filled)} {usage:4.0%}"


TABLE_WIDTH = 78
LABEL, COLUMN = 34, 11
Row = tuple[str, ...]


def table(result: Result) -> str:
    lines = ["", _rule(), *_head(result), _rule()]
    if result.before is not None and result.after is not None:
        lines += [*_figures(result), _rule()]
    lines += [*_facts(result), _rule(), *_end(result), ""]
    return "\n".join(lines)


def _figures(result: Result) -> list[str]:
    """Return the figures of before, during and after, and what the same minutes would have been otherwise."""
    seen = {"before": result.before, "during": result.during, "after": result.after}
    shown = {name: each for name, each in seen.items() if each is not None}
    figures, without = [*shown.values()], [result.unhealed.get(name) for name in shown]
    rows: list[Row] = [("", *shown), ("served in time, tokens/s", *_cells(figures, "in_time_per_second", 0))]
    if result.unhealed:
        rows.append(("the same without kvmedic*", *(_cell(each, 0) for each in without)))
    rows += [(label, *_cells(figures, *figure)) for label, *figure in FIGURES]
    lines = [_row(row) for row in rows]
    late = f"first token within {result.scenario.first_token_limit:g} s, and no gap over 2 s"
    lines += _wrapped("in time", late)
    if result.unhealed:
        text = "the same arrivals at the fleet as it was, simulated: the mean of several routings"
        lines += _wrapped("*", text)
    return lines


FIGURES: tuple[tuple[Any, ...], ...] = (
    ("all tokens per second", "tokens_per_second", 0),
    ("time to first token, p95", "ttft_p95", 1, " s"),
    ("longest gap of a request, p95", "longest_gap_p95", 2, " s"),
    ("requests that hung over 2 s", "stalled_share", 2),
    ("clients that left unanswered", "left_share", 2),
    ("preemptions per request", "preemptions_per_request", 2),
    ("requests that were answered", "requests", 0),
)
"""Lines of the table: label, figure, digits, unit."""


def _cells(figures: Sequence[Figures], name: str, digits: int, unit: str = "") -> tuple[str, ...]:
    return tuple(_cell(getattr(each, name), digits, unit) for each in figures)


def _cell(value: float | None, digits: int, unit: str = "") -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}{unit}"


def _head(result: Result) -> list[str]:
    lines = [f"  {result.scenario.name}: {result.scenario.title}"]
    if result.plan:
        lines += _wrapped("plan", result.plan)
    return [*lines, *_wrapped("verdict", f"{result.verdict}: {result.message}".rstrip(": "))]


def _facts(result: Result) -> list[str]:
    rows: list[Row] = [
        ("requests over the whole run", str(result.requests)),
        ("failed or aborted requests", str(result.failed_requests)),
        *_kept(result),
        ("fewest replicas in rotation", f"{result.min_in_rotation} of {result.scenario.fleet.replicas}"),
        ("restarts per replica", f"{result.restarts_per_replica:g}"),
        ("objects of the fleet written to", str(len(result.rewritten))),
        ("seconds, first request to last", f"{result.seconds:.0f}"),
    ]
    if result.operator:
        memory, cpu = result.operator["rss_mib"], result.operator["cpu_share"]
        rows.append(("operator: memory, CPU", f"{memory:.0f} MiB", f"{cpu:.1%}"))
    return [_row(row) for row in rows]


def _kept(result: Result) -> list[Row]:
    """Return what became of requests on connections that their clients keep, where there are any."""
    if not result.kept_requests:
        return []
    return [("the same on kept connections", f"{result.failed_kept_requests} of {result.kept_requests}")]


def _end(result: Result) -> list[str]:
    if not result.missed:
        return ["  as it should be"]
    return [line for miss in result.missed for line in _wrapped("MISSED", miss)]


def _row(row: Row) -> str:
    return f"  {row[0]:<{LABEL}}" + "".join(f"{each:>{COLUMN}}" for each in row[1:])


def _rule() -> str:
    return "  " + "-" * (TABLE_WIDTH - 2)


def _wrapped(label: str, text: str) -> list[str]:
    """Return a text under a label, broken at spaces."""
    lines = textwrap.wrap(text, TABLE_WIDTH - 13, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"  {label if not number else '':<9}{each}" for number, each in enumerate(lines)]


OUT = ROOT / "build" / "demo"
NAMESPACE = "serving"
"""Where the fleet stays afterwards, for a look."""
KVMEDIC = (sys.executable, "-m", "kvmedic")
NO_RUN = 3
"""Exit code of `kvmedic report` where no run was made, as with a healthy fleet."""
REPORT_SECONDS = 120.0
"""For all looks at the run's half hour; two seconds where nothing else is busy."""


def main() -> int:
    """Set the stage, play, show the table, write the summary."""
    started = time.time()
    try:
        chosen = scenario(os.environ.get("SCENARIO") or "thrash", os.environ.get("ENGINE") or "lab")
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "summary.json").unlink(missing_ok=True)
        with (
            stage(choose(), [chosen], most_gpus([chosen], 1)) as made,
            closing(view_for(sys.stdout.isatty())) as view,
            made.set(chosen, NAMESPACE, view) as play,
        ):
            result = play.run(OUT)
            report = write_report(made.prometheus.url, OUT / "report.html")
    except KeyboardInterrupt:
        say("interrupted; the next `make demo` starts afresh, `make lab-down` removes everything")
        return 130
    except (RuntimeError, OSError, LookupError, ValueError, ApiError) as error:
        say(str(error))
        return 1
    summary = result.as_json() | {"seconds_in_all": round(time.time() - started, 1)}
    (OUT / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(table(result))
    say(report.line)
    say("the fleet stays for a look (kubectl get kvr -A); `make lab-down` removes everything")
    return 1 if result.missed or not report.is_well else 0


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the report on the run that was played."""

    is_well: bool
    line: str


def write_report(
    prometheus: str, file: Path, kubeconfig: Path = KUBECONFIG, kvmedic: Sequence[str] = KVMEDIC
) -> Written:
    """Write the report by `kvmedic report`, while Prometheus is there; one of an earlier demo goes first."""
    file.unlink(missing_ok=True)
    argv = [*kvmedic, "report", FLEET, "-n", NAMESPACE, "--prometheus", prometheus, "-o", str(file)]
    argv += ["--kubeconfig", str(kubeconfig)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=REPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Written(False, f"ERROR: no report on the run: it was not made in {REPORT_SECONDS:g} s")
    answer = " ".join((done.stderr or done.stdout).split())
    if done.returncode == NO_RUN:
        return Written(True, f"no report: {answer}")
    if done.returncode != 0:
        return Written(False, f"ERROR: no report on the run (exit code {done.returncode}): {answer}")
    return Written(True, f"the report on the run: {file}")


def scenario(name: str, engine: str) -> Scenario:
    """Return a scenario; that of real vLLM stands in a file of its own, `NAME-vllm.yaml`."""
    if engine not in tuple(Engine):
        raise ValueError(f"ENGINE={engine}: there are {', '.join(Engine)}")
    if engine == Engine.LAB:
        return read(name)
    if f"{name}-{engine}" not in names():
        real = [each.removesuffix(f"-{engine}") for each in names() if each.endswith(f"-{engine}")]
        raise ValueError(f"SCENARIO={name} has no variant with ENGINE={engine}; {', '.join(real)} has")
    return read(f"{name}-{engine}")


if __name__ == "__main__":
    sys.exit(main())
