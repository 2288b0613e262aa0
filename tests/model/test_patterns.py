"""Every pattern of the package against texts that are written to make it slow."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

import kvmedic

LENGTH = 3_000
SECONDS = 0.01
"""Of CPU. A pattern that takes time in proportion needs some 0.0001 s for so long a text; one that takes it
by the square needs 0.02 to 0.4 s (measured)."""


def compiled_in(value: object, depth: int = 4) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value
    elif depth and isinstance(value, (tuple, list, frozenset, set)):
        for each in value:
            yield from compiled_in(each, depth - 1)
    elif depth and isinstance(value, dict):
        yield from compiled_in(list(value.values()), depth)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        yield from compiled_in([getattr(value, each.name, None) for each in fields(value)], depth)


@dataclass(frozen=True)
class Used:
    """One pattern, where it is, and how its text is gone through."""

    name: str
    pattern: re.Pattern[str]
    anchored: bool

    def seconds_for(self, text: str) -> float:
        began = time.process_time()
        (self.pattern.match if self.anchored else self.pattern.search)(text)
        return time.process_time() - began


def all_patterns() -> list[Used]:
    found: dict[tuple[str, int], Used] = {}
    for info in pkgutil.walk_packages(kvmedic.__path__, "kvmedic."):
        if info.name.startswith(("kvmedic.__main__", "kvmedic.cli")):
            continue
        module = importlib.import_module(info.name)
        source = inspect.getsource(module)
        for name, value in vars(module).items():
            patterns = list(compiled_in(value))
            uses = set(re.findall(rf"\b{name}\.(\w+)\(", source)) if patterns else set()
            anchored = bool(uses) and uses <= {"match", "fullmatch"}
            for each in patterns:
                known = found.get((each.pattern, each.flags))
                if known is None or (name.isupper() and uses):
                    found[each.pattern, each.flags] = Used(f"{info.name}.{name}", each, anchored)
    return list(found.values())


def pieces_of(tree: parser.SubPattern) -> list[str]:
    """Return what a pattern takes, piece by piece, by its first alternatives."""
    within = {
        codes.BRANCH: lambda v: v[1][0],
        codes.SUBPATTERN: lambda v: v[3],
        codes.ATOMIC_GROUP: lambda v: v,
    }
    found: list[str] = []
    for code, value in tree:
        match code:
            case codes.LITERAL:
                found.append(chr(value))
            case codes.IN:
                found.append(one_of(value))
            case codes.MAX_REPEAT | codes.MIN_REPEAT | codes.POSSESSIVE_REPEAT:
                found.append("".join(pieces_of(value[2])) * min(max(value[0], 1), 8))
            case codes.ANY | codes.NOT_LITERAL:
                found.append("a")
            case _ if code in within:
                found += pieces_of(within[code](value))
    return found


def one_of(members: list[tuple[object, object]]) -> str:
    known = {codes.CATEGORY_SPACE: " ", codes.CATEGORY_DIGIT: "0"}
    for code, value in members:
        if code is codes.LITERAL:
            return chr(value)  # type: ignore[arg-type]
        if code is codes.RANGE:
            return chr(value[0])  # type: ignore[index]
        if code is codes.CATEGORY:
            return known.get(value, "a")  # type: ignore[arg-type]
    return "a"


def attacks_on(pattern: re.Pattern[str]) -> set[str]:
    pieces = pieces_of(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE))
    ends = {*range(1, min(len(pieces), 4) + 1), len(pieces) - 1, len(pieces)}
    starts = {0, 1, len(pieces) - 1}
    parts = {"".join(pieces[start:end]) for start in starts for end in ends if 0 <= start < end}
    parts |= {f"{part}{joint}" for part in parts for joint in "-. "}
    return {(part * (LENGTH // len(part)))[:LENGTH] + end for part in parts if part for end in ("", "\0")}


def test_no_pattern_takes_longer_than_in_proportion_to_a_text() -> None:
    slow = [
        f"{used.name}: {used.pattern.pattern[:80]} on {text[:30]!r}…"
        for used in all_patterns()
        for text in attacks_on(used.pattern)
        if used.seconds_for(text) > SECONDS and min(used.seconds_for(text) for _ in range(3)) > SECONDS
    ]

    assert slow == []
