"""Where a LeaderWorkerSet is walked otherwise than a StatefulSet: how it is held, and how a group is let go.

Its strategy is always a rolling update, so nothing but its partition lets a group go, and with it all above.
So the highest group that is not changed yet goes first, whatever its drain says. It is drained by its leader;
then the partition is put to its place for a moment, and the leader is deleted by name: its group comes back
as a whole, from the new template. Where the leaders' controller keeps the desired template as that of the
last complete rollout, which is so on the way back, any group is deleted while all of them are held.

An old controller knows no partition, whatever the definition says: so the groups are held first, and the
template is changed once the StatefulSet of the leaders shows that they are.

A group of which a container restarts is deleted by its controller, and made anew. While all are held it so
comes back as it was before: that is what speaks against a change, as no pod is left that crashed.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import FROZEN_PARTITION, Fleet, Groups, Pod, RolloutFields, hold_by_partition
from kvmedic.model.reasons import Reason
from kvmedic.rollout.frozen_rollout import PULSE_LIMIT, Order
from kvmedic.rollout.moves import Failed, Hold, Pause, Pulse, Retarget, Wait
from kvmedic.rollout.preconditions import Purpose
from kvmedic.rollout.start_failure import STARTS

HOLD_LIMIT = timedelta(seconds=60)
"""How long the controllers may take to hold the groups before the change is called off: both act within a
second of a change, and are asked for it again at each of theirs."""


def find_group_blocker(fleet: Fleet, purpose: Purpose) -> Blocked | None:
    """Return why a LeaderWorkerSet cannot be begun with, or None; None too of another kind.

    One that is down goes no earlier than all above it, and until then the fleet would be two short.
    """
    ready = [pod for pod in fleet.live if pod.ready]
    down = [pod.name for pod in fleet.live if not pod.ready]
    if fleet.groups is None or purpose is Purpose.RETURN or not down or not ready:
        return None
    return Blocked(
        Reason.TARGET_NOT_SETTLED,
        f"group {down[0]} is not Ready, and a LeaderWorkerSet is changed from its highest group on: see why "
        "it is not, or delete its leader, so that the group is made anew",
    )


def begin_groups(
    fleet: Fleet, groups: Groups, order: Order, now: datetime
) -> Hold | Retarget | Failed | Wait:
    """Return the next move until the template is changed of groups that are held."""
    fields = hold_by_partition(fleet.fields)
    if not fleet.fields.is_frozen:
        return Hold(order.edit, fields)
    if order.repairs or groups.obeyed == FROZEN_PARTITION:
        return Retarget(order.edit, fields)
    text = (
        "the StatefulSet of the leaders does not show the partition yet: LeaderWorkerSet's controller has to "
        "run, and to be 0.7 or newer"
    )
    if order.pulsed_at is not None and now - order.pulsed_at > HOLD_LIMIT:
        return Failed(Reason.KIND_UNSUPPORTED, f"{text}; nothing was changed")
    return Wait(Reason.AWAITING_CONTROLLER, text)


def comes_back_as_desired(fleet: Fleet, order: Order) -> bool:
    """Return whether a leader that is deleted while all are held is made from the desired template."""
    return fleet.groups is not None and fleet.groups.comes_back == order.toward


def let_group_go(fleet: Fleet, pod_to_remove: Pod) -> Pulse:
    """Return the permit by which the group of a leader is made anew, and those above it that are old."""
    place = pod_to_remove.ordinal or 0
    down = sum(not pod.ready for pod in fleet.live if (pod.ordinal or 0) < place)
    return Pulse((pod_to_remove.name,), let_go_fields(fleet.fields, place, down))


def let_go_fields(fields: RolloutFields, place: int, down: int) -> RolloutFields:
    """Return the fields by which groups are made anew from a place on, and none below it.

    Args:
        fields: the LeaderWorkerSet's own.
        place: of the lowest group that may go.
        down: groups below it that are not Ready. Its controller waits for these where no more may be missing.
    """
    held = hold_by_partition(fields)
    return replace(held, partition=place, max_unavailable=1 + down, permits=True, paused=False)


def unspent_move(
    fleet: Fleet, groups: Groups, pod_to_remove: Pod, order: Order, now: datetime
) -> Pause | Wait | None:
    """Return what comes while the controllers do not let a drained group go yet; None: they do."""
    others = [pod for pod in fleet.live if pod.revision != order.toward and pod.uid != pod_to_remove.uid]
    is_wide = any((pod.ordinal or 0) >= (fleet.fields.partition or 0) for pod in others)
    if is_wide:  # groups were added above it, or came back there: these are to be drained before
        return Pause(hold_by_partition(fleet.fields))
    if groups.obeyed is not None and groups.obeyed <= (pod_to_remove.ordinal or 0):
        return None
    if order.pulsed_at is None or now - order.pulsed_at > PULSE_LIMIT:
        return Pause(hold_by_partition(fleet.fields))
    return Wait(Reason.AWAITING_CONTROLLER, f"its controller has yet to let group {pod_to_remove.name} go")


def held_wait(groups: Groups, pod_to_remove: Pod) -> Wait | None:
    """Return the wait until the controllers hold all groups, without which one would come back otherwise."""
    if groups.obeyed == FROZEN_PARTITION:
        return None
    return Wait(
        Reason.AWAITING_CONTROLLER,
        f"its controller has yet to hold all groups, {pod_to_remove.name} among them",
    )


def report_reverted_group(fleet: Fleet, order: Order, now: datetime) -> Failed | Wait | None:
    """Return what the group says that was let go last and came back as it was; None where none did.

    A container of it ended, so its controller deleted it, and made it from the last complete rollout.
    The first one speaks against the change. Beside others that serve it is tried again after a while.
    """
    since = order.pulsed_at
    let_go = (one for one in order.draining_pods if since is not None and since > one.cordoned_at)
    gone = {one.name: one.uid for one in let_go}
    old = (pod for pod in fleet.live if pod.revision != order.toward)
    pod = next((pod for pod in old if gone.get(pod.name, pod.uid) != pod.uid), None)
    if fleet.groups is None or order.repairs or not order.is_made or pod is None:
        return None
    text = f"group {pod.name} ended and came back with the setting from before: see why its leader ended"
    if not any(each.ready for each in fleet.list_pods(order.toward)):
        return Failed(Reason.CANARY_FAILED, text)
    pause = STARTS * order.start_limit
    if now - pod.created_at > pause:
        return None
    again = f"it is changed again {int(pause.total_seconds() // 60)} m after it was made"
    return Wait(Reason.REPLICA_NOT_STARTING, f"{text}; {again}, or ask for the run to be rolled back")
