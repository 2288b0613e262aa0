"""Shares of the devices' memory that were too much, as surveys and runs come upon them."""

from __future__ import annotations

from datetime import datetime

from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.policy import Policy
from kvmedic.core.reasons import Reason
from kvmedic.core.record import Record
from kvmedic.findings import Survey
from kvmedic.record.supplies import with_outgrown
from kvmedic.runbooks.planning import Workload, memory_share


def with_known_limit(record: Record, found: Survey, policy: Policy, now: datetime) -> Record:
    """Return the record with the share at which a replica ran out of its GPU's memory, where one just did.

    Written down with the diagnosis, in every mode: whoever lowers the share, it is not raised to there again.
    """
    if isinstance(found.diagnosis, Inconclusive) or found.diagnosis.reason is not Reason.CUDA_OUT_OF_MEMORY:
        return record
    workload = found.engine(policy)
    share = memory_share(workload) if isinstance(workload, Workload) else None
    if share is None or share.ratio is None or share.fixed_by or share.unread:
        return record
    return with_outgrown(record, share.ratio, found.view.template, now)
