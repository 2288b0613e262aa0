"""The catalogue of methods: whole, without doubles, and recognised by what real installations show."""

import re
from pathlib import Path
from typing import get_args

import pytest

import kvmedic.engines
from kvmedic.api.compression import CompressionSpec
from kvmedic.engines.kv_methods import (
    CACHE_TYPES,
    EIGHT_BITS,
    METHODS,
    OWN_TYPES,
    TRIATTENTION,
    expected_ratio,
    find_method,
)
from kvmedic.model.compression import MethodClass, MethodSigns, Recognised, recognise_methods
from lab.engine.arguments import parse_serve
from lab.engine.config import resolve
from lab.engine.logs import EIGHT_BIT


def found(
    environment: dict[str, str] | None = None, dtype: str = "auto", *log: str
) -> tuple[Recognised, ...]:
    return recognise_methods(METHODS, MethodSigns(environment or {}, dtype, log))


def test_every_method_has_a_name_of_its_own_a_source_and_a_class_that_is_explained():
    assert len({method.name.lower() for method in METHODS}) == len(METHODS)
    assert all(method.source for method in METHODS)
    assert {method.method_class for method in METHODS} == set(MethodClass)
    assert all(len(each.frees) > 20 for each in MethodClass)


def test_a_spec_may_declare_every_class():
    declared = CompressionSpec.model_fields["method_class"].annotation

    assert {each for part in get_args(declared) for each in get_args(part)} == {
        each.value for each in MethodClass
    }


def test_every_setting_is_a_flag_or_a_variable_and_changes_something():
    for method in METHODS:
        for setting in method.settings:
            assert bool(setting.flag) != bool(setting.env)
            assert setting.on != setting.off
            assert not setting.flag or setting.flag.startswith("--")


def test_patterns_can_be_read():
    for method in METHODS:
        for pattern in (*method.variables, method.log):
            re.compile(pattern)


def test_a_plain_engine_has_no_method():
    assert (
        found({"VLLM_LOGGING_LEVEL": "INFO", "CUDA_VISIBLE_DEVICES": "0"}, "auto", "Using FLASH_ATTN") == ()
    )


def test_triattention_is_configured_by_variables_and_confirmed_by_its_line():
    line = "[TriAttention] Runtime (V2) plugin activated: patch_scheduler=True patch_worker=True"
    variables = {"TRIATTN_RUNTIME_KV_BUDGET": "4096"}

    (asked,), (logged,), (silent,) = found(variables), found(variables, "auto", line), found({}, "auto", line)

    assert [each.method for each in (asked, logged, silent)] == [TRIATTENTION] * 3
    assert [each.is_confirmed for each in (asked, logged, silent)] == [False, True, True]
    assert [each.budget for each in (asked, logged, silent)] == [4096, 4096, 2048]
    assert asked.by == "TRIATTN_RUNTIME_KV_BUDGET"


@pytest.mark.parametrize("off", ["0", "false", " 0 "])
def test_a_method_that_is_switched_off_is_off_whatever_else_is_set(off):
    assert found({"TRIATTN_RUNTIME_KV_BUDGET": "4096", "ENABLE_TRIATTENTION": off}) == ()


@pytest.mark.parametrize(
    ("plugins", "is_on"), [("triattention", True), ("a, triattention", True), ("", False), ("another", False)]
)
def test_a_plugin_that_the_engine_does_not_load_is_off(plugins, *, is_on):
    assert bool(found({"TRIATTN_RUNTIME_KV_BUDGET": "4096", "VLLM_PLUGINS": plugins})) is is_on


@pytest.mark.parametrize("budget", ["many", "-5", "", "2k"])
def test_a_budget_that_is_no_number_is_the_default(budget):
    (seen,) = found({"TRIATTN_RUNTIME_KV_BUDGET": budget})

    assert seen.budget == 2048


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3", "fp8_e5m2", "int8"])
def test_the_type_of_the_cache_is_the_engines_own_word(dtype):
    (by_label,), (by_line,) = found({}, dtype), found({}, "", EIGHT_BIT.format(dtype))

    assert (by_label.method, by_line.method) == (EIGHT_BITS, EIGHT_BITS)
    assert by_label.is_confirmed
    assert by_line.is_confirmed


def test_two_methods_at_once_are_both_named():
    seen = found({"ENABLE_TRIATTENTION": "1"}, "fp8")

    assert [each.method.name for each in seen] == ["TriAttention", "fp8"]


def test_the_lab_engine_switches_on_what_is_recognised():
    environment = {"LAB_PLUGINS": "triattention", "ENABLE_TRIATTENTION": "1"}
    parsed = parse_serve(["serve", "m", "--no-enable-prefix-caching", "--kv-cache-dtype=fp8"])

    config = resolve(parsed, environment)

    names = [
        each.method.name for each in found(environment, config.labels["cache_dtype"], *config.method.lines)
    ]
    assert names == ["TriAttention", "fp8"]


TABLE = Path(kvmedic.engines.__file__).parent / "vllm_options.tsv"


def choices() -> list[str]:
    """Return every type that a release takes."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()]
    return sorted({name for row in rows if row[0] == "--kv-cache-dtype" for name in row[-1].split()})


@pytest.mark.parametrize("name", [each for each in choices() if each not in OWN_TYPES])
def test_each_type_of_fewer_bits_is_known_as_compression(name):
    (known,) = [each for each in CACHE_TYPES if each.name == name]
    labelled, asked = (
        recognise_methods(METHODS, signs) for signs in (MethodSigns({}, name), MethodSigns({}, "", (), name))
    )
    logged = recognise_methods(
        METHODS, MethodSigns({}, "", [f"Using {name} data type to store kv cache. It reduces"])
    )

    assert 1 < known.ratio <= 16 / known.bits * 1.02
    for found in (labelled, asked, logged):
        assert [each.method.method_class for each in found] == [MethodClass.QUANTIZATION]
    assert find_method(name) is labelled[0].method


@pytest.mark.parametrize("name", sorted(OWN_TYPES))
def test_the_models_own_types_are_none(name):
    assert recognise_methods(METHODS, MethodSigns({}, name, (), name)) == ()
    assert expected_ratio(name) == 1


def test_a_type_of_a_later_release_counts_as_the_least_of_its_kin():
    assert expected_ratio("turboquant_2bit") == 2.6
    assert expected_ratio("something") == 1


def test_a_name_of_nothing_is_no_method():
    assert find_method("") is None
    assert find_method("Mine") is None
