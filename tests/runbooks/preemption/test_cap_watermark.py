"""The watermark."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest

from kvmedic.model.engine import Knob, Scalar
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Assignment, NoChange, Setting
from kvmedic.runbooks.preemption.cap import (
    DESIRED_LEFT,
    LEAST_GROWTH,
    MOST_KEPT,
    MOSTLY_GROWTH,
    preemption_share_at,
    watermark_of,
)
from kvmedic.runbooks.preemption.pressure import Case
from runbooks.cases import CASE, propose

CAP, MARK = LeverBound(Knob.MAX_NUM_SEQS), LeverBound(Knob.WATERMARK)
PROMPTS = replace(
    CASE,
    sequence=replace(CASE.sequence, mean_blocks=86, deviation_blocks=60, growth_share=0.13),
    strain=replace(CASE.strain, running_mean=19, preemptions_per_request=0.18, output_tokens=212),
    blocks=1500,
    block_tokens=16,
    prompt_tokens=1193,
    output_tokens=212,
)
"""Of 24,000 tokens an output is 0.9 %; leaving a tenth of the preemptions takes 2.3 times that."""
DESIRED = 0.021


def growing(share: float) -> Case:
    """Return the case with another growth share; few stalls, so that no cap is worth it."""
    smooth = replace(PROMPTS.strain, stalls_per_request=0.0, prefill_extra_seconds=0.0)
    return replace(PROMPTS, strain=smooth, sequence=replace(PROMPTS.sequence, growth_share=share))


def setting(*levers: LeverBound, given: dict[Knob, Scalar] | None = None, **more: object) -> Setting:
    return Setting(None, levers or (CAP, MARK), given=given, **more)  # type: ignore[arg-type]


def test_where_prompts_fill_the_cache_what_one_answer_takes_is_kept_free() -> None:
    found = propose(Knob.WATERMARK, PROMPTS, setting())

    assert isinstance(found, Assignment)
    assert (found.knob, found.value, found.reason) == (Knob.WATERMARK, DESIRED, Reason.SETTING_ADJUSTED)
    assert "preemptions per request 0.18 -> 0.02" in found.message


def test_the_watermark_leaves_as_many_preemptions_as_it_is_made_for() -> None:
    assert DESIRED_LEFT * 0.9 < preemption_share_at(PROMPTS, watermark_of(PROMPTS)) <= DESIRED_LEFT
    assert preemption_share_at(PROMPTS, 212 / 24_000) == pytest.approx(exp(-1))
    assert preemption_share_at(PROMPTS, 0) == 1


@pytest.mark.parametrize(
    ("growth", "reason"),
    [
        (LEAST_GROWTH - 0.01, Reason.SETTING_ADJUSTED),
        (LEAST_GROWTH + 0.01, Reason.SETTING_ADJUSTED),
        (MOSTLY_GROWTH, Reason.SETTING_ADJUSTED),
        (MOSTLY_GROWTH + 0.01, Reason.LEVER_WITHOUT_EFFECT),
    ],
    ids=["prompts dominate", "a cap is not worth it", "half is output", "outputs dominate"],
)
def test_sequences_that_outgrow_it_are_left_alone(growth: float, reason: Reason) -> None:
    assert propose(Knob.WATERMARK, growing(growth), setting()).reason is reason


@pytest.mark.parametrize("spread", [0.0, 0.5, 0.99], ids=["equal outputs", "nobody knows", "nearly varied"])
def test_outputs_that_end_in_waves_outgrow_it_too(spread: float) -> None:
    found = propose(Knob.WATERMARK, replace(PROMPTS, spread=spread), setting())

    assert found.reason is Reason.LEVER_WITHOUT_EFFECT
    assert "waves" in found.message


HALF = replace(CASE, sequence=replace(CASE.sequence, growth_share=0.4))
"""A cap helps here, and a watermark is second best."""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (setting(CAP, MARK), Reason.BETTER_LEVER),
        (setting(MARK, CAP), Reason.BETTER_LEVER),
        (setting(MARK), Reason.SETTING_ADJUSTED),
        (setting(CAP, MARK, exhausted=frozenset({Knob.MAX_NUM_SEQS})), Reason.SETTING_ADJUSTED),
        (
            setting(CAP, MARK, refused={Knob.MAX_NUM_SEQS: NoChange(Reason.FLAG_NOT_EDITABLE, "")}),
            Reason.SETTING_ADJUSTED,
        ),
    ],
    ids=["a cap first", "a cap later", "no cap allowed", "a cap that did not help", "no cap to be set"],
)
def test_a_cap_that_helps_more_goes_before(given: Setting, reason: Reason) -> None:
    roomy = replace(HALF, blocks=300, strain=replace(HALF.strain, running_mean=46), running_max=64)

    assert propose(Knob.WATERMARK, roomy, given).reason is reason


@pytest.mark.parametrize(
    ("maximum", "value"),
    [(None, DESIRED), (0.5, DESIRED), (DESIRED, DESIRED), (0.01, 0.01)],
    ids=["no bound", "far above", "at it", "below"],
)
def test_the_levers_bound_is_kept(maximum: float | None, value: float) -> None:
    found = propose(Knob.WATERMARK, PROMPTS, setting(CAP, LeverBound(Knob.WATERMARK, maximum=maximum)))

    assert isinstance(found, Assignment)
    assert found.value == value


def test_a_bound_that_leaves_most_preemptions_is_not_worth_a_rollout() -> None:
    found = propose(Knob.WATERMARK, PROMPTS, setting(CAP, LeverBound(Knob.WATERMARK, maximum=0.006)))

    assert found.reason is Reason.GAIN_WITHIN_NOISE
    assert "would leave 51% of the preemptions" in found.message


def test_more_than_a_tenth_of_the_cache_is_never_kept_free() -> None:
    small = replace(PROMPTS, blocks=200)

    found = propose(Knob.WATERMARK, small, setting())

    assert watermark_of(small) > MOST_KEPT
    assert isinstance(found, Assignment)
    assert found.value == MOST_KEPT


@pytest.mark.parametrize(
    ("present", "reason"),
    [
        (DESIRED - 0.001, Reason.SETTING_ADJUSTED),
        (DESIRED, Reason.LEVER_WITHOUT_EFFECT),
        (0.3, Reason.LEVER_WITHOUT_EFFECT),
    ],
    ids=["less", "as much", "more"],
)
def test_what_is_kept_free_already_is_not_lowered(present: float, reason: Reason) -> None:
    assert propose(Knob.WATERMARK, PROMPTS, setting(given={Knob.WATERMARK: present})).reason is reason
