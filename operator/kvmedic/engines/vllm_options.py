"""Every option of vLLM's command line, release by release.

The table beside this file was derived from vLLM's own sources by
`tests/engines/derive_vllm_options.py`. For 0.32.0 it was compared with the parser that vLLM builds:
the same 317 options, with the same number of values, types and spellings. Three lists of numbers
count as text here.
"""

from __future__ import annotations

from importlib.resources import files

from kvmedic.core.engine import Arity, Kind, Option
from kvmedic.core.version import Version


def _read() -> tuple[tuple[Version, ...], tuple[Option, ...]]:
    head, *rows = files("kvmedic.engines").joinpath("vllm_options.tsv").read_text("utf-8").splitlines()
    releases = tuple(Version.parse(text) for text in head.split("\t")[1].split())
    by_text = {release.text: release for release in releases}
    return releases, tuple(_option(row, by_text) for row in rows)


def _option(row: str, releases: dict[str, Version]) -> Option:
    names, arity, kind, since, until, choices = row.split("\t")
    spellings = tuple(names.split())
    longest = next(name for name in spellings if name.startswith("--"))
    return Option(
        names=spellings,
        dest=longest.removeprefix("--").replace("-", "_"),
        arity=Arity(arity),
        kind=Kind(kind.removesuffix("?")),
        since=releases[since],
        until=releases[until],
        nullable=kind.endswith("?"),
        choices=tuple(choices.split()),
    )


RELEASES, OPTIONS = _read()
