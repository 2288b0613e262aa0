"""What holds for every runbook: complete, documented, free of engine names."""

import ast
import re
from pathlib import Path

import pytest

from documentation.generated import anchor, decision_table
from kvmedic.engines import ENGINES
from kvmedic.model.reasons import Reason
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Branch, Diagnosed, diagnose
from runbooks.incident import Incident
from runbooks.incidents import INCIDENTS
from runbooks.pages import ROOT, page
from worlds.compression_incidents import COMPRESSION_INCIDENTS

SOURCES = sorted((ROOT / "operator" / "kvmedic" / "runbooks").rglob("[a-z]*.py"))
BRANCHES = [
    pytest.param(name, branch, id=f"{name}-{branch.reason}")
    for name, branches in RUNBOOKS.items()
    for branch in branches
]
TABLES = {"CompressionWithoutSavings": COMPRESSION_INCIDENTS, "PreemptionThrash": INCIDENTS}
CASES = [
    pytest.param(runbook, reason, incident, id=f"{reason}: {incident.name}")
    for runbook, table in TABLES.items()
    for reason, incidents in table.items()
    for incident in incidents
]


def headings(text: str) -> set[str]:
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize(("runbook", "branch"), BRANCHES)
def test_every_branch_has_an_incident_that_fires_it_and_one_that_must_not(
    runbook: str, branch: Branch
) -> None:
    fires = {incident.fires for incident in TABLES[runbook][branch.reason]}

    assert fires == {True, False}


@pytest.mark.parametrize(("runbook", "reason", "incident"), CASES)
def test_an_incident_fires_its_branch_and_its_twin_does_not(
    runbook: str, reason: Reason, incident: Incident
) -> None:
    found = diagnose(RUNBOOKS[runbook], incident.evidence)

    assert (isinstance(found, Diagnosed) and found.reason is reason) is incident.fires


@pytest.mark.parametrize(("runbook", "branch"), BRANCHES)
def test_every_branch_has_a_section_on_its_page(runbook: str, branch: Branch) -> None:
    assert anchor(branch.reason) in headings(page(runbook))


@pytest.mark.parametrize(("runbook", "branch"), BRANCHES)
def test_every_branch_says_what_it_means_and_what_it_needs(runbook: str, branch: Branch) -> None:
    assert branch.signals | branch.vitals
    assert branch.section
    assert branch.reason.sentence.endswith(".")


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_the_decision_table_on_the_page_is_generated(runbook: str) -> None:
    assert decision_table(RUNBOOKS[runbook]) in page(runbook)


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_a_page_is_in_the_order_of_someone_on_call(runbook: str) -> None:
    text = page(runbook)
    order = ["## Symptom", "## Evidence", "## Decision table", "## Steps", "## What it refuses to do"]

    places = [text.index(heading) for heading in [*order, "## How to undo by hand"]]

    assert places == sorted(places)


def words_of(source: Path) -> str:
    """Return a module's names and texts; docstrings, which cite sources, are left out."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in prose]
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return "\n".join(str(word) for word in (*texts, *names, *modules))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_runbook_names_an_engine(source: Path) -> None:
    known = [profile.name for profile in ENGINES] + ["sglang", "tensorrt", "tgi", "lmdeploy"]

    words = words_of(source)

    assert words
    assert not [name for name in known if name.lower() in words.lower()]
