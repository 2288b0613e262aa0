"""A test on a trial pod: how far it is, and what it came to.

The pod is a copy of the target's pod template that nobody leads requests to; the target is not touched. Where
no node takes one and the spec allows it, a replica that is drained for it serves in its place.

An evaluation of a trial pod by the team's own Job: what is asked, and how it stands.

The pod is a copy of the target's pod template, with a change where one is to be proved; the target is not
touched. The Job comes from a suspended CronJob that the team owns.

What steps have in common that leave the pod template as it is.

What evaluations showed of configurations; each score stands beside the one that produced it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, TypeAlias

from kvmedic.model.compression import Keep
from kvmedic.model.edits import BundleEdit
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.reasons import Reason


class JobEnd(StrEnum):
    """What became of the evaluation's Job."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LATE = "Late"
    """Its time was over."""


@dataclass(frozen=True, slots=True)
class Score:
    """Result of an evaluation."""

    accuracy: float
    """Share of samples answered correctly, 0 to 1."""
    samples: int
    right: str = ""
    """One digit per sample, always in the same order: 1 answered correctly, 0 not. Empty if the evaluation
    does not report it; scores can then not be paired."""

    @property
    def variance(self) -> float:
        """Return the variance of the share, that of so many right-or-wrong answers.

        Counted with one right and one wrong answer more (Laplace): a few answers that are all right are no
        proof that all are.
        """
        shrunk = (self.accuracy * self.samples + 1) / (self.samples + 2)
        return shrunk * (1 - shrunk) / (self.samples + 2)


class Growth(StrEnum):
    """How device memory follows the length of the longest prompt."""

    NONE = "None"
    LINEAR = "Linear"
    SQUARE = "Square"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, computed in a single step."""

    tokens: int
    used: float
    """Device memory in use afterwards, in bytes."""


class Reclaim(StrEnum):
    """What becomes of the blocks of evicted tokens."""

    RECLAIMS = "Reclaims"
    """As much comes back as with compaction, or nearly."""
    IN_PART = "InPart"
    """Blocks come back, and clearly more stay in use than compaction would need."""
    SCATTERED = "Scattered"
    """Few blocks come back: survivors stand in nearly all of them."""
    PER_HEAD = "PerHead"
    """Each head keeps tokens of its own, so few that some blocks come back."""
    NONE = "None"
    """No block comes back: each head keeps tokens of its own, or nothing is evicted at all."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading."""

    tokens: int
    """Tokens of the request so far: its prompt and its streamed output."""
    used: float
    """Blocks that are not free."""


class SameTemplate:
    """A step that begins and ends with one pod template, whose hash it has as a field."""

    __slots__ = ()
    template: str

    @property
    def before_template(self) -> str:
        """Return the hash of the pod template that the step begins with."""
        return self.template

    @property
    def after_template(self) -> str:
        """Return the hash of the pod template that the step ends with: the same."""
        return self.template


class Question(StrEnum):
    """The question that the trial pod answers."""

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
    without: bool = False
    """The method is off on the trial pod: what it shows is the other half of a comparison."""
    kind: Literal["TrialStep"] = "TrialStep"

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
        return f"{self.target.kind}/{self.target.name}: a trial pod {does} {with_it} {self.method}"


AGAIN = timedelta(days=1)
"""How long a trial that showed nothing is not repeated: it takes a device, and most reasons do not pass."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a trial of the fleet's present setting, or that there was none."""

    question: Question
    template: str
    """Hash of the pod template; the result says nothing about another template."""
    message: str
    """With the numbers."""
    at: datetime
    generation: int
    """Generation of the spec. A trial without a result is repeated under another one."""
    reclaim: Reclaim | None = None
    """Whether blocks came back. Absent if the trial did not show it."""
    seen: tuple[Sample, ...] = ()
    """Some of the readings, over the whole trial."""
    block_tokens: int | None = None
    keep: Keep | None = None
    """How many tokens the method was assumed to keep; each class predicts the readings from it."""
    growth: Growth | None = None
    """How device memory grows with the prompt. Absent if the trial did not show it."""
    prompts: tuple[Prompt, ...] = ()
    """Prompts of rising length, with the device memory in use after each."""
    memory_before: float | None = None
    """Device memory in use before the first of them, in bytes."""
    refused: bool = False
    """The engine said at start-up that the setting is not supported where it ran."""
    beside: str = ""
    """Hash of the target's pod template, where the method was off on the trial pod. Empty: it was not."""
    blocks: int | None = None
    """Usable blocks of the engine's pool. Absent if the engine was not asked or did not report it."""
    cache_type: str = ""
    """Data type of the stored keys and values. Empty if unknown."""
    backends: tuple[str, ...] = ()
    """Attention backends, as the start-up log names them. Empty if unknown."""

    @property
    def is_conclusive(self) -> bool:
        """Return whether it showed what was asked."""
        return self.reclaim is not None or self.growth is not None or self.blocks is not None


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


@dataclass(frozen=True, slots=True)
class Scored:
    """The outcome of one evaluation."""

    configuration: str
    """Hash of the pod template that was evaluated."""
    evaluation: str
    """Digest of the CronJob's Job template. Scores of different evaluations cannot be compared."""
    message: str
    """With the numbers."""
    at: datetime
    generation: int
    """Generation of the spec. A trial without a result is repeated under another one."""
    score: Score | None = None
    """The score. Absent if the evaluation showed nothing."""
    refused: bool = False
    """The engine said at start-up that the configuration is not supported where it ran."""

    @property
    def is_conclusive(self) -> bool:
        """Return whether it showed what was asked, or that the configuration is none."""
        return self.score is not None or self.refused


def scored_of(
    scores: Sequence[Scored], configuration: str, evaluation: str, generation: int, now: datetime
) -> Scored | None:
    """Return the newest outcome of an evaluation of a configuration that counts; None where there is none.

    Args:
        scores: on record.
        configuration: hash of the pod template.
        evaluation: digest of the Job template.
        generation: of the spec as it is now.
        now: the time.
    """
    found = [
        each
        for each in scores
        if (each.configuration, each.evaluation) == (configuration, evaluation)
        and (each.score is not None or (each.generation == generation and now - each.at < AGAIN))
    ]
    return max(found, key=lambda each: each.at, default=None)


def refusal_of(scores: Sequence[Scored], configuration: str, generation: int, now: datetime) -> Scored | None:
    """Return that an engine refuses a configuration, whatever evaluated it; None where that is not known.

    Args:
        scores: on record.
        configuration: hash of the pod template.
        generation: of the spec as it is now.
        now: the time.
    """
    found = [
        each
        for each in scores
        if each.refused
        and (each.configuration, each.generation) == (configuration, generation)
        and now - each.at < AGAIN
    ]
    return max(found, key=lambda each: each.at, default=None)
