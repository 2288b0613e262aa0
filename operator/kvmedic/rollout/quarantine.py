"""An ill replica that is out of rotation: what is written down about it, and what comes next.

Written to the status before its label is touched, so that whoever reads it after a crash knows whose
cordon it is, and takes it back. Nothing but the replica's rotation label and deletion cost is changed,
and it is never deleted: what ails its node is for a person. It goes back as soon as its GPUs are known
to be well, its peers cannot spare it, or somebody stops the operator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from kvmedic.model.fleet import Fleet, Pod
from kvmedic.model.status import SetAside, Station
from kvmedic.rollout.moves import Cordon, Uncordon

BY_SOMEBODY = "somebody else put it back into rotation"


@dataclass(frozen=True, slots=True)
class Gone:
    """The pod does not exist any more; there is nothing to take back."""


Next: TypeAlias = SetAside | Cordon | Uncordon | Gone | None
"""Another record of it, a move, that it is gone, or nothing."""


def follow_pod(aside: SetAside, fleet: Fleet, back: str) -> Next:
    """Return what comes next for a replica that was set aside.

    Args:
        aside: as it is recorded.
        fleet: as it is now.
        back: why it should be in rotation again; empty: it should not.
    """
    pod = next((pod for pod in fleet.pods if pod.uid == aside.uid), None)
    if pod is None or pod.terminating:
        return Gone()
    match aside.station:
        case Station.RETURNED:
            return None
        case Station.RETURNING:
            return Uncordon(pod) if pod.cordoned else replace(aside, station=Station.RETURNED)
        case _ if back:
            return replace(aside, station=Station.RETURNING, ended=back)
        case Station.LEAVING:
            return replace(aside, station=Station.OUT) if pod.cordoned else Cordon(pod)
        case Station.OUT if not pod.cordoned:
            return replace(aside, station=Station.RETURNED, ended=BY_SOMEBODY)
        case Station.OUT:
            return None


def disorder(fleet: Fleet) -> str:
    """Return why no replica of a fleet can be spared now; empty where one can.

    Every replica must serve, and nothing else may be going on.
    """
    for applies, text in (
        (fleet.fields.is_frozen or bool(fleet.fence), "a run moves the fleet"),
        (fleet.rotation.in_selector, "the rotation label is part of the Deployment's own selector"),
        (not fleet.rotation.effective, "the rotation label takes no replica out of rotation"),
        (len(fleet.pods) != fleet.replicas, f"{len(fleet.pods)} of {fleet.replicas} replicas exist"),
        (any(not _serves(pod, fleet) for pod in fleet.pods), "not every replica serves"),
    ):
        if applies:
            return text
    return ""


def _serves(pod: Pod, fleet: Fleet) -> bool:
    current = pod.revision == fleet.revision and not pod.terminating
    return current and pod.ready and pod.in_rotation and not pod.cordoned
