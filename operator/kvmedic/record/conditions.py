"""Conditions and phase, computed from what happened; pure.

A condition changes only with its status or its reason: a message whose numbers differ is not worth
a write, and a healthy fleet's status is never written at all. Where the plan that is shown becomes
another, its conditions say so too, since they may hold the very change for a person to make.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from kvmedic.model.reasons import Reason
from kvmedic.model.sentences import SENTENCES
from kvmedic.model.status import Condition, ConditionType, Record, Truth

ORDER = tuple(ConditionType)
"""The order in which conditions are listed."""

WORD_FOR_WORD = frozenset({Reason.AWAITING_APPROVAL, Reason.APPROVAL_EXPIRED})
"""Reasons whose message is what a person types: another text is worth a write."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one condition should say."""

    type: ConditionType
    status: Truth
    reason: Reason
    message: str = ""


def with_conditions(record: Record, claims: tuple[Claim, ...], generation: int, now: datetime) -> Record:
    """Return the record with some conditions set; the others stay as they are."""
    kept = {condition.type: condition for condition in record.conditions}
    for claim in claims:
        kept[claim.type] = _condition(kept.get(claim.type), claim, generation, now)
    return replace(record, conditions=tuple(kept[t] for t in ORDER if t in kept))


def retold(record: Record, claims: tuple[Claim, ...]) -> Record:
    """Return the record with the messages of some conditions said anew, although nothing else changed."""
    messages = {claim.type: claim.message or SENTENCES[claim.reason] for claim in claims}
    told = (replace(each, message=messages.get(each.type, each.message)) for each in record.conditions)
    return replace(record, conditions=tuple(told))


def _condition(old: Condition | None, claim: Claim, generation: int, now: datetime) -> Condition:
    message = claim.message or SENTENCES[claim.reason]
    same = old is not None and old.status is claim.status and old.reason is claim.reason
    if old is not None and claim.reason in WORD_FOR_WORD:
        same = same and old.message == message
    if old is not None and same and old.observed_generation == generation:
        return old
    changed_at = old.changed_at if old is not None and old.status is claim.status else now
    return Condition(claim.type, claim.status, claim.reason, message, changed_at, generation)


def phase(record: Record) -> str:
    """Return one word for the printer column; nothing reads it back."""
    stalled = record.condition(ConditionType.STALLED)
    ready = record.condition(ConditionType.READY)
    action = record.condition(ConditionType.ACTION_REQUIRED)
    for applies, word in (
        (stalled is not None and stalled.status is Truth.TRUE, "Stalled"),
        (ready is not None and ready.status is not Truth.TRUE, "NotReady"),
        (record.run is not None, _run_phase(record)),
        (action is not None and action.reason in WORD_FOR_WORD, "AwaitingApproval"),
        (action is not None and action.status is Truth.TRUE, "ActionRequired"),
        (record.plan is not None, "Planned"),
    ):
        if applies:
            return word
    return "Watching"


def _run_phase(record: Record) -> str:
    run = record.run
    progressing = record.condition(ConditionType.PROGRESSING)
    if progressing is not None and progressing.reason in (Reason.SUSPENDED, Reason.STOPPED, Reason.HOLDING):
        return "Holding"
    return str(run.current.state) if run is not None else "Watching"
