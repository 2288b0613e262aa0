"""`kvmedic diagnose`: evidence, diagnosis and plan, printed. Nothing is written anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import typer

from kvmedic.api.quantities import parse_duration
from kvmedic.cli.flags import EngineVersion, version_named
from kvmedic.cli.given import GivenError, policy_in, workload_in
from kvmedic.cli.live import (
    Context,
    Kubeconfig,
    Name,
    Namespace,
    finished,
    load_resource,
    name_in,
    settings_with,
    surveyed,
)
from kvmedic.cli.past import Past, PastError, moment_of, observed
from kvmedic.cli.report import Report, report_of_consultation, report_of_survey
from kvmedic.cli.scrapes import ScrapeError, doubt_of, evidence_of, pages_of
from kvmedic.cli.start_logs import gaps_in, starts_of, with_starts
from kvmedic.cli.terminal import REFUSED, USAGE, Form, ended
from kvmedic.core.diagnosis import Evidence, Inconclusive
from kvmedic.core.policy import Policy, Runbook
from kvmedic.core.reasons import Reason
from kvmedic.core.version import Version
from kvmedic.core.vitals import NodeHealth
from kvmedic.kube.errors import NoCluster
from kvmedic.kube.kubeconfig import AS_KUBECTL, DEFAULT_NAMESPACE, ClusterChoice, namespace_of
from kvmedic.offline import Consultation, consult, with_method
from kvmedic.wiring import connected

_WAYS = (
    "say what to look at: NAME (a KVRemediation of a cluster), two saved pages (--scrape T0.txt --scrape "
    "T1.txt), or a moment of the past (--prometheus URL --at TIME)"
)

_NO_HOLD = (
    "unknown node health stops nothing here; on a cluster spec.nodeHealth: Required holds until the DCGM "
    "exporter tells of every GPU"
)

_UNHEARD = (
    "KV compression is on and spec.runbooks leaves CompressionWithoutSavings out: diagnosis and plan are of "
    "the others"
)


@dataclass(frozen=True, slots=True)
class Files:
    """What is given in files beside the evidence."""

    spec: str
    manifest: str
    version: Version | None
    """Of the engine; None: the image's tag in the manifest tells it."""
    logs: tuple[str, ...] = ()
    """Start-up logs, as they were given."""


def command(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A KVRemediation of a cluster.")] = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="Ask this Prometheus instead of the configured source.")
    ] = "",
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
            help="With --scrape: the beginning of an engine's log, which tells of KV compression.",
        ),
    ] = None,
    interval: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Time between two scrapes, such as 5m; else the engine's own."),
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
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print it.")] = Form.TEXT,
) -> None:
    """Look once: evidence, diagnosis and the plan that would follow.

    A cluster is found as kubectl finds it: KUBECONFIG, else ~/.kube/config, else the pod's own service
    account. Exit code 0: a diagnosis was made, also that all is well; 2: wrong usage or an unusable file;
    3: no diagnosis can be made, and it says what is missing; 4: there is no such resource or target.
    """
    cluster = ClusterChoice(kubeconfig, context)
    files = Files(spec, manifest, version_named(engine_version), tuple(log or ()))
    ways = [bool(name), bool(scrape), bool(at)]
    if ways.count(True) != 1:
        ended(_WAYS, USAGE)
    if name and (spec or manifest or engine_version):
        ended("NAME has its own spec and target: leave --spec, --manifest and --engine-version out", USAGE)
    if log and not scrape:
        ended("--log is of replicas whose pages are given: give --scrape too", USAGE)
    if engine_version and not manifest:
        ended("--engine-version is of the engine in a manifest: give --manifest too", USAGE)
    try:
        report = (
            _live(cluster, name_in(cluster, namespace, name), prometheus)
            if name
            else _offline(scrape, _interval(interval), files)
            if scrape
            else _past(Past(moment_of(at), namespace or _namespace(cluster), pod_regex), prometheus, files)
        )
    except (ScrapeError, GivenError, PastError) as error:
        ended(error, USAGE)
    print(report.printed(output))
    raise typer.Exit(REFUSED if report.is_inconclusive else 0)


def _namespace(cluster: ClusterChoice) -> str:
    """Return the namespace of pods of the past; no cluster is asked, so none has to be there."""
    try:
        return namespace_of(cluster)
    except NoCluster as error:
        if cluster == AS_KUBECTL:
            return DEFAULT_NAMESPACE
        ended(error, USAGE)


def _live(cluster: ClusterChoice, which: Name, prometheus: str) -> Report:
    settings = settings_with(prometheus)

    async def look() -> Report:
        async with connected(settings, cluster) as world:
            return report_of_survey(await surveyed(world, await load_resource(world, which)))

    return finished(look())


def _offline(scrapes: Sequence[str], interval: timedelta | None, files: Files) -> Report:
    policy = policy_in(files.spec)
    workload = workload_in(files.manifest, policy, files.version)
    pages = pages_of(scrapes)
    starts = starts_of(files.logs, pages)
    evidence, notes = evidence_of(pages, policy.trigger, interval)
    evidence = with_starts(evidence, starts)
    doubt = doubt_of(pages)
    found = (
        consult(evidence, policy, workload)
        if doubt is None
        else _doubted(with_method(evidence, policy, workload), policy, doubt)
    )
    shown = (*notes, *_remarks(policy, found)) if doubt is None else ()
    target = {"scrapes": ", ".join(pages)}
    return report_of_consultation(found, target, (*shown, *gaps_in(starts)), doubt)


def _doubted(evidence: Evidence, policy: Policy, doubt: Inconclusive) -> Consultation:
    return Consultation(evidence, str(policy.runbooks[0]), doubt, None, None, None)


def _past(past: Past, prometheus: str, files: Files) -> Report:
    policy = policy_in(files.spec)
    workload = workload_in(files.manifest, policy, files.version)
    seen = asyncio.run(observed(past, settings_with(prometheus), policy))
    target = {"namespace": past.namespace, "pods": past.pods, "at": f"{past.at:%Y-%m-%dT%H:%M:%SZ}"}
    if seen.trouble:
        doubt = Inconclusive(Reason.SOURCE_UNAVAILABLE, seen.trouble)
        found = _doubted(with_method(seen.evidence, policy, workload), policy, doubt)
        return report_of_consultation(found, target, (), doubt)
    found = consult(seen.evidence, policy, workload)
    return report_of_consultation(found, target, (*seen.notes, *_remarks(policy, found)))


def _remarks(policy: Policy, found: Consultation) -> tuple[str, ...]:
    """Return what a reader must know of the spec."""
    left_out = Runbook.COMPRESSION_WITHOUT_SAVINGS not in policy.runbooks
    unheard = _UNHEARD if found.evidence.compression is not None and left_out else ""
    held = _NO_HOLD if policy.node_health is NodeHealth.REQUIRED else ""
    return tuple(each for each in (held, unheard) if each)


def _interval(text: str) -> timedelta | None:
    if not text:
        return None
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise ScrapeError(f"--interval {text}: {error}") from None
    if found <= timedelta(0):
        raise ScrapeError(f"--interval {text}: the second scrape comes after the first")
    return found
