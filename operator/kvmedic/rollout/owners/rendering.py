"""Which field of a controller's own object a token of the pod template is rendered from.

Only where that is certain: a container of the object has the very list, or the very variable, that stands in
the rendered one, at one place; or it has a field of its own for the setting, with the rendered value. A value
that comes from elsewhere, such as a runtime that several objects share, is found at no place of the object.

How each controller renders, and what it does with a Deployment that somebody else changed, is from its
source: KServe `pkg/controller/v1beta1/inferenceservice/reconcilers/deployment` (compares the whole spec but
for the replicas) and `pkg/controller/v1alpha2/llmisvc/lifecycle_crud.go` (updates what differs); OME
`pkg/controller/v1beta1/inferenceservice/reconcilers/deployment` (the same as KServe, by an update);
production-stack `operator/internal/controller/vllmruntime_controller.go`, `deploymentNeedsUpdate` (compares
neither arguments nor the strategy).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from kvmedic.manifests.proposals import RUNTIME_FIELDS
from kvmedic.model.config_edits import OwnerField, Roller
from kvmedic.model.edits import Field, TokenEdit, container_at
from kvmedic.model.engine import Knob

Body: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Rendering:
    """A kind of object from which a controller renders Deployments."""

    plural: str
    versions: frozenset[str]
    """Whose fields are known."""
    rolled_by: Roller
    containers: tuple[str, ...]
    """Where it has what an engine's container is rendered from: `*` is any place of a list. The chart's fence
    (`charts/kvmedic/files/fence.yaml`) lets the operator write below these; a test compares both."""
    fields: Mapping[Knob, str] = field(default_factory=dict)
    """Fields of their own that settings have."""


RENDERINGS: Mapping[tuple[str, str], Rendering] = MappingProxyType(
    {
        ("serving.kserve.io", "InferenceService"): Rendering(
            "inferenceservices",
            frozenset({"v1beta1"}),
            Roller.OWNER,
            ("/spec/predictor/model", "/spec/predictor/containers/*"),
        ),
        ("serving.kserve.io", "LLMInferenceService"): Rendering(
            "llminferenceservices",
            frozenset({"v1alpha1", "v1alpha2"}),
            Roller.OWNER,
            ("/spec/template/containers/*", "/spec/prefill/template/containers/*"),
        ),
        ("ome.io", "InferenceService"): Rendering(
            "inferenceservices",
            frozenset({"v1beta1"}),
            Roller.OWNER,
            ("/spec/engine/runner", "/spec/decoder/runner"),
        ),
        ("production-stack.vllm.ai", "VLLMRuntime"): Rendering(
            "vllmruntimes", frozenset({"v1alpha1"}), Roller.KVMEDIC, ("/spec/vllmConfig",), RUNTIME_FIELDS
        ),
    }
)
"""By group and kind."""

LISTS = ("args", "command", "extraArgs")
"""Fields with arguments that are put into a container as they are."""


@dataclass(frozen=True, slots=True)
class OwnerBody:
    """An owner's object, and what it is called."""

    api_version: str
    kind: str
    name: str
    uid: str
    spec: Body


def rendering_of(api_version: str, kind: str) -> Rendering | str:
    """Return what is known of a kind, or why none of its fields is written."""
    group, _, version = api_version.partition("/")
    found = RENDERINGS.get((group, kind))
    if found is None:
        return f"how {kind} of {group or 'the core group'} renders it is not known"
    if version not in found.versions:
        return f"{kind} of version {version} is not known: {', '.join(sorted(found.versions))} is"
    return found


def field_of(
    owner: OwnerBody, rendering: Rendering, template: Body, edit: TokenEdit, knob: Knob
) -> OwnerField | str:
    """Return the field that a token is rendered from, or why it is not certain which."""
    container = container_at(template, edit.container_index) or {}
    places_in = _places_of_variable if edit.field is Field.ENV else _places_in_lists
    places = [
        place
        for path, holder in _holders(owner.spec, rendering.containers)
        for place in places_in(path, holder, container, edit)
    ]
    named = (owner.api_version, owner.kind, owner.name, owner.uid)
    who = f"{owner.kind}/{owner.name}"
    if rendering.rolled_by is Roller.OWNER and not container.get("readinessProbe"):
        return (
            f"{edit.container} has no readiness probe, so the rollout of {who} would not wait for the engine"
        )
    if len(places) > 1:
        return f"{who} has {edit.before or edit.after} at {len(places)} places: {', '.join(places)}"
    if places:
        return OwnerField(*named, places[0], edit.before, edit.after, rendering.rolled_by, edit.at)
    path = rendering.fields.get(knob)
    if path is not None and (typed := _own_values(owner.spec, path, edit)) is not None:
        return OwnerField(*named, path, *typed, rendering.rolled_by)
    return f"no field of {who} has {edit.before or edit.after} as it is rendered"


def _holders(spec: Body, containers: Sequence[str]) -> Iterator[tuple[str, Body]]:
    """Yield what an object has at places of containers, with the path of each."""
    for pattern in containers:
        *parents, last = pattern.split("/")[2:]
        found: object = spec
        for key in parents:
            found = found.get(key) if isinstance(found, Mapping) else None
        if last == "*":
            path = pattern.removesuffix("/*")
            listed = found if isinstance(found, list) else []
            yield from ((f"{path}/{at}", each) for at, each in enumerate(listed) if isinstance(each, Mapping))
        elif isinstance(found, Mapping) and isinstance(one := found.get(last), Mapping):
            yield pattern, one


def _places_in_lists(path: str, holder: Body, container: Body, edit: TokenEdit) -> Iterator[str]:
    """Yield where the edited token is in a list that stands whole in the rendered one."""
    rendered = container.get(edit.field)
    for name in LISTS:
        listed = holder.get(name)
        if not (isinstance(listed, list) and isinstance(rendered, list)) or not listed:
            continue
        starts = [
            at
            for at in range(len(rendered) - len(listed) + 1)
            if rendered[at : at + len(listed)] == listed and _is_within(edit, at, len(listed), len(rendered))
        ]
        if len(starts) == 1:
            yield f"{path}/{name}/{edit.index - starts[0]}"


def _is_within(edit: TokenEdit, start: int, length: int, whole: int) -> bool:
    """Return whether an edit is of one of a list's own tokens, or adds or removes the last of all."""
    if edit.at is not None or None not in (edit.before, edit.after):
        return start <= edit.index < start + length
    end = whole if edit.before is None else whole - 1
    return edit.index == end and start + length == whole


def _places_of_variable(path: str, holder: Body, container: Body, edit: TokenEdit) -> Iterator[str]:
    """Yield where the object gives the variable that is edited, with the rendered value."""
    rendered, given = container.get("env"), holder.get("env")
    entry = rendered[edit.index] if isinstance(rendered, list) and edit.index < len(rendered) else None
    if not isinstance(entry, Mapping) or not isinstance(entry.get("value"), str):
        return
    for at, each in enumerate(given if isinstance(given, list) else ()):
        if each == entry:
            yield f"{path}/env/{at}/value"


def _own_values(spec: Body, path: str, edit: TokenEdit) -> tuple[str, str] | None:
    """Return the values before and after of a setting's own field; None where it is not what is rendered."""
    found: object = spec
    for key in path.split("/")[2:]:
        found = found.get(key) if isinstance(found, Mapping) else None
    if edit.before is None or edit.after is None or edit.at is not None:
        return None
    if isinstance(found, bool):
        before, after = (not each.startswith("--no-") for each in (edit.before, edit.after))
        known = before is found and after is not found
        return (str(before).lower(), str(after).lower()) if known else None
    if not isinstance(found, str | int | float) or str(found) != edit.before:
        return None
    return edit.before, edit.after
