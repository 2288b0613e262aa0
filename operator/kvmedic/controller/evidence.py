"""The evidence for one target: two looks at the same replicas, how they fare, what was deployed of late.

What of a target's pod template changed of late, and how the fleet fared before; read, never changed.

A source of metrics is asked about the past only where a revision came of late that changed what the KV
cache depends on.

The engine of a target: what its pod template starts, in the version that its replicas say they run.

What one look at a fleet found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kvmedic.controller.ports import Drivers, Logs, Metrics, SurveyInput
from kvmedic.engines import profiles_for, vocabulary_of
from kvmedic.engines.engine_log import Agreed, Mixed, Silent, Unclear, Witness, reported_version, witnesses
from kvmedic.manifests.invocation import version_of
from kvmedic.manifests.proposals import Proposal
from kvmedic.model.config_edits import (
    Deploy,
    Difference,
    LatestDeploy,
    Newcomer,
    NoDeploy,
    newcomer,
    revision_of,
    start_seconds,
    to_start,
)
from kvmedic.model.devices import Device, Vitals, fill_vitals, may_fill
from kvmedic.model.engine import Engine, EngineProfile
from kvmedic.model.evidence import Blocked, Inconclusive, Look, Measured, Observation, Reading, Unsupported
from kvmedic.model.fleet import Pod
from kvmedic.model.plan import COMPARED, Goal, OnTrial, Plan, ReplaceStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, whole_devices_of
from kvmedic.model.spec import Objectives, Policy, Runbook, TargetRef
from kvmedic.model.status import ClosedRun, RunbookSwitch
from kvmedic.runbooks.branches import Compressed, Diagnosed, Diagnosis, Evidence
from kvmedic.runbooks.compression.methods import logs_to_read
from kvmedic.runbooks.preemption.cap_size import peak_of
from kvmedic.runbooks.preemption.deploy_correlation import HISTORY
from kvmedic.runbooks.preemption.pressure import queue_of
from kvmedic.runbooks.revisions import differences
from kvmedic.runbooks.workload import View, Workload
from kvmedic.verdict.baseline import exclude_pods, patient_baseline_of
from kvmedic.verdict.vetoes import least_free_mib, up_seconds


@dataclass(frozen=True, slots=True)
class Moment:
    """When a look was made, and what had been done to the target before."""

    at: datetime
    history: Sequence[ClosedRun]
    """Closed runs of the resource."""


async def latest_deploy(
    policy: Policy, namespace: str, view: View, metrics: Metrics, moment: Moment
) -> LatestDeploy:
    """Return the revision that came of late, if what it changed matters to the KV cache.

    Args:
        policy: the spec.
        namespace: of the target.
        view: the target.
        metrics: what knows the past.
        moment: of the look that found the trouble.
    """
    came = newcomer(view.fleet, policy.rollback.within, moment.at)
    if came is None or is_ours(came, moment.history):
        return NoDeploy()
    found = _differences(came, view, policy.target)
    if isinstance(found, Inconclusive):
        return found
    if not found:
        return NoDeploy()
    previous, look = revision_of(came.previous), Look(policy.windows.trigger, signals=HISTORY)
    return Deploy(
        now=revision_of(came.now),
        previous=previous,
        came_at=came.came_at,
        differences=found,
        before=await metrics.observe_past(policy.source, namespace, previous.replica_set, came.came_at, look),
        to_start=to_start(view.fleet, previous.template),
        pods=frozenset(pod.name for pod in view.fleet.list_pods(came.now.revision)),
        start_seconds=start_seconds(view.fleet),
    )


def is_ours(came: Newcomer, history: Sequence[ClosedRun]) -> bool:
    """Return whether a revision is what a run of ours made.

    It came before the run's end, in place of the template that the run began on, and nobody else changed the
    template meanwhile.
    """
    return any(
        run.template == came.previous.revision
        and came.came_at <= run.ended_at
        and run.outcome is not Reason.FLAG_DRIFTED
        for run in history
        if run.template
    )


def _differences(came: Newcomer, view: View, target: TargetRef) -> tuple[Difference, ...] | Inconclusive:
    """Return what the revision changed that matters, or why that is not known."""
    what = f"revision {came.now.number} came at {came.came_at:%Y-%m-%dT%H:%M:%SZ}"
    compared = differences(view, target, came.previous.name)
    if isinstance(compared, Inconclusive):
        text = f"{what}, and what it changed cannot be read: {compared.message}"
        return Inconclusive(Reason.REVISION_UNREADABLE, text)
    return compared


def expected_pods(view: View) -> tuple[Pod, ...]:
    """Return the pods that should serve: every one that is not terminating, by name."""
    return tuple(sorted((p for p in view.fleet.pods if not p.terminating), key=lambda p: p.name))


async def gather(
    policy: Policy, namespace: str, view: View, inputs: SurveyInput, history: Sequence[ClosedRun] = ()
) -> Evidence:
    """Return the evidence for one target: two looks at the same replicas, how they fare, what was deployed.

    Args:
        policy: the spec.
        namespace: of the target.
        view: the target.
        inputs: what to look with.
        history: closed runs of the resource, whose changes are no deploys.
    """
    pods, metrics = expected_pods(view), inputs.metrics
    windows = policy.windows
    burn, sizing, devices, peaks, lengths = await asyncio.gather(
        metrics.observe(policy.source, pods, namespace, windows.trigger, windows.hold),
        metrics.observe(policy.source, pods, namespace, windows.sizing, timedelta(0)),
        metrics.devices(policy.source, pods, namespace, windows.trigger),
        metrics.peaks(policy.source, pods, namespace),
        metrics.past_lengths(policy.source, pods, namespace),
    )
    vitals = await vitals_of(burn, namespace, view, inputs.logs, devices)
    deploy = await latest_deploy(policy, namespace, view, metrics, Moment(burn.at, history))
    looks = Evidence(burn, sizing, policy.trigger, vitals, policy.node_health, deploy)
    evidence = replace(looks, peaks=peaks, past_lengths=lengths)
    return drop_unjudged_pods(evidence, pods, inputs.now)


def drop_unjudged_pods(evidence: Evidence, pods: Sequence[Pod], now: datetime | None) -> Evidence:
    """Return evidence without the replicas that the fleet is not to be judged on, where they may be left out.

    Args:
        evidence: of all replicas.
        pods: the replicas.
        now: the operator's own time; None: that of the look.
    """
    out = exclude_pods(pods, evidence.burn, now or evidence.burn.at)
    kept = [name for name in evidence.burn.pods if name not in out]
    burn, sizing = evidence.burn.only(kept), evidence.sizing.only(kept)
    return replace(evidence, burn=burn, sizing=sizing, left_out=out)


async def vitals_of(
    burn: Observation,
    namespace: str,
    view: View,
    logs: Logs,
    devices: Mapping[str, Reading[tuple[Device, ...]]],
) -> dict[str, Vitals]:
    """Return how each replica fares: its devices, and its engine's last end inside the look's window."""
    pods = expected_pods(view)
    ended = await logs.last_ends(namespace, pods, burn.at - timedelta(seconds=burn.window_seconds))
    return {
        pod.name: Vitals(pod.node, devices.get(pod.name, Unsupported()), ended.get(pod.name)) for pod in pods
    }


def find_pods_silent_on_pool(evidence: Evidence, view: View) -> tuple[Pod, ...]:
    """Return the replicas whose metrics never report their pool; their engine's log may."""
    silent = {name for name, readings in evidence.burn.pods.items() if readings.lone_block_tokens is not None}
    return tuple(pod for pod in expected_pods(view) if pod.name in silent)


async def with_logged_pools(
    evidence: Evidence, namespace: str, silent: Sequence[Pod], workload: Workload, logs: Logs
) -> Evidence:
    """Return evidence with the pools of those replicas whose engine reports its pool in its log alone.

    Args:
        evidence: as the metrics report it.
        namespace: of the target.
        silent: replicas whose metrics never report their pool.
        workload: their engine.
        logs: what the engines wrote.
    """
    signals = vocabulary_of(workload.engine.profile).signals.pool
    if signals.logged is None:
        return evidence
    container = str(workload.container.get("name"))
    pools = await logs.logged_pools(namespace, silent, container, signals.logged)
    null = signals.null_blocks
    burn, sizing = (seen.with_pools(pools, null) for seen in (evidence.burn, evidence.sizing))
    return replace(evidence, burn=burn, sizing=sizing)


def find_pods_silent_on_method(
    method: Compressed | None, policy: Policy, evidence: Evidence, view: View
) -> tuple[Pod, ...]:
    """Return the replicas whose start-up log would show of KV compression what nothing else does.

    None where nobody asks for its runbook.

    Args:
        method: as settings and labels show.
        policy: the spec.
        evidence: with the replicas' labels.
        view: the target.
    """
    if Runbook.COMPRESSION_WITHOUT_SAVINGS not in policy.runbooks:
        return ()
    names = logs_to_read(method, evidence.burn)
    return tuple(pod for pod in expected_pods(view) if pod.name in names)


async def with_starts(
    evidence: Evidence, namespace: str, asked: Sequence[Pod], workload: Workload, logs: Logs
) -> Evidence:
    """Return evidence with what the logs of some replicas say of their start.

    Args:
        evidence: without.
        namespace: of the target.
        asked: replicas whose logs are needed.
        workload: their engine.
        logs: what the engines wrote.
    """
    container, forms = str(workload.container.get("name")), vocabulary_of(workload.engine.profile).start
    return replace(evidence, started=await logs.starts(namespace, asked, container, forms))


async def with_drivers(
    vitals: Mapping[str, Vitals], namespace: str, pods: Sequence[Pod], workload: Workload, drivers: Drivers
) -> dict[str, Vitals]:
    """Return vitals in which the drivers under replicas report what no series does of their GPUs.

    Args:
        vitals: as the series report, by pod name.
        namespace: of the target.
        pods: the replicas that may be asked.
        workload: their engine.
        drivers: who asks.
    """
    blind = [pod for pod in pods if pod.node and may_fill(vitals.get(pod.name, Vitals()))]
    if not blind:
        return dict(vitals)
    answers = await drivers.ask(namespace, blind, str(workload.container.get("name")))
    expected = whole_devices_of(workload.container)
    filled = {name: fill_vitals(vitals[name], answer, expected) for name, answer in answers.items()}
    return {**vitals, **filled}


async def ask_versions(namespace: str, view: View, metrics: Metrics) -> tuple[Witness, ...]:
    """Return what replicas of the present template say; few are asked, and nothing is kept."""
    pods = witnesses(view.fleet.pods, view.fleet.revision)
    versions = await asyncio.gather(*(metrics.version(namespace, pod) for pod in pods))
    return tuple(Witness(pod.name, pod.image, version) for pod, version in zip(pods, versions, strict=True))


def engine_of(view: View, policy: Policy, versions: Sequence[Witness] = ()) -> Workload | Blocked:
    """Return the engine in the target's pod template, or why none is recognised."""
    known = [_engine_in_version(profile, versions) for profile in profiles_for(policy.target.engine)]
    return view.workload(policy.target, engines=known)


def refuse_version_mix(found: Workload | Blocked, versions: Sequence[Witness]) -> Workload | Blocked:
    """Return an engine of which a setting may be changed: not while its replicas run several versions.

    What new replicas would run is not known then, and a change would be judged across versions.
    """
    mixed = reported_version(versions, found.engine.profile) if isinstance(found, Workload) else None
    if not isinstance(mixed, Mixed):
        return found
    return Blocked(
        Reason.REPLICAS_DIFFER,
        f"replicas of one pod template run different versions: {mixed.why}; name an image that does not move "
        "(a version's tag, or a digest), so that all run the same",
    )


def version_remark(found: Workload | Blocked, versions: Sequence[Witness]) -> str:
    """Return what a person should know of the version that counts; empty where all agree."""
    if isinstance(found, Blocked):
        return ""
    name, tag = found.engine.profile.name, version_of(found.container, found.engine.profile)
    match reported_version(versions, found.engine.profile):
        case Agreed(version) if tag is not None and tag != version:
            return f"replicas run {name} {version}; their image's tag says {tag} and does not count"
        case Silent(why) if tag is None:
            return f"the version of {name} is not known: {why}, and the image's tag does not show it"
        case Agreed() | Silent():
            return ""
        case Unclear(why):
            return f"the version of {name} is not known: {why}"
        case Mixed(why):
            return f"replicas run different versions of {name}: {why}"


def _engine_in_version(profile: EngineProfile, versions: Sequence[Witness]) -> EngineProfile | Engine:
    """Return an engine in the version that counts: the replicas' own word, else the image's tag."""
    match reported_version(versions, profile):
        case Agreed(version):
            return Engine(profile, version)
        case Unclear() | Mixed():
            return Engine(profile)
        case Silent():
            return profile


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look at a fleet found."""

    view: View
    evidence: Evidence
    diagnosis: Diagnosis
    runbook: str
    plan: Plan | None
    blocked: Blocked | None
    """Why there is no plan although a branch applies, or why the plan cannot be carried out."""
    proposal: Proposal | None = None
    """What to give to the owner of the target, who makes the change instead of us; without a blocker: so
    that our change stays."""
    outlook: str = ""
    """Whether the fleet would do with less, where something is there for a while and somebody asked."""
    switch: RunbookSwitch | None = None
    """One runbook leaves the fleet to the other at this look."""
    may_lack: int = 0
    """Replicas that may be missing while the plan's change walks: 1 where no spare is made, else 0."""
    own_cap: str = ""
    """That requests queue behind a cap of ours, in one clause; empty where they do not."""

    def engine(self, policy: Policy) -> Workload | Blocked:
        """Return the engine of the target in the version that counts, or why none is recognised."""
        return engine_of(self.view, policy, self.evidence.versions)

    @property
    def burn(self) -> Observation:
        """Return the look over the trigger's window."""
        return self.evidence.burn

    @property
    def judged(self) -> tuple[Pod, ...]:
        """Return the replicas that the fleet is judged on, by name."""
        return tuple(pod for pod in expected_pods(self.view) if pod.name not in self.evidence.left_out)

    @property
    def goal(self) -> Goal:
        """Return by what a change would be judged."""
        steps = self.plan.steps if self.plan else ()
        if any(step.gives_back for step in steps):
            return Goal.CALM
        if any(isinstance(step, OnTrial) for step in steps):
            return Goal.ANSWER
        return self.diagnosis.branch.goal if isinstance(self.diagnosis, Diagnosed) else Goal.RELIEF

    def baseline(self, objectives: Objectives) -> Baseline | Inconclusive | None:
        """Return the fleet as it is now, to be compared with later; None where that is not needed.

        Restarts are those of the replicas that are still to be there then. Replicas that just restarted have
        no figures, and a change for them is not judged by figures.
        """
        return self.baseline_over(self.evidence.burn, objectives)

    def baseline_over(self, seen: Observation, objectives: Objectives) -> Baseline | Inconclusive | None:
        """Return the same of another look at the same replicas."""
        steps = self.plan.steps if self.plan else ()
        going = {step.uid for step in steps if isinstance(step, ReplaceStep)}
        staying = [pod for pod in expected_pods(self.view) if pod.uid not in going]
        stay = queue_of(self.evidence.burn).is_steady and queue_of(self.evidence.sizing).is_steady
        found = patient_baseline_of(seen, sum(pod.ends for pod in staying), objectives, clients_stay=stay)
        if isinstance(found, Inconclusive):
            return found if self.goal in COMPARED else None
        return replace(
            found,
            memory_free_mib=least_free_mib(self._devices()),
            peak_tokens_per_second=peak_of(self.evidence.peaks),
            up_seconds=up_seconds(staying, seen.at),
            ended_at_memory_limit=any(
                pod.last_end is not None and pod.last_end.at_memory_limit for pod in staying
            ),
        )

    def _devices(self) -> tuple[Reading[tuple[Device, ...]], ...]:
        return tuple(vitals.devices for vitals in self.evidence.vitals.values())

    def blocks(self) -> int | None:
        """Return the smallest pool of the replicas (usable blocks), or None when one is not known."""
        pools = [readings.pool for readings in self.evidence.burn.pods.values()]
        known = [pool.value.blocks for pool in pools if isinstance(pool, Measured)]
        return min(known) if known and len(known) == len(pools) else None
