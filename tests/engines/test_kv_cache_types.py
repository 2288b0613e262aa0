"""Types of the cache of fewer bits: all that vLLM has, each with its bits and what a pool gains."""

from pathlib import Path

import pytest

import kvmedic.engines
from kvmedic.engines.kv_methods import CACHE_TYPES, METHODS, OWN_TYPES, expected_ratio, method_named
from kvmedic.model.compression import MethodClass, Told, recognise_methods

TABLE = Path(kvmedic.engines.__file__).parent / "vllm_options.tsv"


def choices() -> list[str]:
    """Return every type that a release takes."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()]
    return sorted({name for row in rows if row[0] == "--kv-cache-dtype" for name in row[-1].split()})


@pytest.mark.parametrize("name", [each for each in choices() if each not in OWN_TYPES])
def test_each_type_of_fewer_bits_is_known_as_compression(name):
    (known,) = [each for each in CACHE_TYPES if each.name == name]
    labelled, asked = (recognise_methods(METHODS, told) for told in (Told({}, name), Told({}, "", (), name)))
    logged = recognise_methods(
        METHODS, Told({}, "", [f"Using {name} data type to store kv cache. It reduces"])
    )

    assert 1 < known.ratio <= 16 / known.bits * 1.02
    for found in (labelled, asked, logged):
        assert [each.method.method_class for each in found] == [MethodClass.QUANTIZATION]
    assert method_named(name) is labelled[0].method


@pytest.mark.parametrize("name", sorted(OWN_TYPES))
def test_the_models_own_types_are_none(name):
    assert recognise_methods(METHODS, Told({}, name, (), name)) == ()
    assert expected_ratio(name) == 1


def test_a_type_of_a_later_release_counts_as_the_least_of_its_kin():
    assert expected_ratio("turboquant_2bit") == 2.6
    assert expected_ratio("something") == 1


def test_a_name_of_nothing_is_no_method():
    assert method_named("") is None
    assert method_named("Mine") is None
