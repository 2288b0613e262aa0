"""Which adapter stands behind which port: the one place that knows them all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from kvmedic.cluster.config_maps import StoredCopies
from kvmedic.cluster.containers.nvidia_smi import NvidiaSmi, Patience
from kvmedic.cluster.looks import QuickLooks, TargetSurroundings, watched_kinds
from kvmedic.cluster.node_inventory import OLDEST_AT_RUN_START, SharedSurroundings
from kvmedic.cluster.rights import own_lacking_rights
from kvmedic.cluster.switches import NamespaceLabel, StoredApprovals, read_stop, read_storm_end
from kvmedic.cluster.trial_pods import Evaluations as EvaluationJobs
from kvmedic.cluster.trial_pods import Trials as TrialPods
from kvmedic.cluster.workloads import DeploymentTarget
from kvmedic.controller.blockers import Bounds, RunLimits
from kvmedic.controller.ports import (
    Drivers,
    Evaluations,
    Leader,
    NoEvaluations,
    NotAllowed,
    NoTrials,
    Pace,
    Ports,
    Trials,
)
from kvmedic.doctor.eligibility import Examiner
from kvmedic.engines import VOCABULARIES
from kvmedic.kube.client import Client, Limits, connect
from kvmedic.kube.installations import Identity, Installation
from kvmedic.kube.kubeconfig import AS_KUBECTL, ClusterChoice, find_kubeconfig
from kvmedic.kube.leadership import Leadership, LeaseTimes, fresh_identity
from kvmedic.kube.objects import LEASES, Ref, is_every_namespace_ours
from kvmedic.kube.watches import Watches
from kvmedic.metrics.fleet import FleetMetrics
from kvmedic.metrics.probes import Beside, GenerationProbes
from kvmedic.record.events import Events
from kvmedic.record.notifications import Notifications, Sender
from kvmedic.record.store import Known, Store
from kvmedic.record.telemetry import Reporter, SourceCosts, Telemetry
from kvmedic.rollout.gates.one_resource_per_target import Roster
from kvmedic.rollout.gates.opening import Stop
from kvmedic.rollout.gates.runs_at_once import Budgets
from kvmedic.rollout.gates.storm_breaker import Breaker
from kvmedic.runbooks.compression.allowed_settings import AllowedSettings
from kvmedic.settings import (
    CompressionOptions,
    HealthOptions,
    KubernetesOptions,
    PaceOptions,
    ProbeOptions,
    Settings,
    ShardOptions,
)


@dataclass(frozen=True, slots=True)
class ConfigMapStop:
    """The operator-wide stop: a ConfigMap in the operator's namespace."""

    client: Client
    namespace: str
    name: str

    async def read(self) -> Stop:
        """Return the stop as it is now."""
        return await read_stop(self.client, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Connected:
    """One process's connections to the world."""

    client: Client
    metrics: FleetMetrics
    drivers: Drivers
    trials: Trials
    probes: GenerationProbes
    evaluations: Evaluations
    watches: Watches
    """They follow nothing until they are run."""
    store: Store


@asynccontextmanager
async def open_connections(
    settings: Settings, cluster: ClusterChoice = AS_KUBECTL
) -> AsyncIterator[Connected]:
    """Open the API and the metrics sources, and close them again."""
    limits = _limits(settings.kubernetes)
    client = await connect(find_kubeconfig(cluster), limits, cluster.context)
    metrics = FleetMetrics.from_options(
        settings.sources, settings.scrape, VOCABULARIES[0].signals, client.clock.now
    )
    beside = Beside(metrics.devices, DeploymentTarget(client).starts)
    probes = GenerationProbes(settings.scrape, settings.probe, VOCABULARIES[0], beside)
    drivers, trials = drivers_of(settings.health, client), trials_of(settings.probe, client)
    evaluations = evaluations_of(settings.probe, client)
    holds = holds_of(settings.shard)
    watches = Watches(client, watched_kinds(), settings.process.watch, holds)
    store = Store(client, Known(allowed_settings_of(settings.compression)), holds)
    try:
        yield Connected(client, metrics, drivers, trials, probes, evaluations, watches, store)
    finally:
        await probes.close()
        await metrics.close()
        await client.close()


def target_of(world: Connected) -> DeploymentTarget:
    """Return the workloads of the cluster."""
    return DeploymentTarget(world.client, QuickLooks(world.watches))


def ports_of(
    settings: Settings, world: Connected, reporter: Reporter, leader: Leader, roster: Roster
) -> Ports:
    """Return the ports of one process."""
    process = settings.process
    namespaces = NamespaceLabel(world.client, settings.namespaces.require_label)
    return Ports(
        store=world.store,
        target=replace(target_of(world), surroundings=SharedSurroundings(world.watches, OLDEST_AT_RUN_START)),
        copies=StoredCopies(world.client),
        metrics=world.metrics,
        reporter=reporter,
        stop=ConfigMapStop(world.client, process.namespace, process.stop),
        approvals=StoredApprovals(world.client),
        leader=leader,
        roster=roster,
        run_limits=run_limits_of(settings, world, roster),
        pace=pace_of(settings.pace),
        drivers=world.drivers,
        trials=world.trials,
        probes=world.probes,
        evaluations=world.evaluations,
        namespaces=namespaces,
        examiner=Examiner(
            lambda place, needed: own_lacking_rights(world.client, place, needed),
            TargetSurroundings(world.watches),
            namespaces.refuse_unlabelled,
        ),
    )


def holds_of(options: ShardOptions) -> Callable[[str], bool]:
    """Return which namespaces an operator looks after."""
    return is_every_namespace_ours if options.count == 1 else options.covers


def drivers_of(options: HealthOptions, client: Client) -> Drivers:
    """Return who asks replicas' GPU drivers: nobody, unless the configuration allows it."""
    if not options.nvidia_smi:
        return NotAllowed()
    return NvidiaSmi(client, Patience(options.timeout.total_seconds(), options.at_once))


def trials_of(options: ProbeOptions, client: Client) -> Trials:
    """Return who makes trial pods: nobody, unless the configuration allows it."""
    return TrialPods(client) if options.trial_pods else NoTrials()


def allowed_settings_of(options: CompressionOptions) -> AllowedSettings:
    """Return which settings of a method a spec may name beside those that are known."""
    return AllowedSettings(options.flags, options.variables)


def evaluations_of(options: ProbeOptions, client: Client) -> Evaluations:
    """Return who makes evaluations: nobody, unless the configuration allows it."""
    return EvaluationJobs(client) if options.evaluations else NoEvaluations()


def run_limits_of(settings: Settings, world: Connected, roster: Roster) -> RunLimits:
    """Return the resources of one operator together, bound by its configuration."""
    process, storm = settings.process, settings.storm
    bounds = Bounds(
        Budgets(**dict(settings.budgets)),
        Breaker(storm.runs, storm.window, storm.lasts),
        over=f"kubectl -n {process.namespace} create configmap {storm.over}",
        reread=settings.pace.idle,
    )
    return RunLimits(
        bounds,
        roster,
        census=lambda: world.store.peers(process.watch),
        storm_over_at=lambda: read_storm_end(world.client, process.namespace, storm.over),
    )


def reporter_of(settings: Settings, world: Connected, telemetry: Telemetry) -> tuple[Reporter, Notifications]:
    """Return what reports to people, and what sends notifications; metrics show what each source cost."""
    telemetry.registry.register(SourceCosts(world.metrics.spent))
    process = settings.process
    sender = Sender(f"{process.namespace}/{process.release}", world.client.clock.now)
    events = Events(world.client, process.identity)
    notifications = Notifications(events, settings.notify, sender, telemetry.notifications)
    return Reporter(notifications if settings.notify else events, telemetry), notifications


def pace_of(options: PaceOptions) -> Pace:
    """Return the pace that the configuration sets."""
    return Pace(
        idle=options.idle,
        verifying=options.verifying,
        replica=options.replica,
        controller=options.controller,
        drain_quiet=options.drain_quiet,
        drain_interval=options.drain_interval,
        spare_limit=options.spare_limit,
    )


def installation_of(settings: Settings, client: Client) -> Installation:
    """Return this process as part of its installation, which leads only where no other one does."""
    process, options = settings.process, settings.leadership
    notice = options.notice.total_seconds()
    identity = Identity(process.namespace, process.release, process.watch, notice)
    return Installation(client, identity, _leadership(settings, client), options.retry.total_seconds())


def _leadership(settings: Settings, client: Client) -> Leadership:
    options = settings.leadership
    times = LeaseTimes(
        duration_seconds=round(options.duration.total_seconds()),
        margin_seconds=options.margin.total_seconds(),
        retry_seconds=options.retry.total_seconds(),
        attempt_seconds=options.attempt.total_seconds(),
    )
    shard = settings.shard
    name = options.lease if shard.count == 1 else f"{options.lease}-shard-{shard.index}"
    lease = Ref(LEASES, settings.process.namespace, name)
    return Leadership(client, lease, times, fresh_identity())


def _limits(options: KubernetesOptions) -> Limits:
    return Limits(
        connect_seconds=options.connect_timeout.total_seconds(),
        total_seconds=options.total_timeout.total_seconds(),
        per_second=options.requests_per_second,
        burst=options.burst,
    )
