"""`kvmedic doctor`: everything that stands between a fleet and a change, told at once. Nothing is written.

The rules are those of the operator, asked of the same view of a fleet: of a cluster, or of manifests.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import typer

from kvmedic.api.resource import SpecInvalid, spec_from_wire
from kvmedic.api.rules import parse_duration
from kvmedic.api.spec import KVRemediationSpec
from kvmedic.cli.app import Form, end_command, show_text
from kvmedic.cli.plan import settings_with
from kvmedic.cli.replay import Replay, replay, replay_as_json, replay_as_text
from kvmedic.cluster.fronts import list_kind
from kvmedic.cluster.rights import lacking_rights_of
from kvmedic.cluster.switches import NamespaceLabel, read_required_label
from kvmedic.cluster.trial_pods import Evaluations
from kvmedic.controller.ports import Senses
from kvmedic.controller.survey import examine
from kvmedic.doctor.checks import (
    Check,
    Examination,
    Result,
    Topic,
    Verdict,
    describe_run,
    in_order,
    metrics_checks,
    names_of,
    namespace_check,
    node_health_check,
    rights_check,
)
from kvmedic.doctor.documents import DocumentsError, documents_in
from kvmedic.doctor.eligibility import needed_rights
from kvmedic.doctor.examine import (
    Seen,
    absent,
    examine_manifests,
    place_in,
    see_target,
    starts_engine,
)
from kvmedic.doctor.targets import NoTargetError, find_targets, tell_others, tell_unchanged
from kvmedic.engines import VOCABULARIES
from kvmedic.kube.client import Client
from kvmedic.kube.errors import ApiError, NoCluster, Refused
from kvmedic.kube.kubeconfig import ClusterChoice, namespace_of
from kvmedic.kube.objects import WORKLOADS, JsonObject, name_of, section
from kvmedic.metrics.history import History
from kvmedic.metrics.series import PodKey
from kvmedic.model.fleet import DEPLOYMENT, LEADER_WORKER_SET, STATEFUL_SET
from kvmedic.model.reasons import Reason
from kvmedic.model.status import Record, Resource, Wish
from kvmedic.record.store import RESOURCES, resource_of
from kvmedic.rollout.gates import place_of, typed_place
from kvmedic.settings import Settings
from kvmedic.wiring import Connected, open_connections, target_of

T = TypeVar("T")

NOT_ELIGIBLE, NOT_KNOWN = 1, 2
"""Exit codes beside 0: something stands in the way; something could not be told, or asked."""
CODES = {Verdict.ELIGIBLE: 0, Verdict.NOT_ELIGIBLE: NOT_ELIGIBLE, Verdict.UNKNOWN: NOT_KNOWN}
KIND_NAMES = MappingProxyType(
    {
        **dict.fromkeys(("deploy", "deployment", "deployments", "deployments.apps"), DEPLOYMENT),
        **dict.fromkeys(("sts", "statefulset", "statefulsets", "statefulsets.apps"), STATEFUL_SET),
        **dict.fromkeys(("lws", "leaderworkerset", "leaderworkersets"), LEADER_WORKER_SET),
    }
)
"""How kubectl lets each kind of target be named before the slash."""


def target_name(text: str) -> str:
    """Return the target that a person means, as `place_of` names it; another kind ends the command."""
    kind, slash, name = text.rpartition("/")
    if slash and kind.lower() not in KIND_NAMES:
        end_command(
            f"{text}: only Deployments, StatefulSets and LeaderWorkerSets are changed; name one as "
            "deploy/NAME, sts/NAME or lws/NAME",
            NOT_KNOWN,
        )
    if name and not re.fullmatch(_NAME, name):
        end_command(
            f"{text}: no workload can have this name; use lower-case letters, digits, - and .", NOT_KNOWN
        )
    return place_of(KIND_NAMES[kind.lower()] if slash else DEPLOYMENT, name) if name else ""


_NAME = "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
"""A DNS subdomain, as names of workloads are."""


def command(
    target: str,
    namespace: str,
    everywhere: bool,
    files: list[Path] | None,
    context: str,
    kubeconfig: str,
    prometheus: str,
    account: str,
    since: str,
    output: Form,
) -> None:
    """Examine what the arguments name, and print each check with its fix."""
    if [bool(target), everywhere, bool(files)].count(True) != 1 and not (target and files):
        end_command("say what to look at: deploy/NAME, -A, or -f FILE (and deploy/NAME)", NOT_KNOWN)
    name = target_name(target)
    span = span_of(since) if since else None
    if files:
        if span:
            end_command("--since needs a cluster and its metrics source: leave --file out", NOT_KNOWN)
        found = tuple(_Told(each) for each in _of_files(files, name, namespace))
    else:
        cluster = ClusterChoice(kubeconfig, context)
        settings = settings_with(prometheus)
        place = "" if everywhere else _place(cluster, namespace)
        found = _finish(_of_cluster(_Asked(settings, account, span, prometheus), cluster, place, name))
    if output is Form.JSON:
        print(_as_json(found))
    else:
        show_text(_as_text(found))
    raise typer.Exit(max((CODES[each.examination.verdict] for each in found), key=_gravity))


LEAST, LONGEST = timedelta(minutes=10), timedelta(days=14)
"""Of a replay: a trigger's window and hold fit twice into the least; a source keeps 15 days by default."""


def span_of(text: str) -> timedelta:
    """Return how far back a person means; a text that says nothing ends the command."""
    hint = f"--since {text}: write a duration from 10m to 14d, such as 12h or 3d"
    days = re.fullmatch(r"(\d{1,3})d", text)
    try:
        span = timedelta(days=int(days[1])) if days else parse_duration(text)
    except ValueError:
        end_command(hint, NOT_KNOWN)
    if not LEAST <= span <= LONGEST:
        end_command(hint, NOT_KNOWN)
    return span


def _gravity(code: int) -> int:
    """Return how much an exit code says: that something stands in the way counts most."""
    return (0, NOT_KNOWN, NOT_ELIGIBLE).index(code)


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


def _of_files(files: Sequence[Path], name: str, namespace: str) -> tuple[Examination, ...]:
    each_file = {file: read_documents([file]) for file in files}
    documents = [each for found in each_file.values() for each in found]
    places = {
        f"{each['kind']}/{name_of(each)}": str(file) for file, found in each_file.items() for each in found
    }
    names = (name,) if name else targets_of(documents, files)
    try:
        return tuple(examine_manifests(documents, each, namespace, files=places) for each in names)
    except SpecInvalid as error:
        end_command(f"KVRemediation in the files: {error}", NOT_KNOWN)
    except DocumentsError as error:
        end_command(f"{', '.join(map(str, files))}: {error}", NOT_KNOWN)


def targets_of(documents: Sequence[JsonObject], files: Sequence[Path]) -> tuple[str, ...]:
    """Return the workloads of files to look at, and tell what is left out; having none ends the command."""
    try:
        names = find_targets(documents)
    except NoTargetError as error:
        listed = ", ".join(map(str, files))
        end_command(f"{listed}: {error}", NOT_ELIGIBLE if error.is_known else NOT_KNOWN)
    for each in (*tell_unchanged(documents), *tell_others(documents)):
        print(each, file=sys.stderr)
    return names


def read_documents(files: Sequence[Path]) -> list[JsonObject]:
    """Return the objects of all files; one that cannot be read ends the command."""
    found: list[JsonObject] = []
    for file in files:
        try:
            text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
            found += documents_in(text)
        except OSError as error:
            end_command(f"{file}: {error.strerror}; correct the path", NOT_KNOWN)
        except UnicodeDecodeError:
            end_command(f"{file} is not UTF-8 text", NOT_KNOWN)
        except DocumentsError as error:
            end_command(f"{file}: {error}", NOT_KNOWN)
    return found


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a cluster is looked at."""

    settings: Settings
    account: str
    since: timedelta | None = None
    """How far back it is told what would have been done; None: it is not."""
    prometheus: str = ""
    """The URL that was given for every source."""
    label: str = ""
    """What the operator asks of namespaces, as `key=value`; empty: nothing, or it cannot be seen."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What is told of one target."""

    examination: Examination
    replay: Replay | None = None
    look: str = ""
    """Command that looks at one moment of its past, without the time."""


async def _of_cluster(asked: _Asked, cluster: ClusterChoice, namespace: str, name: str) -> tuple[_Told, ...]:
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


async def _of_one_of_many(asked: _Asked, world: Connected, namespace: str, name: str) -> _Told:
    """Return the examination of a target; what keeps it from being read leaves the others as they are."""
    try:
        return await _of_target(asked, world, namespace, name)
    except ApiError as error:
        check = Check(Topic.TARGET, Result.UNKNOWN, f"it cannot be read: {error}")
        return _Told(Examination(namespace, name, (check,)))


async def _of_target(asked: _Asked, world: Connected, namespace: str, name: str) -> _Told:
    own = await resource_for(world.client, namespace, name)
    spec = None if own is None else _spec_of(own)
    if isinstance(spec, str):
        check = Check(Topic.TARGET, Result.FAIL, spec, reason=Reason.SPEC_INVALID)
        return _Told(Examination(namespace, name, (check,)))
    seen = await see_target(world.client, namespace, name, spec, name_of(own) if own else "")
    if seen is None:
        return _Told(absent(namespace, name))
    names = names_of(seen.view.fleet, seen.resource)
    resource = resource_of(own) if own else _nobody(namespace, seen)
    checks = [*seen.checks(), *await _metrics(world, resource, seen, names)]
    operator = (asked.settings.process.namespace, asked.account)
    needed = needed_rights(seen.view, seen.policy)
    lacking = await lacking_rights_of(world.client, operator, namespace, needed)
    checks += await _label(asked.label, world.client, namespace)
    run = resource.record.run if resource.record else None
    checks = [describe_run(each, seen.resource, run) for each in checks]
    told = in_order([*checks, rights_check(lacking, names)])
    found = Examination(namespace, name, told, resource=seen.resource)
    if asked.since is None:
        return _Told(found)
    look = f"kvmedic diagnose -n {namespace} --pod-regex '{name}-.*' --prometheus {asked.prometheus or 'URL'}"
    return _Told(found, await _of_late(asked, world, resource, seen), look)


async def _of_late(asked: _Asked, world: Connected, resource: Resource, seen: Seen) -> Replay:
    """Return what would have been done with a target of late; an unknown source tells nothing."""
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
    """Return the oldest KVRemediation of a target, or None; one who may not look is told of none."""
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
    senses = Senses(world.metrics, target, drivers=world.drivers, evaluations=Evaluations(world.client))
    found = await examine(replace(resource, record=Record()), seen.policy, seen.view, senses)
    told = metrics_checks(found.diagnosis, seen.view.fleet, seen.policy, names, world.client.clock.now())
    if any(each.name is Topic.NODE_HEALTH for each in told):
        return told
    return (*told, node_health_check(found.evidence.vitals, seen.policy))


MARKS = {Result.PASS: "pass", Result.FAIL: "FAIL", Result.UNKNOWN: "unknown", Result.NOT_NEEDED: "-"}


def _as_text(found: Sequence[_Told]) -> Iterator[str]:
    """Yield verdict, table, what was of late and next command of each target; of many the count first."""
    if len(found) > 1:
        eligible = sum(each.examination.verdict is Verdict.ELIGIBLE for each in found)
        yield f"{eligible} of {len(found)} workloads are eligible"
    for told in found:
        each = told.examination
        if len(found) > 1:
            yield ""
        yield _headline(each)
        for check in each.checks:
            yield f"  {MARKS[check.result]:8} {check.name:18} {check.saw}"
            better = "better:" if check.result is Result.PASS else "fix:"
            if check.fix:
                yield f"{'':30} {better:7} {check.fix}"
            if check.fix and check.risk:
                yield f"{'':30} risk:   {check.risk}"
        if told.replay is not None:
            yield from replay_as_text(told.replay, told.look)
        yield f"next       {_next_command(each)}"


def _headline(found: Examination) -> str:
    place = f"{found.namespace}/{found.target}"
    match found.verdict:
        case Verdict.ELIGIBLE:
            where = "" if found.is_live else "; a file does not show the rest"
            return f"ELIGIBLE   {place}: nothing that was seen keeps kvmedic from changing it{where}"
        case Verdict.NOT_ELIGIBLE:
            topics = ", ".join(dict.fromkeys(str(each.name) for each in found.failed))
            return f"NOT ELIGIBLE {place}: kvmedic changes nothing of it, because of {topics}"
        case Verdict.UNKNOWN:
            topics = ", ".join(dict.fromkeys(str(each.name) for each in found.unknown))
            return f"UNKNOWN    {place}: nothing stands in the way, but {topics} could not be told"


def _next_command(found: Examination) -> str:
    """Return what to do next: the first fix, else what a failure says, or what comes after a fit fleet."""
    fixes = [each.fix for each in (*found.failed, *found.unknown) if each.fix]
    fixes += [each.saw for each in found.failed]
    where = f"{typed_place(found.target)} -n {found.namespace}"
    after = f"kvmedic init {where} >kvr.yaml" if found.is_live else f"kvmedic doctor {where}"
    if found.resource:
        after = f"kvmedic get {found.resource} -n {found.namespace}"
    return next(iter(fixes), after)


def _as_json(found: Sequence[_Told]) -> str:
    passed = {Result.PASS: True, Result.FAIL: False}
    targets = [
        {
            "namespace": each.namespace,
            "target": each.target,
            "verdict": each.verdict,
            "eligible": {Verdict.ELIGIBLE: True, Verdict.NOT_ELIGIBLE: False}.get(each.verdict),
            "failed": len(each.failed),
            "unknown": len(each.unknown),
            "checks": [
                {
                    "name": check.name,
                    "result": check.result,
                    "passed": passed.get(check.result),
                    "saw": check.saw,
                    "reason": check.reason,
                    "fix": check.fix or None,
                    "risk": check.risk or None,
                    "figures": dict(check.figures),
                }
                for check in each.checks
            ],
            "next": _next_command(each),
            **({"replay": replay_as_json(told.replay)} if told.replay else {}),
        }
        for told in found
        for each in (told.examination,)
    ]
    return json.dumps({"targets": targets}, indent=2)
