"""charts/kvmedic/README.md: every value of the chart with its type, its default and what it is for.

Names, types and bounds come from values.schema.json, defaults from values.yaml. What the chart hands on to
the operator has its default from the operator's settings, and its meaning where the schema is silent.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from documentation.generated import with_part
from kvmedic import settings
from kvmedic.api.rules import format_duration

CHART = Path(__file__).resolve().parents[2] / "charts" / "kvmedic"
README = CHART / "README.md"
SECTIONS = {
    "sources": settings.SourceOptions,
    "notify": settings.NotifyOptions,
    "scrape": settings.ScrapeOptions,
    "pace": settings.PaceOptions,
    "leadership": settings.LeadershipOptions,
    "kubernetes": settings.KubernetesOptions,
    "nodeHealth": settings.HealthOptions,
    "probe": settings.ProbeOptions,
    "budgets": settings.BudgetOptions,
    "storm": settings.StormOptions,
    "compression": settings.CompressionOptions,
}
"""What the chart hands on, by its value."""
NAMED = {"sources", "notify"}
"""Values whose fields stand below a name that the reader chooses."""
HELMS_OWN = {"global"}
TYPES = {
    "duration": "duration",
    "label": "name",
    "name": "name",
    "optionalName": "name",
    "strings": "map of texts",
    "labels": "map of labels",
    "quantities": "map of quantities",
    "key": "`{name, key}`",
}
"""What the schema's definitions are called."""
Schema = dict[str, Any]


class ValueRow:
    """One row: a value, or a section of values, which has no type and no default of its own."""

    def __init__(self, path: tuple[str, ...], schema: Schema, definition: str, *, is_section: bool) -> None:
        self.path, self.schema, self.definition = path, schema, definition
        self.is_section = is_section

    @property
    def name(self) -> str:
        """The value as `--set` takes it; NAME is for the reader to choose."""
        return ".".join(self.path)

    @property
    def description(self) -> str:
        """What the value is for.

        Raises:
            ValueError: neither the schema nor the operator's settings say it.
        """
        said = self.schema.get("description") or _setting(self.path).get("description")
        if not said:
            raise ValueError(f"{self.name} has no description: give it one in values.schema.json")
        return " ".join(str(said).split())

    @property
    def type(self) -> str:
        """What may be written, with its bounds."""
        if self.is_section:
            return ""
        if self.definition in TYPES:
            return TYPES[self.definition]
        if "enum" in self.schema:
            return " or ".join(f"`{one}`" for one in self.schema["enum"])
        kind = str(self.schema.get("type", "text")).replace("string", "text")
        if kind == "array":
            return f"list of {_plural(self.schema.get('items', {}))}"
        return f"{kind}{_bounds(self.schema)}"

    @property
    def default(self) -> str:
        """The default in the chart, else the operator's own; empty: there is none."""
        if self.is_section:
            return ""
        node: Any = _values()
        for part in self.path:
            node = node.get(part) if isinstance(node, dict) else None
        return _text(node if node is not None else _operators_default(self.path))


@cache
def _values() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


@cache
def _settings(section: str) -> Schema:
    options = SECTIONS.get(section)
    return options.model_json_schema(by_alias=True) if options else {}


def _setting(path: tuple[str, ...]) -> Schema:
    """What the operator's settings say of a value that the chart hands on."""
    schema = _settings(path[0])
    for part in path[2:] if path[0] in NAMED else path[1:]:
        held = schema.get("properties", {}).get(part, {})
        references = [one["$ref"] for one in (held, *held.get("anyOf", [])) if "$ref" in one]
        name = "".join(references[:1]).rpartition("/")[2]
        schema = {**schema.get("$defs", {}).get(name, {}), **held, "$defs": schema.get("$defs", {})}
    return schema


def _operators_default(path: tuple[str, ...]) -> Any:
    options = SECTIONS.get(path[0])
    parts = path[2:] if path[0] in NAMED else path[1:]
    if options is None or len(parts) != 1:
        return _setting(path).get("default")
    fields = {field.alias: field.default for field in options.model_fields.values()}
    return fields.get(parts[0])


def _text(default: Any) -> str:
    if isinstance(default, timedelta):
        default = format_duration(default)
    if default is None or type(default).__module__.startswith(("pydantic", "kvmedic")):
        return ""
    return f"`{json.dumps(default)}`"


def _plural(items: Schema) -> str:
    return "texts" if items.get("type") == "string" or "$ref" in items else "objects"


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if low is None or high is None:
        return ""
    return f", {'over ' if 'exclusiveMinimum' in schema else ''}{low} to {high}"


def value_rows() -> Iterator[ValueRow]:
    """Every value in the order of the schema, each section before its values."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    for name, held in schema["properties"].items():
        if name not in HELMS_OWN:
            yield from _rows((name,), held, schema["definitions"])


def _rows(path: tuple[str, ...], held: Schema, definitions: dict[str, Schema]) -> Iterator[ValueRow]:
    definition = str(held.get("$ref", "")).rpartition("/")[2]
    schema = {**definitions.get(definition, {}), **held}
    parts = {} if definition in TYPES else schema.get("properties", {})
    free = schema.get("additionalProperties")
    if path[0] in NAMED and len(path) == 1 and isinstance(free, dict):
        parts = {"NAME": free}
    yield ValueRow(path, schema, definition, is_section=bool(parts))
    for name, part in parts.items():
        yield from _rows((*path, name), part, definitions)


def values_table() -> str:
    """The reference as a Markdown table."""
    lines = ["| value | type | default | meaning |", "| --- | --- | --- | --- |"]
    for row in value_rows():
        name = f"**`{row.name}`**" if row.is_section else f"`{row.name}`"
        cells = (name, row.type, row.default, row.description)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def readme() -> str:
    """charts/kvmedic/README.md with its table anew."""
    return with_part(README.read_text(encoding="utf-8"), "values", values_table())
