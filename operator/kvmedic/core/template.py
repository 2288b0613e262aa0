"""The identity of a pod template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

POD_TEMPLATE_HASH = "pod-template-hash"
"""Label that the deployment controller adds to a ReplicaSet's template (apps/v1)."""


def template_hash(template: Mapping[str, object]) -> str:
    """Return the hash of a pod template: 16 hexadecimal digits over its canonical JSON.

    The template is taken as the API server returns it, so defaults are filled in and the same
    template always hashes the same. The controller's own label is left out, so a ReplicaSet's
    template hashes like the Deployment's that made it. One that was read from a manifest's text may hold
    scalars that are no strings in YAML and keep their spelling; they hash by it.
    """
    body = json.loads(json.dumps(template, default=str))
    labels = (body.get("metadata") or {}).get("labels")
    if labels is not None:
        labels.pop(POD_TEMPLATE_HASH, None)
    return _digest(body)


def own_template(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ReplicaSet's pod template as the Deployment has it: without the controller's own label."""
    metadata = template.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(labels := metadata.get("labels"), Mapping):
        return dict(template)
    own = {key: text for key, text in labels.items() if key != POD_TEMPLATE_HASH}
    return {**template, "metadata": {**metadata, "labels": own}}


def body_hash(template: Mapping[str, object]) -> str:
    """Return the hash of what a pod template is beside its metadata, command lines and variables.

    Image, devices, volumes and nodes decide how much memory there is, and none of them is changed by turning
    a flag or restarting a rollout: what is known of one template still counts for the next.
    """
    body = json.loads(json.dumps(template, default=str)).get("spec") or {}
    for container in body.get("containers") or ():
        for field in ("command", "args", "env"):
            container.pop(field, None)
    return _digest(body)


def _digest(body: object) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
