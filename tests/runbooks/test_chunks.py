"""Chunked prefills: only where they are known to be off, and where that frees memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import THRASHING, an_evidence
from kvmedic.model.engine import Knob, Scalar
from kvmedic.model.plan import Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.status import Record
from kvmedic.runbooks.branches import Assignment, NoChange, Setting
from kvmedic.runbooks.planning import plan_of
from kvmedic.runbooks.preemption.levers import present_setting
from runbooks.cases import CASE, propose
from worlds.workloads import a_workload

LONG = replace(CASE, reach=replace(CASE.reach, counted_tokens=20_000))


def advised(given: dict[Knob, Scalar] | None, *, chunks: bool | None = False) -> Assignment | NoChange:
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
    found = advised(given)

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
    found = advised(given, chunks=chunks)

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
