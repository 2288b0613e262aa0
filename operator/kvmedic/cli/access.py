"""How a command reaches a cluster, which resource it is about, and what ends it on the way there.

It needs the API server alone: no metrics source is opened, so it works where only kubectl does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from kvmedic.cli.app import NOT_FOUND, USAGE, end_command
from kvmedic.kube.client import Client, Limits, connect
from kvmedic.kube.errors import ApiError, NoCluster
from kvmedic.kube.kubeconfig import ClusterChoice, find_kubeconfig, namespace_of
from kvmedic.kube.objects import JsonObject, Ref
from kvmedic.model.status import Resource
from kvmedic.record.store import RESOURCES, resource_of
from kvmedic.settings import Settings, SettingsError, load_settings

T = TypeVar("T")


class NotThere(Exception):  # noqa: N818 - the name says what is wrong
    """The resource or its target does not exist, or its spec cannot be followed; the message says which."""


@dataclass(frozen=True, slots=True)
class Name:
    """Which resource is meant."""

    namespace: str
    name: str


def name_in(cluster: ClusterChoice, namespace: str, name: str) -> Name:
    """Return which resource is meant; a kubeconfig that cannot be used ends the command."""
    try:
        return Name(namespace or namespace_of(cluster), name)
    except NoCluster as error:
        end_command(error, USAGE)


def own_settings() -> Settings:
    """Return the settings; those that cannot be used end the command."""
    try:
        return load_settings()
    except SettingsError as error:
        end_command(error, USAGE)


def finish_look(work: Coroutine[Any, Any, T]) -> T:
    """Return what a look at a cluster found; what keeps it from being made ends the command."""
    try:
        return asyncio.run(work)
    except (SettingsError, NoCluster) as error:
        end_command(error, USAGE)
    except (NotThere, ApiError) as error:
        end_command(error, NOT_FOUND)


@asynccontextmanager
async def open_client(cluster: ClusterChoice) -> AsyncIterator[Client]:
    """Open a client of the cluster that a person means, and close it again."""
    async with await connect(find_kubeconfig(cluster), Limits(), cluster.context) as client:
        yield client


async def load_body(client: Client, which: Name) -> JsonObject:
    """Return a resource as the API server has it.

    Raises:
        NotThere: there is none of that name.
    """
    body = await client.get(Ref(RESOURCES, which.namespace, which.name))
    if body is None:
        raise NotThere(f"KVRemediation {which.name} does not exist in namespace {which.namespace}")
    return body


async def load_resource(client: Client, which: Name) -> Resource:
    """Return a resource as it is now.

    Raises:
        NotThere: there is none of that name.
    """
    return resource_of(await load_body(client, which))
