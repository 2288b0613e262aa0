"""Options that several commands share, and how a command's help is kept apart from its work.

Help and completion must come at once, while the work needs the client, the models and the settings: over a
second of a processor. So a command is declared in `commands/`, which imports nothing heavy, and `run_in`
names the function that does its work, which is imported when it runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, Literal, ParamSpec, TypeAlias

import typer

from kvmedic.cli.app import Form

P = ParamSpec("P")


def call_later(place: str, *arguments: object) -> Any:
    """Call a `module:function` that is imported only now, as it needs what other calls do not."""
    return _import_now(place)(*arguments)


def _import_now(place: str) -> Callable[..., Any]:
    """Import what a `module:function` needs, without a look for garbage: there is none yet, and it takes an
    eighth of the time.
    """
    module, _, name = place.partition(":")
    was_on = gc.isenabled()
    gc.disable()
    try:
        found: Callable[..., Any] = getattr(import_module(module), name)
    finally:
        if was_on:
            gc.enable()
    return found


WORK: dict[Callable[..., object], str] = {}
"""Module and function that does the work of each declared command that was loaded."""


def run_in(place: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Name the `module:function` that does a declared command's work, with the same arguments."""

    def bind(declared: Callable[P, None]) -> Callable[P, None]:
        @wraps(declared)
        def command(*args: P.args, **kwargs: P.kwargs) -> None:
            _import_now(place)(*args, **kwargs)

        WORK[command] = place
        return command

    return bind


TableForm: TypeAlias = Literal["table", "wide", "json", "yaml"]
"""How a list is printed."""

ResourceName = Annotated[str, typer.Argument(metavar="NAME", help="The KVRemediation.")]
AnyResource = Annotated[str, typer.Argument(metavar="NAME", help="One KVRemediation; else all of them.")]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Its namespace; else the context's own, as with kubectl.")
]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="In all namespaces.")]
Context = Annotated[str, typer.Option("--context", help="Context of the kubeconfig; else its current one.")]
Kubeconfig = Annotated[
    str, typer.Option("--kubeconfig", metavar="FILE", help="Else KUBECONFIG, else ~/.kube/config.")
]
Prometheus = Annotated[
    str, typer.Option(metavar="URL", help="Ask this Prometheus instead of the configured source.")
]
AsTable = Annotated[TableForm, typer.Option("--output", "-o", help="How to print it.")]
AsText = Annotated[Form, typer.Option("--output", "-o", help="How to print it.")]
EngineVersion = Annotated[
    str | None,
    typer.Option(help="The engine's version, such as 0.32.0. By default the image's tag."),
]
OperatorNamespace = Annotated[
    str,
    typer.Option(
        "--operator-namespace", metavar="NAMESPACE", help="Where the operator runs; else it is looked for."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also every reading that it rests on.")]
