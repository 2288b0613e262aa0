"""The spec in Python: what it refuses, what it accepts, what it fills in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from api.bad_specs import MINIMAL, ROWS, Row, window
from api.good_specs import GOOD
from kvmedic.api import resource
from kvmedic.api.resource import SpecInvalid, find_unimplemented, resource_from_manifest, spec_from_wire
from kvmedic.api.rules import OneOf, Rule
from kvmedic.api.spec import KVRemediationSpec
from kvmedic.engines import ENGINES
from kvmedic.model.spec import Mode, Waves

EXAMPLES = sorted((Path(__file__).parents[2] / "deploy" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.claim)
def test_a_bad_spec_is_refused_with_the_field_and_the_fix(row: Row) -> None:
    with pytest.raises(SpecInvalid) as refusal:
        spec_from_wire(row.whole())

    field, says = row.field_in_python or row.field, row.says_in_python or row.says
    assert [p for p in refusal.value.problems if p.startswith(f"{field}: ") and says in p]


@pytest.mark.parametrize("spec", GOOD.values(), ids=GOOD)
def test_bounds_are_inside(spec: dict[str, Any]) -> None:
    assert find_unimplemented(spec_from_wire(spec)) == ()


def test_what_is_not_implemented_is_valid_but_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def holds(spec: KVRemediationSpec) -> bool:
        return spec.rollout.waves is Waves.ONE_BY_ONE

    pending = Rule("", "waves are not implemented yet", holds, ".rollout.waves")
    monkeypatch.setattr(resource, "PENDING", (pending,))

    named = find_unimplemented(spec_from_wire({**MINIMAL, "rollout": {"waves": "Quarter"}}))

    assert named == ("spec.rollout.waves: waves are not implemented yet",)


@pytest.mark.parametrize("name", ["Europe/Berlinn", "Europe", "../UTC", "CEST+1", ""])
def test_a_time_zone_that_there_is_not_is_refused_with_the_field_and_the_fix(name: str) -> None:
    with pytest.raises(SpecInvalid) as refusal:
        spec_from_wire(Row("", window(timeZone=name), "", "").whole())

    assert refusal.value.problems == (
        "spec.limits.windows[0].timeZone: no such time zone: use a name of the IANA database, such as"
        " Europe/Berlin or UTC",
    )


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(SpecInvalid) as refusal:
        spec_from_wire({**MINIMAL, "trigger": {"windows": "5m"}})

    assert refusal.value.problems == ("spec.trigger.windows: unknown field, remove it",)


@pytest.mark.parametrize("name", [each.name for each in ENGINES])
def test_every_engine_that_is_known_can_be_named(name: str) -> None:
    assert spec_from_wire({"targetRef": {"name": "llm", "engine": name}}).target_ref.engine == name


def test_what_a_table_names_is_an_enumeration_and_nothing_else_is_taken() -> None:
    adapter = TypeAdapter(Annotated[str, OneOf(("vLLM", "Other"))])

    assert adapter.json_schema() == {"type": "string", "enum": ["vLLM", "Other"]}
    assert adapter.validate_python("Other") == "Other"
    with pytest.raises(ValidationError, match="'vLLM' or 'Other'"):
        adapter.validate_python("other")


def test_a_spec_that_is_no_object_is_refused() -> None:
    with pytest.raises(SpecInvalid):
        spec_from_wire(None)


def test_the_value_that_was_written_is_not_repeated() -> None:
    with pytest.raises(SpecInvalid) as refusal:
        spec_from_wire({**MINIMAL, "metrics": {"source": "https://user:hunter2@metrics"}})

    assert "hunter2" not in str(refusal.value)


def test_a_new_resource_only_observes() -> None:
    assert spec_from_wire(MINIMAL).mode is Mode.OBSERVE


def test_the_whole_compression_block_reads() -> None:
    given = {
        "method": "TriAttention",
        "class": "CompactingEviction",
        "settings": [{"env": "ENABLE_TRIATTENTION", "before": "0", "after": "1"}],
        "baseline": {"blocks": 150, "deviceMemory": "70Gi", "e2eP95": "53s"},
        "accuracyGate": {"cronJobRef": {"name": "aime24"}, "maxLoss": 0.02},
        "closeBy": "2026-12-31T18:00:00Z",
    }

    read = spec_from_wire({**MINIMAL, "compression": given}).compression

    assert read.model_dump(by_alias=True, exclude_none=True) == {
        **given,
        "probe": {"tokens": 16384, "timeout": "30m"},
        "accuracyGate": {"cronJobRef": {"name": "aime24"}, "maxLoss": 0.02, "timeout": "2h"},
        "allowedFixes": ["RevertBundle"],
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_use_only_what_works(path: Path) -> None:
    resource = resource_from_manifest(yaml.safe_load(path.read_text()))

    assert find_unimplemented(resource.spec) == ()


def test_a_manifest_of_another_kind_is_refused() -> None:
    with pytest.raises(SpecInvalid) as refusal:
        resource_from_manifest(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": MINIMAL}
        )

    assert [problem.partition(": ")[0] for problem in refusal.value.problems] == ["apiVersion", "kind"]
