"""Which branch of a runbook applies, and why: a pure ordered table, first match wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kvmedic.core.engine import Knob
from kvmedic.core.evidence import Observation, Signal
from kvmedic.core.reasons import SENTENCES, Reason


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a replica counts as pressured (spec.trigger)."""

    preemptions_per_request: float
    kv_cache_usage_ratio: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a diagnosis rests on.

    Both looks cover the same replicas: every pod of the target that should serve.
    """

    burn: Observation
    """Over `spec.trigger.window`, held for `spec.trigger.for`."""
    sizing: Observation
    """Over `spec.sizing.window`."""
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact that supports a branch: what was observed, against which limit."""

    subject: str
    """A pod's name, or "fleet"."""
    signal: Signal
    observed: float
    limit: float | None
    text: str
    """The fact in one clause, with its numbers."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A knob should take an absolute value."""

    knob: Knob
    value: int | float
    reason: Reason
    message: str
    """One sentence with the numbers behind the value."""


@dataclass(frozen=True, slots=True)
class NoChange:
    """The branch applies and the best move is none; the reason says why."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Relief:
    """One replica should make room for a new one with the same setting."""

    pod: str
    reason: Reason
    message: str
    """One sentence with the numbers behind it."""


Advice: TypeAlias = Assignment | Relief | NoChange


@dataclass(frozen=True, slots=True)
class LeverBound:
    """One entry of spec.levers: the knob may be turned, within these bounds (None: unbounded)."""

    knob: Knob
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of the engine's present setting when advice is sought."""

    max_num_seqs: int | None
    """The cap as given on the command line; None when the engine's default applies."""
    levers: tuple[LeverBound, ...]
    """Allowed levers in the order of trying."""
    exhausted: frozenset[Knob] = frozenset()
    """Levers that were tried on this evidence and did not help."""
    replacing_failed: bool = False
    """A replica was replaced on this evidence, and it did not help."""


Judge: TypeAlias = Callable[[Evidence], "tuple[Finding, ...] | Inconclusive | None"]
Adviser: TypeAlias = Callable[[Evidence, Setting], Advice]


@dataclass(frozen=True, slots=True)
class Branch:
    """One row of a runbook's decision table.

    `when` returns the findings that fire the branch, None when it does not apply, or
    `Inconclusive` when its evidence is missing; the table stops at the first that is not None.
    """

    reason: Reason
    section: str
    """Where in the runbook this branch comes from."""
    signals: frozenset[Signal]
    when: Judge
    then: Adviser | None
    """None: nothing is to be changed."""


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """No branch can be named: what is missing, and what would provide it."""

    reason: Reason
    message: str

    def line(self) -> str:
        """Return the diagnosis as one line for a person."""
        return f"inconclusive: {self.reason}: {self.message}"


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """One branch applies."""

    branch: Branch
    findings: tuple[Finding, ...]

    @property
    def reason(self) -> Reason:
        """Return the branch's reason."""
        return self.branch.reason

    def line(self) -> str:
        """Return the diagnosis as one line for a person."""
        facts = "; ".join(f"{f.subject}: {f.text}" for f in self.findings)
        return f"{self.reason}: {SENTENCES[self.reason]} {facts}".rstrip()


Diagnosis: TypeAlias = Diagnosed | Inconclusive


def diagnose(branches: tuple[Branch, ...], evidence: Evidence) -> Diagnosis:
    """Return the first branch that applies, or why none can be named.

    Raises:
        ValueError: the table has no closing branch that always applies.
    """
    for branch in branches:
        match branch.when(evidence):
            case None:
                continue
            case Inconclusive() as unknown:
                return unknown
            case findings:
                return Diagnosed(branch, findings)
    raise ValueError("a runbook's table ends with a branch that always applies")
