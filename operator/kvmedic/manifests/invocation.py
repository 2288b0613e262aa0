"""Which container starts the engine, and how: its command line, no engine, or a `ManifestError`.

An error says that the engine is started in a way that can't be followed. Answers are remembered: one look
asks a dozen times.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

from kvmedic.manifests.argument_parser import CommandLine
from kvmedic.manifests.custom_resources import FLAGS_IN, places_of_flags
from kvmedic.manifests.documents import ManifestContainer, containers_of, objects_of, rendering_hint
from kvmedic.manifests.engine_in_script import (
    SHELLS,
    TRANSPARENT,
    command_line_of,
    engine_in_script,
    engine_in_variable,
    engine_start,
    holds_a_command,
    is_python,
    program_of,
    shell_start,
)
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.shell_parser import Variables
from kvmedic.manifests.size_limits import STEPS, WORD_STEPS, Budget, TooLargeError
from kvmedic.manifests.tokens import Place, Token, Unquoted
from kvmedic.manifests.variables import Environment, expand, read_environment, trace_of
from kvmedic.model.edits import COMMAND_LINE, Field
from kvmedic.model.engine import EngineProfile, Launch, Version

_VERSION = r"v?(\d{1,9}(?:\.\d{1,9}){1,3}(?:(?:a|b|rc)\d{1,9})?(?:\.post\d{1,9})?(?:\.dev\d{1,9})?)"
_TAG_VERSION = re.compile(rf"{_VERSION}(?![.\w])")
_NAMED_VERSION = r"(?:^|.*[-_.]){name}(?:-openai)?[-_]?" + _VERSION + r"(?![.a-zA-Z0-9])"
"""After the engine's own name a tag names the version, whatever image it is of: AMD publishes
`rocm/vllm:rocm6.4.1_vllm_0.9.0.1_20250605`."""


Answer = TypeVar("Answer")
_LEAST = 75
"""Steps that a remembered answer counts as, at least: it bounds how many are remembered. An error counts
as no more, or two command lines that are too large would push out everybody else's."""


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Answer]):
    subject: object
    answer: Answer
    steps: int


class Remembered(Generic[Answer]):
    """The latest answers of a pure function, bounded by the steps that they took."""

    def __init__(self, steps: int = STEPS) -> None:
        self._kept: OrderedDict[object, _Kept[Answer]] = OrderedDict()
        self._room = steps
        self._lock = Lock()

    def find(self, key: object, subject: object) -> tuple[Answer, int] | None:
        """Return an answer and the steps that it took, or None where it has to be worked out.

        Args:
            subject: the object that the key names by its identity.
        """
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.subject is not subject:
                return None
            self._kept.move_to_end(key)
            return kept.answer, kept.steps

    def keep(self, key: object, subject: object, answer: Answer, steps: int) -> None:
        """Remember an answer, and forget the oldest ones where there is no more room."""
        with self._lock:
            self._drop(key)
            self._kept[key] = _Kept(subject, answer, steps)
            self._room -= _weight(self._kept[key])
            while self._room < 0:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: object) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._room += _weight(kept)


def _weight(kept: _Kept[Any]) -> int:
    return _LEAST if isinstance(kept.answer, ManifestError) else max(kept.steps, _LEAST)


_FIELDS = ("name", "image", "command", "args", "env", "envFrom", FLAGS_IN)
"""What of a container its command line is read from."""


def digest_of(container: Mapping[str, object]) -> bytes:
    """Return what two containers share exactly where they are read alike."""
    text = json.dumps([container.get(name) for name in _FIELDS], default=repr)
    return hashlib.sha256(text.encode()).digest()


@dataclass(frozen=True, slots=True)
class NotAnEngine:
    """A container does not start the engine, as far as can be seen."""

    doubt: str = ""
    """What speaks for an engine all the same; empty when nothing does."""
    other: str = ""
    """The engine that it starts instead, of which no flag is known; empty when none is recognised."""

    def explain(self, engine: str) -> str:
        """Return why nothing of the container is changed, to be read after its name; empty: nothing is known.

        Args:
            engine: the one whose flags are known.
        """
        if not self.other:
            return self.doubt
        return (
            f"it runs {self.other}, which kvmedic cannot change: it knows the flags of {engine} alone, and "
            f"calling this engine {engine} would break it. If it does start {engine}, write that command out "
            "in command or args"
        )


Invocation: TypeAlias = CommandLine | NotAnEngine | ManifestError
_REMEMBERED: Remembered[Invocation] = Remembered()


def invocation_of(
    container: Mapping[str, object], profile: EngineProfile, budget: Budget | None = None
) -> Invocation:
    """Return how a container starts the engine.

    Args:
        budget: for the whole pod template, where more than one of its containers is read; what was read
            before takes as much of it as it took then, so that the answer is always the same.
    """
    budget = budget or Budget()
    key, left = (digest_of(container), id(profile)), budget.steps
    known = _REMEMBERED.find(key, profile)
    try:
        if known is not None:
            budget.enter_container(container)
            budget.spend(known[1])
            return known[0]
        found = _invocation(container, profile, budget)
    except TooLargeError as error:
        found = error.as_manifest_error() if _may_be_engine(container, profile) else NotAnEngine()
        if error.is_spent and left < STEPS:
            return found
    _REMEMBERED.keep(key, profile, found, left - budget.steps)
    return found


def _may_be_engine(container: Mapping[str, object], profile: EngineProfile) -> bool:
    """Return whether the image is the engine's, or its name stands anywhere on the command line."""
    fields = (container.get(field) for field in COMMAND_LINE)
    items = (item for value in fields for item in (value if isinstance(value, list) else [value]))
    return _is_ours(container, profile) or profile.launch.executable in " ".join(map(str, items))


def _is_ours(container: Mapping[str, object], profile: EngineProfile) -> bool:
    image = image_name(container)
    return any(re.fullmatch(pattern, image) for pattern in profile.launch.images)


def _invocation(container: Mapping[str, object], profile: EngineProfile, budget: Budget) -> Invocation:
    budget.enter_container(container)
    environment = read_environment(container, budget)
    tokens = tokens_of(container, environment, budget)
    ours = _is_ours(container, profile)
    if isinstance(tokens, ManifestError):
        return tokens if _may_be_engine(container, profile) else NotAnEngine()
    image = image_name(container)
    if isinstance(name := container.get(FLAGS_IN), str):
        found = engine_in_variable(name, container, profile, Variables(environment, budget))
        return found or NotAnEngine(f"{name} gives no flags")
    if not tokens:
        doubt = f"it has neither command nor args, so its flags are in the image {image}"
        other = _other_engine(image, (), profile.launch)
        return NotAnEngine(doubt if ours and not other else "", other)
    line = engine_start(tokens, profile.launch)
    if line is not None:
        return line
    shell = shell_start(tokens)
    if shell is not None:
        within = engine_in_script(shell, container, profile, Variables(environment, budget))
        if within is not None:
            return within
    if other := _other_engine(image, tokens, profile.launch):
        return NotAnEngine(other=other)
    return _by_image(tokens, profile, ours)


def _other_engine(image: str, tokens: Sequence[Token], launch: Launch) -> str:
    """Return the name of another engine that a container starts; empty where none is recognised.

    What is started is recognised by the words before the first long option, a shell's script among them.
    """
    words = " ".join(each.text for each in takewhile(lambda each: not each.text.startswith("--"), tokens))
    found = (
        each.name
        for each in launch.others
        if any(re.search(pattern, words) for pattern in each.starts)
        or any(re.fullmatch(pattern, image) for pattern in each.images)
    )
    return next(found, "")


def _by_image(tokens: Sequence[Token], profile: EngineProfile, ours: bool) -> Invocation:  # noqa: FBT001 - a fact, not a mode
    """Return what a command line is that names no engine, where the image may start it."""
    # Arguments alone go to the image's entry point, which runs a program that they begin with.
    program = program_of(tokens[0]) in SHELLS | TRANSPARENT or is_python(tokens[0])
    entrypoint = tokens[0].place.field is Field.ARGS and ours and not program
    if entrypoint and not any(holds_a_command(token.text, profile.launch) for token in tokens):
        subcommand = tokens[0].text == profile.launch.subcommand
        return CommandLine(tuple(tokens[int(subcommand) :]), subcommand=subcommand)
    return _other(tokens, profile, ours)


def image_name(container: Mapping[str, object]) -> str:
    """Return a container's image without tag and digest."""
    image = container.get("image")
    if not isinstance(image, str):
        return ""
    path = image.partition("@")[0]
    head, slash, last = path.rpartition("/")
    return head + slash + last.partition(":")[0]


def version_of(container: Mapping[str, object], profile: EngineProfile) -> Version | None:
    """Return the engine's version as the image's tag says it, or None where it does not."""
    image, name = container.get("image"), image_name(container)
    if not isinstance(image, str):
        return None
    tag = image.partition("@")[0].removeprefix(name).removeprefix(":")
    match = re.match(_NAMED_VERSION.replace("{name}", re.escape(profile.launch.executable)), tag)
    if any(re.fullmatch(pattern, name) for pattern in profile.launch.versioned_images):
        match = _TAG_VERSION.match(tag) or match
    version = Version.parse(match[1]) if match else None
    return version if version and profile.covers(version) else None


def _other(tokens: Sequence[Token], profile: EngineProfile, ours: bool) -> Invocation:  # noqa: FBT001 - a fact, not a mode
    """Return what a command line is that does not start the engine in a known way."""
    program = program_of(tokens[0])
    script = next((token for token in tokens if holds_a_command(token.text, profile.launch)), None)
    if script is not None:
        return _script(program, script, profile.name)
    within = any(
        command_line_of(tokens[start:], profile.launch) is not None for start in range(1, len(tokens))
    )
    if within and program in SHELLS:
        return _script(program, tokens[0], profile.name)
    if within:
        message = (
            f"`{program}` ({tokens[0].place}) starts {profile.name}; how it passes arguments on is not known"
        )
        return ManifestError(ErrorReason.UNKNOWN_WRAPPER, message)
    return NotAnEngine(
        f"the image is {profile.name}'s but `{_ran(tokens)}` ({tokens[0].place}) runs" if ours else ""
    )


def _ran(tokens: Sequence[Token]) -> str:
    """Return what runs, for messages: of Python its script or module, which say more than its own name."""
    words = [each.text for each in tokens[1:3]] if is_python(tokens[0]) else []
    return " ".join([program_of(tokens[0]), *(words if words[:1] == ["-m"] else words[:1])])


def _script(program: str, token: Token, engine: str) -> ManifestError:
    if program in SHELLS:
        what = f"{engine} is started by a script of the shell `{program}` ({token.place})"
        advice = "flags within a script are not edited; list the program and its arguments as separate items"
        return ManifestError(ErrorReason.SHELL_SCRIPT, f"{what}: {advice}")
    what = f"{token.place} holds a whole command line in one item"
    return ManifestError(
        ErrorReason.SHELL_SCRIPT, f"{what}: list the program and its arguments as separate items"
    )


def report_no_engine(container: object, how: NotAnEngine, profile: EngineProfile) -> ManifestError:
    """Return the error of a container that does not start the engine, by its name."""
    if how.other:
        return ManifestError(ErrorReason.OTHER_ENGINE, f"container {container}: {how.explain(profile.name)}")
    doubt = f": {how.doubt}" if how.doubt else ""
    return ManifestError(ErrorReason.NO_ENGINE, f"container {container} does not start {profile.name}{doubt}")


@dataclass(frozen=True, slots=True)
class Selector:
    """What a person says about the container that is meant; None leaves it open."""

    container: str | None = None
    """Its name, or PART/NAME where parts of one object have containers of one name."""
    owner: str | None = None
    """Name of the object."""

    def matches(self, candidate: ManifestContainer) -> bool:
        """Return whether a container may be the one."""
        by_name = self.container in (None, candidate.name, candidate.full_name)
        return by_name and (self.owner is None or self.owner == candidate.owner)


EngineContainer: TypeAlias = tuple[ManifestContainer, EngineProfile]
"""A container of a manifest's text, and the engine that it starts."""


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """A container that starts an engine in a way that can't be followed."""

    container: ManifestContainer
    error: ManifestError


def find_engines(
    text: str, profiles: Sequence[EngineProfile], selector: Selector
) -> tuple[EngineContainer | Unfollowed, ...] | ManifestError:
    """Return the containers of a manifest's text that start an engine, in its order; at least one."""
    found = containers_of(text)
    if isinstance(found, ManifestError):
        return found
    budget = Budget()
    seen = [
        (candidate, profile, invocation_of(candidate.data, profile, budget))
        for candidate in found
        if selector.matches(candidate)
        for profile in profiles
    ]
    followed = {id(each) for each, _, how in seen if isinstance(how, CommandLine)}
    engines: list[EngineContainer | Unfollowed] = []
    for each, profile, how in seen:
        if isinstance(how, CommandLine):
            engines.append((each, profile))
        elif isinstance(how, ManifestError) and id(each) not in followed:
            engines.append(Unfollowed(each, how))
    return tuple(engines) or _none(text, found, seen, profiles)


def engines_in(
    text: str, profiles: Sequence[EngineProfile], selector: Selector
) -> tuple[EngineContainer, ...] | ManifestError:
    """Return the containers of a manifest's text that start an engine; at least one.

    A container that starts one in a way that can't be followed refuses the whole, because what is
    left would look complete.
    """
    found = find_engines(text, profiles, selector)
    if isinstance(found, ManifestError):
        return found
    for each in found:
        if isinstance(each, Unfollowed):
            return ManifestError(each.error.reason, f"container {each.container}: {each.error.message}")
    return tuple(each for each in found if not isinstance(each, Unfollowed))


def engine_in(
    text: str, profiles: Sequence[EngineProfile], selector: Selector
) -> EngineContainer | ManifestError:
    """Return the one container of a manifest's text that starts an engine."""
    engines = engines_in(text, profiles, selector)
    if isinstance(engines, ManifestError):
        return engines
    return engines[0] if len(engines) == 1 else report_several([each for each, _ in engines])


def report_several(engines: Sequence[ManifestContainer]) -> ManifestError:
    """Return the error that says which of several containers could be meant.

    How to name one is up to the command that asks.
    """
    listed = ", ".join(str(engine) for engine in engines)
    message = f"{len(engines)} containers could be meant: {listed}"
    return ManifestError(ErrorReason.SEVERAL_ENGINES, message)


def _none(
    text: str,
    found: Sequence[ManifestContainer],
    seen: Sequence[tuple[ManifestContainer, EngineProfile, Invocation]],
    profiles: Sequence[EngineProfile],
) -> ManifestError:
    elsewhere = [place for each in objects_of(text) for place in places_of_flags(each)]
    if elsewhere and not any(isinstance(how, NotAnEngine) and how.doubt for _, _, how in seen):
        return ManifestError(ErrorReason.NO_ENGINE, "; ".join(elsewhere))
    if not found:
        return ManifestError(
            ErrorReason.NO_ENGINE,
            "no object with containers in the manifest; init containers are not looked at",
        )
    if not seen:
        listed = ", ".join(str(candidate) for candidate in found)
        return ManifestError(ErrorReason.NO_ENGINE, f"no container of that name; the manifest has {listed}")
    others = [
        f"container {c}: {how.explain(profile.name)}"
        for c, profile, how in seen
        if isinstance(how, NotAnEngine) and how.other
    ]
    doubts = [
        f"container {c}: {how.doubt}" for c, _, how in seen if isinstance(how, NotAnEngine) and how.doubt
    ]
    if others and not doubts:
        return ManifestError(ErrorReason.OTHER_ENGINE, "; ".join(others))
    if doubts:
        return ManifestError(ErrorReason.UNKNOWN_ENTRYPOINT, "; ".join(doubts))
    listed = ", ".join(dict.fromkeys(str(candidate) for candidate, _, _ in seen))
    names = " or ".join(profile.name for profile in profiles)
    hint = rendering_hint(text)
    return ManifestError(ErrorReason.NO_ENGINE, f"no container starts {names}: {listed}{hint}")


def tokens_of(
    container: Mapping[str, object], environment: Environment, budget: Budget
) -> tuple[Token, ...] | ManifestError:
    """Return the tokens of command and args, in order."""
    found: list[Token] = []
    for name in COMMAND_LINE:
        items = container.get(name)
        if items is None:
            continue
        if not isinstance(items, list):
            message = f"{name} of container {container.get('name')} is not a list"
            return ManifestError(ErrorReason.NOT_TEXT, message)
        for index, item in enumerate(items):
            place = Place(name, index)
            if not isinstance(item, str):
                advice = "remove it or quote it" if item is None else "quote it"
                message = f"{place} is {_kind_of(item)}; Kubernetes takes strings only: {advice}"
                return ManifestError(ErrorReason.NOT_TEXT, message)
            budget.enter_field(str(place))
            budget.spend(WORD_STEPS)
            expanded = expand(item, environment, budget)
            trace = trace_of(item, place, environment, budget)
            sources = tuple(environment.source_of(name) for name in expanded.unresolved)
            variables = expanded.variables, expanded.unresolved, sources
            found.append(Token(item, expanded.text, place, *variables, trace))
    return tuple(found)


def _kind_of(item: object) -> str:
    match item:
        case None:
            return "empty"
        case list() | Mapping():
            return "a list or a mapping"
        case Unquoted():
            return f"the {item.kind} {item}"
        case _:
            return f"the {'boolean' if isinstance(item, bool) else 'number'} {item}"
