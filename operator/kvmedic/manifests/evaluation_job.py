"""An evaluation: the Job that a team's suspended CronJob describes, pointed at one trial pod."""

from __future__ import annotations

from dataclasses import dataclass

from kvmedic.manifests.trial_pod import Owner


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation."""

    name: str
    """Of the Job; the same for the same evaluation, so that a second creation finds the first."""
    namespace: str
    owner: Owner
    cron_job: str
    digest: str
    """Of the CronJob's Job template, as it was when the evaluation was planned."""
    deadline_seconds: int
    """After that the Job is ended, whatever became of everybody else."""
