"""What one resource's stored status says to all others: its open run, and how earlier ones ended.

Read from the JSON itself, because it is read for every event of every resource: only the few fields
that count are looked at, and a status that cannot be read counts on the safe side.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from kvmedic.core.crowd import BAD_ENDS, BadEnd, Peer
from kvmedic.core.reasons import Reason
from kvmedic.core.record import ConditionType
from kvmedic.core.run import StepState
from kvmedic.kube.objects import JsonObject, items, moment, section

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""When a run whose start cannot be read counts as opened: before all others, so it keeps its place."""


def peer_of(body: JsonObject) -> Peer:
    """Return a resource as its peers see it. A run that cannot be read counts as open and begun."""
    metadata, run = section(body, "metadata"), section(body, "status").get("run")
    opened_at = _moment(section(body, "status", "run").get("startedAt")) if run else None
    held = (section(body, "status", "run").get("targetUid"),)
    aside = section(body, "status", "aside").get("uid")
    takes_place = bool(run) and not _waits_for_a_verdict(body)
    return Peer(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        target=str(section(body, "spec", "targetRef").get("name", "")),
        opened_at=(opened_at or LONG_AGO) if takes_place else None,
        begun=bool(run) and (opened_at is None or bool(section(body, "status", "run", "intent"))),
        bad_ends=tuple(_bad_ends(body)),
        created_at=str(metadata.get("creationTimestamp", "")),
        holds=frozenset(uid for uid in (*held, aside) if isinstance(uid, str)),
        is_unclear=bool(run) and not isinstance(held[0], str),
    )


def _waits_for_a_verdict(body: JsonObject) -> bool:
    """Return whether a run changes nothing any more, and is held because its evidence allows no verdict."""
    steps = items(section(body, "status", "run"), "steps")
    reasons = [
        each.get("reason")
        for each in items(section(body, "status"), "conditions")
        if each.get("type") == ConditionType.PROGRESSING
    ]
    is_judged = any(step.get("state") == StepState.VERIFYING for step in steps)
    return is_judged and bool(reasons) and reasons != [Reason.VERIFYING]


def _bad_ends(body: JsonObject) -> Iterator[BadEnd]:
    metadata = section(body, "metadata")
    for each in items(section(body, "status"), "history"):
        at = _moment(each.get("endedAt"))
        with suppress(ValueError):
            reason = Reason(str(each.get("outcome")))
            if at is not None and reason in BAD_ENDS:
                yield BadEnd(str(metadata.get("namespace", "")), str(metadata.get("name", "")), reason, at)


def _moment(text: object) -> datetime | None:
    """Return a stored time, or None where it is none or names no zone."""
    try:
        found = moment(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else None
