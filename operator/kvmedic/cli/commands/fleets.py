"""Commands that look at fleets on a cluster and change nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from kvmedic.cli.options import (
    AnyResource,
    AsTable,
    Context,
    Everywhere,
    Kubeconfig,
    Namespace,
    done_by,
)


@done_by("kvmedic.cli.live.get:command")
def get(
    name: AnyResource = "",
    namespace: Namespace = "",
    everywhere: Everywhere = False,
    output: AsTable = "table",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """List fleets: state, reason, share served in time, the open run.

    Everything is as the operator last wrote it; no metrics are asked. IN TIME is known while a run is open.

    Exit code 0: it was printed; 2: wrong usage or configuration; 4: there is no such resource, or it may not
    be read.

    Example: kvmedic get -A
    """


@done_by("kvmedic.cli.live.watch:command")
def watch(
    name: AnyResource = "",
    namespace: Namespace = "",
    everywhere: Everywhere = False,
    lasts: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="End after this time, such as 10m.")
    ] = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Follow fleets as they change; on a terminal one live table, elsewhere a line for each change.

    Ctrl-C ends it. A connection that breaks is opened again.

    Exit code 0: it was ended; 2: wrong usage or configuration; 4: there is no such resource, or it may not be
    read.

    Example: kvmedic watch chat -n serving
    """


@done_by("kvmedic.cli.live.history:command")
def history(
    name: AnyResource = "",
    namespace: Namespace = "",
    everywhere: Everywhere = False,
    output: AsTable = "table",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """List runs that ended: what each changed, how it was judged, when, and how long it took.

    The status keeps the last ten runs of a resource; figures and cost are those of the newest that changed
    the fleet.

    Exit code 0: it was printed; 2: wrong usage or configuration; 4: there is no such resource, or it may not
    be read.

    Example: kvmedic history chat -n serving -o wide
    """
