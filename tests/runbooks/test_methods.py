"""Which method a workload's own settings switch on, and what sizing makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvmedic.core.blocks import Compacted
from kvmedic.core.compression import TokenEviction
from kvmedic.core.diagnosis import Assignment, LeverBound, NoChange, Setting
from kvmedic.core.engine import Knob
from kvmedic.core.plan import ObjectRef
from kvmedic.engines import ENGINES
from kvmedic.runbooks.cut import cut
from kvmedic.runbooks.methods import eviction_of
from kvmedic.runbooks.planning import Workload, workload_of
from kvmedic.runbooks.watermark import keep_free
from runbooks.cases import CASE


def a_workload(env: Any) -> Workload:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model=m"], "env": env}
    body = {"spec": {"containers": [container]}}
    found = workload_of(ObjectRef("Deployment", "llm"), "uid", body, None, ENGINES)
    assert isinstance(found, Workload)
    return found


BUDGET = {"name": "TRIATTN_RUNTIME_KV_BUDGET", "value": "4096"}
FROM_ELSEWHERE = {"configMapKeyRef": {"name": "kv", "key": "budget"}}


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ([BUDGET], TokenEviction("TriAttention", Compacted(), 4096)),
        ([{"name": "ENABLE_TRIATTENTION", "value": "1"}], TokenEviction("TriAttention", Compacted(), 2048)),
        ([BUDGET, {"name": "ENABLE_TRIATTENTION", "value": "0"}], None),
        ([{"name": "TRIATTN_RUNTIME_KV_BUDGET", "valueFrom": FROM_ELSEWHERE}], None),
        ([{"name": "HF_HOME", "value": "/models"}], None),
        ([], None),
        (None, None),
    ],
)
def test_a_method_is_known_by_variables_with_a_value_of_their_own(
    env: Any, found: TokenEviction | None
) -> None:
    assert eviction_of(a_workload(env)) == found


EVICTED = replace(CASE, evicted_by="TriAttention")


def test_a_cap_says_whose_tokens_are_evicted() -> None:
    found = cut(EVICTED, Setting(64, (LeverBound(Knob.MAX_NUM_SEQS),)))

    assert "of which TriAttention evicts tokens" in found.message


def test_nothing_is_kept_free_for_a_growth_that_nobody_knows() -> None:
    prompts = replace(CASE.sequence, growth_share=0.1)

    plain = keep_free(replace(CASE, sequence=prompts), Setting(64, (), refused={}))
    evicted = keep_free(replace(EVICTED, sequence=prompts), Setting(64, (), refused={}))

    assert isinstance(plain, Assignment)
    assert plain.knob is Knob.WATERMARK
    assert isinstance(evicted, NoChange)
    assert "TriAttention takes tokens" in evicted.message
