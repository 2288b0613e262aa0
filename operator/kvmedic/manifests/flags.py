"""One engine flag of one container: read, changed (`edit`) or taken off.

A container is a mapping as the Kubernetes API returns it, and is never changed in place. An error is a
value.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from kvmedic.manifests.argument_parser import (
    CommandLine,
    Given,
    Malformed,
    Parsed,
    options_of,
    parse,
    read_value,
)
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.invocation import Remembered, digest_of, invocation_of, report_no_engine, version_of
from kvmedic.manifests.size_limits import MOST_TOKENS, Budget
from kvmedic.manifests.tokens import Place, Spot, Token, is_set_by_script, item_text, variable_source
from kvmedic.model.edits import Field, TokenEdit, containers_of
from kvmedic.model.engine import (
    Engine,
    EngineProfile,
    Flag,
    Kind,
    Knob,
    Option,
    OptionName,
    Presence,
    Scalar,
    Spelled,
)

_PLAIN = re.compile(r"[A-Za-z0-9._=+/:,-]+")
"""Characters that no shell takes for more than they are, with and without quotes."""


@dataclass(frozen=True, slots=True)
class Change:
    """A token's text from some character on, and what it becomes."""

    token: Token
    start: int
    text: str


def rewrite_token(container: Mapping[str, object], change: Change) -> TokenEdit | ManifestError:
    """Return the edit of one item that changes a token's text, for the first container of a template."""
    token, start = change.token, change.start
    if token.place.at is None and not token.variables:
        place, name = token.place, str(container.get("name"))
        return TokenEdit(name, 0, place.field, place.index, token.raw, token.text[:start] + change.text)
    spot = token.trace.piece(start, len(token.text)).origin
    word = token.trace.site
    if spot is None or not _PLAIN.fullmatch(change.text):
        return _report_several_pieces(token)
    if word is not None and word.contains(spot):
        text = item_text(container, word.field, word.item)
        if re.search(r"[\"']", text[word.start : word.stop]):
            return _edit(container, spot, change.text)
        after = text[word.start : spot.start] + change.text + text[spot.stop : word.stop]
        return _edit(container, word, after)
    return _in_variable(container, change, spot)


def append_word(container: Mapping[str, object], tail: Place, text: str) -> TokenEdit:
    """Return the edit that adds a word to a command in a shell's script."""
    name = str(container.get("name"))
    return TokenEdit(name, 0, tail.field, tail.index, None, f" {shlex.quote(text)}", tail.at)


def _edit(container: Mapping[str, object], spot: Spot, after: str) -> TokenEdit:
    """Return the edit of one piece of an item; of all of it where nothing else is in the item."""
    text = item_text(container, spot.field, spot.item)
    at = None if (spot.start, spot.stop) == (0, len(text)) else spot.start
    before = text[spot.start : spot.stop]
    return TokenEdit(str(container.get("name")), 0, spot.field, spot.item, before, after, at)


def _in_variable(container: Mapping[str, object], change: Change, spot: Spot) -> TokenEdit | ManifestError:
    """Return the edit of a variable's value, where nothing else refers to the variable."""
    name = shared_variable(container, change, spot)
    if name:
        message = f"{change.token.place} comes from the variable {name}, which is used elsewhere too"
        return ManifestError(ErrorReason.FROM_VARIABLE, f"{message}: write the value itself in place of it")
    return _edit(container, spot, change.text)


def shared_variable(container: Mapping[str, object], change: Change, spot: Spot) -> str:
    """Return the variable that a changed piece comes through and something else uses; empty where none is."""
    path = _path(change)
    text = _within_reach(container, spot)
    for name in dict.fromkeys(path):
        uses = re.findall(rf"\$[({{]?{re.escape(name)}(?!\w)", text)
        if len(uses) != path.count(name):
            return name
    return ""


def _within_reach(container: Mapping[str, object], spot: Spot) -> str:
    """Return the text in which a variable may be referred to that is set at a place.

    A script's lines before the place come too early, unless they are a function's.
    """
    whole = item_text(container, spot.field, spot.item)
    parts = {key: value for key, value in container.items() if key != "name"}
    text = json.dumps(parts, ensure_ascii=False, default=str)
    if spot.field is Field.ENV or re.search(r"\(\s*\)|\bfunction\b", whole):
        return text
    before, after = (json.dumps(part, ensure_ascii=False)[1:-1] for part in (whole, whole[spot.stop :]))
    return text.replace(before, after, 1)


def _path(change: Change) -> tuple[str, ...]:
    """Return the variables that a piece came through, one for each reference; `$1` and `$@` are none."""
    piece = change.token.trace.piece(change.start, len(change.token.text))
    longest = max((each.variables for each in piece.stretches), key=len, default=())
    return tuple(name for name in longest if not re.fullmatch(r"[@*]|\d+", name))


def _report_several_pieces(token: Token) -> ManifestError:
    names = ", ".join(token.variables)
    through = f" through {names}" if names else ""
    message = f"{token.place} is put together from several pieces{through}: write it in one"
    return ManifestError(ErrorReason.FROM_VARIABLE, message)


@dataclass(frozen=True, slots=True)
class FlagValue:
    """One knob's flag as it is given on a command line."""

    flag: Flag
    value: Scalar
    place: Place
    """The token that decides the value."""


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """One knob's flag that is given, with a value that the manifest does not have."""

    flag: Flag
    place: Place
    why: ManifestError
    """Where the value comes from."""


@dataclass(frozen=True, slots=True)
class FlagsView:
    """What a container's command line gives."""

    flags: tuple[FlagValue, ...]
    """The knobs that are given, in the order of the profile. What is not given is not here."""
    config: str | None
    """The configuration file that the engine reads besides, where what is in it is not in `flags`."""
    unknown: tuple[UnknownValue, ...] = ()
    """The knobs that are given by variables from elsewhere."""

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


DesiredSetting: TypeAlias = Setting | OptionSetting


@dataclass(frozen=True, slots=True)
class AlreadySet:
    """The container has the value already."""

    place: Place


Outcome: TypeAlias = TokenEdit | AlreadySet | ManifestError


def read_flags(
    container: Mapping[str, object],
    engine: Engine,
    file: Parsed | None = None,
    budget: Budget | None = None,
) -> FlagsView | ManifestError:
    """Return the flags that a container's command line gives.

    `file` is what the configuration file gives, where that is known. `budget` is for the whole pod
    template, where more than one of its containers is read.
    """
    parsed = parse_line(container, engine, budget)
    return parsed if isinstance(parsed, ManifestError) else flags_in(parsed, engine, file)


def flags_in(parsed: Parsed, engine: Engine, file: Parsed | None = None) -> FlagsView:
    """Return the flags that a command line gives, and for those it does not give the configuration file's."""
    found: list[FlagValue] = []
    unknown: list[UnknownValue] = []
    lines = (file, parsed) if file else (parsed,)
    deciding = {use.option.dest: use for line in lines for use in line.given}
    for flag in engine.profile.flags:
        given = deciding.get(flag.dest)
        if given is None:
            continue
        token = given.held_by
        if token.unresolved:
            unknown.append(UnknownValue(flag, token.place, _from_variable(flag, token)))
        else:
            found.append(FlagValue(flag, given.value, token.place))
    return FlagsView(tuple(found), None if file else parsed.config, tuple(unknown))


def setting_of(flag: Flag, value: Scalar, engine: Engine) -> Setting | ManifestError:
    """Return the setting that a value makes, checked against what the engine accepts.

    The value may be typed or a text as on the command line: 8192, "8k", True, "true".
    """
    text = str(value).lower() if isinstance(value, bool) else str(value)
    read = _read_value(flag, text, engine)
    if isinstance(read, ManifestError):
        return read
    if isinstance(read, int | float) and not isinstance(read, bool) and not flag.bounds.holds(read):
        return ManifestError(ErrorReason.INVALID_VALUE, f"{flag.dest} is {flag.bounds}, not {text}")
    return Setting(flag, read, text.strip())


def option_setting_of(name: OptionName, text: str, engine: Engine) -> OptionSetting | ManifestError:
    """Return the setting that a text makes of an option that need not be a knob."""
    read = _read_value(name, text, engine)
    return read if isinstance(read, ManifestError) else OptionSetting(name, read, text.strip())


def _read_value(flag: Spelled, text: str, engine: Engine) -> Scalar | ManifestError:
    """Return what the engine reads in a text, or why it does not accept it, or nobody should write it."""
    option = option_of(flag, engine)
    if isinstance(option, ManifestError):
        return option
    read = read_value(option, text)
    if isinstance(read, Malformed):
        return ManifestError(ErrorReason.INVALID_VALUE, f"{flag.dest}: {read.message}")
    if isinstance(read, str) and (not read or read.startswith("-") or "$" in read):
        return ManifestError(ErrorReason.INVALID_VALUE, f"{flag.dest} can't be {text!r}")
    if option.kind is Kind.PRESENCE and read is False:
        message = f"{engine.profile.name} {engine.effective_version} has no way to write {flag.name} off"
        return ManifestError(ErrorReason.NOT_IN_VERSION, message)
    return read


def option_of(flag: Spelled, engine: Engine) -> Option | ManifestError:
    """Return how an engine reads a flag, or why it can't be relied on to have it."""
    profile, name = engine.profile, engine.profile.name
    presence = engine.presence(flag)
    if presence is Presence.PRESENT:
        return next(option for option in options_of(engine) if flag.name in option.names)
    if engine.version is None:
        message = f"not every {name} reads {flag.name}, and an unknown flag keeps it from starting"
        return ManifestError(
            ErrorReason.VERSION_UNKNOWN,
            f"{message}: name the engine's version, in its image's tag (IMAGE:vVERSION@DIGEST)",
        )
    if presence is Presence.UNKNOWN:
        low, high = profile.neighbours(engine.version)
        message = (
            f"{name} {low} and {high} differ in {flag.name}; what {engine.version} makes of it is not known"
        )
        return ManifestError(ErrorReason.VERSION_UNKNOWN, message)
    having = [r for r in profile.releases if profile.form_of(flag, r) is not None]
    message = f"{name} {engine.version} does not have {flag.name}; {having[0]} to {having[-1]} are known to"
    return ManifestError(ErrorReason.NOT_IN_VERSION, message)


def edit(
    container: Mapping[str, object],
    index: int,
    setting: DesiredSetting,
    engine: Engine,
    file: Parsed | None = None,
    line: Parsed | None = None,
) -> Outcome:
    """Return the one token that gives a container's flag a value.

    Of several uses the last one changes, because the engine lets it win. A flag that is not given is
    appended as one token, `--name=value`, where the engine reads it last. `index` is the container's
    place in its pod template. `file` is what the configuration file gives, where that is known: the
    command line beats it. `line` is the container's command line, where it was read before.
    """
    read = line or parse_line(container, engine)
    if isinstance(read, ManifestError):
        return read
    parsed = read if file is None else replace(read, config=None)
    given = parsed.last(setting.flag.dest)
    change = (
        _change_value(container, given, setting)
        if given
        else _append_flag(container, parsed, setting, engine)
    )
    if isinstance(change, AlreadySet | ManifestError):
        return change
    dest, value = setting.flag.dest, setting.value
    if not _differ_in_one(read, _apply_edit(container, change), dest, engine, {dest: value}):
        message = f"{dest} can't be changed without changing how other flags are read"
        return ManifestError(ErrorReason.UNSAFE, message)
    return replace(change, container_index=index)


def parse_line(
    container: Mapping[str, object], engine: Engine, budget: Budget | None = None
) -> Parsed | ManifestError:
    """Return what the engine makes of a container's command line.

    `budget` is for the whole pod template, where more than one of its containers is read.
    """
    line = invocation_of(container, engine.profile, budget)
    if isinstance(line, CommandLine):
        if len(line.tokens) <= MOST_TOKENS:
            return parse(line, engine)
        message = f"the engine of container {container.get('name')} has more than {MOST_TOKENS} words"
        return ManifestError(ErrorReason.TOO_LARGE, f"{message}: shorten its command line")
    if isinstance(line, ManifestError):
        return line
    return report_no_engine(container.get("name"), line, engine.profile)


_PORTS: Remembered[int | None] = Remembered()


def port_of(container: Mapping[str, object], profiles: Sequence[EngineProfile]) -> int | None:
    """Return where a container's command line has its engine listen; None where it does not say."""
    digest = digest_of(container)
    for profile in profiles:
        key = digest, id(profile)
        known = _PORTS.find(key, profile)
        if known is None:
            read = parse_line(container, Engine(profile, version_of(container, profile)))
            given = None if isinstance(read, ManifestError) else read.last(profile.launch.port.lstrip("-"))
            value = given.value if given else None
            known = value if isinstance(value, int) and not isinstance(value, bool) else None, 1
            _PORTS.keep(key, profile, *known)
        if known[0] is not None:
            return known[0]
    return None


def _change_value(
    container: Mapping[str, object], given: Given, setting: DesiredSetting
) -> TokenEdit | AlreadySet | ManifestError:
    token = given.held_by
    if token.unresolved:
        return _from_variable(setting.flag, token)
    if given.value == setting.value:
        return AlreadySet(token.place)
    return rewrite_token(container, _respell_token(given, setting))


def _respell_token(given: Given, setting: DesiredSetting) -> Change:
    """Return the token that decides a value with another value in it."""
    token = given.held_by
    if given.option.kind is Kind.SWITCH:
        return Change(token, 0, _switch(given.option, setting, "_" if "_" in token.text else "-"))
    if given.joined:
        return Change(token, token.text.index("=") + 1, setting.text)
    return Change(token, 0, setting.text if given.values else f"{token.text}={setting.text}")


def _appendix(option: Option, setting: DesiredSetting) -> str:
    """Return the one word that gives an option a value; one without a text is its own."""
    if option.kind is Kind.SWITCH:
        return _switch(option, setting)
    return setting.flag.name if option.kind is Kind.PRESENCE else f"{setting.flag.name}={setting.text}"


def _switch(option: Option, setting: DesiredSetting, separator: str = "-") -> str:
    positive = next(name for name in option.names if name.startswith("--") and not name.startswith("--no-"))
    name = positive if setting.value else "--no-" + positive.removeprefix("--")
    return "--" + name.removeprefix("--").replace("-", separator)


def _append_flag(
    container: Mapping[str, object], parsed: Parsed, setting: DesiredSetting, engine: Engine
) -> TokenEdit | ManifestError:
    option = option_of(setting.flag, engine)
    if isinstance(option, ManifestError):
        return option
    if parsed.config is not None:
        message = f"{setting.flag.dest} is not on the command line and may be in the file {parsed.config}"
        return ManifestError(ErrorReason.IN_CONFIG_FILE, f"{message}, which is not edited: set it there")
    text = _appendix(option, setting)
    if parsed.tail is not None:
        return append_word(container, parsed.tail, text)
    field = Field.ARGS if container.get(Field.ARGS) else Field.COMMAND
    tokens = container.get(field)
    size = len(tokens) if isinstance(tokens, list) else 0
    return TokenEdit(str(container.get("name")), 0, field, size, None, text)


def _from_variable(flag: Spelled, token: Token) -> ManifestError:
    computed = [name for name in token.unresolved if name.startswith("$")]
    if computed:
        names = ", ".join(computed)
        why = f"comes from {names} ({token.place}), which the shell computes: write the value there"
        return ManifestError(ErrorReason.FROM_VARIABLE, f"{flag.dest} {why}")
    form = "$({})" if token.place.at is None else "${}"
    names = ", ".join(form.format(name) for name in token.unresolved)
    source = variable_source(token)
    if is_set_by_script(token):
        why = f"comes from {names} ({token.place}), {source}: write the value where the engine is started"
        return ManifestError(ErrorReason.FROM_VARIABLE, f"{flag.dest} {why}")
    # What is kept as a secret is not to be written out for our sake.
    other = "" if "Secret " in source else ", or write its value into env, where it can be changed from here"
    message = f"{flag.dest} comes from {names} ({token.place}), {source}: change it there{other}"
    return ManifestError(ErrorReason.FROM_VARIABLE, message)


def remove_flag(
    container: Mapping[str, object], index: int, flag: Flag, engine: Engine, line: Parsed | None = None
) -> TokenEdit | ManifestError:
    """Return the one token that has to go so that a container's command line does not give a flag.

    Only a flag that is one word is taken off, as that is how one is added; and only where the engine reads
    all other flags as before.
    """
    read = line or parse_line(container, engine)
    if isinstance(read, ManifestError):
        return read
    given = read.last(flag.dest)
    if given is None or not given.joined:
        where = "is not on the command line" if given is None else "is not one word, `--name=value`"
        return ManifestError(ErrorReason.UNSAFE, f"{flag.dest} {where}: remove it by hand")
    change = _remove_word(container, given.held_by)
    if change is None or not _differ_in_one(read, _apply_edit(container, change), flag.dest, engine):
        return ManifestError(
            ErrorReason.UNSAFE,
            f"{flag.dest} can't be removed without changing how other flags are read",
        )
    return replace(change, container_index=index)


def _remove_word(container: Mapping[str, object], token: Token) -> TokenEdit | None:
    """Return the edit that removes a word; None where it is no word of its own."""
    name, place = str(container.get("name")), token.place
    if place.field is Field.ENV or token.variables:
        return None
    if place.at is None:
        return TokenEdit(name, 0, place.field, place.index, token.raw, None)
    word = token.trace.site
    if word is None:
        return None
    text = item_text(container, word.field, word.item)
    start, stop = word.start - 1, word.stop
    if start > 0 and text[start] in "'\"" and text[stop : stop + 1] == text[start]:
        start, stop = start - 1, stop + 1
    if start < 0 or text[start] != " ":
        return None
    return TokenEdit(name, 0, word.field, word.item, text[start:stop], None, start)


def remove_option(
    container: Mapping[str, object], index: int, option: Spelled, engine: Engine, line: Parsed | None = None
) -> tuple[TokenEdit, ...] | ManifestError:
    """Return the edits after which a container's command line does not give an option at all.

    Every word of every use goes, the last one first: a later edit counts on those before it. None are needed
    where the option is not given. Only where the engine reads all other options as before.
    """
    read = line or parse_line(container, engine)
    if isinstance(read, ManifestError):
        return read
    uses = (use for use in read.given if use.option.dest == option.dest)
    words = [word.token for use in uses for word in (use.word, *(() if use.joined else use.values))]
    words.sort(key=_position, reverse=True)
    edits: list[TokenEdit] = []
    present = container
    for word in words:
        change = _remove_written_word(present, word)
        if change is None:
            return _unsafe_removal(option, word)
        present = _apply_edit(present, change)
        edits.append(replace(change, container_index=index))
    if edits and not _differ_in_one(read, present, option.dest, engine):
        return _unsafe_removal(option, words[0])
    return tuple(edits)


def _position(word: Token) -> tuple[bool, int, int]:
    """Return where a word is written: in the environment before anything else, then in reading order."""
    spot = _find_spot_in_env(word)
    if spot is not None:
        return False, spot.item, spot.start
    field, index, at = word.place.field, word.place.index, word.place.at or 0
    return True, index if field is Field.COMMAND else index + _LONGEST, at


_LONGEST = 1_000_000
"""More items than any list of a container has, so that `args` come behind `command`."""


def _remove_written_word(container: Mapping[str, object], word: Token) -> TokenEdit | None:
    """Return the edit that removes a word wherever it is written; None where it is no word of its own."""
    name, place = str(container.get("name")), word.place
    if place.at is None and place.field is not Field.ENV:
        items = container.get(place.field)
        alone = isinstance(items, list) and len(items) == 1
        return None if alone else TokenEdit(name, 0, place.field, place.index, word.raw, None)
    spot = _find_spot_in_env(word)
    if spot is None:
        return _remove_word(container, word)
    if shared_variable(container, Change(word, 0, ""), spot):
        return None
    text = item_text(container, Field.ENV, spot.item)
    start, stop = (spot.start - 1, spot.stop) if spot.start else (0, spot.stop + 1)
    piece = text[start:stop]
    if len(piece) == len(text) or piece.strip(" ") != text[spot.start : spot.stop] or " " not in piece:
        return None
    return TokenEdit(name, 0, Field.ENV, spot.item, piece, None, start)


def _find_spot_in_env(word: Token) -> Spot | None:
    """Return where in a variable's value a word of a script is written; None where it is not there."""
    origin = word.trace.origin if word.variables and word.place.at is not None else None
    return origin if origin is not None and origin.field is Field.ENV else None


def _unsafe_removal(option: Spelled, word: Token) -> ManifestError:
    message = f"{option.name} ({word.place}) can't be removed without changing how the rest is read"
    return ManifestError(ErrorReason.UNSAFE, f"{message}: remove it by hand")


def _apply_edit(container: Mapping[str, object], change: TokenEdit) -> Mapping[str, object]:
    """Return a container, the first of its template, with an edit in it."""
    spec = change.apply({"spec": {"containers": [container]}})["spec"]
    return spec["containers"][0] if isinstance(spec, dict) else {}


def _differ_in_one(
    before: Parsed,
    after: Mapping[str, object],
    dest: str,
    engine: Engine,
    meant: Mapping[str, Scalar] = MappingProxyType({}),
) -> bool:
    """Return whether the engine reads a changed command line as before but for one option, `meant`."""
    new = parse_line(after, engine)
    if isinstance(new, ManifestError):
        return False
    rest = {name: value for name, value in before.values().items() if name != dest}
    return new.values() == {**rest, **meant}


def line_may_chunk(line: Parsed | ManifestError, engine: Engine) -> bool:
    """Return whether an engine may compute a long prompt in several steps.

    It does not only where its command line says so and its release is not known to overrule that. What a
    configuration file says does not count.
    """
    flag = engine.profile.flag(Knob.CHUNKED_PREFILL)
    given = line.last(flag.dest) if flag is not None and isinstance(line, Parsed) else None
    return flag is None or given is None or given.value is not False or engine.keeps_on(flag) is True


def may_chunk(template: Mapping[str, object], container: str, profile: EngineProfile) -> bool:
    """Return the same of a pod template's container; True where there is none of that name."""
    found = [each for each in containers_of(template) if each.get("name") == container]
    if len(found) != 1:
        return True
    engine = Engine(profile, version_of(found[0], profile))
    return line_may_chunk(parse_line(found[0], engine), engine)
