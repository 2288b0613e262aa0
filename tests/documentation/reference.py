"""Two reference pages out of the code: every command's help, and every reason with what follows from it.

`chart.generated` writes docs/reference/commands.md and docs/reference/reasons.md with the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner

from documentation.generated import ROOT, with_part
from kvmedic.cli.app import SUBCOMMANDS, app_for
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.status import ConditionType

COMMANDS = ROOT / "docs" / "reference" / "commands.md"
REASONS = ROOT / "docs" / "reference" / "reasons.md"
WIDTH = "100"
"""Columns of the help on the page, as on a usual terminal."""
OWN_COMMANDS = {"flags": ("show", "set")}
"""Commands of a command, in the order of the page."""
FOLLOWS = {
    Trait.NEEDS_A_PERSON: f"`{ConditionType.ACTION_REQUIRED}`",
    Trait.STALLS: f"`{ConditionType.STALLED}`",
    Trait.NO_METRICS: f"`{ConditionType.METRICS_AVAILABLE}` False",
    Trait.KEPT: "ends a run, the change stays",
    Trait.BAD_END: "ends a run, counts for the storm breaker",
    Trait.FAILED: "not tried again on this template",
    Trait.UNTRIED: "ends a run that changed nothing",
}
"""What a reader sees of a trait. Others decide inside the operator and show by these."""


def command_names() -> Iterator[tuple[str, ...]]:
    """Yield every command's words, as they are typed."""
    for name in SUBCOMMANDS:
        yield from ((name, own) for own in OWN_COMMANDS.get(name, ())) if name in OWN_COMMANDS else [(name,)]


def _help_of(words: tuple[str, ...]) -> str:
    arguments = [*words, "--help"]
    shown = CliRunner().invoke(
        app_for(arguments), arguments, prog_name="kvmedic", env={"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH}
    )
    text = "\n".join(line.rstrip() for line in shown.stdout.strip().splitlines())
    return f"## kvmedic {' '.join(words)}\n\n```\n{text}\n```"


def commands() -> str:
    """Return every command's help, one section each."""
    return "\n\n".join(_help_of(words) for words in command_names())


def reasons() -> str:
    """Return every reason as a Markdown table, in the order of the code."""
    rows = (f"| `{one}` | {one.sentence} | {_follows(one)} |" for one in Reason)
    return "\n".join(("| reason | what it says | what follows |", "| --- | --- | --- |", *rows))


def _follows(reason: Reason) -> str:
    return ", ".join(text for trait, text in FOLLOWS.items() if trait in reason.traits)


def reference_pages() -> dict[Path, str]:
    """Return both pages with their generated parts anew."""
    parts = {COMMANDS: ("commands", commands()), REASONS: ("reasons", reasons())}
    return {page: with_part(page.read_text(encoding="utf-8"), *part) for page, part in parts.items()}
