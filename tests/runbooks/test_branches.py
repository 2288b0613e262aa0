"""What holds for every table of branches: first match wins, complete, documented, no engine named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from builders import THRASHING, an_evidence
from documentation.generated import anchor, decision_table
from kvmedic.engines import ENGINES
from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.reasons import Reason
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Branch, Diagnosed, Evidence, Finding, diagnose
from runbooks.incident import Incident
from runbooks.incidents import INCIDENTS
from runbooks.pages import ROOT, page
from worlds.compression_incidents import COMPRESSION_INCIDENTS

EVIDENCE = an_evidence(THRASHING)
FACT = Finding("llm-0", Signal.PREEMPTIONS, 2.0, 0.5, "2.00 preemptions per request, limit 0.5")
UNKNOWN = Inconclusive(Reason.METRICS_STALE, "llm-0: the newest sample is 300 s old")


def never(_: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    return None


def always(_: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    return (FACT,)


def without_findings(_: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    return ()


def unknown(_: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    return UNKNOWN


def branch(reason: Reason, when: object) -> Branch:
    return Branch(reason, when, None, "test")  # type: ignore[arg-type]


def test_the_first_branch_that_applies_is_the_diagnosis() -> None:
    table = (
        branch(Reason.HEALTHY, never),
        branch(Reason.FLEET_WIDE_DEMAND, always),
        branch(Reason.HEALTHY, always),
    )

    found = diagnose(table, EVIDENCE)

    assert found == Diagnosed(table[1], (FACT,))
    assert isinstance(found, Diagnosed)
    assert found.reason is Reason.FLEET_WIDE_DEMAND


def test_a_branch_without_findings_applies_all_the_same() -> None:
    table = (branch(Reason.HEALTHY, without_findings), branch(Reason.FLEET_WIDE_DEMAND, always))

    assert diagnose(table, EVIDENCE) == Diagnosed(table[0], ())


def test_missing_evidence_stops_the_table_before_a_later_branch_can_act() -> None:
    table = (branch(Reason.HEALTHY, unknown), branch(Reason.FLEET_WIDE_DEMAND, always))

    assert diagnose(table, EVIDENCE) == UNKNOWN


def test_a_table_without_a_closing_branch_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="always applies"):
        diagnose((branch(Reason.HEALTHY, never),), EVIDENCE)


def test_a_diagnosis_prints_itself_in_one_line() -> None:
    healthy = Diagnosed(branch(Reason.HEALTHY, never), ())
    pressured = Diagnosed(branch(Reason.FLEET_WIDE_DEMAND, never), (FACT, FACT))

    assert healthy.line() == f"Healthy: {Reason.HEALTHY.sentence}"
    assert pressured.line().endswith(f"llm-0: {FACT.text}; llm-0: {FACT.text}")
    assert UNKNOWN.line() == "inconclusive: MetricsStale: llm-0: the newest sample is 300 s old"
    assert not any("\n" in line for line in (healthy.line(), pressured.line(), UNKNOWN.line()))


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
def test_the_section_of_a_branch_opens_with_what_one_sees_what_it_does_and_what_one_does(
    runbook: str, branch: Branch
) -> None:
    section = re.split(rf"^### {branch.reason}$", page(runbook), flags=re.MULTILINE)[1].partition("\n##")[0]

    assert re.findall(r"^\*\*(.+?):\*\* \S", section, re.MULTILINE)[:3] == ["You see", "It does", "You do"]


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
