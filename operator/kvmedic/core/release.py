"""What a rollout borrowed, given back without touching the template."""

from __future__ import annotations

from collections.abc import Mapping

from kvmedic.core.draining import stray_move
from kvmedic.core.fleet import (
    FROZEN_MIN_READY_SECONDS,
    FROZEN_PROGRESS_DEADLINE_SECONDS,
    SURGE,
    Fleet,
    RolloutFields,
)
from kvmedic.core.moves import Move, Release, Revert, Settled
from kvmedic.core.swap import EditedTemplate


def releasing_move(
    fleet: Fleet, recorded: RolloutFields, without_ours: Mapping[str, object] | None = None
) -> Move:
    """Return the next move toward a fleet without anything of ours but its template.

    Cordoned pods go back into rotation before the rollout is let go, so that whatever the
    controller does then, it does to a whole fleet.

    Args:
        fleet: the target.
        recorded: the rollout's fields from before.
        without_ours: the template as somebody edited it, without what the run had changed; None: nothing of
            that is in it. It is put in the same patch that lets the rollout go: what nobody judged reaches
            no replica by that.
    """
    if back := stray_move(fleet, fleet.pods):
        return back
    ours = released(fleet.fields, recorded)
    if without_ours is not None:
        return Revert(EditedTemplate(without_ours), ours)
    return Settled() if ours == fleet.fields else Release(ours)


def released(seen: RolloutFields, recorded: RolloutFields) -> RolloutFields:
    """Return the fields with each one that still holds a frozen rollout's value put back.

    A field that somebody else set meanwhile is theirs and stays.
    """
    held = seen.min_ready_seconds == FROZEN_MIN_READY_SECONDS
    dated = seen.progress_deadline_seconds == FROZEN_PROGRESS_DEADLINE_SECONDS
    if not held and not dated:
        return seen
    ours = isinstance(seen.max_unavailable, int) and seen.max_surge == SURGE
    return RolloutFields(
        paused=recorded.paused,
        max_surge=recorded.max_surge if ours else seen.max_surge,
        max_unavailable=recorded.max_unavailable if ours else seen.max_unavailable,
        min_ready_seconds=recorded.min_ready_seconds if held else seen.min_ready_seconds,
        progress_deadline_seconds=(
            recorded.progress_deadline_seconds if dated else seen.progress_deadline_seconds
        ),
    )
