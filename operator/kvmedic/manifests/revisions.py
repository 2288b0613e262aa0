"""What a revision changed of what the KV cache depends on, as the engine would read both pod templates.

A template may hold secrets; only the named values leave this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kvmedic.manifests.engine_file import configuration_at
from kvmedic.manifests.flags import parsed_of
from kvmedic.manifests.grammar import Given, Parsed
from kvmedic.manifests.invocation import version_of
from kvmedic.manifests.refusal import Budget, Refusal
from kvmedic.model.config_edits import Difference, Sight
from kvmedic.model.edits import containers_of
from kvmedic.model.engine import Engine, EngineProfile, Flag, Knob, Scalar

IMAGE = "image"
RAISED = (Knob.MAX_NUM_SEQS, Knob.MAX_MODEL_LEN)
"""Knobs that cost KV cache where they rise."""
AS_MODEL = frozenset({"auto"})
"""What an engine takes by itself where a type is not given."""
UNTOUCHED = ("image", "command", "args", "env", "envFrom")
"""What of a container decides its command line; where all of it is the same, so is the command line."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What two revisions differ in cannot be told."""

    message: str


Compared: TypeAlias = tuple[Difference, ...] | Unreadable


@dataclass(frozen=True, slots=True)
class Revised:
    """Two pod templates, with the ConfigMaps that their engines are configured from, as they are now.

    A file that was edited since tells what going back would give, not what ran then.
    """

    before: Mapping[str, object] = field(repr=False)
    after: Mapping[str, object] = field(repr=False)
    config_maps: Mapping[str, Sight] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two templates, as its engine reads it."""

    container: Mapping[str, object]
    profile: EngineProfile
    line: Parsed
    file: Parsed | None = None
    """What its configuration file gives, where it has one."""

    def last(self, dest: str) -> Given | None:
        """Return what decides an option: the command line before the file; None where neither gives it."""
        return self.line.last(dest) or (self.file.last(dest) if self.file else None)

    def value(self, dest: str) -> Scalar:
        """Return an option's value; None where it is not given."""
        given = self.last(dest)
        return None if given is None else given.value

    def unresolved(self, dest: str) -> str:
        """Return how an option names variables whose values are not in the manifest; empty: it names none."""
        given = self.last(dest)
        return given.held_by.text if given is not None and given.held_by.unresolved else ""


def differences(revised: Revised, container: str | None, engines: Sequence[EngineProfile]) -> Compared:
    """Return what the later of two pod templates changed that the KV cache depends on.

    Args:
        container: the engine's container by name; None: the only one that runs a known engine.
    """
    before, after = revised.before, revised.after
    now = _side(after, container, engines)
    if isinstance(now, Unreadable):
        return now
    name = str(now.container.get("name"))
    was = next((spec for spec in containers_of(before) if spec.get("name") == name), None)
    if was is None:
        return Unreadable(f"the revision before has no container {name}")
    specs = [template.get("spec") for template in (before, after)]
    volumes = [spec.get("volumes") if isinstance(spec, Mapping) else None for spec in specs]
    if all(was.get(key) == now.container.get(key) for key in UNTOUCHED) and volumes[0] == volumes[1]:
        return ()
    now = _with_file(now, after, revised.config_maps)
    if isinstance(now, Unreadable):
        return now
    then = _with_file(_side(before, name, engines), before, revised.config_maps)
    if isinstance(then, Unreadable):
        return Unreadable(f"the revision before: {then.message}")
    variable = next((d for d in _of_interest(now) if then.unresolved(d) != now.unresolved(d)), None)
    if variable is not None:
        return Unreadable(f"{variable} comes from a variable that is set outside of the manifest")
    found = _raise_limit(then, now)
    for dest in now.profile.types:
        types = (_value_text(side.value(dest)) for side in (then, now))
        earlier, later = (None if text in AS_MODEL else text for text in types)
        found += [Difference(dest, earlier, later)] if earlier != later else []
    images = [_value_text(side.container.get(IMAGE)) for side in (then, now)]
    return (*found, *([Difference(IMAGE, *images)] if images[0] != images[1] else []))


def _of_interest(side: _Side) -> tuple[str, ...]:
    flags = (side.profile.flag(knob) for knob in RAISED)
    return (*(flag.dest for flag in flags if flag is not None), *side.profile.types)


def options_of_interest(profile: EngineProfile) -> tuple[str, ...]:
    """Return the options that the KV cache depends on, as an engine spells them."""
    flags = (profile.flag(knob) for knob in RAISED)
    types = (f"--{dest.replace('_', '-')}" for dest in profile.types)
    return (*(flag.name for flag in flags if flag is not None), *types)


def _side(
    template: Mapping[str, object], container: str | None, engines: Sequence[EngineProfile]
) -> _Side | Unreadable:
    """Return the one container that runs a known engine."""
    found: list[_Side] = []
    doubts: list[Refusal] = []
    budget = Budget()
    for spec in containers_of(template):
        for profile in engines if container in (None, spec.get("name")) else ():
            line = parsed_of(spec, Engine(profile, version_of(spec, profile)), budget)
            if isinstance(line, Refusal):
                doubts.append(line)
            else:
                found.append(_Side(spec, profile, line))
    if len(found) == 1:
        return found[0]
    if found or not doubts:
        return Unreadable("it is not known which container runs the engine")
    return Unreadable(doubts[0].message)


def _with_file(
    side: _Side | Unreadable, template: Mapping[str, object], maps: Mapping[str, Sight]
) -> _Side | Unreadable:
    """Return one side with what its configuration file gives."""
    if isinstance(side, Unreadable) or side.line.config is None:
        return side
    engine = Engine(side.profile, version_of(side.container, side.profile))
    found = configuration_at(side.line.config, template, side.container, engine, maps)
    return Unreadable(found.message) if isinstance(found, Refusal) else replace(side, file=found.read.parsed)


def _raise_limit(before: _Side, after: _Side) -> list[Difference]:
    found = []
    for knob in RAISED:
        flag = after.profile.flag(knob)
        if flag is None or before.profile is not after.profile:
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
