"""The parts of the documentation that follow from the code, between markers; `chart.generated` writes them.

* each runbook's decision table, from its branches, and the table of levers;
* docs/howto/when-it-refuses.md: every reason for which nothing is done, and what to type;
* docs/explanation/flow.md: the layers, as `lint-imports` holds them;
* docs/images/: the README's picture, and that of one tick.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from inspect import getdoc
from pathlib import Path

from documentation.picture import picture, tick_picture
from kvmedic.model.reasons import EXPLAIN, Reason, Trait, reasons_with
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Branch
from kvmedic.runbooks.preemption.levers import LEVERS, Lever
from worlds.reported_problems import REPORTED_PROBLEMS, ReportedProblem

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
FLOW = ROOT / "docs" / "explanation" / "flow.md"
REFUSALS = ROOT / "docs" / "howto" / "when-it-refuses.md"
NAMES = {
    "namespace": "NS",
    "name": "NAME",
    "target": "TARGET",
    "digest": "DIGEST",
    "operator": "kvmedic-system",
    "stop": "kvmedic-stop",
}
"""What stands for the names in a command that is for everybody."""
PEOPLE, METRICS = reasons_with(Trait.NEEDS_A_PERSON), reasons_with(Trait.NO_METRICS)
GROUPS = {
    "needs a person": PEOPLE,
    "the metrics": METRICS,
    "the rest": frozenset(one for one in Reason if one.remedy) - PEOPLE - METRICS,
}
"""The tables of reasons by what they are called in their markers."""


def runbook_page(runbook: str) -> Path:
    """Return where a runbook's page is: `PreemptionThrash` has preemption-thrash.md."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", runbook).lower()
    return ROOT / "docs" / "runbooks" / f"{name}.md"


def pages() -> dict[Path, str]:
    """Return every page with its generated parts anew."""
    found = {
        runbook_page(name): with_part(_text(runbook_page(name)), "decision table", decision_table(branches))
        for name, branches in RUNBOOKS.items()
    }
    levers = runbook_page("PreemptionThrash")
    found[levers] = with_part(found[levers], "levers", lever_table(LEVERS))
    refusals = with_part(_text(REFUSALS), "bad input", _problem_rows(REPORTED_PROBLEMS.items()))
    for name, reasons in GROUPS.items():
        refusals = with_part(refusals, name, _reasons(one for one in Reason if one in reasons))
    flow = with_part(_text(FLOW), "layers", _layers())
    pictures = {IMAGES / "overview.svg": picture(), IMAGES / "tick.svg": tick_picture()}
    return {**found, REFUSALS: refusals, FLOW: flow, **pictures}


def _layers() -> str:
    contracts = tomllib.loads(_text(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["type"] == "layers")
    return "\n".join(("```", *layers, "```"))


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def with_part(text: str, name: str, part: str) -> str:
    """Return a page's text with one generated part anew.

    Raises:
        ValueError: the page has no place for it.
    """
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no lines {begin} and {end} around its generated part: add them")
    return f"{before}{begin}\n\n{part}\n\n{end}{after}"


def _reasons(reasons: Iterable[Reason]) -> str:
    return _table(
        ("reason", "what it means", "what to type"),
        ((f"`{one}`", one.sentence, _typed(one)) for one in reasons),
    )


def _typed(reason: Reason) -> str:
    remedy = reason.remedy or EXPLAIN
    return f"{remedy.purpose}: `{remedy.write_command(NAMES)}`"


def _problem_rows(problems: Iterable[tuple[str, ReportedProblem]]) -> str:
    return _table(
        ("what is wrong", "condition", "reason", "what it says", "what to type"),
        (
            (
                name,
                f"`{one.condition}` {one.status}",
                f"`{one.reason}`",
                f"… {one.advice} …",
                _typed(Reason(one.reason)),
            )
            for name, one in problems
        ),
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def lines() -> Iterator[str]:
        yield _line(head)
        yield _line(("---",) * len(head))
        yield from map(_line, rows)

    return "\n".join(lines())


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


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
