"""What a kind of step does: the row that each kind has in the table of `kvmedic.rollout`.

The row stands at the end of the kind's own file. Its functions are pure: what they need to know beside the
fleet, the controller gathers before, alike for every kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, Pod
from kvmedic.model.run import DrainingPod, Run
from kvmedic.model.spec import Waves
from kvmedic.model.status import Attempt
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.moves import Move
from kvmedic.rollout.orphan_drain import LONGEST_DRAIN, OrphanInput
from kvmedic.rollout.preconditions import Purpose
from kvmedic.rollout.start_failure import StartLimits


@dataclass(frozen=True, slots=True)
class StepInput:
    """What is known of an open run beside the fleet itself."""

    run: Run
    resource_uid: str
    drains: Mapping[str, Drain]
    """What is known of the requests on each draining pod, by uid."""
    limits: StartLimits
    drain_limit: timedelta
    now: datetime
    assigned_at: datetime | None = None
    """When the last assignment was intended; None before the first."""
    held: frozenset[str] = frozenset()
    """Uids of replicas whose drain timed out and that are not taken again yet."""
    taken_at: Mapping[str, datetime] = field(default_factory=dict)
    """When each replica that is drained was taken, by uid and the clock of this process."""
    linger: timedelta = LONGEST_DRAIN
    """How long a released replica may finish its requests if no operator is there."""
    is_back: bool = False
    """The step is the inverse of the one that the run began with."""
    waves: Waves = Waves.ONE_BY_ONE
    """How many replicas may be replaced at once, after new ones were compared with old ones."""
    edited: Mapping[str, object] | None = None
    """The template as somebody edited it, without the run's change; None: nothing of that is in it."""

    @property
    def draining_pod(self) -> DrainingPod | None:
        """Return the replica that is being drained, where they go one at a time; None where none is."""
        return self.run.draining_pods[0] if self.run.draining_pods else None

    @property
    def drain(self) -> Drain:
        """Return what is known of the requests on it."""
        return self.drains.get(self.draining_pod.uid, Drain.UNKNOWN) if self.draining_pod else Drain.UNKNOWN

    @property
    def orphans(self) -> OrphanInput:
        """Return what is known of replicas that were released to be drained."""
        since = {pod.uid: pod.cordoned_at for pod in self.run.draining_pods}
        return OrphanInput(since, self.drains, self.linger, taken_at=self.taken_at)

    @property
    def down_before(self) -> int:
        """Return how many replicas took no requests before a run that began all the same."""
        return max(0, self.run.replicas - self.run.in_rotation)


NextMove: TypeAlias = Callable[[Fleet, StepInput], Move]


@dataclass(frozen=True, slots=True)
class StepRow:
    """What one step does, by its kind."""

    find_blocker: Callable[[Fleet, Purpose], Blocked | None]
    """Why the step cannot begin on a fleet, or None."""
    next_move: NextMove
    """The single next move toward the step's end; for the way back the row of its inverse is asked."""
    rest: NextMove
    """The next move toward a fleet that stands still with every replica in rotation."""
    leave: NextMove
    """The next move toward a fleet without anything of ours, even if somebody changed it meanwhile."""
    drains_to_leave: bool = False
    """Leaving may take a replica away, so the requests on it are counted first. Where it takes none, counting
    would only delay the answer to somebody's edit."""
    canaries: Callable[[Fleet], tuple[Pod, ...]] = lambda _fleet: ()
    """The new replicas that must answer before the first old one is touched."""
    attempt: Callable[[Run], tuple[Attempt, str] | None] = lambda _run: None
    """What is remembered of a step that failed: what it tried, and what distinguishes it from another."""


def by_kind(deployment: StepRow, stateful_set: StepRow, groups: StepRow) -> StepRow:
    """Return the row that does what one of three does, by the workload that it is asked about.

    What is remembered, and whether leaving may take a replica away, does not depend on it.
    """

    def row_for(fleet: Fleet) -> StepRow:
        if fleet.groups is not None:
            return groups
        return stateful_set if fleet.is_stateful else deployment

    return replace(
        deployment,
        find_blocker=lambda fleet, purpose: row_for(fleet).find_blocker(fleet, purpose),
        next_move=lambda fleet, known: row_for(fleet).next_move(fleet, known),
        rest=lambda fleet, known: row_for(fleet).rest(fleet, known),
        leave=lambda fleet, known: row_for(fleet).leave(fleet, known),
        canaries=lambda fleet: row_for(fleet).canaries(fleet),
    )
