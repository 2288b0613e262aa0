"""Approvals: bound to the plan that is shown, for one run, for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.plan import FlagStep, Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Approved
from kvmedic.rollout.gates.approval import CLOCK_SKEW, Approval, Request, find_approval, is_plan_current
from run_builder import NEW, NOW, OLD, STEP, UID

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
DIGEST = "0123456789abcdef"
REQUEST = Request("serving", "chat", UID, DIGEST, NOW - 5 * MINUTE, frozenset({"uid-used"}), HOUR)
GOOD = Approval("chat-x7", "uid-a", DIGEST, NOW - MINUTE)
TYPE = f"kvmedic approve chat -n serving --digest {DIGEST}"


def answer(
    *approvals: Approval, request: Request = REQUEST, now: datetime = NOW
) -> Approved | tuple[Reason, str]:
    outcome = find_approval(request, approvals, now)
    return (outcome.reason, outcome.message) if isinstance(outcome, Blocked) else outcome


def test_without_an_approval_it_says_what_to_type() -> None:
    assert answer() == (Reason.AWAITING_APPROVAL, f"plan {DIGEST} waits for approval: {TYPE}")


OPENING = {
    "of this plan, made after it was shown": (GOOD, REQUEST),
    "for this very resource": (replace(GOOD, resource_uid=UID), REQUEST),
    "as old as is allowed": (replace(GOOD, made_at=NOW - HOUR), replace(REQUEST, shown_at=NOW - 2 * HOUR)),
    "by a clock that is behind": (replace(GOOD, made_at=NOW - 5 * MINUTE - CLOCK_SKEW), REQUEST),
    "until later": (replace(GOOD, expires_at=NOW + SECOND), REQUEST),
    "by a clock that is ahead": (replace(GOOD, made_at=NOW + CLOCK_SKEW), REQUEST),
}


@pytest.mark.parametrize(("approval", "request_"), OPENING.values(), ids=OPENING)
def test_an_approval_counts(approval: Approval, request_: Request) -> None:
    assert answer(approval, request=request_) == Approved("chat-x7", "uid-a")


REFUSED = {
    "of another plan": (replace(GOOD, digest="f" * 16), REQUEST, "approves plan ffffffffffffffff"),
    "for an earlier resource": (
        replace(GOOD, resource_uid="gone"),
        REQUEST,
        "was made for an earlier KVRemediation",
    ),
    "that was used": (replace(GOOD, uid="uid-used"), REQUEST, "was used by an earlier run"),
    "from before the plan was shown": (
        replace(GOOD, made_at=NOW - 5 * MINUTE - CLOCK_SKEW - SECOND),
        REQUEST,
        "was made before this plan was shown",
    ),
    "of a plan that nobody saw yet": (GOOD, replace(REQUEST, shown_at=None), "was made before this plan"),
    "that expired by its own word": (replace(GOOD, expires_at=NOW), REQUEST, "is past its spec.expiresAt"),
    "that is too old": (
        replace(GOOD, made_at=NOW - HOUR - SECOND),
        replace(REQUEST, shown_at=NOW - 2 * HOUR),
        "is older than spec.limits.approvalMaxAge",
    ),
}


@pytest.mark.parametrize(("approval", "request_", "says"), REFUSED.values(), ids=REFUSED)
def test_an_approval_does_not_count_and_it_is_said_why(
    approval: Approval, request_: Request, says: str
) -> None:
    outcome = answer(approval, request=request_)

    assert not isinstance(outcome, Approved)
    assert outcome[0] is Reason.APPROVAL_EXPIRED
    assert f"KVApproval chat-x7 {says}" in outcome[1]
    assert outcome[1].endswith(TYPE)


def test_the_oldest_of_several_is_used_up_first() -> None:
    older = replace(GOOD, name="chat-a1", uid="uid-b", made_at=NOW - 2 * MINUTE)

    assert answer(GOOD, older) == Approved("chat-a1", "uid-b")


def test_of_several_that_do_not_count_the_newest_is_named() -> None:
    used = replace(GOOD, name="chat-a1", uid="uid-used", made_at=NOW - 2 * MINUTE)
    moved = replace(GOOD, digest="f" * 16)

    outcome = answer(moved, used)

    assert not isinstance(outcome, Approved)
    assert "KVApproval chat-x7 approves plan" in outcome[1]


def test_approvals_of_long_ago_for_other_plans_are_not_worth_a_word() -> None:
    old = replace(GOOD, digest="f" * 16, made_at=NOW - 30 * 24 * HOUR)

    assert answer(old) == answer()


def test_what_cannot_be_read_approves_nothing() -> None:
    outcome = find_approval(REQUEST, Blocked(Reason.APPROVALS_UNREADABLE, "install it"), NOW)

    assert outcome == Blocked(Reason.APPROVALS_UNREADABLE, "install it")


def test_one_approval_opens_one_run_however_often_it_is_asked() -> None:
    first = answer(GOOD)
    assert isinstance(first, Approved)

    again = answer(GOOD, request=replace(REQUEST, used=frozenset({first.uid})))

    assert not isinstance(again, Approved)


PLAN = Plan((STEP,), "uid-1", OLD, 3, Reason.CAP_RIGHT_SIZED)


def to(after: str | None, before: str | None = "64", knob: Knob = Knob.MAX_NUM_SEQS) -> Plan:
    step = replace(STEP, before=before, after=after, knob=knob, after_template=f"with {after}")
    return replace(PLAN, steps=(step,))


STANDING = {
    "the same": (PLAN, PLAN),
    "the wobble of a cap": (to("21"), to("20")),
    "a tenth less": (to("20"), to("18")),
    "a tenth more": (to("18"), to("20")),
    "one of a few": (to("4"), to("3")),
    "other words": (PLAN, replace(PLAN, message="other numbers", reason=Reason.SETTING_ADJUSTED)),
}
MOVED = {
    "more than a tenth": (to("20"), to("17")),
    "two of a few": (to("5"), to("3")),
    "another flag": (to("20", knob=Knob.MAX_MODEL_LEN), to("20")),
    "the wobble of what must be exact": (
        to("8000", knob=Knob.MAX_MODEL_LEN),
        to("7999", knob=Knob.MAX_MODEL_LEN),
    ),
    "another value before": (to("20", before="64"), to("20", before="32")),
    "no value": (to("20"), to(None)),
    "no number": (to("20"), to("auto")),
    "another template": (PLAN, replace(PLAN, template=NEW)),
    "another spec": (PLAN, replace(PLAN, spec_generation=4)),
    "another workload": (PLAN, replace(PLAN, target_uid="uid-2")),
    "one more step": (PLAN, replace(PLAN, steps=(STEP, STEP))),
    "another object": (PLAN, replace(PLAN, steps=(replace(STEP, target=ObjectRef("Deployment", "b")),))),
}


@pytest.mark.parametrize(("shown", "fresh"), STANDING.values(), ids=STANDING)
def test_a_shown_plan_stands(shown: Plan, fresh: Plan) -> None:
    assert is_plan_current(shown, fresh)


@pytest.mark.parametrize(("shown", "fresh"), MOVED.values(), ids=MOVED)
def test_a_shown_plan_has_been_left_behind(shown: Plan, fresh: Plan) -> None:
    assert not is_plan_current(shown, fresh)


@dataclass(frozen=True)
class OtherStep:
    """A step of another kind than a flag's."""

    replicas: int


@pytest.mark.parametrize(("shown", "fresh", "expected"), [(4, 4, True), (4, 5, False)])
def test_a_step_without_noise_must_be_the_very_step(shown: int, fresh: int, expected: bool) -> None:
    plans = [replace(PLAN, steps=(OtherStep(replicas),)) for replicas in (shown, fresh)]

    assert is_plan_current(*plans) is expected


@given(st.lists(st.integers(1, 4096), min_size=1))
def test_what_is_carried_out_is_never_far_from_the_newest_evidence(caps: Sequence[int]) -> None:
    shown = to(str(caps[0]))
    for cap in caps[1:]:
        fresh = to(str(cap))
        shown = shown if is_plan_current(shown, fresh) else fresh

        [step] = shown.steps
        assert isinstance(step, FlagStep)
        assert abs(int(step.after or 0) - cap) <= max(1, 0.1 * max(cap, int(step.after or 0)))
