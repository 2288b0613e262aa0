"""A diagnosis of compression says whose figures of before it rests on, or why there are none."""

from __future__ import annotations

from dataclasses import replace

from builders import NOW
from kvmedic.model.evidence import Inconclusive
from kvmedic.model.readings import Recalled
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Runbook
from kvmedic.model.trial import Reclaim
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import diagnose
from runbooks.compression_incidents import CALM_FLEET, EVICTS, SLOWER, TEMPLATE, against, answered, without_it

BRANCHES = RUNBOOKS[Runbook.COMPRESSION_WITHOUT_SAVINGS]
TOLD = Recalled("TriAttention", 7, TEMPLATE, 6, "default", NOW, without_it(CALM_FLEET), NOW, 3)
WHOSE = f"before is revision 6, 3 replicas, before {NOW:%Y-%m-%dT%H:%M:%SZ}"


def test_a_finding_says_whose_figures_of_before_they_are() -> None:
    found = diagnose(BRANCHES, against(CALM_FLEET, replace(EVICTS, recalled=TOLD)))

    assert found.reason is Reason.COMPRESSION_UNPROVEN
    assert found.line().endswith(WHOSE)


def test_what_is_missing_is_said_with_what_history_does_not_tell() -> None:
    why = "the source knows no replica of revision 6 then; or give spec.compression.baseline"
    method = replace(EVICTS, answer=answered(Reclaim.RECLAIMS), no_history=why)

    found = diagnose(BRANCHES, against(CALM_FLEET, method, tokens_per_second=SLOWER))

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.BASELINE_MISSING
    assert f"; {why}; whether attention fell back" in found.message
