"""Pods that were taken out of rotation and that nothing leads to any more: they are put back all the same.

The Deployment may be gone and its pods left (`kubectl delete --cascade=orphan`), a pod may have lost the
labels by which its ReplicaSet knew it, a record may have been lost with its resource. Each such pod carries a
note of the Deployment that it was cordoned for; once no open run is about that one, the pod serves again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from kvmedic.core.aside import SetAside
from kvmedic.core.crowd import Peer
from kvmedic.core.fleet import Cordoned
from kvmedic.kube.errors import Conflict, Refused
from kvmedic.ports import Ports, Target

LOG = logging.getLogger("kvmedic")


async def free_pods(ports: Ports, namespace: str, deployment: str, aside: SetAside | None) -> None:
    """Put back what a run that ends has cordoned of a Deployment, whoever owns it now.

    A replica that is set aside because it is ill stays so. A write that the API server refuses does not keep
    the run from its end: it is tried again now and then.
    """
    spared = aside.uid if aside is not None and aside.is_active else ""
    found = await ports.target.left_cordoned(namespace)
    await _free(ports.target, (one for one in found if one.deployment == deployment and one.uid != spared))


async def free_all(target: Target, namespace: str) -> None:
    """Put back every pod of a namespace that is cordoned, as far as the API server lets us."""
    for pod in await target.left_cordoned(namespace):
        with suppress(Conflict):
            await _free(target, (pod,))


async def free_unclaimed(target: Target, found: Sequence[Cordoned], peers: Iterable[Peer]) -> None:
    """Put back the pods that no open run of their namespace can be about.

    Args:
        target: effects on pods.
        found: the pods; looked at before the resources were, so that a run which cordoned one is among them.
        peers: every resource.
    """
    known = tuple(peers)
    unclear = {peer.namespace for peer in known if peer.is_unclear}
    held = {uid for peer in known for uid in peer.holds}
    for pod in found:
        if pod.namespace not in unclear and not {pod.deployment, pod.uid} & held:
            with suppress(Conflict):
                await _free(target, (pod,))


async def _free(target: Target, pods: Iterable[Cordoned]) -> None:
    for pod in pods:
        try:
            await target.free(pod)
        except Refused as error:
            LOG.warning("pod=%s/%s reason=LeftCordoned error=%s", pod.namespace, pod.name, error)
