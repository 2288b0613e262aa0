"""The workload that a resource looks after, as the reconcile loop sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from kvmedic.cluster.autoscalers import minimum_of, neighbours_of, set_minimum, unmark
from kvmedic.cluster.config_maps import config_maps_of
from kvmedic.cluster.engine_logs import ends_of, pools_of, starts_of
from kvmedic.cluster.patches import CORDONED_FOR
from kvmedic.cluster.rotation import confirm, free, left_cordoned, move_pod
from kvmedic.cluster.snapshot import snapshot
from kvmedic.cluster.workloads import assign, notes_on, unclaim
from kvmedic.engines.engine_log import Start, StartForms
from kvmedic.kube.client import Client
from kvmedic.model.config_edits import previous
from kvmedic.model.devices import EngineEnd
from kvmedic.model.evidence import LogForms, LoggedSize
from kvmedic.model.fleet import Cordoned, Fleet, ObjectRef, Pod
from kvmedic.model.spec import Policy
from kvmedic.rollout.moves import Cordon, DeletePod, Effect, Pulse, SetMinimum, Uncordon
from kvmedic.rollout.preconditions import Neighbours
from kvmedic.runbooks.workload import View


@dataclass(frozen=True, slots=True)
class DeploymentTarget:
    """Deployments of one cluster."""

    client: Client

    async def look(self, namespace: str, policy: Policy) -> View | None:
        """Return the target as it is now, or None when the Deployment does not exist."""
        seen = await snapshot(self.client, namespace, policy.target, policy.rollout.rotation_label)
        if seen is None:
            return None
        earlier = previous(seen.fleet)
        sets = ("", *([earlier.name] if earlier and earlier.name in seen.templates else []))
        lines = [seen.engine_line(policy.target, each) for each in sets]
        maps = await config_maps_of(self.client, namespace, lines)
        return replace(seen, config_maps=maps)

    async def with_minimum(self, view: View, holder: ObjectRef) -> View:
        """Return the target with the minimum that an autoscaler has for it now."""
        found = await minimum_of(self.client, view.fleet.namespace, holder)
        return replace(view, fleet=replace(view.fleet, minimum=found))

    async def neighbours(self, view: View) -> Neighbours:
        """Return who else has a say in the target's replicas and pods."""
        return await neighbours_of(self.client, view.fleet, view.template)

    async def apply(self, fleet: Fleet, effect: Effect, claim: str) -> None:
        """Carry out one effect on the fleet as it was viewed; repeating it changes nothing more.

        Raises:
            Conflict: the object is not what was viewed.
        """
        match effect:
            case Cordon() | Uncordon() | DeletePod():
                await move_pod(self.client, fleet, effect)
            case SetMinimum():
                await set_minimum(self.client, fleet, effect, claim)
            case _:
                if isinstance(effect, Pulse):
                    await confirm(self.client, fleet, effect.victim)
                await assign(self.client, fleet, effect, claim, notes_on(fleet, effect))

    async def last_ends(
        self, namespace: str, pods: Sequence[Pod], since: datetime
    ) -> Mapping[str, EngineEnd]:
        """Return the last end of each engine that ended since a moment, by pod; it reads their logs."""
        return await ends_of(self.client, namespace, pods, since)

    async def logged_pools(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: LogForms
    ) -> Mapping[str, LoggedSize]:
        """Return the pools that the present logs of replicas tell, by pod; who tells none is not there."""
        return await pools_of(self.client, namespace, pods, container, forms)

    async def starts(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: StartForms
    ) -> Mapping[str, Start]:
        """Return what the present logs of replicas tell of their start, by pod."""
        return await starts_of(self.client, namespace, pods, container, forms)

    async def unclaim(self, fleet: Fleet) -> None:
        """Remove our annotations while the claim is the one that was looked at; nothing without a claim."""
        if fleet.minimum is not None and fleet.minimum.mark:
            await unmark(self.client, fleet.namespace, fleet.minimum)
        if fleet.fence:
            await unclaim(self.client, fleet)

    async def left_cordoned(self, namespace: str) -> tuple[Cordoned, ...]:
        """Return the pods that carry a note of ours; an empty namespace means the marked ones of all."""
        return await left_cordoned(self.client, namespace, "" if namespace else CORDONED_FOR)

    async def free(self, found: Cordoned) -> None:
        """Put a pod back into rotation that no fleet has any more. Raises Conflict when it changed."""
        await free(self.client, found)
