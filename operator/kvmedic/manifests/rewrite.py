"""A token's text changed where it is written: in a list, in a shell's script, in a variable's value."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from kvmedic.core.edit import Field, TokenEdit
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.tokens import Place, Token, item_text
from kvmedic.manifests.traced import Spot

_PLAIN = re.compile(r"[A-Za-z0-9._=+/:,-]+")
"""Characters that no shell takes for more than they are, with and without quotes."""


@dataclass(frozen=True, slots=True)
class Change:
    """A token's text from some character on, and what it becomes."""

    token: Token
    start: int
    text: str


def rewritten(container: Mapping[str, object], change: Change) -> TokenEdit | Refusal:
    """Return the edit of one item that changes a token's text, for the first container of a template."""
    token, start = change.token, change.start
    if token.place.at is None and not token.variables:
        place, name = token.place, str(container.get("name"))
        return TokenEdit(name, 0, place.field, place.index, token.raw, token.text[:start] + change.text)
    spot = token.trace.piece(start, len(token.text)).origin
    word = token.trace.site
    if spot is None or not _PLAIN.fullmatch(change.text):
        return _several(token)
    if word is not None and word.holds(spot):
        text = item_text(container, word.field, word.item)
        if re.search(r"[\"']", text[word.start : word.stop]):
            return _edit(container, spot, change.text)
        after = text[word.start : spot.start] + change.text + text[spot.stop : word.stop]
        return _edit(container, word, after)
    return _in_variable(container, change, spot)


def appended(container: Mapping[str, object], tail: Place, text: str) -> TokenEdit:
    """Return the edit that adds a word to a command in a shell's script."""
    name = str(container.get("name"))
    return TokenEdit(name, 0, tail.field, tail.index, None, f" {shlex.quote(text)}", tail.at)


def _edit(container: Mapping[str, object], spot: Spot, after: str) -> TokenEdit:
    """Return the edit of one piece of an item; of all of it where nothing else is in the item."""
    text = item_text(container, spot.field, spot.item)
    at = None if (spot.start, spot.stop) == (0, len(text)) else spot.start
    before = text[spot.start : spot.stop]
    return TokenEdit(str(container.get("name")), 0, spot.field, spot.item, before, after, at)


def _in_variable(container: Mapping[str, object], change: Change, spot: Spot) -> TokenEdit | Refusal:
    """Return the edit of a variable's value, where nothing else refers to the variable."""
    name = shared_variable(container, change, spot)
    if name:
        message = f"{change.token.place} comes from the variable {name}, which is used elsewhere too"
        return Refusal(RefusalReason.FROM_VARIABLE, f"{message}: change it there")
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
    marks = change.token.trace.marks[change.start :]
    longest = max((mark.variables for mark in marks), key=len, default=())
    return tuple(name for name in longest if not re.fullmatch(r"[@*]|\d+", name))


def _several(token: Token) -> Refusal:
    names = ", ".join(token.variables)
    through = f" through {names}" if names else ""
    message = f"{token.place} is put together from several pieces{through}: write it in one"
    return Refusal(RefusalReason.FROM_VARIABLE, message)
