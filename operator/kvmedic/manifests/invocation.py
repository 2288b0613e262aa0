"""How a container starts the engine, if it does.

Three answers: the engine's command line; something that is not an engine; or a `Refusal`, where the
engine is started in a way that can't be followed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

from kvmedic.core.edit import Field
from kvmedic.core.engine import EngineProfile, Launch
from kvmedic.core.version import Version
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.tokens import Token, tokens_of
from kvmedic.manifests.words import CommandLine

_SHELLS = frozenset({"sh", "bash", "ash", "dash", "zsh", "ksh"})
_TRANSPARENT = frozenset(
    {"env", "tini", "dumb-init", "catatonit", "nice", "ionice", "numactl", "taskset", "stdbuf", "nohup"}
    | {"opentelemetry-instrument"}
)
"""Programs that run the rest of their arguments as a command, unchanged, in their own process or as
their child."""
_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)*)?")
_ALONE = re.compile(r"-[bBdEiIOPqRsSuvx]+")
"""Options of the Python interpreter that take no value; -W and -X take one."""
_TAG_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+){0,2}(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?)(?![.\w])")


@dataclass(frozen=True, slots=True)
class NotAnEngine:
    """A container does not start the engine, as far as can be seen."""

    doubt: str = ""
    """What speaks for an engine all the same; empty when nothing does."""


Invocation: TypeAlias = CommandLine | NotAnEngine | Refusal


def invocation_of(container: Mapping[str, object], profile: EngineProfile) -> Invocation:
    """Return how a container starts the engine."""
    tokens = tokens_of(container)
    image = image_name(container)
    ours = any(re.fullmatch(pattern, image) for pattern in profile.launch.images)
    if isinstance(tokens, Refusal):
        return tokens if ours or _mentions(container, profile.launch) else NotAnEngine()
    if not tokens:
        doubt = f"it has neither command nor args, so its flags are in the image {image}"
        return NotAnEngine(doubt if ours else "")
    line = _command_line(tokens, profile.launch)
    if line is not None:
        return line
    entrypoint = tokens[0].place.field is Field.ARGS and ours and not _runs_a_program(tokens[0])
    if entrypoint and not any(_holds_a_command(token, profile.launch) for token in tokens):
        return _from_entrypoint(tokens, profile.launch)
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
    return version if version and _is_plausible(version, profile) else None


def _is_plausible(version: Version, profile: EngineProfile) -> bool:
    """Return whether a tag is the engine's own version rather than that of somebody's build."""
    newest = profile.releases[-1]
    return version >= profile.releases[0] and version.key[0][0] == newest.key[0][0]


def _command_line(tokens: Sequence[Token], launch: Launch) -> CommandLine | None:
    line = _started(tokens, launch)
    if line is not None or _program(tokens[0]) not in _TRANSPARENT:
        return line
    inner = (_started(tokens[start:], launch) for start in range(1, len(tokens)))
    return next((line for line in inner if line is not None), None)


def _started(tokens: Sequence[Token], launch: Launch) -> CommandLine | None:
    """Return the command line where the first token starts the engine."""
    program = _program(tokens[0])
    if program == launch.executable:
        return _after_subcommand(tokens[1:], launch)
    if _PYTHON.fullmatch(program) is None:
        return None
    rest = _without_interpreter_options(tokens[1:])
    module, rest = _module(rest)
    if module in launch.modules:
        return CommandLine(tuple(rest), subcommand=False)
    if module in launch.command_modules:
        return _after_subcommand(rest, launch)
    return None


def _after_subcommand(tokens: Sequence[Token], launch: Launch) -> CommandLine | None:
    if tokens and tokens[0].text == launch.subcommand:
        return CommandLine(tuple(tokens[1:]), subcommand=True)
    return None


def _without_interpreter_options(tokens: Sequence[Token]) -> Sequence[Token]:
    start = 0
    while start < len(tokens):
        text = tokens[start].text
        if text in {"-W", "-X"}:
            start += 2
        elif _ALONE.fullmatch(text) or text.startswith(("-W", "-X")):
            start += 1
        else:
            break
    return tokens[start:]


def _module(tokens: Sequence[Token]) -> tuple[str, Sequence[Token]]:
    """Return the module that Python runs, by name or by file, and the tokens after it."""
    if not tokens:
        return "", tokens
    first = tokens[0].text
    if first == "-m":
        return (tokens[1].text, tokens[2:]) if len(tokens) > 1 else ("", ())
    if first.startswith("-m"):
        return first.removeprefix("-m"), tokens[1:]
    path = PurePosixPath(first)
    if path.name == "vllm":
        return "vllm.scripts", tokens[1:]
    parts = path.with_suffix("").parts if path.suffix == ".py" else ()
    start = parts.index("vllm") if "vllm" in parts else len(parts)
    return ".".join(parts[start:]), tokens[1:]


def _from_entrypoint(tokens: Sequence[Token], launch: Launch) -> CommandLine:
    if tokens[0].text == launch.subcommand:
        return CommandLine(tuple(tokens[1:]), subcommand=True)
    return CommandLine(tuple(tokens), subcommand=False)


def _runs_a_program(token: Token) -> bool:
    """Return whether arguments alone begin with a program: the image's entry point passes them on."""
    program = _program(token)
    return program in _SHELLS | _TRANSPARENT or _PYTHON.fullmatch(program) is not None


def _other(tokens: Sequence[Token], profile: EngineProfile, ours: bool) -> Invocation:  # noqa: FBT001 - a fact, not a mode
    """Return what a command line is that does not start the engine in a known way."""
    program = _program(tokens[0])
    script = next((token for token in tokens if _holds_a_command(token, profile.launch)), None)
    if script is not None:
        return _script(program, script, profile.name)
    within = any(_started(tokens[start:], profile.launch) is not None for start in range(1, len(tokens)))
    if within and program in _SHELLS:
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
    if program in _SHELLS:
        what = f"{engine} is started by a script of the shell `{program}` ({token.place})"
        advice = "flags within a script are not edited; list the program and its arguments as separate items"
        return Refusal(RefusalReason.SHELL_SCRIPT, f"{what}: {advice}")
    what = f"{token.place} holds a whole command line in one item"
    return Refusal(
        RefusalReason.SHELL_SCRIPT, f"{what}: list the program and its arguments as separate items"
    )


def _holds_a_command(token: Token, launch: Launch) -> bool:
    """Return whether one token holds a command line that starts the engine."""
    phrase = rf"\b{re.escape(launch.executable)}\s+{re.escape(launch.subcommand)}\b"
    named = any(re.search(rf"-m\s*{re.escape(module)}", token.text) for module in launch.modules)
    return named or re.search(phrase, token.text) is not None


def _mentions(container: Mapping[str, object], launch: Launch) -> bool:
    items: list[object] = []
    for field in Field:
        value = container.get(field)
        items += value if isinstance(value, list) else [value]
    text = " ".join(str(item) for item in items)
    return launch.executable in text


def _program(token: Token) -> str:
    return PurePosixPath(token.text).name if " " not in token.text else token.text.split()[0]
