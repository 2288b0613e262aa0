"""Whether a calm fleet would carry its load with less."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import (
    CALM,
    IDLE,
    NO_SERIES,
    NOT_A_NUMBER,
    STALE,
    THRASHING,
    Replica,
    an_evidence,
    spread,
    without,
)
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Pool, Signal
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.plan import ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.model.status import Attempt, FailedAttempt, Load, Record, TemporaryChange
from kvmedic.runbooks.branches import NoChange, Resize, Setting
from kvmedic.runbooks.preemption.cap_size import SAFEST_FIT, cap_at
from kvmedic.runbooks.preemption.pressure import Case, size_fleet
from kvmedic.runbooks.preemption.restore import (
    Fits,
    failed_restore,
    fewer_replicas,
    without_host_memory,
    without_one_replica,
)
from kvmedic.verdict.comparison import LIGHTER
from run_builder import NOW, STEP, a_failure

TARGET = ObjectRef("Deployment", "llm")
SETTING = Setting(64, ())
THEN = Load(running=22.8, tokens_per_second=THRASHING.generated / 300, prompt_tokens=60, output_tokens=190)
"""What thrashing replicas carried."""
WINDOW = 1800 / 300
"""The sizing window is as many times the trigger's: the builders count the same requests in both."""


def held(before: int = 2, after: int = 3, load: Load | None = THEN) -> TemporaryChange:
    step = ReplicasStep(TARGET, None, before, after, "template", Reason.REPLICAS_ADDED)
    return TemporaryChange(step, "run", "uid-1", NOW, before, load)


def light(share: float, **changes: object) -> Replica:
    """Return a calm replica that generates a share of what a thrashing one did, over the sizing window."""
    running = 22.8 * share
    calm = replace(
        CALM,
        finished=960 * share * WINDOW,
        preemptions=0,
        running_mean=running,
        running_max=2 * running,
        usage_mean=min(1.0, running * 4.9 / 149),
    )
    return replace(calm, **changes)


def room() -> int:
    evidence = an_evidence(*[light(0.3)] * 3)
    case = size_fleet(evidence, evidence.burn.pods)
    assert isinstance(case, Case)
    return cap_at(case.blocks, case.sequence, SAFEST_FIT)


def peak(running: float) -> float:
    return running + SAFEST_FIT * sqrt(running)


def asked(
    *replicas: Replica,
    of: TemporaryChange | None = None,
    setting: Setting = SETTING,
    template: str = "template",
):
    return fewer_replicas(an_evidence(*replicas), of or held(), setting, template)


def test_an_idle_fleet_needs_none_of_them():
    assert asked(*[IDLE] * 3) == Resize(
        2, Reason.REPLICAS_GIVEN_BACK, "0 sequences ran or waited at once, no more than 2 replicas"
    )


@pytest.mark.parametrize(("at_once", "fits"), [(2, True), (3, False)])
def test_one_sequence_for_each_replica_needs_no_sizing(at_once, fits):
    busy = replace(IDLE, running_max=at_once)

    assert isinstance(asked(busy, IDLE, IDLE), Resize) is fits


def test_a_load_that_fell_far_fits_fewer():
    # Three replicas at 30 % are two at 45 % of what was too much for each.
    advice = asked(*[light(0.3)] * 3)

    assert isinstance(advice, Resize)
    assert advice.replicas == 2
    assert peak(22.8 * 0.45) <= room()
    assert f"have room for {room()}" in advice.message


@given(share=st.floats(0.15, 0.66))
@settings(max_examples=50, deadline=None)
def test_fewer_are_never_predicted_to_carry_what_does_not_fit_or_was_too_much(share):
    advice = asked(*[light(share)] * 3)

    each = 1.5 * share
    fits = each <= LIGHTER and peak(22.8 * each) <= room()
    near = abs(peak(22.8 * each) - room()) < 1e-6 or abs(each - LIGHTER) < 1e-6
    assert near or isinstance(advice, Resize) is fits


def test_a_load_as_it_was_keeps_them():
    advice = asked(*[light(2 / 3)] * 3)

    assert isinstance(advice, NoChange)
    assert advice.reason is Reason.TEMPORARY_CHANGE_HELD
    assert "too near to what 2 replicas could not carry" in advice.message


def test_as_many_are_given_back_as_the_load_allows():
    # Six replicas at 30 %: at 45 % of then each of four fits, at 60 % each of three does not.
    advice = asked(*[light(0.3)] * 6, of=held(2, 6))

    assert isinstance(advice, Resize)
    assert advice.replicas == next(n for n in range(2, 6) if peak(22.8 * 0.3 * 6 / n) <= room())
    assert 2 < advice.replicas < 6


def test_an_engines_own_cap_is_room_too():
    advice = asked(*[light(0.3)] * 3, setting=Setting(5, ()))

    assert isinstance(advice, NoChange)
    assert "have room for 5" in advice.message


MOVED = [
    ("another template", {"template": "another"}),
    ("longer answers then", {"of": held(load=replace(THEN, output_tokens=400))}),
    ("shorter prompts then", {"of": held(load=replace(THEN, prompt_tokens=40))}),
    ("nothing measured then", {"of": held(load=None)}),
    ("nothing generated then", {"of": held(load=replace(THEN, tokens_per_second=0))}),
]


@pytest.mark.parametrize("how", [row[1] for row in MOVED], ids=[row[0] for row in MOVED])
def test_where_configuration_or_lengths_moved_half_as_much_again_cannot_be_predicted(how):
    advice = asked(*[light(0.3)] * 3, **how)

    assert isinstance(advice, NoChange)
    assert "not known" in advice.message


def test_where_the_configuration_moved_a_little_more_each_is_predicted_by_the_longest_steps():
    # Eleven instead of twelve: 12/11 as much load each, 6/5 as long steps at most, so 22.8 x 0.3 x 1.5.
    advice = asked(*[light(0.3)] * 12, of=held(11, 12), template="another")

    assert isinstance(advice, Resize)
    assert advice.replicas == 11
    assert "would run 10.3 sequences each" in advice.message


def test_a_larger_cache_lets_go_of_what_the_smaller_needed():
    large = Pool(4 * 149, 32)
    loaded = [light(0.6, pool=large, usage_mean=0.11)] * 12

    assert isinstance(asked(*[light(0.6)] * 12, of=held(11, 12), template="another"), NoChange)
    assert isinstance(asked(*loaded, of=held(11, 12), template="another"), Resize)


@pytest.mark.parametrize("signal", [Signal.RUNNING_MAX, Signal.GENERATED_TOKENS, Signal.WAITING_MEAN])
@pytest.mark.parametrize(
    ("why", "reason"), [(NO_SERIES, Reason.METRICS_MISSING), (STALE, Reason.METRICS_STALE)]
)
def test_what_cannot_be_read_keeps_them(signal, why, reason):
    silent = without(light(0.3).readings(), signal, why)
    evidence = an_evidence(light(0.3), light(0.3), silent)

    advice = fewer_replicas(evidence, held(), SETTING, "template")

    assert isinstance(advice, NoChange)
    assert advice.reason is reason


def test_too_few_requests_for_their_lengths_keep_them():
    advice = asked(*[light(0.3, finished=20, stalls=0)] * 3)

    assert isinstance(advice, NoChange)
    assert advice.reason is Reason.TOO_FEW_REQUESTS


def a_setting(**changes: object) -> TemporaryChange:
    step = replace(STEP, knob=Knob.KV_OFFLOADING_SIZE, before=None, after="32", after_template="template")
    return replace(TemporaryChange(step, "run", "uid-1", NOW, load=THEN), **changes)


def alone(
    *replicas: Replica,
    of: TemporaryChange | None = None,
    setting: Setting = SETTING,
    template: str = "template",
    failed: FailedAttempt | None = None,
):
    return without_host_memory(an_evidence(*replicas), of or a_setting(), setting, template, failed)


def after(load: Load | None, template: str = "template", at: datetime = NOW) -> FailedAttempt:
    """A way back that did not hold under a load."""
    return a_failure(Attempt.GIVE_BACK, a_setting().knob, template, at=at, load=load)


@pytest.mark.parametrize(
    ("failed", "counts"),
    [
        (after(None), True),
        (after(None, "another"), False),
        (after(None, at=NOW - timedelta(seconds=1)), False),
    ],
    ids=["on this template", "another template", "of an earlier one"],
)
def test_a_way_back_counts_for_its_setting_and_its_template_alone(failed, counts):
    found = failed_restore(Record(failed_attempts=(failed,)), a_setting(), "template")

    assert found == (failed if counts else None)


def test_an_idle_fleet_does_without_host_memory():
    assert alone(*[IDLE] * 3) == Fits("0 sequences ran or waited at once on 3 replicas")


@given(share=st.floats(0.15, 1.0))
@settings(max_examples=50, deadline=None)
def test_host_memory_is_never_predicted_to_be_spare_where_the_load_does_not_fit_or_was_too_much(share):
    advice = alone(*[light(share)] * 3)

    fits = share <= LIGHTER and peak(22.8 * share) <= room()
    near = abs(peak(22.8 * share) - room()) < 1e-6 or abs(share - LIGHTER) < 1e-6
    assert near or isinstance(advice, Fits) is fits


def test_more_sequences_than_the_load_of_then_would_say_count():
    # It generates 30 % of then, and runs more than 30 % of the sequences all the same.
    many = room() + 1.0
    crowded = light(0.3, running_mean=many, running_max=2 * many, usage_mean=many * 4.9 / 149)

    advice = alone(*[crowded] * 3)

    assert isinstance(advice, NoChange)
    assert advice.reason is Reason.TEMPORARY_CHANGE_HELD


def test_a_load_as_it_was_keeps_host_memory():
    advice = alone(*[light(0.81)] * 3)

    assert isinstance(advice, NoChange)
    assert "too near to what the fleet could not carry without it" in advice.message


LOAN_MOVED = [
    ("another template", {"template": "another"}),
    ("longer answers then", {"of": a_setting(load=replace(THEN, output_tokens=400))}),
    ("nothing measured then", {"of": a_setting(load=None)}),
    ("nothing generated then", {"of": a_setting(load=replace(THEN, tokens_per_second=0))}),
]


@pytest.mark.parametrize("how", [row[1] for row in LOAN_MOVED], ids=[row[0] for row in LOAN_MOVED])
def test_where_something_moved_prompts_that_are_computed_again_make_longer_steps(how):
    # 60 tokens for answers of 190 are 1.32 times the tokens of a step, so steps up to 19 times as long.
    few, many = (alone(*[light(share)] * 3, **how) for share in (0.02, 0.3))

    assert isinstance(few, Fits)
    assert isinstance(many, NoChange)


@pytest.mark.parametrize("ask", [asked, alone], ids=["replicas", "host memory"])
def test_a_fleet_on_which_requests_wait_keeps_what_it_has(ask):
    advice = ask(*[light(0.3, waiting_mean=1.0)] * 3)

    assert isinstance(advice, NoChange)
    assert advice.message == "3 requests wait on 3 replicas"


def test_where_something_moved_and_prompts_are_long_nobody_knows():
    long = light(0.3, prompts=spread(300), usage_mean=22.8 * 0.3 * 14.5 / 149)

    advice = alone(*[long] * 3, template="another")

    assert isinstance(advice, NoChange)
    assert "not known" in advice.message


@pytest.mark.parametrize(
    ("load", "fits"),
    [
        (replace(THEN, tokens_per_second=THEN.tokens_per_second * 0.4), True),
        (replace(THEN, tokens_per_second=THEN.tokens_per_second * 0.35), False),
        (replace(THEN, tokens_per_second=0), False),
        (None, False),
        (replace(THEN, tokens_per_second=1.0, output_tokens=400), True),
    ],
    ids=[
        "clearly lighter since",
        "as heavy",
        "nothing was generated then",
        "nobody knows how heavy it was",
        "other lengths",
    ],
)
def test_what_did_not_hold_is_not_tried_again_on_the_same_evidence(load, fits):
    advice = alone(*[light(0.3)] * 3, failed=after(load))

    assert isinstance(advice, Fits) is fits
    assert fits or "restoring it did not hold" in advice.message


@pytest.mark.parametrize("signal", [Signal.RUNNING_MAX, Signal.GENERATED_TOKENS, Signal.WAITING_MEAN])
@pytest.mark.parametrize("why", [NO_SERIES, STALE, NOT_A_NUMBER])
def test_what_cannot_be_read_keeps_host_memory(signal, why):
    silent = without(light(0.3).readings(), signal, why)

    evidence = an_evidence(light(0.3), light(0.3), silent)
    advice = without_host_memory(evidence, a_setting(), SETTING, "template", None)

    assert isinstance(advice, NoChange)


@pytest.mark.parametrize(
    ("load", "fits"), [(None, False), (THEN, True)], ids=["nobody knows how heavy it was", "lighter since"]
)
def test_an_idle_fleet_that_could_not_do_without_is_not_asked_again_on_the_same_evidence(load, fits):
    advice = alone(*[IDLE] * 3, failed=after(load))

    assert isinstance(advice, Fits) is fits


def short(*replicas: Replica, setting: Setting = SETTING):
    return without_one_replica(an_evidence(*replicas), setting)


def test_an_idle_fleet_carries_on_without_one_replica():
    assert isinstance(short(IDLE, IDLE), Fits)


def test_a_light_load_fits_the_others_also_where_there_is_but_one():
    found = short(*[light(0.1)] * 2)

    assert isinstance(found, Fits)
    assert found.message.startswith("1 replicas would run")


def test_what_thrashes_never_carries_on_without_one_replica():
    found = short(*[THRASHING] * 3)

    assert isinstance(found, NoChange)


@given(share=st.floats(0.1, 1.0), replicas=st.integers(2, 6))
@settings(max_examples=50, deadline=None)
def test_the_others_are_never_predicted_to_run_more_than_they_hold(share, replicas):
    found = short(*[light(share)] * replicas)

    if isinstance(found, Fits) and "would run" in found.message:
        assert peak(22.8 * share * replicas / (replicas - 1)) <= room()
