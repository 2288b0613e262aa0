"""Did a new revision bring the trouble? And back to the one before, where it did.

Three things must come together: a revision that came of late changed what the KV cache depends on; the
fleet was calm right before it came; and the load has not grown since. A fleet that was pressured before, or
gets more or longer requests now, has another trouble, which a way back would not mend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from kvmedic.model.config_edits import Deploy, NoDeploy
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Absence, Inconclusive, Measured, Missing, Observation, Reading, Signal
from kvmedic.model.readings import gather_values, total
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import Evidence, Finding, NoChange, RollBack, Setting
from kvmedic.verdict.comparison import BETTER, HEAVIER, LENGTHS_ALIKE

HISTORY = frozenset(
    {
        Signal.PREEMPTIONS,
        Signal.REQUESTS_FINISHED,
        Signal.REQUESTS_IN_FLIGHT_CHANGE,
        Signal.PROMPT_TOKENS,
        Signal.GENERATED_TOKENS,
    }
)
"""Needed of every replica of the revision before, over one window that ends when the new one came, and of
every replica now."""


def since_deploy(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Return what says that the trouble came with the latest revision, for a fleet that is in trouble."""
    deploy = evidence.deploy
    match deploy:
        case NoDeploy():
            return None
        case Inconclusive():
            return deploy
        case Deploy():
            return _compare_figures(deploy, evidence)
        case _:
            assert_never(deploy)


def find_updated_replicas(evidence: Evidence) -> frozenset[str]:
    """Return the replicas that run the latest revision: all, unless some still run the one before."""
    everyone = frozenset(evidence.burn.pods)
    mine = evidence.deploy.pods & everyone if isinstance(evidence.deploy, Deploy) else everyone
    return mine or everyone


def roll_back(evidence: Evidence, setting: Setting) -> RollBack | NoChange:
    """Return that the fleet should run the previous revision again, or why it should not."""
    deploy = evidence.deploy
    if not isinstance(deploy, Deploy):
        return NoChange(Reason.TARGET_NOT_SETTLED, "no revision came of late that could be taken back")
    number = deploy.previous.number
    if not setting.rollback_allowed:
        return NoChange(
            Reason.LEVER_NOT_ALLOWED,
            f"{deploy.line()}; to have the fleet taken back to revision {number}, add "
            "{name: revisionRollback} to spec.levers",
        )
    if setting.rollback_failed:
        return NoChange(
            Reason.LEVER_EXHAUSTED,
            f"the fleet was taken back to revision {number} for the same trouble and it did not help",
        )
    text = f"{deploy.line()}; back to revision {number}, {expected_time(deploy)}"
    return RollBack(deploy.now, deploy.previous, Reason.DEPLOY_CORRELATED, text)


def expected_time(deploy: Deploy) -> str:
    """Return how long a way back takes: replicas to be started, one after the other, by a measured start."""
    count = f"{deploy.to_start} new replica{'' if deploy.to_start == 1 else 's'}"
    if deploy.start_seconds is None:
        return f"{count}, one after the other; how long each takes to start is not known"
    whole = deploy.to_start * deploy.start_seconds
    return (
        f"{count} at {deploy.start_seconds:.0f} s each until Ready (measured): about {_minutes(whole)}, and "
        "the drains of those that go"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class _Figures:
    """A fleet over one window, per replica where it says so."""

    preemptions: float
    """Per finished request."""
    worst: float
    """The same of the replica that had most."""
    requests: float
    """Arrivals per second and replica."""
    prompt_tokens: float
    """Per finished request."""
    output_tokens: float

    def is_heavier_than(self, other: _Figures, *, whatever_length: bool) -> bool:
        """Return whether more requests come than then, or longer ones."""
        if self.requests > HEAVIER * other.requests:
            return True
        longer = (
            other.prompt_tokens < LENGTHS_ALIKE * self.prompt_tokens,
            other.output_tokens < LENGTHS_ALIKE * self.output_tokens,
        )
        return any(longer) and not whatever_length


def _compare_figures(deploy: Deploy, evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    before = _past(deploy.before)
    if isinstance(before, Inconclusive):
        text = f"{deploy.line()}; how revision {deploy.previous.number} fared is not known: {before.message}"
        return Inconclusive(before.reason, text)
    now = _figures(evidence.burn.only(sorted(find_updated_replicas(evidence))))
    if isinstance(now, Inconclusive):
        return now
    # Requests that the revision before would have refused are longer because of this one.
    lengthened = any(each.what == Knob.MAX_MODEL_LEN for each in deploy.differences)
    pressured = before.worst > evidence.trigger.preemptions_per_request
    limit = BETTER * now.preemptions
    if pressured or before.preemptions > limit or now.is_heavier_than(before, whatever_length=lengthened):
        return None
    text = (
        f"{before.preemptions:.2f} preemptions per request before it came, {now.preemptions:.2f} now, at "
        f"{before.requests:.2f} requests per second and replica, {now.requests:.2f} now"
    )
    return (
        Finding("fleet", None, None, None, deploy.line()),
        Finding(f"revision {deploy.previous.number}", Signal.PREEMPTIONS, before.preemptions, limit, text),
    )


def _past(reading: Reading[Observation]) -> _Figures | Inconclusive:
    """Return the figures of the past, or why nothing is known of it."""
    match reading:
        case Measured(observation):
            return _figures(observation)
        case Missing(Absence.SOURCE_UNAVAILABLE):
            text = "the source did not answer completely for that time"
            return Inconclusive(Reason.SOURCE_UNAVAILABLE, text)
        case _:
            text = (
                "the source knows no replica of it then: see how long it keeps samples, and what it scrapes"
            )
            return Inconclusive(Reason.METRICS_MISSING, text)


def _figures(observation: Observation) -> _Figures | Inconclusive:
    found = gather_values(observation, HISTORY)
    if isinstance(found, Inconclusive):
        return found
    finished = max(1.0, total(found, Signal.REQUESTS_FINISHED))
    arrived = total(found, Signal.REQUESTS_FINISHED) + total(found, Signal.REQUESTS_IN_FLIGHT_CHANGE)
    return _Figures(
        preemptions=total(found, Signal.PREEMPTIONS) / finished,
        worst=max(one.preemptions_per_request for one in found.values()),
        requests=max(0.0, arrived) / observation.window_seconds / len(found),
        prompt_tokens=total(found, Signal.PROMPT_TOKENS) / finished,
        output_tokens=total(found, Signal.GENERATED_TOKENS) / finished,
    )
