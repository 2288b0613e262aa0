"""The commands that need no cluster: `kvmedic judge`, `kvmedic blocks` and `kvmedic flags`.

`judge` compares saved pages of new replicas with those of old ones, for a canary by hand or in CI. Both sides
serve at the same moment under the same arrivals, so neither the hour nor the load explains a difference.
`blocks` computes how many blocks of a paged KV cache an eviction of tokens frees. `flags` shows what an
engine's flags are in a manifest file, and changes one of them.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import NoReturn, TypeAlias

import typer

from kvmedic.api.resource import SpecInvalid, objectives_from
from kvmedic.cli.app import REFUSED, USAGE, Form, end_command
from kvmedic.cli.saved import (
    ScrapeError,
    doubt_of,
    interval_between,
    named_file,
    pages_of,
    signals_of,
    version_named,
)
from kvmedic.engines import ENGINES, profiles_for
from kvmedic.engines.signal_sources import (
    SignalTable,
)
from kvmedic.manifests.documents import ManifestContainer
from kvmedic.manifests.engine_file import ConfigFile, config_file, repoint_manifest
from kvmedic.manifests.flags import AlreadySet, FlagsView, Setting, edit, parsed_of, read_flags, setting_of
from kvmedic.manifests.invocation import Selector, Unfollowed, engine_in, engines_seen, version_of
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.yaml_text import splice_edit
from kvmedic.metrics.page import Page, gauge, glimpse, observe_pages, replica_of
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
from kvmedic.model.evidence import (
    Inconclusive,
    Measured,
    Signal,
)
from kvmedic.model.readings import complete
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Objectives
from kvmedic.verdict.counts import Arm, Counts, Limits, Routing, count_replica, needed_for
from kvmedic.verdict.side_by_side import SURE, CanaryVerdict, Comparison, compare_arms

ROLLED_BACK = 1
"""Exit code for: roll the change back."""
_ONE_PAGE = (
    "one page shows counters since the start, not what happens now: give two or more pages of each replica, "
    "taken at the same moments, the oldest first (%s T0.txt,T1.txt)"
)
_ROWS = (
    ("first_tokens", "first tokens", "{:.0f}"),
    ("arrivals_per_second", "requests/s of a replica", "{:.3g}"),
    ("tokens_per_second", "tokens/s of a replica", "{:.4g}"),
    ("in_time_share", "share served in time", "{:.1%}"),
    ("served_in_time_per_second", "tokens/s served in time", "{:.4g}"),
    ("stalls_per_request", "stalls over 2 s per request", "{:.3f}"),
    ("silent_seconds", "silent seconds per request", "{:.1f}"),
    ("waiting", "waiting on a replica", "{:.1f}"),
    ("in_flight", "in flight on a replica", "{:.1f}"),
    ("queued_share", "arrivals that only queued", "{:+.1%}"),
)
"""Figures of both sides: field, name, and how it is printed."""

Pages = Mapping[str, tuple[Page, ...]]


def judge_canary(
    old: list[str],
    new: list[str],
    objective: list[str] | None,
    interval: str,
    routing: str | None,
    output: Form,
) -> None:
    """Compare both sides, and print the verdict."""
    try:
        limits = Limits(_objectives(objective or ()), Routing(routing) if routing else None)
        olds, news = _read_sides(old, new)
        found = judge_pages(olds, news, limits, interval_between(interval))
    except ScrapeError as error:
        end_command(error, USAGE)
    if isinstance(found, Inconclusive):
        end_command(found.line(), USAGE)
    print(_comparison_as_json(found) if output is Form.JSON else _comparison_as_text(found))
    codes = {CanaryVerdict.GO_ON: 0, CanaryVerdict.ROLL_BACK: ROLLED_BACK}
    raise typer.Exit(codes.get(found.verdict, REFUSED))


def judge_pages(
    old: Pages, new: Pages, limits: Limits, interval: timedelta | None
) -> Comparison | Inconclusive:
    """Return the comparison of both sides, whose pages were saved at the same moments, oldest first.

    A rollback needs two looks in a row: over all pages, and over all but the newest ones. With only two
    moments, the one look must be surer.

    Args:
        interval: between two pages; None: the engines' busy time, from their steps.

    Raises:
        ScrapeError: some replicas have more pages than others.
    """
    pages = {**old, **new}
    if len({len(many) for many in pages.values()}) > 1:
        raise ScrapeError("some replicas have more pages than others: give pages of the same moments")
    if doubt := doubt_of(pages):
        return doubt
    moments = len(next(iter(pages.values())))
    signals = signals_of(pages)
    steps = glimpse(pages, signals, None).observation.window_seconds / (moments - 1)
    seconds = steps if interval is None else interval.total_seconds()
    if not isfinite(seconds) or seconds <= 0:
        return Inconclusive(Reason.METRICS_MISSING, "the time between the pages is unknown: give --interval")
    before, after = (_arm(side, seconds, limits, signals) for side in (old, new))
    if isinstance(before, Inconclusive):
        return before
    return after if isinstance(after, Inconclusive) else compare_arms(before, after, limits)


def _arm(pages: Pages, seconds: float, limits: Limits, signals: SignalTable) -> Arm | Inconclusive:
    """Return the counts of one side for each stretch of time between two pages."""
    blocks, waiting = [], []
    moments = len(next(iter(pages.values())))
    for earlier, later in pairwise(range(moments)):
        stretch = {name: (many[earlier], many[later]) for name, many in pages.items()}
        seen = observe_pages(stretch, signals)
        gap = complete(seen, needed_for(limits.objectives))
        if isinstance(gap, Inconclusive):
            return gap
        queues = {name: [_count_waiting(page, signals) for page in two] for name, two in stretch.items()}
        counts = [count_replica(seen.pods[name], seconds, limits, queues[name]) for name in sorted(stretch)]
        blocks.append(sum((each for each in counts if isinstance(each, Counts)), Counts()))
        waiting.append(sum(two[-1] for two in queues.values()))
    return Arm(len(pages), tuple(blocks), tuple(waiting))


def _count_waiting(page: Page, signals: SignalTable) -> float:
    replica = replica_of(page, signals)
    found = None if replica is None else gauge(replica, Signal.WAITING_MEAN, (page,))
    return found.value if isinstance(found, Measured) else 0.0


def _read_sides(old: Sequence[str], new: Sequence[str]) -> tuple[Pages, Pages]:
    olds, news = _files_of("--old", old), _files_of("--new", new)
    if both := sorted(olds.keys() & news.keys()):
        raise ScrapeError(f"{both[0]} is on both sides: a replica runs the change or does not")
    pages = pages_of([f"{name}={file}" for name, many in {**olds, **news}.items() for file in many])
    return {name: pages[name] for name in olds}, {name: pages[name] for name in news}


def _files_of(option: str, given: Sequence[str]) -> Mapping[str, Sequence[str]]:
    found: dict[str, Sequence[str]] = {}
    for place, argument in enumerate(given, 1):
        replica, files = named_file(option, argument)
        many = [each.strip() for each in files.split(",") if each.strip()]
        if len(many) < 2:
            raise ScrapeError(f"{option} {argument}: {_ONE_PAGE % option}")
        name = replica or f"{option.removeprefix('--')}-{place}"
        if name in found:
            raise ScrapeError(f"{option} {argument}: {name} is given twice; give all its pages in one option")
        found[name] = many
    return found


def _objectives(given: Sequence[str]) -> Objectives:
    pairs = [each.partition("=") for each in given]
    if wrong := next((each for each, (_, _, value) in zip(given, pairs, strict=True) if not value), None):
        raise ScrapeError(f"--objective {wrong}: write NAME=DURATION, such as ttftP95=5s")
    if joined := next((each for each in given if "," in each), None):
        raise ScrapeError(f"--objective {joined}: give --objective twice, each with one objective")
    named = Counter(name for name, _, _ in set(pairs))
    if twice := next((name for name, count in named.items() if count > 1), ""):
        raise ScrapeError(f"--objective {twice} is given twice with different durations; leave one out")
    try:
        return objectives_from({name: value for name, _, value in pairs})
    except SpecInvalid as error:
        raise ScrapeError(f"--objective: {'; '.join(error.problems)}") from None


def _comparison_as_text(found: Comparison) -> str:
    rows = [("", "old", "new"), ("replicas", str(found.old_replicas), str(found.new_replicas))]
    for name, title, form in _ROWS:
        figures = (getattr(side, name) for side in (found.old, found.new))
        old, new = (form.format(each) if isfinite(each) else "-" for each in figures)
        rows.append((title, old, new))
    table = "\n".join(f"  {title:<28}{old:>12}{new:>12}" for title, old, new in rows)
    checks = "\n".join(
        f"  {'FAILS' if each.fails else 'passes':<7} {each.name}: {each.message}" for each in found.checks
    )
    return (
        f"{found.verdict} ({found.decided_by}): {found.message}\n"
        f"watched {found.seconds:.0f} s, routing {found.routing}\n{table}\n{checks}"
    ).rstrip()


def _comparison_as_json(found: Comparison) -> str:
    """Return the comparison as JSON; an unknown or infinite number is null."""
    return json.dumps(
        {
            "verdict": found.verdict,
            "decidedBy": found.decided_by,
            "message": found.message,
            "seconds": found.seconds,
            "routing": found.routing,
            "old": {"replicas": found.old_replicas, **_in_camel_case(asdict(found.old))},
            "new": {"replicas": found.new_replicas, **_in_camel_case(asdict(found.new))},
            "checks": [
                {
                    "name": each.name,
                    "value": each.value,
                    "interval": [each.value - SURE * each.error, each.value + SURE * each.error],
                    "limit": each.limit,
                    "fails": each.fails,
                    "message": each.message,
                }
                for each in found.checks
            ],
        },
        indent=2,
    )


def _in_camel_case(figures: Mapping[str, float]) -> dict[str, float | None]:
    def camel(name: str) -> str:
        first, *rest = name.split("_")
        return first + "".join(each.title() for each in rest)

    return {camel(name): value if isfinite(value) else None for name, value in figures.items()}


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
        told = {
            "tokens": tokens,
            "blockTokens": block_size,
            "evictedTokens": evict,
            "pattern": pattern,
            "blocks": eviction.blocks,
            "freeBlocks": found.mean,
            "freeBlocksDeviation": found.deviation,
            "layers": layers,
        }
        print(json.dumps(told))
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


Shown: TypeAlias = tuple[ManifestContainer, FlagsView | Refusal]
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
    engines = engines_seen(text, profiles_named(engine_name), Selector(container, name))
    if isinstance(engines, Refusal):
        _refuse(engines)
    shown: list[Shown] = []
    for each in engines:
        if isinstance(each, Unfollowed):
            shown.append((each.container, each.refusal))
            continue
        found, profile = each
        engine = Engine(profile, version or version_of(found.data, profile))
        shown.append((found, _show_engine(text, found, engine)))
    if all(isinstance(view, Refusal) for _, view in shown):
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
    if isinstance(chosen, Refusal):
        _refuse(chosen)
    found, profile = chosen
    engine = Engine(profile, version or version_of(found.data, profile))
    wanted = setting_of(_flag(flag_name, profile), value, engine)
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
        _note(f"{wanted.flag.dest} already has that value ({outcome.place} of container {found})")
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
    """Return the engine's flags, with those of its configuration file if the manifest contains it."""
    view = read_flags(found.data, engine)
    if isinstance(view, Refusal) or view.config is None:
        return view
    file = config_file(text, found, view.config, engine)
    if isinstance(file, Refusal):
        _note(f"container {found}: {file.message}")
        return view
    return read_flags(found.data, engine, file.parsed)


def _file(text: str, found: ManifestContainer, wanted: Setting, engine: Engine) -> ConfigFile | None:
    """Return the configuration file; refuse if the manifest lacks it and it may hold the flag."""
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
        _note(f"{wanted.flag.dest} already has that value ({given.held_by.place})")
        _write(text)
        return
    result = repoint_manifest(text, file, wanted.flag.dest, wanted.text)
    if isinstance(result, Refusal):
        _refuse(result, found)
    _note(f"{wanted.flag.dest} in a copy of {file}: the template of container {found} refers to the copy")
    _write(result)


def _print_views(shown: Sequence[Shown], output: Form) -> None:
    for found, view in shown:
        for gap in _gaps(view):
            _note(f"container {found}: {gap}")
    if output is Form.JSON:
        print(json.dumps(_views_as_json(shown), indent=2))
        return
    for found, view in shown:
        if isinstance(view, Refusal):
            continue
        rows = [(given.flag, json.dumps(given.value), given.place) for given in view.flags]
        rows += [(given.flag, "(unknown)", given.place) for given in view.unknown]
        print(f"container {found}")
        for flag, value, place in rows:
            print(f"  {flag.dest:<24} {value:<16} {place}")
        if not rows:
            print("  no flag that kvmedic knows; the engine's defaults apply")


def _gaps(view: FlagsView | Refusal) -> list[str]:
    """Return what of a container's flags is not shown, and why."""
    if isinstance(view, Refusal):
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
    told: dict[str, dict[str, object]] = {"containers": {}, "unknown": {}, "refused": {}}
    for key, view in views:
        if isinstance(view, Refusal):
            told["refused"][key] = f"{view.reason}: {view.message}"
            continue
        told["containers"][key] = view.values()
        if view.unknown:
            told["unknown"][key] = {each.flag.dest: each.why.message for each in view.unknown}
    return {name: found for name, found in told.items() if found or name == "containers"}


def _refuse_all(shown: Sequence[Shown]) -> NoReturn:
    """Refuse with the reason of each engine of a manifest."""
    refusals = [(found, view) for found, view in shown if isinstance(view, Refusal)]
    told = "; ".join(f"container {found}: {view.message}" for found, view in refusals)
    end_command(f"refused ({refusals[0][1].reason}): {told}", REFUSED)


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
    return _refuse(Refusal(RefusalReason.UNKNOWN_FLAG, f"kvmedic changes no flag {name!r}: {hint}"))


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


def _refuse(refusal: Refusal, found: ManifestContainer | None = None) -> NoReturn:
    where = f"container {found}: " if found is not None else ""
    hint = "; name one with --container or --name" if refusal.reason is RefusalReason.SEVERAL_ENGINES else ""
    if refusal.message.startswith("no container starts "):
        hint = "; if one does all the same, say --engine vLLM"
    end_command(f"refused ({refusal.reason}): {where}{refusal.message}{hint}", REFUSED)
