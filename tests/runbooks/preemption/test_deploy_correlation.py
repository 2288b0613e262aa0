"""Whether a new revision brought the trouble."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import (
    AMBIGUOUS,
    CALM,
    NO_SERIES,
    NOT_A_NUMBER,
    SOURCE_UNAVAILABLE,
    STALE,
    THRASHING,
    UNSUPPORTED,
    Nothing,
    Replica,
    an_evidence,
    without,
)
from deploy_builder import CAP_RAISED, LATEST, PREVIOUS, a_deploy, a_past, deployed
from kvmedic.model.config_edits import Difference, NoDeploy
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Assignment, Diagnosed, NoChange, RollBack, Setting, diagnose
from kvmedic.runbooks.preemption.branches import PREEMPTION_BRANCHES as BRANCHES
from kvmedic.runbooks.preemption.branches import deploy_correlated, roll_back_or_right_size
from kvmedic.runbooks.preemption.deploy_correlation import HISTORY, expected_time, roll_back, since_deploy
from kvmedic.verdict.comparison import BETTER, HEAVIER

THRASH = an_evidence(*[THRASHING] * 3)
ALLOWED = Setting(256, (LeverBound(Knob.MAX_NUM_SEQS),), rollback_allowed=True)
CAP_ONLY = Setting(256, (LeverBound(Knob.MAX_NUM_SEQS),))


def found_with(*before: Replica, now: Replica = THRASHING) -> object:
    return since_deploy(deployed(an_evidence(*[now] * 3), a_deploy(before=a_past(*before))))


def test_it_says_what_came_and_how_it_was_before() -> None:
    found = deploy_correlated(deployed(THRASH))

    assert isinstance(found, tuple)
    assert found[0].text == "revision 7 came at 2026-03-01T02:45:00Z: maxNumSeqs 16 -> 256"
    assert found[1].subject == "revision 6"
    assert found[1].text == (
        "0.05 preemptions per request before it came, 1.75 now, at 3.20 requests per second and replica, "
        "3.20 now"
    )
    assert (found[1].observed, found[1].limit) == (0.05, BETTER * 1.75)


MISSING = [
    pytest.param(NO_SERIES, Reason.METRICS_MISSING, id="no series"),
    pytest.param(NOT_A_NUMBER, Reason.METRICS_MISSING, id="not a number"),
    pytest.param(SOURCE_UNAVAILABLE, Reason.SOURCE_UNAVAILABLE, id="source unavailable"),
    pytest.param(AMBIGUOUS, Reason.METRICS_AMBIGUOUS, id="ambiguous"),
    pytest.param(STALE, Reason.METRICS_STALE, id="stale"),
    pytest.param(UNSUPPORTED, Reason.SIGNAL_UNSUPPORTED, id="unsupported"),
]


@pytest.mark.parametrize("signal", sorted(HISTORY))
@pytest.mark.parametrize(("why", "reason"), MISSING)
def test_without_a_signal_of_then_nothing_is_concluded(signal: Signal, why: Nothing, reason: Reason) -> None:
    past = a_past(CALM, without(CALM.readings(), signal, why), CALM)

    found = deploy_correlated(deployed(THRASH, a_deploy(before=past)))

    assert isinstance(found, Inconclusive)
    assert found.reason is reason
    assert "revision 7 came at" in found.message
    assert "how revision 6 fared is not known" in found.message
    if why is not SOURCE_UNAVAILABLE:
        assert signal in found.message


@pytest.mark.parametrize(
    ("past", "reason"),
    [
        pytest.param(NO_SERIES, Reason.METRICS_MISSING, id="the source knew no replica then"),
        pytest.param(STALE, Reason.METRICS_MISSING, id="it only knew them earlier"),
        pytest.param(SOURCE_UNAVAILABLE, Reason.SOURCE_UNAVAILABLE, id="it did not answer"),
    ],
)
def test_without_a_past_nothing_is_concluded(past: Nothing, reason: Reason) -> None:
    found = deploy_correlated(deployed(THRASH, a_deploy(before=past)))

    assert isinstance(found, Inconclusive)
    assert found.reason is reason


@pytest.mark.parametrize("signal", sorted(HISTORY))
def test_without_a_signal_of_now_nothing_is_concluded(signal: Signal) -> None:
    now = [THRASHING.readings(), without(THRASHING.readings(), signal, STALE), THRASHING.readings()]

    found = since_deploy(deployed(an_evidence(*now)))

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.METRICS_STALE


def test_a_change_that_cannot_be_read_is_said() -> None:
    unknown = Inconclusive(Reason.REVISION_GONE, "revision 7 came, and the one before is gone")

    found = deploy_correlated(deployed(THRASH, unknown))

    assert found == Inconclusive(Reason.REVISION_GONE, "revision 7 came, and the one before is gone")


BOUNDARIES = [
    ("preemptions at half of today's", replace(CALM, preemptions=0.4375 * 960), True),
    ("one preemption more", replace(CALM, preemptions=0.4375 * 960 + 1), False),
    ("one replica at the trigger", replace(CALM, preemptions=480), True),
    ("one replica over the trigger", replace(CALM, preemptions=481), False),
    ("requests that have grown by 30 %", replace(CALM, finished=960 / HEAVIER), True),
    ("requests that have grown by more", replace(CALM, finished=960 / HEAVIER - 1), False),
]


@pytest.mark.parametrize(("before", "fires"), [pytest.param(b, f, id=name) for name, b, f in BOUNDARIES])
def test_each_limit_holds_at_its_boundary(before: Replica, *, fires: bool) -> None:
    alone = "replica" not in next(name for name, b, _ in BOUNDARIES if b is before)
    now = replace(THRASHING, preemptions=0.875 * 960)

    found = found_with(*([before] * 3 if alone else [before, CALM, CALM]), now=now)

    assert (found is not None) is fires


@settings(deadline=None)
@given(
    before=st.floats(0, 5000),
    now=st.floats(1, 5000),
    then=st.floats(1, 5000),
    finished=st.floats(1, 5000),
)
def test_it_never_fires_on_a_fleet_that_was_as_bad_or_had_less_to_do(
    before: float, now: float, then: float, finished: float
) -> None:
    past = replace(CALM, preemptions=before, finished=then)
    present = replace(THRASHING, preemptions=now, finished=finished, stalls=0)

    found = found_with(past, now=present)

    if found is not None:
        assert before / then <= 0.5
        assert before / then < now / finished
        assert finished <= HEAVIER * then * 1.000001


def test_an_allowed_way_back_is_advised_with_its_price() -> None:
    advice = roll_back_or_right_size(deployed(THRASH), ALLOWED)

    assert advice == RollBack(
        LATEST,
        PREVIOUS,
        Reason.DEPLOY_CORRELATED,
        "revision 7 came at 2026-03-01T02:45:00Z: maxNumSeqs 16 -> 256; back to revision 6, 3 new replicas "
        "at 120 s each until Ready (measured): about 6 min, and the drains of those that go",
    )


@pytest.mark.parametrize(
    ("count", "seconds", "text"),
    [
        (3, 120.0, "about 6 min"),
        (1, 89.0, "1 new replica at 89 s each until Ready (measured): about 89 s"),
        (1, 90.0, "about 2 min"),
        (0, 300.0, "0 new replicas"),
        (3, None, "3 new replicas, one after the other; how long each takes to start is not known"),
    ],
)
def test_the_time_is_replicas_by_their_start(count: int, seconds: float | None, text: str) -> None:
    assert text in expected_time(replace(a_deploy(start_seconds=seconds), to_start=count))


def test_where_it_is_not_allowed_demand_is_met_and_the_way_back_is_named() -> None:
    advice = roll_back_or_right_size(deployed(THRASH), CAP_ONLY)

    assert isinstance(advice, Assignment)
    assert advice.knob is Knob.MAX_NUM_SEQS
    assert "add {name: revisionRollback} to spec.levers" in advice.message


def test_where_nothing_is_allowed_a_person_sees_both() -> None:
    advice = roll_back_or_right_size(deployed(THRASH), Setting(256, ()))

    assert isinstance(advice, NoChange)
    assert advice.reason is Reason.LEVER_NOT_ALLOWED
    assert "add {name: revisionRollback}" in advice.message
    assert "maxNumSeqs" in advice.message


def test_a_way_back_that_did_not_help_is_not_taken_again() -> None:
    advice = roll_back_or_right_size(deployed(THRASH), replace(ALLOWED, rollback_failed=True))

    assert isinstance(advice, Assignment)
    assert "it did not help" in advice.message


@pytest.mark.parametrize("deploy", [NoDeploy(), Inconclusive(Reason.REVISION_GONE, "gone")])
def test_without_a_revision_to_take_back_nothing_is(deploy: NoDeploy | Inconclusive) -> None:
    advice = roll_back(deployed(THRASH, deploy), ALLOWED)

    assert isinstance(advice, NoChange)


def test_the_diagnosis_of_a_deploy_names_it() -> None:
    found = diagnose(BRANCHES, deployed(THRASH, a_deploy(CAP_RAISED, Difference("image", "a:1", "a:2"))))

    assert isinstance(found, Diagnosed)
    assert found.reason is Reason.DEPLOY_CORRELATED
    assert "maxNumSeqs 16 -> 256, image a:1 -> a:2" in found.line()
