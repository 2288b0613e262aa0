"""The command as a whole: its name, version, subcommands and exit codes.

Help must come at once, so a subcommand's module is imported only for that subcommand.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from importlib import import_module
from shutil import get_terminal_size
from textwrap import wrap
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from kvmedic import __version__

SUBCOMMANDS = {
    "doctor": (
        "kvmedic.cli.commands.fleets:doctor",
        "Show all that stands between a fleet and a change, before there is trouble.",
    ),
    "init": (
        "kvmedic.cli.commands.fleets:init",
        "Print a KVRemediation that fits a Deployment, with comments.",
    ),
    "get": ("kvmedic.cli.commands.fleets:get", "List fleets: state, reason, open run, since when."),
    "watch": ("kvmedic.cli.commands.fleets:watch", "Follow fleets as they change."),
    "diagnose": (
        "kvmedic.cli.commands.fleets:diagnose",
        "Look at one fleet once (live, saved pages, or the past): evidence, diagnosis and plan.",
    ),
    "judge": (
        "kvmedic.cli.commands.offline:judge",
        "Judge a canary: compare saved pages of new replicas with those of old ones.",
    ),
    "plan": ("kvmedic.cli.commands.fleets:plan", "Show the open run, or the plan that would follow now."),
    "explain": (
        "kvmedic.cli.commands.fleets:explain",
        "Explain a resource: what is done or why nothing is, what it sees, what to type next.",
    ),
    "history": ("kvmedic.cli.commands.fleets:history", "List runs that ended: change, verdict, time."),
    "report": ("kvmedic.cli.commands.fleets:report", "Report on one run: Markdown, JSON or a page."),
    "approve": ("kvmedic.cli.commands.control:approve", "Approve the plan of a resource in mode Approve."),
    "keep": ("kvmedic.cli.commands.control:keep", "Have the open change kept without a verdict."),
    "rollback": ("kvmedic.cli.commands.control:rollback", "Have the open change taken back."),
    "suspend": ("kvmedic.cli.commands.control:suspend", "Hold one fleet."),
    "stop": ("kvmedic.cli.commands.control:stop", "Stop every forward move on every fleet, now."),
    "resume": ("kvmedic.cli.commands.control:resume", "Go on after suspend or stop."),
    "run": ("kvmedic.cli.commands.offline:run_operator", "Run the operator."),
    "crd": (
        "kvmedic.cli.commands.offline:crd",
        "Print the CustomResourceDefinitions, or their reference pages.",
    ),
    "blocks": (
        "kvmedic.cli.commands.offline:count_blocks",
        "Compute how many cache blocks an eviction of tokens frees.",
    ),
    "probe": (
        "kvmedic.cli.commands.offline:probe",
        "See on a running engine whether blocks of evicted tokens come back.",
    ),
    "flags": (
        "kvmedic.cli.commands.offline:flags_app",
        "Show and change engine flags in manifest files, without a cluster.",
    ),
    "completion": (
        "kvmedic.cli.commands.offline:completion",
        "Print the script by which a shell completes commands.",
    ),
    "version": ("kvmedic.cli.commands.offline:show_version", "Print the versions of command and API."),
}
"""Each subcommand's module and function, or its own commands; and what help says of it."""
HIDDEN = frozenset({"run"})
"""Not in the list: a pod runs it."""


COMPLETE = "_KVMEDIC_COMPLETE"
"""Environment variable in which a shell asks for words that complete a command (`kvmedic completion`)."""


def typed_words() -> list[str]:
    """Return what was typed: the arguments, or the words that a shell asks to be completed."""
    if COMPLETE not in os.environ:
        return sys.argv[1:]
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return typed.split()[1:]


class Commands(TyperGroup):
    """All subcommands."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return `--help` with a default: to read None as False, typer 0.29 loads pydantic, for 0.25 s."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the command with those subcommands loaded that the arguments name."""
    app = typer.Typer(
        name="kvmedic",
        cls=Commands,
        help="Heal vLLM fleets that thrash on KV cache: look, decide, change one thing, verify, "
        "undo it if it did not help.",
        no_args_is_help=True,
        add_completion=COMPLETE in os.environ,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, (place, summary) in SUBCOMMANDS.items():
        module, _, member = place.partition(":")
        found = getattr(import_module(module), member) if name in arguments else _stand_in_for_command
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, short_help=summary)
        else:
            app.command(name, short_help=summary, hidden=name in HIDDEN)(found)
    return app


def _stand_in_for_command() -> None:
    """Stand in the list of subcommands for one that the arguments do not name."""


def _print_version(asked: bool) -> None:
    if asked:
        print(f"kvmedic {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """Take the options that belong to no subcommand."""


USAGE, REFUSED, NOT_FOUND = 2, 3, 4
"""Exit codes beside 0: wrong usage or configuration; no diagnosis can be made; there is no such object."""


class Form(StrEnum):
    """How a report is printed."""

    TEXT = "text"
    JSON = "json"


COLOURS = {
    "ELIGIBLE": "green",
    "NOT ELIGIBLE": "red",
    "UNKNOWN": "yellow",
    "pass": "green",
    "FAIL": "red",
    "unknown": "yellow",
}
"""Of words with which a line begins."""
TYPED = ("next", "type", "fix:", "better:")
"""Labels before what is typed: it is not broken, so that it can be copied."""
_LABELS = re.compile(r" *(?:\S+ {2,}){1,2}")


def show_text(text: Iterable[str]) -> None:
    """Print the lines of a text; on a terminal each goes on beside its label, and labels stand out."""
    lines = [line for part in text for line in part.split("\n")]
    if sys.stdout.isatty():
        is_coloured = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = get_terminal_size().columns
        lines = [shown for line in lines for shown in _fit(line, width, is_coloured)]
    print("\n".join(lines))


def _fit(line: str, width: int, is_coloured: bool) -> Iterator[str]:
    """Yield a line of a text as a terminal of that width shows it."""
    found = _LABELS.match(line)
    labels = found.group() if found else ""
    words = labels.split()
    first, *rest = [line]
    if words and words[-1] not in TYPED:
        first, *rest = wrap(line, width, subsequent_indent=" " * min(len(labels), width // 3))
    word = next((each for each in COLOURS if line.lstrip().startswith(f"{each} ")), "".join(words[:1]))
    if is_coloured and word:
        first = first.replace(word, typer.style(word, bold=True, fg=COLOURS.get(word)), 1)
    yield first
    yield from rest


def end_command(message: object, code: int) -> NoReturn:
    """End the command with a message on standard error."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)
