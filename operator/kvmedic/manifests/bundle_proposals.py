"""What to give to the owner of a pod template so that all settings of a method change: a patch, or words.

Nothing is sent anywhere. Only what the method's own settings are is shown; the rest of the template may hold
secrets.
"""

from __future__ import annotations

from kvmedic.core.bundle import BundlePart, BundleStep, EnvEdit
from kvmedic.core.owner import TemplateOwner
from kvmedic.manifests.proposals import Proposal, in_source, kustomized, make_proposal, token_operations

Operation = dict[str, object]


def bundle_proposal_for(owner: TemplateOwner, namespace: str, step: BundleStep) -> Proposal:
    """Return what to give to an owner so that a method is turned off; `namespace`: of the target."""
    words = f"{step.line()} (all of it in one change)"
    how = in_source(owner)
    if how is None:
        return make_proposal(owner, "it renders the template: take the method's settings off there", words)
    operations = _operations(step)
    if operations is None:
        return make_proposal(owner, how, words)
    return make_proposal(owner, how, kustomized(step.target.kind, namespace, step.target.name, operations))


def _operations(step: BundleStep) -> list[Operation] | None:
    """Return the JSON patch of a bundle; None where it would have to hold the text around a token."""
    found: list[Operation] = []
    for part in step.edit.parts:
        operations = _of_part(part)
        if operations is None:
            return None
        found += [one for one in operations if one not in found or one["op"] != "test"]
    return found


def _of_part(part: BundlePart) -> list[Operation] | None:
    if not isinstance(part, EnvEdit):
        return token_operations(part, "/spec/template")
    container = f"/spec/template/spec/containers/{part.container_index}"
    path = f"{container}/env/{part.index}"
    name: Operation = {"op": "test", "path": f"{container}/name", "value": part.container}
    if part.before is None:
        item = {"name": part.name, "value": part.after}
        first: Operation = {"op": "add", "path": f"{container}/env", "value": [item]}
        return [name, {"op": "add", "path": path, "value": item} if part.index else first]
    test: Operation = {"op": "test", "path": f"{path}/name", "value": part.name}
    if part.after is None:
        return [name, test, {"op": "remove", "path": path}]
    return [name, test, {"op": "replace", "path": f"{path}/value", "value": part.after}]
