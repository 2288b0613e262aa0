"""Where the story of a play is told while it is played."""

from collections.abc import Sequence
from typing import Protocol

from lab.play.scene import Scene


class View(Protocol):
    """One reader of the story."""

    def tell(self, elapsed: float, who: str, text: str) -> None:
        """Add one line to the story; `who` is one word."""

    def draw(self, elapsed: float, who: str, lines: Sequence[str]) -> None:
        """Add a picture to the story; each character keeps its place."""

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

    def draw(self, elapsed: float, who: str, lines: Sequence[str]) -> None:
        for line in lines:
            self.tell(elapsed, who, line)

    def show(self, scene: Scene) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nothing is held."""
