"""The shapes of real fleets (`tests/data/fleets`): what is expected of each, and what its engine is given.

A shape is a whole namespace as a team has it. Its expectation was written from the shape, before the operator
was let near it. What a command line comes to is found by a shell and a few lines here, not by the operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from manifests.shell_oracle import ShellOracle, engine_arguments, expanded

FOLDER = Path(__file__).parents[2] / "data" / "fleets"
NEW_CAP = 16
"""The cap that every edit sets; no shape has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is right for one target of a shape."""

    key: str
    """Name of the Deployment; of any other object KIND/NAME, or KIND/NAME/CONTAINER."""
    let_in: bool = True
    reason: str = ""
    """Of a Deployment that is not let in: the operator's reason."""
    says: str = ""
    """A part of the answer that is useful then; where nothing else is said, KIND/NAME of what is no
    Deployment."""
    at: str = ""
    """Where the one change is: `args[3]`, `env[1]`, `file NAME`; empty: the text is not edited."""
    live: str = ""
    """Where it is in the live object, where that is another matter."""
    was: int | None = None
    """The cap before; None: it is not given."""
    refused: str = ""
    """A part of why the text is not edited."""
    engine: str = ""
    """What has to be said with --engine."""
    container: str = ""
    """What has to be said with --container."""

    @property
    def is_deployment(self) -> bool:
        """Return whether it is a target that the operator may look after."""
        return "/" not in self.key

    @property
    def names(self) -> tuple[str, str]:
        """Return the object's name, and what --container has to say; empty: nothing."""
        if self.is_deployment:
            return self.key, self.container
        _, name, *container = self.key.split("/", 2)
        return name, "".join(container)


@dataclass(frozen=True, slots=True)
class Shape:
    """A namespace, and what is expected of the engines in it."""

    name: str
    like: str
    manifest: str
    expected: tuple[Expected, ...]


def read_shapes(folder: Path = FOLDER) -> list[Shape]:
    """Return all shapes, by file and in their order there."""
    found = [row for path in sorted(folder.glob("*.yaml")) for row in yaml.safe_load(path.read_text())]
    return [
        Shape(
            row["shape"],
            row["like"],
            row["manifest"],
            tuple(_read_expected(key, fields) for key, fields in row["expect"].items()),
        )
        for row in found
    ]


def _read_expected(key: str, fields: Mapping[str, Any]) -> Expected:
    rest = {name: value for name, value in fields.items() if name != "in"}
    entry = fields.get("in", True)
    return Expected(key=key, let_in=entry is True, reason="" if entry is True else str(entry), **rest)


def objects_in(text: str) -> list[Any]:
    """Return the objects of a manifest as PyYAML reads them."""
    return [each for each in yaml.safe_load_all(text) if each]


@dataclass(frozen=True, slots=True)
class Changed:
    """The one leaf in which two manifests differ."""

    path: tuple[str | int, ...]
    before: Any
    """None: it was added."""
    after: Any

    @property
    def place(self) -> str:
        """Return it as an edit names it: `args[3]`."""
        path = self.path[:-1] if self.path[-1] == "value" else self.path
        return f"{path[-2]}[{path[-1]}]"


def changes_between(before: Any, after: Any, path: tuple[str | int, ...] = ()) -> Iterator[Changed]:
    """Yield every leaf in which two structures differ; an item at a list's end counts as one."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from changes_between(before.get(key), after.get(key), (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        longest = max(len(before), len(after))
        pad_before, pad_after = (each + [None] * (longest - len(each)) for each in (before, after))
        for index, pair in enumerate(zip(pad_before, pad_after, strict=True)):
            yield from changes_between(*pair, (*path, index))
    elif before != after:
        yield Changed(path, before, after)


def container_at(objects: Sequence[Any], path: Sequence[str | int]) -> dict[str, Any]:
    """Return the container that a changed leaf is in."""
    here: Any = objects
    found: Any = None
    for key in path[:-1]:
        if isinstance(here, dict) and ("args" in here or "command" in here or "env" in here):
            found = here
        here = here[key]
    return dict(found)


ADDITIONAL = "VLLM_ADDITIONAL_ARGS"
_CAP = re.compile(r"--max[-_]num[-_]seqs?(?:=(.*))?")


def words_of(container: Mapping[str, Any], oracle: ShellOracle) -> list[str]:
    """Return the arguments that the engine of a container gets, in order."""
    env = [each for each in container.get("env") or () if isinstance(each.get("value"), str)]
    command, args = list(container.get("command") or ()), list(container.get("args") or ())
    if not command and not args and any(each["name"] == ADDITIONAL for each in env):
        # KServe's script, as far as it matters here (`config/llmisvc`).
        command = ["bash", "-c", f'eval "vllm serve m ${{{ADDITIONAL}}}"']
    if not command and len(args) == 1 and " " in args[0]:
        command = ["/bin/sh", "-c"]
    if not any(re.search(r"(?:^|/)(?:ba)?sh$", word) for word in command):
        values: dict[str, str] = {}
        for entry in env:
            values[entry["name"]] = expanded(entry["value"], values)
        return [expanded(word, values) for word in (*command, *args)]
    runs = oracle.argvs({"command": command, "args": args, "env": env})
    starts = [run for run in runs if run[:1] == ["serve"] or "vllm" in "".join(run[:2])]
    return engine_arguments(starts[-1])


def cap_in(words: Sequence[str]) -> tuple[int | None, list[str]]:
    """Return the cap that counts, and all words but the last ones that give it."""
    cap, rest, place = None, list(words), 0
    for index, word in enumerate(words):
        if (found := _CAP.fullmatch(word)) is not None:
            cap, place = found[1] if found[1] is not None else words[index + 1], index
    if cap is None:
        return None, rest
    del rest[place : place + (1 if "=" in words[place] else 2)]
    return int(cap), rest
