"""A StatefulSet's replica without a rotation label: what leads requests to it is changed, and back again.

Where its Services select by the StatefulSet's own labels, changing one takes the pod from its controller,
which can make no other of its name meanwhile. So the pod stays the only one of its ordinal, and may be put
back at any time: its controller takes it in again. The reference to its owner stays, and says that nobody
controls it: so it goes with the StatefulSet, and tools that prune see that it belongs to something.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from kvmedic.cluster.orphan_pods import OWNERS
from kvmedic.cluster.ownership import ANNOTATIONS, CORDONED, CORDONED_FOR, LABELS, path_of
from kvmedic.kube.objects import JsonObject, annotations_of, items, labels_of, note_on, section, uid_of
from kvmedic.model.edits import PatchOperation
from kvmedic.rollout.orphan_drain import draining_value

LABEL_VALUE = re.compile("[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""What the API server takes as a label's value, beside nothing at all."""


def relabel_operations(live: JsonObject, keys: tuple[str, ...], owner: str) -> tuple[PatchOperation, ...]:
    """Return what takes a pod away from all that leads requests to it; repeating it changes nothing.

    Labels are changed and never removed: what selects by their absence does not take the pod in.

    Args:
        keys: the labels to change.
        owner: uid of the StatefulSet.
    """
    labels, marks, value = labels_of(live), annotations_of(live), draining_value(uid_of(live))
    before = _labels_before(live) or {key: labels[key] for key in keys if key in labels}
    # The same as what a label's note says, so that one reader takes both.
    note = {"label": None, "cost": None, "labels": before, "deployment": owner}
    return (
        *([] if marks else [PatchOperation("add", ANNOTATIONS, {})]),
        *(PatchOperation("add", path_of(LABELS, key), value) for key in sorted(before)),
        PatchOperation("add", path_of(LABELS, CORDONED_FOR), owner),
        PatchOperation("add", path_of(ANNOTATIONS, CORDONED), json.dumps(note)),
        *_control_operations(live, owner, is_controlled=False),
    )


def return_operations(
    live: JsonObject, owner: str, template: Mapping[str, str] | None = None
) -> tuple[PatchOperation, ...]:
    """Return what puts such a pod back: its labels as they were, and its controller; none where it is none.

    A label that somebody set meanwhile is theirs.

    Args:
        owner: uid of the StatefulSet.
        template: labels of its pod template, which are believed before the pod's own note; None: not known.
    """
    before, value = _labels_before(live), draining_value(uid_of(live))
    changed = [key for key, text in labels_of(live).items() if text == value]
    if not changed:
        return ()
    known = {**before, **(template or {})}
    return (
        *(
            PatchOperation("replace", path_of(LABELS, key), known[key])
            if key in known
            else PatchOperation("remove", path_of(LABELS, key))
            for key in sorted(changed)
        ),
        *_control_operations(live, owner, is_controlled=True),
    )


def _labels_before(live: JsonObject) -> dict[str, str]:
    """Return the labels that a pod had before they were changed, as its note says."""
    noted = note_on(live, CORDONED).get("labels")
    found = noted.items() if isinstance(noted, Mapping) else ()
    return {key: text for key, text in found if isinstance(text, str) and LABEL_VALUE.fullmatch(text)}


def _control_operations(live: JsonObject, owner: str, *, is_controlled: bool) -> tuple[PatchOperation, ...]:
    """Return what says that a pod's owner controls it, or does not."""
    owners = items(section(live, "metadata"), "ownerReferences")
    return tuple(
        operation
        for index, each in enumerate(owners)
        if each.get("uid") == owner and bool(each.get("controller")) is not is_controlled
        for operation in (
            PatchOperation("test", f"{OWNERS}/{index}/uid", owner),
            PatchOperation("add", f"{OWNERS}/{index}/controller", is_controlled),
        )
    )
