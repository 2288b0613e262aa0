"""The command as a whole: its name, version, subcommands and exit codes.

Help must come at once, so a subcommand's module is imported only when the subcommand is asked for.
A module has either an `app`, when it holds several commands, or a function: `command`, or the one named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from kvmedic import __version__

SUBCOMMANDS = {
    "diagnose": (
        "kvmedic.cli.diagnose",
        "Look at one fleet once (live, saved pages, or the past) and print what follows.",
    ),
    "judge": (
        "kvmedic.cli.judge",
        "Judge a canary: saved pages of new replicas against those of old ones.",
    ),
    "plan": ("kvmedic.cli.plan", "Show the open run, or what would be planned: before, after, digest."),
    "explain": ("kvmedic.cli.explain", "Explain a resource: what is seen, why it acts or not, what to type."),
    "approve": (
        "kvmedic.cli.plan:approve_plan",
        "Approve the plan that a resource in mode Approve waits with.",
    ),
    "run": ("kvmedic.cli.run", "Run the operator."),
    "crd": ("kvmedic.cli.crd", "Print the CustomResourceDefinitions, or their reference pages."),
    "blocks": ("kvmedic.cli.blocks", "Say how many cache blocks an eviction of tokens frees."),
    "flags": ("kvmedic.cli.flags", "Show and change engine flags in manifest files, without a cluster."),
}
"""Each subcommand's module and what help says of it."""


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the command with those subcommands loaded that the arguments ask for."""
    app = typer.Typer(
        name="kvmedic",
        help="Heal vLLM fleets that thrash on KV cache: look, decide, change one thing, verify, "
        "undo if it did not help.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, (module, summary) in SUBCOMMANDS.items():
        if name in arguments:
            _load(app, name, module, summary)
        else:
            app.command(name, help=summary)(_not_loaded)
    return app


def _load(app: typer.Typer, name: str, module: str, summary: str) -> None:
    path, _, function = module.partition(":")
    loaded = import_module(path)
    if hasattr(loaded, "app"):
        app.add_typer(loaded.app, name=name, help=summary)
    else:
        command: Callable[..., None] = getattr(loaded, function or "command")
        app.command(name, help=summary)(command)


def _not_loaded() -> None:
    """Stand in the list of subcommands for one that is not asked for."""


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


def end_command(message: object, code: int) -> NoReturn:
    """End the command with a message on standard error."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)
