"""`kvmedic doctor` and `init` of a cluster: what is asked beyond what files show. Nothing is written."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from kvmedic.api.resource import SpecInvalid, spec_from_wire
from kvmedic.api.spec import KVRemediationSpec
from kvmedic.cli.access import NotThere, finish_look, name_in
from kvmedic.cli.app import end_command
from kvmedic.cli.doctor import NOT_KNOWN, DoctorReport
from kvmedic.cli.plan import settings_with
from kvmedic.cli.replay import Replay, replay
from kvmedic.cluster.fronts import list_kind
from kvmedic.cluster.rights import lacking_rights_of
from kvmedic.cluster.switches import NamespaceLabel, read_required_label
from kvmedic.cluster.trial_pods import Evaluations
from kvmedic.controller.ports import SurveyInput
from kvmedic.controller.survey import examine
from kvmedic.doctor.checks import (
    Check,
    Examination,
    Result,
    Topic,
    describe_run,
    in_order,
    metrics_checks,
    names_of,
    namespace_check,
    node_health_check,
    rights_check,
)
from kvmedic.doctor.eligibility import needed_rights
from kvmedic.doctor.examine import Seen, place_in, report_missing_target, see_target, starts_engine
from kvmedic.engines import VOCABULARIES
from kvmedic.kube.errors import ApiError, NoCluster, Refused
from kvmedic.kube.kubeconfig import ClusterChoice, namespace_of
from kvmedic.kube.objects import WORKLOADS, JsonObject, name_of, section
from kvmedic.metrics.history import History
from kvmedic.metrics.series import PodKey
from kvmedic.model.fleet import LEADER_WORKER_SET
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import place_of, typed_place
from kvmedic.model.status import Record, Resource, Wish
from kvmedic.record.store import RESOURCES, resource_of
from kvmedic.settings import Settings
from kvmedic.wiring import Connected, open_connections, target_of

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

T = TypeVar("T")


def examine_cluster(
    name: str,
    namespace: str | None,
    choice: tuple[str, str],
    prometheus: str,
    account: str,
    since: timedelta | None,
) -> tuple[DoctorReport, ...]:
    """Return the examination of one workload, or of all that start an engine where no name is given.

    Args:
        name: the workload's, as `place_of` has it; empty: all.
        namespace: empty: the one that the kubeconfig says; None: all.
        choice: kubeconfig and context.
        prometheus: URL of a source instead of the configured one.
        account: ServiceAccount of the operator, whose rights are examined.
        since: how far back what would have been done is shown; None: it is not.
    """
    cluster, settings = ClusterChoice(*choice), settings_with(prometheus)
    place = "" if namespace is None else _place(cluster, namespace)
    return _finish(_look(_Asked(settings, account, since, prometheus), cluster, place, name))


def see_workload(name: str, namespace: str, choice: tuple[str, str]) -> Seen:
    """Return what is seen of one workload; one that does not exist ends the command.

    Args:
        name: as `place_of` has it.
        namespace: empty: the one that the kubeconfig says.
        choice: kubeconfig and context.
    """
    cluster = ClusterChoice(*choice)
    settings, which = settings_with(), name_in(cluster, namespace, name)

    async def look() -> Seen:
        async with open_connections(settings, cluster) as world:
            own = await resource_for(world.client, which.namespace, name)
            if own is not None:
                text = f"KVRemediation {name_of(own)} looks after {typed_place(name)} already; two may not"
                print(f"# {text}", file=sys.stderr)
            seen = await see_target(world.client, which.namespace, name)
        if seen is None:
            raise NotThere(f"{typed_place(name)} does not exist in namespace {which.namespace}")
        return seen

    return finish_look(look())


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a cluster is looked at."""

    settings: Settings
    account: str
    since: timedelta | None = None
    """How far back what would have been done is shown; None: it is not."""
    prometheus: str = ""
    """The URL that was given for every source."""
    label: str = ""
    """What the operator asks of namespaces, as `key=value`; empty: nothing, or it cannot be seen."""


def _place(cluster: ClusterChoice, namespace: str) -> str:
    try:
        return namespace or namespace_of(cluster)
    except NoCluster as error:
        end_command(error, NOT_KNOWN)


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Return what a look at a cluster found; what keeps it from being made ends the command."""
    try:
        return asyncio.run(work)
    except (NoCluster, ApiError) as error:
        end_command(error, NOT_KNOWN)


async def _look(asked: _Asked, cluster: ClusterChoice, namespace: str, name: str) -> tuple[DoctorReport, ...]:
    """Return the examination of one workload, or of all that start an engine where no name is given."""
    async with open_connections(asked.settings, cluster) as world:
        label = asked.settings.namespaces.require_label
        label = label or await read_required_label(world.client, asked.settings.process.namespace)
        asked = replace(asked, label=label)
        if name:
            return (await _of_target(asked, world, namespace, name),)
        places = await _places_of_engines(world.client)
        if not places:
            end_command("no workload of the cluster starts a known engine", NOT_KNOWN)
        return tuple([await _of_one_of_many(asked, world, *place) for place in places])


async def _places_of_engines(client: Client) -> list[tuple[str, str]]:
    """Return namespace and place of each workload that starts a known engine, or that a resource names."""
    resources = await _list_resources(client, "")
    named = {(_namespace_of(each), place_in(section(each, "spec"))) for each in resources}
    places = {
        (_namespace_of(each), place_of(kind, name_of(each))): each
        for kind in WORKLOADS
        for each in await _list_workloads(client, kind)
    }
    return sorted(place for place, body in places.items() if starts_engine(body) or place in named)


async def _list_workloads(client: Client, kind: str) -> list[JsonObject]:
    """Return all workloads of a kind; of one that a cluster need not have, those that may be listed."""
    try:
        return await list_kind(client, WORKLOADS[kind], "")
    except Refused as error:
        if kind != LEADER_WORKER_SET:
            raise
        print(f"{WORKLOADS[kind].plural} are not looked at: {error}", file=sys.stderr)
        return []


def _namespace_of(body: JsonObject) -> str:
    return str(section(body, "metadata")["namespace"])


async def _of_one_of_many(asked: _Asked, world: Connected, namespace: str, name: str) -> DoctorReport:
    """Return the examination of a target; what keeps it from being read leaves the others as they are."""
    try:
        return await _of_target(asked, world, namespace, name)
    except ApiError as error:
        check = Check(Topic.TARGET, Result.UNKNOWN, f"it cannot be read: {error}")
        return DoctorReport(Examination(namespace, name, (check,)))


async def _of_target(asked: _Asked, world: Connected, namespace: str, name: str) -> DoctorReport:
    own = await resource_for(world.client, namespace, name)
    spec = None if own is None else _spec_of(own)
    if isinstance(spec, str):
        check = Check(Topic.TARGET, Result.FAIL, spec, reason=Reason.SPEC_INVALID)
        return DoctorReport(Examination(namespace, name, (check,)))
    seen = await see_target(world.client, namespace, name, spec, name_of(own) if own else "")
    if seen is None:
        return DoctorReport(report_missing_target(namespace, name))
    names = names_of(seen.view.fleet, seen.resource)
    resource = resource_of(own) if own else _nobody(namespace, seen)
    checks = [*seen.checks(), *await _metrics(world, resource, seen, names)]
    operator = (asked.settings.process.namespace, asked.account)
    needed = needed_rights(seen.view, seen.policy)
    lacking = await lacking_rights_of(world.client, operator, namespace, needed)
    checks += await _label(asked.label, world.client, namespace)
    run = resource.record.run if resource.record else None
    checks = [describe_run(each, seen.resource, run) for each in checks]
    ordered = in_order([*checks, rights_check(lacking, names)])
    found = Examination(namespace, name, ordered, resource=seen.resource)
    if asked.since is None:
        return DoctorReport(found)
    look = f"kvmedic diagnose -n {namespace} --pod-regex '{name}-.*' --prometheus {asked.prometheus or 'URL'}"
    return DoctorReport(found, await _of_late(asked, world, resource, seen), look)


async def _of_late(asked: _Asked, world: Connected, resource: Resource, seen: Seen) -> Replay:
    """Return what would have been done with a target of late; an unknown source shows nothing."""
    settings, name = asked.settings, seen.policy.source
    options, fleet = settings.sources.get(name), seen.view.fleet
    now, pace = world.client.clock.now(), settings.pace.idle
    begin = now - (asked.since or timedelta(0))
    if options is None:
        return Replay(begin, begin, pace, ended=f"no metrics source is named {name}: give --prometheus URL")
    target = PodKey(fleet.namespace, fleet.name)
    history = History(name, options, settings.scrape, VOCABULARIES[0].signals, target)
    try:
        return await replay(seen, resource, history, (begin, now), pace)
    finally:
        await history.close()


async def resource_for(client: Client, namespace: str, target: str) -> JsonObject | None:
    """Return the oldest KVRemediation of a target, or None; one who may not look gets None."""
    found = await _list_resources(client, namespace)
    own = [each for each in found if place_in(section(each, "spec")) == target]
    return min(own, key=lambda each: str(section(each, "metadata")["creationTimestamp"]), default=None)


async def _list_resources(client: Client, namespace: str) -> list[JsonObject]:
    """Return the KVRemediations of a namespace, or of all; none for one who may not look."""
    try:
        return await list_kind(client, RESOURCES, namespace)
    except Refused:
        return []


def _spec_of(body: JsonObject) -> KVRemediationSpec | str:
    try:
        return spec_from_wire(section(body, "spec"))
    except SpecInvalid as error:
        return f"KVRemediation {name_of(body)}: {error}"


def _nobody(namespace: str, seen: Seen) -> Resource:
    """Return what counts as the resource of a target that has none."""
    return Resource(
        namespace=namespace,
        name=seen.view.fleet.name,
        uid="",
        resource_version="",
        generation=0,
        wish=Wish.NONE,
        finalized=False,
        policy=seen.policy,
        problem=None,
        record=Record(),
    )


async def _label(label: str, client: Client, namespace: str) -> tuple[Check, ...]:
    """Return what a namespace lacks of the label that the operator asks for, if that can be seen."""
    if not label:
        return ()
    try:
        closed = await NamespaceLabel(client, label).find_missing(namespace)
    except Refused as error:
        return (Check(Topic.NAMESPACE, Result.UNKNOWN, f"whether it has the label {label}: {error}"),)
    return (namespace_check(closed),) if closed else ()


async def _metrics(
    world: Connected, resource: Resource, seen: Seen, names: dict[str, str]
) -> tuple[Check, ...]:
    """Return what a look at the target's metrics shows of them and of its nodes."""
    target = target_of(world)
    inputs = SurveyInput(world.metrics, target, drivers=world.drivers, evaluations=Evaluations(world.client))
    found = await examine(replace(resource, record=Record()), seen.policy, seen.view, inputs)
    checks = metrics_checks(found.diagnosis, seen.view.fleet, seen.policy, names, world.client.clock.now())
    if any(each.name is Topic.NODE_HEALTH for each in checks):
        return checks
    return (*checks, node_health_check(found.evidence.vitals, seen.policy))
