"""How a container starts the engine, if it does.

Three answers: the engine's command line; something that is not an engine; or a `Refusal`, where the
engine is started in a way that can't be followed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kvmedic.manifests.expansion import Variables
from kvmedic.manifests.grammar import CommandLine
from kvmedic.manifests.refusal import (
    STEPS,
    Budget,
    Refusal,
    RefusalReason,
    Remembered,
    TooLargeError,
    digest_of,
)
from kvmedic.manifests.shell import (
    SHELLS,
    TRANSPARENT,
    command_line_of,
    engine_in_script,
    engine_start,
    holds_a_command,
    is_python,
    program_of,
    shell_start,
)
from kvmedic.manifests.tokens import Token, read_environment, tokens_of
from kvmedic.model.edits import COMMAND_LINE, Field
from kvmedic.model.engine import EngineProfile, Version

_TAG_VERSION = re.compile(
    r"v?(\d{1,9}(?:\.\d{1,9}){1,3}(?:(?:a|b|rc)\d{1,9})?(?:\.post\d{1,9})?(?:\.dev\d{1,9})?)(?![.\w])"
)


@dataclass(frozen=True, slots=True)
class NotAnEngine:
    """A container does not start the engine, as far as can be seen."""

    doubt: str = ""
    """What speaks for an engine all the same; empty when nothing does."""


Invocation: TypeAlias = CommandLine | NotAnEngine | Refusal
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
        found = error.refusal() if _may_be_engine(container, profile) else NotAnEngine()
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
    if isinstance(tokens, Refusal):
        return tokens if _may_be_engine(container, profile) else NotAnEngine()
    image = image_name(container)
    if not tokens:
        doubt = f"it has neither command nor args, so its flags are in the image {image}"
        return NotAnEngine(doubt if ours else "")
    line = engine_start(tokens, profile.launch)
    if line is not None:
        return line
    shell = shell_start(tokens)
    if shell is not None:
        within = engine_in_script(shell, container, profile, Variables(environment, budget))
        if within is not None:
            return within
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
    """Return the engine's version as the image's tag tells it, or None where it does not."""
    image, name = container.get("image"), image_name(container)
    if not isinstance(image, str):
        return None
    if not any(re.fullmatch(pattern, name) for pattern in profile.launch.versioned_images):
        return None
    tag = image.partition("@")[0].removeprefix(name).removeprefix(":")
    match = _TAG_VERSION.match(tag)
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
        return Refusal(RefusalReason.UNKNOWN_WRAPPER, message)
    return NotAnEngine(
        f"the image is {profile.name}'s but `{program}` ({tokens[0].place}) runs" if ours else ""
    )


def _script(program: str, token: Token, engine: str) -> Refusal:
    if program in SHELLS:
        what = f"{engine} is started by a script of the shell `{program}` ({token.place})"
        advice = "flags within a script are not edited; list the program and its arguments as separate items"
        return Refusal(RefusalReason.SHELL_SCRIPT, f"{what}: {advice}")
    what = f"{token.place} holds a whole command line in one item"
    return Refusal(
        RefusalReason.SHELL_SCRIPT, f"{what}: list the program and its arguments as separate items"
    )
