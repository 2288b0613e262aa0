"""Which words start the engine, a shell, or a program that runs the rest of its words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from kvmedic.manifests.grammar import CommandLine
from kvmedic.manifests.tokens import Token
from kvmedic.model.engine import Launch

SHELLS = frozenset({"sh", "bash", "ash", "dash", "zsh", "ksh", "busybox"})
TRANSPARENT = frozenset(
    {"env", "tini", "dumb-init", "catatonit", "nice", "ionice", "numactl", "taskset", "stdbuf", "nohup"}
    | {"opentelemetry-instrument", "ddtrace-run", "setsid", "chrt", "timeout", "time", "nsys", "strace"}
    | {"uv", "poetry", "pipenv", "pdm", "hatch", "conda", "mamba", "micromamba", "pixi", "ray"}
    | {"gosu", "su-exec", "sudo", "setpriv", "vault-env", "docker-entrypoint.sh", "nvidia_entrypoint.sh"}
)
"""Programs that run the rest of their arguments as a command, unchanged, in their own process or as
their child."""
BUILTINS = frozenset({"exec", "command", "builtin"})
"""Words of a shell that do the same."""
_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)*)?")
_ALONE = re.compile(r"-[bBdEiIOPqRsSuvx]+")
"""Options of the Python interpreter that take no value; -W and -X take one."""
_SHELL_OPTION = re.compile(r"[-+][A-Za-z]+")
_SHELL_WORDS = ("--rcfile", "--init-file")
"""Long options of bash that take a value."""


@dataclass(frozen=True, slots=True)
class ShellStart:
    """A shell that is given its script as a word."""

    program: str
    script: Token
    zero: Token | None
    """What `$0` is in the script; None: the shell's own name."""
    parameters: tuple[Token, ...]


def program_of(token: Token) -> str:
    """Return the name of the program that a token names, without its path."""
    words = token.text.split(maxsplit=1)
    return PurePosixPath(token.text).name if len(words) < 2 else words[0]


def is_python(token: Token) -> bool:
    """Return whether a token names a Python interpreter."""
    return _PYTHON.fullmatch(program_of(token)) is not None


def engine_start(tokens: Sequence[Token], launch: Launch) -> CommandLine | None:
    """Return the engine's command line where the tokens start it, as they are or through a wrapper."""
    line = command_line_of(tokens, launch)
    if line is not None or not _passes_on(tokens):
        return line
    inner = (command_line_of(tokens[start:], launch) for start in range(1, len(tokens)))
    return next((line for line in inner if line is not None), None)


def shell_start(tokens: Sequence[Token]) -> ShellStart | None:
    """Return the shell and its script where the tokens start one, as they are or through a wrapper."""
    starts = range(len(tokens)) if _passes_on(tokens) else range(1)
    for start in starts:
        if start < len(tokens) and program_of(tokens[start]) in SHELLS:
            return _shell(tokens[start:])
    return None


def command_line_of(tokens: Sequence[Token], launch: Launch) -> CommandLine | None:
    """Return the command line where the first token starts the engine."""
    if not tokens:
        return None
    if program_of(tokens[0]) == launch.executable:
        return _after_subcommand(tokens[1:], launch)
    if not is_python(tokens[0]):
        return None
    rest = _without_interpreter_options(tokens[1:])
    module, rest = _module(rest)
    if module in launch.modules:
        return CommandLine(tuple(rest), subcommand=False)
    if module in launch.command_modules:
        return _after_subcommand(rest, launch)
    return None


def holds_a_command(text: str, launch: Launch) -> bool:
    """Return whether one text holds a command line that starts the engine."""
    phrase = rf"\b{re.escape(launch.executable)}\s+{re.escape(launch.subcommand)}\b"
    named = any(re.search(rf"-m\s*{re.escape(module)}", text) for module in launch.modules)
    return named or re.search(phrase, text) is not None


def _passes_on(tokens: Sequence[Token]) -> bool:
    return bool(tokens) and program_of(tokens[0]) in TRANSPARENT | BUILTINS


def _shell(tokens: Sequence[Token]) -> ShellStart | None:
    program = program_of(tokens[0])
    index = 1
    if program == "busybox":
        program, index = program_of(tokens[1]) if len(tokens) > 1 else "", 2
    script = False
    while index < len(tokens):
        text = tokens[index].text
        if text in {"--", "-"}:
            index += 1
            break
        if text.startswith("--"):
            index += 2 if text in _SHELL_WORDS else 1
        elif _SHELL_OPTION.fullmatch(text):
            script = script or ("c" in text and text.startswith("-"))
            index += 1 + text.count("o") + text.count("O")
        else:
            break
    if not script or index >= len(tokens) or program not in SHELLS:
        return None
    zero = tokens[index + 1] if index + 1 < len(tokens) else None
    return ShellStart(program, tokens[index], zero, tuple(tokens[index + 2 :]))


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
