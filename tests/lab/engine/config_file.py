"""`--config FILE`: the part of YAML that vLLM configuration files use, without a YAML library.

Flat `key: value` lines, lists as `[a, b]` or `- a` lines. Anything deeper is refused by line number: the
image has no YAML library and silently dropping a setting would make the lab lie.
"""

import re
from collections.abc import Container
from pathlib import Path

Scalar = str | bool | int | float | None
Value = Scalar | list[str]

_PAIR = re.compile(r"([A-Za-z_][\w.-]*)\s*:(?:\s+(.*))?$")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}


class UnsupportedYamlError(ValueError):
    """The file uses YAML beyond flat keys and lists; the message names the line."""


def read(path: str) -> dict[str, Value]:
    """Return the settings of a configuration file in their order.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the name does not end in .yaml or .yml, as vLLM demands.
        UnsupportedYamlError: nested mappings.
    """
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
