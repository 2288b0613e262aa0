"""Walks of changes to the number of replicas against a model of the controllers, in any order of events."""

from __future__ import annotations

from datetime import datetime

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kvmedic.core.draining import Drain, Victim
from kvmedic.core.moves import Claim, Cordon, Effect, Failed, Move, Refused, ScaleIn, ScaleOut, Settled, Wait
from model_controller import Model, StaleError

ACTS = 6
EVENTS = st.lists(st.tuples(st.integers(0, ACTS), st.integers(0, 7)), max_size=100)
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Walk:
    """The operator's side: what a run's record holds, which survives every crash."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.victim: Victim | None = None
        self.assigned_at: datetime | None = None
        self.ended: Move | None = None

    def move(self) -> Move:
        """Return what the change under test does next."""
        raise NotImplementedError

    def drain(self) -> Drain:
        pods = {p.name: p for p in self.model.pods}
        if self.victim is None or self.victim.uid not in pods:
            return Drain.UNKNOWN
        return Drain.BUSY if pods[self.victim.uid].busy else Drain.IDLE

    def tick(self) -> None:
        move = self.move()
        self.ended = move if isinstance(move, Settled | Failed | Refused) else None
        if not isinstance(move, Settled | Failed | Refused | Wait):
            self.apply(move)

    def apply(self, effect: Effect) -> None:
        if isinstance(effect, Cordon):
            self.victim = Victim(effect.pod.name, effect.pod.uid, self.model.now)
        if isinstance(effect, ScaleOut | ScaleIn | Claim):
            self.assigned_at = self.model.now
        try:
            self.model.apply(effect)
        except StaleError:
            return


def happen(model: Model, act: int, which: int) -> None:
    match act:
        case 0:
            model.deployment_controller()
        case 1:
            model.replica_set_controller("old")
        case 2:
            model.kubelet(which)
        case 3:
            model.endpoints()
        case 4:
            model.requests_end()
        case _:
            # Controllers act within a second.
            model.deployment_controller()
            model.replica_set_controller("old")
            model.pass_time(1)


def run_to_end(walker: Walk, events: list[tuple[int, int]]) -> None:
    """Interleave the given events with ticks, then let everything happen in turn until the walk ends."""
    for act, which in events:
        happen(walker.model, act, which)
        walker.tick()
        if walker.ended:
            return
    for round_ in range(400):
        for act in range(ACTS):
            happen(walker.model, act, round_)
        walker.tick()
        if walker.ended:
            return
    raise AssertionError("the walk does not end")


def names(model: Model) -> set[str]:
    return {pod.name for pod in model.pods}
