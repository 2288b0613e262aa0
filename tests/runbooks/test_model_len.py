from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from kvmedic.model.engine import Knob, Scalar
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Assignment, NoChange, Setting
from kvmedic.runbooks.preemption.levers import LEAST_CUT
from kvmedic.runbooks.preemption.pressure import Case, Reach
from runbooks.cases import CASE, propose

LENGTH = Knob.MAX_MODEL_LEN
NEEDED = 2200
"""Prompts of up to 200 and answers of up to 2000 tokens were asked for."""


def given(*, minimum: float | None = None, chunks: bool | None = False, **more: Scalar) -> Setting:
    knobs: dict[Knob, Scalar] = {Knob(name): value for name, value in more.items()}
    return Setting(64, (LeverBound(LENGTH, minimum),), given=knobs, chunks_prefill=chunks)


def reaching(**changes: float | None) -> Case:
    return replace(CASE, reach=replace(CASE.reach, **changes))


def test_the_limit_falls_to_what_requests_asked_for_and_says_what_will_be_refused() -> None:
    found = propose(Knob.MAX_MODEL_LEN, CASE, given(maxModelLen=32768))

    assert isinstance(found, Assignment)
    assert (found.knob, found.value, found.reason) == (LENGTH, NEEDED, Reason.SETTING_ADJUSTED)
    assert f"requests of over {NEEDED} tokens will be refused" in found.message
    assert "32768" in found.message


@pytest.mark.parametrize(
    ("minimum", "value"),
    [(None, NEEDED), (NEEDED - 1, NEEDED), (NEEDED, NEEDED), (8192, 8192)],
    ids=["no bound", "below", "at", "above what is needed"],
)
def test_it_never_falls_under_the_levers_bound(minimum: float | None, value: int) -> None:
    found = propose(Knob.MAX_MODEL_LEN, CASE, given(minimum=minimum, maxModelLen=32768))

    assert isinstance(found, Assignment)
    assert found.value == value


@pytest.mark.parametrize(
    ("present", "reason"),
    [
        (NEEDED - 1, Reason.TRAFFIC_UNSUITED),
        (NEEDED, Reason.TRAFFIC_UNSUITED),
        (NEEDED / LEAST_CUT - 1, Reason.TRAFFIC_UNSUITED),
        (NEEDED / LEAST_CUT + 1, Reason.SETTING_ADJUSTED),
    ],
    ids=["below what is needed", "what is needed", "hardly more", "enough more"],
)
def test_a_length_that_is_in_use_stays(present: float, reason: Reason) -> None:
    assert propose(Knob.MAX_MODEL_LEN, CASE, given(maxModelLen=int(present))).reason is reason


@pytest.mark.parametrize("knobs", [{}, {"maxModelLen": -1}], ids=["not given", "fitted to memory"])
def test_a_limit_that_nobody_wrote_is_at_least_the_top_bucket(knobs: dict[str, int]) -> None:
    far = propose(Knob.MAX_MODEL_LEN, reaching(counted_tokens=20_000.0), given(**knobs))
    near = propose(Knob.MAX_MODEL_LEN, reaching(counted_tokens=2_000.0), given(**knobs))

    assert isinstance(far, Assignment)
    assert "in place of 20000" in far.message
    assert near.reason is Reason.TRAFFIC_UNSUITED


@pytest.mark.parametrize(
    ("reach", "reason", "says"),
    [
        ({"limit_tokens": None}, Reason.METRICS_MISSING, "might refuse what is asked for now"),
        ({"limit_tokens": inf}, Reason.TRAFFIC_UNSUITED, "did not say how long"),
        ({"prompt_tokens": inf}, Reason.TRAFFIC_UNSUITED, "over 20000 tokens long"),
        ({"output_tokens": inf}, Reason.TRAFFIC_UNSUITED, "over 20000 tokens long"),
        ({"output_tokens": 30_000.0}, Reason.TRAFFIC_UNSUITED, "answers of up to 30000"),
    ],
    ids=["nobody tells", "asked for any length", "long prompts", "long answers", "longer than asked for"],
)
def test_a_length_that_may_be_needed_stays(reach: dict[str, float | None], reason: Reason, says: str) -> None:
    found = propose(Knob.MAX_MODEL_LEN, reaching(**reach), given(maxModelLen=32768))

    assert isinstance(found, NoChange)
    assert found.reason is reason
    assert says in found.message


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (given(maxModelLen=32768, chunks=True), "frees nothing"),
        (given(maxModelLen=32768, maxNumBatchedTokens=32768), "maxNumBatchedTokens is given"),
        (given(maxModelLen=32768, numGpuBlocksOverride=150), "fixes the KV cache"),
        (given(maxModelLen=32768, kvCacheMemoryBytes=10**9), "fixes the KV cache"),
    ],
    ids=["chunked prefill", "a given budget", "a given number of blocks", "given bytes"],
)
def test_where_it_frees_no_memory_it_is_left_alone(setting: Setting, says: str) -> None:
    found = propose(Knob.MAX_MODEL_LEN, CASE, setting)

    assert isinstance(found, NoChange)
    assert found.reason is Reason.LEVER_WITHOUT_EFFECT
    assert says in found.message


def test_an_engine_that_may_chunk_counts_as_one_that_does_not() -> None:
    assert isinstance(propose(Knob.MAX_MODEL_LEN, CASE, given(maxModelLen=32768, chunks=None)), Assignment)


def test_without_the_command_line_nothing_is_set() -> None:
    found = propose(Knob.MAX_MODEL_LEN, CASE, Setting(None, (LeverBound(LENGTH),)))

    assert found.reason is Reason.PRESENT_VALUE_UNKNOWN


def test_a_request_needs_its_prompt_and_the_longest_answer_that_it_may_get() -> None:
    assert Reach(200, 1000, 2000, 20_000).request_tokens == NEEDED
    assert Reach(200, 3000, 2000, 20_000).request_tokens == 3200
    assert Reach(200, 1000, None, 20_000).request_tokens is None
