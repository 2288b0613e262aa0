"""The play in a terminal: a calm live screen where there is one, plain lines with times everywhere else."""

from __future__ import annotations

import math
import sys
import textwrap
from collections import deque
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .scene import ReplicaLine, Scene

STATUS_SECONDS = 10.0
"""Between two status lines in the plain view."""
WIDTH = 100
KEPT = 14
"""Lines of the story that stay on the live screen."""


class View(Protocol):
    """Where the story is told."""

    def tell(self, elapsed: float, who: str, text: str) -> None:
        """Add one line to the story; `who` is one word."""

    def show(self, scene: Scene) -> None:
        """Show the present moment."""

    def close(self) -> None:
        """Give the terminal back."""


def view_for(stdout_is_terminal: bool) -> View:
    """Return the live screen for a terminal, the plain view otherwise."""
    return LiveView() if stdout_is_terminal else PlainView()


def clock(elapsed: float) -> str:
    """Return seconds as minutes and seconds."""
    return f"{int(elapsed) // 60:2d}:{int(elapsed) % 60:02d}"


def summary_line(scene: Scene) -> str:
    """Return the fleet and its clients in one line."""
    gap = "-" if math.isnan(scene.longest_gap_p95) else f"{scene.longest_gap_p95:.1f} s"
    running, waiting = (
        sum(getattr(each, name) for each in scene.replicas) for name in ("running", "waiting")
    )
    usages = [each.usage for each in scene.replicas if each.answers]
    usage = f"{sum(usages) / len(usages):.0%}" if usages else "-"
    return (
        f"{scene.in_rotation} in rotation | run {running} wait {waiting} | KV {usage} | "
        f"{scene.preemptions_per_second:.1f} preemptions/s | {scene.tokens_per_second:.0f} tok/s | "
        f"longest gap p95 {gap} | answered {scene.answered}, lost {scene.lost}"
    )


class PlainView:
    """One line per event; a status line every ten seconds."""

    def __init__(self) -> None:
        self._shown_at = -math.inf

    def tell(self, elapsed: float, who: str, text: str) -> None:
        """Print one line of the story."""
        _print(elapsed, who, text)

    def show(self, scene: Scene) -> None:
        """Print the status, if the last one is old enough."""
        if scene.elapsed - self._shown_at >= STATUS_SECONDS:
            self._shown_at = scene.elapsed
            _print(scene.elapsed, "fleet", summary_line(scene))

    def close(self) -> None:
        """Nothing is held."""


class LiveView:
    """A screen that is redrawn in place: the phase, each replica, the clients, the story so far."""

    def __init__(self) -> None:
        self._console = Console()
        self._story: deque[tuple[str, str, str]] = deque(maxlen=KEPT)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def tell(self, elapsed: float, who: str, text: str) -> None:
        """Add one line to the story."""
        self._story.append((clock(elapsed), who, text))

    def show(self, scene: Scene) -> None:
        """Redraw the screen."""
        head, foot = Text(scene.phase, style="bold"), Text(summary_line(scene))
        whole = Group(head, _replicas(scene), foot, self._told())
        self._live.update(Panel(whole, title=f"kvmedic {clock(scene.elapsed)}", title_align="left"))

    def close(self) -> None:
        """Take the screen away and leave the whole story behind as plain lines."""
        self._live.stop()
        for at, who, text in self._story:
            print(f"{at}  {who:<9} {text}")

    def _told(self) -> Table:
        story = Table.grid(padding=(0, 1))
        for at, who, text in self._story:
            story.add_row(Text(at, style="dim"), Text(who, style="cyan"), text)
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
    filled = round(each.usage * 10)
    bar = "█" * filled + "·" * (10 - filled)
    return (
        str(each.running),
        str(each.waiting),
        f"{bar} {each.usage:4.0%}",
        f"{each.preemptions_per_second:.1f}",
    )


def _print(elapsed: float, who: str, text: str) -> None:
    indent = " " * 17
    lines = textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False) or [""]
    print(f"{clock(elapsed)}  {who:<9} " + "\n".join(lines), flush=True)
    sys.stdout.flush()
