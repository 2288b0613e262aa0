"""Requests that wait: for the cap, for the cache, or for nobody knows what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import CALM, NO_SERIES, NOW, STALE, TRIGGER, Replica, an_evidence, spread, with_number, without
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound, ScaleBound
from kvmedic.model.status import SizedCap
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Assignment, Diagnosed, Evidence, NoChange, Resize, Setting, diagnose
from kvmedic.runbooks.preemption.branches import right_size
from kvmedic.runbooks.preemption.queueing import HELD_BY, SEATS, cap_too_low, queue_behind, raise_cap
from kvmedic.runbooks.preemption.scale_out import add_replicas
from kvmedic.runbooks.preemption.symptoms import waiting_replicas
from runbooks.incidents import BEHIND_A_FULL_CACHE, BEHIND_A_LOW_CAP, BEHIND_SOMETHING_ELSE, NOTHING_LEFT

ROOM = 21
"""Sequences that the pool holds half of the time."""
TURNS = ((7200, 24), (7200, 12), (40_000, 40))
"""A cap of 24 was lowered to 12 two hours ago, and twice as many fit at night."""
LOW = an_evidence(*[BEHIND_A_LOW_CAP] * 3)
FREE = Setting(12, (LeverBound(Knob.MAX_NUM_SEQS),), most_sequences=12, raise_limit=64)


def reason_of(evidence: Evidence) -> Reason:
    return diagnose(RUNBOOKS["PreemptionThrash"], evidence).reason


@pytest.mark.parametrize(
    ("silent", "waiting", "waits"),
    [(5.0, 40, False), (5.1, 40, True), (5.1, 0.5, False), (5.1, 0.6, True)],
    ids=["at the trigger", "above", "hardly a queue", "a queue"],
)
def test_who_waits_for_long_in_a_queue_triggers(silent: float, waiting: float, *, waits: bool) -> None:
    queue = with_number(
        replace(BEHIND_A_LOW_CAP, waiting_mean=waiting).readings(), Signal.SILENT_SECONDS_HELD, silent
    )

    evidence = an_evidence(queue, queue)

    assert bool(waiting_replicas(evidence)) is waits
    assert reason_of(evidence) is (Reason.CAP_TOO_LOW if waits else Reason.HEALTHY)


def test_the_trigger_is_the_specs() -> None:
    patient = replace(TRIGGER, silent_seconds=13)

    assert reason_of(an_evidence(BEHIND_A_LOW_CAP, trigger=patient)) is Reason.HEALTHY


def test_a_queue_on_few_replicas_is_named_and_nothing_is_changed() -> None:
    found = diagnose(RUNBOOKS["PreemptionThrash"], an_evidence(BEHIND_A_LOW_CAP, CALM, CALM))

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.PARTIAL_PRESSURE
    assert "1 of 3 replicas keep users waiting: llm-0: requests wait 12.7 s on average" in found.message


def test_a_queue_that_nothing_explains_changes_nothing_and_says_the_figures() -> None:
    found = diagnose(RUNBOOKS["PreemptionThrash"], an_evidence(*[BEHIND_SOMETHING_ELSE] * 2))

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.QUEUE_UNEXPLAINED
    assert "KV-cache usage is 0.44" in found.message


@pytest.mark.parametrize("why", [NO_SERIES, STALE], ids=["missing", "stale"])
@pytest.mark.parametrize("signal", sorted(HELD_BY - {Signal.WAITING_MEAN, Signal.PREEMPTIONS}))
def test_a_gap_in_what_requests_wait_for_is_named(signal: Signal, why: object) -> None:
    silent = without(BEHIND_A_LOW_CAP.readings(), signal, why)  # type: ignore[arg-type]

    found = diagnose(RUNBOOKS["PreemptionThrash"], an_evidence(silent, silent))

    assert isinstance(found, Inconclusive)
    assert f"llm-0, llm-1: {signal}: " in found.message


@pytest.mark.parametrize("signal", sorted(SEATS))
def test_a_cap_must_have_bound_for_long(signal: Signal) -> None:
    before = with_number(BEHIND_A_LOW_CAP.readings(), Signal.RUNNING_LOW, 4.0)

    just_now = an_evidence(BEHIND_A_LOW_CAP, sizing=[before])
    unknown = an_evidence(BEHIND_A_LOW_CAP, sizing=[without(before, signal, NO_SERIES)])

    assert reason_of(just_now) is Reason.QUEUE_UNEXPLAINED
    assert reason_of(unknown) is Reason.METRICS_MISSING


@pytest.mark.parametrize(
    ("low", "reason"),
    [
        pytest.param(11, Reason.CAP_TOO_LOW, id="a seat is free after a step"),
        pytest.param(9, Reason.QUEUE_UNEXPLAINED, id="a quarter is free at one moment in five"),
    ],
)
def test_the_gauge_of_a_cap_that_binds_shows_a_free_seat(low: float, reason: Reason) -> None:
    seen = with_number(BEHIND_A_LOW_CAP.readings(), Signal.RUNNING_LOW, low)

    assert reason_of(an_evidence(*[seen] * 3)) is reason


def test_a_large_cap_that_was_never_seen_full_is_raised() -> None:
    advice = raise_cap(LOW, replace(FREE, most_sequences=13))

    assert isinstance(advice, Assignment)
    assert advice.value == ROOM


def test_lengths_that_are_not_known_raise_nothing() -> None:
    few = replace(BEHIND_A_LOW_CAP, models=("a", "b"))

    assert isinstance(found := cap_too_low(an_evidence(few)), Inconclusive)
    assert found.reason is Reason.REPLICAS_DIFFER


def test_a_cap_that_suits_clients_who_wait_for_their_answers_is_not_raised() -> None:
    """They would be served no better, and the next cut would come back to where it was."""
    others = replace(BEHIND_A_LOW_CAP, running_mean=15, running_max=15, usage_mean=0.72)
    same_clients = replace(others, in_flight_change=0)

    assert reason_of(an_evidence(same_clients)) is Reason.CAPACITY_SHORT
    assert reason_of(an_evidence(others)) is Reason.CAP_TOO_LOW


def test_a_cap_is_raised_to_what_the_cache_holds() -> None:
    found = diagnose(RUNBOOKS["PreemptionThrash"], LOW)

    assert isinstance(found, Diagnosed)
    assert "up to 12 sequences run in an engine while 41 wait" in found.line()
    advice = raise_cap(LOW, FREE)
    assert isinstance(advice, Assignment)
    assert (advice.knob, advice.value, advice.reason) == (Knob.MAX_NUM_SEQS, ROOM, Reason.CAP_RAISED)
    assert "149 blocks hold 21 sequences of 7.0, and 12 may run" in advice.message
    assert "predicted at most x1." in advice.message


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        pytest.param(replace(FREE, raise_limit=15), 15, id="as far as is allowed"),
        pytest.param(replace(FREE, cap_rooms=TURNS), 40, id="the mix turns: the day's most"),
        pytest.param(replace(FREE, cap_rooms=TURNS[:2]), 24, id="the mix turns: as before it was lowered"),
        pytest.param(replace(FREE, cap_rooms=((7200, 12),)), ROOM, id="a mix that moved once"),
        pytest.param(replace(FREE, raise_limit=14), Reason.LEVER_AT_BOUND, id="too little is allowed"),
        pytest.param(replace(FREE, raise_limit=None), Reason.LEVER_NOT_ALLOWED, id="no raise is allowed"),
        pytest.param(replace(FREE, levers=()), Reason.LEVER_NOT_ALLOWED, id="the lever is not allowed"),
        pytest.param(replace(FREE, raise_failed=True), Reason.LEVER_EXHAUSTED, id="it failed before"),
        pytest.param(replace(FREE, exhausted=frozenset({Knob.MAX_NUM_SEQS})), ROOM, id="a cut failed before"),
        pytest.param(
            replace(FREE, most_sequences=None), Reason.PRESENT_VALUE_UNKNOWN, id="nobody knows the cap"
        ),
        pytest.param(
            replace(FREE, most_sequences=256), Reason.LEVER_WITHOUT_EFFECT, id="another limit binds"
        ),
        pytest.param(
            replace(FREE, refused={Knob.MAX_NUM_SEQS: NoChange(Reason.FLAG_NOT_EDITABLE, "")}),
            Reason.FLAG_NOT_EDITABLE,
            id="the flag cannot be edited",
        ),
    ],
)
def test_a_raise_stays_within_what_is_allowed(setting: Setting, value: int | Reason) -> None:
    advice = raise_cap(LOW, setting)
    more = raise_cap(LOW, replace(setting, scale_out=ScaleBound()))

    assert (advice.value if isinstance(advice, Assignment) else advice.reason) == value
    if isinstance(advice, NoChange):
        assert isinstance(more, NoChange)
        assert (advice.passes_on, more.passes_on) == (False, True)


@pytest.mark.parametrize(
    ("replica", "setting", "expected"),
    [
        pytest.param(BEHIND_A_FULL_CACHE, replace(FREE, scale_out=ScaleBound()), 4, id="one more"),
        pytest.param(
            replace(BEHIND_A_FULL_CACHE, models=("a", "b")),
            replace(FREE, max_num_seqs=None, scale_out=ScaleBound(9, 5)),
            8,
            id="whatever the lengths are, as many as hold what runs and waits",
        ),
        pytest.param(BEHIND_A_FULL_CACHE, FREE, Reason.LEVER_NOT_ALLOWED, id="not allowed"),
        pytest.param(
            BEHIND_A_FULL_CACHE,
            replace(FREE, scale_out=ScaleBound(), scaling_failed=True),
            Reason.LEVER_EXHAUSTED,
            id="it failed before",
        ),
    ],
)
def test_a_full_fleet_with_a_queue_gets_replicas(
    replica: Replica, setting: Setting, expected: int | Reason
) -> None:
    advice = add_replicas(an_evidence(*[replica] * 3), setting)

    assert (advice.replicas if isinstance(advice, Resize) else advice.reason) == expected
    assert (
        not isinstance(advice, NoChange)
        or "sequences run or wait" in advice.message
        or setting.scaling_failed
    )


def test_where_no_lever_is_left_for_a_queue_capacity_is_exhausted() -> None:
    assert reason_of(replace(LOW, spent=NOTHING_LEFT)) is Reason.CAPACITY_EXHAUSTED


OURS = SizedCap("rev", "12", NOW)


@pytest.mark.parametrize(
    ("evidence", "ours", "named"),
    [
        pytest.param(LOW, OURS, True, id="ours"),
        pytest.param(LOW, None, False, id="none of ours"),
        pytest.param(LOW, replace(OURS, revision="other"), False, id="of another template"),
        pytest.param(LOW, replace(OURS, cap="24"), False, id="another cap"),
        pytest.param(LOW, replace(OURS, cap="a dozen"), False, id="a cap that is no number"),
        pytest.param(an_evidence(CALM), OURS, False, id="no queue"),
        pytest.param(
            an_evidence(BEHIND_SOMETHING_ELSE), replace(OURS, cap="14"), False, id="it does not bind"
        ),
    ],
)
def test_a_queue_behind_a_cap_of_ours_says_so_by_name(
    evidence: Evidence, ours: SizedCap | None, *, named: bool
) -> None:
    text = queue_behind(evidence, ours, "rev")

    assert text == (
        "requests queue behind the cap of 12 that kvmedic set at 2026-03-01T03:00Z" if named else ""
    )


CHEAP = replace(
    BEHIND_A_FULL_CACHE,
    preemptions=960,
    stalls=0,
    prompts=spread(2000),
    outputs=spread(60),
    running_mean=3,
    running_max=4,
)
"""It preempts, which costs little, and users wait."""


@pytest.mark.parametrize(
    ("scale_out", "waiting", "passes_on"),
    [(ScaleBound(), 40, True), (None, 40, False), (ScaleBound(), 0.4, False)],
    ids=["replicas may be added", "they may not", "nobody waits"],
)
def test_thrash_that_no_lever_helps_gets_replicas_where_users_wait(
    scale_out: ScaleBound | None, waiting: float, *, passes_on: bool
) -> None:
    advice = right_size(an_evidence(replace(CHEAP, waiting_mean=waiting)), replace(FREE, scale_out=scale_out))

    assert isinstance(advice, NoChange)
    assert (advice.reason, advice.passes_on) == (Reason.PREEMPTIONS_CHEAP, passes_on)
