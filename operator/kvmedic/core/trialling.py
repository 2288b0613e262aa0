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
    START = "Start"
    """What the engine says of itself when it starts: its blocks, their type, what computes attention."""


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
    window: str = ""
    """What of the model frees blocks without any method; empty: nothing that the engine tells of."""


@dataclass(frozen=True, slots=True)
class Prompted:
    """Prompts of rising length that were computed."""

    before: float
    """Device memory in use before the first, in bytes."""
    prompts: tuple[Prompt, ...]
    in_chunks: bool
    """The engine may have computed them in several steps."""
    backends: tuple[str, ...] = ()
    """What computes attention, as the engine's start-up log names it; empty: it does not, or is not read."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What an engine said of itself when it started."""

    blocks: int
    """Usable blocks of its pool."""
    cache_type: str
    """In which keys and values are stored; empty: neither its label nor its log tells."""
    backends: tuple[str, ...] = ()
    """What computes attention, as its log names it; empty: it does not, or is not read."""
    block_tokens: int | None = None
    """Tokens of one block; None: not known."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A test that tells nothing, and why."""

    why: str


Shown: TypeAlias = Watched | Prompted | Begun
"""A test that came to its end."""
Progress: TypeAlias = Underway | Shown | Interrupted


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
    """To be generated; of prompts: of the longest. Of a start 1, of no meaning."""
    keep: Keep
    """What the method keeps of a sequence; of meaning for a long generation alone."""
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
    without: bool = False
    """The method is off on the trial pod: what it shows is the other half of a comparison."""
    kind: Literal["TrialStep"] = "TrialStep"

    @property
    def place(self) -> str:
        """Return where the test is made, for a person."""
        return f"replica {self.replica}, drained for it," if self.replica else "a trial pod"

    @property
    def on_trial(self) -> str:
        """Return the hash of the pod template on the trial pod."""
        return self.tried or self.template

    @property
    def told_of(self) -> str:
        """Return the hash of the pod template that an answer is about.

        That a trial pod computes prompts whole is no part of the setting under test.
        """
        whole = self.question is Question.PROMPTS and not self.without
        return self.template if whole else self.on_trial

    def inverse(self) -> TrialStep:
        """Return the step itself: it leaves nothing behind."""
        return self

    def line(self) -> str:
        """Return the step as one line for a person."""
        does = {
            Question.RECLAMATION: f"generates {self.tokens} tokens",
            Question.PROMPTS: f"computes prompts of up to {self.tokens} tokens",
            Question.START: "starts",
        }[self.question]
        with_it = "without" if self.without else "with"
        return f"{self.target.kind}/{self.target.name}: {self.place} {does} {with_it} {self.method}"
