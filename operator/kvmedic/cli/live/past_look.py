"""`kvmedic diagnose --at`: one look at replicas as they were at a moment of the past, by a Prometheus."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kvmedic.cli.app import USAGE, end_command
from kvmedic.cli.diagnose import Files, GivenError, list_doubts, policy_in, remarks_on, workload_in
from kvmedic.cli.plan import settings_with
from kvmedic.cli.report import Report, report_of_consultation
from kvmedic.cli.saved import consult, with_method
from kvmedic.engines import VOCABULARIES
from kvmedic.kube.errors import NoCluster
from kvmedic.kube.kubeconfig import AS_KUBECTL, DEFAULT_NAMESPACE, ClusterChoice, namespace_of
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.series import PodKey
from kvmedic.metrics.source import PrometheusSource
from kvmedic.model.devices import Vitals
from kvmedic.model.evidence import Inconclusive, Look
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy
from kvmedic.runbooks.branches import Evidence
from kvmedic.settings import Settings

_NAMED = 5
"""Pods that a note names."""


class PastError(GivenError):
    """The moment or the replicas cannot be determined; the message says why and what to write."""


@dataclass(frozen=True, slots=True)
class Past:
    """Which replicas, and when."""

    at: datetime
    namespace: str
    pods: str
    """Regular expression of their whole names."""


def moment_of(text: str) -> datetime:
    """Return the time that a text names.

    Raises:
        PastError: it names none, or one without a time zone, or one that has not come yet.
    """
    hint = "write RFC 3339 with a time zone, such as 2026-03-01T03:00:00Z, or Unix seconds"
    try:
        found = datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise PastError(f"--at {text}: {hint}") from None
    if found.tzinfo is None:
        raise PastError(f"--at {text}: which time zone? {hint}")
    if found > datetime.now(UTC):
        raise PastError(f"--at {text}: that moment is in the future")
    return found.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a source answers about a moment."""

    evidence: Evidence
    notes: tuple[str, ...]
    """What a reader must know."""
    trouble: str
    """Why the source did not answer; empty where it did."""


async def observe_replicas(past: Past, settings: Settings, policy: Policy) -> Seen:
    """Return both looks at the replicas that served at a moment.

    Raises:
        PastError: no source of that name is configured, or the pods' expression is none.
    """
    windows = policy.windows
    try:
        meant = re.compile(past.pods)
    except re.error as error:
        raise PastError(f"--pod-regex {past.pods}: {error}") from None
    source = _source(past, settings, policy.source)
    try:
        known = await source.find_pods(windows.trigger)
        pods = [pod for pod in known if pod.namespace == past.namespace and meant.fullmatch(pod.name)]
        burn, sizing, devices = await asyncio.gather(
            source.observe(pods, Look(windows.trigger, windows.hold)),
            source.observe(pods, Look(windows.sizing)),
            source.devices(pods, windows.trigger),
        )
    finally:
        source.close()
    vitals = {name: Vitals(devices=found) for name, found in devices.items()}
    evidence = Evidence(burn, sizing, policy.trigger, vitals)
    return Seen(evidence, _notes(past, known, pods), source.trouble)


def _source(past: Past, settings: Settings, name: str) -> PrometheusSource:
    options = settings.sources.get(name)
    if options is None:
        known = ", ".join(sorted(settings.sources)) or "none"
        raise PastError(f"no metrics source is named {name} (known: {known}): give --prometheus URL")
    # One moment for all that is asked, however long it takes.
    steady = options.model_copy(update={"reuse": timedelta(days=1)})
    return PrometheusSource(
        name, PrometheusClient(options), steady, VOCABULARIES[0].signals, now=lambda: past.at
    )


def _notes(past: Past, known: tuple[PodKey, ...], pods: list[PodKey]) -> tuple[str, ...]:
    if pods:
        return ()
    others = [f"{pod.namespace}/{pod.name}" for pod in known]
    shown = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED} more" if len(others) > _NAMED else "")
    found = f"at that time it knew {shown}" if others else "at that time it knew no replica of an engine"
    return (f"no pod of namespace {past.namespace} matches {past.pods}; {found}",)


def _namespace(cluster: ClusterChoice) -> str:
    """Return the namespace of pods of the past; no cluster is asked, so none has to be there."""
    try:
        return namespace_of(cluster)
    except NoCluster as error:
        if cluster == AS_KUBECTL:
            return DEFAULT_NAMESPACE
        end_command(error, USAGE)


def report_past(at: str, where: tuple[tuple[str, str], str, str], prometheus: str, files: Files) -> Report:
    """Return the report on a moment of the past.

    Args:
        at: which one, as it was typed.
        where: the cluster (kubeconfig and context), the namespace, and the replicas' names.
        prometheus: its URL; empty: the configured source.
        files: what is given beside.

    Raises:
        PastError: the moment or the replicas cannot be determined.
        GivenError: a file cannot be used.
    """
    cluster, namespace, pods = where
    past = Past(moment_of(at), namespace or _namespace(ClusterChoice(*cluster)), pods)
    policy = policy_in(files.spec)
    workload = workload_in(files.manifest, policy, files.version)
    seen = asyncio.run(observe_replicas(past, settings_with(prometheus), policy))
    target = {"namespace": past.namespace, "pods": past.pods, "at": f"{past.at:%Y-%m-%dT%H:%M:%SZ}"}
    if seen.trouble:
        doubt = Inconclusive(Reason.SOURCE_UNAVAILABLE, seen.trouble)
        found = list_doubts(with_method(seen.evidence, policy, workload), policy, doubt)
        return report_of_consultation(found, target, (), doubt)
    found = consult(seen.evidence, policy, workload)
    return report_of_consultation(found, target, (*seen.notes, *remarks_on(policy, found)))
