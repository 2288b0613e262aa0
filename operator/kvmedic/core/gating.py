"""An evaluation of a trial pod by the team's own Job: what is asked, and how it stands.

The pod is a copy of the target's pod template, with a change where one is to be proved; the target is not
touched. The Job comes from a suspended CronJob that the team owns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvmedic.core.accuracy import JobEnd
from kvmedic.core.bundle import BundleEdit
from kvmedic.core.object_ref import ObjectRef
from kvmedic.core.reasons import Reason
from kvmedic.core.same_template import SameTemplate


@dataclass(frozen=True, slots=True)
class Counted:
    """What an engine says that it has done since it started."""

    requests: int
    """Finished, aborted ones left out."""
    tokens: float
    """Prompts and outputs of those requests together."""


@dataclass(frozen=True, slots=True)
class Served:
    """An engine as an evaluation finds it."""

    url: str
    """Of its API, without `/v1`; it never holds a key."""
    model: str
    """Name under which it serves."""
    cache_type: str
    """In which it stores keys and values; empty where it does not tell."""
    counted: Counted


@dataclass(frozen=True, slots=True)
class JobSight:
    """An evaluation's Job as it is seen."""

    end: JobEnd | None
    """None: it goes on."""
    message: str
    """Its container's termination message; empty where there is none yet."""
    before: Counted
    """What the trial pod had done when the Job was made."""


@dataclass(frozen=True, slots=True)
class NoEvaluation:
    """A CronJob of which no evaluation can be made, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class GateStep(SameTemplate):
    """A Job evaluates a trial pod. The target is not touched.

    The pod is a copy of the pod template, which nobody else leads requests to. Both go when the run ends.
    """

    target: ObjectRef
    container: str
    """The engine's container."""
    subject: str
    """What is evaluated, for a person."""
    change: BundleEdit | None
    """What differs on the trial pod; None: the target's present setting is evaluated."""
    tried: str
    """Hash of the pod template on the trial pod."""
    cron_job: str
    """Name of the CronJob, in the target's namespace."""
    evaluation: str
    """Digest of its Job template: another one would be another evaluation."""
    budget: int | None
    """Tokens of a request beyond which the setting makes a difference; None: with the first."""
    cache_types: tuple[str, ...]
    """Beginnings of the types of which the trial pod's cache must have one; empty: any."""
    limit_seconds: int
    """After that Job and pod end, whatever became of everybody else."""
    template: str
    """Hash of the target's pod template, before and after."""
    reason: Reason
    kind: Literal["GateStep"] = "GateStep"

    def inverse(self) -> GateStep:
        """Return the step itself: it leaves nothing behind."""
        return self

    def line(self) -> str:
        """Return the step as one line for a person."""
        name = f"{self.target.kind}/{self.target.name}"
        return f"{name}: CronJob/{self.cron_job} evaluates a trial pod with {self.subject}"
