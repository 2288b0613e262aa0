"""What tests on trial pods need from the world. Adapters fit these shapes; they do not inherit them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvmedic.core.fleet import Pod
from kvmedic.core.gating import JobSight, NoEvaluation, Served
from kvmedic.core.last_words import LastWords
from kvmedic.core.trialling import Interrupted, Progress, TrialStep
from kvmedic.manifests.evaluation_job import Evaluation
from kvmedic.manifests.trial_pod import Trial


class Probes(Protocol):
    """Tests on trial pods. They go on beside the ticks and end with the process, which loses only time:
    whoever comes next begins them anew."""

    def progress(self, pod: Pod) -> Progress | None:
        """Return how far the test on a pod is; None: this process began none."""

    def begin(self, namespace: str, pod: Pod, template: Mapping[str, object], step: TrialStep) -> None:
        """Begin what a step asks of a pod, whose template this is; nothing where that was begun."""

    def forget(self, pod: Pod) -> None:
        """End the test on a pod and forget what it came to."""

    def forget_all(self) -> None:
        """End every test and forget it: another process may lead, and begins them anew."""

    async def served(self, namespace: str, pod: Pod) -> Served | str:
        """Return what a pod's engine says of itself and of its work so far, or why it cannot be read."""


@dataclass(frozen=True, slots=True)
class NoProbes:
    """No test is made: nobody here can."""

    def progress(self, pod: Pod) -> Progress | None:
        """Return that the test tells nothing."""
        del pod
        return Interrupted("no tests are made here")

    def begin(self, namespace: str, pod: Pod, template: Mapping[str, object], step: TrialStep) -> None:
        """Begin nothing."""

    def forget(self, pod: Pod) -> None:
        """Forget nothing."""

    def forget_all(self) -> None:
        """Forget nothing."""

    async def served(self, namespace: str, pod: Pod) -> Served | str:
        """Return that nothing is read here."""
        del namespace, pod
        return "no tests are made here"


class Trials(Protocol):
    """Trial pods: made, looked at, and removed for the one resource that owns them."""

    def forbidden(self) -> str:
        """Return why no trial pods are made at all; nothing where they are."""

    async def look(self, trial: Trial, container: str) -> Pod | None:
        """Return the pod of a trial, None where there is none; `container` is the engine's.

        Raises Conflict where a pod of that name is somebody else's.
        """

    async def last_words(self, namespace: str, pod: Pod, refusals: Sequence[re.Pattern[str]]) -> LastWords:
        """Return what the log of a trial pod that ended says of it.

        Nothing of the log is kept but a phrase of `refusals`; that it cannot be read is a value.
        """

    async def make(self, trial: Trial, manifest: dict[str, Any]) -> str:
        """Make a trial's pod, unless it is there; return why it cannot be made, or nothing.

        Raises Conflict where a pod of that name is somebody else's.
        """

    async def sweep(self, namespace: str, owner_uid: str, but: str = "") -> tuple[str, ...]:
        """Remove all trial pods of a resource but one; return the names of those that were there."""

    async def held_claims(self, namespace: str, template: Mapping[str, object]) -> frozenset[str]:
        """Return those PersistentVolumeClaims of a template that a second pod may not get."""


@dataclass(frozen=True, slots=True)
class NoTrials:
    """No trial pod is made: the administrator did not allow it."""

    def forbidden(self) -> str:
        """Return what the administrator would set."""
        return "trial pods are not allowed here: set probe.trialPods in the operator's configuration"

    async def look(self, trial: Trial, container: str) -> Pod | None:
        """Return that there is none."""
        del trial, container
        return None

    async def last_words(self, namespace: str, pod: Pod, refusals: Sequence[re.Pattern[str]]) -> LastWords:
        """Return that nothing is read here."""
        del namespace, pod, refusals
        return LastWords()

    async def make(self, trial: Trial, manifest: dict[str, Any]) -> str:
        """Return why there is none."""
        del trial, manifest
        return self.forbidden()

    async def sweep(self, namespace: str, owner_uid: str, but: str = "") -> tuple[str, ...]:
        """Remove nothing: those of a time when they were allowed end by their deadline."""
        del namespace, owner_uid, but
        return ()

    async def held_claims(self, namespace: str, template: Mapping[str, object]) -> frozenset[str]:
        """Return none: nobody may look."""
        del namespace, template
        return frozenset()


class Evaluations(Protocol):
    """Jobs that evaluate trial pods: made of a team's own CronJobs, looked at, and removed."""

    def forbidden(self) -> str:
        """Return why no evaluations are made at all; nothing where they are."""

    async def digest(self, namespace: str, cron_job: str) -> str | NoEvaluation:
        """Return the digest of a CronJob's Job template, or why no evaluation can be made of it."""

    async def look(self, evaluation: Evaluation) -> JobSight | None:
        """Return how an evaluation's Job stands, None where there is none.

        Raises Conflict where a Job of that name is somebody else's.
        """

    async def make(self, evaluation: Evaluation, subject: Served) -> str:
        """Make an evaluation's Job, unless it is there; return why it cannot be made, or nothing.

        It is told where the subject serves, and keeps what that had done before. Raises Conflict where a Job
        of that name is somebody else's.
        """

    async def sweep(self, namespace: str, owner_uid: str) -> tuple[str, ...]:
        """Remove all evaluations of a resource with their pods; return the names of those that were there."""


@dataclass(frozen=True, slots=True)
class NoEvaluations:
    """No evaluation is made: the administrator did not allow it."""

    def forbidden(self) -> str:
        """Return what the administrator would set."""
        return "evaluations are not allowed here: set probe.evaluations in the operator's configuration"

    async def digest(self, namespace: str, cron_job: str) -> str | NoEvaluation:
        """Return why there is none."""
        del namespace, cron_job
        return NoEvaluation(self.forbidden())

    async def look(self, evaluation: Evaluation) -> JobSight | None:
        """Return that there is none."""
        del evaluation
        return None

    async def make(self, evaluation: Evaluation, subject: Served) -> str:
        """Return why there is none."""
        del evaluation, subject
        return self.forbidden()

    async def sweep(self, namespace: str, owner_uid: str) -> tuple[str, ...]:
        """Remove nothing: those of a time when they were allowed end by their deadline."""
        del namespace, owner_uid
        return ()
