"""An option taken off a command line: one that was added as one word, or every use of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvmedic.core.edit import Field, TokenEdit
from kvmedic.core.engine import Engine, Flag, Spelled
from kvmedic.manifests.flags import parsed_of
from kvmedic.manifests.grammar import Given
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.rewrite import Change, shared_variable
from kvmedic.manifests.tokens import Token, item_text
from kvmedic.manifests.traced import Spot


def removed(container: Mapping[str, object], index: int, flag: Flag, engine: Engine) -> TokenEdit | Refusal:
    """Return the one token that has to go so that a container's command line does not give a flag.

    Only a flag that is one word is taken off, as that is how one is added; and only where the engine reads
    all other flags as before.

    Args:
        container: the engine's.
        index: its place in its pod template.
        flag: that is given.
        engine: what runs in it.
    """
    parsed = parsed_of(container, engine)
    if isinstance(parsed, Refusal):
        return parsed
    given = parsed.last(flag.dest)
    if given is None or not given.joined:
        where = "is not on the command line" if given is None else "is not one word, `--name=value`"
        return Refusal(RefusalReason.UNSAFE, f"{flag.dest} {where}: remove it by hand")
    change = _without(container, given.held_by)
    if change is None or not _is_safe(container, change, flag, engine):
        return Refusal(
            RefusalReason.UNSAFE, f"{flag.dest} can't be removed without changing how other flags are read"
        )
    return replace(change, container_index=index)


def _without(container: Mapping[str, object], token: Token) -> TokenEdit | None:
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


def taken_off(
    container: Mapping[str, object], index: int, option: Spelled, engine: Engine
) -> tuple[TokenEdit, ...] | Refusal:
    """Return the edits after which a container's command line does not give an option at all.

    Every word of every use goes, the last one first: a later edit counts on those before it. None are needed
    where the option is not given. Only where the engine reads all other options as before.

    Args:
        container: the engine's.
        index: its place in its pod template.
        option: that is to go.
        engine: what runs in it.
    """
    parsed = parsed_of(container, engine)
    if isinstance(parsed, Refusal):
        return parsed
    uses = (use for use in parsed.given if use.option.dest == option.dest)
    words = sorted((word for use in uses for word in _words_of(use)), key=_position, reverse=True)
    edits: list[TokenEdit] = []
    present = container
    for word in words:
        change = _off(present, word)
        if change is None:
            return _unsafe(option, word)
        present = _changed(present, change)
        edits.append(replace(change, container_index=index))
    if edits and not _is_rid(container, present, option, engine):
        return _unsafe(option, words[0])
    return tuple(edits)


def _words_of(use: Given) -> tuple[Token, ...]:
    values = () if use.joined else tuple(value.token for value in use.values)
    return (use.word.token, *values)


def _position(word: Token) -> tuple[bool, int, int]:
    """Return where a word is written: in the environment before anything else, then in reading order."""
    spot = _written_in_env(word)
    if spot is not None:
        return False, spot.item, spot.start
    field, index, at = word.place.field, word.place.index, word.place.at or 0
    return True, index if field is Field.COMMAND else index + _LONGEST, at


_LONGEST = 1_000_000
"""More items than any list of a container has, so that `args` come behind `command`."""


def _off(container: Mapping[str, object], word: Token) -> TokenEdit | None:
    """Return the edit that removes a word wherever it is written; None where it is no word of its own."""
    name, place = str(container.get("name")), word.place
    if place.at is None and place.field is not Field.ENV:
        items = container.get(place.field)
        alone = isinstance(items, list) and len(items) == 1
        return None if alone else TokenEdit(name, 0, place.field, place.index, word.raw, None)
    spot = _written_in_env(word)
    if spot is None:
        return _without(container, word)
    if shared_variable(container, Change(word, 0, ""), spot):
        return None
    text = item_text(container, Field.ENV, spot.item)
    start, stop = (spot.start - 1, spot.stop) if spot.start else (0, spot.stop + 1)
    piece = text[start:stop]
    if len(piece) == len(text) or piece.strip(" ") != text[spot.start : spot.stop] or " " not in piece:
        return None
    return TokenEdit(name, 0, Field.ENV, spot.item, piece, None, start)


def _written_in_env(word: Token) -> Spot | None:
    """Return where in a variable's value a word of a script is written; None where it is not there."""
    origin = word.trace.origin if word.variables and word.place.at is not None else None
    return origin if origin is not None and origin.field is Field.ENV else None


def _unsafe(option: Spelled, word: Token) -> Refusal:
    message = f"{option.name} ({word.place}) can't be removed without changing how the rest is read"
    return Refusal(RefusalReason.UNSAFE, f"{message}: remove it by hand")


def _is_safe(container: Mapping[str, object], change: TokenEdit, flag: Flag, engine: Engine) -> bool:
    return _is_rid(container, _changed(container, change), flag, engine)


def _changed(container: Mapping[str, object], change: TokenEdit) -> Mapping[str, object]:
    """Return a container, the first of its template, with an edit in it."""
    spec = change.apply({"spec": {"containers": [container]}})["spec"]
    return spec["containers"][0] if isinstance(spec, dict) else {}


def _is_rid(
    before: Mapping[str, object], after: Mapping[str, object], option: Spelled, engine: Engine
) -> bool:
    """Return whether the engine reads a changed command line as before but for one option."""
    old, new = parsed_of(before, engine), parsed_of(after, engine)
    if isinstance(old, Refusal) or isinstance(new, Refusal):
        return False
    return new.values() == {dest: value for dest, value in old.values().items() if dest != option.dest}
