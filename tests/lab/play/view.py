"""Where the story of a play is told while it is played."""

from __future__ import annotations

from typing import Protocol

from lab.play.scene import Scene


class View(Protocol):
    """One reader of the story."""

    def tell(self, elapsed: float, who: str, text: str) -> None:
        """Add one line to the story; `who` is one word."""

    def show(self, scene: Scene) -> None:
        """Show the present moment."""

    def close(self) -> None:
        """Give the terminal back."""


class Notes:
    """Keeps the story, for a file beside the requests of a play."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, elapsed: float, who: str, text: str) -> None:
        """Add one line to the story."""
        self.lines.append(f"{elapsed:7.1f}  {who:<9} {text}")

    def show(self, scene: Scene) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nothing is held."""
