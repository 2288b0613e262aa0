"""A live resource as commands read it: loaded once, nothing written."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError

from kvmedic.cli.terminal import NOT_FOUND, USAGE, ended
from kvmedic.cluster.evaluations import Evaluations
from kvmedic.core.policy import Policy
from kvmedic.core.resource import Resource
from kvmedic.core.template import template_hash
from kvmedic.findings import Survey
from kvmedic.footprints import with_holder
from kvmedic.kube.errors import ApiError, NoCluster, Refused
from kvmedic.kube.kubeconfig import ClusterChoice, namespace_of
from kvmedic.kube.objects import DEPLOYMENTS, Ref, section
from kvmedic.metrics.options import SourceOptions
from kvmedic.obstacles import accompanied, proposed
from kvmedic.ports import Senses
from kvmedic.record.store import RESOURCES, resource_of
from kvmedic.settings import Settings, SettingsError, load
from kvmedic.survey import examine
from kvmedic.wiring import Connected, target_of

T = TypeVar("T")


class NotThere(Exception):  # noqa: N818 - the name says what is wrong
    """The resource or its target does not exist, or its spec cannot be followed; the message says which."""


@dataclass(frozen=True, slots=True)
class Name:
    """Which resource is meant."""

    namespace: str
    name: str


Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Its namespace; else the context's own, as with kubectl.")
]
Context = Annotated[str, typer.Option("--context", help="Context of the kubeconfig; else its current one.")]
Kubeconfig = Annotated[
    str, typer.Option("--kubeconfig", metavar="FILE", help="Else KUBECONFIG, else ~/.kube/config.")
]


def name_in(cluster: ClusterChoice, namespace: str, name: str) -> Name:
    """Return which resource is meant; a kubeconfig that cannot be used ends the command."""
    try:
        return Name(namespace or namespace_of(cluster), name)
    except NoCluster as error:
        ended(error, USAGE)


def settings_with(prometheus: str = "") -> Settings:
    """Return the settings, with one Prometheus behind every name where one is given.

    Settings that cannot be used end the command.
    """
    try:
        return with_source(load(), prometheus)
    except SettingsError as error:
        ended(error, USAGE)


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Return what a look at a cluster found; what keeps it from being made ends the command."""
    try:
        return asyncio.run(work)
    except (SettingsError, NoCluster) as error:
        ended(error, USAGE)
    except (NotThere, ApiError) as error:
        ended(error, NOT_FOUND)


async def load_resource(world: Connected, which: Name) -> Resource:
    """Return a resource as it is now.

    Raises:
        NotThere: there is none of that name.
    """
    body = await world.client.get(Ref(RESOURCES, which.namespace, which.name))
    if body is None:
        raise NotThere(f"KVRemediation {which.name} does not exist in namespace {which.namespace}")
    return resource_of(body)


async def template_of(world: Connected, resource: Resource) -> str:
    """Return the hash of the present pod template of a resource's target; empty where it is not known."""
    if resource.policy is None:
        return ""
    try:
        found = await world.client.get(Ref(DEPLOYMENTS, resource.namespace, resource.policy.target.name))
    except Refused as error:
        print(f"the present pod template is not known: {error}", file=sys.stderr)
        return ""
    return template_hash(section(found, "spec", "template")) if found else ""


async def surveyed(world: Connected, resource: Resource) -> Survey:
    """Return what a look at a resource's target finds; it is told to nobody else.

    Who may not read autoscalers and disruption budgets is shown the rest all the same.

    Raises:
        NotThere: the target does not exist, or the spec cannot be followed.
    """
    policy = _policy(resource)
    target = target_of(world)
    seen = await target.look(resource.namespace, policy)
    if seen is None:
        place = f"namespace {resource.namespace}"
        raise NotThere(f"Deployment {policy.target.name} does not exist in {place}")
    view = await with_holder(seen, resource.record.footprint if resource.record else None, target)
    # A look at an evaluation makes none, so it needs no more than the person's own rights.
    senses = Senses(world.metrics, target, drivers=world.drivers, evaluations=Evaluations(world.client))
    found = await examine(resource, policy, view, senses)
    try:
        return await accompanied(found, resource, policy, target)
    except Refused as error:
        print(f"autoscalers and disruption budgets were left out: {error}", file=sys.stderr)
        return proposed(found, resource, policy)


def with_source(settings: Settings, prometheus: str) -> Settings:
    """Return the settings with one Prometheus behind every name, where one was given.

    Raises:
        SettingsError: it is no URL of a Prometheus.
    """
    if not prometheus:
        return settings
    try:
        source = SourceOptions.model_validate({"url": prometheus})
    except ValidationError as error:
        why = "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors())
        raise SettingsError(f"--prometheus: {why}") from None
    names = {"default", *settings.sources}
    return settings.model_copy(update={"sources": dict.fromkeys(names, source)})


def _policy(resource: Resource) -> Policy:
    if resource.policy is not None:
        return resource.policy
    problem = resource.problem
    raise NotThere(f"{problem.reason}: {problem.message}" if problem else "the spec cannot be followed")
