"""`kvmedic flags`: what an engine's flags are in a manifest file, and one of them changed.

Works on files alone. Exit codes: 0 done, 2 wrong usage or unreadable file, 3 refused, with the reason
on standard error.
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from kvmedic.cli.app import REFUSED, Form, end_command
from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.engine_file import ConfigFile, config_file, repoint_manifest
from kvmedic.manifests.flags import AlreadySet, FlagsView, Setting, edit, parsed_of, read_flags, setting_of
from kvmedic.manifests.invocation import Selector, engine_in, engines_in, several, version_of
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.yaml_text import ManifestContainer, splice_edit
from kvmedic.model.engine import Engine, EngineProfile, Flag, Kind, Version

app = typer.Typer(no_args_is_help=True)

UNREADABLE = 2


File = Annotated[
    str, typer.Option("--file", "-f", help="Manifest file, YAML or JSON; `-` reads standard input.")
]
Container = Annotated[str | None, typer.Option(help="Name of the container, where several could be meant.")]
Name = Annotated[str | None, typer.Option(help="Name of the object, where the file holds several.")]
EngineVersion = Annotated[
    str | None,
    typer.Option(help="The engine's version, such as 0.32.0; by default it is read from the image's tag."),
]


@app.command()
def show(
    file: File,
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print.")] = Form.TEXT,
    container: Container = None,
    name: Name = None,
    engine_version: EngineVersion = None,
) -> None:
    """Show the flags that a manifest gives the engine, as the engine reads them.

    Only what is given on the command line is shown, never the engine's defaults.
    """
    version = version_named(engine_version)
    text = _read_manifest(file)
    engines = engines_in(text, VLLM, Selector(container, name))
    if isinstance(engines, Refusal):
        _refuse(engines)
    if len({engine.name for engine in engines}) < len(engines):
        _refuse(several(engines))
    views: list[tuple[ManifestContainer, FlagsView]] = []
    for found in engines:
        engine = Engine(VLLM, version or version_of(found.data, VLLM))
        view = _show_engine(text, found, engine)
        if isinstance(view, Refusal):
            _refuse(view, found)
        views.append((found, view))
    _print_views(views, output)


@app.command("set")
def set_flag(
    setting: Annotated[str, typer.Argument(metavar="NAME=VALUE", help="For example max_num_seqs=64.")],
    file: File,
    container: Container = None,
    name: Name = None,
    engine_version: EngineVersion = None,
) -> None:
    """Change one flag in a manifest and print the manifest.

    Exactly one token changes, or one is added; every other byte stays as it is.
    """
    flag_name, equals, value = setting.partition("=")
    if not equals or not flag_name.strip("-"):
        raise typer.BadParameter(f"{setting!r} is not NAME=VALUE; for example max_num_seqs=64")
    version = version_named(engine_version)
    flag = _flag(flag_name, VLLM)
    text = _read_manifest(file)
    found = engine_in(text, VLLM, Selector(container, name))
    if isinstance(found, Refusal):
        _refuse(found)
    engine = Engine(VLLM, version or version_of(found.data, VLLM))
    wanted = setting_of(flag, value, engine)
    if isinstance(wanted, Refusal):
        _refuse(wanted, found)
    config = _file(text, found, wanted, engine)
    if config is not None and _is_in_file(config, found, wanted, engine):
        _set_in_file(text, found, config, wanted)
        return
    outcome = edit(found.data, found.index, wanted, engine, config.parsed if config else None)
    if isinstance(outcome, Refusal):
        _refuse(outcome, found)
    if isinstance(outcome, AlreadySet):
        _note(f"{flag.dest} has that value already ({outcome.place} of container {found})")
        _write(text)
        return
    result = splice_edit(text, found, outcome)
    if isinstance(result, Refusal):
        _refuse(result)
    before = "nothing" if outcome.before is None else repr(outcome.before)
    after = outcome.after.strip() if outcome.before is None and outcome.after else outcome.after
    _note(f"{outcome.field}[{outcome.index}] of container {found}: {before} -> {after!r}")
    _write(result)


def _show_engine(text: str, found: ManifestContainer, engine: Engine) -> FlagsView | Refusal:
    """Return what a container's engine is given, with its configuration file where that can be seen."""
    view = read_flags(found.data, engine)
    if isinstance(view, Refusal) or view.config is None:
        return view
    file = config_file(text, found, view.config, engine)
    if isinstance(file, Refusal):
        _note(f"container {found}: {file.message}")
        return view
    return read_flags(found.data, engine, file.parsed)


def _file(text: str, found: ManifestContainer, wanted: Setting, engine: Engine) -> ConfigFile | None:
    """Return the configuration file, or refuse where it can't be seen and may hold the flag."""
    parsed = parsed_of(found.data, engine)
    if isinstance(parsed, Refusal) or parsed.config is None:
        return None
    file = config_file(text, found, parsed.config, engine)
    if not isinstance(file, Refusal):
        return file
    if parsed.last(wanted.flag.dest) is None:
        _refuse(Refusal(file.reason, f"{wanted.flag.dest} may be in a file: {file.message}"), found)
    return None


def _is_in_file(file: ConfigFile, found: ManifestContainer, wanted: Setting, engine: Engine) -> bool:
    """Return whether a flag is changed in the file: only the file gives it, and it is no switch.

    vLLM leaves an entry out that is false (measured on 0.32.0): a switch is turned off on the command
    line, which beats the file.
    """
    given = file.given(wanted.flag.dest)
    parsed = parsed_of(found.data, engine)
    if given is None or isinstance(parsed, Refusal) or parsed.last(wanted.flag.dest) is not None:
        return False
    return given.option.kind is not Kind.SWITCH or given.value == wanted.value


def _set_in_file(text: str, found: ManifestContainer, file: ConfigFile, wanted: Setting) -> None:
    given = file.given(wanted.flag.dest)
    if given is not None and given.value == wanted.value:
        _note(f"{wanted.flag.dest} has that value already ({given.held_by.place})")
        _write(text)
        return
    result = repoint_manifest(text, file, wanted.flag.dest, wanted.text)
    if isinstance(result, Refusal):
        _refuse(result, found)
    _note(f"{wanted.flag.dest} in a copy of {file}: the template of container {found} refers to the copy")
    _write(result)


def _print_views(views: list[tuple[ManifestContainer, FlagsView]], output: Form) -> None:
    for found, view in views:
        if view.config is not None:
            _note(f"container {found} also reads {view.config}; its flags are not shown")
    if output is Form.JSON:
        print(json.dumps({"containers": {found.name: view.values() for found, view in views}}, indent=2))
        return
    for found, view in views:
        print(f"container {found}")
        for given in view.flags:
            print(f"  {given.flag.dest:<24} {json.dumps(given.value):<16} {given.place}")
        if not view.flags:
            print("  no flag that kvmedic knows; the engine's defaults apply")


def version_named(text: str | None) -> Version | None:
    """Return the version that an option names; None where it is not given.

    Raises:
        BadParameter: the text is no version.
    """
    try:
        return Version.parse(text) if text is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--engine-version") from error


def _flag(name: str, profile: EngineProfile) -> Flag:
    dashed = "--" + name.removeprefix("--").replace("_", "-")
    for flag in profile.flags:
        named = (option.names for option in profile.options if flag.name in option.names)
        spelled = {each for names in named for each in names if not each.startswith("--no-")}
        if name == flag.knob or dashed in spelled:
            return flag
    known = [flag.dest for flag in profile.flags]
    close = difflib.get_close_matches(dashed.strip("-").replace("-", "_"), known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"
    return _refuse(Refusal(RefusalReason.UNKNOWN_FLAG, f"{name!r} is no flag that kvmedic changes: {hint}"))


def _read_manifest(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        end_command(f"unreadable file: {file}: {error.strerror}", UNREADABLE)
    except UnicodeDecodeError:
        end_command(f"unreadable file: {file} is not UTF-8 text", UNREADABLE)


def _write(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8"))
    sys.stdout.buffer.flush()


def _note(message: str) -> None:
    print(message, file=sys.stderr)


def _refuse(refusal: Refusal, found: ManifestContainer | None = None) -> NoReturn:
    where = f"container {found}: " if found is not None else ""
    if refusal.reason is RefusalReason.SEVERAL_ENGINES:
        refusal = Refusal(refusal.reason, f"{refusal.message}; name one with --container or --name")
    end_command(f"refused ({refusal.reason}): {where}{refusal.message}", REFUSED)
