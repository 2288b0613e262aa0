"""Walks a structural schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx

Schema = dict[str, Any]


class Placed(NamedTuple):
    """Something in a schema, with the path of the field that it is about; lists are `[]`."""

    path: str
    value: Any


def nodes(schema: Schema, path: str) -> Iterator[Placed]:
    yield Placed(path, schema)
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def rules(schema: Schema, path: str) -> list[Placed]:
    return [
        Placed(f"{at}{rule.get('fieldPath', '')}", rule)
        for at, node in nodes(schema, path)
        for rule in node.get("x-kubernetes-validations", ())
    ]


def causes(response: httpx.Response) -> list[tuple[str, str]]:
    """Return what the API server found, as (field, message)."""
    return [(cause["field"], cause["message"]) for cause in response.json()["details"]["causes"]]
