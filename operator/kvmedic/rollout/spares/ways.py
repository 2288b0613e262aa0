"""How a change gets by with the room that there is: with a spare beside it, one short, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import (
    BundleStep,
    EvaluationStep,
    FlagStep,
    ReplaceStep,
    ReplicasStep,
    RevisionStep,
    Step,
    TrialStep,
)
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy
from kvmedic.rollout.spares.room import Finding, NoRoom, Room, RoomUnknown

WAYS_OUT = (
    "free that much, or raise the quota; where nodes are added on demand set spec.rollout.spareLimit, and "
    "the spare waits so long for one"
)
"""What helps a spare to a place."""


def no_spare_of(fleet: Fleet) -> str:
    """Return why no spare is ever made of what is held by a partition."""
    if fleet.groups is not None:
        return "no group is made beside those of a LeaderWorkerSet"
    return "a StatefulSet has no place for a replica beside those of its ordinals"


@dataclass(frozen=True, slots=True)
class Beside:
    """The spare is made."""

    remark: str = ""


@dataclass(frozen=True, slots=True)
class Short:
    """None is made: one replica is missing for each drain and start."""

    remark: str


class SpareUse(Enum):
    """What a step needs a replica more for, than the fleet has."""

    NOTHING = "nothing"
    """It makes none."""
    DESIRED = "desired"
    """That replica is what the step is for, so there is no way without it."""
    FIRST = "first"
    """The step begins with it."""
    BESIDE = "beside"
    """It serves while another one is replaced: without it the fleet is one short."""


def spare_use(step: Step) -> SpareUse:
    """Return what a step needs a replica more for."""
    match step:
        case ReplicasStep():
            return SpareUse.DESIRED
        case ReplaceStep():
            return SpareUse.FIRST
        case FlagStep() | BundleStep() | RevisionStep():
            return SpareUse.BESIDE
        case TrialStep() | EvaluationStep():
            return SpareUse.NOTHING
        case _:
            assert_never(step)


def weigh_room(seen: Finding, policy: Policy) -> Beside | Blocked:
    """Return how a spare is made, or why it is not even tried."""
    limit = policy.rollout.spare_limit
    match seen:
        case Room():
            return Beside()
        case RoomUnknown(message):
            return Beside(f"whether a spare finds a place is not known ({message}); it is tried")
        case NoRoom(message, adds_nodes) if adds_nodes or limit:
            who = f"{adds_nodes} may add a node" if adds_nodes else "spec.rollout.spareLimit is set"
            return Beside(f"{message}; {who}, so the spare waits for one")
        case NoRoom(message):
            return Blocked(Reason.NO_ROOM_FOR_SPARE, f"{message}: {WAYS_OUT}")


def refuse_without_spare(fleet: Fleet) -> Blocked:
    """Return that what has no spare cannot be changed while the spec requires a spare."""
    return Blocked(
        Reason.SPARE_NEEDED,
        f"{no_spare_of(fleet)}, so it is one of {fleet.replicas} short for each drain and start: set "
        "spec.rollout.spare: BestEffort (where the others carry the load) or None (whatever the load is)",
    )


def way_without_spare(fleet: Fleet, step: Step | None, why: str) -> Short | Blocked:
    """Return that a fleet goes one short, or what keeps it from that whatever its load is.

    Args:
        fleet: the fleet.
        step: what is to be done; None: a change of the template.
        why: no spare is made.
    """
    ways = "set spec.rollout.spare: Required, and leave room for a replica more"
    if fleet.is_stateful:
        ways = f"set spec.replicas of the {fleet.kind} to 2"
    if fleet.replicas < 2:
        return Blocked(
            Reason.SPARE_NEEDED, f"{why}, and nobody serves while the only replica is away: {ways}"
        )
    if step is not None and spare_use(step) is SpareUse.FIRST and not fleet.is_stateful:
        return Blocked(Reason.SPARE_NEEDED, f"{why}, and a replacement begins with a spare: {ways}")
    return Short(f"{why}: the fleet is one replica short for each drain and start")
