"""`kvmedic approve`: approve the plan that a resource in mode Approve waits with.

What is approved is the plan that the resource shows, as the operator last wrote it; no metrics are
asked. The approval is made in the name of whoever runs the command: the API server decides whether
they may, and its audit log says who it was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from kvmedic.api.approval import APPROVAL_PLURAL, approval_manifest
from kvmedic.api.schema import yaml_text
from kvmedic.cli.app import NOT_FOUND, REFUSED, USAGE, end_command
from kvmedic.cli.plan import (
    Context,
    Kubeconfig,
    Name,
    Namespace,
    finish_look,
    load_resource,
    name_in,
    settings_with,
)
from kvmedic.cluster.switches import APPROVALS
from kvmedic.kube.errors import Refused
from kvmedic.kube.kubeconfig import ClusterChoice
from kvmedic.kube.objects import JsonObject, Ref, section
from kvmedic.model.spec import Mode
from kvmedic.model.status import ConditionType, Record, Resource, ShownPlan
from kvmedic.wiring import Connected, open_connections


class NothingWaits(Exception):  # noqa: N818 - the name says what is wrong
    """The resource has no plan that an approval could be for, or not this one; the message says why."""


def command(
    name: Annotated[str, typer.Argument(help="The KVRemediation.")],
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

    Without --digest it asks, and where there is no terminal to ask on it approves nothing: a plan that
    nobody looked at is not approved. Exit code 0: it was approved; 2: wrong usage or configuration; 3: no
    such plan waits, or it was not approved; 4: there is no such resource, or approving is not allowed.
    """
    settings, cluster = settings_with(), ClusterChoice(kubeconfig, context)
    which = name_in(cluster, namespace, name)

    async def look() -> Resource:
        async with open_connections(settings, cluster) as world:
            return await load_resource(world, which)

    async def approve(manifest: JsonObject) -> JsonObject:
        async with open_connections(settings, cluster) as world:
            return await _create_approval(world, which, manifest)

    resource = finish_look(look())
    plan = _asked_for(resource, digest)
    print("\n".join(_describe_plan(resource, plan)), file=sys.stderr if only_print else sys.stdout)
    if not digest:
        _ask(name)
    manifest = approval_manifest(name, resource.uid, which.namespace, plan.digest)
    if only_print:
        sys.stdout.write(yaml_text(manifest))
        return
    made = finish_look(approve(manifest))
    print(f"approved   KVApproval {section(made, 'metadata')['name']}; it counts for one run")


def _asked_for(resource: Resource, digest: str) -> ShownPlan:
    """Return the plan that is to be approved; that there is none ends the command."""
    try:
        return waiting_plan(resource, digest)
    except NothingWaits as error:
        end_command(error, REFUSED)


def waiting_plan(resource: Resource, digest: str) -> ShownPlan:
    """Return the plan that a resource waits with.

    Args:
        digest: the plan that somebody looked at; empty: whichever is shown.

    Raises:
        NothingWaits: the mode asks for no approval, no plan is shown, or it is another one.
    """
    who = f"KVRemediation {resource.namespace}/{resource.name}"
    if resource.policy is None:
        why = resource.problem.message if resource.problem else "its spec cannot be followed"
        raise NothingWaits(f"{who} does nothing: {why}")
    if resource.policy.mode is not Mode.APPROVE:
        raise NothingWaits(f"{who} asks for no approval: spec.mode is {resource.policy.mode}, not Approve")
    record = resource.record or Record()
    if record.run is not None:
        raise NothingWaits(f"{who} waits for nothing: run {record.run.id} is open")
    if record.plan is None:
        raise NothingWaits(
            f"{who} shows no plan to approve; see why: "
            f"kvmedic explain {resource.name} -n {resource.namespace}"
        )
    if digest and digest != record.plan.digest:
        raise NothingWaits(
            f"the plan is {record.plan.digest} now, not {digest}; nothing was approved. Look at it first: "
            f"kvmedic explain {resource.name} -n {resource.namespace}"
        )
    return record.plan


def _describe_plan(resource: Resource, plan: ShownPlan) -> Iterator[str]:
    """Yield the plan as a person reads it before saying yes."""
    yield f"resource   {resource.namespace}/{resource.name}"
    yield f"digest     {plan.digest}, shown since {plan.at:%Y-%m-%dT%H:%M:%SZ}"
    yield from (f"plan       {step}" for step in plan.steps)
    yield f"because    {plan.reason}: {plan.message}"
    record = resource.record or Record()
    waits = record.condition(ConditionType.PROGRESSING)
    if waits is not None:
        yield f"waits for  {waits.reason}: {waits.message}"


def _ask(name: str) -> None:
    """Ask whether the plan is approved; anything but yes ends the command."""
    if not sys.stdin.isatty():
        end_command(
            f"nothing was approved: give --digest with the digest of the plan of {name} to approve", USAGE
        )
    if not typer.confirm("Approve this plan?", err=True):
        end_command("nothing was approved", REFUSED)


async def _create_approval(world: Connected, which: Name, manifest: JsonObject) -> JsonObject:
    """Return the approval as the API server made it; that it may not be made ends the command."""
    try:
        return await world.client.create(Ref(APPROVALS, which.namespace, which.name), manifest)
    except Refused as error:
        hint = (
            f"bind the ClusterRole kvmedic-approver to whoever approves; {APPROVAL_PLURAL} must be installed"
        )
        end_command(f"nothing was approved: {error}; {hint}", NOT_FOUND)
