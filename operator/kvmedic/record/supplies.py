"""What turns of the supply leave in the record: shares that were too much. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from kvmedic.core.fleet import Fleet
from kvmedic.core.plan import ConfigStep, FlagStep, Step
from kvmedic.core.reasons import Reason
from kvmedic.core.record import HISTORY_LENGTH, OutgrownShare, Record
from kvmedic.core.run import Run
from kvmedic.core.template import body_hash

_DUST = 1e-9


def with_outgrown(record: Record, share: float, template: Mapping[str, object], now: datetime) -> Record:
    """Return the record with a share of the devices' memory that was too much for a pod template.

    Of one template the lowest counts; equal to the old record where that is known already.
    """
    body = body_hash(template)
    if any(one.body == body and one.share <= share + _DUST for one in record.outgrown):
        return record
    others = tuple(one for one in record.outgrown if one.body != body)
    return replace(record, outgrown=(OutgrownShare(share, body, now), *others)[:HISTORY_LENGTH])


def after_trouble(
    record: Record, run: Run, fleet: Fleet, template: Mapping[str, object], now: datetime
) -> Record:
    """Return the record as a change begins to be taken back.

    Where replicas restarted that had just been given more of their devices' memory, that share is not tried
    again, whatever ended them.
    """
    step = run.current.step
    share = raised_share(step)
    ended = any(pod.ends for pod in fleet.pods if pod.revision == step.after_template)
    return record if share is None or not ended else with_outgrown(record, share, template, now)


def raised_share(step: Step) -> float | None:
    """Return the share of the devices' memory that a step raises, or None where it raises none."""
    if not isinstance(step, FlagStep | ConfigStep) or step.reason is not Reason.MEMORY_STEPPED_UP:
        return None
    return None if step.after is None else float(step.after)
