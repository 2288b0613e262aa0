"""The levers on what a step holds: the length of a request, its tokens, chunks of a prefill."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from builders import THRASHING, an_evidence
from kvmedic.model.engine import Knob, Scalar
from kvmedic.model.plan import Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.model.status import Record
from kvmedic.runbooks.branches import Assignment, NoChange, Setting
from kvmedic.runbooks.planning import plan_of
from kvmedic.runbooks.preemption.cap_size import tokens_per_step
from kvmedic.runbooks.preemption.levers import LEAST_CUT, ROOM, present_setting
from kvmedic.runbooks.preemption.levers import STEP_TOKENS_GRAIN as GRAIN
from kvmedic.runbooks.preemption.pressure import Case, Reach
from runbooks.cases import CASE, propose
from worlds.workloads import a_workload

LONG = replace(CASE, reach=replace(CASE.reach, counted_tokens=20_000))


def chunked(given: dict[Knob, Scalar] | None, *, chunks: bool | None = False) -> Assignment | NoChange:
    return propose(
        Knob.CHUNKED_PREFILL,
        LONG,
        Setting(None, (), given=given, chunks_prefill=chunks, least_step_tokens=2048),
    )


@pytest.mark.parametrize(
    ("given", "longest"),
    [({}, 20_000), ({Knob.MAX_MODEL_LEN: 32_768}, 32_768), ({Knob.MAX_MODEL_LEN: -1}, 20_000)],
    ids=["what is counted up to", "as given", "fitted to memory"],
)
def test_a_step_need_not_hold_the_longest_request(given: dict[Knob, Scalar], longest: int) -> None:
    found = chunked(given)

    assert isinstance(found, Assignment)
    assert (found.knob, found.value, found.reason) == (Knob.CHUNKED_PREFILL, True, Reason.SETTING_ADJUSTED)
    assert f"{longest} tokens" in found.message


@pytest.mark.parametrize(
    ("given", "chunks", "reason"),
    [
        pytest.param({}, True, Reason.LEVER_WITHOUT_EFFECT, id="they are chunked"),
        pytest.param({}, None, Reason.PRESENT_VALUE_UNKNOWN, id="nobody knows"),
        pytest.param(None, False, Reason.PRESENT_VALUE_UNKNOWN, id="a file may say more"),
        pytest.param({Knob.MAX_NUM_BATCHED_TOKENS: 32_768}, False, Reason.LEVER_WITHOUT_EFFECT, id="budget"),
        pytest.param({Knob.NUM_GPU_BLOCKS_OVERRIDE: 150}, False, Reason.LEVER_WITHOUT_EFFECT, id="blocks"),
        pytest.param({Knob.KV_CACHE_MEMORY_BYTES: 1}, False, Reason.LEVER_WITHOUT_EFFECT, id="bytes"),
        pytest.param({Knob.MAX_MODEL_LEN: 2_700}, False, Reason.GAIN_WITHIN_NOISE, id="short requests"),
    ],
)
def test_it_is_not_switched_on(given: dict[Knob, Scalar] | None, chunks: bool | None, reason: Reason) -> None:
    found = chunked(given, chunks=chunks)

    assert isinstance(found, NoChange)
    assert found.reason is reason


@pytest.mark.parametrize(
    ("args", "version", "token"),
    [
        (("--no-enable-chunked-prefill",), "0.32.0", "--enable-chunked-prefill"),
        (("--enable-chunked-prefill=False",), "0.7.3", "--enable-chunked-prefill=true"),
    ],
    ids=["today's switch", "a value of old"],
)
def test_the_plan_is_one_token_of_the_command_line_that_switches_it_off(
    args: tuple[str, ...], version: str, token: str
) -> None:
    off = a_workload(*args, image=f"vllm/vllm-openai:v{version}")
    advice = propose(Knob.CHUNKED_PREFILL, LONG, present_setting(off, (), Record(), an_evidence(THRASHING)))
    assert isinstance(advice, Assignment), advice

    plan = plan_of(off, advice, 1)

    assert isinstance(plan, Plan)
    (step,) = plan.steps
    assert (step.edit.before, step.edit.after) == (args[0], token)


@pytest.mark.parametrize("version", ["0.32.0", "0.7.3"])
def test_without_the_flag_nothing_is_known_to_be_off(version: str) -> None:
    found = propose(
        Knob.CHUNKED_PREFILL,
        LONG,
        present_setting(
            a_workload(image=f"vllm/vllm-openai:v{version}"), (), Record(), an_evidence(THRASHING)
        ),
    )

    assert isinstance(found, NoChange)


LENGTH = Knob.MAX_MODEL_LEN
NEEDED_LENGTH = 2200
"""Prompts of up to 200 and answers of up to 2000 tokens were asked for."""


def a_length(*, minimum: float | None = None, chunks: bool | None = False, **more: Scalar) -> Setting:
    knobs: dict[Knob, Scalar] = {Knob(name): value for name, value in more.items()}
    return Setting(64, (LeverBound(LENGTH, minimum),), given=knobs, chunks_prefill=chunks)


def reaching(**changes: float | None) -> Case:
    return replace(CASE, reach=replace(CASE.reach, **changes))


def test_the_limit_falls_to_what_requests_asked_for_and_says_what_will_be_refused() -> None:
    found = propose(Knob.MAX_MODEL_LEN, CASE, a_length(maxModelLen=32768))

    assert isinstance(found, Assignment)
    assert (found.knob, found.value, found.reason) == (LENGTH, NEEDED_LENGTH, Reason.SETTING_ADJUSTED)
    assert f"requests of over {NEEDED_LENGTH} tokens will be refused" in found.message
    assert "32768" in found.message


@pytest.mark.parametrize(
    ("minimum", "value"),
    [(None, NEEDED_LENGTH), (NEEDED_LENGTH - 1, NEEDED_LENGTH), (NEEDED_LENGTH, NEEDED_LENGTH), (8192, 8192)],
    ids=["no bound", "below", "at", "above what is needed"],
)
def test_it_never_falls_under_the_levers_bound(minimum: float | None, value: int) -> None:
    found = propose(Knob.MAX_MODEL_LEN, CASE, a_length(minimum=minimum, maxModelLen=32768))

    assert isinstance(found, Assignment)
    assert found.value == value


@pytest.mark.parametrize(
    ("present", "reason"),
    [
        (NEEDED_LENGTH - 1, Reason.TRAFFIC_UNSUITED),
        (NEEDED_LENGTH, Reason.TRAFFIC_UNSUITED),
        (NEEDED_LENGTH / LEAST_CUT - 1, Reason.TRAFFIC_UNSUITED),
        (NEEDED_LENGTH / LEAST_CUT + 1, Reason.SETTING_ADJUSTED),
    ],
    ids=["below what is needed", "what is needed", "hardly more", "enough more"],
)
def test_a_length_that_is_in_use_stays(present: float, reason: Reason) -> None:
    assert propose(Knob.MAX_MODEL_LEN, CASE, a_length(maxModelLen=int(present))).reason is reason


@pytest.mark.parametrize("knobs", [{}, {"maxModelLen": -1}], ids=["not given", "fitted to memory"])
def test_a_limit_that_nobody_wrote_is_at_least_the_top_bucket(knobs: dict[str, int]) -> None:
    far = propose(Knob.MAX_MODEL_LEN, reaching(counted_tokens=20_000.0), a_length(**knobs))
    near = propose(Knob.MAX_MODEL_LEN, reaching(counted_tokens=2_000.0), a_length(**knobs))

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
    ids=["not reported", "asked for any length", "long prompts", "long answers", "longer than asked for"],
)
def test_a_length_that_may_be_needed_stays(reach: dict[str, float | None], reason: Reason, says: str) -> None:
    found = propose(Knob.MAX_MODEL_LEN, reaching(**reach), a_length(maxModelLen=32768))

    assert isinstance(found, NoChange)
    assert found.reason is reason
    assert says in found.message


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (a_length(maxModelLen=32768, chunks=True), "frees nothing"),
        (a_length(maxModelLen=32768, maxNumBatchedTokens=32768), "maxNumBatchedTokens is given"),
        (a_length(maxModelLen=32768, numGpuBlocksOverride=150), "fixes the KV cache"),
        (a_length(maxModelLen=32768, kvCacheMemoryBytes=10**9), "fixes the KV cache"),
    ],
    ids=["chunked prefill", "a given budget", "a given number of blocks", "given bytes"],
)
def test_where_it_frees_no_memory_it_is_left_alone(setting: Setting, says: str) -> None:
    found = propose(Knob.MAX_MODEL_LEN, CASE, setting)

    assert isinstance(found, NoChange)
    assert found.reason is Reason.LEVER_WITHOUT_EFFECT
    assert says in found.message


def test_an_engine_that_may_chunk_counts_as_one_that_does_not() -> None:
    assert isinstance(propose(Knob.MAX_MODEL_LEN, CASE, a_length(maxModelLen=32768, chunks=None)), Assignment)


def test_without_the_command_line_nothing_is_set() -> None:
    found = propose(Knob.MAX_MODEL_LEN, CASE, Setting(None, (LeverBound(LENGTH),)))

    assert found.reason is Reason.PRESENT_VALUE_UNKNOWN


def test_a_request_needs_its_prompt_and_the_longest_answer_that_it_may_get() -> None:
    assert Reach(200, 1000, 2000, 20_000).request_tokens == NEEDED_LENGTH
    assert Reach(200, 3000, 2000, 20_000).request_tokens == 3200
    assert Reach(200, 1000, None, 20_000).request_tokens is None


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
