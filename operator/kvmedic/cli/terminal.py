"""How a command answers: the form of its output, its last words, its exit code.

It imports little, so that commands without a cluster answer at once.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import NoReturn

import typer

USAGE, REFUSED, NOT_FOUND = 2, 3, 4
"""Exit codes beside 0: wrong usage or configuration; no diagnosis can be made; there is no such object."""


class Form(StrEnum):
    """How a report is printed."""

    TEXT = "text"
    JSON = "json"


def ended(message: object, code: int) -> NoReturn:
    """End the command with a message on standard error."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)
