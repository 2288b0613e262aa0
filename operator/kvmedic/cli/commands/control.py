"""Commands to the operator, by what it honours already."""

from __future__ import annotations

from typing import Annotated

import typer

from kvmedic.cli.options import Context, Kubeconfig, Namespace, OperatorNamespace, ResourceName, Yes, run_in

RunId = Annotated[
    str, typer.Option("--run", metavar="ID", help="The run that was looked at; no other is meant.")
]


@run_in("kvmedic.cli.live.control:stop_everything")
def stop(
    why: Annotated[str, typer.Option(metavar="TEXT", help="For the person who finds the stop.")] = "",
    operator_namespace: OperatorNamespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Stop every forward move on every fleet, now. Fleets in the middle of a change stand still and serve.

    It makes the ConfigMap that the operator asks for before each effect. Ways back stay open.

    Exit code 0: the stop is on; 2: wrong usage or configuration; 4: no operator was found, or the ConfigMap
    may not be made.

    Example: kvmedic stop --why "incident 4711, ask Kim"
    """


@run_in("kvmedic.cli.live.control:resume")
def resume(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A suspended fleet; without it the stop of all ends.")
    ] = "",
    namespace: Namespace = "",
    operator_namespace: OperatorNamespace = "",
    yes: Yes = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Let one suspended fleet go on, or all fleets after `kvmedic stop`. Runs go on where they stood.

    Without NAME it shows who stopped everything and asks first.

    Exit code 0: it goes on; 2: wrong usage or configuration; 3: the stop is not on, or nobody said yes;
    4: there is no such resource, or it may not be changed.

    Example: kvmedic resume chat -n serving
    """


@run_in("kvmedic.cli.live.control:suspend_fleet")
def suspend(
    name: ResourceName,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Hold one fleet: nothing is begun, and an open run stands still with every replica in rotation.

    It sets spec.suspend. Looks and diagnoses go on, and so does a way back.

    Exit code 0: it is suspended; 2: wrong usage or configuration; 4: there is no such resource, or it may not
    be changed.

    Example: kvmedic suspend chat -n serving
    """


@run_in("kvmedic.cli.live.control:roll_back")
def rollback(
    name: ResourceName,
    run: RunId = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Have the open change taken back, one drained replica at a time. Stop and suspension do not hold that.

    It annotates the resource with the run's id, so a later run is never meant.

    Exit code 0: it was asked for; 2: wrong usage or configuration; 3: no such run is open, or it ends
    already; 4: there is no such resource, or it may not be changed.

    Example: kvmedic rollback chat -n serving
    """


@run_in("kvmedic.cli.live.control:keep_change")
def keep(
    name: ResourceName,
    run: RunId = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Have the open change kept without a verdict: a rollout that compares replicas goes on to all of them.

    It annotates the resource with the run's id, so a later run is never meant.

    Exit code 0: it was asked for; 2: wrong usage or configuration; 3: no such run is open, or it is taken
    back already; 4: there is no such resource, or it may not be changed.

    Example: kvmedic keep chat -n serving
    """


@run_in("kvmedic.cli.plan:approve_plan")
def approve(
    name: ResourceName,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    digest: Annotated[
        str, typer.Option(metavar="DIGEST", help="The plan that was looked at; no other is approved.")
    ] = "",
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the KVApproval for kubectl create, and create nothing.")
    ] = False,
) -> None:
    """Show the plan that waits for approval, and approve it.

    Without --digest it asks, and without a terminal it approves nothing: nobody would have seen the plan.

    Exit code 0: it was approved; 2: wrong usage or configuration; 3: no such plan waits, or it was not
    approved; 4: there is no such resource, or approving is not allowed.

    Example: kvmedic approve chat -n serving --digest 0123456789abcdef
    """
