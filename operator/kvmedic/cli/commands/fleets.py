"""Commands that look at fleets on a cluster and change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kvmedic.cli.app import Form
from kvmedic.cli.options import (
    AnyResource,
    AsTable,
    AsText,
    Context,
    EngineVersion,
    Everywhere,
    Kubeconfig,
    Namespace,
    Prometheus,
    ResourceName,
    Verbose,
    run_in,
)


@run_in("kvmedic.cli.live.get:command")
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


@run_in("kvmedic.cli.live.watch:command")
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


@run_in("kvmedic.cli.live.history:command")
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


Target = Annotated[str, typer.Argument(metavar="deploy/NAME", help="The Deployment, sts/NAME or lws/NAME.")]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", metavar="FILE", help="Manifests instead of a cluster; - is standard input."),
]


@run_in("kvmedic.cli.doctor:command")
def doctor(
    target: Target = "",
    namespace: Namespace = "",
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Every workload that starts a known engine.")
    ] = False,
    files: Files = None,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    prometheus: Prometheus = "",
    account: Annotated[
        str, typer.Option(metavar="NAME", help="The operator's service account, whose rights are asked for.")
    ] = "kvmedic",
    since: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="Also say what kvmedic would have done since then, such as 3d or 12h."
        ),
    ] = "",
    output: AsText = Form.TEXT,
) -> None:
    """Show all that stands between a fleet and a change: each precondition, the fix to type, and its risk.

    With --since the operator's own looks are made over the source's history, by range queries: when it would
    have opened a run, with which plan and figures, and when it would only have held.

    Nothing is written. A workload without a KVRemediation is looked at as if it had the one that kvmedic
    init writes, in mode Auto.

    Exit code 0: nothing stands in the way; 1: something does; 2: something is unknown, or the command
    could not look. What no file can show does not count with --file.

    Example: kvmedic doctor deploy/chat -n serving --since 3d, or kvmedic doctor -f namespace.yaml
    """


@run_in("kvmedic.cli.init:command")
def init(
    target: Target = "",
    namespace: Namespace = "",
    files: Files = None,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    mode: Annotated[
        Literal["Observe", "Approve", "Auto"], typer.Option(help="How far kvmedic may go.")
    ] = "Observe",
) -> None:
    """Print a KVRemediation that fits a Deployment, to be read and applied.

    Settings behind a # without a blank are taken in by removing it. Nothing is written anywhere.

    Exit code 0: it was printed; 2: wrong usage or an unusable file; 4: there is no such Deployment.

    Example: kvmedic init deploy/chat -n serving >kvr.yaml, then kubectl apply -f kvr.yaml
    """


@run_in("kvmedic.cli.diagnose:command")
def diagnose(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A KVRemediation of a cluster.")] = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    prometheus: Prometheus = "",
    url: Annotated[
        list[str] | None,
        typer.Option(
            "--url",
            metavar="[REPLICA=]URL",
            help="A running engine, such as http://10.0.0.7:8000; once per replica. It is asked twice.",
        ),
    ] = None,
    scrape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[REPLICA=]FILE",
            help="A saved /metrics page, the older first; two or more of each replica. No cluster is asked.",
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[REPLICA=]FILE",
            help="With pages: the beginning of an engine's log, which shows KV compression.",
        ),
    ] = None,
    interval: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Time between two scrapes, such as 5m; default: the engine's busy time, with --url 30s.",
        ),
    ] = "",
    at: Annotated[
        str,
        typer.Option(metavar="TIME", help="Look at this moment of the past (RFC 3339 or Unix seconds)."),
    ] = "",
    pod_regex: Annotated[
        str, typer.Option("--pod-regex", metavar="REGEX", help="With --at: the replicas' whole names.")
    ] = ".*",
    manifest: Annotated[
        str, typer.Option(metavar="FILE", help="The workload's manifest: what is set now.")
    ] = "",
    spec: Annotated[
        str,
        typer.Option(metavar="FILE", help="A KVRemediation: trigger, levers, windows; else its defaults."),
    ] = "",
    engine_version: EngineVersion = None,
    verbose: Verbose = False,
    output: AsText = Form.TEXT,
) -> None:
    """Look once: evidence, diagnosis and the plan that would follow. Nothing is written.

    At a fleet of a cluster, at running engines (--url), at saved pages (--scrape), or at a moment of the past
    (--at). A cluster is found as kubectl finds it: KUBECONFIG, else ~/.kube/config, else the pod's own
    service account.

    Exit code 0: a diagnosis was made, healthy or not; 2: wrong usage or an unusable file; 3: no diagnosis can
    be made, with what is missing; 4: there is no such resource or target.

    Example: kvmedic diagnose chat -n serving, or kvmedic diagnose --url http://10.0.0.7:8000
    """


@run_in("kvmedic.cli.plan:command")
def plan(
    name: ResourceName,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    prometheus: Prometheus = "",
    output: AsText = Form.TEXT,
) -> None:
    """Show the open run, or what would be planned right now: before, after, digest. Nothing is written.

    Exit code 0: the plan was printed, or that there is nothing to change; 2: wrong usage or configuration;
    3: no diagnosis can be made; 4: there is no such resource or target.

    Example: kvmedic plan chat -n serving
    """


@run_in("kvmedic.cli.explain:command")
def explain(
    name: ResourceName,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Also readings of trials, scores, and each change that did not help."
        ),
    ] = False,
    output: AsText = Form.TEXT,
) -> None:
    """Explain a resource in sentences: what is done or why nothing is, what it sees, what to type next.

    With -v it shows the last trial as a picture or a table; JSON has its readings. It also shows a method
    that was turned off, the fixes that failed since, each score, and the last switch of runbooks.

    Nothing is written and no metrics are asked.

    Exit code 0: it was printed; 2: wrong usage or configuration; 4: there is no such resource.

    Example: kvmedic explain chat -n serving
    """


@run_in("kvmedic.cli.live.run_report:command")
def report(
    name: ResourceName,
    run: Annotated[
        str, typer.Option("--run", metavar="ID", help="Which run; else the open one, else the newest.")
    ] = "",
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="FILE|md|json", help="A file ending in .md, .json or .html; or print."
        ),
    ] = "md",
    prometheus: Prometheus = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Report on one run: what happened, when, on which evidence, at what cost, and how to undo it.

    Figures over time are asked of the metrics source, by the operator's own looks; where it does not answer,
    the report says so and has the rest. Nothing is changed.

    Exit code 0: it was written; 2: wrong usage or configuration; 3: there is no such run; 4: there is no such
    resource, or it may not be read.

    Example: kvmedic report chat -n serving --prometheus http://localhost:9090 -o report.html
    """
