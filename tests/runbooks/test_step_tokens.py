from __future__ import annotations

from dataclasses import replace

import pytest

from kvmedic.model.engine import Knob, Scalar
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Assignment, NoChange, Setting
from kvmedic.runbooks.preemption.levers import LEAST_CUT, ROOM
from kvmedic.runbooks.preemption.levers import STEP_TOKENS_GRAIN as GRAIN
from kvmedic.verdict.sizing import tokens_per_step
from runbooks.cases import CASE, propose

STEP = Knob.MAX_NUM_BATCHED_TOKENS
MEAN = tokens_per_step(CASE.strain, CASE.sequence, CASE.block_tokens)
NEEDED = 256
"""Four times the mean step of 47 tokens, to the next multiple of 256."""


def given(
    *, minimum: float | None = None, chunks: bool | None = True, most: int | None = 64, **more: Scalar
) -> Setting:
    knobs: dict[Knob, Scalar] = {Knob(name): value for name, value in more.items()}
    levers = (LeverBound(STEP, minimum),)
    return Setting(64, levers, given=knobs, chunks_prefill=chunks, most_sequences=most)


def test_the_case_has_steps_as_it_says() -> None:
    assert pytest.approx(47, abs=1) == MEAN
    assert NEEDED - GRAIN < ROOM * MEAN <= NEEDED


def test_the_budget_falls_to_what_the_traffic_needs() -> None:
    found = propose(Knob.MAX_NUM_BATCHED_TOKENS, CASE, given(maxNumBatchedTokens=8192))

    assert isinstance(found, Assignment)
    assert (found.knob, found.value, found.reason) == (STEP, NEEDED, Reason.SETTING_ADJUSTED)
    assert f"memory for {8192 - NEEDED} tokens" in found.message


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        (given(maxNumBatchedTokens=8192, minimum=1024), 1024, "the lever's min"),
        (given(maxNumBatchedTokens=8192, minimum=NEEDED), NEEDED, ""),
        (given(maxNumBatchedTokens=8192, most=NEEDED - 1), NEEDED, "4 times the mean step"),
        (given(maxNumBatchedTokens=8192, most=2048), 2048, "each of maxNumSeqs"),
        (given(maxNumBatchedTokens=8192, maxModelLen=4096, chunks=False), 4096, "maxModelLen"),
        (given(maxNumBatchedTokens=8192, maxModelLen=4096, chunks=None), 4096, "not known to be chunked"),
        (given(maxNumBatchedTokens=8192, maxModelLen=4096, chunks=True), NEEDED, ""),
    ],
    ids=[
        "the lever's bound",
        "a bound that is needed anyway",
        "few sequences",
        "many sequences",
        "prefills in one go",
        "perhaps in one go",
        "chunked prefills",
    ],
)
def test_it_never_falls_under_what_the_engine_accepts(setting: Setting, value: int, says: str) -> None:
    found = propose(Knob.MAX_NUM_BATCHED_TOKENS, CASE, setting)

    assert isinstance(found, Assignment)
    assert found.value == value
    assert says in found.message


def test_more_tokens_per_step_need_more_room() -> None:
    busy = replace(CASE, strain=replace(CASE.strain, running_mean=300))

    found = propose(Knob.MAX_NUM_BATCHED_TOKENS, busy, given(maxNumBatchedTokens=16384))

    assert isinstance(found, Assignment)
    assert found.value % GRAIN == 0
    assert found.value >= ROOM * tokens_per_step(busy.strain, busy.sequence, busy.block_tokens)


@pytest.mark.parametrize(
    ("present", "reason"),
    [
        (NEEDED, Reason.GAIN_WITHIN_NOISE),
        (int(NEEDED / LEAST_CUT), Reason.GAIN_WITHIN_NOISE),
        (int(NEEDED / LEAST_CUT) + 1, Reason.SETTING_ADJUSTED),
    ],
    ids=["what is needed", "hardly more", "enough more"],
)
def test_a_budget_that_is_nearly_right_stays(present: int, reason: Reason) -> None:
    assert propose(Knob.MAX_NUM_BATCHED_TOKENS, CASE, given(maxNumBatchedTokens=present)).reason is reason


@pytest.mark.parametrize(
    ("setting", "reason", "says"),
    [
        (given(), Reason.PRESENT_VALUE_UNKNOWN, "its default depends on the device"),
        (given(maxNumBatchedTokens=8192, chunks=False), Reason.PRESENT_VALUE_UNKNOWN, "maxModelLen is not"),
        (
            given(maxNumBatchedTokens=8192, chunks=False, maxModelLen=-1),
            Reason.PRESENT_VALUE_UNKNOWN,
            "maxModelLen is not",
        ),
        (given(maxNumBatchedTokens=8192, most=None), Reason.PRESENT_VALUE_UNKNOWN, "nobody knows maxNumSeqs"),
        (
            given(maxNumBatchedTokens=8192, numGpuBlocksOverride=150),
            Reason.LEVER_WITHOUT_EFFECT,
            "fixes the KV cache",
        ),
        (Setting(None, (LeverBound(STEP),)), Reason.PRESENT_VALUE_UNKNOWN, "command line"),
    ],
    ids=["no budget", "no length", "a fitted length", "no cap", "a fixed pool", "no command line"],
)
def test_where_nobody_knows_what_would_change_it_is_left_alone(
    setting: Setting, reason: Reason, says: str
) -> None:
    found = propose(Knob.MAX_NUM_BATCHED_TOKENS, CASE, setting)

    assert isinstance(found, NoChange)
    assert found.reason is reason
    assert says in found.message
