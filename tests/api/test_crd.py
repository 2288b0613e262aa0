"""The CustomResourceDefinition as it is generated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.bad_specs import ROWS
from api.rules_of import Placed, nodes, rules
from kvmedic.api.crd import (
    COLUMNS,
    KINDS,
    REMEDIATION,
    STATUS_WORDS,
    Kind,
    spec_schema,
    status_schema,
    to_structural,
    yaml_text,
)
from kvmedic.model.edits import Digest

ROOT = Path(__file__).parents[2]
ADVICE = re.compile(r"\b(use|add|name|raise|lower|remove|delete)\b")
RULES = rules(spec_schema(), "spec")
IMMUTABLE = "spec.targetRef"
"""Required, and immutable by a rule that needs the object before: both are in test_admission.py."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_the_generated_files_are_current_and_every_yaml_reader_sees_the_same_definition(kind: Kind) -> None:
    """Kubernetes reads YAML 1.1, in which `on`, `1_0` and `1:30` mean something else."""
    stored = (ROOT / "crds" / f"kvmedic.io_{kind.plural}.yaml").read_text()
    page = (ROOT / "docs" / "reference" / f"{kind.kind.lower()}.md").read_text()

    assert stored == kind.crd_text() == kind.crd_text(), "stale: run `make crd`"
    assert page == kind.reference_page(), "stale: run `make crd`"
    assert yaml.safe_load(stored) == kind.definition()


def rule_id(rule: Placed) -> str:
    return f"{rule.path}: {rule.value['message']}"


def unindexed(field: str) -> str:
    return re.sub(r"\[\d+\]", "[]", field)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.path != IMMUTABLE], ids=rule_id)
def test_every_rule_has_a_bad_spec(rule: Placed) -> None:
    breaking = [
        row for row in ROWS if unindexed(row.field) == rule.path and row.says in rule.value["message"]
    ]

    assert breaking, "add a row to bad_specs.py that breaks this rule"


def enumerations() -> list[str]:
    return [path for path, node in nodes(spec_schema(), "spec") if "enum" in node]


@pytest.mark.parametrize("path", enumerations())
def test_every_enumeration_has_a_bad_spec(path: str) -> None:
    assert [row for row in ROWS if unindexed(row.field) == path and "supported values" in row.says]


def required() -> list[str]:
    whole = REMEDIATION.schema()["properties"]
    return [
        f"{path}.{name}" for path, node in nodes(whole["spec"], "spec") for name in node.get("required", ())
    ]


@pytest.mark.parametrize("path", [path for path in required() if path != IMMUTABLE])
def test_every_required_field_has_a_bad_spec(path: str) -> None:
    assert [row for row in ROWS if unindexed(row.field) == path and row.says == "Required value"]


@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_every_message_says_what_to_do(rule: Placed) -> None:
    assert ADVICE.search(rule.value["message"])


@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_every_bound_stands_in_the_description(rule: Placed) -> None:
    """`kubectl explain` shows descriptions, not rules."""
    bounds = re.search(
        r"use a (?:duration|number|whole number) from (\S+) to (\S+?),?(?: |$)", rule.value["message"]
    )
    described = {path: node.get("description", "") for path, node in nodes(spec_schema(), "spec")}
    if bounds is None:
        return

    assert all(bound in described[rule.path] for bound in bounds.groups())


@pytest.mark.parametrize(
    "node",
    [n for n in nodes(spec_schema(), "spec") if not n.path.endswith(("[]", "{}"))],
    ids=lambda n: n.path,
)
def test_every_field_is_described(node: Placed) -> None:
    assert node.value["description"]


def test_every_field_of_the_status_is_described() -> None:
    fields = [node for node in nodes(status_schema(), "status") if not node.path.endswith(("[]", "{}"))]

    assert [node.path for node in fields if not node.value.get("description")] == []


def test_no_word_of_the_status_is_left_over() -> None:
    names = {node.path.rpartition(".")[2] for node in nodes(status_schema(), "status")}

    assert set(STATUS_WORDS) <= names


def test_everything_that_a_rule_walks_is_bounded() -> None:
    """The API server refuses rules whose cost it cannot bound."""
    unbounded = [
        path
        for path, node in nodes(spec_schema(), "spec")
        if (node.get("type") == "array" and "maxItems" not in node)
        or (node.get("type") == "string" and "maxLength" not in node and "enum" not in node)
    ]

    assert unbounded == []


def test_defaults_stand_at_every_level() -> None:
    rollout = spec_schema()["properties"]["rollout"]

    assert rollout["default"] == {}
    assert rollout["properties"]["rotationLabel"]["default"] == {}
    assert rollout["properties"]["rotationLabel"]["properties"]["key"]["default"] == "serving"
    assert spec_schema()["properties"]["levers"]["default"] == [{"name": "maxNumSeqs"}]


def test_what_has_no_default_has_none() -> None:
    assert "default" not in spec_schema()["properties"]["objectives"]


def test_an_older_definition_never_refuses_a_newer_record() -> None:
    bounding = {"enum", "maxLength", "maxItems", "minItems", "default", "x-kubernetes-validations"}

    assert [path for path, node in nodes(status_schema(), "status") if bounding & node.keys()] == []
    assert [
        (path, node["required"]) for path, node in nodes(status_schema(), "status") if "required" in node
    ] == [("status.conditions[]", ["type"])]


def test_an_older_definition_prunes_nothing_of_the_run() -> None:
    assert status_schema()["properties"]["run"]["x-kubernetes-preserve-unknown-fields"] is True


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column[0])
def test_every_column_shows_a_field_that_exists(column: tuple[str, ...]) -> None:
    schema: dict[str, Any] = {
        "properties": REMEDIATION.schema()["properties"] | {"metadata": {"properties": {}}}
    }
    schema["properties"]["metadata"]["properties"]["creationTimestamp"] = {}
    parts = re.findall(r"\.(\w+)(?:\[[^]]*\])?", re.sub(r"@\.", "", column[2]))

    assert parts
    for part in parts:
        fields = schema.get("items", schema)["properties"]
        assert part in fields
        schema = fields[part]


class TestStructural:
    def test_a_reference_is_inlined_and_its_own_words_win(self) -> None:
        definitions = {"A": {"type": "object", "title": "A", "description": "general", "properties": {}}}

        assert to_structural({"$ref": "#/$defs/A", "description": "special"}, definitions) == {
            "description": "special",
            "type": "object",
            "properties": {},
        }

    def test_null_is_no_alternative(self) -> None:
        assert to_structural({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, {}) == {
            "type": "string"
        }

    def test_a_constant_is_an_enumeration_of_one(self) -> None:
        assert to_structural({"type": "string", "const": "x", "title": "X"}, {}) == {
            "type": "string",
            "enum": ["x"],
        }

    def test_number_or_percentage(self) -> None:
        assert to_structural({"anyOf": [{"type": "integer"}, {"type": "string"}]}, {}) == {
            "x-kubernetes-int-or-string": True
        }

    def test_one_of_several_objects_is_kept_whole(self) -> None:
        either = {
            "oneOf": [
                {"type": "object", "properties": {"a": {}}},
                {"type": "object", "properties": {"b": {}}},
            ],
            "discriminator": {"propertyName": "kind"},
        }

        assert to_structural(either, {}) == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

    def test_a_union_without_a_form_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="give the field one type"):
            to_structural({"anyOf": [{"type": "object"}, {"type": "array"}]}, {})

    def test_additional_properties_are_kept_only_as_a_schema(self) -> None:
        assert to_structural({"type": "object", "additionalProperties": False}, {}) == {"type": "object"}
        assert to_structural(
            {"type": "object", "additionalProperties": {"type": "string", "title": "T"}}, {}
        ) == {
            "type": "object",
            "additionalProperties": {"type": "string"},
        }

    def test_lines_of_a_paragraph_are_joined(self) -> None:
        assert to_structural({"type": "string", "description": "a\nb\n\nc"}, {})["description"] == "a b\n\nc"


def test_a_digest_is_written_as_a_text() -> None:
    assert yaml_text({"digest": Digest.of("x"), "all": Digest("1" * 32)}) == (
        f"digest: {Digest.of('x')}\nall: '{'1' * 32}'\n"
    )
