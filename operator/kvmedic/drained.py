"""What a replica that is drained for a test does in one tick of a run: looked at, and put back at its end.

The run's record names the replica before it is taken out of rotation and until it is back, so whoever reads
it after a crash goes on with both.
"""

from __future__ import annotations

from kvmedic.core.drained_trial import DrainedMove, DrainedSight, drained_move, replica_of
from kvmedic.core.draining import Drain
from kvmedic.core.fleet import Fleet
from kvmedic.core.moves import Uncordon
from kvmedic.core.trialling import TrialStep
from kvmedic.ports import View
from kvmedic.walks import Tick, as_watched, drain_of


async def next_drained_move(tick: Tick, fleet: Fleet, step: TrialStep) -> DrainedMove:
    """Return the next move of the test on a replica of an open run."""
    pod = replica_of(fleet, step)
    progress = tick.ports.probes.progress(pod) if pod else None
    sight = DrainedSight(
        fleet=fleet,
        drain=await drain_of(tick, fleet) if progress is None else Drain.UNKNOWN,
        progress=progress,
        least=tick.policy.limits.min_healthy_replicas,
    )
    return drained_move(sight, step, as_watched(tick), tick.now)


async def put_back(tick: Tick, view: View | None) -> bool:
    """Put the replica that a run's test drained back into rotation; return whether it is.

    A test that goes on is ended first. Of a run that drained none there is nothing to do.
    """
    step = tick.run.current.step
    if view is None or not isinstance(step, TrialStep) or not step.replica:
        return True
    for pod in view.fleet.pods:
        if pod.uid == step.replica_uid:
            tick.ports.probes.forget(pod)
    replica = replica_of(view.fleet, step)
    if replica is None or not replica.cordoned:
        return True
    await tick.ports.target.apply(view.fleet, Uncordon(replica), "")
    return False
