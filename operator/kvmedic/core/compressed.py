"""What is known of the compression of one fleet's KV cache: method, fleet without it, answer of a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta

from kvmedic.core.blocks import Keep
from kvmedic.core.compression import MethodClass, Setting
from kvmedic.core.compression_policy import NOT_DECLARED, CompressionPolicy, Fix
from kvmedic.core.figures import Figures
from kvmedic.core.prompt_probe import Growth, Prompt
from kvmedic.core.recalled import Recalled
from kvmedic.core.reclamation_probe import Reclaim, Sample
from kvmedic.core.trialling import Question

GIVEN = "spec.compression.baseline"
"""Where a user gives the fleet without the method."""


AGAIN = timedelta(days=1)
"""How long a trial that showed nothing is not repeated: it takes a device, and most reasons do not pass."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a trial showed of a fleet's present setting, or that it showed nothing."""

    question: Question
    template: str
    """Hash of the pod template; of another template it says nothing."""
    message: str
    """With the numbers."""
    at: datetime
    generation: int
    """Of the spec; where nothing was shown, another spec is tried anew."""
    reclaim: Reclaim | None = None
    """None: it showed nothing of blocks."""
    seen: tuple[Sample, ...] = ()
    """Some of the readings, over the whole course."""
    block_tokens: int | None = None
    keep: Keep | None = None
    """What the method was taken to keep: with it each class predicts the readings."""
    growth: Growth | None = None
    """None: it showed nothing of attention."""
    prompts: tuple[Prompt, ...] = ()
    """Prompts of rising length, with the device memory in use after each."""
    memory_before: float | None = None
    """Device memory in use before the first of them, in bytes."""
    refused: bool = False
    """The engine said at start-up that the setting is not supported where it ran."""
    beside: str = ""
    """Hash of the target's pod template, where the method was off on the trial pod. Empty: it was not."""
    blocks: int | None = None
    """Usable blocks of the engine's pool. None: it was not asked, or did not tell."""
    cache_type: str = ""
    """In which its keys and values are stored; empty: not known."""
    backends: tuple[str, ...] = ()
    """What computes attention, as its start-up log names it; empty: not known."""

    @property
    def is_conclusive(self) -> bool:
        """Return whether it showed what was asked."""
        return self.reclaim is not None or self.growth is not None or self.blocks is not None


@dataclass(frozen=True, slots=True)
class Compressed:
    """A method that compresses the fleet's KV cache, as far as anything tells of it."""

    name: str
    method_class: MethodClass | None
    """None: what it does to blocks is not known."""
    told_by: str
    """What says that it is on: the spec, a variable, a flag."""
    is_confirmed: bool = False
    """The engine itself says that it is on; a setting says only what somebody wants."""
    denied: str = ""
    """The phrase of its log by which the engine says that it does not run, though settings ask for it."""
    keep: Keep | None = None
    """What it keeps of a sequence; None: not known, or it keeps all."""
    keep_is_read: bool = True
    """The engine's settings, or the method itself, say what it keeps; not the spec alone."""
    cache_types: tuple[str, ...] = ()
    """Beginnings of the types in which it stores keys and values; empty: it does not change them."""
    asks_for_type: str = ""
    """The type that the pod template asks for; empty: none of those."""
    type_is_in_file: bool = False
    """It does so in a file, which may be another one than the engines read when they started."""
    without: Figures = field(default_factory=Figures)
    """The fleet without the method."""
    blocks_without: int | None = None
    """Usable blocks of a replica without it."""
    block_tokens_without: int | None = None
    """Tokens of one of these; None: as many as now."""
    pool_is_fixed: bool = False
    """The command line sizes the pool, whatever memory there is: a method makes it no larger."""
    settings: tuple[Setting, ...] = ()
    """The bundle that turns it on; empty: not known."""
    fix: Fix | None = None
    """As which fix it was turned on; None: it was there before."""
    policy: CompressionPolicy = NOT_DECLARED
    answer: Answer | None = None
    """Of the newest trial of blocks on this very template; None: there was none."""
    grown: Answer | None = None
    """Of the newest trial of prompts on this very template; None: there was none."""
    grown_without: Answer | None = None
    """Of the newest one on this very template with the method off; None: there was none."""
    start_without: Answer | None = None
    """Of the newest start with the method off; None: there was none."""
    longest_request: int | None = None
    """Tokens of a request, at most, as the command line gives it; None: it does not."""
    recalled: Recalled | None = None
    """What history told of the fleet without the method; None: nobody asked."""
    no_history: str = ""
    """Why history does not tell of it; empty where it does, or nobody asked."""

    @property
    def shown(self) -> Reclaim | None:
        """Return what a trial showed of its blocks; None: nothing that counts.

        `InPart` is a ratio to what the method keeps: where the spec alone says that, a number that is too
        small would have a method turned off that works.
        """
        found = self.answer.reclaim if self.answer else None
        return None if found is Reclaim.IN_PART and not self.keep_is_read else found

    @property
    def is_unfused(self) -> bool:
        """Return whether device memory grows with the square of the prompt, and no trial denied that it is
        by the method.
        """
        return _is_square(self.grown) and not _is_square(self.grown_without)

    @property
    def without_from(self) -> str:
        """Return where `without` is from, for a person; empty: nothing is known of it."""
        given = GIVEN if self.policy.baseline != Figures() else ""
        recalled = self.recalled.line() if self.recalled and not self.recalled.trouble else ""
        return f"{given}, the rest of {recalled}" if given and recalled else given or recalled


def standing_answers(answers: Sequence[Answer], generation: int, now: datetime) -> tuple[Answer, ...]:
    """Return the answers that count under a spec of some generation: what showed nothing only for a time."""
    return tuple(
        each
        for each in answers
        if each.is_conclusive or (each.generation == generation and now - each.at < AGAIN)
    )


def answer_for(answers: Sequence[Answer], template: str, question: Question | None = None) -> Answer | None:
    """Return what the newest trial of a question on a pod template showed; None where there was none.

    Without a question the newest of all counts.
    """
    found = [each for each in answers if each.template == template and question in (None, each.question)]
    return max(found, key=lambda each: each.at, default=None)


def answer_beside(answers: Sequence[Answer], template: str, question: Question) -> Answer | None:
    """Return what the newest trial of a question on a pod template showed with the method off."""
    return answer_for([replace(each, template=each.beside) for each in answers], template, question)


def _is_square(answer: Answer | None) -> bool:
    return answer is not None and answer.growth is Growth.SQUARE


def with_recalled(method: Compressed, recalled: Recalled) -> Compressed:
    """Return a method with what history tells of the fleet without it; what the spec gives counts first."""
    given = {
        each.name: getattr(method.without, each.name)
        for each in fields(Figures)
        if getattr(method.without, each.name) is not None
    }
    without = replace(recalled.figures, **given)
    if "tokens_per_second" in given and method.without.replicas is None:
        # Rates that the spec gives are of as many replicas as it says, not of those in history.
        without = replace(without, replicas=None, requests_in_flight=None)
    return replace(method, without=without, recalled=recalled)
