"""What an owner does with a change of a Deployment that is not its own, by its own object and the marks.

Sources: Argo CD docs, "Diffing Customization" and "Automated Sync Policy" (`selfHeal`, `ignoreDifferences`,
`RespectIgnoreDifferences`); Flux docs, `Kustomization` ("Controlling the apply behavior of resources", and
`spec.ignore` of kustomize-controller 1.9) and `HelmRelease` ("Drift detection"); Helm docs, "Improved Upgrade
Strategy: 3-way Strategic Merge Patches".

A rule counts where it is a JSON pointer, or a jq path that names its fields one by one. Any other expression
is not evaluated, and counts as none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from kvmedic.model.edits import BundleEdit, Field, ReferenceEdit, TemplateEdit, TokenEdit, container_at
from kvmedic.model.plan import (
    BundleStep,
    EvaluationStep,
    FlagStep,
    ReplaceStep,
    ReplicasStep,
    RevisionStep,
    Step,
    TrialStep,
)

MANAGER = "kvmedic"
"""Our field manager: what Argo CD ignores of it are exactly the fields of a run."""

ROLLOUT_FIELDS = (
    "/spec/strategy",
    "/spec/minReadySeconds",
    "/spec/progressDeadlineSeconds",
    "/spec/paused",
)
"""What a frozen rollout changes for a while. Set back in the middle, it rolls the rest undrained."""

HOWTO = "docs/howto/change-what-others-own.md"

_CONTAINERS = "/spec/template/spec/containers"


@dataclass(frozen=True, slots=True)
class Reversion:
    """What becomes of a change that is not the owner's own."""

    at_once: bool
    """The owner is known to put it back in the middle of the run."""
    message: str
    """What was seen, in one clause; where it is put back at once, also what to do."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The Deployment that a step changes, and what of it."""

    namespace: str
    name: str
    marks: Mapping[str, str]
    """Its labels and annotations."""
    template: Mapping[str, object]
    fields: tuple[str, ...]
    """JSON pointers."""


def fields_of(step: Step) -> tuple[str, ...]:
    """Return what a step changes of a Deployment, as JSON pointers; nothing where it changes none."""
    match step:
        case FlagStep() | BundleStep():
            return (*_fields_of_edit(step.edit), *ROLLOUT_FIELDS)
        case RevisionStep():
            return ("/spec/template", *ROLLOUT_FIELDS)
        case ReplaceStep():
            return ("/spec/replicas",)
        case ReplicasStep():
            return () if step.holder else ("/spec/replicas",)
        case TrialStep() | EvaluationStep():
            return ()
        case _:
            assert_never(step)


def _fields_of_edit(edit: TemplateEdit) -> tuple[str, ...]:
    match edit:
        case TokenEdit():
            return (_container_field(edit.container_index, edit.field),)
        case ReferenceEdit():
            return (f"/spec/template/spec/volumes/{edit.volume_index}",)
        case BundleEdit():
            found = (
                _container_field(
                    part.container_index, part.field if isinstance(part, TokenEdit) else Field.ENV
                )
                for part in edit.parts
            )
            return tuple(dict.fromkeys(found))
        case _:
            assert_never(edit)


def _container_field(index: int, field: Field) -> str:
    return f"{_CONTAINERS}/{index}/{field}"


def by_helm(name: str) -> Reversion:
    """Return what a Helm release does: its next upgrade compares manifest with manifest, and puts its own."""
    return Reversion(False, f"the next upgrade of {name} puts it back unless its values have it")


def report_unreadable_owner(name: str) -> Reversion:
    """Return that nothing is known of an owner beside that it is one."""
    return Reversion(False, f"whether {name} leaves it alone cannot be read; one revert ends it")


def by_argo_cd(name: str, application: Mapping[str, object], defaults: object, changed: Changed) -> Reversion:
    """Return what an Argo CD Application does.

    Args:
        name: how the owner is called.
        application: the object.
        defaults: a list of further rules, of the whole Argo CD; each as in `ignoreDifferences`.
        changed: the Deployment.
    """
    spec = _section(application.get("spec"))
    policy = _section(spec.get("syncPolicy"))
    automated = _section(policy.get("automated"))
    marks = _section(_section(application.get("metadata")).get("annotations"))
    is_skipped = marks.get("argocd.argoproj.io/skip-reconcile") == "true"
    heals = automated.get("selfHeal") is True and automated.get("enabled") is not False and not is_skipped
    rules = (*_items(spec.get("ignoreDifferences")), *_items(defaults))
    missing = _find_unignored_by_argo_cd(changed, [each for each in rules if _is_for(each, changed)])
    if heals and missing:
        return Reversion(
            True,
            f"{name} heals itself (syncPolicy.automated.selfHeal), and no rule makes it ignore "
            f"{', '.join(missing)}: add `managedFieldsManagers: [{MANAGER}]` to its ignoreDifferences, and "
            f"the syncOption RespectIgnoreDifferences=true ({HOWTO})",
        )
    if missing:
        return Reversion(False, f"the next sync of {name} puts it back unless it is committed")
    if "RespectIgnoreDifferences=true" not in _texts(policy.get("syncOptions")):
        lacks = "lacks the syncOption RespectIgnoreDifferences=true, so its next sync puts it back"
        return Reversion(False, f"{name} {lacks} unless it is committed")
    return Reversion(False, f"{name} ignores the fields of a run")


SSA = "kustomize.toolkit.fluxcd.io/ssa"
LEFT_ALONE = frozenset({"ifnotpresent", "ignore"})
"""Values of that mark with which Flux's kustomize-controller does not touch an object that is there."""


def by_kustomization(name: str, body: Mapping[str, object] | None, changed: Changed) -> Reversion:
    """Return what a Flux Kustomization does, which corrects drift at each interval; None: it was not read."""
    if changed.marks.get(SSA, "").lower() in LEFT_ALONE:
        return Reversion(False, f"{name} leaves the Deployment alone ({SSA})")
    if body is None:
        return report_unreadable_owner(name)
    spec = _section(body.get("spec"))
    if spec.get("suspend") is True:
        return Reversion(False, f"{name} is suspended; once resumed it puts it back unless it is committed")
    missing = _find_unignored_by_flux(changed, spec.get("ignore"))
    if not missing:
        return Reversion(False, f"{name} ignores the fields of a run")
    return Reversion(
        True,
        f"{name} corrects drift every {spec.get('interval', 'few minutes')}, and no rule makes it ignore "
        f"{', '.join(missing)}: annotate the Deployment {SSA}: IfNotPresent in its source, or add the "
        f"paths to spec.ignore ({HOWTO})",
    )


DRIFT_DETECTION = "helm.toolkit.fluxcd.io/driftDetection"


def by_helm_release(name: str, body: Mapping[str, object] | None, changed: Changed) -> Reversion:
    """Return what a Flux HelmRelease does; None: it was not read."""
    at_upgrade = Reversion(False, f"the next upgrade of {name} puts it back unless its values have it")
    if changed.marks.get(DRIFT_DETECTION) == "disabled":
        return at_upgrade
    if body is None:
        return report_unreadable_owner(name)
    spec = _section(body.get("spec"))
    detection = _section(spec.get("driftDetection"))
    missing = _find_unignored_by_flux(changed, detection.get("ignore"))
    if spec.get("suspend") is True or detection.get("mode") != "enabled" or not missing:
        return at_upgrade
    return Reversion(
        True,
        f"{name} corrects drift (driftDetection.mode: enabled), and no rule makes it ignore "
        f"{', '.join(missing)}: add the paths to its driftDetection.ignore, or annotate the Deployment "
        f"{DRIFT_DETECTION}: disabled ({HOWTO})",
    )


def _is_for(rule: Mapping[str, object], changed: Changed) -> bool:
    """Return whether a rule of Argo CD is for a Deployment; a star stands for every group or kind."""
    desired = (("group", "apps"), ("kind", "Deployment"), ("name", changed.name))
    return all(rule.get(key) in (None, "", "*", text) for key, text in desired) and (
        rule.get("namespace") in (None, "", changed.namespace)
    )


def _find_unignored_by_argo_cd(changed: Changed, rules: Sequence[Mapping[str, object]]) -> list[str]:
    """Return which of the changed fields no rule of Argo CD makes it ignore."""
    if any(MANAGER in _texts(rule.get("managedFieldsManagers")) for rule in rules):
        return []
    paths = [*(_pointer(text) for rule in rules for text in _texts(rule.get("jsonPointers")))]
    for rule in rules:
        paths += [path for text in _texts(rule.get("jqPathExpressions")) if (path := _jq_path(text))]
    return _without_rule(changed, paths)


def _find_unignored_by_flux(changed: Changed, rules: object) -> list[str]:
    """Return which of the changed fields no rule of Flux makes it ignore."""
    paths = [
        _pointer(text)
        for rule in _items(rules)
        if _selects(_section(rule.get("target")), changed)
        for text in _texts(rule.get("paths"))
    ]
    return _without_rule(changed, paths)


def _selects(target: Mapping[str, object], changed: Changed) -> bool:
    """Return whether a target of Flux selects the Deployment; selectors of labels are not evaluated."""
    if target.get("labelSelector") or target.get("annotationSelector"):
        return False
    desired = {
        "group": "apps",
        "version": "v1",
        "kind": "Deployment",
        "name": changed.name,
        "namespace": changed.namespace,
    }
    return all(_matches(str(target.get(key) or ""), text) for key, text in desired.items())


def _matches(expression: str, text: str) -> bool:
    try:
        return not expression or re.fullmatch(expression, text) is not None
    except re.error:
        return False


def _without_rule(changed: Changed, paths: Sequence[tuple[str, ...]]) -> list[str]:
    return [
        field
        for field in changed.fields
        if not any(_covers(path, _pointer(field), changed.template) for path in paths)
    ]


def _covers(path: tuple[str, ...], field: tuple[str, ...], template: Mapping[str, object]) -> bool:
    """Return whether a rule's path is a field, or above it."""
    if not path or len(path) > len(field):
        return False
    return all(_is_same(*each, template) for each in zip(path, field, strict=False))


def _is_same(ruled: str, part: str, template: Mapping[str, object]) -> bool:
    """Return whether one part of a rule's path means one part of a field's: any place, or one by its name."""
    if ruled in (part, "[]"):
        return True
    if not ruled.startswith("=") or not part.isdigit():
        return False
    container = container_at(template, int(part))
    return container is not None and container.get("name") == ruled[1:]


def _pointer(text: str) -> tuple[str, ...]:
    """Return the parts of a JSON pointer (RFC 6901)."""
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.removeprefix("/").split("/"))


_JQ = re.compile(
    r"""\.?\[(?P<index>\d*)\]\??
      | \.?\[?"(?P<quoted>[\w-]+)"\]?\??
      | \.(?P<key>[\w-]+)\??
      | \|\s*select\(\s*\.name\s*==\s*"(?P<name>[^"]+)"\s*\)
      | \|(?=\s*\.)
      | [()\s]""",
    re.VERBOSE,
)


def _jq_path(text: str) -> tuple[str, ...] | None:
    """Return the parts of a jq path; `[]`: any place, `=NAME`: the one of that name. None: not understood."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        found = _JQ.match(text, at)
        if found is None:
            return None
        at = found.end()
        if (name := found["name"]) is not None:
            if not parts or parts[-1] != "[]":
                return None
            parts[-1] = f"={name}"
        elif (index := found["index"]) is not None:
            parts.append(index or "[]")
        elif key := found["quoted"] or found["key"]:
            parts.append(key)
    return tuple(parts) or None


def _section(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> Iterator[Mapping[str, object]]:
    found: Iterable[object] = value if isinstance(value, list) else ()
    return (each for each in found if isinstance(each, Mapping))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list) else ()
