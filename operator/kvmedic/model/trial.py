"""A test or an evaluation on a trial pod: how far it is, and what it came to.

The pod is a copy of the target's pod template that nobody leads requests to, with a change where one is to be
proved. The target is not touched. An evaluation is a Job from a suspended CronJob that the team owns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from kvmedic.model.compression import Keep


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
    """What of the model frees blocks without any method; empty: nothing that the engine reports."""


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
    """In which keys and values are stored; empty: neither its label nor its log shows it."""
    backends: tuple[str, ...] = ()
    """What computes attention, as its log names it; empty: it does not, or is not read."""
    block_tokens: int | None = None
    """Tokens of one block; None: not known."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A test that shows nothing, and why."""

    why: str


Shown: TypeAlias = Watched | Prompted | Begun
"""A test that came to its end."""
Progress: TypeAlias = Underway | Shown | Interrupted


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
    """In which it stores keys and values; empty where it does not report it."""
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
class EvaluationResult:
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


def find_result(
    scores: Sequence[EvaluationResult], configuration: str, evaluation: str, generation: int, now: datetime
) -> EvaluationResult | None:
    """Return the newest outcome of an evaluation of a configuration that counts; None where there is none."""
    found = [
        each
        for each in scores
        if (each.configuration, each.evaluation) == (configuration, evaluation)
        and (each.score is not None or (each.generation == generation and now - each.at < AGAIN))
    ]
    return max(found, key=lambda each: each.at, default=None)


def find_refused_result(
    scores: Sequence[EvaluationResult], configuration: str, generation: int, now: datetime
) -> EvaluationResult | None:
    """Return that an engine refuses a configuration, whatever evaluated it; None where that is not known."""
    found = [
        each
        for each in scores
        if each.refused
        and (each.configuration, each.generation) == (configuration, generation)
        and now - each.at < AGAIN
    ]
    return max(found, key=lambda each: each.at, default=None)
