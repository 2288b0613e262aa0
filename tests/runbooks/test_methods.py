"""Which method a workload's own settings switch on, and what sizing makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import CALM, POOL, an_evidence
from kvmedic.core.blocks import Compacted
from kvmedic.core.compression import Setting as BundleSetting
from kvmedic.core.compression import TokenEviction
from kvmedic.core.compression_policy import NOT_DECLARED, CompressionPolicy
from kvmedic.core.diagnosis import Assignment, LeverBound, NoChange, Setting
from kvmedic.core.engine import Knob
from kvmedic.core.evidence import Observation
from kvmedic.core.plan import ObjectRef
from kvmedic.engines import ENGINES
from kvmedic.runbooks.cut import cut
from kvmedic.runbooks.methods import DECLARED, compressed_of, eviction_of
from kvmedic.runbooks.planning import Workload, workload_of
from kvmedic.runbooks.watermark import keep_free
from runbooks.cases import CASE


def a_workload(env: Any, *args: str) -> Workload:
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["--model=m", *args],
        "env": env,
    }
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


EIGHT = "Using fp8 data type to store kv cache"
ACTIVATED = "[TriAttention] Runtime (V2) plugin activated"
PLAIN, LABELLED = (
    an_evidence(replace(CALM, pool=replace(POOL, cache_dtype=label))).burn for label in ("auto", "fp8_e4m3")
)
KNOWN = [
    ("nothing", None, PLAIN, (), None),
    ("a log alone", None, PLAIN, (ACTIVATED,), ("TriAttention", f"start-up log: {ACTIVATED}", True)),
    ("a label alone", None, LABELLED, (), ("fp8", "cache_dtype fp8_e4m3", True)),
    ("a type in the log alone", None, PLAIN, (EIGHT,), ("fp8", f"start-up log: {EIGHT}", True)),
    (
        "one that is to free blocks before a type",
        None,
        LABELLED,
        (ACTIVATED, EIGHT),
        ("TriAttention", f"start-up log: {ACTIVATED}", True),
    ),
    ("a checkpoint", a_workload([]), PLAIN, (EIGHT,), ("fp8", f"start-up log: {EIGHT}", True)),
    ("a variable", a_workload([BUDGET]), PLAIN, (), ("TriAttention", "TRIATTN_RUNTIME_KV_BUDGET", False)),
    (
        "a variable and the log",
        a_workload([BUDGET]),
        PLAIN,
        (ACTIVATED,),
        ("TriAttention", f"start-up log: {ACTIVATED}", True),
    ),
    (
        "a flag that no engine confirms",
        a_workload([], "--kv-cache-dtype=fp8"),
        PLAIN,
        (),
        ("fp8", "the type fp8 that is asked for", False),
    ),
    (
        "a switch that is off, whatever an older log says",
        a_workload([{"name": "ENABLE_TRIATTENTION", "value": "0"}]),
        PLAIN,
        (ACTIVATED,),
        None,
    ),
]


@pytest.mark.parametrize(
    ("workload", "seen", "log", "told"), [row[1:] for row in KNOWN], ids=[row[0] for row in KNOWN]
)
def test_a_method_is_known_by_what_tells_of_it(
    workload: Workload | None, seen: Observation, log: tuple[str, ...], told: tuple[str, str, bool] | None
) -> None:
    found = compressed_of(workload, NOT_DECLARED, (), seen, log)

    assert (found and (found.name, found.told_by, found.is_confirmed)) == told


def test_what_a_checkpoint_brings_no_setting_of_the_template_takes_away() -> None:
    asked = compressed_of(a_workload([], "--kv-cache-dtype=fp8"), NOT_DECLARED, (), LABELLED)
    brought = compressed_of(a_workload([]), NOT_DECLARED, (), PLAIN, (EIGHT,))

    assert asked is not None
    assert brought is not None
    assert (asked.asks_for_type, [each.flag for each in asked.settings]) == ("fp8", ["--kv-cache-dtype"])
    assert (brought.asks_for_type, brought.settings) == ("", ())


def test_what_the_spec_declares_a_log_confirms() -> None:
    declared = CompressionPolicy(method="FP8")

    silent, told = (compressed_of(None, declared, (), PLAIN, log) for log in ((), (EIGHT,)))

    assert silent is not None
    assert told is not None
    assert (silent.told_by, silent.is_confirmed) == (DECLARED, False)
    assert (told.told_by, told.is_confirmed) == (DECLARED, True)


WRAPPED = CompressionPolicy(method="fp8", settings=(BundleSetting(env="KV_TYPE", on="fp8", off=None),))
OFF = {"name": "ENABLE_TRIATTENTION", "value": "0"}


def test_settings_that_say_off_turn_a_declared_method_off_unless_the_engine_says_that_it_is_on() -> None:
    switched_off = CompressionPolicy(method="TriAttention", keep_tokens=512)

    assert compressed_of(a_workload([OFF]), switched_off, (), PLAIN) is None
    assert compressed_of(a_workload([]), WRAPPED, (), PLAIN) is None
    confirmed = compressed_of(a_workload([]), WRAPPED, (), PLAIN, (EIGHT,))
    assert confirmed is not None
    assert (confirmed.is_confirmed, confirmed.settings) == (True, WRAPPED.settings)


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
