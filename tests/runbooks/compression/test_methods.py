"""Which method a workload's own settings switch on, and what sizing makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import CALM, NOW, POOL, an_evidence
from kvmedic.engines import ENGINES
from kvmedic.engines.engine_log import parse_start
from kvmedic.engines.vllm_log import VLLM_START
from kvmedic.model.compression import BundleSetting, Compacted, Keep, TokenEviction
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Observation
from kvmedic.model.fleet import ObjectRef, template_hash
from kvmedic.model.spec import NOT_DECLARED, CompressionPolicy, LeverBound
from kvmedic.model.trial import Answer, Question, Reclaim
from kvmedic.runbooks.branches import Assignment, NoChange, Setting
from kvmedic.runbooks.compression.branches import find_unapplied_method, replace_stale
from kvmedic.runbooks.compression.methods import DECLARED, compressed_of, eviction_of
from kvmedic.runbooks.preemption.cap import cut_cap
from kvmedic.runbooks.workload import Workload, workload_of
from runbooks.cases import CASE, propose


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
BY_BUDGET = ("TriAttention", "TRIATTN_RUNTIME_KV_BUDGET", False)
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
        "a switch that is off, and the running engine's log that it is on",
        a_workload([{"name": "ENABLE_TRIATTENTION", "value": "0"}]),
        PLAIN,
        (ACTIVATED,),
        ("TriAttention", f"start-up log: {ACTIVATED}, although ENABLE_TRIATTENTION=0", True),
    ),
    (
        "a list of plugins without it, and a log with it",
        a_workload([{"name": "VLLM_PLUGINS", "value": "other"}]),
        PLAIN,
        (ACTIVATED,),
        ("TriAttention", f"start-up log: {ACTIVATED}, although VLLM_PLUGINS=other", True),
    ),
    *(
        (f"{name}={value}", a_workload([BUDGET, {"name": name, "value": value}]), PLAIN, (), None)
        for name, value in (
            ("ENABLE_TRIATTENTION", "Off"),
            ("TRIATTN_RUNTIME_DISABLE_COMPRESSION", "1"),
            ("TRIATTN_RUNTIME_DISABLE_COMPRESSION", "True"),
            ("TRIATTN_RUNTIME_PATCH_WORKER", "no"),
            ("TRIATTENTION_INTERFACE", "legacy_custom"),
            ("VLLM_PLUGINS", "other"),
        )
    ),
    *(
        (f"{name}={value}", a_workload([BUDGET, {"name": name, "value": value}]), PLAIN, (), BY_BUDGET)
        for name, value in (
            ("TRIATTN_RUNTIME_DISABLE_COMPRESSION", "0"),
            ("TRIATTENTION_INTERFACE", "runtime"),
        )
    ),
    (
        "a switch in a word that is none",
        a_workload([BUDGET, {"name": "ENABLE_TRIATTENTION", "value": "maybe"}]),
        PLAIN,
        (),
        ("TriAttention", "ENABLE_TRIATTENTION", False),
    ),
    (
        "compression that is disabled but for a full cache",
        a_workload(
            [
                BUDGET,
                {"name": "TRIATTN_RUNTIME_DISABLE_COMPRESSION", "value": "1"},
                {"name": "TRIATTN_RUNTIME_ENABLE_KV_USAGE_TRIGGER", "value": "1"},
            ]
        ),
        PLAIN,
        (),
        ("TriAttention", "TRIATTN_RUNTIME_ENABLE_KV_USAGE_TRIGGER", False),
    ),
    (
        "a variable by its older name",
        a_workload([{"name": "TRIATTENTION_KV_BUDGET", "value": "512"}]),
        PLAIN,
        (),
        ("TriAttention", "TRIATTENTION_KV_BUDGET", False),
    ),
]


@pytest.mark.parametrize(
    ("workload", "seen", "log", "known"), [row[1:] for row in KNOWN], ids=[row[0] for row in KNOWN]
)
def test_a_method_is_known_by_what_shows_it(
    workload: Workload | None, seen: Observation, log: tuple[str, ...], known: tuple[str, str, bool] | None
) -> None:
    found = compressed_of(workload, NOT_DECLARED, (), seen, log)

    assert (found and (found.name, found.known_by, found.is_confirmed)) == known


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        ({"TRIATTENTION_KV_BUDGET": "512"}, 512),
        ({"TRIATTENTION_KV_BUDGET": "512", "TRIATTN_RUNTIME_KV_BUDGET": ""}, 512),
        ({"TRIATTENTION_KV_BUDGET": "512", "TRIATTN_RUNTIME_KV_BUDGET": "1024"}, 1024),
        ({"TRIATTENTION_STATS_PATH": "/s.pt"}, 2048),
    ],
)
def test_an_older_name_counts_where_the_present_one_has_no_value(given: dict[str, str], budget: int) -> None:
    workload = a_workload([{"name": name, "value": value} for name, value in given.items()])

    found = compressed_of(workload, NOT_DECLARED, (), PLAIN)

    assert found.keep == Keep(budget)


@pytest.mark.parametrize(
    "line",
    [
        "[TriAttention] Legacy V1 backend plugin registration is retired; use runtime interface",
        "[TriAttention] Runtime plugin activation failed: ImportError: triton",
        "[TriAttention] Runtime (V2) plugin activated: patch_scheduler=True patch_worker=False",
    ],
)
@pytest.mark.parametrize("declared", [NOT_DECLARED, CompressionPolicy(method="TriAttention")])
def test_settings_that_ask_for_a_method_and_a_log_that_denies_it_are_said(
    declared: CompressionPolicy, line: str
) -> None:
    log = parse_start([line], VLLM_START).methods

    found = compressed_of(a_workload([BUDGET]), declared, (), PLAIN, log)

    assert (found.is_confirmed, found.denied) == (False, log[0])
    assert eviction_of(a_workload([BUDGET]), log) is None
    evidence = replace(an_evidence(CALM), compression=found)
    said = find_unapplied_method(evidence)
    assert isinstance(said, tuple)
    assert log[0] in said[0].text
    advice = replace_stale(evidence, Setting(None, ()))
    assert isinstance(advice, NoChange)
    assert "does not run" in advice.message


def test_what_a_checkpoint_brings_no_setting_of_the_template_takes_away() -> None:
    asked = compressed_of(a_workload([], "--kv-cache-dtype=fp8"), NOT_DECLARED, (), LABELLED)
    brought = compressed_of(a_workload([]), NOT_DECLARED, (), PLAIN, (EIGHT,))

    assert (asked.asks_for_type, [each.flag for each in asked.settings]) == ("fp8", ["--kv-cache-dtype"])
    assert (brought.asks_for_type, brought.settings) == ("", ())


def test_what_the_spec_declares_a_log_confirms() -> None:
    declared = CompressionPolicy(method="FP8")

    silent, logged = (compressed_of(None, declared, (), PLAIN, log) for log in ((), (EIGHT,)))

    assert (silent.known_by, silent.is_confirmed) == (DECLARED, False)
    assert (logged.known_by, logged.is_confirmed) == (DECLARED, True)


WRAPPED = CompressionPolicy(method="fp8", settings=(BundleSetting(env="KV_TYPE", on="fp8", off=None),))
OFF = {"name": "ENABLE_TRIATTENTION", "value": "0"}


def test_settings_that_say_off_turn_a_declared_method_off_unless_the_engine_says_that_it_is_on() -> None:
    switched_off = CompressionPolicy(method="TriAttention", keep_tokens=512)

    assert compressed_of(a_workload([OFF]), switched_off, (), PLAIN) is None
    assert compressed_of(a_workload([]), WRAPPED, (), PLAIN) is None
    confirmed = compressed_of(a_workload([]), WRAPPED, (), PLAIN, (EIGHT,))
    assert (confirmed.is_confirmed, confirmed.settings) == (True, WRAPPED.settings)


EVICTED = replace(CASE, evicted_by="TriAttention")


def test_a_cap_says_whose_tokens_are_evicted() -> None:
    found = cut_cap(EVICTED, Setting(64, (LeverBound(Knob.MAX_NUM_SEQS),)))

    assert "of which TriAttention evicts tokens" in found.message


def test_nothing_is_kept_free_for_a_growth_that_nobody_knows() -> None:
    prompts = replace(CASE.sequence, growth_share=0.1)

    plain = propose(Knob.WATERMARK, replace(CASE, sequence=prompts), Setting(64, (), refused={}))
    evicted = propose(Knob.WATERMARK, replace(EVICTED, sequence=prompts), Setting(64, (), refused={}))

    assert isinstance(plain, Assignment)
    assert plain.knob is Knob.WATERMARK
    assert isinstance(evicted, NoChange)
    assert "TriAttention takes tokens" in evicted.message


@pytest.mark.parametrize(
    ("declared", "env", "kept", "shown"),
    [
        (NOT_DECLARED, [BUDGET], 4096, Reclaim.IN_PART),
        (CompressionPolicy(method="TriAttention"), [BUDGET], 4096, Reclaim.IN_PART),
        (CompressionPolicy(method="TriAttention", keep_tokens=4096), [BUDGET], 4096, Reclaim.IN_PART),
        (CompressionPolicy(method="TriAttention", keep_tokens=2048), [BUDGET], 2048, None),
        (CompressionPolicy(method="TriAttention", keep_tokens=2048), [], 2048, None),
        (CompressionPolicy(method="TriAttention"), [], 2048, None),
        (NOT_DECLARED, [BUDGET], 1024, None),
    ],
    ids=[
        "the engine's own variable",
        "its variable, as the spec names no number",
        "its variable and the spec",
        "the spec says another number",
        "the spec alone",
        "the default of a method that the spec alone names",
        "a trial that was judged by another number",
    ],
)
def test_blocks_that_come_back_in_part_count_by_what_the_engine_keeps(
    declared: CompressionPolicy, env: Any, kept: int, shown: Reclaim | None
) -> None:
    workload = a_workload(env)
    template = template_hash(workload.template)
    answer = Answer(Question.RECLAMATION, template, "m", NOW, 1, Reclaim.IN_PART, keep=Keep(kept))

    found = compressed_of(workload, declared, (answer,), PLAIN)

    assert found.shown is shown
    scattered = compressed_of(workload, declared, (replace(answer, reclaim=Reclaim.SCATTERED),), PLAIN)
    assert scattered.shown is Reclaim.SCATTERED, "what is scattered is so by any number"
