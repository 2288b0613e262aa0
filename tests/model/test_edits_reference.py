"""A volume's ConfigMap, pointed to another one and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import jsonpatch
import pytest

from kvmedic.model.edits import EditState, ReferenceEdit

ALONE = ReferenceEdit("config", 1, None, "limits", "limits-0123456789")
PROJECTED = ReferenceEdit("config", 1, 1, "limits", "limits-0123456789")


def alone(name: str = "limits", volume: str = "config") -> dict[str, Any]:
    volumes = [{"name": "cache", "emptyDir": {}}, {"name": volume, "configMap": {"name": name}}]
    return {"spec": {"containers": [], "volumes": volumes}}


def projected(name: str = "limits") -> dict[str, Any]:
    sources = [{"secret": {"name": "limits"}}, {"configMap": {"name": name, "items": []}}]
    volumes = [{"name": "cache"}, {"name": "config", "projected": {"sources": sources}}]
    return {"spec": {"volumes": volumes}}


SHAPES = [pytest.param(ALONE, alone, id="alone"), pytest.param(PROJECTED, projected, id="projected")]


@pytest.mark.parametrize(("edit", "shape"), SHAPES)
def test_the_one_name_changes_there_and_back_and_by_patch(edit: ReferenceEdit, shape: Any) -> None:
    template = shape()

    operations = [operation.as_json() for operation in edit.patch(template)]

    assert edit.apply(template) == shape("limits-0123456789")
    assert template == shape()
    assert edit.inverse().apply(shape("limits-0123456789")) == template
    assert edit.inverse().inverse() == edit
    patched = jsonpatch.apply_patch({"spec": {"template": template}}, operations)
    assert patched == {"spec": {"template": shape("limits-0123456789")}}


@pytest.mark.parametrize(("edit", "shape"), SHAPES)
def test_the_state_is_known_by_the_name(edit: ReferenceEdit, shape: Any) -> None:
    states = [edit.state(shape(name)) for name in ("limits", "limits-0123456789", "another")]

    assert states == [EditState.BEFORE, EditState.AFTER, EditState.OTHER]


@pytest.mark.parametrize(
    "template",
    [
        alone("another"),
        alone(volume="moved"),
        projected(),
        {"spec": {"volumes": [{"name": "config", "configMap": {"name": "limits"}}]}},
        {"spec": {}},
        {},
    ],
    ids=["another ConfigMap", "another volume", "another kind", "another place", "no volumes", "no spec"],
)
def test_a_template_that_is_another_is_not_edited(template: dict[str, Any]) -> None:
    assert ALONE.state(template) is EditState.OTHER
    with pytest.raises(ValueError, match="volume config is not what the edit expects"):
        ALONE.apply(template)
    with pytest.raises(ValueError, match="volume config is not what the edit expects"):
        ALONE.patch(template)


def test_applying_twice_is_applying_once_and_a_patch_is_made_only_once() -> None:
    once = ALONE.apply(alone())

    assert ALONE.apply(once) == once
    with pytest.raises(ValueError, match="is not what the edit expects"):
        ALONE.patch(once)


def test_the_patch_fails_where_the_volumes_have_moved_since() -> None:
    operations = [operation.as_json() for operation in ALONE.patch(alone())]
    moved = {"spec": {"volumes": list(reversed(alone()["spec"]["volumes"]))}}

    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch({"spec": {"template": moved}}, operations)


def test_an_edit_holds_names_only() -> None:
    assert set(asdict(ALONE).values()) == {"config", 1, None, "limits", "limits-0123456789"}
