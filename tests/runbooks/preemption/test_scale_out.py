"""More replicas, once no lever is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import THRASHING, UNSUPPORTED, Replica, an_evidence, without
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound, ScaleBound
from kvmedic.runbooks.branches import (
    GIB,
    Assignment,
    HostTerms,
    MemoryShare,
    NoChange,
    Resize,
    Setting,
    Spent,
    Supply,
)
from kvmedic.runbooks.preemption.cap import cap_of, is_capped
from kvmedic.runbooks.preemption.levers import first_that_applies
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.runbooks.preemption.scale_out import (
    add_replicas,
    disaggregation,
    divert_to_disaggregation,
    is_worth_it,
    more_replicas,
    passes_on,
    prefill_share,
    report_spent_levers,
)
from kvmedic.runbooks.preemption.symptoms import pressured_case
from runbooks.cases import CASE

THRASH = an_evidence(*[THRASHING] * 3)
CAP = cap_of(CASE)
ALLOWED = ScaleBound(most=8, step=2)
CUT = LeverBound(Knob.MAX_NUM_SEQS)
CAPPED = replace(CASE, running_max=16, strain=replace(CASE.strain, running_mean=15.5))
OWN = cap_of(CAPPED)
"""What the capped engine holds by its own figures."""
CHEAP = replace(CASE, sequence=replace(CASE.sequence, growth_share=0.1))
ROOMY = Supply(host=HostTerms(Knob.KV_OFFLOADING_SIZE, limit_bytes=128 * GIB))
"""A container with room for KV blocks in its host's memory."""
SMOOTH = replace(CAPPED, strain=replace(CAPPED.strain, stalls_per_request=0.04))


def a_setting(cap: int | None = None, **changes: object) -> Setting:
    return replace(Setting(cap, (CUT,)), **changes)


PASSES: list[tuple[str, Case, Setting, bool]] = [
    ("capped as computed", CAPPED, a_setting(OWN), True),
    ("capped a tenth above it", CAPPED, a_setting(int(OWN * 1.1)), True),
    ("capped further above it", CAPPED, a_setting(int(OWN * 1.1) + 1), False),
    ("more run than the cap allows: it is not in effect", CASE, a_setting(CAP), False),
    ("the cap did not help", CASE, a_setting(64, exhausted=frozenset({Knob.MAX_NUM_SEQS})), True),
    (
        "another lever did not help, no replicas allowed",
        CASE,
        a_setting(64, exhausted=frozenset({Knob.WATERMARK})),
        False,
    ),
    (
        "another lever did not help, replicas allowed",
        CHEAP,
        a_setting(64, exhausted=frozenset({Knob.WATERMARK}), scale_out=ALLOWED),
        True,
    ),
    (
        "more of the GPUs' memory did not help, replicas allowed",
        CHEAP,
        a_setting(64, supply=Supply(raise_failed_before=True), scale_out=ALLOWED),
        True,
    ),
    (
        "more of the GPUs' memory did not help, no replicas allowed",
        CHEAP,
        a_setting(64, supply=Supply(raise_failed_before=True)),
        False,
    ),
    ("a cut would help, replicas are allowed", CASE, a_setting(64, scale_out=ALLOWED), True),
    ("a cut would help, replicas are not allowed", CASE, a_setting(64), False),
    ("preemptions are cheap", CHEAP, a_setting(64, scale_out=ALLOWED), False),
    ("hardly a stall", SMOOTH, a_setting(CAP, scale_out=ALLOWED), False),
]


@pytest.mark.parametrize(
    ("case", "setting", "expected"), [row[1:] for row in PASSES], ids=[row[0] for row in PASSES]
)
def test_the_trouble_is_passed_on_only_where_it_is_real_and_settings_are_spent(case, setting, expected):
    assert passes_on(case, setting) is expected


@pytest.mark.parametrize(("stalls", "expected"), [(0.0487, False), (0.0489, True), (40.0, True)])
def test_stalls_must_cost_more_goodput_than_noise(stalls, expected):
    assert is_worth_it(replace(CASE, strain=replace(CASE.strain, stalls_per_request=stalls))) is expected


def test_an_engine_without_a_cap_is_not_capped():
    assert not is_capped(CAPPED, a_setting(None))


def test_a_lever_that_applies_comes_before_any_replica():
    advice = first_that_applies(CASE, a_setting(64, scale_out=ALLOWED))

    assert isinstance(advice, Assignment)


@pytest.mark.parametrize(
    ("bound", "present", "knob"),
    [
        (
            LeverBound(Knob.GPU_MEMORY_UTILIZATION, 0.8, 0.95, 0.02),
            {"memory": MemoryShare(0.9, is_given=True), "supply": Supply(memory_in_use=0.9)},
            Knob.GPU_MEMORY_UTILIZATION,
        ),
        (LeverBound(Knob.PREFIX_CACHING), {"supply": Supply(caches_prefixes=False)}, Knob.PREFIX_CACHING),
        (
            LeverBound(Knob.CHUNKED_PREFILL),
            {"chunks_prefill": False, "given": {}, "least_step_tokens": 2048},
            Knob.CHUNKED_PREFILL,
        ),
        (LeverBound(Knob.KV_OFFLOADING_SIZE, maximum=32), {"supply": ROOMY}, Knob.KV_OFFLOADING_SIZE),
    ],
    ids=lambda value: value.knob if isinstance(value, LeverBound) else "",
)
def test_a_lever_of_the_supply_that_is_left_comes_before_any_replica(bound, present, knob):
    long_prompts = replace(CAPPED, shortest_tokens=40 * CAPPED.block_tokens)
    setting = replace(a_setting(OWN, scale_out=ALLOWED, **present), levers=(CUT, bound))

    advice = first_that_applies(long_prompts, setting)

    assert isinstance(advice, Assignment)
    assert advice.knob is knob


def test_a_lever_of_the_supply_that_is_spent_lets_replicas_come():
    full = {"memory": MemoryShare(0.9, is_given=True), "supply": Supply(memory_in_use=0.99)}
    lever = LeverBound(Knob.GPU_MEMORY_UTILIZATION, 0.8, 0.95, 0.02)
    setting = replace(a_setting(OWN, scale_out=ALLOWED, **full), levers=(CUT, lever))

    advice = first_that_applies(CAPPED, setting)

    assert isinstance(advice, NoChange)
    assert advice.passes_on
    assert "of a GPU's memory was in use" in advice.message


def test_the_last_word_of_the_levers_says_that_none_is_left():
    left = first_that_applies(CHEAP, a_setting(64, scale_out=ALLOWED))
    spent = first_that_applies(CAPPED, a_setting(OWN, scale_out=ALLOWED))

    assert isinstance(left, NoChange)
    assert isinstance(spent, NoChange)
    assert (left.passes_on, spent.passes_on) == (False, True)


WHY = NoChange(Reason.CAP_WITHOUT_EFFECT, "capped")
SPENT = [
    (a_setting(), 3, Spent("capped; scaleOut is not in spec.levers", may_scale=False)),
    (a_setting(scale_out=ALLOWED), 3, Spent("capped", may_scale=True)),
    (a_setting(scale_out=ALLOWED), 7, Spent("capped", may_scale=True)),
    (
        a_setting(scale_out=ALLOWED),
        8,
        Spent("capped; 8 replicas are there and scaleOut allows 8", may_scale=False),
    ),
    (a_setting(scale_out=ScaleBound()), 3, Spent("capped", may_scale=True)),
    (
        a_setting(scale_out=ScaleBound(), before_scaling=3),
        4,
        Spent("capped; 4 replicas are there and scaleOut allows 4", may_scale=False),
    ),
    (
        a_setting(scale_out=ALLOWED, scaling_failed=True),
        3,
        Spent("capped; more replicas were tried on this template and did not help", may_scale=False),
    ),
]


@pytest.mark.parametrize(("setting", "replicas", "expected"), SPENT)
def test_whether_replicas_may_be_added(setting, replicas, expected):
    assert report_spent_levers(WHY, setting, replicas) == expected


NUMBERS = [
    ("as many as one step adds", Replica(), ALLOWED, 3, 5),
    ("one replica at a time by default", Replica(), ScaleBound(most=8), 3, 4),
    ("no more than the bound", Replica(), ScaleBound(most=4, step=5), 3, 4),
    ("as many as hold what runs and waits", Replica(waiting_mean=60), ScaleBound(most=99, step=99), 3, None),
    (
        "one more where the room would do",
        Replica(waiting_mean=0, running_mean=5, running_max=5),
        ALLOWED,
        3,
        4,
    ),
]


@pytest.mark.parametrize(
    ("replica", "bound", "replicas", "expected"),
    [row[1:] for row in NUMBERS],
    ids=[row[0] for row in NUMBERS],
)
def test_how_many_replicas_there_should_be(replica, bound, replicas, expected):
    evidence = an_evidence(*[replica] * replicas)

    advice = more_replicas(evidence, CAP, a_setting(64, scale_out=bound))

    assert isinstance(advice, Resize)
    assert advice.reason is Reason.REPLICAS_ADDED
    if expected is None:
        demand = replicas * (replica.running_mean + replica.waiting_mean)
        assert advice.replicas * CAP >= demand > (advice.replicas - 1) * CAP
        return
    assert advice.replicas == expected


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (a_setting(), Reason.LEVER_NOT_ALLOWED),
        (a_setting(scale_out=ScaleBound(most=3)), Reason.LEVER_AT_BOUND),
        (a_setting(scale_out=ScaleBound(most=2)), Reason.LEVER_AT_BOUND),
    ],
)
def test_why_no_replica_is_added(setting, reason):
    advice = more_replicas(THRASH, CAP, setting)

    assert isinstance(advice, NoChange)
    assert advice.reason is reason


def test_the_branches_move_on_evidence():
    setting = a_setting(64, scale_out=ALLOWED, gpus=2)

    added, diverted = add_replicas(THRASH, setting), divert_to_disaggregation(THRASH, setting)

    assert isinstance(added, Resize)
    assert isinstance(diverted, NoChange)
    assert (added.replicas, diverted.reason) == (5, Reason.CAPACITY_EXHAUSTED)


def test_evidence_that_does_not_do_for_sizing_adds_nothing():
    few = an_evidence(*[replace(THRASHING, finished=20, preemptions=40, stalls=4)] * 3)

    advice = [
        move(few, a_setting(64, scale_out=ALLOWED)) for move in (add_replicas, divert_to_disaggregation)
    ]

    assert [each.reason for each in advice] == [Reason.TOO_FEW_REQUESTS] * 2


def test_the_advice_has_the_numbers_that_a_split_is_chosen_by():
    case = pressured_case(THRASH)
    assert isinstance(case, Case)

    message = disaggregation(THRASH, case, a_setting(14, gpus=2)).message

    # 0.15 s of prefill and 11 - 1.2 s of decode for each request.
    assert "prefill takes 2% and decode 98% of the time" in message
    assert "of 6 GPUs that is 1 for prefill and 5 for decode" in message
    assert "prompts of 60 and answers of 190 tokens" in message
    assert "3 replicas with 2 GPUs each" in message


@pytest.mark.parametrize(
    ("gpus", "shown"), [(None, "3 replicas, room"), (1, "of 3 GPUs that is 1 for prefill and 2 for decode")]
)
def test_gpus_are_counted_where_they_are_known(gpus, shown):
    assert shown in disaggregation(THRASH, CASE, a_setting(14, gpus=gpus)).message


def test_one_gpu_is_not_divided():
    alone = an_evidence(THRASHING)

    assert "for prefill and" not in disaggregation(alone, CASE, a_setting(14, gpus=1)).message


def test_an_engine_that_does_not_report_its_prefill_times_has_no_share():
    silent = an_evidence(*[without(THRASHING.readings(), Signal.PREFILL_SECONDS, UNSUPPORTED)] * 3)

    assert prefill_share(silent.sizing) is None
    assert "does not report how long it prefills" in disaggregation(silent, CASE, a_setting(14)).message
