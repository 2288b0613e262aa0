"""A flag that was added as one word, `--name=value`, taken off a command line again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvmedic.core.edit import Field, TokenEdit
from kvmedic.core.engine import Engine, Flag
from kvmedic.manifests.flags import parsed_of
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.tokens import Token, item_text


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
    start = word.start - 1
    if start < 0 or text[start] != " ":
        return None
    return TokenEdit(name, 0, word.field, word.item, text[start : word.stop], None, start)


def _is_safe(container: Mapping[str, object], change: TokenEdit, flag: Flag, engine: Engine) -> bool:
    spec = change.apply({"spec": {"containers": [container]}})["spec"]
    edited = spec["containers"][0] if isinstance(spec, dict) else {}
    old, new = parsed_of(container, engine), parsed_of(edited, engine)
    if isinstance(old, Refusal) or isinstance(new, Refusal):
        return False
    return new.values() == {dest: value for dest, value in old.values().items() if dest != flag.dest}
