"""One engine flag of one container: what it is, and how it becomes something else.

The operator's and the command line's way in:

* `read_flags(container, engine)` returns the flags that are given on a container's command line, by
  the engine's own names, with the tokens that decide them.
* `edit(container, index, setting, engine)` returns the one token that has to change, or why not.

A container is a plain mapping as the Kubernetes API returns it. Nothing is changed in place. A
refusal is a value, never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from kvmedic.core.edit import Field, TokenEdit
from kvmedic.core.engine import Engine, Flag, Kind, Option, OptionName, Presence, Scalar, Spelled
from kvmedic.manifests.budget import Budget, Remembered
from kvmedic.manifests.grammar import Given, Parsed, options_of, parse
from kvmedic.manifests.invocation import invocation_of
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.rewrite import Change, appended, rewritten
from kvmedic.manifests.tokens import Place, Token
from kvmedic.manifests.values import Malformed, read_value
from kvmedic.manifests.words import CommandLine


@dataclass(frozen=True, slots=True)
class FlagValue:
    """One knob's flag as it is given on a command line."""

    flag: Flag
    value: Scalar
    place: Place
    """The token that decides the value."""


@dataclass(frozen=True, slots=True)
class FlagsView:
    """What a container's command line gives."""

    flags: tuple[FlagValue, ...]
    """The knobs that are given, in the order of the profile. What is not given is not here."""
    config: str | None
    """The configuration file that the engine reads besides, where what is in it is not in `flags`."""

    def values(self) -> dict[str, Scalar]:
        """Return the values by the engine's own names."""
        return {given.flag.dest: given.value for given in self.flags}


@dataclass(frozen=True, slots=True)
class Setting:
    """A flag and the value that it should have, as the engine would read it."""

    flag: Flag
    value: Scalar
    text: str
    """How the value is written; of no meaning for a flag that is a switch."""


@dataclass(frozen=True, slots=True)
class OptionSetting:
    """An option that need not be a knob, and the value that it should have."""

    flag: OptionName
    value: Scalar
    text: str
    """How the value is written; of no meaning for an option that is a switch."""


Wanted: TypeAlias = Setting | OptionSetting


@dataclass(frozen=True, slots=True)
class AlreadySet:
    """The container has the value already."""

    place: Place


Outcome: TypeAlias = TokenEdit | AlreadySet | Refusal


def read_flags(
    container: Mapping[str, object],
    engine: Engine,
    file: Parsed | None = None,
    budget: Budget | None = None,
) -> FlagsView | Refusal:
    """Return the flags that a container's command line gives.

    `file` is what the configuration file gives, where that is known. `budget` is for the whole pod
    template, where more than one of its containers is read.
    """
    parsed = parsed_of(container, engine, budget)
    if isinstance(parsed, Refusal):
        return parsed
    found: list[FlagValue] = []
    for flag in engine.profile.flags:
        given = parsed.last(flag.dest) or (file.last(flag.dest) if file else None)
        if given is None:
            continue
        if given.held_by.unresolved:
            return _from_variable(flag, given.held_by)
        found.append(FlagValue(flag, given.value, given.held_by.place))
    return FlagsView(tuple(found), None if file else parsed.config)


def setting_of(flag: Flag, value: Scalar, engine: Engine) -> Setting | Refusal:
    """Return the setting that a value makes, checked against what the engine accepts.

    The value may be typed or a text as on the command line: 8192, "8k", True, "true".
    """
    text = str(value).lower() if isinstance(value, bool) else str(value)
    read = _read(flag, text, engine)
    if isinstance(read, Refusal):
        return read
    if isinstance(read, int | float) and not isinstance(read, bool) and not flag.bounds.holds(read):
        return Refusal(RefusalReason.INVALID_VALUE, f"{flag.dest} is {flag.bounds}, not {text}")
    return Setting(flag, read, text.strip())


def option_setting_of(name: OptionName, text: str, engine: Engine) -> OptionSetting | Refusal:
    """Return the setting that a text makes of an option that need not be a knob."""
    read = _read(name, text, engine)
    return read if isinstance(read, Refusal) else OptionSetting(name, read, text.strip())


def _read(flag: Spelled, text: str, engine: Engine) -> Scalar | Refusal:
    """Return what the engine reads in a text, or why it does not accept it, or nobody should write it."""
    option = option_of(flag, engine)
    if isinstance(option, Refusal):
        return option
    read = read_value(option, text)
    if isinstance(read, Malformed):
        return Refusal(RefusalReason.INVALID_VALUE, f"{flag.dest}: {read.message}")
    if isinstance(read, str) and (not read or read.startswith("-") or "$" in read):
        return Refusal(RefusalReason.INVALID_VALUE, f"{flag.dest} can't be {text!r}")
    if option.kind is Kind.PRESENCE and read is False:
        message = f"{engine.profile.name} {engine.effective_version} has no way to write {flag.name} off"
        return Refusal(RefusalReason.NOT_IN_VERSION, message)
    return read


def option_of(flag: Spelled, engine: Engine) -> Option | Refusal:
    """Return how an engine reads a flag, or why it can't be relied on to have it."""
    profile, name = engine.profile, engine.profile.name
    presence = engine.presence(flag)
    if presence is Presence.PRESENT:
        return next(option for option in options_of(engine) if flag.name in option.names)
    if engine.version is None:
        message = f"not every {name} reads {flag.name}, and an unknown flag keeps it from starting"
        return Refusal(
            RefusalReason.VERSION_UNKNOWN,
            f"{message}: name the engine's version, in its image's tag (IMAGE:vVERSION@DIGEST)",
        )
    if presence is Presence.UNKNOWN:
        low, high = profile.neighbours(engine.version)
        message = (
            f"{name} {low} and {high} differ in {flag.name}; what {engine.version} makes of it is not known"
        )
        return Refusal(RefusalReason.VERSION_UNKNOWN, message)
    having = [r for r in profile.releases if profile.form_of(flag, r) is not None]
    message = f"{name} {engine.version} does not have {flag.name}; {having[0]} to {having[-1]} are known to"
    return Refusal(RefusalReason.NOT_IN_VERSION, message)


def edit(
    container: Mapping[str, object],
    index: int,
    setting: Wanted,
    engine: Engine,
    file: Parsed | None = None,
) -> Outcome:
    """Return the one token that gives a container's flag a value.

    Of several uses the last one changes, because the engine lets it win. A flag that is not given is
    appended as one token, `--name=value`, where the engine reads it last. `index` is the container's
    place in its pod template. `file` is what the configuration file gives, where that is known: the
    command line beats it.
    """
    parsed = parsed_of(container, engine)
    if isinstance(parsed, Refusal):
        return parsed
    if file is not None:
        parsed = replace(parsed, config=None)
    given = parsed.last(setting.flag.dest)
    change = _changed(container, given, setting) if given else _appended(container, parsed, setting, engine)
    if isinstance(change, AlreadySet | Refusal):
        return change
    if not _is_safe(container, change, setting, engine):
        return _unsafe(setting.flag)
    return replace(change, container_index=index)


_REMEMBERED: Remembered[Parsed | Refusal] = Remembered()


def parsed_of(
    container: Mapping[str, object], engine: Engine, budget: Budget | None = None
) -> Parsed | Refusal:
    """Return what the engine makes of a container's command line.

    `budget` is for the whole pod template, where more than one of its containers is read.
    """
    line = invocation_of(container, engine.profile, budget)
    if isinstance(line, CommandLine):
        key = id(line), id(engine.profile), engine.version
        known = _REMEMBERED.find(key, line)
        parsed = known[0] if known is not None else parse(line, engine)
        if known is None:
            _REMEMBERED.keep(key, line, parsed, sum(len(token.trace.text) for token in line.tokens))
        return parsed
    if isinstance(line, Refusal):
        return line
    doubt = f": {line.doubt}" if line.doubt else ""
    return Refusal(
        RefusalReason.NO_ENGINE,
        f"container {container.get('name')} does not start {engine.profile.name}{doubt}",
    )


def _changed(
    container: Mapping[str, object], given: Given, setting: Wanted
) -> TokenEdit | AlreadySet | Refusal:
    token = given.held_by
    if token.unresolved:
        return _from_variable(setting.flag, token)
    if given.value == setting.value:
        return AlreadySet(token.place)
    return rewritten(container, _respelled(given, setting))


def _respelled(given: Given, setting: Wanted) -> Change:
    """Return the token that decides a value with another value in it."""
    token = given.held_by
    if given.option.kind is Kind.SWITCH:
        return Change(token, 0, _switch(given.option, setting, "_" if "_" in token.text else "-"))
    if given.joined:
        return Change(token, token.text.index("=") + 1, setting.text)
    return Change(token, 0, setting.text if given.values else f"{token.text}={setting.text}")


def _appendix(option: Option, setting: Wanted) -> str:
    """Return the one word that gives an option a value; one without a text is its own."""
    if option.kind is Kind.SWITCH:
        return _switch(option, setting)
    return setting.flag.name if option.kind is Kind.PRESENCE else f"{setting.flag.name}={setting.text}"


def _switch(option: Option, setting: Wanted, separator: str = "-") -> str:
    positive = next(name for name in option.names if name.startswith("--") and not name.startswith("--no-"))
    name = positive if setting.value else "--no-" + positive.removeprefix("--")
    return "--" + name.removeprefix("--").replace("-", separator)


def _appended(
    container: Mapping[str, object], parsed: Parsed, setting: Wanted, engine: Engine
) -> TokenEdit | Refusal:
    option = option_of(setting.flag, engine)
    if isinstance(option, Refusal):
        return option
    if parsed.config is not None:
        message = f"{setting.flag.dest} is not on the command line and may be in the file {parsed.config}"
        return Refusal(RefusalReason.IN_CONFIG_FILE, f"{message}, which is not edited: set it there")
    text = _appendix(option, setting)
    if parsed.tail is not None:
        return appended(container, parsed.tail, text)
    field = Field.ARGS if container.get(Field.ARGS) else Field.COMMAND
    tokens = container.get(field)
    size = len(tokens) if isinstance(tokens, list) else 0
    return TokenEdit(str(container.get("name")), 0, field, size, None, text)


def _is_safe(container: Mapping[str, object], change: TokenEdit, setting: Wanted, engine: Engine) -> bool:
    """Return whether the engine reads the changed command line as before but for the one value."""
    template = {"spec": {"containers": [container]}}
    spec = change.apply(template)["spec"]
    edited = spec["containers"][0] if isinstance(spec, dict) else {}
    old, new = parsed_of(container, engine), parsed_of(edited, engine)
    if isinstance(old, Refusal) or isinstance(new, Refusal):
        return False
    return new.values() == {**old.values(), setting.flag.dest: setting.value}


def _from_variable(flag: Spelled, token: Token) -> Refusal:
    computed = [name for name in token.unresolved if name.startswith("$")]
    if computed:
        names = ", ".join(computed)
        why = f"comes from {names} ({token.place}), which the shell computes: write the value there"
        return Refusal(RefusalReason.FROM_VARIABLE, f"{flag.dest} {why}")
    form = "$({})" if token.place.at is None else "${}"
    names = ", ".join(form.format(name) for name in token.unresolved)
    message = f"{flag.dest} comes from {names} ({token.place}), set outside of the manifest: change it there"
    return Refusal(RefusalReason.FROM_VARIABLE, message)


def _unsafe(flag: Spelled) -> Refusal:
    return Refusal(
        RefusalReason.UNSAFE, f"{flag.dest} can't be changed without changing how other flags are read"
    )
