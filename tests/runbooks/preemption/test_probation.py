"""A cap of ours on probation: when it goes back to what there was before, and when it stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from builders import CALM, NO_SERIES, NOW, TRIGGER, Replica, an_evidence, an_observation, without
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Measured, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline
from kvmedic.model.spec import Objectives
from kvmedic.model.status import CapChange, SizedCap
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Assignment, Evidence, NoChange, Probation, Setting, diagnose
from kvmedic.runbooks.preemption.branches import cap_harms
from kvmedic.runbooks.preemption.probation import is_on_probation, take_cap_back
from kvmedic.verdict.baseline import baseline_of
from runbooks.incidents import BEHIND_A_LOW_CAP

REVISION = "rev"
HANGING = replace(CALM, stalls=48, finished=960)
"""Before the cut: one answer in twenty hangs, and nobody waits."""
STARVING = replace(BEHIND_A_LOW_CAP, finished=960, first_token_seconds=70, in_flight_change=0)
"""Under the cap: as many requests, and first tokens after more than a minute."""


def figures(replica: Replica = HANGING, replicas: int = 3, **changes: object) -> Baseline:
    found = baseline_of(an_observation(*[replica] * replicas, window_seconds=300), 0)
    assert isinstance(found, Baseline), found
    return replace(found, **changes)


def an_hour(replica: Replica) -> Replica:
    """Return twelve times five minutes of a replica."""
    return replace(
        replica,
        finished=12 * replica.finished,
        preemptions=12 * replica.preemptions,
        stalls=12 * replica.stalls,
    )


CAP = SizedCap(
    REVISION, "12", NOW - timedelta(hours=5), changes=(CapChange("64", "12", NOW),), figures=figures()
)


def on_probation(hour: Replica = STARVING, cap: SizedCap = CAP, **objectives: float) -> Evidence:
    seen = an_observation(*[an_hour(hour)] * 3, window_seconds=3600)
    probation = Probation(cap, seen, Objectives(**objectives))
    return replace(an_evidence(*[STARVING] * 3), probation=probation)


def test_a_cap_under_which_users_wait_as_they_did_not_before_goes_back_to_what_there_was() -> None:
    evidence = on_probation()

    found = diagnose(RUNBOOKS["PreemptionThrash"], evidence)
    advice = take_cap_back(evidence, Setting(12, ()))

    assert found.reason is Reason.CAP_HARMS
    assert "under the cap of 12 that kvmedic set at 2026-02-28T22:00Z users are kept waiting" in found.line()
    assert isinstance(advice, Assignment)
    assert (advice.knob, advice.value, advice.reason) == (Knob.MAX_NUM_SEQS, "64", Reason.CAP_TAKEN_BACK)


def test_a_cap_in_place_of_the_engines_default_is_taken_off() -> None:
    evidence = on_probation(cap=replace(CAP, changes=(CapChange("", "12", NOW),)))

    advice = take_cap_back(evidence, Setting(12, ()))

    assert isinstance(advice, Assignment)
    assert advice.value is None
    assert "goes back to the default of the engine" in advice.message


def test_a_cap_that_cannot_be_set_back_says_why() -> None:
    why = NoChange(Reason.FLAG_NOT_EDITABLE, "in a variable")

    assert take_cap_back(on_probation(), Setting(12, (), refused={Knob.MAX_NUM_SEQS: why})) is why
    assert isinstance(take_cap_back(on_probation(cap=replace(CAP, changes=())), Setting(12, ())), NoChange)
    assert isinstance(take_cap_back(an_evidence(CALM), Setting(12, ())), NoChange)


STAYS = {
    "as well as before": on_probation(replace(HANGING, stalls=0)),
    "a fifth more to do": on_probation(replace(STARVING, finished=1.2 * 960)),
    "a fifth less to do": on_probation(replace(HANGING, finished=0.8 * 960)),
    "users waited as long before": on_probation(cap=replace(CAP, figures=figures(STARVING))),
    "no figures from before": on_probation(cap=replace(CAP, figures=None)),
    "too few requests in the hour": on_probation(replace(STARVING, finished=1)),
    "no cap of ours": an_evidence(*[STARVING] * 3),
}


@pytest.mark.parametrize("evidence", STAYS.values(), ids=STAYS)
def test_a_cap_stays_where_nothing_says_that_users_are_worse_off_by_it(evidence: Evidence) -> None:
    assert cap_harms(evidence) is None


def test_an_objective_that_was_met_before_the_cap_and_is_missed_under_it_counts() -> None:
    slow = replace(HANGING, stalls=0, first_token_seconds=4)

    assert cap_harms(on_probation(slow)) is None
    found = cap_harms(on_probation(slow, time_to_first_token_p95_seconds=3))
    assert isinstance(found, tuple)
    assert "an objective is broken" in found[0].text


@pytest.mark.parametrize("signal", [Signal.TIME_TO_FIRST_TOKEN_SECONDS, Signal.WAITING_AT_END])
def test_a_figure_that_is_missing_takes_no_cap_back(signal: Signal) -> None:
    whole = an_hour(STARVING).readings()
    seen = an_observation(whole, whole, without(whole, signal, NO_SERIES), window_seconds=3600)

    assert cap_harms(replace(on_probation(), probation=Probation(CAP, seen, Objectives()))) is None


def test_a_calm_fleet_is_asked_nothing() -> None:
    evidence = replace(on_probation(), burn=an_observation(*[CALM] * 3), trigger=TRIGGER)

    assert diagnose(RUNBOOKS["PreemptionThrash"], evidence).reason is Reason.HEALTHY


@pytest.mark.parametrize(
    ("hours", "before", "lately", "is_watched"),
    [
        (0.9, None, None, False),
        (1, None, None, True),
        (23.9, 1000, 1000, True),
        (24, None, 1000, False),
        (24, 1000, 920, False),
        (24, 1000, 900, True),
        (24, 1000, None, True),
        (7 * 24 - 1, 1000, 900, True),
        (7 * 24, 1000, 900, False),
    ],
)
def test_a_cap_is_watched_from_an_hour_on_for_a_day_and_until_a_peak_came(
    hours: float, before: float | None, lately: float | None, *, is_watched: bool
) -> None:
    cap = replace(CAP, at=NOW - timedelta(hours=hours), figures=figures(peak_tokens_per_second=before))
    peaks = {} if lately is None else {"llm-0": Measured(lately, NOW)}

    assert is_on_probation(cap, REVISION, peaks, NOW) is is_watched


def test_another_pod_template_and_a_cap_without_figures_end_it() -> None:
    assert is_on_probation(CAP, REVISION, {}, NOW)
    assert not is_on_probation(CAP, "edited", {}, NOW)
    assert not is_on_probation(replace(CAP, figures=None), REVISION, {}, NOW)
    assert not is_on_probation(None, REVISION, {}, NOW)
