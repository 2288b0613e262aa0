"""A run with its record on the model of a StatefulSet: standing, decision, intent and effect as in the loop.

It may die once before any effect: the record says then what was intended, and nothing of it was done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

from kvmedic.controller.next_move import Tick, record_intent
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, ObjectRef
from kvmedic.model.plan import Step
from kvmedic.model.run import Outcome, Run, StepState
from kvmedic.model.spec import OnInconclusive
from kvmedic.model.status import Wish
from kvmedic.rollout import row_of
from kvmedic.rollout.decide import Close, Direction, Leave, Recover, Situation, TurnBack, Walk, Watch, decide
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.drift import Standing, regain_freeze, target_standing
from kvmedic.rollout.moves import Cordon, DeletePod, Failed, Move, Settled, Uncordon, Wait
from kvmedic.rollout.start_failure import StartLimits
from kvmedic.rollout.steps import StepInput
from run_builder import REPLACE, SCALE, STEP, UID, a_run
from worlds.model_set import SetModel

LIMIT = timedelta(hours=1)
DRAIN_LIMIT = timedelta(minutes=5)
ACTS = 5
ROUNDS = 300
WITH_OURS = "theirs with ours"
"""A template that somebody edited, and that has the run's change in it."""
TARGET = ObjectRef("StatefulSet", "llm")
FLAG = replace(STEP, target=TARGET, before_template="old", after_template="new")
REPLACEMENT = replace(REPLACE, target=TARGET, pod="llm-1", uid="llm-1#2", template="old")
MORE = replace(SCALE, target=TARGET, before=3, after=4, template="old")
FEWER = replace(MORE, before=4, after=3)


class SetOperator:
    """The operator's side of one run on a StatefulSet."""

    def __init__(self, model: SetModel, step: Step, dies_at: int = 0) -> None:
        self.model = model
        number = model.replicas
        self.run: Run = replace(a_run(step=step), recorded=model.fields, replicas=number, in_rotation=number)
        self.ended: Outcome | None = None
        self.writes, self.dies_at = 0, dies_at
        """Before which effect, counted from 1, this process dies; 0: never."""
        self.without_ours: dict[str, object] = {"revision": "theirs"}
        """What somebody's edit is without the change of the run."""
        self.doubt: Failed | Blocked | None = None
        """Why the change was given up by the walk."""

    @property
    def state(self) -> StepState:
        return self.run.current.state

    def standing(self) -> Standing:
        return target_standing(self.run, UID, self.model.fleet())

    def tick(self) -> None:
        """Look once, and make one move."""
        fleet = self.model.fleet()
        seen = Situation(self.standing(), Wish.NONE, None, None, OnInconclusive.HOLD)
        match decide(self.run, seen):
            case Walk(direction):
                step, forward = self.run.current.step, direction is Direction.FORWARD
                row = row_of(step if forward else step.inverse())
                self._advance(row.next_move(fleet, self.known(is_back=not forward)), direction)
            case TurnBack(outcome):
                self.run = self.run.turn_step_back(outcome, None)
                self.tick()
            case Recover():
                found = regain_freeze(self.run, UID, fleet, self.model.now)
                self.run = found.run
                self._act(fleet, found.move)
            case Leave(outcome):
                self._leave(fleet, outcome)
            case Close(outcome):
                self.ended = outcome
            case Watch():
                pass

    def known(self, *, is_back: bool = False) -> StepInput:
        run, now = self.run, self.model.now
        drains = {pod.uid: self._drain_of(pod.uid) for pod in self.model.pods}
        return StepInput(
            run=run,
            resource_uid=UID,
            drains={
                uid: drain for uid, drain in drains.items() if uid in {one.uid for one in run.draining_pods}
            },
            limits=StartLimits(LIMIT, LIMIT),
            drain_limit=DRAIN_LIMIT,
            now=now,
            assigned_at=run.intent.at if run.intent else None,
            held=frozenset(one.uid for one in run.timed_out),
            is_back=is_back,
            edited=self.without_ours if self.model.revision == WITH_OURS else None,
        )

    def _drain_of(self, uid: str) -> Drain:
        pod = next(each for each in self.model.pods if each.uid == uid)
        if not pod.busy:
            return Drain.IDLE
        return Drain.HELD if pod.stubborn else Drain.BUSY

    def _advance(self, move: Move, direction: Direction) -> None:
        forward = direction is Direction.FORWARD
        match move:
            case Settled() if forward:
                self.run = self.run.open_verification(self.model.now)
            case Settled():
                self.run = self.run.end_reverted()
            case Failed(reason, message) if forward:
                self.doubt = move
                self.run = self.run.turn_step_back(Outcome(reason, message), None)
            case Blocked(reason, message) if self.run.intent is None:
                self.doubt, self.ended = move, Outcome(reason, message)
            case _:
                self._act(self.model.fleet(), move)

    def _leave(self, fleet: Fleet, outcome: Outcome) -> None:
        if self.state is not StepState.LEFT:
            self.run = self.run.leave_target(outcome)
            self.tick()
            return
        move = row_of(self.run.current.step).leave(fleet, self.known())
        self.ended = outcome if isinstance(move, Settled) else None
        self._act(fleet, move)

    def _act(self, fleet: Fleet, move: Move) -> None:
        if isinstance(move, Settled | Failed | Blocked | Wait):
            return
        policy = SimpleNamespace(rollout=SimpleNamespace(drain_timeout=DRAIN_LIMIT))
        tick = Tick(SimpleNamespace(uid=UID), policy, None, self.run, None, self.model.now)  # type: ignore[arg-type]
        self.run = record_intent(tick, fleet, move)
        self.writes += 1
        if self.writes == self.dies_at:
            return
        if not isinstance(move, Cordon | Uncordon | DeletePod):
            self.model.fence = self.run.claim(UID, self.run.sequence)
        self.model.apply(move)

    def round(self, number: int) -> None:
        """Let every act of the cluster happen once, then look."""
        for act in range(ACTS):
            self.model.happen(act, number)
        self.tick()

    def until(self, claim: Callable[[SetOperator], bool]) -> None:
        """Go on until something is so, between any two acts."""
        for number in range(ROUNDS):
            for act in range(ACTS):
                self.model.happen(act, number)
                if claim(self):
                    return
            self.tick()
            if claim(self):
                return
        raise AssertionError(f"it does not come so far: {self.state}, {self.run.intent}, {self.model}")

    def is_over(self) -> bool:
        """Return whether the run is closed, or may be judged."""
        at_rest = self.state is StepState.VERIFYING and self.standing() is Standing.AS_RECORDED
        return self.ended is not None or at_rest

    def come_to_rest(self) -> None:
        """Let the controller do what is left, without the operator."""
        for number in range(60):
            for act in range(ACTS):
                self.model.happen(act, number)
