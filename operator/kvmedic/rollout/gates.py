"""What must allow a forward move. An unanswerable gate blocks.

Whether a person approved the plan that is shown: exactly that plan, for one run, for a while.

An approval names a plan's digest. A digest that moved with every look could never be met, so a shown
plan stands while the evidence still leads to the same change: see `stands`. Nothing here says who
approved: the API server's audit log does.

How much may change at once, over all resources: budgets, and the breaker that a storm of bad ends trips.

All of it is decided from what the resources' own statuses say, so that it is the same after a restart
and for whoever leads. Nothing here ever speaks against a way back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType

from kvmedic.model.compression import parse_count
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import DEPLOYMENT, ObjectRef
from kvmedic.model.plan import FlagStep, Plan, Step
from kvmedic.model.readings import list_first
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Approved
from kvmedic.model.spec import Limits, Mode, Policy, is_window_open, next_opening
from kvmedic.model.status import ClosedRun


class Stop(Enum):
    """The operator-wide stop, as it was read."""

    OFF = "off"
    ON = "on"
    UNREADABLE = "unreadable"


def forward_gate(policy: Policy, stop: Stop) -> Blocked | None:
    """Return why a run may not move forward, or None. Asked before every effect."""
    if stop is Stop.UNREADABLE:
        return Blocked(
            Reason.STOP_UNREADABLE, "the stop ConfigMap could not be read; forward moves wait for it"
        )
    if stop is Stop.ON:
        return Blocked(Reason.STOPPED, "the operator-wide stop is on; delete the stop ConfigMap to go on")
    if policy.suspended:
        return Blocked(Reason.SUSPENDED, "spec.suspend is true; set it to false to go on")
    if policy.mode is Mode.OBSERVE:
        return Blocked(
            Reason.OBSERVE_ONLY,
            "spec.mode is Observe; set it to Approve or Auto to have the plan carried out",
        )
    return None


@dataclass(frozen=True, slots=True)
class Health:
    """The replicas of a fleet, by whether they serve and what a planned step is to them."""

    ready: int
    mendable: int = 0
    """Not Ready, for the very cause that the step mends."""
    others: int = 0
    """Not Ready for another cause, or nobody knows for which."""

    def allows(self, least: int) -> bool:
        """Return whether a run leaves as many replicas healthy as are demanded.

        The demand protects replicas that serve. What is down for the cause that the step mends cannot be made
        worse by it; anything else that is down may be.
        """
        return self.ready >= least or (self.others == 0 and self.ready + self.mendable >= least)

    def line(self) -> str:
        """Return it in one clause for a person."""
        if not self.mendable:
            return f"{self.ready} replicas are Ready"
        down = self.mendable + self.others
        return (
            f"{self.ready} replicas are Ready, {down} are not, {self.mendable} of these for the cause that "
            "the plan mends: see why the others are down"
        )


def opening_gate(
    limits: Limits, history: Sequence[ClosedRun], health: Health, now: datetime
) -> Blocked | None:
    """Return why no new run may be opened, or None.

    A trial pod changes nothing of the fleet: nothing need cool down after it, and no budget pays for it. What
    showed nothing is remembered, so that it is not asked over and over.
    """
    if not health.allows(limits.min_healthy_replicas):
        return Blocked(
            Reason.TOO_FEW_HEALTHY,
            f"{health.line()}; spec.limits.minHealthyReplicas is {limits.min_healthy_replicas}",
        )
    if not is_window_open(limits.windows, now):
        opens = next_opening(limits.windows, now)
        return Blocked(
            Reason.OUTSIDE_WINDOWS,
            f"spec.limits.windows opens next at {opens:%Y-%m-%d %H:%MZ} (a {opens:%A})",
        )
    changes = [run for run in history if not run.costs_nothing]
    ended = max((run.ended_at for run in changes), default=None)
    if ended is not None and now - ended < limits.cooldown:
        until = ended + limits.cooldown
        told = f"the last run ended {_day_and_time(ended)}; the next may start {_day_and_time(until)}"
        return Blocked(Reason.IN_COOLDOWN, told)
    today = sum(now - run.started_at < timedelta(days=1) for run in changes)
    if today >= limits.max_runs_per_day:
        return Blocked(
            Reason.BUDGET_EXHAUSTED,
            f"{today} runs in the last 24 hours, spec.limits.maxRunsPerDay is {limits.max_runs_per_day}",
        )
    return None


def _day_and_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


CLOCK_SKEW = timedelta(seconds=30)
"""By how much the API server's clock may be behind ours before a fresh approval seems older than the plan
that it approves. Hosts that keep time differ by far less than a second; the API server's own times are
cut to whole seconds. It is exactly this plan that was approved either way."""

NOISE = MappingProxyType({Knob.MAX_NUM_SEQS: 0.1})
"""Relative difference of a knob's values within which a shown plan still stands; a knob that is not here
must have the very value. How caps scatter, and what a cap costs that is off by as much, is measured in
`docs/decisions/0010-approvals-are-objects.md`."""

SMALLEST_DIFFERENCE = 1
"""Values that lie this near are the same whatever they are: a cap of 7 cannot be off by less."""


@dataclass(frozen=True, slots=True)
class Approval:
    """One approval as it is stored."""

    name: str
    uid: str
    digest: str
    made_at: datetime
    """By the API server's clock, cut to whole seconds."""
    expires_at: datetime | None = None
    """From when on it does not count, where it says so itself."""
    resource_uid: str = ""
    """The resource that it was made for; empty: any of the name."""


@dataclass(frozen=True, slots=True)
class Request:
    """A plan that waits for approval."""

    namespace: str
    name: str
    """Of the resource."""
    uid: str
    """Of the resource."""
    digest: str
    shown_at: datetime | None
    """Since when the resource shows the plan; None: not yet."""
    used: frozenset[str]
    """Uids of the approvals that runs were opened on."""
    max_age: timedelta

    @property
    def ask(self) -> str:
        """Return what a person is to type."""
        return (
            f"plan {self.digest} waits for approval: kvmedic approve {self.name} -n {self.namespace} "
            f"--digest {self.digest}"
        )


def find_approval(
    request: Request, approvals: Sequence[Approval] | Blocked, now: datetime
) -> Approved | Blocked:
    """Return the approval that a run may be opened on, the oldest of several, or why there is none."""
    if isinstance(approvals, Blocked):
        return approvals
    oldest_first = sorted(approvals, key=lambda each: (each.made_at, each.uid))
    doubts = [(each, _doubt_approval(request, each, now)) for each in oldest_first]
    good = next((each for each, doubt in doubts if not doubt), None)
    if good is not None:
        return Approved(good.name, good.uid)
    meant = [(each, doubt) for each, doubt in doubts if _may_be_meant(request, each, now)]
    if not meant:
        return Blocked(Reason.AWAITING_APPROVAL, request.ask)
    newest, doubt = meant[-1]
    return Blocked(Reason.APPROVAL_EXPIRED, f"KVApproval {newest.name} {doubt}; {request.ask}")


def _doubt_approval(request: Request, approval: Approval, now: datetime) -> str:
    """Return why an approval does not count, as the rest of a sentence; empty where it does."""
    shown_at, expires_at = request.shown_at, approval.expires_at
    for applies, text in (
        (
            approval.resource_uid not in ("", request.uid),
            "was made for an earlier KVRemediation of this name",
        ),
        (approval.uid in request.used, "was used by an earlier run, and it counts for one"),
        (
            approval.digest != request.digest,
            f"approves plan {approval.digest}, and evidence, pod template or spec have moved since",
        ),
        (
            shown_at is None or approval.made_at + CLOCK_SKEW < shown_at,
            "was made before this plan was shown",
        ),
        (expires_at is not None and now >= expires_at, "is past its spec.expiresAt"),
        (now - approval.made_at > request.max_age, "is older than spec.limits.approvalMaxAge"),
    ):
        if applies:
            return text
    return ""


def _may_be_meant(request: Request, approval: Approval, now: datetime) -> bool:
    """Return whether somebody may wonder why an approval does not count: those of long ago are left out."""
    return approval.digest == request.digest or now - approval.made_at <= request.max_age


def stands(shown: Plan, fresh: Plan) -> bool:
    """Return whether a plan that is shown is still what fresh evidence asks for.

    What it was computed from must be the same object, template and spec; values may differ by the
    noise of a measurement. The difference is to what is shown, so it cannot add up.
    """
    return (
        (shown.target_uid, shown.template, shown.spec_generation)
        == (fresh.target_uid, fresh.template, fresh.spec_generation)
        and len(shown.steps) == len(fresh.steps)
        and all(_is_near(*pair) for pair in zip(shown.steps, fresh.steps, strict=True))
    )


def _is_near(shown: Step, fresh: Step) -> bool:
    if not isinstance(shown, FlagStep) or not isinstance(fresh, FlagStep):
        return shown == fresh
    same = _changed_place(shown) == _changed_place(fresh)
    return same and (shown.after == fresh.after or _is_noise(shown.knob, shown.after, fresh.after))


def _changed_place(step: FlagStep) -> tuple[object, ...]:
    place = (step.kind, step.target, step.knob, step.before)
    file = step.file_of
    return place if file is None else (*place, file.config_map, file.key, file.before_content)


def _is_noise(knob: Knob, shown: str | None, fresh: str | None) -> bool:
    share, before, now = NOISE.get(knob), parse_count(shown or ""), parse_count(fresh or "")
    if share is None or before is None or now is None:
        return False
    difference, greatest = abs(before - now), max(before, now)
    return difference <= max(SMALLEST_DIFFERENCE, share * greatest)


NAMED = 3
"""Runs that a message names; the rest is counted, so that it fits in a condition."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Budgets:
    """How many runs may be open at once."""

    runs: int
    """Of this operator."""
    runs_per_namespace: int
    fleet_share: float
    """Of all targets that this operator looks after (ratio 0-1); one run may always be open."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """How many bad ends within which time keep new runs from being opened, and for how long."""

    runs: int
    window: timedelta
    lasts: timedelta


@dataclass(frozen=True, slots=True)
class BadEnd:
    """A run that ended badly."""

    namespace: str
    name: str
    """Of its resource."""
    reason: Reason
    at: datetime

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} {self.reason}"


@dataclass(frozen=True, slots=True)
class Peer:
    """One resource as all others see it."""

    namespace: str
    name: str
    uid: str
    target: str
    """Its target in its own namespace, as `place_of` names it."""
    opened_at: datetime | None = None
    """Since when it has a run open; None: it has none."""
    begun: bool = False
    """An assignment of that run was written down, so its target may have been changed."""
    bad_ends: tuple[BadEnd, ...] = ()
    created_at: str = ""
    """`metadata.creationTimestamp`: RFC 3339 in UTC, so its text sorts by time."""
    deployment: str = ""
    """Uid of the Deployment of its open run; empty: none is open."""
    is_unclear: bool = False
    """Its open run does not say which Deployment it is about."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def place_of(kind: str, name: str) -> str:
    """Return what tells a target from all others of its namespace: its name, with the kind if need be."""
    return name if kind == DEPLOYMENT else f"{kind}/{name}"


def target_at(place: str) -> ObjectRef:
    """Return the target that `place_of` names so."""
    kind, slash, name = place.rpartition("/")
    return ObjectRef(kind if slash else DEPLOYMENT, name)


def typed_place(place: str) -> str:
    """Return how kubectl and these commands are told of a target: `deploy/NAME`."""
    ref = target_at(place)
    return f"{'deploy' if ref.kind == DEPLOYMENT else ref.kind.lower()}/{ref.name}"


@dataclass(frozen=True, slots=True)
class Trip:
    """The breaker has tripped."""

    at: datetime
    until: datetime
    ends: tuple[BadEnd, ...]
    """The bad ends that tripped it, in the order of time."""

    @property
    def namespaces(self) -> frozenset[str]:
        """Where they were: one of them is kept back alone, several keep every fleet back."""
        return frozenset(end.namespace for end in self.ends)


def find_full_budget(budgets: Budgets, peers: Sequence[Peer], uid: str) -> Blocked | None:
    """Return which budget has no place for a run of a resource, and who has it, or None.

    Places go to runs that have begun, then by the time at which they were opened, then by uid. A
    resource without a run asks for a place behind all of them; one whose run was opened and has not
    begun may find that it has none after all. Runs of one namespace never keep those of another waiting:
    one tenant could stop all the others with them.
    """
    own = next((peer for peer in peers if peer.uid == uid), None)
    if own is not None and own.begun:
        return None
    ahead = sorted((p for p in peers if p.uid != uid and _is_before(p, own)), key=_place_in_line)
    near = [peer for peer in ahead if own is not None and peer.namespace == own.namespace]
    if ahead and not near and own is not None and len({peer.namespace for peer in ahead}) == 1:
        return None
    targets = len({(peer.namespace, peer.target) for peer in peers})
    share = max(1, int(budgets.fleet_share * targets + _ROUNDING))
    for holders, places, budget in (
        (near, budgets.runs_per_namespace, f"budgets.runsPerNamespace is {budgets.runs_per_namespace}"),
        (ahead, budgets.runs, f"budgets.runs is {budgets.runs}"),
        (ahead, share, f"budgets.fleetShare is {budgets.fleet_share:g}, {share} of {targets} targets"),
    ):
        if len(holders) >= places:
            return Blocked(Reason.RUNS_AT_LIMIT, f"{_name_holders(holders)}; the operator's {budget}")
    return None


def _is_before(peer: Peer, own: Peer | None) -> bool:
    if peer.opened_at is None:
        return False
    return own is None or own.opened_at is None or _place_in_line(peer) < _place_in_line(own)


def _place_in_line(peer: Peer) -> tuple[bool, float, str]:
    since = peer.opened_at.timestamp() if peer.opened_at else 0.0
    return not peer.begun, since, peer.uid


def _name_holders(holders: Sequence[Peer]) -> str:
    names = list_first([str(peer) for peer in holders], NAMED)
    return f"{names} {'has a run' if len(holders) == 1 else 'have runs'} open"


def trip(
    breaker: Breaker, peers: Iterable[Peer], over_at: datetime | None, now: datetime, namespace: str
) -> Trip | None:
    """Return the trip that still keeps new runs of a namespace from being opened, or None.

    Bad ends of its own trip the breaker for a namespace. For all of them it takes bad ends in two
    namespaces: those of one tenant say nothing about the fleets of another.

    Args:
        breaker: the operator's.
        peers: every resource that it looks after.
        over_at: when an administrator last said that it is over; bad ends up to then do not count.
        now: the time of asking.
        namespace: of the resource that asks.
    """
    counted = [end for peer in peers for end in peer.bad_ends if over_at is None or end.at > over_at]
    ends = sorted(counted, key=lambda end: (end.at, end.namespace, end.name))
    own = _latest_trip(breaker, [end for end in ends if end.namespace == namespace], now)
    if own is not None:
        return own
    return _latest_trip(breaker, ends, now, namespaces=2)


def any_trip(breaker: Breaker, peers: Sequence[Peer], over_at: datetime | None, now: datetime) -> Trip | None:
    """Return a trip that keeps runs of some namespace from being opened, or None."""
    namespaces = sorted({peer.namespace for peer in peers if peer.bad_ends})
    found = (trip(breaker, peers, over_at, now, namespace) for namespace in namespaces)
    return next((each for each in found if each is not None), None)


def _latest_trip(breaker: Breaker, ends: Sequence[BadEnd], now: datetime, namespaces: int = 1) -> Trip | None:
    """Return the trip by the latest bad ends that are of so many namespaces at least."""
    for last in range(len(ends) - 1, breaker.runs - 2, -1):
        until = ends[last].at + breaker.lasts
        if now >= until:
            return None
        group = _group(breaker, ends[: last + 1], namespaces)
        if group:
            return Trip(ends[last].at, until, group)
    return None


def _group(breaker: Breaker, ends: Sequence[BadEnd], namespaces: int) -> tuple[BadEnd, ...]:
    near = [end for end in ends if ends[-1].at - end.at <= breaker.window]
    for first in range(len(near) - breaker.runs, -1, -1):
        group = near[first:]
        if len({end.namespace for end in group}) >= namespaces:
            return tuple(group)
    return ()


def stormy(found: Trip, over: str) -> Blocked:
    """Return why a trip keeps a run from being opened."""
    shown = ", ".join(str(end) for end in found.ends[-NAMED:])
    where = f" of namespace {min(found.namespaces)}" if len(found.namespaces) == 1 else ""
    more = f" and {len(found.ends) - NAMED} before" if len(found.ends) > NAMED else ""
    minutes = (found.ends[-1].at - found.ends[0].at).total_seconds() / 60
    return Blocked(
        Reason.STORM_BREAKER_TRIPPED,
        f"{len(found.ends)} runs ended badly within {minutes:.0f} min ({shown}{more}): "
        f"no run{where} is opened before {found.until:%Y-%m-%d %H:%M:%SZ}; "
        f"find out why, and go on earlier with: {over}",
    )
