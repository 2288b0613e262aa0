"""What was added or lent for a while, from look to look: noted, and forgotten where it is somebody else's."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from kvmedic.core.calm import in_calm, with_outlook
from kvmedic.core.diagnosis import Diagnosed, ScaleBound
from kvmedic.core.footprint import Footprint, is_held
from kvmedic.core.gates import Blocked
from kvmedic.core.loan import Borrowed, Tenure
from kvmedic.core.policy import Policy
from kvmedic.core.reasons import Reason
from kvmedic.core.record import Record
from kvmedic.findings import Survey
from kvmedic.ports import Target, View
from kvmedic.record.surveys import REFRESH
from kvmedic.runbooks.returns import restore_after, tenure
from kvmedic.versions import engine_of


def noted(record: Record, found: Survey, policy: Policy, now: datetime) -> Record:
    """Return the record with what a look says of the replicas that were added, and the memory that was lent.

    The same number or value set by somebody else in between is not told apart, and counts as ours.
    """
    calm = isinstance(found.diagnosis, Diagnosed) and found.diagnosis.reason is Reason.HEALTHY
    since, held = now if calm else None, record.footprint
    if held is not None and is_held(held, found.view.fleet):
        held = with_outlook(in_calm(held, since), found.outlook, now, REFRESH)
        return replace(record, footprint=held, borrowed=_lent(record, found, policy, since, ""))
    return replace(record, footprint=None, borrowed=_lent(record, found, policy, since, found.outlook))


def _lent(
    record: Record, found: Survey, policy: Policy, since: datetime | None, outlook: str
) -> tuple[Borrowed, ...]:
    """Return what is still lent; what nobody can read now stays, and was not calm."""
    if not record.borrowed:
        return ()
    workload, uid = engine_of(found.view, policy), found.view.fleet.uid
    whose = [(lent, tenure(lent, uid, workload)) for lent in record.borrowed]
    now = since or found.burn.at
    return tuple(
        with_outlook(in_calm(lent, since if of is Tenure.OURS else None), outlook, now, REFRESH)
        for lent, of in whose
        if of is not Tenure.THEIRS
    )


async def with_holder(view: View, held: Footprint | None, target: Target) -> View:
    """Return the target with what is held for it, where that is an autoscaler's."""
    if held is None or held.holder == held.target:
        return view
    return await target.with_minimum(view, held.holder)


def holding(record: Record, policy: Policy) -> Blocked | None:
    """Return why what was added or lent for a while is still there; None where there is nothing."""
    held, bound = record.footprint, policy.scale_out
    if held is not None:
        after = (bound or ScaleBound()).restore_after
        text = (
            f"{held.line()}; they are given back after {after.total_seconds() / 60:.0f} minutes of calm, "
            "once fewer are predicted to carry the load (status.footprint)"
        )
        return Blocked(Reason.FOOTPRINT_HELD, text)
    if not record.borrowed:
        return None
    lent = record.borrowed[0]
    text = (
        f"{lent.line()}; it is given back after {restore_after(policy).total_seconds() / 60:.0f} minutes of "
        "calm, once the fleet is predicted to carry the load without it (status.borrowed)"
    )
    return Blocked(Reason.LOAN_HELD, text)
