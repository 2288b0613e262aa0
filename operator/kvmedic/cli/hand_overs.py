"""What is on record of the turns of the two runbooks: which one left the fleet to the other last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvmedic.core.record import Record


def hand_over_as_text(record: Record) -> Iterator[str]:
    """Yield the newest hand-over as one line; nothing where there was none."""
    for given in record.hand_overs[:1]:
        yield (
            f"{given.from_runbook} left the fleet to {given.to_runbook} ({given.at:%Y-%m-%dT%H:%M:%SZ}, "
            f"evidence {given.evidence}): {given.message.rstrip('.')}."
        )


def hand_over_as_json(record: Record | None) -> dict[str, Any] | None:
    """Return the newest hand-over for a program; None: there was none."""
    if record is None or not record.hand_overs:
        return None
    given = record.hand_overs[0]
    return {
        "from": given.from_runbook,
        "to": given.to_runbook,
        "reason": str(given.reason),
        "evidence": given.evidence,
        "at": f"{given.at:%Y-%m-%dT%H:%M:%SZ}",
        "message": given.message,
    }
