"""Whatever somebody else sets in the middle of a walk, no replica goes undrained by what the run does then.

Every field that a run sets is removed or changed, in every phase, on the way there and back,
against the model of the controllers. What matters is counted: replicas that went with requests, replicas in
rotation, and what the fleet runs at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from kvmedic.controller.next_move import Tick, record_intent
from kvmedic.model.edits import FieldEdit
from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Outcome, StepState
from kvmedic.model.spec import OnInconclusive
from kvmedic.model.status import Wish
from kvmedic.rollout.decide import Close, Direction, Leave, Recover, Situation, TurnBack, Walk, Watch, decide
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.drift import MOST_REGAINS, TRUCE, regain_freeze, releasing_move, target_standing
from kvmedic.rollout.frozen_rollout import Order
from kvmedic.rollout.frozen_rollout import next_template_move as next_move
from kvmedic.rollout.moves import (
    Cordon,
    DeletePod,
    Failed,
    Move,
    Pause,
    Regain,
    Settled,
    Uncordon,
    Wait,
    largest_wave,
)
from run_builder import NOW, STEP, UID, a_run
from worlds.model_controller import OWN_FIELDS, Model

REPLICAS = 4
LARGE = 8
"""Of so many replicas two go at once."""
COMPARED = 2
LIMIT = timedelta(hours=1)
ACTS = 7
ROUNDS = 300


class Operator:
    """A run with its record, on the model: standing, decision, intent and effect as in the real loop."""

    def __init__(self, replicas: int = REPLICAS) -> None:
        self.model = Model.healthy(replicas)
        step = replace(STEP, before_template="old", after_template="new")
        self.run = replace(a_run(step=step), recorded=OWN_FIELDS, replicas=replicas)
        self.ended: Outcome | None = None
        self.outcomes: list[Outcome] = []
        self.verifies = False
        """Whether it may be judged: the sustained window ends the test otherwise."""

    def order(self, step) -> Order:
        drains = {pod.name: Drain.BUSY if pod.busy else Drain.IDLE for pod in self.model.pods}
        return Order(
            step.before_template,
            step.after_template,
            step.edit,
            self.run.recorded,
            self.run.draining_pods,
            drains,
            LIMIT,
            LIMIT,
            self.run.intent.at if self.run.intent else None,
            repairs=step is not self.run.current.step,
            wave=self.wave if step is self.run.current.step else 1,
            compared=COMPARED,
        )

    @property
    def wave(self) -> int:
        """How many may go at once, once the new ones that are compared serve."""
        new = sum(pod.ready for pod in self.model.pods if pod.revision == "new")
        return largest_wave(self.model.replicas) if new >= COMPARED else 1

    def tick(self) -> None:
        model, run = self.model, self.run
        fleet = model.fleet()
        seen = Situation(target_standing(run, UID, fleet), Wish.NONE, None, None, OnInconclusive.HOLD)
        match decide(run, seen):
            case Walk(direction):
                step = run.current.step if direction is Direction.FORWARD else run.current.step.inverse()
                self.advance(next_move(fleet, self.order(step), model.now), direction)
            case TurnBack(outcome):
                self.run = run.turn_step_back(outcome, None)
            case Recover():
                found = regain_freeze(run, UID, fleet, model.now)
                self.run = found.run
                self.outcomes.append(found.outcome)
                self.act(found.move)
            case Leave(outcome):
                self.run = run.leave_target(outcome)
                move = releasing_move(fleet, run.recorded)
                self.ended = outcome if isinstance(move, Settled) else None
                self.act(move)
            case Close(outcome):
                self.ended = outcome
            case Watch():
                pass

    def advance(self, move: Move, direction: Direction) -> None:
        match move:
            case Settled() if direction is Direction.FORWARD:
                self.run = self.run.open_verification(self.model.now)
            case Settled():
                self.run = self.run.end_reverted()
            case Failed(reason, message) | Blocked(reason, message):
                raise AssertionError(f"{reason}: {message}")
            case _:
                self.act(move)

    def act(self, move: Move) -> None:
        if isinstance(move, Settled | Failed | Blocked | Wait):
            return
        tick = Tick(SimpleNamespace(uid=UID), None, None, self.run, None, self.model.now)
        self.run = record_intent(tick, self.model.fleet(), move)
        if not isinstance(move, Cordon | Uncordon | DeletePod):
            self.model.fence = self.run.claim(UID, self.run.sequence)
        self.model.apply(move)

    def happen(self, act: int, which: int) -> None:
        self.model.happen(act, which)

    def round(self, number: int) -> None:
        for act in range(ACTS):
            self.happen(act, number)
        self.tick()

    def until(self, claim: Callable[[Operator], bool]) -> None:
        for number in range(ROUNDS):
            for act in range(ACTS):
                self.happen(act, number)
                if claim(self):
                    return
            self.tick()
            if claim(self):
                return
        raise AssertionError("it does not come so far")

    def is_over(self) -> bool:
        return self.ended is not None or (self.run.current.state is StepState.VERIFYING and self.is_at_rest())

    def is_at_rest(self) -> bool:
        return target_standing(self.run, UID, self.model.fleet()).value == "AsRecorded"


def of(op: Operator, revision: str) -> int:
    return sum(pod.revision == revision for pod in op.model.pods)


def frozen_at_rest(op: Operator) -> bool:
    return op.model.fields.is_frozen and op.model.fields.paused and op.model.observed


def toward(op: Operator) -> str:
    return "old" if op.run.current.state is StepState.ROLLING_BACK else "new"


PHASES: dict[str, Callable[[Operator], bool]] = {
    "canary": lambda op: frozen_at_rest(op) and of(op, toward(op)) <= 1 and not cordoned(op),
    "drain": lambda op: frozen_at_rest(op) and bool(cordoned(op)) and any(p.busy for p in cordoned(op)),
    "pulse": lambda op: not op.model.fields.paused and op.model.fields.max_unavailable not in (0, "25%"),
    "between": lambda op: frozen_at_rest(op) and of(op, toward(op)) == 2 and not cordoned(op),
    "last": lambda op: frozen_at_rest(op) and of(op, toward(op)) == REPLICAS,
}


def cordoned(op: Operator) -> list:
    return [pod for pod in op.model.pods if pod.cordoned]


def set_fields(**changes) -> Callable[[Operator], None]:
    def act(op: Operator) -> None:
        op.model.fields = replace(op.model.fields, **changes)
        op.model.observed = False

    return act


def set_claim(claim: str) -> Callable[[Operator], None]:
    def act(op: Operator) -> None:
        op.model.fence = claim

    return act


def recreate(op: Operator) -> None:
    op.model.strategy = "Recreate"
    set_fields(max_surge=0, max_unavailable=0)(op)


def apply_by_force(op: Operator) -> None:
    """A whole manifest without the template: every temporary field, and no annotation of ours."""
    set_fields(max_surge="25%", max_unavailable="25%", min_ready_seconds=0, progress_deadline_seconds=600)(op)
    op.model.fence = ""


DEEDS: dict[str, tuple[Callable[[Operator], None], dict[str, object]]] = {
    "claim removed": (set_claim(""), {}),
    "claim of long ago": (set_claim("other/20250101-000000/9"), {}),
    "claim ahead": (lambda op: set_claim(op.run.claim(UID, op.run.sequence + 5))(op), {}),
    "minReadySeconds removed": (set_fields(min_ready_seconds=0), {}),
    "minReadySeconds changed": (set_fields(min_ready_seconds=30), {"min_ready_seconds": 30}),
    "progressDeadlineSeconds set back": (set_fields(progress_deadline_seconds=600), {}),
    "progressDeadlineSeconds changed": (
        set_fields(progress_deadline_seconds=900),
        {"progress_deadline_seconds": 900},
    ),
    "maxSurge changed": (set_fields(max_surge="50%"), {"max_surge": "50%"}),
    "maxUnavailable changed": (set_fields(max_unavailable="50%"), {"max_unavailable": "50%"}),
    "both changed": (
        set_fields(max_surge=3, max_unavailable=6),
        {"max_surge": 3, "max_unavailable": 6},
    ),
    "resumed": (set_fields(paused=False), {}),
    "paused": (set_fields(paused=True), {}),
    "type of strategy": (recreate, {"strategy": "Recreate"}),
    "server-side apply by force": (apply_by_force, {}),
    "intent gone": (lambda op: setattr(op, "run", replace(op.run, intent=None)), {}),
    "sequence back": (
        lambda op: setattr(op, "run", replace(op.run, intent=replace(op.run.intent, sequence=1))),
        {},
    ),
}


def reached(phase: str, *, back: bool) -> Operator:
    op = Operator()
    if back:
        op.until(lambda op: op.run.current.state is StepState.VERIFYING)
        op.run = op.run.turn_step_back(Outcome(Reason.NOT_RECOVERED, "worse"), None)
    op.until(PHASES[phase])
    return op


def assert_nobody_lost(op: Operator, replicas: int = REPLICAS) -> None:
    assert op.model.undrained == []
    assert op.model.lost_in_rotation == []
    assert op.model.fewest >= replicas
    assert not cordoned(op)


@pytest.mark.parametrize("back", [False, True], ids=["forward", "back"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("deed", DEEDS)
def test_a_walk_goes_on_drained_whatever_field_is_moved(deed: str, phase: str, *, back: bool) -> None:
    act, kept = DEEDS[deed]
    op = reached(phase, back=back)

    act(op)
    op.tick()
    op.until(Operator.is_over)

    assert_nobody_lost(op)
    assert {pod.revision for pod in op.model.pods} == {"old" if back else "new"}
    assert op.model.fields == replace(OWN_FIELDS, **kept)


WAVE_PHASES: dict[str, Callable[[Operator], bool]] = {
    "spares": lambda op: not op.model.fields.paused and op.model.fields.max_surge == 2,
    "first of them": lambda op: frozen_at_rest(op) and len(op.model.pods) == LARGE + 2 and of(op, "new") == 3,
    "drains": lambda op: frozen_at_rest(op) and len(cordoned(op)) == 2,
    "pulse": lambda op: op.model.fields.max_surge == 2 and op.model.fields.max_unavailable not in (0, "25%"),
    "between": lambda op: frozen_at_rest(op) and of(op, "new") == 5 and not cordoned(op),
}


@pytest.mark.parametrize("turns", [False, True], ids=["forward", "turned round"])
@pytest.mark.parametrize("phase", WAVE_PHASES)
@pytest.mark.parametrize("deed", DEEDS)
def test_a_walk_in_waves_goes_on_drained_whatever_field_is_moved(
    deed: str, phase: str, *, turns: bool
) -> None:
    act, kept = DEEDS[deed]
    op = Operator(LARGE)
    op.until(WAVE_PHASES[phase])
    if turns:
        op.run = op.run.turn_step_back(Outcome(Reason.NOT_RECOVERED, "worse"), None)

    act(op)
    op.tick()
    op.until(Operator.is_over)

    assert_nobody_lost(op, LARGE)
    assert {pod.revision for pod in op.model.pods} == {"old" if turns else "new"}
    assert op.model.fields == replace(OWN_FIELDS, **kept)


WHILE_PAUSED = [
    (phase, deed)
    for phase in PHASES
    for deed in DEEDS
    if phase != "pulse" and deed != "type of strategy" and not (phase == "last" and "minReady" in deed)
]
"""Without the controller's own act on somebody's edit, before anybody else could."""


@pytest.mark.parametrize(("phase", "deed"), WHILE_PAUSED)
def test_while_it_is_paused_the_controller_may_see_it_first(deed: str, phase: str) -> None:
    act, _ = DEEDS[deed]
    op = reached(phase, back=False)

    act(op)
    op.until(Operator.is_over)

    assert_nobody_lost(op)
    assert {pod.revision for pod in op.model.pods} == {"new"}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("whole", [False, True], ids=["template alone", "with all fields and the claim"])
def test_a_template_that_is_put_back_in_the_middle_is_walked_back_to(phase: str, *, whole: bool) -> None:
    op = reached(phase, back=False)
    # A paused Deployment whose template has every replica keeps no other: the controller takes the spare.
    spare = [pod.name for pod in op.model.pods if pod.revision == "new"] if of(op, "old") == REPLICAS else []

    op.model.revision = "old"
    op.model.observed = False
    if whole:
        apply_by_force(op)
    op.tick()
    op.until(Operator.is_over)

    assert op.ended.reason is Reason.CHANGE_REVERTED
    assert {*op.model.undrained} <= {*spare}
    assert op.model.fewest >= REPLICAS - len(spare)
    assert not cordoned(op)
    assert {pod.revision for pod in op.model.pods} == {"old"}
    assert op.model.fields == OWN_FIELDS


def test_a_claim_that_goes_while_a_change_is_judged_is_put_back_and_nothing_else_is_touched() -> None:
    op = Operator()
    op.until(lambda op: op.run.current.state is StepState.VERIFYING)
    op.model.fence = ""

    op.tick()

    assert op.model.fence == op.run.claim(UID, op.run.sequence)
    assert op.model.fields == OWN_FIELDS
    assert op.run.current.state is StepState.VERIFYING
    assert op.is_at_rest()


def test_who_sets_a_field_again_and_again_is_named_and_the_rollout_is_held_paused() -> None:
    op = reached("between", back=False)
    tool = set_fields(min_ready_seconds=0, paused=False)
    for _ in range(MOST_REGAINS):
        tool(op)
        op.tick()
    tool(op)

    op.tick()
    op.tick()

    held = op.outcomes[-1]
    assert held.reason is Reason.ROLLOUT_CONTESTED
    assert op.model.fields.paused
    assert op.model.fields.min_ready_seconds == 0
    fleet = replace(op.model.fleet(), edits={"minReadySeconds": FieldEdit("argocd", "03:00", is_ours=False)})
    found = regain_freeze(op.run, UID, fleet, op.model.now)
    assert "minReadySeconds was set to 0 by argocd at 03:00" in found.outcome.message
    assert "kubectl -n serving get deployment llm --show-managed-fields" in found.outcome.message
    assert isinstance(found.move, Wait)
    op.model.pass_time(TRUCE.total_seconds() + 1)
    op.until(Operator.is_over)
    assert_nobody_lost(op)


def test_what_a_policy_altered_of_our_own_patch_is_nobodys_wish() -> None:
    op = reached("between", back=False)
    set_fields(min_ready_seconds=600)(op)
    altered = FieldEdit("kvmedic", NOW.isoformat(), is_ours=True)

    found = regain_freeze(
        op.run, UID, replace(op.model.fleet(), edits={"minReadySeconds": altered}), op.model.now
    )

    assert isinstance(found.move, Regain)
    assert found.run.recorded == OWN_FIELDS
    assert "an admission policy altered minReadySeconds of our own patch to 600" in found.outcome.message


@pytest.mark.parametrize(
    "changes",
    [{"max_surge": 0}, {"min_ready_seconds": 601}],
    ids=["no surge and, by the record, none unavailable", "a soak beyond the deadline"],
)
def test_numbers_that_the_server_would_refuse_at_the_end_are_not_kept(changes: dict[str, int]) -> None:
    op = reached("between", back=False)
    op.run = replace(op.run, recorded=replace(OWN_FIELDS, max_unavailable=0))
    set_fields(**changes)(op)

    found = regain_freeze(op.run, UID, op.model.fleet(), op.model.now)

    assert found.run.recorded == replace(OWN_FIELDS, max_unavailable=0)
    assert not isinstance(found.move, Pause)
