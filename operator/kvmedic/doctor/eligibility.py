"""The condition `Eligible`: whether a change could begin, known while the fleet is calm.

The same checks as `kvmedic doctor` makes, at a slow pace, so that a look costs nothing more. What is
remembered between two looks is only when the next examination is due: who starts anew examines at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Protocol, TypeAlias

from kvmedic.cluster.rights import CONFIG_FILE, GROUPED, NEEDED, OWNER_FIELD, STATEFUL, Lacking, Right
from kvmedic.doctor.checks import (
    Check,
    Examination,
    Topic,
    Verdict,
    checks_of,
    in_order,
    metrics_checks,
    names_of,
    namespace_check,
    rights_check,
    spare_check,
    written_owner,
)
from kvmedic.kube.errors import ApiError, Unavailable
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import LEADER_WORKER_SET, STATEFUL_SET
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy, place_of, typed_place
from kvmedic.model.status import ConditionType, Record, Resource, Truth
from kvmedic.record.runs import MESSAGE_BYTES, Claim, with_conditions
from kvmedic.rollout.preconditions import Neighbours
from kvmedic.rollout.spares.room import Finding, RoomUnknown
from kvmedic.runbooks.branches import Diagnosis
from kvmedic.runbooks.workload import View, Workload

EVERY = timedelta(minutes=10)
"""Between two examinations of one target: most of it is read from what watches keep, but not quotas and what
only some clusters have. An edit of the resource or of the Deployment's spec is examined at the next look."""
SOON = timedelta(minutes=1)
"""The same where metrics were missing: a fleet that has just started is scraped within a minute or so."""
PASSING = frozenset({Reason.TARGET_NOT_SETTLED, Reason.AUTOSCALER_ACTIVE, Reason.NO_ROOM_FOR_SPARE})
"""Reasons that mostly pass by themselves. Alone they count only where the next examination sees them too."""

Asker: TypeAlias = Callable[[str, Sequence[Right]], Awaitable[Lacking | str]]
"""Returns which rights we lack in a namespace, or why that is not known."""


class Around(Protocol):
    """What is around a target."""

    async def with_drain(self, view: View, policy: Policy) -> View:
        """Return a target with all that draining depends on, where only a quick look was taken."""

    async def room_around(self, view: View) -> Finding:
        """Return whether one pod more of the target finds a place now."""

    async def neighbours_around(self, view: View) -> Neighbours:
        """Return who else has a say in a target's replicas and pods."""


async def admit_all(namespace: str) -> Blocked | None:
    """Return that nothing is asked of a namespace."""
    del namespace
    return None


async def ask_nobody(namespace: str, needed: Sequence[Right]) -> Lacking | str:
    """Return that nobody is asked for rights here."""
    del namespace, needed
    return "nobody is asked for rights here"


@dataclass(frozen=True, slots=True)
class _Visit:
    """The last examination of one target."""

    at: datetime
    generations: tuple[int, int]
    """Of the resource and of its target."""
    claim: Claim | None
    """What it came to; None: it found only what mostly passes, for the first time."""
    again_after: timedelta
    """How long it holds."""


@dataclass(slots=True)
class Examiner:
    """Examines targets whose fleets are calm, each one now and then."""

    ask_rights: Asker = ask_nobody
    around: Around | None = None
    """What is around a target; it may be a moment old. None: nothing is examined."""
    admit: Callable[[str], Awaitable[Blocked | None]] = admit_all
    """Returns what a namespace lacks for its fleets to be changed."""
    _rights: dict[tuple[str, Sequence[Right]], tuple[datetime, Lacking | str]] = field(default_factory=dict)
    _visits: dict[str, _Visit] = field(default_factory=dict)

    def is_due(self, resource: Resource, view: View, now: datetime) -> bool:
        """Return whether a target is to be examined at this look."""
        last = self._visits.get(resource.uid)
        if last is None or last.generations != (resource.generation, view.fleet.generation):
            return True
        is_fresh = timedelta(0) <= now - last.at < last.again_after
        return not is_fresh or not _is_recorded(resource.record, last.claim)

    async def examine(
        self,
        resource: Resource,
        view: View,
        diagnosis: Diagnosis,
        now: datetime,
    ) -> Examination | None:
        """Return the examination of a target, or None where an API did not answer: the next look tries again.

        Args:
            resource: which has a policy.
            view: its target, by a quick look or as a whole.
            diagnosis: of this look.
            now: the time.
        """
        policy, around = resource.policy, self.around
        if policy is None or around is None:
            return None
        try:
            view = await around.with_drain(view, policy)
            room = await around.room_around(view)
            neighbours: Neighbours | str = await around.neighbours_around(view)
            lacking = await self._lacking_rights(resource.namespace, needed_rights(view, policy), now)
            closed = await self.admit(resource.namespace)
        except Unavailable:
            return None
        except ApiError as error:
            neighbours, lacking, closed = f"not readable: {error}", f"not readable: {error}", None
            room = RoomUnknown(f"not readable: {error}")
        names = names_of(view.fleet, resource.name)
        checks: list[Check] = [
            *checks_of(view, policy, neighbours, resource.name),
            spare_check(room, view.fleet, policy, names),
            *metrics_checks(diagnosis, view.fleet, policy, names, now),
            rights_check(lacking, names),
        ]
        if closed is not None:
            checks.append(namespace_check(closed))
        target = place_of(view.fleet.kind, view.fleet.name)
        return Examination(resource.namespace, target, in_order(checks))

    async def _lacking_rights(self, namespace: str, needed: Sequence[Right], now: datetime) -> Lacking | str:
        """Return which rights we lack in a namespace; asked once for all its targets now and then."""
        at, lacking = self._rights.get((namespace, needed), (None, ""))
        if at is None or not timedelta(0) <= now - at < EVERY:
            lacking = await self.ask_rights(namespace, needed)
            self._rights[namespace, needed] = now, lacking
        return lacking

    def note(
        self, record: Record, found: Examination, resource: Resource, view: View, now: datetime
    ) -> Record:
        """Return the record with what an examination came to; equal to the old one where that is the same."""
        last = self._visits.get(resource.uid)
        reasons = {each.reason for each in found.failed}
        is_new = last is None or last.claim is not None or now - last.at < last.again_after
        may_pass = is_new and bool(reasons) and reasons <= PASSING and not _is_failing(record)
        claim = None if may_pass else claim_of(found)
        lacks_metrics = any(each.name is Topic.METRICS for each in (*found.failed, *found.unknown))
        generations = resource.generation, view.fleet.generation
        self._visits[resource.uid] = _Visit(now, generations, claim, SOON if lacks_metrics else EVERY)
        return record if claim is None else with_conditions(record, (claim,), resource.generation, now)

    def forget(self, uid: str) -> None:
        """Forget a resource that is gone."""
        self._visits.pop(uid, None)


def _is_recorded(record: Record | None, claim: Claim | None) -> bool:
    """Return whether a record says what an examination came to: a write may have failed since."""
    condition = record.condition(ConditionType.ELIGIBLE) if record else None
    return claim is None or (
        condition is not None and (condition.status, condition.reason) == (claim.status, claim.reason)
    )


def _is_failing(record: Record) -> bool:
    """Return whether a record says already that no change could begin."""
    condition = record.condition(ConditionType.ELIGIBLE)
    return condition is not None and condition.status is Truth.FALSE


OF_KIND = MappingProxyType({STATEFUL_SET: STATEFUL, LEADER_WORKER_SET: GROUPED})


def needed_rights(view: View, policy: Policy) -> tuple[Right, ...]:
    """Return which rights a change of a target needs; more where a flag is in a file or an owner's object."""
    found = view.workload(policy.target)
    in_file = isinstance(found, Workload) and found.line.config is not None
    of_kind = OF_KIND.get(view.fleet.kind, ())
    owner = written_owner(view.fleet, policy)
    of_owner = OWNER_FIELD[owner] if owner else ()
    return (*NEEDED, *of_kind, *(CONFIG_FILE if in_file else ()), *of_owner)


def claim_of(found: Examination) -> Claim:
    """Return the condition that an examination comes to, with all that it found in its message."""
    match found.verdict:
        case Verdict.ELIGIBLE:
            return Claim(ConditionType.ELIGIBLE, Truth.TRUE, Reason.ELIGIBLE)
        case Verdict.NOT_ELIGIBLE:
            checks = (*found.failed, *found.unknown)
            return Claim(ConditionType.ELIGIBLE, Truth.FALSE, Reason.NOT_ELIGIBLE, _message(found, checks))
        case Verdict.UNKNOWN:
            message = _message(found, found.unknown)
            return Claim(ConditionType.ELIGIBLE, Truth.UNKNOWN, Reason.ELIGIBILITY_UNKNOWN, message)


def _message(found: Examination, checks: Sequence[Check]) -> str:
    """Return each finding whole, as many as a message may have, and how many more there are."""
    command = f"kvmedic doctor {typed_place(found.target)} -n {found.namespace} has all, with fixes"
    parts = [f"{each.name}: {each.saw}" for each in checks]
    for count in range(len(parts), 0, -1):
        more = f"; and {len(parts) - count} more" if count < len(parts) else ""
        text = f"{'; '.join(parts[:count])}{more}; {command}"
        if len(text.encode()) <= MESSAGE_BYTES:
            return text
    return f"{', '.join(each.name for each in checks)}: {command}"
