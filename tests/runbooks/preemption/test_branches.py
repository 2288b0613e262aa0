"""The runbook on preemption thrash, branch by branch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import (
    AMBIGUOUS,
    CALM,
    IDLE,
    NO_SERIES,
    NOT_A_NUMBER,
    SOURCE_UNAVAILABLE,
    STALE,
    THRASHING,
    TRIGGER,
    UNSUPPORTED,
    Nothing,
    Replica,
    an_evidence,
    an_observation,
    with_number,
    without,
)
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, PodReadings, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import (
    Advice,
    Assignment,
    Diagnosed,
    Diagnosis,
    Evidence,
    NoChange,
    Relief,
    Setting,
    Spent,
    diagnose,
)
from kvmedic.runbooks.preemption.branches import CONTRAST, demand, replace_replica, right_size
from kvmedic.runbooks.preemption.pressure import HELPFUL, NOW, REQUESTS

BRANCHES = RUNBOOKS["PreemptionThrash"]
FREE = Setting(max_num_seqs=None, levers=(LeverBound(Knob.MAX_NUM_SEQS),))
TRIGGERING = Signal.PREEMPTIONS_PER_REQUEST_HELD
GAPS = [
    pytest.param(NO_SERIES, Reason.METRICS_MISSING, id="missing"),
    pytest.param(NOT_A_NUMBER, Reason.METRICS_MISSING, id="not a number"),
    pytest.param(SOURCE_UNAVAILABLE, Reason.SOURCE_UNAVAILABLE, id="source unavailable"),
    pytest.param(AMBIGUOUS, Reason.METRICS_AMBIGUOUS, id="ambiguous"),
    pytest.param(STALE, Reason.METRICS_STALE, id="stale"),
    pytest.param(UNSUPPORTED, Reason.SIGNAL_UNSUPPORTED, id="unsupported"),
]


def diagnosis(*replicas: Replica | PodReadings, **more: object) -> Diagnosis:
    return diagnose(BRANCHES, an_evidence(*replicas, **more))  # type: ignore[arg-type]


def advice(evidence: Evidence, setting: Setting = FREE) -> Advice:
    found = diagnose(BRANCHES, evidence)
    assert isinstance(found, Diagnosed)
    assert found.branch.then is not None
    return found.branch.then(evidence, setting)


# The trigger.
@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (0.0, Reason.HEALTHY),
        (0.49, Reason.HEALTHY),
        (0.5, Reason.HEALTHY),
        (0.51, Reason.FLEET_WIDE_DEMAND),
        (40.0, Reason.FLEET_WIDE_DEMAND),
    ],
    ids=["no preemptions", "below", "at", "above", "far above"],
)
def test_preemptions_per_request_are_the_trigger(held: float, reason: Reason) -> None:
    readings = with_number(replace(THRASHING, stalls=0).readings(), TRIGGERING, held)

    found = diagnosis(readings, readings)

    assert isinstance(found, Diagnosed)
    assert found.reason is reason


@pytest.mark.parametrize(
    ("stalls", "reason"),
    [(0.0, Reason.HEALTHY), (0.05, Reason.HEALTHY), (0.051, Reason.FLEET_WIDE_DEMAND)],
    ids=["none", "at", "above"],
)
def test_answers_that_hang_are_a_trigger_of_their_own(stalls: float, reason: Reason) -> None:
    hanging = replace(THRASHING, preemptions=0, stalls=stalls * THRASHING.finished)

    found = diagnosis(hanging, hanging)

    assert found.reason is reason
    assert reason is Reason.HEALTHY or "0.05 long gaps between tokens per request, limit 0.05" in found.line()


@pytest.mark.parametrize(("why", "_reason"), GAPS)
def test_an_engine_that_does_not_report_what_users_feel_is_judged_by_its_preemptions(
    why: Nothing, _reason: Reason
) -> None:
    queue = replace(CALM, waiting_mean=500, stalls=200).readings()
    silent = without(without(queue, Signal.SILENT_SECONDS_HELD, why), Signal.STALLS_PER_REQUEST_HELD, why)

    assert diagnosis(silent, silent).reason is Reason.HEALTHY
    assert diagnosis(queue, queue).reason is not Reason.HEALTHY


def test_a_hanging_minority_is_named_and_none_of_it_is_replaced() -> None:
    found = diagnosis(replace(CALM, stalls=200), *[CALM] * 3)

    assert found.reason is Reason.PARTIAL_PRESSURE
    assert "1 of 4 replicas are beyond the trigger: llm-0 (0.21 long gaps between tokens" in found.line()


@pytest.mark.parametrize("usage", [0.3, 0.84, 0.85, 0.86, 1.0])
def test_usage_is_reported_and_decides_nothing(usage: float) -> None:
    calm, pressured = (
        with_number(replica.readings(), Signal.KV_CACHE_USAGE_MEAN, usage) for replica in (CALM, THRASHING)
    )

    assert isinstance(found := diagnosis(calm), Diagnosed)
    assert found.reason is Reason.HEALTHY
    facts = demand(an_evidence(pressured))
    if not isinstance(facts, Inconclusive):  # a pool that is hardly used contradicts the lengths
        assert ("not over" in facts[-1].text) is (usage <= TRIGGER.kv_cache_usage_ratio)
        assert facts[-1].limit == TRIGGER.kv_cache_usage_ratio


def test_demand_does_not_apply_to_a_calm_fleet_and_says_what_it_cannot_read() -> None:
    silent = without(CALM.readings(), TRIGGERING, STALE)

    assert demand(an_evidence(CALM, IDLE)) is None
    assert isinstance(demand(an_evidence(CALM, silent)), Inconclusive)


def test_a_fleet_without_traffic_is_healthy_and_says_nothing() -> None:
    found = diagnosis(IDLE, IDLE, IDLE)

    assert isinstance(found, Diagnosed)
    assert (found.reason, found.findings, found.branch.then) == (Reason.HEALTHY, (), None)


def test_a_queue_does_not_hide_preemptions() -> None:
    queue = replace(THRASHING, waiting_mean=500)

    assert diagnosis(queue, queue).reason is Reason.FLEET_WIDE_DEMAND


@pytest.mark.parametrize("others", [CALM, THRASHING], ids=["peers calm", "peers thrash"])
@pytest.mark.parametrize(("why", "reason"), GAPS)
def test_one_replica_that_cannot_be_read_is_never_healthy_and_never_acted_upon(
    why: Nothing, reason: Reason, others: Replica
) -> None:
    silent = without(others.readings(), TRIGGERING, why)

    found = diagnosis(others, silent, others)

    assert isinstance(found, Inconclusive)
    assert found.reason is reason
    assert found.message.startswith(f"llm-1: {TRIGGERING}: ")


def test_a_fleet_without_replicas_is_not_healthy() -> None:
    found = diagnosis()

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.NO_REPLICAS


# Fleet-wide, or not.
@pytest.mark.parametrize(
    ("pressured", "calm", "for_a_cap", "for_more"),
    [
        (1, 0, True, True),
        (2, 0, True, True),
        (2, 1, True, True),
        (2, 2, True, False),
        (2, 6, True, False),
        (2, 7, False, False),
        (3, 1, True, True),
        (12, 38, False, False),
        (13, 37, True, False),
        (33, 17, True, False),
        (34, 16, True, True),
        (66, 34, True, False),
        (67, 33, True, True),
    ],
)
def test_two_replicas_and_a_quarter_are_enough_for_a_cap_and_two_thirds_for_anything_else(
    pressured: int, calm: int, *, for_a_cap: bool, for_more: bool
) -> None:
    evidence = an_evidence(*[THRASHING] * pressured, *[CALM] * calm)
    nothing_left = replace(evidence, spent=Spent("no lever is left", may_scale=True))

    found, more = diagnose(BRANCHES, evidence), diagnose(BRANCHES, nothing_left)

    assert found.reason is (Reason.FLEET_WIDE_DEMAND if for_a_cap else Reason.PARTIAL_PRESSURE)
    assert more.reason is (Reason.CAPACITY_SHORT if for_more else Reason.PARTIAL_PRESSURE)


def test_a_minority_is_given_a_cap_that_calm_replicas_stay_under_and_nothing_else() -> None:
    everything = replace(FREE, levers=(LeverBound(Knob.WATERMARK), *FREE.levers))
    some = an_evidence(THRASHING, THRASHING, CALM, CALM)

    cap, free = advice(some, everything), advice(some)
    assert isinstance(cap, Assignment)
    unknown = without(CALM.readings(), Signal.RUNNING_MEAN, NO_SERIES)
    more = replace(CALM, running_mean=float(cap.value) + 1, running_max=60)
    refused = [advice(an_evidence(THRASHING, THRASHING, CALM, busy), FREE) for busy in (more, unknown)]

    assert cap == free
    assert (cap.knob, cap.value > CALM.running_mean) == (Knob.MAX_NUM_SEQS, True)
    for why in refused:
        assert isinstance(why, NoChange)
        assert why.reason is Reason.PARTIAL_PRESSURE
        assert "would hold up llm-3, which is calm" in why.message


def test_partial_pressure_names_the_replicas() -> None:
    found = diagnosis(CALM, THRASHING, *[CALM] * 6, THRASHING)

    assert isinstance(found, Inconclusive)
    assert "2 of 9 replicas preempt beyond 0.5 per request: llm-1 (1.75 per request), llm-8" in found.message


@pytest.mark.parametrize(
    ("held", "counted"),
    [(0.9, 0.0), (0.9, -5.0), (0.1, 0.0), (0.3, -5.0), (0.0, -5.0), (-1.0, 40.0)],
    ids=["none of them", "fewer than none", "calm, none", "calm, fewer", "zero, fewer", "below zero"],
)
def test_a_ratio_that_its_counter_contradicts_is_neither_healthy_nor_acted_upon(
    held: float, counted: float
) -> None:
    odd = with_number(with_number(THRASHING.readings(), TRIGGERING, held), Signal.PREEMPTIONS, counted)

    found = diagnosis(THRASHING, odd)

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.METRICS_AMBIGUOUS
    assert "llm-1: preemptions" in found.message
    assert found.message.endswith("check that the replica is scraped once")


# One among calm ones.
@pytest.mark.parametrize("peers", [1, 2, 99])
def test_one_pressured_replica_among_calm_ones_is_named_with_its_contrast(peers: int) -> None:
    found = diagnosis(THRASHING, *[CALM] * peers)

    assert isinstance(found, Diagnosed)
    assert found.reason is Reason.ONE_REPLICA_PRESSURED
    assert [finding.subject for finding in found.findings] == ["llm-0", "fleet", "fleet"]
    whole = f"the {peers} peers serve and have" if peers > 1 else "the other one serves and has"
    assert f"{whole} 0.05 at most" in found.line()


@pytest.mark.parametrize(
    ("preemptions", "calm"),
    [(0.24, True), (0.25, True), (0.26, False), (0.5, False)],
    ids=["below half the trigger", "at half", "above half", "at the trigger"],
)
def test_a_peer_near_the_trigger_is_no_contrast(preemptions: float, *, calm: bool) -> None:
    peer = replace(CALM, finished=1000, preemptions=1000 * preemptions)

    found = diagnosis(THRASHING, CALM, peer)

    assert found.reason is (Reason.ONE_REPLICA_PRESSURED if calm else Reason.PARTIAL_PRESSURE)
    assert calm or "llm-2 came near it too (over 0.25)" in found.line()


def test_a_peer_that_was_calm_at_one_moment_only_is_not_calm() -> None:
    restless = with_number(replace(CALM, preemptions=900).readings(), TRIGGERING, 0.0)

    assert diagnosis(THRASHING, restless, CALM).reason is Reason.PARTIAL_PRESSURE


def test_a_peer_that_serves_nothing_says_nothing() -> None:
    found = diagnosis(THRASHING, CALM, IDLE)

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.PARTIAL_PRESSURE
    assert "llm-2 finished no request" in found.message


@pytest.mark.parametrize("signal", sorted(CONTRAST - {TRIGGERING}))
@pytest.mark.parametrize(("why", "reason"), GAPS)
def test_a_gap_in_the_contrast_is_named(signal: Signal, why: Nothing, reason: Reason) -> None:
    found = diagnosis(THRASHING, without(CALM.readings(), signal, why), CALM)

    assert isinstance(found, Inconclusive)
    assert found.reason is reason
    assert found.message.startswith(f"llm-1: {signal}: ")


def test_one_pressured_replica_is_replaced_once_on_the_same_evidence() -> None:
    evidence = an_evidence(CALM, THRASHING, CALM)

    fresh, again = advice(evidence), advice(evidence, replace(FREE, replacing_failed=True))

    assert isinstance(fresh, Relief)
    assert fresh.pod == "llm-1"
    assert "1.75 preemptions per request, limit 0.5; the 2 peers serve" in fresh.message
    assert isinstance(again, NoChange)
    assert again.reason is Reason.LEVER_EXHAUSTED


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (an_evidence(CALM, CALM), Reason.PARTIAL_PRESSURE),
        (an_evidence(THRASHING, IDLE), Reason.PARTIAL_PRESSURE),
        (an_evidence(), Reason.NO_REPLICAS),
    ],
    ids=["calm by now", "peers idle", "no replicas"],
)
def test_advice_to_replace_rests_on_the_evidence_alone(evidence: Evidence, reason: Reason) -> None:
    found = replace_replica(evidence, FREE)

    assert isinstance(found, NoChange)
    assert found.reason is reason


def test_the_findings_name_each_pressured_replica_with_its_numbers() -> None:
    found = diagnosis(THRASHING, CALM, THRASHING)

    assert isinstance(found, Diagnosed)
    assert [finding.subject for finding in found.findings] == ["llm-0", "llm-2", "fleet"]
    assert found.findings[0].observed == pytest.approx(1.75)
    assert found.findings[0].limit == 0.5
    assert "1.75 preemptions per request, limit 0.5" in found.line()


# Evidence for sizing.
@pytest.mark.parametrize("signal", sorted(NOW))
@pytest.mark.parametrize(("why", "reason"), GAPS)
def test_a_gap_in_what_happens_now_is_named(signal: Signal, why: Nothing, reason: Reason) -> None:
    found = diagnosis(THRASHING, without(THRASHING.readings(), signal, why), sizing=[THRASHING] * 2)

    assert isinstance(found, Inconclusive)
    assert found.reason is reason
    assert found.message.startswith(f"llm-1: {signal}: ")


@pytest.mark.parametrize("signal", sorted(REQUESTS))
@pytest.mark.parametrize(("why", "reason"), GAPS)
def test_a_gap_in_what_requests_look_like_is_named(signal: Signal, why: Nothing, reason: Reason) -> None:
    silent = without(THRASHING.readings(), signal, why)

    found = diagnosis(THRASHING, THRASHING, sizing=[THRASHING, silent])

    assert isinstance(found, Inconclusive)
    assert found.reason is reason
    assert found.message.startswith(f"llm-1: {signal}: ")


@pytest.mark.parametrize(("why", "reason"), GAPS)
def test_an_unknown_pool_is_named(why: Nothing, reason: Reason) -> None:
    unknown = replace(THRASHING.readings(), pool=why)

    found = diagnosis(THRASHING, THRASHING, sizing=[THRASHING, unknown])

    assert isinstance(found, Inconclusive)
    assert found.reason is reason
    assert found.message.startswith("llm-1: KV-cache pool: ")


def test_what_happens_now_is_asked_of_pressured_replicas_only() -> None:
    half_blind = without(CALM.readings(), Signal.INTER_TOKEN_SECONDS, UNSUPPORTED)

    found = diagnosis(THRASHING, THRASHING, half_blind, sizing=[THRASHING, THRASHING, half_blind])

    assert found.reason is Reason.FLEET_WIDE_DEMAND


@pytest.mark.parametrize("signal", sorted(HELPFUL))
@pytest.mark.parametrize("why", [UNSUPPORTED, NO_SERIES], ids=["unsupported", "missing"])
def test_signals_that_only_help_are_not_needed(signal: Signal, why: Nothing) -> None:
    silent = without(THRASHING.readings(), signal, why)

    assert diagnosis(silent, silent).reason is Reason.FLEET_WIDE_DEMAND


# Advice.
def test_a_thrashing_fleet_gets_one_cap_with_the_numbers_behind_it() -> None:
    found = advice(an_evidence(THRASHING, THRASHING, THRASHING))

    assert isinstance(found, Assignment)
    assert (found.knob, found.value, found.reason) == (Knob.MAX_NUM_SEQS, 21, Reason.CAP_RIGHT_SIZED)
    assert "149 blocks" in found.message
    assert "stalls over 2 s per request 0.07 -> 0.01" in found.message


def test_a_calm_replica_does_not_water_the_strain_down() -> None:
    alone = advice(an_evidence(THRASHING, THRASHING, trigger=TRIGGER))
    with_calm = advice(an_evidence(THRASHING, THRASHING, replace(CALM, finished=960)))

    assert isinstance(alone, Assignment)
    assert isinstance(with_calm, Assignment)
    assert with_calm.value == alone.value


def test_a_lever_that_did_not_help_is_not_tried_again() -> None:
    tried = replace(FREE, exhausted=frozenset({Knob.MAX_NUM_SEQS}))

    found = advice(an_evidence(THRASHING), tried)

    assert isinstance(found, NoChange)
    assert found.reason is Reason.LEVER_EXHAUSTED


def test_another_lever_that_did_not_help_changes_nothing() -> None:
    tried = replace(FREE, exhausted=frozenset({Knob.WATERMARK}))

    assert isinstance(advice(an_evidence(THRASHING), tried), Assignment)


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(an_evidence(), id="no replicas"),
        pytest.param(an_evidence(replace(THRASHING, models=("a", "b"))), id="a doubt"),
        pytest.param(
            Evidence(an_observation(), an_observation(THRASHING), TRIGGER),
            id="looks that do not cover the same",
        ),
    ],
)
def test_advice_without_evidence_is_no_change(evidence: Evidence) -> None:
    assert isinstance(right_size(evidence, FREE), NoChange)


def test_advice_for_a_fleet_that_is_calm_by_now_is_no_change() -> None:
    found = right_size(an_evidence(CALM, CALM), FREE)

    assert isinstance(found, NoChange)
    assert found.reason is Reason.NO_REPLICAS
