"""What a revision changed of what the KV cache depends on, as the engine would read both pod templates.

A template may hold secrets; only the named values leave this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from kvmedic.manifests.errors import ManifestError
from kvmedic.manifests.proposals import IMAGE
from kvmedic.model.config_edits import Difference
from kvmedic.model.edits import containers_of
from kvmedic.model.engine import EngineProfile, Flag, Knob, Scalar
from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import TargetRef
from kvmedic.runbooks.workload import EngineLine, View

RAISED = (Knob.MAX_NUM_SEQS, Knob.MAX_MODEL_LEN)
"""Knobs that cost KV cache where they rise."""
AS_MODEL = frozenset({"auto"})
"""What an engine takes by itself where a type is not given."""
UNTOUCHED = ("image", "command", "args", "env", "envFrom")
"""What of a container decides its command line; where all of it is the same, so is the command line."""


Compared: TypeAlias = tuple[Difference, ...] | Inconclusive


def differences(view: View, target: TargetRef, before: str, after: str = "") -> Compared:
    """Return what the later of two pod templates changed that the KV cache depends on.

    Both are read with the ConfigMaps as they are now: a file that was edited since shows what going back
    would give, not what ran then.
    `before` and `after` are the ReplicaSets that have them; empty: the Deployment's own template.
    """
    now = _read(view, target, after)
    if isinstance(now, Inconclusive):
        return now
    name, old = str(now.container.get("name")), view.templates[before]
    was = next((spec for spec in containers_of(old) if spec.get("name") == name), None)
    if was is None:
        return Inconclusive(Reason.REVISION_UNREADABLE, f"the revision before has no container {name}")
    specs = [template.get("spec") for template in (old, now.template)]
    volumes = [spec.get("volumes") if isinstance(spec, Mapping) else None for spec in specs]
    if all(was.get(key) == now.container.get(key) for key in UNTOUCHED) and volumes[0] == volumes[1]:
        return ()
    if isinstance(now.file, ManifestError):
        return Inconclusive(Reason.REVISION_UNREADABLE, now.file.message)
    then = _read(view, replace(target, container=name), before)
    if isinstance(then, Inconclusive):
        return Inconclusive(Reason.REVISION_UNREADABLE, f"the revision before: {then.message}")
    if isinstance(then.file, ManifestError):
        return Inconclusive(Reason.REVISION_UNREADABLE, f"the revision before: {then.file.message}")
    return _compare_lines(then, now)


def _compare_lines(then: EngineLine, now: EngineLine) -> Compared:
    variable = next((d for d in _of_interest(now) if _unresolved(then, d) != _unresolved(now, d)), None)
    if variable is not None:
        return Inconclusive(
            Reason.REVISION_UNREADABLE,
            f"{variable} comes from a variable that is set outside of the manifest",
        )
    found = _raise_limit(then, now)
    for dest in now.engine.profile.types:
        types = (_value_text(side.value(dest)) for side in (then, now))
        earlier, later = (None if text in AS_MODEL else text for text in types)
        found += [Difference(dest, earlier, later)] if earlier != later else []
    images = [_value_text(side.container.get(IMAGE)) for side in (then, now)]
    return (*found, *([Difference(IMAGE, *images)] if images[0] != images[1] else []))


def _read(view: View, target: TargetRef, replica_set: str) -> EngineLine | Inconclusive:
    found = view.engine_line(target, replica_set)
    return Inconclusive(Reason.REVISION_UNREADABLE, found.message) if isinstance(found, Blocked) else found


def _of_interest(side: EngineLine) -> tuple[str, ...]:
    flags = (side.engine.profile.flag(knob) for knob in RAISED)
    return (*(flag.dest for flag in flags if flag is not None), *side.engine.profile.types)


def _unresolved(side: EngineLine, dest: str) -> str:
    """Return how an option names variables whose values are not in the manifest; empty: it names none."""
    given = side.find_deciding_use(dest)
    return given.held_by.text if given is not None and given.held_by.unresolved else ""


def options_of_interest(profile: EngineProfile) -> tuple[str, ...]:
    """Return the options that the KV cache depends on, as an engine spells them."""
    flags = (profile.flag(knob) for knob in RAISED)
    types = (f"--{dest.replace('_', '-')}" for dest in profile.types)
    return (*(flag.name for flag in flags if flag is not None), *types)


def _raise_limit(before: EngineLine, after: EngineLine) -> list[Difference]:
    found = []
    for knob in RAISED:
        flag = after.engine.profile.flag(knob)
        if flag is None or before.engine.profile is not after.engine.profile:
            continue
        then, now = before.value(flag.dest), after.value(flag.dest)
        if _is_raised(flag, then, now):
            found.append(Difference(str(knob), _value_text(then), _value_text(now)))
    return found


def _is_raised(flag: Flag, before: Scalar, after: Scalar) -> bool:
    """Return whether a value certainly rose; None: not given, so what the engine takes by itself.

    A value with a meaning of its own (-1: as fits) may be more or less than another.
    """
    if before in flag.bounds.also or after in flag.bounds.also:
        return False
    match before, after:
        case ((int() | float()), (int() | float())):
            return after > before
        case ((int() | float()), None):
            return flag.is_greatest_unset or (flag.least is not None and flag.least > before)
        case None, (int() | float()):
            return flag.most is not None and after > flag.most
        case _:
            return False


def _value_text(value: object) -> str | None:
    return None if value is None else str(value)
