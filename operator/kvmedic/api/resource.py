"""The resource as a whole: `KVRemediation`, and how its spec is read from a stored object or a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from kvmedic.api.problems import SpecInvalid, problems_of
from kvmedic.api.rules import Wire
from kvmedic.api.spec import KVRemediationSpec

GROUP = "kvmedic.io"
VERSION = "v1alpha1"
KIND = "KVRemediation"
PLURAL = "kvremediations"
SINGULAR = "kvremediation"
SHORT_NAMES = ("kvr",)
CATEGORIES = ("all", "kvmedic")
"""`kubectl get all` lists a fleet's Deployment with what looks after it; `kubectl get kvmedic` lists every
kind of this project."""


class Metadata(BaseModel):
    """The part of an object's metadata that a manifest has; the rest is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    """Name of the resource."""
    namespace: str | None = None
    """Namespace; None where the client's default applies."""


class KVRemediation(Wire):
    """Looks after one vLLM fleet.

    It says why the fleet thrashes on KV cache, changes one thing, and takes it back if it did not help.
    """

    api_version: Literal["kvmedic.io/v1alpha1"]
    """Version of the resource."""
    kind: Literal["KVRemediation"]
    """Kind of the resource."""
    metadata: Metadata
    """Name and namespace."""
    spec: KVRemediationSpec
    """What to look after, how far kvmedic may go, and when."""
    status: dict[str, Any] | None = None
    """What kvmedic saw, does and did; read by `kvmedic.api.status`, because a spec that cannot be followed
    must not make a record unreadable."""


def spec_from_wire(spec: object) -> KVRemediationSpec:
    """Return the spec of a stored object (the value of its `spec`).

    Raises:
        SpecInvalid: a field has a value that this version does not accept.
    """
    try:
        return KVRemediationSpec.model_validate(spec)
    except ValidationError as error:
        raise SpecInvalid(problems_of(error, "spec")) from error


def resource_from_manifest(manifest: Mapping[str, Any]) -> KVRemediation:
    """Return the resource that a manifest describes.

    Raises:
        SpecInvalid: it is not a valid KVRemediation.
    """
    try:
        return KVRemediation.model_validate(manifest)
    except ValidationError as error:
        raise SpecInvalid(tuple(p.removeprefix(".") for p in problems_of(error, ""))) from error
