"""A shell's variables at one point of its script, as far as the manifest tells them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import copy
from typing import TypeAlias

from tree_sitter import Node

from kvmedic.manifests.budget import Budget
from kvmedic.manifests.source import Source
from kvmedic.manifests.tokens import Environment
from kvmedic.manifests.traced import Traced

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
        return self._environment.traced(name)

    def is_unset(self, name: str) -> bool:
        """Return whether nothing in the manifest can set a name.

        An image may: its own environment is not in the manifest.
        """
        if name in self._own or self._unknown & {name, ANY}:
            return False
        return name not in self._environment.values and not self._environment.knows_nothing_of(name)

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


def assigned_in(node: Node, source: Source) -> set[str]:
    """Return the names that some part of a script may set."""
    return {name for found in source.descendants(node) for name in _set_by(found, source)}


def _set_by(node: Node, source: Source) -> Iterable[str]:
    match node.type:
        case "variable_assignment":
            return _NAME.findall(source.text_of(node).partition("=")[0])
        case "command":
            return _set_by_command([source.text_of(child) for child in node.named_children])
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


def _set_by_command(words: list[str]) -> Iterable[str]:
    if any(word in _SOURCING for word in words[:2]):
        return _ACTIVATED if words[1:] and words[1].endswith("bin/activate") else (ANY,)
    if words and words[0] in _READERS:
        return [name for word in words[1:] for name in _NAME.findall(word)]
    return ()
