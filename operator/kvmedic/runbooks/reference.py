"""Runbooks as text for people: the tables of a page, generated from the branches and the levers."""

from __future__ import annotations

from inspect import getdoc

from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import Branch
from kvmedic.runbooks.preemption.levers import Lever

_RETURNS = "Return "
"""How the summary of a function that returns something begins."""


def decision_table(branches: tuple[Branch, ...]) -> str:
    """Return a runbook's branches as a Markdown table, in their order; each reason links to its anchor."""
    head = ("| # | reason | when | move | from | signals |", "|---|---|---|---|---|---|")
    rows = (_row(number, branch) for number, branch in enumerate(branches, start=1))
    return "\n".join((*head, *rows))


def anchor(reason: Reason) -> str:
    """Return the anchor of a reason on its runbook's page."""
    return reason.lower()


def move_of(branch: Branch) -> str:
    """Return what a branch leads to, in the words of the function that says so.

    Raises:
        ValueError: the function says nothing.
    """
    if branch.then is None:
        return "nothing is changed"
    said = getdoc(getattr(branch.then, "func", branch.then))
    if not said:
        raise ValueError(
            f"{branch.reason}: give the function behind `then` a docstring; it is the table's move"
        )
    summary = " ".join(said.partition("\n\n")[0].split()).rstrip(".")
    return summary.removeprefix(_RETURNS)


def _row(number: int, branch: Branch) -> str:
    needed = sorted(str(each) for each in branch.signals | branch.vitals)
    signals = ", ".join(f"`{signal}`" for signal in needed)
    link = f"[`{branch.reason}`](#{anchor(branch.reason)})"
    cells = (str(number), link, branch.reason.sentence, move_of(branch), branch.section, signals)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def lever_table(levers: tuple[Lever, ...]) -> str:
    """Return a runbook's levers as a Markdown table, in the runbook's order."""
    rows = (f"| `{lever.name}` | {lever.expects} |" for lever in levers)
    return "\n".join(("| lever | expected |", "|---|---|", *rows))
