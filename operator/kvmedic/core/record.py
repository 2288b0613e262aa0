"""What is written down about one resource: everything that its status holds.

The status is the only memory. `kvmedic.api` turns a `Record` into the wire form and back;
`kvmedic.record.store` writes it with the loaded resourceVersion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from kvmedic.core.aside import SetAside
from kvmedic.core.compressed import Answer
from kvmedic.core.engine import Knob
from kvmedic.core.fixing import TurnedOff
from kvmedic.core.footprint import Footprint
from kvmedic.core.hand_overs import HandOver
from kvmedic.core.loan import Borrowed
from kvmedic.core.moved import Traffic
from kvmedic.core.plan import Plan
from kvmedic.core.reasons import Reason
from kvmedic.core.recalled import Recalled
from kvmedic.core.run import Approved, Run
from kvmedic.core.scored import Scored
from kvmedic.core.severity import Urgency
from kvmedic.core.summary import Summary
from kvmedic.core.verdict import Verdict

HISTORY_LENGTH = 10
"""Closed runs that are kept; the cooldown and the day's budget are counted from them, so
`spec.limits.maxRunsPerDay` cannot be larger."""


class ConditionType(StrEnum):
    """The conditions of a resource, after the Kubernetes API conventions and kstatus."""

    READY = "Ready"
    """The spec is valid and the target was found; stays True during an incident."""
    METRICS_AVAILABLE = "MetricsAvailable"
    DIAGNOSED = "Diagnosed"
    """True: the reason names the branch. False: healthy. Unknown: why nothing can be said."""
    PROGRESSING = "Progressing"
    """True while a run is open; the reason is what it does."""
    REMEDIATED = "Remediated"
    """How the last run ended."""
    ACTION_REQUIRED = "ActionRequired"
    """True: what a person must do."""
    STALLED = "Stalled"
    """True: nothing goes on by itself (kstatus: failed)."""


class Truth(StrEnum):
    """A condition's status."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition."""

    type: ConditionType
    status: Truth
    reason: Reason
    message: str
    changed_at: datetime
    """When `status` last changed."""
    observed_generation: int


@dataclass(frozen=True, slots=True)
class LastGood:
    """A revision that proved healthy, recorded once per revision."""

    revision: str
    """Hash of the pod template."""
    flags: Mapping[str, str]
    """The engine's known knobs as given on its command line, by knob; nothing else of the list."""
    replicas: int
    blocks: int | None
    """Usable KV-cache blocks of a replica."""
    recorded_at: datetime
    traffic: Traffic | None = None
    """What clients sent then. None: written by a version that did not say."""


@dataclass(frozen=True, slots=True)
class ShownDiagnosis:
    """The diagnosis as people see it."""

    reason: Reason
    message: str
    runbook: str
    at: datetime
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """The plan as people see it while it is not being carried out."""

    digest: str
    reason: Reason
    message: str
    steps: tuple[str, ...]
    at: datetime
    """Since when it is shown."""
    exact: Plan | None = None
    """The plan itself, as an approval binds to it. None: written by a version that did not keep it."""

    @property
    def bound(self) -> Plan | None:
        """Return the plan itself; None where there is none, or it is not the one that the digest names."""
        return self.exact if self.exact is not None and self.exact.digest == self.digest else None


@dataclass(frozen=True, slots=True)
class TriedLever:
    """A lever that was turned on some evidence and did not help."""

    knob: Knob
    revision: str
    """Hash of the pod template without the change; another template is other evidence."""
    blocks: int | None
    verdict: Verdict
    at: datetime
    prompt_tokens: float | None = None
    """Mean prompt of the finished requests before the change. None: written by a version that did not say."""
    output_tokens: float | None = None
    """The same of outputs."""
    reason: Reason | None = None
    """What the change was for; it tells up from down. None: written by a version that did not say."""


@dataclass(frozen=True, slots=True)
class OutgrownShare:
    """A share of the devices' memory at which a replica ran out of it; it is never gone back to."""

    share: float
    """Ratio 0-1."""
    body: str
    """Hash of the pod template without command lines and variables: what decides how much memory there is."""
    at: datetime


@dataclass(frozen=True, slots=True)
class SizedCap:
    """The cap on running sequences that a run computed and kept last."""

    revision: str
    """Hash of the pod template with it; another template is another setting."""
    cap: str
    at: datetime
    is_corrected: bool = False
    """It is the second one in a row: what is left after it is not for a third."""

    def is_open_on(self, revision: str) -> bool:
        """Return whether the cap is in force on a revision and may be corrected."""
        return self.revision == revision and not self.is_corrected


@dataclass(frozen=True, slots=True)
class TriedReplacement:
    """A replica that was replaced on some evidence, which did not help."""

    pod: str
    revision: str
    """Hash of the pod template; another template is other evidence."""
    replicas: int
    """Of the fleet; another number is other evidence, as the same load falls on it otherwise."""
    verdict: Verdict
    at: datetime


@dataclass(frozen=True, slots=True)
class TriedRollback:
    """A revision that a fleet was taken back from, which did not help."""

    revision: str
    """Hash of its pod template; another template is other evidence."""
    toward: str
    """Hash of the pod template that the fleet was taken back to."""
    outcome: Reason
    at: datetime


@dataclass(frozen=True, slots=True)
class TriedBundle:
    """A method of compression that was turned off or on, which had to be taken back."""

    method: str
    revision: str
    """Hash of the pod template from before; another template is other evidence."""
    outcome: Reason
    at: datetime


@dataclass(frozen=True, slots=True)
class TriedScaling:
    """Replicas that were added on some evidence, which did not help."""

    before: int
    after: int
    revision: str
    """Hash of the pod template; another template is other evidence."""
    verdict: Verdict
    at: datetime


@dataclass(frozen=True, slots=True)
class ConfigCopy:
    """A copy of a ConfigMap that a run made, and that something may still refer to."""

    name: str
    template: str
    """Hash of the pod template that refers to it."""


@dataclass(frozen=True, slots=True)
class ClosedRun:
    """A run that ended."""

    id: str
    reason: Reason
    """The branch that was found."""
    outcome: Reason
    message: str
    steps: tuple[str, ...]
    started_at: datetime
    ended_at: datetime
    approval: Approved | None = None
    """The approval that it was opened on; None: the mode asked for none."""
    template: str = ""
    """Hash of the pod template from before it; empty: written by a version that did not say."""
    on_trial_pod: bool = False
    """It asked a pod of its own: nothing of the fleet was touched."""

    @property
    def costs_nothing(self) -> bool:
        """Return whether nothing need cool down after it, and no budget pays for it."""
        return self.on_trial_pod or self.outcome is Reason.TRIAL_ANSWERED


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that one resource's status holds."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    diagnosis: ShownDiagnosis | None = None
    plan: ShownPlan | None = None
    last_good: LastGood | None = None
    run: Run | None = None
    levers: tuple[TriedLever, ...] = ()
    replacements: tuple[TriedReplacement, ...] = ()
    rollbacks: tuple[TriedRollback, ...] = ()
    answers: tuple[Answer, ...] = ()
    """What trials showed, newest first."""
    bundles: tuple[TriedBundle, ...] = ()
    copies: tuple[ConfigCopy, ...] = ()
    outgrown: tuple[OutgrownShare, ...] = ()
    borrowed: tuple[Borrowed, ...] = ()
    """Flags that have a value for a while."""
    history: tuple[ClosedRun, ...] = field(default=())
    """Newest first, at most `HISTORY_LENGTH`."""
    scalings: tuple[TriedScaling, ...] = ()
    footprint: Footprint | None = None
    """Replicas that were added for a while; None while there are none."""
    urgency: Urgency | None = None
    """None: no trouble."""
    sized: SizedCap | None = None
    """None: no cap was kept."""
    aside: SetAside | None = None
    """The replica that was taken out of rotation because its node is ill; None: none was."""
    summary: Summary | None = None
    """Of the last run that touched anything."""
    scores: tuple[Scored, ...] = ()
    """What evaluations showed, newest first."""
    turned_off: TurnedOff | None = None
    """The method that was turned off because it saved nothing. None: none, or something took its place."""
    baseline: Recalled | None = None
    """The fleet before its KV cache was compressed. None: nobody asked history."""
    hand_overs: tuple[HandOver, ...] = ()
    """Between the runbooks, newest first, each once per evidence."""

    def condition(self, of: ConditionType) -> Condition | None:
        """Return the condition of a type, if it was ever written."""
        return next((c for c in self.conditions if c.type is of), None)
