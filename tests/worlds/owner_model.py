"""A run through the object of an owner, on the model of the controllers, and small imitations of owners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from types import SimpleNamespace
from typing import Any

from kvmedic.controller.next_move import Tick, record_intent
from kvmedic.model.config_edits import OwnerField, Roller
from kvmedic.model.edits import EditState
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, Owner, OwnerKind, OwnerObject, RolloutFields, TemplateOwner
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Judged, Outcome, StepState, Verdict
from kvmedic.model.spec import OnInconclusive
from kvmedic.model.status import Wish
from kvmedic.rollout import row_of
from kvmedic.rollout.decide import (
    Close,
    Direction,
    Keep,
    Leave,
    Recover,
    Rest,
    Situation,
    TurnBack,
    Walk,
    Watch,
    decide,
)
from kvmedic.rollout.drift import regain_freeze
from kvmedic.rollout.moves import (
    Cordon,
    DeletePod,
    Failed,
    Move,
    SetOwnerField,
    Settled,
    Uncordon,
    Wait,
)
from kvmedic.rollout.owners.field import field_standing
from kvmedic.rollout.start_failure import StartLimits
from kvmedic.rollout.steps import StepInput
from run_builder import STEP, UID, a_run
from worlds.model_controller import Model
from worlds.model_walk import LIMIT, Walker

OWN = RolloutFields(False, 1, 0, 0, 600)
"""A rollout that lets no replica be missing."""
REVISIONS = {"64": "old", "16": "new"}
OTHERS = "other"
"""A pod template that neither value alone makes."""
ACTS = 9
ROUNDS = 400
FIELD = OwnerField(
    "serving.kserve.io/v1beta1", "InferenceService", "chat", "isvc-1", "/spec/predictor/model/args/1",
    "64", "16", Roller.OWNER,
)  # fmt: skip
OWNER = Owner(
    Reason.OWNED_BY_CONTROLLER,
    "KServe InferenceService chat",
    TemplateOwner(OwnerKind.INFERENCE_SERVICE, "chat", part="InferenceService"),
)


class Habit(Enum):
    """What a controller does with the Deployment that it renders."""

    RENDERS = "it updates whatever differs, the rollout's fields and annotations too"
    """KServe and OME."""
    IDLES = "it neither carries the field over nor reverts anything"
    """production-stack's, as long as nothing else of its object changes."""
    RENDERS_OTHERWISE = "what it makes of the new value is not what was planned"


class OwnedFleet:
    """A run with its record, on a rendered fleet; a killed process loses what it has not written."""

    def __init__(self, habit: Habit = Habit.RENDERS, rolled_by: Roller = Roller.OWNER, replicas: int = 3):
        self.model = Model.healthy(replicas, OWN)
        self.habit = habit
        step = replace(STEP, before_template="old", after_template="new")
        step = replace(step, through=replace(FIELD, rolled_by=rolled_by))
        self.run = replace(a_run(step=step), target_uid="uid-1", recorded=OWN, replicas=replicas)
        self.value, self.generation = "64", 1
        self.wish = Wish.NONE
        self.verdict: Verdict | None = None
        """What the sustained window comes to; None: it goes on."""
        self.ended: Outcome | None = None
        self.writes: list[str] = []
        """Effects that were tried, by name."""
        self.killed_at: int | None = None
        """Which of them the process dies before, after it wrote the intent down."""
        self._seen: dict[object, Any] = {}
        """Since when this process knows of something."""

    # The owner's side.

    def set_value(self, value: str) -> None:
        """Somebody's write to the owner's object."""
        self.value, self.generation = value, self.generation + 1

    def owner_acts(self) -> None:
        """One reconciliation of the owner's controller."""
        model, revision = self.model, REVISIONS.get(self.value, OTHERS)
        if self.habit is Habit.IDLES:
            return
        if self.habit is Habit.RENDERS_OTHERWISE and revision == "new":
            revision = OTHERS
        if (model.revision, model.fields, model.strategy) != (revision, OWN, OWN.strategy):
            model.revision, model.fields, model.strategy = revision, OWN, OWN.strategy
            model.fence, model.observed = "", False

    # The operator's side.

    def fleet(self) -> Fleet:
        states = {FIELD.before: EditState.BEFORE, FIELD.after: EditState.AFTER}
        seen = OwnerObject(FIELD.uid, self.generation, states.get(self.value, EditState.OTHER))
        return replace(self.model.fleet(), owner=OWNER, rendered_from=seen)

    def known(self, *, is_back: bool = False) -> StepInput:
        run, model, intent = self.run, self.model, self.run.intent
        walker = Walker(model, "new")
        walker.draining_pods = run.draining_pods
        assigned = (intent.sequence, intent.at) if intent else None
        return StepInput(
            run=run,
            resource_uid=UID,
            drains=walker.drains(),
            limits=StartLimits(LIMIT, LIMIT),
            drain_limit=LIMIT,
            now=model.now,
            assigned_at=self._seen.setdefault(assigned, model.now) if assigned else None,
            is_back=is_back,
        )

    def tick(self) -> None:
        run, fleet = self.run, self.fleet()
        stands = field_standing(run, UID, fleet)
        verifies = run.current.state is StepState.VERIFYING and self.verdict is not None
        judged = Judged(self.verdict, _reason(self.verdict), "") if verifies and self.verdict else None
        match decide(run, Situation(stands, self.wish, None, judged, OnInconclusive.HOLD)):
            case Walk(direction):
                back = direction is Direction.BACK
                row = row_of(run.current.step.inverse() if back else run.current.step)
                self.advance(row.next_move(fleet, self.known(is_back=back)), back=back)
            case TurnBack(outcome, verdict):
                self.run = run.turn_step_back(outcome, verdict)
            case Recover():
                found = regain_freeze(run, UID, fleet, self.model.now)
                self.run = found.run
                self.act(found.move)
            case Leave(outcome):
                self.leave(outcome)
            case Keep(verdict):
                self.run = run.keep_step(verdict)
            case Close(outcome):
                self.ended = outcome
            case Watch() | Rest():
                pass

    def leave(self, outcome: Outcome) -> None:
        if self.run.current.state is not StepState.LEFT:
            self.run = self.run.leave_target(outcome)
            return
        move = row_of(self.run.current.step).leave(self.fleet(), self.known())
        self.ended = outcome if isinstance(move, Settled) else None
        self.act(move)

    def advance(self, move: Move, *, back: bool) -> None:
        match move:
            case Settled():
                self.run = self.run.end_reverted() if back else self.run.open_verification(self.model.now)
            case Failed(reason, message) if not back:
                self.run = self.run.turn_step_back(Outcome(reason, message), None)
            case Blocked(reason, message) if self.run.intent is None:
                self.ended = Outcome(reason, message)
            case _:
                self.act(move)

    def act(self, move: Move) -> None:
        if isinstance(move, Settled | Failed | Blocked | Wait):
            return
        tick = Tick(SimpleNamespace(uid=UID), None, None, self.run, None, self.model.now)  # type: ignore[arg-type]
        self.run = record_intent(tick, self.fleet(), move)
        self.writes.append(type(move).__name__)
        if self.killed_at == len(self.writes) - 1:
            self._seen.clear()
            return
        if isinstance(move, SetOwnerField):
            assert move.seen.generation == self.generation
            self.set_value(str(move.field.after))
            return
        if not isinstance(move, Cordon | Uncordon | DeletePod):
            self.model.fence = self.run.claim(UID, self.run.sequence)
        self.model.apply(move)

    # Time.

    def happen(self, act: int, which: int) -> None:
        """One act of the controllers, of the owner's, or of a kubelet."""
        if act < 7:
            self.model.happen(act, which)
        elif act == 7:
            self.model.replica_set_controller(OTHERS)
        else:
            self.owner_acts()

    def until(self, claim: Callable[[OwnedFleet], bool]) -> None:
        for number in range(ROUNDS):
            for act in range(ACTS):
                if claim(self):
                    return
                self.happen(act, number)
            self.tick()
            if claim(self):
                return
        raise AssertionError(f"it does not come so far: {self.run.current.state}, {self.writes}")

    def is_over(self) -> bool:
        return self.ended is not None

    def come_to_rest(self) -> None:
        """Let the controllers do what is left, without the operator."""
        for number in range(40):
            for act in range(ACTS):
                self.happen(act, number)

    def runs(self) -> set[str]:
        return {pod.revision for pod in self.model.pods}


def _reason(verdict: Verdict) -> Reason:
    return Reason.RECOVERED if verdict is Verdict.RECOVERED else Reason.NOT_RECOVERED
