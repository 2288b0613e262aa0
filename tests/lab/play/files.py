"""Reads scenarios. What is wrong with a file is said with file, field and what to do about it."""

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from lab.cluster.machine import ROOT
from lab.play.schema import (
    Apply,
    Approve,
    Bound,
    Crash,
    Create,
    Devices,
    Evaluation,
    Expectation,
    Fleet,
    Kill,
    Limits,
    Move,
    Patch,
    Registry,
    Release,
    Restart,
    Resume,
    Scenario,
    Slow,
    Stop,
    Stream,
)

DIRECTORY = ROOT / "tests" / "lab" / "scenarios"
DEFAULTS = "defaults"
"""Name of the file that every scenario starts from; it is none itself."""
LIKE = "like"
"""Field that names the scenario which a file starts from, instead of the defaults."""
PARTS: tuple[type[BaseModel], ...] = (
    *(Scenario, Fleet, Stream, Evaluation, Limits, Expectation, Move, Bound),
    *(Devices, Slow, Patch, Kill, Apply, Create, Approve, Stop, Resume, Crash, Restart),
    *(Release, Registry),
)
"""Every model of a file, for suggestions and for the page that lists the fields."""

Content = dict[str, Any]


class ScenarioInvalid(ValueError):  # noqa: N818 - said of the scenario, as SpecInvalid is of a spec
    """A file cannot be played as it is; each problem names file, field and fix."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def names(directory: Path = DIRECTORY) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in directory.glob("*.yaml") if path.stem != DEFAULTS))


def read(name: str, directory: Path = DIRECTORY) -> Scenario:
    path = directory / f"{name}.yaml"
    content = {key: value for key, value in _inherited(name, directory, ()).items() if key != LIKE}
    try:
        return Scenario.model_validate({**content, "name": name})
    except ValidationError as error:
        raise ScenarioInvalid(_problems(error, path)) from error


def read_all(directory: Path = DIRECTORY) -> tuple[Scenario, ...]:
    """Return all scenarios; also checks what only shows with all of them at hand."""
    found: list[Scenario] = []
    problems: list[str] = []
    for name in names(directory):
        try:
            found.append(read(name, directory))
        except ScenarioInvalid as error:
            problems += error.problems
    if not problems:
        problems += _untwinned(found, directory)
    if problems:
        raise ScenarioInvalid(problems)
    return tuple(found)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Content:
    """Return a mapping over another: mappings field by field, anything else replaced, null taken away."""
    found = dict(below)
    for key, value in above.items():
        held = found.get(key)
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            found[key] = merged(held if isinstance(held, Mapping) else {}, value)
        else:
            found[key] = value
    return found


def _inherited(name: str, directory: Path, heirs: tuple[str, ...]) -> Content:
    """Return a file's content over that of the file which it is like, and so on down to the defaults.

    What is expected is taken whole: half of another's end would be nobody's.
    """
    path = directory / f"{name}.yaml"
    if not path.is_file():
        raise ScenarioInvalid([_absent(name, directory, heirs)])
    own = _content(path)
    if name == DEFAULTS:
        return own
    below = str(own.get(LIKE, DEFAULTS))
    if below in (*heirs, name):
        raise ScenarioInvalid([f"{shown(path)}: {LIKE}: {below} is like this one: name another"])
    private = {"title", "twin", *({"expect"} & own.keys())}
    inherited = _inherited(below, directory, (*heirs, name))
    return merged({key: value for key, value in inherited.items() if key not in private}, own)


def _absent(name: str, directory: Path, heirs: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, names(directory), 1)
    there = f"did you mean {near[0]}?" if near else f"there are {', '.join(names(directory))}"
    where = f"{shown(directory / heirs[-1])}.yaml: {LIKE}: " if heirs else ""
    return f"{where}there is no scenario {name}: {there}"


def _content(path: Path) -> Content:
    return _parsed(path, path.stat().st_mtime_ns)


@cache
def _parsed(path: Path, changed: int) -> Content:
    """Return what a file holds, read once as long as it does not change: many start from the same one."""
    try:
        content = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        raise ScenarioInvalid([f"{shown(path)}: no YAML: {' '.join(str(error).split())}"]) from error
    if not isinstance(content, dict):
        raise ScenarioInvalid([f"{shown(path)}: begin with a field, such as title: what is played"])
    return content


def _untwinned(scenarios: Iterable[Scenario], directory: Path) -> Iterable[str]:
    """Yield what is wrong with twins: one that is not there, a scenario that has and is none."""
    known = {each.name: each for each in scenarios}
    twins = {each.twin for each in known.values()}
    for each in known.values():
        path = shown(directory / f"{each.name}.yaml")
        if each.twin is not None and each.twin not in known:
            yield f"{path}: twin: {_absent(each.twin, directory, ())}"
        if each.twin is None and each.name not in twins:
            yield f"{path}: twin: missing: name the scenario that is nearly the same and must end otherwise"


def shown(path: Path) -> str:
    """Return a path as people type it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _problems(error: ValidationError, path: Path) -> list[str]:
    details = error.errors(include_url=False)
    return [f"{shown(path)}: {_field(each['loc'])}: {_said(dict(each))}" for each in details]


def _field(location: tuple[int | str, ...]) -> str:
    """Return a place in the file; the tags that distinguish kinds of incidents are no field of it."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in _untagged(location)]
    return "".join(parts).removeprefix(".") or "the whole file"


def _untagged(location: tuple[int | str, ...]) -> Iterable[int | str]:
    for before, part in zip((None, *location), location, strict=False):
        if not (location[0] == "incidents" and isinstance(before, int)):
            yield part


def _said(problem: Content) -> str:
    kind, message = problem["type"], str(problem["msg"]).removeprefix("Value error, ")
    given = f" (it is {problem['input']!r})" if isinstance(problem["input"], str | int | float) else ""
    match kind:
        case "missing":
            return "missing: add it"
        case "extra_forbidden":
            return f"there is no such field: {_suggestion(str(problem['loc'][-1]))}"
        case "value_error":
            return message
        case "enum" | "literal_error" | "union_tag_invalid":
            return f"{message[0].lower()}{message[1:]}{given}: use one of these"
        case _:
            return f"{message[0].lower()}{message[1:]}{given}: change it"


def _suggestion(name: str) -> str:
    fields = sorted({field for part in PARTS for field in part.model_fields})
    near = difflib.get_close_matches(name, fields, 1)
    return f"did you mean {near[0]}?" if near else "remove it"
