"""The command line of `vllm serve` 0.32: the same names, the same quirks, the same messages.

Follows vLLM's utils/argparse_utils.py: underscores and dashes are the same in names, unique prefixes are
accepted, the last of several wins, `--config FILE` is expanded before the command line (and `--config=FILE`
is not), dotted names become JSON. All flags of the release are known (`flags.tsv`); the engine acts on few
of them.
"""

import argparse
import json
import re
from collections.abc import Callable, Container, Sequence
from functools import cache
from pathlib import Path
from typing import Any

VERSION = "0.32.0"
DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
DEFAULTS: dict[str, object] = {
    "model": DEFAULT_MODEL,
    "gpu_memory_utilization": 0.92,
    "kv_cache_dtype": "auto",
    "watermark": 0.0,
    "shutdown_timeout": 0,
    "port": 8000,
    "scheduler_reserve_full_isl": True,
    "kv_offloading_backend": "native",
}
"""Defaults of vLLM 0.32 for flags that the engine acts on; None for all others."""

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def human_readable_int(value: str) -> int:
    """Return `8k` as 8000, `8K` as 8192, `25.6k` as 25600."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", value.strip())
    if match is None:
        return int(value)
    number, suffix = match.groups()
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    if "." in number:
        raise argparse.ArgumentTypeError(
            f"Decimals are not allowed with binary suffixes like {suffix}. "
            f"Did you mean to use {number}{suffix.lower()} instead?"
        )
    return int(number) * _BINARY[suffix]


def human_readable_int_or_auto(value: str) -> int:
    """Return -1 for `auto` and `-1`, otherwise what `human_readable_int` returns."""
    if value.strip() == "-1" or value.strip().lower() == "auto":
        return -1
    return human_readable_int(value)


_KINDS: dict[str, dict[str, Any]] = {
    "bool": {"action": argparse.BooleanOptionalAction},
    "switch": {"action": "store_true"},
    "int": {"type": int},
    "float": {"type": float},
    "size": {"type": human_readable_int},
    "size_or_auto": {"type": human_readable_int_or_auto},
    "list": {"nargs": "+"},
    "optional": {"nargs": "?", "const": True},
    "text": {"type": str},
}


@cache
def flag_table() -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return (spellings, kind of value) of every flag of the release."""
    rows = []
    for line in Path(__file__).with_name("flags.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            spellings, kind = line.split("\t")
            rows.append((tuple(spellings.split()), kind))
    return tuple(rows)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?")
    for spellings, kind in flag_table():
        destination = spellings[0].removeprefix("--").replace("-", "_")
        # Values with bars between them are the choices that vLLM's own error message lists.
        settings = dict(_KINDS.get(kind, {"choices": kind.split("|")}), default=DEFAULTS.get(destination))
        if destination == "optimization_level":
            settings["metavar"] = "N"
        parser.add_argument(*spellings, **settings)


class FlexibleParser(argparse.ArgumentParser):
    """argparse with vLLM's treatment of names, configuration files and dotted JSON."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Return the parsed arguments; exits with code 2 and argparse's message on a bad one."""
        arguments = model_first(list(args))
        if "--config" in arguments:
            arguments = self._expanded(arguments)
        return super().parse_args(json_from_dotted(dashed(arguments)), namespace)

    def _expanded(self, arguments: list[str]) -> list[str]:
        """Put the settings of the configuration file in front of the other arguments, after the model."""
        if arguments.count("--config") > 1:
            raise AssertionError("More than one config file specified!")
        index = arguments.index("--config")
        if index == len(arguments) - 1:
            raise ValueError("No config file specified! Please check your command-line arguments.")
        settings = read_config_file(arguments[index + 1])
        from_file = as_arguments(settings, self._option_string_actions)
        before, after = arguments[:index], arguments[index + 2 :]
        if arguments[0] != "serve":
            return from_file + before + after
        has_model = not arguments[1].startswith("-")
        if not has_model and "--model" not in from_file:
            raise ValueError(
                "No model specified! Please specify model either as a positional argument "
                "or in a config file."
            )
        head = 2 if has_model else 1
        return arguments[:head] + from_file + before[head:] + after


def model_first(arguments: list[str]) -> list[str]:
    """Return `serve MODEL …` for `serve … --model MODEL …`."""
    if arguments[:1] != ["serve"]:
        return arguments
    for index, argument in enumerate(arguments):
        if argument == "--model" and index + 1 < len(arguments):
            return ["serve", arguments[index + 1], *arguments[1:index], *arguments[index + 2 :]]
        if argument.startswith("--model="):
            return ["serve", argument[8:], *arguments[1:index], *arguments[index + 1 :]]
    return arguments


def dashed(arguments: list[str]) -> list[str]:
    """Return the arguments with dashes for underscores in names, and `-O…` spelt out."""
    spelt: list[str] = []
    for index, argument in enumerate(arguments):
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            head, dot, rest = name.partition(".")
            spelt.append(head.replace("_", "-") + dot + rest + equals + value)
        elif argument.startswith("-O") and argument != "-O":
            level = argument[3:] if argument[2] == "=" else argument[2:]
            spelt += ["--optimization-level", level]
        elif argument == "-O" and arguments[index + 1 : index + 2] in (["0"], ["1"], ["2"], ["3"]):
            spelt.append("--optimization-level")
        else:
            spelt.append(argument)
    return spelt


def json_from_dotted(arguments: list[str]) -> list[str]:
    """Return the arguments with `--name.key value` gathered into one `--name {"key": value}` at the end."""
    plain: list[str] = []
    gathered: dict[str, dict[str, Any]] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if not argument.startswith("-") or "." not in name or _is_number(argument):
            plain.append(argument)
            continue
        text = value if equals else next(rest)
        head, *keys = name.removesuffix("+").split(".")
        parsed: object = text.split(",") if name.endswith("+") else _json_or_text(text)
        target = gathered.setdefault(head, {})
        for key in keys[:-1]:
            target = target.setdefault(key, {})
        target[keys[-1]] = parsed
    for name, merged in gathered.items():
        plain += [name, json.dumps(merged)]
    return plain


def _is_number(argument: str) -> bool:
    return re.fullmatch(r"-\d*\.?\d+", argument) is not None


def _json_or_text(text: str) -> object:
    readers: tuple[Callable[[str], object], ...] = (json.loads, human_readable_int)
    for reader in readers:
        try:
            return reader(text)
        except (ValueError, argparse.ArgumentTypeError):
            continue
    return text


def parse_serve(arguments: Sequence[str]) -> argparse.Namespace:
    parser = FlexibleParser(prog="vllm")
    parser.add_argument("-v", "--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=argparse.ArgumentParser)
    add_flags(commands.add_parser("serve"))
    return _with_model(parser.parse_args(arguments))


def parse_api_server(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of `python -m vllm.entrypoints.openai.api_server …`."""
    parser = FlexibleParser(prog="vllm")
    add_flags(parser)
    return _with_model(parser.parse_args(arguments))


def _with_model(parsed: argparse.Namespace) -> argparse.Namespace:
    if parsed.model_tag is not None:
        parsed.model = parsed.model_tag
    return parsed


def non_default(parsed: argparse.Namespace) -> dict[str, object]:
    """Return the arguments that differ from their defaults, as vLLM logs them."""
    return {
        name: value
        for name, value in vars(parsed).items()
        if name not in ("command", "config") and value != DEFAULTS.get(name) and value is not False
    }


Scalar = str | bool | int | float | None
Value = Scalar | list[str]

_PAIR = re.compile(r"([A-Za-z_][\w.-]*)\s*:(?:\s+(.*))?$")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}


class UnsupportedYamlError(ValueError):
    """The file uses YAML beyond flat keys and lists; the message names the line."""


def read_config_file(path: str) -> dict[str, Value]:
    """Return the settings of a configuration file in their order."""
    extension = path.rsplit(".", 1)[-1]
    if extension not in ("yaml", "yml"):
        raise ValueError(f"Config file must be of a yaml/yml type. {extension} supplied")
    settings: dict[str, Value] = {}
    key = ""
    for number, raw in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw).rstrip()
        if not line or line == "---":
            continue
        if line.lstrip().startswith("- ") and key:
            items = settings[key]
            settings[key] = [*(items if isinstance(items, list) else []), _unquoted(line.lstrip()[2:])]
            continue
        pair = _PAIR.match(line)
        if pair is None:
            raise UnsupportedYamlError(
                f"{path} line {number}: only flat `key: value` and lists are read: {raw!r}"
            )
        key = pair[1]
        settings[key] = _value((pair[2] or "").strip())
    return settings


def as_arguments(settings: dict[str, Value], options: Container[str]) -> list[str]:
    """Return the settings as command-line arguments, as vLLM's argparse_utils.py 0.32 spells them.

    `options` are the option strings of the parser that asks. A false boolean becomes `--no-KEY` only if that
    parser knows it: the top-level parser of `vllm serve` does not, so there it is dropped.
    """
    arguments: list[str] = []
    for key, value in settings.items():
        if value is True:
            arguments.append(f"--{key}")
        elif value is False:
            if f"--no-{key}" in options:
                arguments.append(f"--no-{key}")
        elif isinstance(value, list):
            arguments += [f"--{key}", *value]
        else:
            arguments += [f"--{key}", str(value)]
    return arguments


def _value(text: str) -> Value:
    if text.startswith("[") and text.endswith("]"):
        return [_unquoted(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return _unquoted(text)


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
