"""A test on a trial pod: how far it is, and what it came to.

The pod is a copy of the target's pod template that nobody leads requests to; the target is not touched. Where
no node takes one and the spec allows it, a replica that is drained for it serves in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from kvmedic.core.blocks import Keep
from kvmedic.core.bundle import BundleEdit
from kvmedic.core.object_ref import ObjectRef
from kvmedic.core.prompt_probe import Prompt
from kvmedic.core.reasons import Reason
from kvmedic.core.reclamation_probe import Sample
from kvmedic.core.same_template import SameTemplate


class Question(StrEnum):
    """What a trial pod is to show."""

    RECLAMATION = "Reclamation"
    """Whether blocks come back in the course of one long generation."""
    PROMPTS = "Prompts"
    """Whether device memory grows with the square of the prompt, as where attention is not fused."""


@dataclass(frozen=True, slots=True)
class Underway:
    """A test that goes on."""

    tokens: int
    """Generated so far, or of the prompts that were computed."""
    of: int


@dataclass(frozen=True, slots=True)
class Watched:
    """A generation that came to its end."""

    samples: tuple[Sample, ...]
    generated: int
    """Tokens that came."""
    block_tokens: int
    """Tokens of one block."""
    blocks: int
    """Usable blocks of the engine's pool."""


@dataclass(frozen=True, slots=True)
class Prompted:
    """Prompts of rising length that were computed."""

    before: float
    """Device memory in use before the first, in bytes."""
    prompts: tuple[Prompt, ...]
    in_chunks: bool
    """The engine may have computed them in several steps."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A test that tells nothing, and why."""

    why: str


Progress: TypeAlias = Underway | Watched | Prompted | Interrupted


@dataclass(frozen=True, slots=True)
class TrialStep(SameTemplate):
    """A trial pod answers a question about a setting. The target is not touched.

    The pod is a copy of the pod template, which nobody leads requests to. It goes when the run ends. Where a
    replica is named it serves in place of one: it is out of rotation until the run ends.
    """

    target: ObjectRef
    container: str
    """The engine's container."""
    question: Question
    method: str
    """What compresses the KV cache."""
    tokens: int
    """To be generated; of prompts: of the longest."""
    keep: Keep
    """What the method keeps of a sequence; of no meaning for prompts."""
    limit_seconds: int
    """After that the pod ends, whatever became of everybody else."""
    template: str
    """Hash of the target's pod template, before and after."""
    reason: Reason
    change: BundleEdit | None = None
    """What differs on the trial pod; None: the target's present setting is tried."""
    tried: str = ""
    """Hash of the pod template on the trial pod, where it differs; empty: that of the target."""
    source: str = ""
    """The metrics source that tells of the trial pod's devices; empty: none is asked."""
    replica: str = ""
    """The replica that is drained and serves as the trial pod; empty: a pod of its own is made."""
    replica_uid: str = ""
    kind: Literal["TrialStep"] = "TrialStep"

    @property
    def place(self) -> str:
        """Return where the test is made, for a person."""
        return f"replica {self.replica}, drained for it," if self.replica else "a trial pod"

    @property
    def on_trial(self) -> str:
        """Return the hash of the pod template on the trial pod."""
        return self.tried or self.template

    def inverse(self) -> TrialStep:
        """Return the step itself: it leaves nothing behind."""
        return self

    def line(self) -> str:
        """Return the step as one line for a person."""
        name = f"{self.target.kind}/{self.target.name}"
        if self.question is Question.PROMPTS:
            return f"{name}: {self.place} computes prompts of up to {self.tokens} tokens with {self.method}"
        return f"{name}: {self.place} generates {self.tokens} tokens with {self.method}"
