"""Parts of pages out of the code: commands' help, reasons, fields of a scenario's file, the configuration.

`chart.generated` writes reference/commands.md, reference/reasons.md and howto/add-a-scenario.md of docs/
with the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from inspect import getdoc
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from documentation.generated import ROOT, with_part
from kvmedic.api.rules import format_duration
from kvmedic.cli.app import SUBCOMMANDS, app_for
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.status import ConditionType
from kvmedic.settings import Section, Settings
from lab.play.schema import Evaluation, Expectation, Fleet, Incident, Limits, Move, Scenario, Stream

COMMANDS = ROOT / "docs" / "reference" / "commands.md"
REASONS = ROOT / "docs" / "reference" / "reasons.md"
CONFIGURATION = ROOT / "docs" / "reference" / "operator-limits.md"
SCENARIOS = ROOT / "docs" / "howto" / "add-a-scenario.md"
PARTS: dict[str, type[BaseModel]] = {
    "scenario": Scenario,
    "fleet": Fleet,
    "load": Stream,
    "evaluation": Evaluation,
    "expect": Expectation,
    "step": Move,
    "limits": Limits,
}
"""Models of a scenario's file by the name of their table."""
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


def configuration() -> str:
    """Return every setting of the operator as a Markdown table, in the order of the code."""
    rows = []
    for name, field in Settings.model_fields.items():
        options = field.annotation
        of_each = [one for one in get_args(options) if isinstance(one, type) and issubclass(one, Section)]
        if isinstance(options, type) and issubclass(options, Section):
            rows.append(f"| **`{name}`** | | {_summary(options)} |")
            rows += [_setting(f"{name}.{part.alias}", part) for part in options.model_fields.values()]
        else:
            rows.append(_setting(name, field))
        for each in of_each:
            rows += [_setting(f"{name}.NAME.{part.alias}", part) for part in each.model_fields.values()]
    return "\n".join(("| setting | default | meaning |", "| --- | --- | --- |", *rows))


def _summary(options: type[Section]) -> str:
    return " ".join((getdoc(options) or "").partition("\n\n")[0].split())


def _setting(name: str, field: FieldInfo) -> str:
    return f"| `{name}` | {_default(field.default)} | {' '.join((field.description or '').split())} |"


def _default(value: Any) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    simple = isinstance(value, str | bool | int | float) and value != ""
    return f"`{json.dumps(value).strip(chr(34))}`" if simple else ""


def field_table(model: type[BaseModel]) -> str:
    """Return the fields of a part of a scenario's file as a Markdown table; each docstring is its meaning."""
    rows = (f"| `{name}` | {_meaning(model, name)} |" for name in model.model_fields)
    return "\n".join(("| field | meaning |", "| --- | --- |", *rows))


def _meaning(model: type[BaseModel], name: str) -> str:
    said = model.model_fields[name].description
    if said is None:
        said = getdoc(model.model_fields[name].annotation) or ""
    return " ".join(said.partition("\n\n")[0].split()).replace("|", "\\|")


def incidents() -> str:
    """Return what may happen in a play as a Markdown table."""
    common = {"at", "every", "do"}
    rows = []
    for kind in get_args(get_args(Incident)[0]):
        (do,) = get_args(kind.model_fields["do"].annotation)
        own = (f"`{name}`: {_meaning(kind, name)}" for name in kind.model_fields if name not in common)
        rows.append(f"| `{do}` | {getdoc(kind)} | {' '.join(own)} |")
    return "\n".join(("| `do` | what happens | fields |", "| --- | --- | --- |", *rows))


def scenario_page() -> str:
    """Return docs/howto/add-a-scenario.md with its tables anew."""
    page = SCENARIOS.read_text(encoding="utf-8")
    for name, model in PARTS.items():
        page = with_part(page, f"fields of {name}", field_table(model))
    return with_part(page, "incidents", incidents())


def reference_pages() -> dict[Path, str]:
    """Return the pages with their generated parts anew."""
    parts = {
        COMMANDS: ("commands", commands()),
        REASONS: ("reasons", reasons()),
        CONFIGURATION: ("configuration", configuration()),
    }
    pages = {page: with_part(page.read_text(encoding="utf-8"), *part) for page, part in parts.items()}
    return {**pages, SCENARIOS: scenario_page()}
