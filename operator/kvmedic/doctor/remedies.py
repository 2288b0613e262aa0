"""What to do against each reason not to begin: the command for a cluster, and the field for a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from types import MappingProxyType

from kvmedic.api.resource import KIND
from kvmedic.model.reasons import Reason, command_for

_KUBECTL = "kubectl -n $namespace"
UNDRAINED = "a changed pod template replaces every replica undrained"
LOOKS = "none: it only looks"
_APPLY = """kubectl -n $namespace patch kvr $name --type=merge -p '{"spec":{"ownership":"Apply"}}'"""

FIXES: Mapping[Reason, tuple[str, str]] = MappingProxyType(
    {
        Reason.NO_REPLICAS: (f"{_KUBECTL} scale deployment/$target --replicas=1", "one replica starts"),
        Reason.TARGET_PAUSED: (
            f"{_KUBECTL} rollout resume deployment/$target",
            "what was changed in its template meanwhile is rolled out undrained",
        ),
        Reason.OWNED_BY_CONTROLLER: (
            "kvmedic plan $name -n $namespace",
            "none: it prints the owner's change",
        ),
        Reason.MANAGED_BY_GITOPS: (
            _APPLY,
            "what the tool has no rule for it puts back, undrained: docs/howto/change-what-others-own.md",
        ),
        Reason.MANAGED_BY_HELM: (
            _APPLY,
            "an upgrade without the value puts it back, undrained; the value is named when a change is kept",
        ),
        Reason.DRAIN_IMPOSSIBLE: (
            f"{_KUBECTL} get services,networkpolicies,poddisruptionbudgets -o wide",
            f"none: it only looks. A label that is added is another matter: {UNDRAINED}",
        ),
        Reason.TARGET_NOT_SETTLED: (f"{_KUBECTL} rollout status deployment/$target", LOOKS),
        Reason.AUTOSCALER_ACTIVE: (f"{_KUBECTL} get hpa,scaledobjects", LOOKS),
        Reason.ENGINE_UNRECOGNISED: (
            "name spec.targetRef.container, and spec.targetRef.engine: vLLM where the image starts it",
            "none; of an image that starts something else args would be read as flags of vLLM",
        ),
        Reason.FLAG_NOT_EDITABLE: (
            f"{_KUBECTL} get deployment $target -o yaml | kvmedic flags show -f -",
            f"none: it only looks. Moving a flag is another matter: {UNDRAINED}",
        ),
    }
)
"""What to type, and what that does to a fleet that serves. For any other reason its own remedy counts."""


def fix_for(reason: Reason, names: Mapping[str, str]) -> tuple[str, str]:
    """Return what to type against a reason and the risk of it; nothing where only its message helps."""
    if reason in FIXES:
        command, risk = FIXES[reason]
        return Template(command_for(command, names)).substitute(names), risk
    remedy = reason.remedy
    if remedy is None:
        return "", ""
    only_looks = remedy.purpose.startswith(("to see ", "to watch "))
    return remedy.write_command(names), LOOKS if only_looks else remedy.purpose


def second_replica(names: Mapping[str, str]) -> tuple[str, str]:
    """Return what lets a target be one replica short that has only one, and the risk of it."""
    command = command_for(f"{_KUBECTL} scale deployment/$target --replicas=2", names)
    risk = "a second replica starts and takes as many devices as the first"
    return Template(command).substitute(names), risk


TARGET, RESOURCE, OTHER = "target", "resource", "other"
"""Whose field a manifest's fix is of: the workload's, its KVRemediation's, or that of an object that the
message names."""
_SPARE = "spec.rollout.spare: BestEffort where the fleet may go one short for a drain and a start"

EDITS: Mapping[Reason, tuple[str, str]] = MappingProxyType(
    {
        Reason.NO_REPLICAS: (TARGET, "spec.replicas: 1 or more"),
        Reason.TARGET_PAUSED: (TARGET, "spec.paused: false, or leave it out"),
        Reason.OWNED_BY_CONTROLLER: (
            OTHER,
            "the flag in the owner's own object, as its controller writes this one",
        ),
        Reason.MANAGED_BY_GITOPS: (RESOURCE, "spec.ownership: Apply"),
        Reason.MANAGED_BY_HELM: (RESOURCE, "spec.ownership: Apply"),
        Reason.MANAGED_BY_VPA: (OTHER, 'spec.updatePolicy.updateMode: "Off" of the VerticalPodAutoscaler'),
        Reason.DRAIN_IMPOSSIBLE: (
            OTHER,
            "the selector of the object that is named (spec.podSelector, spec.selector)",
        ),
        Reason.ROTATION_LABEL_UNUSABLE: (
            RESOURCE,
            "spec.rollout.rotation: Auto, or another spec.rotationLabel",
        ),
        Reason.ROTATION_LABEL_WITHOUT_EFFECT: (
            RESOURCE,
            "spec.rollout.rotation: Auto, or another spec.rotationLabel",
        ),
        Reason.ENGINE_UNRECOGNISED: (
            RESOURCE,
            "spec.targetRef.container, and spec.targetRef.engine: vLLM where the image starts it",
        ),
        Reason.LEVER_NOT_ALLOWED: (RESOURCE, "spec.levers: one lever at least, with wide enough bounds"),
        Reason.FLAG_UNKNOWN_TO_ENGINE: (
            TARGET,
            "spec.template.spec.containers[].image: a tag that names the version (IMAGE:vVERSION@DIGEST)",
        ),
        Reason.NO_ROOM_FOR_SPARE: (RESOURCE, _SPARE),
        Reason.SPARE_NEEDED: (RESOURCE, _SPARE),
    }
)
"""What to write in a manifest. Any other reason needs a look at the cluster, once the manifest is there."""


def file_fix(reason: Reason | None, fix: str, names: Mapping[str, str], files: Mapping[str, str]) -> str:
    """Return what to change in a manifest instead of what to type against a cluster.

    Args:
        reason: not to begin.
        fix: against it where there is a cluster.
        names: what fixes are filled in with, those of a target.
        files: of each object, as KIND/NAME, the file that it was read from, where that is known.
    """
    target = f"{names['kind']}/{names['target']}"
    file = files.get(target, "")
    is_own = reason is None or fix != fix_for(reason, names)[0]
    if reason is Reason.FLAG_NOT_EDITABLE and not is_own:
        return f"kvmedic flags show -f {file or 'FILE'}"
    if fix == second_replica(names)[0]:
        return f"in {file or 'the manifest'}, {target}: write spec.replicas: 2"
    if reason is None or is_own or reason not in EDITS:
        is_typed = fix.startswith(("kubectl ", "kvmedic "))
        return f"once it is applied: {fix}" if is_typed else fix
    whose, edit = EDITS[reason]
    if whose == TARGET:
        return f"in {file or 'the manifest'}, {target}: write {edit}"
    if whose == OTHER:
        return f"in {' or '.join(dict.fromkeys(files.values())) or 'the manifest'}: change {edit}"
    own = f"{KIND}/{names['name']}"
    if own in files:
        return f"in {files[own]}, {own}: write {edit}"
    return f"in the {KIND} of it, which kvmedic init -f {file or 'FILE'} writes: {edit}"
