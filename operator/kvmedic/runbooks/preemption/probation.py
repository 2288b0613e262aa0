"""A cap of ours on probation: for a day, over its peak, users must be no worse off than before it.

The verdict on a cap is of some minutes, and the load of the rest of the day is not that of then. So the
figures from before the change stay in `status.sized`, and a fleet in trouble is compared with them: the last
hour under the cap, where there was as much work as then. Where users are worse off, the cap goes back to what
there was before, by a run like any other. A figure that is missing never takes a cap back.

Probation is over once the pod template is another, by anyone's hand: then it is not the cap that was judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Look, Reading, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Trigger
from kvmedic.model.status import SizedCap
from kvmedic.runbooks.branches import (
    Assignment,
    Evidence,
    Finding,
    Found,
    NoChange,
    Probation,
    Setting,
    SettingAdvice,
)
from kvmedic.runbooks.preemption.cap_size import peak_of
from kvmedic.verdict.baseline import NEEDED, baseline_of
from kvmedic.verdict.comparison import WORK_ALIKE, Comparison

WATCHED = timedelta(hours=24)
"""How long a cap is on probation. Of 132 simulated starving fleets all floors at once kept two caps that did
harm, and several because the load rose after the decision: a day has the load of each hour."""
LONGEST = timedelta(days=7)
"""The same at most, where a day had no peak like the day before the change: a week has each kind of day."""
HOUR = timedelta(hours=1)
"""Over what the fleet is compared with itself before the change, and how old a cap is before that."""
PROBATION_LOOK = Look(
    HOUR, signals=NEEDED | {Signal.STARTED_SECONDS, Signal.REQUESTS_ABORTED, Signal.RUNNING_MEAN}
)


def is_on_probation(
    cap: SizedCap | None, revision: str, peaks: Mapping[str, Reading[float]], now: datetime
) -> bool:
    """Return whether a cap may still be taken back; `peaks`: the most that replicas were asked for of late.

    After a day it may no more, if that day had about as high a peak as the one before the change.
    """
    if cap is None or cap.figures is None or cap.revision != revision:
        return False
    age, before, lately = now - cap.at, cap.figures.peak_tokens_per_second, peak_of(peaks)
    if not HOUR <= age < LONGEST:
        return False
    return age < WATCHED or (before is not None and (lately or 0.0) * WORK_ALIKE < before)


def find_harm(trial: Probation, trigger: Trigger) -> Found:
    """Return what is worse than before a cap of ours; None where nothing is, or that is not known."""
    change = _compare(trial, trigger)
    if change is None or not (worse := change.sinks_after_walk()):
        return None
    cap, hours = trial.cap, HOUR.total_seconds() / 3600
    text = f"under the cap of {cap.cap} that kvmedic set at {cap.at:%Y-%m-%dT%H:%MZ} {worse}, by the last "
    text += f"{hours:g} h against the figures from before it: {change.line()}"
    return (Finding("fleet", None, None, None, text),)


def take_cap_back(evidence: Evidence, setting: Setting) -> SettingAdvice:
    """Return the cap that there was before ours, or why it cannot be set."""
    if evidence.probation is None or not evidence.probation.cap.changes:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN, "nobody knows what the cap was before kvmedic changed it"
        )
    knob, cap = Knob.MAX_NUM_SEQS, evidence.probation.cap
    before = cap.changes[0].before
    text = f"the cap of {cap.cap} that kvmedic set goes back to {before or 'the default of the engine'}"
    message = f"{text}; it was on probation since {cap.at:%Y-%m-%dT%H:%MZ}"
    return setting.refused.get(knob) or Assignment(knob, before or None, Reason.CAP_TAKEN_BACK, message)


def _compare(trial: Probation, trigger: Trigger) -> Comparison | None:
    """Return the last hour compared with the figures from before; None where that shows nothing."""
    before = trial.cap.figures
    if before is None:
        return None
    after = baseline_of(trial.hour, 0, before.first_token_limit_seconds)
    if isinstance(after, Inconclusive):
        return None
    change = Comparison(before, after, trial.objectives, trigger)
    return None if change.find_load_mismatch() else change
