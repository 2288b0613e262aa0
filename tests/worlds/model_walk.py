"""A walk of the operator against a model of the controllers, in any order of events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ClassVar

from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.model.run import DrainingPod
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.frozen_rollout import Order, next_template_move
from kvmedic.rollout.moves import (
    Cordon,
    DeletePod,
    Effect,
    Failed,
    Move,
    Pulse,
    Retarget,
    ScaleIn,
    Settled,
    Uncordon,
    Wait,
)
from worlds.model_controller import EDIT, Model, ModelPod, StaleError

Events = Iterable[tuple[int, int]]
"""What happens beside the walk: which act, and to which pod."""

MOST_ROUNDS = 2000
"""Every act in turn so often ends any walk: most need fewer than 60 for five replicas, and 600 for twenty."""


class Walk(ABC):
    """The operator's side: what a run's record holds, which survives every crash."""

    ACTS: ClassVar[int]
    """How many kinds of acts the model's controllers have in this walk."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.draining_pods: tuple[DrainingPod, ...] = ()
        self.assigned_at: datetime | None = None
        self.ended: Move | None = None
        self.held: frozenset[str] = frozenset()
        """Pods that are back in rotation because their drain timed out."""
        self.stands: Wait | None = None
        """The wait of a walk in which no drain comes to its end."""

    @abstractmethod
    def move(self) -> Move:
        """Return what the change under test does next."""

    @abstractmethod
    def happen(self, act: int, which: int) -> None:
        """Let the model's controllers do one act."""

    @property
    def draining_pod(self) -> DrainingPod | None:
        """The one that is drained, in a walk that takes them one at a time."""
        return self.draining_pods[0] if self.draining_pods else None

    def drain(self) -> Drain:
        """What is known of the requests on that one."""
        return self.drains().get(self.draining_pod.uid, Drain.UNKNOWN) if self.draining_pod else Drain.UNKNOWN

    def drains(self) -> dict[str, Drain]:
        uids = {each.uid for each in self.draining_pods}
        return {pod.name: self._drain_of(pod) for pod in self.model.pods if pod.name in uids}

    def _drain_of(self, pod: ModelPod) -> Drain:
        if pod.stubborn and not self.model.front:
            return Drain.HELD
        if pod.stubborn:
            # Two readings of zero are further apart than a Service takes until it leads requests to it.
            return Drain.TIMED_OUT if pod.in_rotation else Drain.BUSY
        return Drain.BUSY if pod.busy else Drain.IDLE

    def tick(self) -> None:
        move = self.move()
        self.ended = move if isinstance(move, Settled | Failed | Blocked) else None
        holds = isinstance(move, Wait) and move.reason is Reason.DRAIN_TIMED_OUT
        self.stands = move if holds else None
        if not isinstance(move, Settled | Failed | Blocked | Wait):
            self.apply(move)

    def apply(self, effect: Effect) -> None:
        self.write_down(effect)
        try:
            self.model.apply(effect)
        except StaleError:
            return

    def write_down(self, effect: Effect) -> None:
        """What the record says before an effect."""
        if isinstance(effect, Cordon):
            kept = (each for each in self.draining_pods if each.uid in effect.beside)
            self.draining_pods = (*kept, DrainingPod(effect.pod.name, effect.pod.uid, self.model.now))
        if isinstance(effect, Uncordon):
            self.draining_pods = tuple(each for each in self.draining_pods if each.uid != effect.pod.uid)
            self.held |= {effect.pod.uid} if effect.timed_out else set()
        if isinstance(effect, Pulse | Retarget | ScaleIn):
            self.held = frozenset()
        if not isinstance(effect, Cordon | Uncordon | DeletePod):
            self.assigned_at = self.model.now

    def take(self, events: Events) -> None:
        """Interleave events with ticks until they are over, or the walk is."""
        for act, which in events:
            self.happen(act, which)
            self.tick()
            if self.ended:
                return

    def round(self, number: int) -> None:
        """Let every act happen once, then tick."""
        for act in range(self.ACTS):
            self.happen(act, number)
        self.tick()

    def run_to_end(self, events: Events) -> None:
        """Interleave events with ticks, then let everything happen in turn until the walk ends."""
        self.take(events)
        for number in range(MOST_ROUNDS):
            if self.ended or (self.stands and not any(pod.cordoned for pod in self.model.pods)):
                return
            self.round(number)
        assert self.ended, "the walk does not end"


ACTS = 7
LIMIT = timedelta(seconds=600)


class Walker(Walk):
    """The operator's side of a frozen rollout toward one of two revisions."""

    ACTS = ACTS

    def __init__(
        self,
        model: Model,
        toward: str,
        *,
        mends: bool = False,
        repairs: bool = False,
        served: int = 1,
        down: int = 0,
        may_lack: int = 0,
    ) -> None:
        super().__init__(model)
        self.may_lack, self.own = may_lack, model.own
        self.toward, self.mends, self.repairs, self.served = toward, mends, repairs, served
        self.down = down

    def back(self) -> Walker:
        """The way back from wherever this one is, by another process that knows the record."""
        repairs = self.mends or self.down > 0
        kept = {"mends": self.mends, "repairs": repairs, "served": self.served, "down": self.down}
        kept["may_lack"] = self.may_lack
        back = Walker(self.model, "old", **kept)
        back.assigned_at = self.assigned_at
        return back

    def order(self) -> Order:
        edit = EDIT if self.toward == "new" else EDIT.inverse()
        away = "old" if self.toward == "new" else "new"
        order = Order(
            away,
            self.toward,
            edit,
            self.own,
            self.draining_pods,
            self.drains(),
            LIMIT,
            LIMIT,
            self.assigned_at,
        )
        return replace(
            order,
            mends=self.mends,
            repairs=self.repairs,
            served_before=self.served,
            down_before=self.down,
            held=self.held,
            may_lack=self.may_lack,
        )

    def move(self) -> Move:
        move = next_template_move(self.model.fleet(), self.order(), self.model.now)
        if isinstance(move, Blocked) and self.toward == "old":
            # A run that began asks again.
            return Wait(move.reason, move.message)
        return move

    def break_peer(self, which: int) -> bool:
        """Have the engine of one old replica fail; not while a pulse is out, nor where none is left.

        Whose readiness changes between a pulse and the controller's act, nobody can know.
        """
        model = self.model
        old = [pod for pod in model.pods if pod.revision == "old"]
        if self.ended or not old or not model.fields.paused or len(old) > model.sets["old"].desired:
            return False
        ill = old[which % len(old)]
        ill.broken, ill.ready, ill.in_rotation = True, False, False
        ill.unready_at = model.now - timedelta(seconds=30)
        return True

    def happen(self, act: int, which: int) -> None:
        self.model.happen(act, which)
