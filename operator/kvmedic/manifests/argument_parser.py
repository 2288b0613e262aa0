"""How an engine's command line reads: vLLM's own steps, then Python's argparse.

The steps and their order are those of `FlexibleArgumentParser.parse_args` (vLLM 0.32). Every use of an option
keeps its tokens. What the engine would not accept gives a `ManifestError` with the engine's reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest

from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.tokens import Place, Token, is_set_by_script, variable_source
from kvmedic.model.engine import Arity, Engine, Kind, Option, Scalar, Version


class WouldNotStartError(Exception):
    """The engine would not accept its command line; never leaves `grammar.parse`."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The tokens after the engine's start, and whether a subcommand started it."""

    tokens: tuple[Token, ...]
    subcommand: bool
    tail: Place | None = None
    """Where a further word would stand in a shell's script; None where the words are items of a list."""
    hosted: bool = False
    """Whether a program reads it that has options of its own beside the engine's."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word that argparse sees, and the token that it came from."""

    text: str
    token: Token


def words_of(line: CommandLine, engine: Engine, names: Container[str]) -> tuple[str | None, list[Word]]:
    """Return the configuration file, if one is read, and the words that argparse sees.

    Raises:
        WouldNotStartError: the engine would end before argparse.
    """
    dialect = engine.profile.dialect
    words = [Word(token.text, token) for token in line.tokens]
    for word in words:
        if word.text in dialect.foreign:
            raise WouldNotStartError(
                f"{word.text} ({word.token.place}) hands its arguments to another program"
            )
    if line.subcommand:
        words = _positional_to_front(words, engine)
    config, words = _without_config(words, dialect.config)
    levelled = _with_level(words, engine, names)
    return config, _gather_parts([_dash_word(word) for word in levelled], engine)


def _positional_to_front(words: list[Word], engine: Engine) -> list[Word]:
    dialect = engine.profile.dialect
    for index, word in enumerate(words):
        name, joined, value = word.text.partition("=")
        if not dialect.positional or name != dialect.positional or (joined and not value):
            continue
        if dialect.positional_since and engine.effective_version < dialect.positional_since:
            raise WouldNotStartError(f"{name} ({word.token.place}) is not accepted after the subcommand")
        if joined:
            return [replace(word, text=value), *words[:index], *words[index + 1 :]]
        if index + 1 == len(words):
            raise WouldNotStartError(f"argument {name}: expected one argument ({word.token.place})")
        return [words[index + 1], *words[:index], *words[index + 2 :]]
    _check_positional(words, engine)
    return words


def _check_positional(words: list[Word], engine: Engine) -> None:
    dialect = engine.profile.dialect
    if not dialect.needs_positional or not words or not words[0].text.startswith("-"):
        return
    names = [word.text.partition("=")[0] for word in words]
    if dialect.config not in names and dialect.needs_positional in [n.replace("_", "-") for n in names]:
        raise WouldNotStartError(f"{dialect.needs_positional} needs the model as the first argument")


def _without_config(words: list[Word], option: str) -> tuple[str | None, list[Word]]:
    places = [index for index, word in enumerate(words) if option and word.text == option]
    if not places:
        return None, words
    place = words[places[0]].token.place
    if len(places) > 1:
        raise WouldNotStartError(f"more than one {option} ({words[places[1]].token.place})")
    if places[0] + 1 == len(words):
        raise WouldNotStartError(f"{option} without a file ({place})")
    path = words[places[0] + 1]
    if not path.token.unresolved and not path.text.endswith((".yaml", ".yml")):
        raise WouldNotStartError(f"{option}: the file must be named .yaml or .yml ({path.token.place})")
    return path.text, words[: places[0]] + words[places[0] + 2 :]


def _dash_word(word: Word) -> Word:
    """Return a word with its option name spelled as options are declared."""
    if not word.text.startswith("--"):
        return word
    name, joined, value = word.text.partition("=")
    key, dot, rest = name.partition(".")
    return replace(word, text=key.replace("_", "-") + dot + rest + joined + value)


def _with_level(words: list[Word], engine: Engine, names: Container[str]) -> list[Word]:
    """Return the words with `-O2`, `-O=2` and `-O 2` written out, where the engine does so."""
    dialect = engine.profile.dialect
    if dialect.level not in names:
        return words
    written: list[Word] = []
    for word, following in zip_longest(words, words[1:]):
        if not word.text.startswith(dialect.short_level):
            written.append(word)
        elif word.text != dialect.short_level:
            level = word.text.removeprefix(dialect.short_level).removeprefix("=")
            written += [replace(word, text=dialect.level), replace(word, text=level)]
        else:
            known = following is not None and following.text in dialect.levels
            written.append(replace(word, text=dialect.level) if known else word)
    return written


def _gather_parts(words: list[Word], engine: Engine) -> list[Word]:
    """Return the words with each `--option.key value` moved to the end as `--option value`.

    The value is JSON that is put together of all keys; which keys does not matter here.
    """
    since = engine.profile.dialect.dotted_since
    if since is None or engine.effective_version < since:
        return words
    kept: list[Word] = []
    dotted: dict[str, Word] = {}
    rest = iter(words)
    for word in rest:
        name, joined, _ = word.text.partition("=")
        if not name.startswith("-") or "." not in name:
            kept.append(word)
            continue
        if not joined and next(rest, None) is None:
            raise WouldNotStartError(f"{name} without a value ({word.token.place})")
        dotted.setdefault(name.partition(".")[0], word)
    for key, word in dotted.items():
        kept += [replace(word, text=key), replace(word, text="{}")]
    return kept


_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""argparse's own pattern: such a word is a value, not an option."""


_SEVERAL = re.compile(
    r"[@*]|args?(?:_|$)|arguments|opts?$|options|flags|params|extra|command|cmd", re.IGNORECASE
)
"""Names of a shell's variables that hold several words, as far as a name shows: `$VLLM_ARGS`, `$@`."""


@dataclass(frozen=True, slots=True)
class Given:
    """One use of an option on a command line."""

    option: Option
    word: Word
    """The word that names the option."""
    name: str
    """The option's full name as it was resolved: `--no-enable-prefix-caching`."""
    values: tuple[Word, ...]
    joined: bool
    """Whether the value is part of the same word: `--name=value`."""
    value: Scalar

    @property
    def held_by(self) -> Token:
        """Return the token that decides the value."""
        return self.values[-1].token if self.values else self.word.token


@dataclass(frozen=True, slots=True)
class Parsed:
    """What an engine makes of its command line."""

    given: tuple[Given, ...]
    """Every use of an option, in order; of several for one value the last one counts."""
    config: str | None = None
    """The configuration file that is read before all options, if any."""
    tail: Place | None = None
    """Where a further word would stand in a shell's script; None where the words are items of a list."""

    def last(self, dest: str) -> Given | None:
        """Return the use that decides a value, or None where it is not given."""
        return next((use for use in reversed(self.given) if use.option.dest == dest), None)

    def values(self) -> dict[str, Scalar]:
        """Return what is given, by the engine's own names."""
        return {use.option.dest: use.value for use in self.given}


def parse(line: CommandLine, engine: Engine) -> Parsed | ManifestError:
    """Return what an engine makes of its command line."""
    try:
        return _parse(line, engine)
    except MayHoldFlagsError as unknown:
        return ManifestError(ErrorReason.FROM_VARIABLE, str(unknown))
    except WouldNotStartError as broken:
        read = _parse_as_others(line, engine) if engine.version is None else None
        if read is not None:
            return read
        name = f"{engine.profile.name} {engine.effective_version}"
        message = f"{name} would not start: {broken}"
        if engine.version is None:
            message = f"{message}; its version is not known, and none that is known takes it"
        return ManifestError(ErrorReason.WOULD_NOT_START, message)


def _parse_as_others(line: CommandLine, engine: Engine) -> Parsed | None:
    """Return what the newest release makes of a command line that takes it; None where none does.

    A version that is only assumed is no reason to say that a fleet, which may be running, would not start:
    where no known release takes the options, a newer one may.
    """
    known = engine.profile.releases
    for release in (*reversed(known), Version.parse(f"{known[-1]}.post1")):
        with suppress(WouldNotStartError, MayHoldFlagsError):
            return _parse(line, replace(engine, version=release))
    return None


def _parse(line: CommandLine, engine: Engine) -> Parsed:
    argparse = _Argparse(engine, line)
    config, words = words_of(line, engine, argparse.names)
    return replace(argparse.parse(words), config=config, tail=line.tail)


class MayHoldFlagsError(Exception):
    """A variable from elsewhere stands where only flags can; never leaves `parse`."""

    def __init__(self, token: Token) -> None:
        names = ", ".join(token.unresolved)
        where = (
            "write its flags where the engine is started" if is_set_by_script(token) else "set it in `env`"
        )
        super().__init__(
            f"{names} ({token.place}) is {variable_source(token)} and may hold any flag: {where}"
        )


class _Argparse:
    """Python's argparse, for one release's options and one optional positional."""

    def __init__(self, engine: Engine, line: CommandLine) -> None:
        self.names = {name: option for option in options_of(engine) for name in option.names}
        self.tolerant = line.hosted or engine.effective_version > engine.profile.releases[-1]
        self.subcommand = line.subcommand

    def parse(self, words: Sequence[Word]) -> Parsed:
        """Return the uses of options.

        Raises:
            WouldNotStartError: the engine would not accept the words.
        """
        matches = self._matches(words)
        given: list[Given] = []
        stray: list[Word] = []
        index, free = 0, True
        while index < len(words):
            match, word = matches[index], words[index]
            index += 1
            if isinstance(match, _Match):
                count = self._count(match, word, matches[index:])
                taken = words[index : index + count]
                _refuse_unknown(taken[1:])
                given.append(_use(match, word, taken))
                index += count
            elif match is _UNKNOWN and self.tolerant:
                index += _values_after(matches[index:])
            elif match is _VALUE and free and self._may_be_positional(word):
                index += matches[index : index + 1] == [_DASHES]
                free = False
            elif match is _DASHES and free:
                follows = matches[index : index + 1] == [_VALUE] and self._may_be_positional(words[index])
                index += follows
                free = False
            else:
                _refuse_unknown([word])
                stray.append(word)
        if stray:
            raise WouldNotStartError(_stray_message(stray))
        return Parsed(tuple(given))

    def _matches(self, words: Sequence[Word]) -> list[_Match | object]:
        """Return what argparse takes each word for: behind the first `--` there are values only."""
        first = next((index for index, word in enumerate(words) if word.text == "--"), len(words))
        matches = [self._match(word) for word in words[:first]]
        return [*matches, *([_DASHES] if first < len(words) else ()), *[_VALUE] * (len(words) - first - 1)]

    def _may_be_positional(self, word: Word) -> bool:
        unknown = word.token.unresolved
        if word.token.place.at is not None and any(_SEVERAL.search(name) for name in unknown):
            return False
        return not unknown or self.subcommand

    def _match(self, word: Word) -> _Match | object:
        text = word.text
        if not text.startswith("-") or text == "-":
            return _VALUE
        if text in self.names:
            return _Match(self.names[text], text, None)
        name, joined, value = text.partition("=")
        if joined and name in self.names:
            return _Match(self.names[name], name, value)
        found = list(self._match_abbreviation(text))
        if len(found) > 1:
            listed = ", ".join(match.name for match in found)
            raise WouldNotStartError(f"ambiguous option: {name} could match {listed} ({word.token.place})")
        if found:
            return found[0]
        return _VALUE if _NEGATIVE_NUMBER.fullmatch(text) or " " in text else _UNKNOWN

    def _match_abbreviation(self, text: str) -> Iterator[_Match]:
        if text.startswith("--"):
            prefix, joined, value = text.partition("=")
            for name, option in self.names.items():
                if name.startswith(prefix):
                    yield _Match(option, name, value if joined else None)
            return
        for name, option in self.names.items():
            if name == text[:2]:
                yield _Match(option, name, text[2:])
            elif name.startswith(text):
                yield _Match(option, name, None)

    def _count(self, match: _Match, word: Word, following: Sequence[object]) -> int:
        """Return how many of the following words an option takes."""
        arity, label, place = match.option.arity, "/".join(match.option.names), word.token.place
        if match.explicit is not None:
            if arity is Arity.NONE:
                raise WouldNotStartError(f"argument {label}: ignored explicit argument ({place})")
            return 0
        values = _values_after(following)
        if arity is Arity.NONE:
            return 0
        if arity is Arity.OPTIONAL:
            return min(values, 1)
        if not values:
            desired = "one argument" if arity is Arity.ONE else "at least one argument"
            raise WouldNotStartError(f"argument {label}: expected {desired} ({place})")
        return 1 if arity is Arity.ONE else values


@dataclass(frozen=True, slots=True)
class _Match:
    """A word that names an option, with the value that is part of the word."""

    option: Option
    name: str
    explicit: str | None


_VALUE = object()
_UNKNOWN = object()
_DASHES = object()
"""The first `--`: it goes with the positional argument that it stands beside, else nothing takes it (CPython
3.11 and 3.13, argparse.py, `_get_nargs_pattern`)."""


def _refuse_unknown(words: Sequence[Word]) -> None:
    """Refuse words that nothing asks for and that may be any number of words, flags among them.

    Raises:
        MayHoldFlagsError: one of them comes from a variable that is set elsewhere.
    """
    for word in words:
        if word.token.unresolved:
            raise MayHoldFlagsError(word.token)


def _values_after(matches: Sequence[object]) -> int:
    return next((index for index, match in enumerate(matches) if match is not _VALUE), len(matches))


def _use(match: _Match, word: Word, following: Sequence[Word]) -> Given:
    joined = match.explicit is not None
    values = (replace(word, text=match.explicit or ""),) if joined else tuple(following)
    return Given(match.option, word, match.name, values, joined, _option_value(match, word, values))


def _option_value(match: _Match, word: Word, values: tuple[Word, ...]) -> Scalar:
    option = match.option
    if option.kind is Kind.HELP:
        raise WouldNotStartError(f"{word.text} ({word.token.place}) prints the help and ends")
    if not values:
        return not match.name.startswith("--no-") if option.kind is Kind.SWITCH else True
    read = [_read_word(option, value) for value in values]
    return read[0] if len(read) == 1 else " ".join(str(item) for item in read)


def _read_word(option: Option, value: Word) -> Scalar:
    if value.token.unresolved:
        return value.text
    result = read_value(option, value.text)
    if isinstance(result, Malformed):
        label = "/".join(option.names)
        raise WouldNotStartError(f"argument {label}: {result.message} ({value.token.place})")
    return result


def _stray_message(stray: Sequence[Word]) -> str:
    """Return what argparse says of words that it can't place.

    Only the name of an option is shown: what belongs to no option may be a secret.
    """
    first = stray[0]
    place = first.token.place
    more = f" and {len(stray) - 1} more" if len(stray) > 1 else ""
    if not first.text.startswith("-"):
        return f"unrecognized arguments: {place} belongs to no option{more}"
    name = re.split(r"[\s=]", first.text, maxsplit=1)[0]
    spaced = "; an option and its value in one item need `=` between them" if " " in first.text else ""
    return f"unrecognized arguments: {name} ({place}){more}{spaced}"


def options_of(engine: Engine) -> tuple[Option, ...]:
    """Return the options that an engine may have: between two releases, those of either."""
    low, high = engine.profile.neighbours(engine.effective_version)
    options = engine.profile.options_of(low)
    if low == high:
        return options
    known: Mapping[str, Option] = {name: option for option in options for name in option.names}
    later = (o for o in engine.profile.options_of(high) if not any(name in known for name in o.names))
    return (*options, *later)


_SUFFIXED = re.compile(r"(?P<number>\d+(?P<fraction>\.\d+)?)(?P<suffix>[kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""vLLM 0.32, `human_readable_int` in utils/argparse_utils.py."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """The engine does not accept a text; why, in its own words where these are known."""

    message: str


LARGEST = 2**63 - 1
"""The largest whole number that an engine can hold: its tensors and its allocator count in int64."""
_LONGEST = 100
"""Characters of a value that a message quotes."""


def _quote_text(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def read_value(option: Option, text: str) -> Scalar | Malformed:
    """Return the value that an option takes from a text."""
    if option.nullable and text in {"", "None"}:
        return None
    value = _typed_value(option.kind, text)
    if option.choices and not isinstance(value, Malformed) and str(value) not in option.choices:
        listed = ", ".join(repr(choice) for choice in option.choices)
        return Malformed(f"invalid choice: {_quote_text(text)} (choose from {listed})")
    return value


def _typed_value(kind: Kind, text: str) -> Scalar | Malformed:
    match kind:
        case Kind.INT:
            return _integer(text, "int")
        case Kind.HUMAN_INT:
            return _human(text)
        case Kind.HUMAN_INT_OR_AUTO:
            return -1 if text.strip() == "-1" or text.strip().lower() == "auto" else _human(text)
        case Kind.FLOAT:
            return _decimal(text)
        case Kind.TRUTH | Kind.SWITCH | Kind.PRESENCE:
            return _truth(text)
        case Kind.TEXT | Kind.HELP:
            return text


def _integer(text: str, kind: str) -> int | Malformed:
    try:
        return _bounded_whole(int(text), text)
    except ValueError:
        return Malformed(f"invalid {kind} value: {_quote_text(text)}")


def _bounded_whole(value: float, text: str) -> int | Malformed:
    """Return a whole number as it is, where an engine can hold it."""
    if abs(value) > LARGEST:
        return Malformed(f"{_quote_text(text)} is more than an engine can hold: at most {LARGEST}")
    return int(value)


def _human(text: str) -> int | Malformed:
    match = _SUFFIXED.fullmatch(text.strip())
    if match is None:
        return _integer(text, "human_readable_int")
    number, suffix = match["number"], match["suffix"]
    if suffix in _DECIMAL:
        return _bounded_whole(float(number) * _DECIMAL[suffix], text)
    if match["fraction"] is None:
        whole = _integer(number, "human_readable_int")
        return whole if isinstance(whole, Malformed) else _bounded_whole(whole * _BINARY[suffix], text)
    return Malformed(
        f"Decimals are not allowed with binary suffixes like {suffix}. "
        f"Did you mean to use {number}{suffix.lower()} instead?"
    )


def _decimal(text: str) -> float | Malformed:
    try:
        value = float(text)
    except ValueError:
        return Malformed(f"invalid float value: {_quote_text(text)}")
    return value if math.isfinite(value) else Malformed(f"not a finite number: {_quote_text(text)}")


def _truth(text: str) -> bool | Malformed:
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    return Malformed(f"invalid boolean value: {_quote_text(text)}; expected true or false")
