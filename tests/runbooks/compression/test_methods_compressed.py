"""Which method compresses a workload's KV cache: from the spec, its settings, its engines."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from builders import CALM, NOW, POOL, an_observation
from kvmedic.engines import ENGINES
from kvmedic.model.compression import BundleSetting, Compacted, Keep, MethodClass, Scattered, TokenEviction
from kvmedic.model.fleet import ObjectRef, template_hash
from kvmedic.model.spec import NOT_DECLARED, CompressionPolicy, Fix, Replacement
from kvmedic.model.trial import AGAIN, Answer, Growth, Question, Reclaim
from kvmedic.runbooks.branches import Compressed
from kvmedic.runbooks.compression.methods import DECLARED, compressed_of, eviction_by, standing_answers
from kvmedic.runbooks.workload import Workload, workload_of

SEEN = an_observation(CALM, window_seconds=300)
SEEN_FP8 = an_observation(replace(CALM, pool=replace(POOL, cache_dtype="fp8_e4m3")), window_seconds=300)
SWITCH = BundleSetting(env="EVICT", on="1", off=None)
FLAG = BundleSetting(flag="--kv-cache-dtype", on="fp8", off=None)
ON = {"EVICT": "1"}
MINE = CompressionPolicy("Mine", MethodClass.SCATTERED_EVICTION, keep_share=0.1, settings=(SWITCH,))


def a_workload(*args: str, **env: str) -> Workload:
    container: dict[str, Any] = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["--model=m", *args],
    }
    if env:
        container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    found = workload_of(
        ObjectRef("Deployment", "llm"), "uid", {"spec": {"containers": [container]}}, None, ENGINES
    )
    assert isinstance(found, Workload)
    return found


def found_in(workload: Workload, policy: CompressionPolicy = NOT_DECLARED, seen=SEEN) -> Compressed | None:
    return compressed_of(workload, policy, (), seen)


def test_nothing_is_on_where_nothing_shows_it():
    assert found_in(a_workload()) is None


def test_a_declared_method_is_what_the_spec_says():
    found = found_in(a_workload(**ON), MINE)

    assert (found.name, found.method_class, found.known_by) == (
        "Mine",
        MethodClass.SCATTERED_EVICTION,
        DECLARED,
    )
    assert (found.keep, found.settings) == (Keep(share=0.1), (SWITCH,))


def test_a_declared_method_whose_settings_are_all_off_is_off():
    assert found_in(a_workload(), MINE) is None
    assert found_in(a_workload(), replace(MINE, settings=())) is not None


@pytest.mark.parametrize(("name", "keep"), [("TriAttention", 2048), ("triattention", 2048), ("SnapKV", None)])
def test_a_known_method_need_only_be_named(name, keep):
    found = found_in(a_workload(), CompressionPolicy(method=name))

    assert found.method_class is not None
    assert found.keep == (None if keep is None else Keep(keep))


def test_a_methods_own_switch_counts_before_what_is_declared():
    declared = CompressionPolicy(method="triattention")

    assert found_in(a_workload(ENABLE_TRIATTENTION="0", TRIATTN_RUNTIME_KV_BUDGET="4096"), declared) is None


def test_a_method_is_known_by_its_variables_with_its_budget():
    found = found_in(a_workload(TRIATTN_RUNTIME_KV_BUDGET="4096"))

    assert (found.name, found.known_by, found.keep) == (
        "TriAttention",
        "TRIATTN_RUNTIME_KV_BUDGET",
        Keep(4096),
    )
    assert [each.env for each in found.settings] == ["ENABLE_TRIATTENTION"]


def test_a_declared_budget_counts_before_that_of_a_variable():
    workload = a_workload(TRIATTN_RUNTIME_KV_BUDGET="4096")

    named = found_in(workload, CompressionPolicy(method="TriAttention"))
    declared = found_in(workload, CompressionPolicy(method="TriAttention", keep_tokens=1024))

    assert (named.keep, declared.keep) == (Keep(4096), Keep(1024))


def test_fewer_bits_are_known_by_what_the_template_asks_for_or_an_engine_says():
    asked, logged = found_in(a_workload("--kv-cache-dtype", "fp8")), found_in(a_workload(), seen=SEEN_FP8)

    assert asked.method_class is logged.method_class is MethodClass.QUANTIZATION
    assert (asked.asks_for_type, logged.asks_for_type) == ("fp8", "")
    assert not asked.type_is_in_file


def test_the_models_own_type_is_no_method():
    assert found_in(a_workload("--kv-cache-dtype=auto")) is None


def test_of_two_methods_the_one_that_is_to_free_blocks_is_looked_at():
    found = found_in(a_workload("--kv-cache-dtype=fp8", TRIATTN_RUNTIME_KV_BUDGET="4096"), seen=SEEN_FP8)

    assert found.name == "TriAttention"
    assert found.asks_for_type == ""


def test_a_flag_is_a_setting_like_a_variable():
    declared = CompressionPolicy("fp8", settings=(FLAG,))

    assert found_in(a_workload("--kv-cache-dtype", "fp8"), declared) is not None
    assert found_in(a_workload(), declared) is None


def test_an_answer_counts_for_the_template_that_it_is_about_the_newest_first():
    workload = a_workload(**ON)
    mine = template_hash(workload.template)
    old, new = (
        Answer(Question.RECLAMATION, mine, "", NOW + timedelta(hours=hours), 1, reclaim)
        for hours, reclaim in ((1, Reclaim.NONE), (2, Reclaim.RECLAIMS))
    )
    other = Answer(Question.RECLAMATION, "another", "", NOW + timedelta(hours=3), 1, Reclaim.SCATTERED)

    found = compressed_of(workload, MINE, (old, other, new), SEEN)

    assert found.answer == new


def test_answers_of_different_questions_are_not_mixed():
    workload = a_workload(**ON)
    mine = template_hash(workload.template)
    blocks = Answer(Question.RECLAMATION, mine, "", NOW, 1, Reclaim.RECLAIMS)
    prompts = Answer(Question.PROMPTS, mine, "", NOW + timedelta(hours=1), 1, growth=Growth.SQUARE)

    both = compressed_of(workload, MINE, (prompts, blocks), SEEN)
    one = compressed_of(workload, MINE, (prompts,), SEEN)

    assert (both.answer, both.grown, both.is_unfused) == (blocks, prompts, True)
    assert (one.answer, one.grown) == (None, prompts)


@pytest.mark.parametrize(
    ("given", "longest"), [(("--max-model-len", "32k"), 32_000), (("--max-model-len=-1",), None), ((), None)]
)
def test_the_longest_request_is_known_where_it_is_given(given, longest):
    found = found_in(a_workload(*given, **ON), MINE)

    assert found.longest_request == longest


def test_an_answer_that_showed_nothing_counts_for_a_day_and_as_long_as_the_spec_is_the_same():
    nothing = Answer(Question.RECLAMATION, "t", "", NOW, 3)
    shown = Answer(Question.RECLAMATION, "t", "", NOW, 3, Reclaim.NONE)

    assert standing_answers((nothing, shown), 3, NOW + AGAIN - timedelta(seconds=1)) == (nothing, shown)
    assert standing_answers((nothing, shown), 3, NOW + AGAIN) == (shown,)
    assert standing_answers((nothing, shown), 4, NOW) == (shown,)


def test_the_same_holds_of_prompts():
    nothing = Answer(Question.PROMPTS, "t", "", NOW, 3)
    shown = Answer(Question.PROMPTS, "t", "", NOW, 3, growth=Growth.NONE)

    assert standing_answers((nothing, shown), 3, NOW) == (nothing, shown)
    assert standing_answers((nothing, shown), 3, NOW + AGAIN) == (shown,)


@pytest.mark.parametrize(
    ("method", "evicts"),
    [
        (
            Compressed("Mine", MethodClass.COMPACTING_EVICTION, "", keep=Keep(512)),
            TokenEviction("Mine", Compacted(), 512),
        ),
        (
            Compressed("Mine", MethodClass.SCATTERED_EVICTION, "", keep=Keep(share=0.1)),
            TokenEviction("Mine", Scattered(), None),
        ),
        (Compressed("Mine", MethodClass.PAGE_SELECTION, ""), None),
        (Compressed("Mine", MethodClass.QUANTIZATION, ""), None),
        (Compressed("Mine", None, ""), None),
    ],
)
def test_sizing_is_given_what_a_method_takes_from_sequences(method, evicts):
    assert eviction_by(method) == evicts


@pytest.mark.parametrize(
    ("given", "blocks"),
    [((), 1000), (("--num-gpu-blocks-override=1000",), None), (("--kv-cache-memory-bytes", "8G"), None)],
)
def test_blocks_are_compared_only_where_memory_decides_how_many_there_are(given, blocks):
    policy = CompressionPolicy("fp8", settings=(FLAG,), blocks=1000)

    found = found_in(a_workload("--kv-cache-dtype=fp8", *given), policy)

    assert found.blocks_without == blocks


def test_blocks_of_a_hybrid_model_are_not_compared_with_those_of_another_size():
    policy = CompressionPolicy("fp8", settings=(FLAG,), blocks=1000)
    wide = an_observation(replace(CALM, pool=replace(POOL, block_tokens=1056)), window_seconds=300)
    workload = a_workload("--kv-cache-dtype=fp8")
    beside = template_hash(workload.template)
    start = Answer(Question.START, "off", "", NOW, 1, beside=beside, blocks=900, block_tokens=528)

    alone, started = (compressed_of(workload, policy, answers, wide) for answers in ((), (start,)))

    assert (alone.blocks_without, started.blocks_without, started.block_tokens_without) == (None, 900, 528)


COMPACTS = replace(
    MINE,
    fixes=(Fix.REVERT_BUNDLE, Fix.COMPACTING_METHOD),
    replacement=Replacement(
        "Better", keep_tokens=2048, settings=(SWITCH, BundleSetting("1", None, env="COMPACT"))
    ),
    settings=(SWITCH, BundleSetting("640", None, env="EVERY")),
)


def test_a_replacement_that_is_on_is_what_is_looked_at():
    found = found_in(a_workload(EVICT="1", COMPACT="1"), COMPACTS)

    assert (found.name, found.method_class) == ("Better", MethodClass.COMPACTING_EVICTION)
    assert (found.keep, found.fix) == (Keep(2048), Fix.COMPACTING_METHOD)


@pytest.mark.parametrize(
    "env",
    [
        {"EVICT": "1", "EVERY": "640"},
        {"EVICT": "1", "EVERY": "640", "COMPACT": "1"},
        {"EVERY": "640"},
    ],
)
def test_a_replacement_is_not_taken_for_the_declared_method(env: dict[str, str]):
    found = found_in(a_workload(**env), COMPACTS)

    assert (found.name, found.fix) == ("Mine", None)


def test_where_the_declared_method_is_off_what_engines_say_counts():
    found = found_in(a_workload("--kv-cache-dtype=fp8"), MINE, SEEN_FP8)

    assert (found.name, found.method_class) == ("fp8", MethodClass.QUANTIZATION)
