"""The engine of a target: what its pod template starts, in the version that its replicas say they run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kvmedic.core.engine import Engine, EngineProfile
from kvmedic.core.plan import ObjectRef
from kvmedic.core.policy import Policy
from kvmedic.core.reasons import Reason
from kvmedic.core.told_version import Agreed, Mixed, Silent, Unclear, Witness, told_of, witnesses
from kvmedic.engines import ENGINES
from kvmedic.manifests.invocation import version_of
from kvmedic.ports import Metrics, View
from kvmedic.runbooks.planning import Fault, Workload, configured, workload_of


async def ask_versions(namespace: str, view: View, metrics: Metrics) -> tuple[Witness, ...]:
    """Return what replicas of the present template say; few are asked, and nothing is kept."""
    pods = witnesses(view.fleet.pods, view.fleet.revision)
    told = await asyncio.gather(*(metrics.version(namespace, pod) for pod in pods))
    return tuple(Witness(pod.name, pod.image, version) for pod, version in zip(pods, told, strict=True))


def engine_of(view: View, policy: Policy, told: Sequence[Witness] = ()) -> Workload | Fault:
    """Return the engine in the target's pod template, or why it cannot be told."""
    target = ObjectRef(policy.target.kind, policy.target.name)
    known = [_known(profile, told) for profile in ENGINES]
    found = workload_of(target, view.fleet.uid, view.template, policy.target.container, known)
    return configured(found, view.config_maps)


def settable(found: Workload | Fault, told: Sequence[Witness]) -> Workload | Fault:
    """Return an engine of which a setting may be changed: not while its replicas run several versions.

    What new replicas would run is not known then, and a change would be judged across versions.
    """
    mixed = told_of(told, found.engine.profile) if isinstance(found, Workload) else None
    if not isinstance(mixed, Mixed):
        return found
    return Fault(
        Reason.REPLICAS_DIFFER,
        f"replicas of one pod template run different versions: {mixed.why}; name an image that does not move "
        "(a version's tag, or a digest), so that all run the same",
    )


def version_remark(found: Workload | Fault, told: Sequence[Witness]) -> str:
    """Return what a person should know of the version that counts; empty where all agree."""
    if isinstance(found, Fault):
        return ""
    name, tag = found.engine.profile.name, version_of(found.container, found.engine.profile)
    match told_of(told, found.engine.profile):
        case Agreed(version) if tag is not None and tag != version:
            return f"replicas run {name} {version}; their image's tag says {tag} and does not count"
        case Silent(why) if tag is None:
            return f"the version of {name} is not known: {why}, and the image's tag does not tell it"
        case Agreed() | Silent():
            return ""
        case Unclear(why):
            return f"the version of {name} is not known: {why}"
        case Mixed(why):
            return f"replicas run different versions of {name}: {why}"


def _known(profile: EngineProfile, told: Sequence[Witness]) -> EngineProfile | Engine:
    """Return an engine in the version that counts: the replicas' own word, else the image's tag."""
    match told_of(told, profile):
        case Agreed(version):
            return Engine(profile, version)
        case Unclear() | Mixed():
            return Engine(profile)
        case Silent():
            return profile
