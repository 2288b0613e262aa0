"""Whether a person approved the plan that is shown: exactly that plan, for one run, for a while.

An approval names a plan's digest. A digest that moved with every look could never be met, so a shown
plan stands while the evidence still leads to the same change: see `is_plan_current`. Nothing here says who
approved: the API server's audit log does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from kvmedic.model.compression import parse_count
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked
from kvmedic.model.plan import FlagStep, Plan, Step
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Approved

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


def is_plan_current(shown: Plan, fresh: Plan) -> bool:
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
