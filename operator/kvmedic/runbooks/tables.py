"""Runbooks as text for people: the tables of a page, generated from the branches and the levers."""

from __future__ import annotations

from kvmedic.core.diagnosis import Branch
from kvmedic.core.reasons import SENTENCES, Reason
from kvmedic.runbooks.levers import Lever


def decision_table(branches: tuple[Branch, ...]) -> str:
    """Return a runbook's branches as a Markdown table, in their order; each reason links to its anchor."""
    head = ("| # | reason | when | from | signals |", "|---|---|---|---|---|")
    rows = (_row(number, branch) for number, branch in enumerate(branches, start=1))
    return "\n".join((*head, *rows))


def anchor(reason: Reason) -> str:
    """Return the anchor of a reason on its runbook's page."""
    return reason.lower()


def _row(number: int, branch: Branch) -> str:
    signals = ", ".join(f"`{signal}`" for signal in sorted(branch.signals))
    link = f"[`{branch.reason}`](#{anchor(branch.reason)})"
    return f"| {number} | {link} | {SENTENCES[branch.reason]} | {branch.section} | {signals} |"


def lever_table(levers: tuple[Lever, ...]) -> str:
    """Return a runbook's levers as a Markdown table, in the runbook's order."""
    rows = (f"| `{lever.knob}` | {lever.expects} |" for lever in levers)
    return "\n".join(("| lever | expected |", "|---|---|", *rows))
