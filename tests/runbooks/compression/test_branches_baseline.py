"""A diagnosis of compression says whose figures of before it rests on, or why there are none."""

from __future__ import annotations

from dataclasses import replace

from builders import NOW
from kvmedic.model.evidence import Inconclusive
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Runbook
from kvmedic.model.status import MethodBaseline
from kvmedic.model.trial import Reclaim
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import diagnose
from worlds.compression_incidents import CALM_FLEET, EVICTS, SLOWER, TEMPLATE, against, answered, without_it

BRANCHES = RUNBOOKS[Runbook.COMPRESSION_WITHOUT_SAVINGS]
BEFORE = MethodBaseline("TriAttention", TEMPLATE, without_it(CALM_FLEET), NOW)
WHOSE = f"before is {BEFORE.line()}"


def test_a_finding_says_whose_figures_of_before_they_are() -> None:
    found = diagnose(BRANCHES, against(CALM_FLEET, replace(EVICTS, baseline=BEFORE)))

    assert found.reason is Reason.COMPRESSION_UNPROVEN
    assert found.line().endswith(WHOSE)


def test_what_is_missing_is_said_with_why_it_is_not_on_record() -> None:
    why = "no healthy look at the fleet without TriAttention is on record; or give spec.compression.baseline"
    method = replace(EVICTS, answer=answered(Reclaim.RECLAIMS), no_baseline=why)

    found = diagnose(BRANCHES, against(CALM_FLEET, method, tokens_per_second=SLOWER))

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.BASELINE_MISSING
    assert f"; {why}; whether attention fell back" in found.message
