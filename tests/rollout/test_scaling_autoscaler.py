"""An autoscaler's minimum is raised for a while and put back; what others set stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, Minimum, ObjectRef, Owner
from kvmedic.model.plan import MinimumHolder, ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Intent, Outcome, Run, StepState
from kvmedic.rollout.draining import Drain, holding_move
from kvmedic.rollout.drift import Standing, is_kept, target_standing
from kvmedic.rollout.moves import Claim, Failed, Move, SetMinimum, Settled, Uncordon, Wait
from kvmedic.rollout.preconditions import Autoscaler, Neighbours, via_autoscaler
from kvmedic.rollout.scaling import Scaling, autoscaling_move
from kvmedic.rollout.scaling import leave_autoscaling as leaving_move
from kvmedic.rollout.start_failure import StartLimits
from kvmedic.runbooks.preemption.restore import is_unchanged_number, step_back, temporary_after
from run_builder import NOW, OLD, SCALE, UID, a_fleet, a_pod, a_run
from worlds.steps import HPA, a_minimum
from worlds.steps import MINIMUM as STEP

LIMITS = StartLimits(timedelta(seconds=600), timedelta(seconds=120))
CLAIMED = Intent(1, "Claim", OLD, OLD, False, NOW, was_frozen=False)
RUN = "20260301-025500"
A_MOMENT = timedelta(seconds=1)


def marked(number: int, mark: int | None = None, **changes: object) -> Minimum:
    """Return a minimum with the mark of a run that set a number."""
    return a_minimum(number, mark=f"{UID}/{RUN}/{number if mark is None else mark}", **changes)


def with_minimum(found: Minimum | None, fleet: Fleet | None = None) -> Fleet:
    return replace(fleet or a_fleet(), minimum=found)


def four(**last: object) -> Fleet:
    sets = a_fleet().replica_sets
    pods = (*a_fleet().pods, a_pod("z", **{"created_at": NOW - timedelta(minutes=1), **last}))
    return a_fleet(replicas=4, pods=pods, replica_sets=(replace(sets[0], desired=4, available=4),))


def an_order(step: ReplicasStep = STEP, **changes: object) -> Scaling:
    return replace(
        Scaling(step, None, Drain.UNKNOWN, LIMITS, replicas=3, assigned_at=NOW - A_MOMENT), **changes
    )


UNREADY = {"ready_at": None, "in_rotation": False, "unready_at": NOW - A_MOMENT, "created_at": NOW}
DOWN = {"ready_at": None, "in_rotation": False, "unready_at": NOW - A_MOMENT}
BEGIN = {"assigned_at": None, "begins": True}
REPEATED = {"begins": True}
BACK = STEP.inverse()
ABSENT = replace(STEP, holder=replace(STEP.holder, is_given=False), before=1)
MOVES: list[tuple[str, Fleet, Scaling, type[Move], str]] = [
    ("first the target is claimed", with_minimum(a_minimum()), an_order(**BEGIN), Claim, ""),
    (
        "another minimum was planned with",
        with_minimum(a_minimum(3)),
        an_order(**BEGIN),
        Blocked,
        "ReplicasChanged",
    ),
    ("it is gone", with_minimum(None), an_order(**BEGIN), Blocked, "ReplicasChanged"),
    (
        "another of its name",
        with_minimum(a_minimum(uid="hpa-2")),
        an_order(**BEGIN),
        Blocked,
        "ReplicasChanged",
    ),
    (
        "who owns the template does not matter",
        with_minimum(a_minimum(), a_fleet(owner=Owner(Reason.MANAGED_BY_GITOPS, "Argo CD"))),
        an_order(**BEGIN),
        Claim,
        "",
    ),
    (
        "a replica is not Ready, and nobody says why: none is added",
        with_minimum(a_minimum(), a_fleet(pods=(*a_fleet().pods[:2], a_pod("c", **DOWN)))),
        an_order(**BEGIN),
        Blocked,
        "TargetNotSettled",
    ),
    ("the claim was never committed: again", with_minimum(a_minimum()), an_order(**REPEATED), Claim, ""),
    (
        "never committed, and it is gone now: it ends",
        with_minimum(None),
        an_order(**REPEATED),
        Failed,
        "ReplicasChanged",
    ),
    ("then its minimum is raised", with_minimum(a_minimum()), an_order(), SetMinimum, "4"),
    ("it has not followed yet", with_minimum(marked(4)), an_order(), Wait, "AwaitingController"),
    (
        "it does not follow",
        with_minimum(marked(4)),
        an_order(assigned_at=NOW - LIMITS.start - A_MOMENT),
        Failed,
        "AutoscalerIdle",
    ),
    ("the new one starts", with_minimum(marked(4), four(**UNREADY)), an_order(), Wait, "AwaitingReplica"),
    (
        "the new one crashes",
        with_minimum(marked(4), four(**UNREADY, waiting_reason="CrashLoopBackOff")),
        an_order(),
        Failed,
        "CanaryFailed",
    ),
    ("all serve", with_minimum(marked(4), four()), an_order(), Settled, ""),
    (
        "all serve but one that was down before",
        with_minimum(marked(4), replace(four(), pods=(a_pod("a", **DOWN), *four().pods[1:]))),
        an_order(down_before=1),
        Settled,
        "",
    ),
    ("the way back", with_minimum(marked(4), four()), an_order(BACK), SetMinimum, "2"),
    ("put back", with_minimum(marked(2), four()), an_order(BACK), Settled, ""),
    ("it was gone before it could be put back", with_minimum(None), an_order(BACK), Settled, ""),
    (
        "a default that was not given is put back by removing it",
        with_minimum(marked(1), four()),
        an_order(ABSENT.inverse()),
        SetMinimum,
        "1 removed",
    ),
    (
        "and then it is back",
        with_minimum(marked(1, is_given=False), four()),
        an_order(ABSENT.inverse()),
        Settled,
        "",
    ),
]


def text_of(move: Move) -> str:
    match move:
        case SetMinimum(_, number, is_given):
            return str(number) if is_given else f"{number} removed"
        case Wait(reason) | Failed(reason) | Blocked(reason):
            return str(reason)
        case Uncordon(pod):
            return pod.name
        case _:
            return ""


@pytest.mark.parametrize(
    ("fleet", "order", "kind", "what"), [row[1:] for row in MOVES], ids=[row[0] for row in MOVES]
)
def test_the_next_move(fleet, order, kind, what):
    move = autoscaling_move(fleet, order, NOW)

    assert isinstance(move, kind)
    assert text_of(move) == what


LEAVING = [
    ("what was raised is put back", with_minimum(marked(4)), an_order(), SetMinimum, "2"),
    ("somebody set another: it stays", with_minimum(marked(5, 4)), an_order(is_ours=False), Settled, ""),
    (
        "somebody set ours, and it is not: it stays",
        with_minimum(marked(4)),
        an_order(is_ours=False),
        Settled,
        "",
    ),
    ("not raised yet", with_minimum(a_minimum()), an_order(), Settled, ""),
    ("gone", with_minimum(None), an_order(), Settled, ""),
    (
        "what was being put back stays",
        with_minimum(marked(2)),
        an_order(replace(STEP.inverse(), reason=Reason.REPLICAS_GIVEN_BACK)),
        Settled,
        "",
    ),
]


@pytest.mark.parametrize(
    ("fleet", "order", "kind", "what"), [row[1:] for row in LEAVING], ids=[row[0] for row in LEAVING]
)
def test_leaving(fleet, order, kind, what):
    move = leaving_move(fleet, order, NOW)

    assert isinstance(move, kind)
    assert text_of(move) == what


def test_it_rests_as_it_stands():
    assert text_of(holding_move(a_fleet())) == "Holding"
    cordoned = a_fleet(pods=(*a_fleet().pods[:2], a_pod("c", cordoned=True, in_rotation=False)))
    assert text_of(holding_move(cordoned)) == "c"


def a_run_through(state: StepState = StepState.ROLLING_OUT, step: ReplicasStep = STEP) -> Run:
    return a_run(state, CLAIMED, step=step)


KEPT = [
    ("not set yet", a_minimum(2), True),
    ("set", marked(4), True),
    ("set, and another of its kind came", marked(4, uid="hpa-2"), False),
    ("somebody was first", a_minimum(3), False),
    ("somebody was first with the very number", a_minimum(4), False),
    ("set, and somebody set another", marked(5, 4), False),
    ("set, and somebody put the old one back", marked(2, 4), False),
    ("put back by us", marked(2), True),
    ("the mark of an earlier run", a_minimum(2, mark=f"{UID}/20260101-000000/9"), True),
    ("the mark of another resource", a_minimum(2, mark=f"another/{RUN}/4"), True),
    ("gone", None, False),
]


@pytest.mark.parametrize(("found", "expected"), [row[1:] for row in KEPT], ids=[row[0] for row in KEPT])
def test_a_minimum_that_no_assignment_explains_is_somebody_elses(found, expected):
    fleet = with_minimum(found, a_fleet(fence=f"{UID}/{RUN}/1"))

    assert is_kept(a_run_through(), UID, fleet) is expected
    assert target_standing(a_run_through(), UID, fleet) is (
        Standing.AS_RECORDED if expected else Standing.RESCALED
    )


@given(replicas=st.integers(1, 9))
@settings(deadline=None)
def test_how_many_replicas_it_makes_is_its_own_matter(replicas):
    fleet = with_minimum(marked(4), a_fleet(fence=f"{UID}/{RUN}/1", replicas=replicas))

    assert target_standing(a_run_through(StepState.VERIFYING), UID, fleet) is Standing.AS_RECORDED


@given(
    numbers=st.lists(st.sampled_from([2, 4, 4, 2]), max_size=6), edit=st.one_of(st.none(), st.integers(0, 9))
)
@settings(deadline=None)
def test_in_every_order_of_moves_and_edits_an_edit_is_never_overwritten(numbers, edit):
    found = a_minimum(2)
    run = a_run_through()
    for number in numbers:
        assert is_kept(run, UID, with_minimum(found))
        found = marked(number)
    theirs = found if edit is None else replace(found, number=edit)

    ours = is_kept(run, UID, with_minimum(theirs))

    assert ours is (theirs.number == found.number)
    leave = leaving_move(with_minimum(theirs), an_order(is_ours=ours), NOW)
    assert ours or isinstance(leave, Settled)


HELD_RUN = replace(a_run_through(StepState.KEPT), replicas=3)


def test_what_is_held_is_the_minimum_and_it_is_given_back_through_it():
    fleet = with_minimum(marked(4), four())

    [held] = temporary_after((), HELD_RUN, fleet, Outcome(Reason.RECOVERED, ""), NOW)

    assert (held.step.before, held.step.after, held.fewest, held.step.number_in) == (2, 4, 3, HPA)
    assert "minimum of HorizontalPodAutoscaler 2 -> 4" in held.line()
    assert is_unchanged_number(held, with_minimum(a_minimum(4), four(cordoned=False)))
    assert not is_unchanged_number(held, with_minimum(a_minimum(2)))
    assert not is_unchanged_number(held, with_minimum(None))
    step = step_back(held.step, 3, 3, OLD)
    assert (step.before, step.after, step.gives_back, step.holder) == (4, 2, True, STEP.holder)
    some = step_back(replace(held.step, after=5), 2, 4, OLD)
    assert (some.before, some.after) == (5, 4)


def test_a_minimum_that_was_not_given_is_given_in_between_and_removed_at_the_end():
    run = replace(a_run_through(StepState.KEPT, ABSENT), replicas=2)

    [held] = temporary_after((), run, with_minimum(marked(4)), Outcome(Reason.RECOVERED, ""), NOW)

    whole, some = step_back(held.step, 2, 2, OLD), step_back(held.step, 2, 3, OLD)
    assert (whole.after, whole.leaves_number, some.after, some.leaves_number) == (1, False, 3, True)


SCALER = Autoscaler("HorizontalPodAutoscaler", "llm", 2, 8, uid="hpa-1")
PATHS = [
    ("through a HorizontalPodAutoscaler", [SCALER], 4),
    ("through a ScaledObject", [replace(SCALER, kind="ScaledObject")], 4),
    ("its maximum is a bound", [replace(SCALER, maximum=3)], Reason.LEVER_AT_BOUND),
    ("it is to keep more already", [replace(SCALER, minimum=4)], Reason.REPLICAS_AUTOSCALED),
    ("it is paused", [replace(SCALER, paused=True)], Reason.REPLICAS_AUTOSCALED),
    ("it may add none", [replace(SCALER, may_add=False)], Reason.REPLICAS_AUTOSCALED),
    ("somebody applies it", [replace(SCALER, owner="Argo CD Application llm")], Reason.REPLICAS_AUTOSCALED),
    ("there are two", [SCALER, replace(SCALER, name="other")], Reason.REPLICAS_AUTOSCALED),
]


@pytest.mark.parametrize(("scalers", "expected"), [row[1:] for row in PATHS], ids=[row[0] for row in PATHS])
def test_a_scaling_goes_through_the_autoscaler_or_not_at_all(scalers, expected):
    found = via_autoscaler(SCALE, Neighbours(tuple(scalers)), a_fleet())

    if isinstance(found, Blocked):
        assert found.reason is expected
        assert "HorizontalPodAutoscaler llm" in found.message
        return
    assert (found.before, found.after) == (2, expected)
    assert found.holder == MinimumHolder(ObjectRef(scalers[0].kind, "llm"), "hpa-1", is_given=True)


def test_what_the_deployment_itself_holds_is_not_given_back_through_an_autoscaler_that_came():
    back = ReplicasStep(SCALE.target, None, 4, 3, OLD, Reason.REPLICAS_GIVEN_BACK)

    found = via_autoscaler(back, Neighbours((SCALER,)), a_fleet())

    assert isinstance(found, Blocked)
    assert found.reason is Reason.REPLICAS_AUTOSCALED


def test_the_inverse_of_the_inverse_is_the_step():
    assert replace(STEP.inverse().inverse(), reason=STEP.reason) == STEP
    assert STEP.line() == "HorizontalPodAutoscaler/llm: minimum 2 -> 4 replicas"
