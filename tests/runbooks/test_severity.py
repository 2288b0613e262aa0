"""How urgent a trouble is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from math import exp

import pytest

from builders import (
    CALM,
    IDLE,
    NO_SERIES,
    NOW,
    SECONDS_BOUNDS,
    SOURCE_UNAVAILABLE,
    STALE,
    THRASHING,
    UNSUPPORTED,
    Nothing,
    Replica,
    a_histogram,
    an_evidence,
    an_observation,
    with_histogram,
    without,
)
from kvmedic.model.evidence import Inconclusive, PodReadings, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Objectives
from kvmedic.model.status import Severity, Urgency
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import diagnose
from kvmedic.runbooks.severity import (
    NO_OBJECTIVES,
    share_served,
    signals_of,
    unmeasured_urgency,
    urgency,
    urgency_of,
)

NONE = Objectives()
WHOLE = Objectives(e2e_p95_seconds=30)
PAGED = Urgency(
    Severity.PAGE, "whole request p95 40 s, objective 30 s", NOW - timedelta(hours=1), ("e2eP95",)
)
FILED = Urgency(Severity.TICKET, "every objective of the spec is met", NOW - timedelta(hours=1))


def of(objectives: Objectives, *replicas: Replica | PodReadings, shown: Urgency | None = None) -> Urgency:
    return urgency([an_observation(*replicas)], objectives, shown)


def taking(*seconds: float) -> PodReadings:
    """Return a replica whose requests took so long as a whole, each as many as the others."""
    counted = a_histogram(SECONDS_BOUNDS, dict.fromkeys(seconds, 100.0))
    return with_histogram(THRASHING.readings(), Signal.E2E_SECONDS, counted)


@pytest.mark.parametrize(
    ("limit", "severity"),
    [(14.4, Severity.PAGE), (14.75, Severity.TICKET), (15.1, Severity.TICKET)],
    ids=["below what is measured", "at it", "above it"],
)
def test_an_objective_pages_only_while_more_is_measured(limit: float, severity: Severity) -> None:
    """All lie in the bucket from 10 to 15 s, spread evenly: the 95th percentile is 14.75 s."""
    assert of(Objectives(e2e_p95_seconds=limit), taking(11)).severity is severity


@pytest.mark.parametrize(
    ("objectives", "name", "start"),
    [
        (Objectives(inter_token_p95_seconds=0.01), "interTokenP95", "time between tokens p95"),
        (Objectives(e2e_p95_seconds=5), "e2eP95", "whole request p95"),
        (Objectives(time_to_first_token_p95_seconds=0.5), "ttftP95", "first token p95"),
    ],
)
def test_each_objective_pages_and_is_named_with_its_numbers(
    objectives: Objectives, name: str, start: str
) -> None:
    found = of(objectives, THRASHING, THRASHING)

    assert (found.severity, found.breached, found.since) == (Severity.PAGE, (name,), NOW)
    assert found.message.startswith(start)
    assert "objective" in found.message


def over_both(now: Replica, lately: Replica | None = None, shown: Urgency | None = None) -> Urgency:
    """Return the urgency without objectives, by the last 5 and the last 30 minutes."""
    looks = [an_observation(now), an_observation(lately or now, window_seconds=1800)]
    return urgency(looks, NONE, shown)


LET_DOWN = {
    "answers hang": replace(THRASHING, stalls=0.4 * THRASHING.finished, stall_seconds=7),
    "first tokens come after half a minute": replace(CALM, first_token_seconds=70),
    "nothing was answered, and many wait": replace(IDLE, waiting_mean=300),
}
SERVED_WELL = {
    "hardly anybody waits or hangs": CALM,
    "every fifth answer hangs": THRASHING,
    "too few requests": replace(CALM, first_token_seconds=70, finished=15),
    "nobody sends anything": IDLE,
}


@pytest.mark.parametrize("replica", LET_DOWN.values(), ids=LET_DOWN)
def test_without_objectives_a_fleet_that_lets_many_down_is_a_page_that_says_so(replica: Replica) -> None:
    found = over_both(replica)

    assert (found.severity, found.breached) == (Severity.PAGE, ("servedInTime",))
    assert "over 5 min and" in found.message
    assert "over 30 min are served in time, limit 70% (the spec names no objective)" in found.message


@pytest.mark.parametrize("replica", SERVED_WELL.values(), ids=SERVED_WELL)
def test_without_objectives_any_other_trouble_is_a_ticket(replica: Replica) -> None:
    assert over_both(replica).severity is Severity.TICKET


def test_a_trouble_of_some_minutes_is_no_page_and_one_that_is_over_ends_it() -> None:
    hanging = LET_DOWN["answers hang"]
    paged = over_both(hanging)

    assert over_both(hanging, CALM).severity is Severity.TICKET
    assert over_both(CALM, hanging, shown=paged) == Urgency(Severity.TICKET, NO_OBJECTIVES, NOW)


def test_what_is_not_known_of_service_keeps_a_page_and_makes_none() -> None:
    paged = over_both(LET_DOWN["answers hang"])

    assert over_both(IDLE, shown=paged) is paged
    assert "not measured: servedInTime" in over_both(IDLE).message


def test_a_replica_that_does_not_report_service_is_left_out() -> None:
    silent = without(THRASHING.readings(), Signal.WAITING_AT_END, NO_SERIES)
    hanging = LET_DOWN["answers hang"]

    assert share_served(an_observation(silent)) is None
    assert share_served(an_observation(silent, hanging)) == share_served(an_observation(hanging))
    mean = share_served(an_observation(CALM, hanging))
    assert mean == pytest.approx(exp(-0.2), abs=0.01), "of both together, not the mean of their shares"


def test_with_an_objective_that_is_met_nobody_is_paged() -> None:
    patient = Objectives(time_to_first_token_p95_seconds=120)

    found = urgency([an_observation(LET_DOWN["first tokens come after half a minute"])] * 2, patient, None)

    assert (found.severity, found.message) == (Severity.TICKET, "every objective of the spec is met")


def test_the_signals_that_are_asked_are_those_of_the_objectives() -> None:
    assert signals_of(NONE) == frozenset()
    assert signals_of(WHOLE) == {Signal.E2E_SECONDS}


def test_all_replicas_count_together() -> None:
    """One of twenty-one slow replicas is less than the twentieth request."""
    quick, slow = taking(1), taking(60)

    assert of(WHOLE, *[quick] * 21, slow).severity is Severity.TICKET
    assert of(WHOLE, *[quick] * 15, slow).severity is Severity.PAGE


def test_replicas_with_other_buckets_are_taken_apart_and_the_worst_counts() -> None:
    coarse = with_histogram(THRASHING.readings(), Signal.E2E_SECONDS, a_histogram((10.0, 100.0), {90.0: 5}))

    assert of(WHOLE, *[taking(1)] * 50, coarse).severity is Severity.PAGE


def test_a_percentile_above_every_bucket_is_a_breach() -> None:
    assert of(Objectives(e2e_p95_seconds=7000), taking(9000)).severity is Severity.PAGE


UNKNOWN: dict[str, Sequence[Replica | PodReadings]] = {
    "nothing finishes": (IDLE,),
    "nobody is there": (),
    **{
        name: (without(THRASHING.readings(), Signal.E2E_SECONDS, why),)
        for name, why in {
            "no series": NO_SERIES,
            "source down": SOURCE_UNAVAILABLE,
            "stale": STALE,
            "unsupported": UNSUPPORTED,
        }.items()
    },
}


@pytest.mark.parametrize("replicas", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_measured_neither_pages_nor_ends_a_page(
    replicas: Sequence[Replica | PodReadings],
) -> None:
    fresh = of(WHOLE, *replicas)

    assert fresh.severity is Severity.TICKET
    assert "not measured: e2eP95" in fresh.message
    assert of(WHOLE, *replicas, shown=PAGED) is PAGED
    assert of(WHOLE, *replicas, shown=FILED).severity is Severity.TICKET


def test_a_page_ends_when_its_own_objective_is_seen_to_be_met() -> None:
    found = of(WHOLE, CALM, shown=PAGED)

    assert (found.severity, found.breached, found.since) == (Severity.TICKET, (), NOW)


def test_another_objective_that_is_not_measured_does_not_keep_a_page() -> None:
    both = replace(WHOLE, inter_token_p95_seconds=5)
    blind: Nothing = STALE
    found = of(both, without(CALM.readings(), Signal.INTER_TOKEN_SECONDS, blind), shown=PAGED)

    assert found.severity is Severity.TICKET


def test_numbers_that_differ_are_not_said_anew_and_another_objective_is() -> None:
    slow = Objectives(e2e_p95_seconds=1)
    first = of(slow, taking(11))

    assert of(slow, taking(60), shown=first) is first
    more = of(replace(slow, inter_token_p95_seconds=0.01), taking(60), shown=first)
    assert more.breached == ("interTokenP95", "e2eP95")
    assert more.since == first.since


def test_a_ticket_keeps_its_date_when_its_message_changes() -> None:
    filed = of(WHOLE, CALM, shown=replace(FILED, message=NO_OBJECTIVES))

    assert (filed.since, filed.message) == (FILED.since, FILED.message)
    assert unmeasured_urgency(FILED.message, NOW, FILED) is FILED
    assert unmeasured_urgency("why", NOW, PAGED) == Urgency(Severity.TICKET, "why", NOW)


@pytest.mark.parametrize(
    ("replica", "limit", "severity"),
    [(taking(11), 14, Severity.PAGE), (taking(11), 16, None), (IDLE.readings(), 14, None)],
    ids=["breached", "met", "not measured"],
)
def test_a_fleet_without_trouble_pages_while_a_breach_is_measured(
    replica: PodReadings, limit: float, severity: Severity | None
) -> None:
    calm = an_evidence(CALM)
    seen, wish = an_observation(replica), Objectives(e2e_p95_seconds=limit)

    looked = replace(calm, burn=seen)
    found = urgency_of(diagnose(RUNBOOKS["PreemptionThrash"], calm), looked, wish, PAGED)

    assert (found.severity if found else None) == severity


def test_a_fleet_without_trouble_has_no_urgency_and_a_doubtful_one_has() -> None:
    calm, hot = an_evidence(CALM), an_evidence(THRASHING)
    table = RUNBOOKS["PreemptionThrash"]
    slow = Objectives(e2e_p95_seconds=1)

    assert urgency_of(diagnose(table, calm), calm, NONE, PAGED) is None
    hurt = urgency_of(diagnose(table, hot), hot, slow, None)
    assert hurt.severity is Severity.PAGE
    doubt = urgency_of(Inconclusive(Reason.PARTIAL_PRESSURE, "one"), hot, NONE, None)
    assert doubt.severity is Severity.TICKET


@pytest.mark.parametrize("limit", [5, 60], ids=["breached", "met"])
def test_what_of_ours_is_behind_it_is_named_first(limit: float) -> None:
    cause = "requests queue behind the cap of 12 that kvmedic set"
    diagnosis = diagnose(RUNBOOKS["PreemptionThrash"], an_evidence(THRASHING))

    found = urgency_of(diagnosis, an_evidence(THRASHING), Objectives(e2e_p95_seconds=limit), None, cause)

    assert found is not None
    assert found.message.startswith(f"{cause}; ")
