"""The engine's grammar once more, on Python's own argparse: what the property tests compare with.

It shares the table of options with the editor and nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from kvmedic.engines.vllm import VLLM
from kvmedic.model.engine import Kind, Option, Scalar, Version

UNSET = object()


class Refused(Exception):  # noqa: N818 - what the engine does
    """argparse does not accept a list."""


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse has to say."""
        raise Refused(message)


def human(text: str) -> int:
    """Read 8, 2k and 2K."""
    text = text.strip()
    powers = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
    if text[-1:] not in powers:
        return int(text)
    factor = powers[text[-1]]
    return int(float(text[:-1]) * factor) if text[-1].islower() else int(text[:-1]) * factor


def human_or_auto(text: str) -> int:
    """Read the same, or `auto`."""
    return -1 if text.strip().lower() in {"-1", "auto"} else human(text)


TYPES: dict[Kind, Any] = {Kind.INT: int, Kind.FLOAT: float, Kind.HUMAN_INT: human}
TYPES |= {Kind.HUMAN_INT_OR_AUTO: human_or_auto, Kind.TEXT: str}


def parser_of(release: Version) -> Parser:
    """Return argparse set up with one release's options."""
    parser = Parser(prog="engine", add_help=False)
    parser.add_argument("model", nargs="?")
    for option in VLLM.options_of(release):
        add(parser, option)
    return parser


def add(parser: Parser, option: Option) -> None:
    """Declare one option."""
    if option.kind is Kind.SWITCH:
        names = [name for name in option.names if not name.startswith("--no-")]
        parser.add_argument(*names, dest=option.dest, action=argparse.BooleanOptionalAction, default=UNSET)
    elif option.kind in {Kind.PRESENCE, Kind.HELP}:
        parser.add_argument(*option.names, dest=option.dest, action="store_true", default=UNSET)
    else:
        nargs = None if option.arity == "1" else option.arity.value
        choices = option.choices or None
        read = TYPES[option.kind]
        if option.nullable:
            read = lambda text, inner=read: None if text in {"", "None"} else inner(text)  # noqa: E731
        parser.add_argument(
            *option.names, dest=option.dest, type=read, nargs=nargs, choices=choices, default=UNSET
        )


def parse(parser: Parser, arguments: Sequence[str]) -> dict[str, Scalar]:
    """Return what a list gives, by the engine's names.

    Raises:
        Refused: argparse does not accept the list.
    """
    dashed = []
    for word in arguments:
        name, joined, value = word.partition("=")
        dashed.append(name.replace("_", "-") + joined + value if word.startswith("--") else word)
    found = vars(parser.parse_args(dashed))
    return {dest: value for dest, value in found.items() if value is not UNSET and dest != "model"}
