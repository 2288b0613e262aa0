import pytest

from builders import THRASHING, an_evidence
from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import Branch, Diagnosed, Evidence, Finding, diagnose

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
