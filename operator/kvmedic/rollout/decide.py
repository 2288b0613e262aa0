"""What to do next with an open run: one move of a closed set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias, assert_never

from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.model.run import (
    Baseline,
    ComparisonState,
    Judged,
    Outcome,
    ReplicaComparison,
    Run,
    StepState,
    Verdict,
)
from kvmedic.model.spec import OnInconclusive
from kvmedic.model.status import Wish
from kvmedic.rollout.drift import Standing


class Direction(Enum):
    """Which way a step's change moves through the fleet."""

    FORWARD = "forward"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything beside the run's own record that bears on its next move."""

    standing: Standing
    wish: Wish
    blocked: Blocked | None
    """Why forward moves are not allowed now; None when they are."""
    judged: Judged | None
    """The verdict of the sustained window; None while it is open."""
    unjudged: OnInconclusive
    """How a window without a verdict is answered now: Hold is to go on looking."""
    compared: ReplicaComparison | None = None
    """New replicas beside old ones; None: the walk does not wait for that now."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Make the rollout's next move."""

    direction: Direction


@dataclass(frozen=True, slots=True)
class Rest:
    """Stand still with every replica in rotation."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Change nothing; the sustained window is open, or its evidence is not enough."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Keep:
    """The change stays: it helped, or nothing of it can be taken back."""

    judged: Judged


@dataclass(frozen=True, slots=True)
class TurnBack:
    """Begin to take the change back."""

    outcome: Outcome
    verdict: Verdict | None = None
    after: Baseline | None = None
    """The figures that speak against it."""


@dataclass(frozen=True, slots=True)
class Recover:
    """Take the claim and the frozen fields back that somebody took off; the walk goes on after that."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Put our own fields and labels back, leave the template alone, and end."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Close:
    """Nothing of ours is left on the target but the claim: end the run."""

    outcome: Outcome


Decision: TypeAlias = Walk | Rest | Watch | Keep | TurnBack | Recover | Leave | Close


def outcome_of(reason: Reason) -> Outcome:
    """Return an outcome whose message is the reason's own sentence."""
    return Outcome(reason, reason.sentence)


def decide(run: Run, seen: Situation) -> Decision:
    """Return the next move of an open run.

    Ways back are never blocked: what was begun is taken back even while forward moves are stopped.
    """
    if ended := _end_run(run, seen):
        return ended
    if run.current.state is StepState.ROLLING_BACK:
        return Walk(Direction.BACK)
    moved = seen.standing is Standing.SOURCE_CHANGED
    if seen.wish is Wish.DELETE and run.current.step.gives_back and not moved:
        # That is the way back already: nothing blocks it, and nobody waits for a verdict.
        done = run.current.state is StepState.VERIFYING
        return Close(outcome_of(Reason.RESOURCE_DELETED)) if done else Walk(Direction.FORWARD)
    if turned := _decide_turning_back(run, seen):
        return turned
    if run.current.state is StepState.VERIFYING:
        return _judgement(run, seen)
    if seen.blocked is None:
        return _walk_on(seen)
    if run.intent is None:
        return Close(Outcome(seen.blocked.reason, seen.blocked.message))
    return Rest(seen.blocked.reason, seen.blocked.message)


def _end_run(run: Run, seen: Situation) -> Decision | None:
    """Return the end of a run that has nothing more to do on its target, or may not touch it."""
    state, ending = run.current.state, run.ending
    if seen.standing is Standing.GONE:
        return Close(ending or outcome_of(Reason.TARGET_DELETED))
    if ending is not None and state in (StepState.KEPT, StepState.REVERTED):
        return Close(ending)
    if ending is not None and state is StepState.LEFT:
        return Leave(ending)
    if seen.standing is Standing.FENCE_LOST:
        return Close(outcome_of(Reason.FENCE_LOST))
    reason = _LEFT_AS.get(seen.standing)
    if seen.standing is Standing.SCALED_TO_ZERO and run.current.step.template_change is None:
        reason = Reason.SCALED_TO_ZERO
    if reason is not None or seen.wish is Wish.ABANDON:
        return Leave(outcome_of(reason or Reason.ABANDONED))
    return _HELD.get(seen.standing)


_LEFT_AS = MappingProxyType(
    {
        Standing.DRIFTED: Reason.FLAG_DRIFTED,
        Standing.REVERTED: Reason.CHANGE_REVERTED,
        Standing.RESCALED: Reason.REPLICAS_CHANGED,
    }
)
"""Why a target that somebody else changed is left to them. One with a changed template is not left at zero
replicas: scaled out again, it would come with an unjudged setting."""

_HELD: Mapping[Standing, Decision] = MappingProxyType(
    {
        Standing.TURNED: TurnBack(outcome_of(Reason.CHANGE_REVERTED)),
        Standing.SHIFTED: Recover(),
    }
)
"""How a target is held that somebody shifted in the middle of the walk: letting it go would replace undrained
what does not run the template in force."""

_OVERTAKEN = MappingProxyType(
    {
        Standing.SCALED_TO_ZERO: Reason.SCALED_TO_ZERO,
        Standing.SOURCE_CHANGED: Reason.CONFIG_MAP_CHANGED,
    }
)
"""Why a change is taken back by how the target stands to the record."""


def _decide_turning_back(run: Run, seen: Situation) -> Decision | None:
    reason = {
        Wish.DELETE: Reason.RESOURCE_DELETED,
        Wish.ROLL_BACK: Reason.ROLLED_BACK_BY_HAND,
    }.get(seen.wish)
    if reason is None:
        reason = _OVERTAKEN.get(seen.standing)
    if reason is None:
        return None
    if run.intent is None:
        return Close(outcome_of(reason))
    if run.current.state is StepState.VERIFYING and not run.current.step.is_revocable:
        return Close(Outcome(reason, "it was done already; nothing is left to take back"))
    return TurnBack(outcome_of(reason))


def _walk_on(seen: Situation) -> Decision:
    """Return the walk, or its end or a rest where new replicas are compared with old ones first."""
    compared = seen.compared
    if compared is None or seen.wish is Wish.KEEP:
        return Walk(Direction.FORWARD)
    match compared.state:
        case ComparisonState.GO_ON | ComparisonState.NOT_COMPARABLE:
            return Walk(Direction.FORWARD)
        case ComparisonState.ROLL_BACK:
            return TurnBack(Outcome(Reason.NOT_RECOVERED, compared.message), Verdict.NOT_RECOVERED)
        case ComparisonState.UNJUDGED:
            return TurnBack(Outcome(Reason.INCONCLUSIVE, compared.message), Verdict.INCONCLUSIVE)
        case ComparisonState.WATCHING:
            return Rest(Reason.COMPARING_REPLICAS, compared.message)
        case _:
            assert_never(compared.state)


def _judgement(run: Run, seen: Situation) -> Decision:
    judged = seen.judged
    if seen.wish is Wish.KEEP and (judged is None or judged.verdict is Verdict.INCONCLUSIVE):
        return _keep_unjudged(Reason.KEPT_BY_HAND, judged)
    if judged is None:
        return Watch(Reason.VERIFYING, Reason.VERIFYING.sentence)
    outcome = Outcome(judged.reason, judged.message)
    final = judged.verdict is not Verdict.INCONCLUSIVE or seen.unjudged is not OnInconclusive.HOLD
    if final and not run.current.step.is_revocable:
        return Keep(judged)
    match judged.verdict:
        case Verdict.RECOVERED | Verdict.IMPROVED:
            return Keep(judged)
        case Verdict.NOT_RECOVERED:
            return TurnBack(outcome, judged.verdict, judged.after)
        case Verdict.INCONCLUSIVE:
            return _without_verdict(judged, seen.unjudged)


def _without_verdict(judged: Judged, answer: OnInconclusive) -> Decision:
    match answer:
        case OnInconclusive.HOLD:
            return Watch(judged.reason, judged.message)
        case OnInconclusive.KEEP:
            return _keep_unjudged(Reason.KEPT_UNJUDGED, judged)
        case OnInconclusive.ROLL_BACK:
            return TurnBack(Outcome(judged.reason, judged.message), judged.verdict, judged.after)
        case _:
            assert_never(answer)


def _keep_unjudged(reason: Reason, judged: Judged | None) -> Keep:
    why = f" ({judged.message})" if judged else ""
    message, after = f"{reason.sentence}{why}", judged.after if judged else None
    return Keep(Judged(Verdict.INCONCLUSIVE, reason, message, after))
