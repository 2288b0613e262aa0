"""The words that a shell makes of its script's syntax tree, with the variables that the manifest has.

Variables are replaced and split, quotes and backslashes taken away (POSIX.1-2017, XCU 2.6). What only a run
shows, such as a command's output, is stood in for. A pattern of pathnames is taken to match no file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cache
from typing import TypeAlias

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Point, Tree

from kvmedic.manifests.size_limits import PARSER_STEPS, WORD_STEPS, Budget, TooLargeError
from kvmedic.manifests.tokens import BY_SCRIPT, EMPTY, Traced, as_one, connect_pieces, stand_in
from kvmedic.manifests.variables import Environment

_PIECE = 1024
"""Bytes that the grammar reads at once."""
_COPIED = 256
"""Characters that are copied in the time of one step (measured)."""
_ESCAPE_STEPS = 2
"""Steps that an escape takes: 9 µs, where a step takes 5 (measured)."""


class Source:
    """One script and its tree; offsets are characters, not bytes."""

    def __init__(self, text: Traced, budget: Budget) -> None:
        self.text = text
        self.budget = budget
        budget.spend_text(len(text.text))
        kept = _without_dangling_continuation(text.text)
        data = kept.encode()
        self.root = _tree(data, budget).root_node
        self._characters = _characters(kept) if len(data) != len(kept) else None

    def span(self, node: Node) -> tuple[int, int]:
        """Return a node's first character and the one behind its last."""
        if self._characters is None:
            return node.start_byte, node.end_byte
        return self._characters[node.start_byte], self._characters[node.end_byte]

    def piece(self, node: Node) -> Traced:
        """Return a node's text, traced."""
        start, stop = self.span(node)
        self.budget.spend(1 + (stop - start) // _COPIED)
        return self.text.piece(start, stop)

    def text_of(self, node: Node) -> str:
        """Return a node's text."""
        start, stop = self.span(node)
        self.budget.spend(1 + (stop - start) // _COPIED)
        return self.text.text[start:stop]

    def descendants(self, node: Node) -> Iterator[Node]:
        """Yield a node and everything in it, in the order of the text."""
        waiting = [node]
        while waiting:
            self.budget.spend(1)
            current = waiting.pop()
            yield current
            waiting.extend(reversed(current.children))

    def fault(self) -> int:
        """Return the line of the first thing that is not understood, counted from 1; 0 where all is."""
        if not self.root.has_error:
            return 0
        found = (n for n in self.descendants(self.root) if n.is_error or n.is_missing)
        first = next(found, self.root)
        return first.start_point[0] + 1


class _Reading:
    """What the grammar reads, in pieces that are counted: of some texts it reads the rest for each word."""

    def __init__(self, data: bytes, budget: Budget) -> None:
        self._data = data
        self._budget = budget
        self.spent: TooLargeError | None = None

    def piece(self, start: int, _point: Point) -> bytes:
        """Return the piece from some byte on, and take steps for it.

        Also where none are left, until the grammar asks next: at an end in the middle of 14,000 pipes it
        looked for a way on for six seconds, and asked nothing (tree-sitter 0.26, measured).
        """
        self.runs_out(0, False)
        return self._data[start : start + _PIECE]

    def runs_out(self, _offset: int, _has_error: bool) -> bool:  # noqa: FBT001 - tree-sitter calls it so
        """Take steps and return whether there are none left: the grammar can't be left by an exception."""
        try:
            self._budget.spend(PARSER_STEPS)
        except TooLargeError as error:
            self.spent = self.spent or error
        return self.spent is not None


def _tree(data: bytes, budget: Budget) -> Tree:
    reading = _Reading(data, budget)
    try:
        tree = Parser(_language()).parse(reading.piece, encoding="utf8", progress_callback=reading.runs_out)
    except ValueError:
        if reading.spent is None:
            raise
    if reading.spent is not None:
        raise reading.spent
    return tree


@cache
def _language() -> Language:
    return Language(tree_sitter_bash.language())


def _without_dangling_continuation(text: str) -> str:
    """Return a script without a backslash that continues its last line: shells ignore it."""
    stripped = text.rstrip("\n")
    continued = (len(stripped) - len(stripped.rstrip("\\"))) % 2 == 1 and stripped != text
    return stripped[:-1] + " " if continued else text


def _characters(text: str) -> list[int]:
    """Return the character of each byte, and one more for the end."""
    found: list[int] = []
    for index, character in enumerate(text):
        found += [index] * len(character.encode())
    return [*found, len(text)]


Value: TypeAlias = Traced | tuple[Traced, ...]
"""A text, or the elements of an array."""

ANY = "*"
"""Among names: any of them."""
_READERS = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "let", "unset"})
"""Builtins that set the variables that they are given by name."""
_SOURCING = frozenset({"source", ".", "eval"})
"""Builtins that run text that is not looked into here."""
_ACTIVATED = ("PATH", "PS1", "PYTHONHOME", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT")
"""What Python's `activate` of a virtual environment sets (CPython 3.13, `Lib/venv/scripts`)."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_NAMES_IN_A_STEP = 64
"""Names that are copied in the time of one step (measured)."""
_ASSIGNING = re.compile(r"\$\{(\w+):?=")


class Variables:
    """What names stand for. A name that was set in a way that is not followed is unknown for good."""

    def __init__(self, environment: Environment, budget: Budget) -> None:
        self._environment = environment
        self.budget = budget
        """What is left for reading the script."""
        self._own: dict[str, Value | None] = {}
        self._unknown: frozenset[str] = frozenset()

    def value(self, name: str) -> Value | None:
        """Return what a name stands for, or None where that is not known, or it is not set."""
        if name in self._unknown:
            return None
        if name in self._own:
            return self._own[name]
        if ANY in self._unknown or name not in self._environment.values:
            return None
        self.budget.spend_text(len(self._environment.values[name]))
        return self._environment.trace_value(name)

    def is_unset(self, name: str) -> bool:
        """Return whether nothing in the manifest can set a name.

        An image may: its own environment is not in the manifest.
        """
        if name in self._own or self._unknown & {name, ANY}:
            return False
        return name not in self._environment.values and not self._environment.knows_nothing_of(name)

    def source_of(self, name: str) -> str:
        """Return what sets a name: the script, or an object that the container's environment is from.

        Empty where nothing says it, as after a file that the script reads.
        """
        if name in self._own or name in self._unknown:
            return BY_SCRIPT
        return "" if ANY in self._unknown else self._environment.source_of(name)

    def assign(self, name: str, value: Value | None) -> None:
        """Set a name."""
        self._spend_copy()
        self._own = {**self._own, name: value}

    def append(self, name: str, value: Value) -> None:
        """Append to a name, as `+=` does."""
        old = self.value(name)
        if isinstance(old, Traced) and isinstance(value, Traced):
            self.budget.spend_text(len(old.text) + len(value.text))
            self.assign(name, old + value)
        elif isinstance(old, tuple) and isinstance(value, tuple):
            self.budget.spend(len(old) + len(value))
            self.assign(name, (*old, *value))
        else:
            self.assign(name, value if self.is_unset(name) else None)

    def forget(self, names: Iterable[str]) -> None:
        """Make what names stand for unknown, until they are set again."""
        for name in names:
            if name == ANY:
                self._own = {}
                self._unknown |= {ANY}
            else:
                self.assign(name, None)

    def never_know(self, names: Iterable[str]) -> None:
        """Make what names stand for unknown, whatever sets them later."""
        self._spend_copy()
        self._unknown |= frozenset(names)

    def branch(self) -> Variables:
        """Return a copy that may go its own way."""
        return copy(self)

    def in_child(self) -> Variables:
        """Return what another shell sees that this one starts; which names are exported is not followed."""
        self._spend_copy()
        child = Variables(self._environment, self.budget)
        child._unknown = self._unknown | frozenset(self._own)
        return child

    def _spend_copy(self) -> None:
        self.budget.spend(1 + (len(self._own) + len(self._unknown)) // _NAMES_IN_A_STEP)


def find_assigned_names(node: Node, source: Source) -> set[str]:
    """Return the names that some part of a script may set."""
    return {name for found in source.descendants(node) for name in _names_set_by(found, source)}


def _names_set_by(node: Node, source: Source) -> Iterable[str]:
    match node.type:
        case "variable_assignment":
            return _NAME.findall(source.text_of(node).partition("=")[0])
        case "command":
            return _names_set_by_command([source.text_of(child) for child in node.named_children])
        case "expansion":
            return _ASSIGNING.findall(source.text_of(node))
        case "for_statement" | "declaration_command" | "unset_command":
            return _names_in(node, source)
        case "postfix_expression" | "unary_expression" | "binary_expression" | "arithmetic_expansion":
            return _names_in(node, source)
        case _:
            return ()


def _names_in(node: Node, source: Source) -> list[str]:
    found = _NAME.findall(source.text_of(node))
    source.budget.spend(len(found))
    return found


def _names_set_by_command(words: list[str]) -> Iterable[str]:
    if any(word in _SOURCING for word in words[:2]):
        return _ACTIVATED if words[1:] and words[1].endswith("bin/activate") else (ANY,)
    if words and words[0] in _READERS:
        return [name for word in words[1:] for name in _NAME.findall(word)]
    return ()


_BLANKS = re.compile(r"[ \t\n]+|[^ \t\n]+")
_BRACED = re.compile(r"\{([^{}\s]*)\}")
_SPECIAL = re.compile(r"[`'\"\\$]")
_PARAMETER = re.compile(
    r"\$\{(?P<name>\w+|[@*#?!$-])(?P<all>\[[@*]\])?(?:(?P<operator>:?[-=+?])(?P<word>.*))?\}", re.DOTALL
)


class Words:
    """Words under construction."""

    def __init__(self) -> None:
        self.done: list[Traced] = []
        self._current: list[Traced] | None = None

    def add(self, piece: Traced) -> None:
        """Add a piece that is not split."""
        self._current = [] if self._current is None else self._current
        self._current.append(piece)

    def split(self, piece: Traced) -> None:
        """Add a piece that is split at blanks, but for what only stands for something unknown."""
        for match in _BLANKS.finditer(piece.hide_unknown()):
            if match[0].isspace():
                self.finish()
            else:
                self.add(piece.piece(*match.span()))

    def finish(self) -> None:
        """End the word, if one was begun."""
        if self._current is not None:
            self.done.append(connect_pieces(self._current))
            self._current = None


class Expansion:
    """One script's words, as its variables are at some point of it."""

    def __init__(self, source: Source, variables: Variables) -> None:
        self.source = source
        self.variables = variables
        self.problems: list[str] = []
        """The constructs whose words are unknown."""
        self._kinds: dict[str, Callable[[Node, Words], None]] = {
            "word": self._bare,
            "number": self._bare,
            "variable_name": self._bare,
            "extglob_pattern": self._bare,
            "regex": self._bare,
            "test_operator": self._bare,
            "command_name": self._parts,
            "concatenation": self._parts,
            "string": self._expand_quotes,
            "raw_string": self._raw,
            "ansi_c_string": self._expand_escape,
            "simple_expansion": self._expand_bare,
            "expansion": self._expand_bare,
            "command_substitution": self._output,
            "arithmetic_expansion": self._stand_in,
        }

    def words(self, nodes: Sequence[Node]) -> list[Traced]:
        """Return the words that a command gets of these nodes."""
        words = Words()
        for before, node in zip([None, *nodes], nodes, strict=False):
            if before is None or not self._continues(before, node):
                words.finish()
            if self._is_beside_escaped_blank(node):
                self.problems.append("a backslash before a blank")
            braced = _BRACED.findall(self._without_quotes(node))
            if any("," in inside or ".." in inside for inside in braced):
                self.problems.append("a brace expansion")
            self._add(node, words)
        words.finish()
        self._spend(words)
        return words.done

    def _spend(self, words: Words) -> None:
        for word in words.done:
            self.source.budget.spend(WORD_STEPS)
            self.source.budget.spend_text(len(word.text))

    def value(self, nodes: Sequence[Node]) -> Traced:
        """Return the value of an assignment: one text that is not split."""
        words = Words()
        for node in nodes:
            for child in node.children if node.type == "concatenation" else [node]:
                if child.type in {"simple_expansion", "expansion", "command_substitution"}:
                    self._inside(child, words)
                else:
                    self._add(child, words)
        words.finish()
        self._spend(words)
        if len(words.done) == 1:
            return words.done[0]
        return stand_in("$@", "@", None) if words.done else EMPTY

    def _continues(self, before: Node, node: Node) -> bool:
        """Return whether nothing but the end of a continued line stands between two nodes: one word."""
        between = self.source.text.text[self.source.span(before)[1] : self.source.span(node)[0]]
        return re.fullmatch(r"(?:\\\n)+", between) is not None

    def _is_beside_escaped_blank(self, node: Node) -> bool:
        """Return whether an escaped blank is before or behind a node: a shell makes a word of it.

        The grammar takes it for a gap. A folded block of YAML makes such blanks of continued lines.
        """
        text, (start, stop) = self.source.text.text, self.source.span(node)
        behind = re.compile(r"(?:[ \t]|\\\n)*\\[ \t]").match(text, stop)
        return behind is not None or _ends_in_escaped_blank(text, start)

    def _add(self, node: Node, words: Words) -> None:
        kind = self._kinds.get(node.type)
        if kind is None:
            self.problems.append(node.type.replace("_", " "))
            kind = self._stand_in
        kind(node, words)

    def _parts(self, node: Node, words: Words) -> None:
        for child in node.children:
            self._add(child, words)

    def _bare(self, node: Node, words: Words) -> None:
        piece = self.source.piece(node)
        if piece.text.startswith("~"):
            words.add(stand_in(piece.text, "~", piece.site))
        elif piece.text:
            words.add(self._unescape(piece, lambda _: True))

    def _unescape(self, piece: Traced, is_escapable: Callable[[str], bool]) -> Traced:
        """Return a text without its backslashes; the steps for each are taken before."""
        self.source.budget.spend(_ESCAPE_STEPS * piece.text.count("\\"))
        return _unescape_text(piece, is_escapable)

    def _raw(self, node: Node, words: Words) -> None:
        piece = self.source.piece(node)
        words.add(piece.piece(1, len(piece.text) - 1))

    def _expand_escape(self, node: Node, words: Words) -> None:
        piece = self.source.piece(node)
        if "\\" in piece.text:
            self._stand_in(node, words)
        else:
            words.add(piece.piece(2, len(piece.text) - 1))

    def _expand_quotes(self, node: Node, words: Words) -> None:
        """Add a text in double quotes; between its expansions all is literal."""
        words.add(EMPTY)
        start, stop = self.source.span(node)
        done = start + 1
        for child in node.named_children:
            if child.type == "string_content":
                continue
            begin, end = self.source.span(child)
            words.add(self._unescape(self.source.text.piece(done, begin), _is_special_in_quotes))
            self._inside(child, words)
            done = end
        words.add(self._unescape(self.source.text.piece(done, stop - 1), _is_special_in_quotes))

    def _inside(self, node: Node, words: Words) -> None:
        """Add an expansion that is not split: within double quotes, or in an assignment."""
        value = self._value_of(node)
        if isinstance(value, tuple) and "*" in self.source.piece(node).text:
            value = None
        if isinstance(value, tuple):
            words.add(EMPTY)
            for index, item in enumerate(value):
                if index:
                    words.finish()
                words.add(item)
        elif value is None:
            self._stand_in(node, words)
        else:
            words.add(value)

    def _expand_bare(self, node: Node, words: Words) -> None:
        value = self._value_of(node)
        if value is None:
            self._stand_in(node, words)
            return
        for item in value if isinstance(value, tuple) else [value]:
            words.split(item)
            if isinstance(value, tuple):
                words.finish()

    def _output(self, node: Node, words: Words) -> None:
        if not self.source.piece(node).unknown:
            self.problems.append("a command substitution without quotes")
        self._stand_in(node, words)

    def _stand_in(self, node: Node, words: Words) -> None:
        piece = self.source.piece(node)
        name = next(iter(piece.unknown), "") or _name_in(piece.text)
        words.add(stand_in(piece.text, name, piece.site))

    def _value_of(self, node: Node) -> Value | None:
        """Return what an expansion gives, or None where it is not known."""
        piece = self.source.piece(node)
        if node.type == "simple_expansion":
            return self._expand_name(piece.text[1:], piece)
        match = _PARAMETER.fullmatch(piece.text) if node.type == "expansion" else None
        if match is None:
            return None
        value = self._expand_name(match["name"], piece)
        if bool(match["all"]) is not isinstance(value, tuple) and match["name"] not in {"@", "*"}:
            return None
        if match["operator"] is None:
            return value
        return self._with_default(value, match, piece)

    def _with_default(self, value: Value | None, match: re.Match[str], piece: Traced) -> Value | None:
        operator, name = match["operator"], match["name"]
        if isinstance(value, tuple) or (value is None and not self.variables.is_unset(name)):
            return None
        filled = value is not None and (bool(value.text) or not operator.startswith(":"))
        if operator.endswith("+"):
            return self._default(match, piece) if filled else EMPTY
        if filled:
            return value
        return None if operator.endswith("?") else self._default(match, piece)

    def _default(self, match: re.Match[str], piece: Traced) -> Traced | None:
        start, stop = match.span("word")
        if piece.text[start : start + 1] == '"' and piece.text[stop - 1 : stop] == '"' and stop - start > 1:
            start, stop = start + 1, stop - 1
        default = piece.piece(start, stop)
        return None if _SPECIAL.search(default.text) else default.with_site(piece.site)

    def _expand_name(self, name: str, piece: Traced) -> Value | None:
        value = self.variables.value(name)
        if isinstance(value, tuple):
            return tuple(self._through(item, name, piece) for item in value)
        return None if value is None else self._through(value, name, piece)

    def _through(self, value: Traced, name: str, piece: Traced) -> Traced:
        budget = self.source.budget
        budget.spend_text(len(value.text))
        budget.check_depth(value.depth)
        return value.through(name, piece.site)

    def _without_quotes(self, node: Node) -> str:
        """Return what of a word is not quoted, with a stand-in for what is."""
        if node.type in {"string", "raw_string", "ansi_c_string", "expansion", "command_substitution"}:
            return "Q"
        if node.type in {"concatenation", "command_name"}:
            return "".join(self._without_quotes(child) for child in node.children)
        return self.source.text_of(node)


def _unescape_text(piece: Traced, is_escapable: Callable[[str], bool]) -> Traced:
    """Return a text without its backslashes; one before a line's end takes that away too."""
    if "\\" not in piece.text:
        return piece
    pieces: list[Traced] = []
    done, index, text = 0, 0, piece.text
    while (index := text.find("\\", index)) >= 0:
        following = text[index + 1 : index + 2]
        if not following or not is_escapable(following):
            index += 1
            continue
        pieces.append(piece.piece(done, index))
        if following != "\n":
            pieces.append(as_one(following, piece.piece(index, index + 2)))
        done = index = index + 2
    return connect_pieces([*pieces, piece.piece(done, len(text))])


def _ends_in_escaped_blank(text: str, stop: int) -> bool:
    """Return whether an escaped blank is before a place, with only blanks and continued lines between."""
    while stop > 1:
        before, last = text[stop - 2], text[stop - 1]
        if before == "\\" and last in " \t\n":
            if last != "\n":
                return True
            stop -= 2
        elif last in " \t":
            stop -= 1
        else:
            return False
    return False


def _is_special_in_quotes(character: str) -> bool:
    return character in '$`"\\\n'


def _name_in(text: str) -> str:
    """Return the variable that an expansion names, or what it is."""
    match = re.match(r"\$\{?[#!]?(\w+(?:\[[@*]\])?|[@*#?!$-])", text)
    return match[1] if match else text
