"""The text of an engine's configuration file: what the engine reads in it, and where a value stands.

The file's entries count as if they stood before all options, so the command line beats them (vLLM
0.32, `FlexibleArgumentParser.load_config_file`). Comments and layout are never touched: a change is
one stretch of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kvmedic.core.edit import Field
from kvmedic.core.engine import Engine, Flag, Kind
from kvmedic.manifests.budget import MOST_BRACKETS, has_too_many_brackets
from kvmedic.manifests.grammar import Given, Parsed, options_of, parse
from kvmedic.manifests.invocation import invocation_of
from kvmedic.manifests.mounts import unseen
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.tokens import Place, Token
from kvmedic.manifests.words import CommandLine

LONGEST = 32 * 1024
"""Characters of a file that is read, at most: with all 317 options of vLLM 0.32 it has 10,773, and so many
take the reader up to 0.75 s (measured, one-letter keys within braces), for which everything else waits."""
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})
"""What PyYAML, vLLM's reader, takes for a boolean where it has no quotes (6.0, resolver.py)."""
_SWITCHES = frozenset({Kind.SWITCH, Kind.PRESENCE, Kind.TRUTH})
_MERGE = "<<"
_NOT_DECIMAL = re.compile(r"[-+]?(?:0[0-7_]+|0x[\da-fA-F_]+|0b[01_]+|[1-9][\d_]*(?::[0-5]?\d)+(?:\.[\d_]*)?)")
"""Plain numbers that PyYAML, vLLM's reader, reads in another base: octal, hexadecimal, binary, base 60."""


@dataclass(frozen=True, slots=True)
class EngineFile:
    """A configuration file's text, and what the engine reads in it. It may be secret: never print it."""

    where: str
    """The file, for people."""
    parsed: Parsed = field(repr=False)
    text: str = field(repr=False)

    def given(self, dest: str) -> Given | None:
        """Return the entry that decides a value, or None where the file gives none."""
        return self.parsed.last(dest)

    def decides(self, flag: Flag, line: Parsed) -> Given | None:
        """Return the entry that is changed where a flag's value is; None: that is the command line's matter.

        The command line beats the file. And a switch is no matter of the file: `vllm serve` leaves an
        entry out that is false (measured on 0.32.0).
        """
        given = self.given(flag.dest)
        if given is None or line.last(flag.dest) is not None or given.option.kind in _SWITCHES:
            return None
        return given

    def span(self, dest: str) -> slice | Refusal:
        """Return the characters of the text that a value is written in, without quotes."""
        given = self.given(dest)
        node = entries_of(self.text).get(given.word.token.raw) if given is not None else None
        if not isinstance(node, ScalarNode) or node.anchor is not None:
            return self._oddly(dest)
        quote = 1 if node.style else 0
        start, stop = node.start_mark.index + quote, node.end_mark.index - quote
        return slice(start, stop) if self.text[start:stop] == node.value else self._oddly(dest)

    def _oddly(self, dest: str) -> Refusal:
        return Refusal(RefusalReason.UNSAFE, f"{dest} in {self.where} is laid out oddly: change it there")


def engine_file(
    text: str, where: str, container: Mapping[str, object], engine: Engine
) -> EngineFile | Refusal:
    """Return what an engine reads in a configuration file.

    Args:
        text: the file.
        where: what it is called in messages.
        container: that starts the engine; how it does decides what becomes of entries that are false.
        engine: with its version.
    """
    line = invocation_of(container, engine.profile)
    honours_false = isinstance(line, CommandLine) and not line.subcommand
    tokens = _tokens(text, where, _spelled_off(engine, honours_false))
    if isinstance(tokens, Refusal):
        return tokens
    parsed = parse(CommandLine(tuple(tokens), subcommand=False), engine)
    return parsed if isinstance(parsed, Refusal) else EngineFile(where, parsed, text)


def entries_of(text: str) -> dict[str, Node]:
    """Return the entries of a file by key; of several for one key the last counts.

    Raises:
        YAMLError: it is not YAML.
        RecursionError: it is nested without end.
    """
    root = YAML(typ="safe", pure=True).compose(text)
    pairs = root.value if isinstance(root, MappingNode) else []
    return {_scalar(key): value for key, value in pairs}


def _spelled_off(engine: Engine, honours_false: bool) -> dict[str, str]:  # noqa: FBT001 - a fact, not a mode
    """Return the spelling of each switch that is false; empty where vLLM leaves such an entry out.

    `vllm serve` leaves it out, the Python module writes `--no-` before it (measured on 0.32.0).
    """
    kinds = {Kind.SWITCH, Kind.PRESENCE}
    names = (name for option in options_of(engine) if option.kind in kinds for name in option.names)
    return {name: f"--no-{name.removeprefix('--')}" if honours_false else "" for name in names}


def _tokens(text: str, where: str, switches: Mapping[str, str]) -> list[Token] | Refusal:
    """Return the options that the entries of a file stand for."""
    if len(text) > LONGEST:
        return _too_large(
            f"{where} has {len(text)} characters; at most {LONGEST} are read: take out what no engine reads"
        )
    if has_too_many_brackets(text):
        return _too_large(f"{where} has more than {MOST_BRACKETS} brackets within one another: write it flat")
    try:
        entries = entries_of(text)
    except (YAMLError, RecursionError):
        return unseen(f"{where} is not readable as YAML")
    if _MERGE in entries:
        return unseen(f"{where} merges entries from elsewhere (`<<`): write them out")
    odd = next((key for key, node in entries.items() if _reads_otherwise(node)), None)
    if odd is not None:
        return unseen(f"{where} gives {odd} as a number that is not decimal: write it as one, or quote it")
    return [token for key, node in entries.items() for token in _option(key, node, where, switches)]


def _too_large(message: str) -> Refusal:
    return Refusal(RefusalReason.TOO_LARGE, message)


def _reads_otherwise(node: Node) -> bool:
    plain = isinstance(node, ScalarNode) and node.style is None
    return plain and _NOT_DECIMAL.fullmatch(_scalar(node)) is not None


def _option(key: str, node: Node, where: str, switches: Mapping[str, str]) -> Iterator[Token]:
    """Yield the words of one entry."""
    place = Place(Field.ARGS, 0, None, node.start_mark.line + 1, where)
    name = f"--{key}"
    if isinstance(node, SequenceNode):
        yield Token(key, name, place)
        yield from (Token(key, _scalar(item), place) for item in node.value)
        return
    text, quoted = _scalar(node), isinstance(node, ScalarNode) and node.style is not None
    off = switches.get(name.replace("_", "-"))
    if off is None or quoted or text.lower() not in _TRUE | _FALSE:
        yield Token(key, f"{name}={text}", place)
    elif text.lower() in _TRUE:
        yield Token(key, name, place)
    elif off:
        yield Token(key, off, place)


def _scalar(node: Node | None) -> str:
    return str(node.value) if isinstance(node, ScalarNode) else ""
