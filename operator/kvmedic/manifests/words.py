"""An engine's own steps before argparse sees its command line.

The steps and their order are vLLM's (`FlexibleArgumentParser.parse_args`, 0.32): the positional's
option moves to the front, the configuration file is taken out, underscores become dashes, the keys of
JSON options are gathered. Every word keeps the token that it came from.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from itertools import zip_longest

from kvmedic.core.engine import Engine
from kvmedic.manifests.tokens import Place, Token


class WouldNotStartError(Exception):
    """The engine would not accept its command line; never leaves `grammar.parse`."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The tokens after the engine's start, and whether a subcommand started it."""

    tokens: tuple[Token, ...]
    subcommand: bool
    tail: Place | None = None
    """Where a further word would stand in a shell's script; None where the words are items of a list."""


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
    return config, _gathered([_dashed(word) for word in levelled], engine)


def _positional_to_front(words: list[Word], engine: Engine) -> list[Word]:
    dialect = engine.profile.dialect
    for index, word in enumerate(words):
        name, joined, value = word.text.partition("=")
        if name != dialect.positional or (joined and not value):
            continue
        if engine.effective_version < dialect.positional_since:
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
    if not words or not words[0].text.startswith("-"):
        return
    names = [word.text.partition("=")[0] for word in words]
    if dialect.config not in names and dialect.needs_positional in [n.replace("_", "-") for n in names]:
        raise WouldNotStartError(f"{dialect.needs_positional} needs the model as the first argument")


def _without_config(words: list[Word], option: str) -> tuple[str | None, list[Word]]:
    places = [index for index, word in enumerate(words) if word.text == option]
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


def _dashed(word: Word) -> Word:
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


def _gathered(words: list[Word], engine: Engine) -> list[Word]:
    """Return the words with each `--option.key value` moved to the end as `--option value`.

    The value is JSON that is put together of all keys; which keys does not matter here.
    """
    if engine.effective_version < engine.profile.dialect.dotted_since:
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
