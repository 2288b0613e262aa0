"""The commands that need no cluster: `kvmedic blocks` and `kvmedic flags`.

`blocks` computes how many blocks of a paged KV cache an eviction of tokens frees. `flags` shows what an
engine's flags are in a manifest file, and changes one of them.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

import typer

from kvmedic.cli.app import REFUSED, USAGE, Form, end_command
from kvmedic.cli.saved import version_named
from kvmedic.engines import ENGINES, profiles_for
from kvmedic.manifests.documents import ManifestContainer
from kvmedic.manifests.engine_file import ConfigFile, config_file, repoint_manifest
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.flags import AlreadySet, FlagsView, Setting, edit, parse_line, read_flags, setting_of
from kvmedic.manifests.invocation import Selector, Unfollowed, engine_in, find_engines, version_of
from kvmedic.manifests.yaml_text import splice_edit
from kvmedic.model.compression import (
    Compacted,
    Eviction,
    InRuns,
    NoEvictionError,
    Pattern,
    PerHead,
    Scattered,
    freed_blocks,
)
from kvmedic.model.engine import Engine, EngineProfile, Flag, Kind

LEAST_SPREAD = 0.05
"""In blocks; a smaller deviation is not printed."""
PATTERNS = "scattered, per-head, runs:LENGTH or compact"
_RUNS = re.compile(r"runs:(\d{1,9})")


def print_freed_blocks(
    tokens: int, evict: int, pattern: str, block_size: int, heads: int, layers: int, output: Form
) -> None:
    """Compute the blocks, and print them."""
    try:
        eviction = Eviction(tokens, block_size, evict)
        where = _pattern(pattern, heads)
        found, of_one = freed_blocks(eviction, where, layers), freed_blocks(eviction, where)
    except NoEvictionError as error:
        end_command(f"kvmedic blocks: {error}", USAGE)
    if output is Form.JSON:
        facts = {
            "tokens": tokens,
            "blockTokens": block_size,
            "evictedTokens": evict,
            "pattern": pattern,
            "blocks": eviction.blocks,
            "freeBlocks": found.mean,
            "freeBlocksDeviation": found.deviation,
            "layers": layers,
        }
        print(json.dumps(facts))
        return
    spread = ""
    if found.deviation is not None and found.deviation >= LEAST_SPREAD:
        spread = f", give or take {found.deviation:.1f}"
    print(f"evicted    {evict} of {tokens} tokens ({100 * evict / tokens:.1f} %)")
    share = 100 * found.mean / eviction.blocks
    print(f"free       {found.mean:.1f} of {eviction.blocks} blocks ({share:.1f} %){spread}")
    if layers > 1:
        print(f"else       {of_one.mean:.1f} if all {layers} layers kept the same tokens")


def _pattern(text: str, heads: int) -> Pattern:
    runs = _RUNS.fullmatch(text)
    if runs:
        return InRuns(int(runs[1]))
    named: dict[str, Pattern] = {
        "scattered": Scattered(),
        "per-head": PerHead(heads),
        "compact": Compacted(),
    }
    if text not in named:
        raise NoEvictionError(f"--pattern must be {PATTERNS}, got {text!r}")
    return named[text]


Shown: TypeAlias = tuple[ManifestContainer, FlagsView | ManifestError]
"""A container that starts an engine, and its flags or why they cannot be read."""


def show_flags(
    file: str,
    output: Form,
    container: str | None,
    name: str | None,
    engine_name: str | None,
    engine_version: str | None,
) -> None:
    """Print the flags of each engine in a manifest."""
    version = version_named(engine_version)
    text = _read_manifest(file)
    engines = find_engines(text, profiles_named(engine_name), Selector(container, name))
    if isinstance(engines, ManifestError):
        _refuse(engines)
    shown: list[Shown] = []
    for each in engines:
        if isinstance(each, Unfollowed):
            shown.append((each.container, each.error))
            continue
        found, profile = each
        engine = Engine(profile, version or version_of(found.data, profile))
        shown.append((found, _show_engine(text, found, engine)))
    if all(isinstance(view, ManifestError) for _, view in shown):
        _refuse_all(shown)
    _print_views(shown, output)


def set_flag(
    setting: str,
    file: str,
    container: str | None,
    name: str | None,
    engine_name: str | None,
    engine_version: str | None,
) -> None:
    """Print a manifest with one flag changed."""
    flag_name, equals, value = setting.partition("=")
    if not equals or not flag_name.strip("-"):
        raise typer.BadParameter(f"{setting!r} is not NAME=VALUE; for example max_num_seqs=64")
    version = version_named(engine_version)
    text = _read_manifest(file)
    chosen = engine_in(text, profiles_named(engine_name), Selector(container, name))
    if isinstance(chosen, ManifestError):
        _refuse(chosen)
    found, profile = chosen
    engine = Engine(profile, version or version_of(found.data, profile))
    desired = setting_of(_flag(flag_name, profile), value, engine)
    if isinstance(desired, ManifestError):
        _refuse(desired, found)
    config = _file(text, found, desired, engine)
    if config is not None and _is_in_file(config, found, desired, engine):
        _set_in_file(text, found, config, desired)
        return
    outcome = edit(found.data, found.index, desired, engine, config.parsed if config else None)
    if isinstance(outcome, ManifestError):
        _refuse(outcome, found)
    if isinstance(outcome, AlreadySet):
        _note(f"{desired.flag.dest} already has that value ({outcome.place} of container {found})")
        _write(text)
        return
    result = splice_edit(text, found, outcome)
    if isinstance(result, ManifestError):
        _refuse(result)
    before = "nothing" if outcome.before is None else repr(outcome.before)
    after = outcome.after.strip() if outcome.before is None and outcome.after else outcome.after
    _note(f"{outcome.field}[{outcome.index}] of container {found}: {before} -> {after!r}")
    _write(result)


def _show_engine(text: str, found: ManifestContainer, engine: Engine) -> FlagsView | ManifestError:
    """Return the engine's flags, with those of its configuration file if the manifest contains it."""
    view = read_flags(found.data, engine)
    if isinstance(view, ManifestError) or view.config is None:
        return view
    file = config_file(text, found, view.config, engine)
    if isinstance(file, ManifestError):
        _note(f"container {found}: {file.message}")
        return view
    return read_flags(found.data, engine, file.parsed)


def _file(text: str, found: ManifestContainer, desired: Setting, engine: Engine) -> ConfigFile | None:
    """Return the configuration file; refuse if the manifest lacks it and it may hold the flag."""
    parsed = parse_line(found.data, engine)
    if isinstance(parsed, ManifestError) or parsed.config is None:
        return None
    file = config_file(text, found, parsed.config, engine)
    if not isinstance(file, ManifestError):
        return file
    if parsed.last(desired.flag.dest) is None:
        _refuse(ManifestError(file.reason, f"{desired.flag.dest} may be in a file: {file.message}"), found)
    return None


def _is_in_file(file: ConfigFile, found: ManifestContainer, desired: Setting, engine: Engine) -> bool:
    """Return whether a flag is changed in the file: only the file gives it, and it is no switch.

    vLLM leaves an entry out that is false (measured on 0.32.0): a switch is turned off on the command
    line, which beats the file.
    """
    given = file.find_entry(desired.flag.dest)
    parsed = parse_line(found.data, engine)
    if given is None or isinstance(parsed, ManifestError) or parsed.last(desired.flag.dest) is not None:
        return False
    return given.option.kind is not Kind.SWITCH or given.value == desired.value


def _set_in_file(text: str, found: ManifestContainer, file: ConfigFile, desired: Setting) -> None:
    given = file.find_entry(desired.flag.dest)
    if given is not None and given.value == desired.value:
        _note(f"{desired.flag.dest} already has that value ({given.held_by.place})")
        _write(text)
        return
    result = repoint_manifest(text, file, desired.flag.dest, desired.text)
    if isinstance(result, ManifestError):
        _refuse(result, found)
    _note(f"{desired.flag.dest} in a copy of {file}: the template of container {found} refers to the copy")
    _write(result)


def _print_views(shown: Sequence[Shown], output: Form) -> None:
    for found, view in shown:
        for gap in _gaps(view):
            _note(f"container {found}: {gap}")
    if output is Form.JSON:
        print(json.dumps(_views_as_json(shown), indent=2))
        return
    for found, view in shown:
        if isinstance(view, ManifestError):
            continue
        rows = [(given.flag, json.dumps(given.value), given.place) for given in view.flags]
        rows += [(given.flag, "(unknown)", given.place) for given in view.unknown]
        print(f"container {found}")
        for flag, value, place in rows:
            print(f"  {flag.dest:<24} {value:<16} {place}")
        if not rows:
            print("  no flag that kvmedic knows; the engine's defaults apply")


def _gaps(view: FlagsView | ManifestError) -> list[str]:
    """Return what of a container's flags is not shown, and why."""
    if isinstance(view, ManifestError):
        return [f"not shown ({view.reason}): {view.message}"]
    file = [f"it also reads {view.config}; its flags are not shown"] if view.config is not None else []
    return [*file, *(given.why.message for given in view.unknown)]


def _views_as_json(shown: Sequence[Shown]) -> dict[str, object]:
    """Return flags by container, `unknown` ones and what is `refused` only where there are any.

    A container goes by its name alone where no other one has that.
    """
    names = Counter(found.name for found, _ in shown)
    keys = [found.name if names[found.name] == 1 else str(found) for found, _ in shown]
    again = Counter(keys)
    keys = [key if again[key] == 1 else f"{key}, number {at}" for at, key in enumerate(keys, 1)]
    views = [(key, view) for key, (_, view) in zip(keys, shown, strict=True)]
    sections: dict[str, dict[str, object]] = {"containers": {}, "unknown": {}, "refused": {}}
    for key, view in views:
        if isinstance(view, ManifestError):
            sections["refused"][key] = f"{view.reason}: {view.message}"
            continue
        sections["containers"][key] = view.values()
        if view.unknown:
            sections["unknown"][key] = {each.flag.dest: each.why.message for each in view.unknown}
    return {name: found for name, found in sections.items() if found or name == "containers"}


def _refuse_all(shown: Sequence[Shown]) -> NoReturn:
    """Refuse with the reason of each engine of a manifest."""
    refusals = [(found, view) for found, view in shown if isinstance(view, ManifestError)]
    reasons = "; ".join(f"container {found}: {view.message}" for found, view in refusals)
    end_command(f"refused ({refusals[0][1].reason}): {reasons}", REFUSED)


def profiles_named(engine: str | None) -> tuple[EngineProfile, ...]:
    """Return the engines that a container may run, by an option that may name one."""
    known = [each.name for each in ENGINES]
    if engine is not None and engine not in known:
        raise typer.BadParameter(f"{engine!r} is not known; use {' or '.join(known)}", param_hint="--engine")
    return profiles_for(engine)


def _flag(name: str, profile: EngineProfile) -> Flag:
    dashed = "--" + name.removeprefix("--").replace("_", "-")
    for flag in profile.flags:
        named = (option.names for option in profile.options if flag.name in option.names)
        spelled = {each for names in named for each in names if not each.startswith("--no-")}
        if name == flag.knob or dashed in spelled:
            return flag
    known = [flag.dest for flag in profile.flags]
    close = difflib.get_close_matches(dashed.strip("-").replace("-", "_"), known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"it knows {', '.join(known)}"
    return _refuse(ManifestError(ErrorReason.UNKNOWN_FLAG, f"kvmedic changes no flag {name!r}: {hint}"))


def _read_manifest(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        end_command(f"unreadable file: {file}: {error.strerror}", USAGE)
    except UnicodeDecodeError:
        end_command(f"unreadable file: {file} is not UTF-8 text", USAGE)


def _write(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8"))
    sys.stdout.buffer.flush()


def _note(message: str) -> None:
    print(message, file=sys.stderr)


def _refuse(error: ManifestError, found: ManifestContainer | None = None) -> NoReturn:
    where = f"container {found}: " if found is not None else ""
    hint = "; name one with --container or --name" if error.reason is ErrorReason.SEVERAL_ENGINES else ""
    if error.message.startswith("no container starts "):
        hint = "; if one does all the same, say --engine vLLM"
    end_command(f"refused ({error.reason}): {where}{error.message}{hint}", REFUSED)
