"""Builders of revisions that came of late, for tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from builders import CALM, NOW, Replica, an_observation
from kvmedic.model.config_edits import Deploy, Difference, LatestDeploy, Revision
from kvmedic.model.evidence import Measured, Observation, PodReadings, Reading
from kvmedic.runbooks.branches import Evidence

PREVIOUS = Revision(6, "llm-6f", "aaaaaaaaaaaaaaaa")
LATEST = Revision(7, "llm-7c", "bbbbbbbbbbbbbbbb")
CAP_RAISED = Difference("maxNumSeqs", "16", "256")
LENGTH_RAISED = Difference("maxModelLen", "4096", "32768")


def a_past(*replicas: Replica | PodReadings) -> Reading[Observation]:
    """Return what is known of the replicas that ran before."""
    return Measured(an_observation(*(replicas or [CALM] * 3)), NOW)


def a_deploy(
    *differences: Difference,
    before: Reading[Observation] | None = None,
    start_seconds: float | None = 120,
    pods: frozenset[str] = frozenset(),
) -> Deploy:
    """Return a revision that came a quarter of an hour ago; before it all was calm by default."""
    return Deploy(
        now=LATEST,
        previous=PREVIOUS,
        came_at=NOW - timedelta(minutes=15),
        differences=differences or (CAP_RAISED,),
        before=a_past() if before is None else before,
        to_start=3,
        pods=pods,
        start_seconds=start_seconds,
    )


def deployed(evidence: Evidence, deploy: LatestDeploy | None = None) -> Evidence:
    """Return the evidence of a fleet that got a new revision."""
    return replace(evidence, deploy=a_deploy() if deploy is None else deploy)
