"""What is known of the compression of one fleet's KV cache: method, fleet without it, answer of a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kvmedic.core.blocks import Keep
from kvmedic.core.compression import MethodClass, Setting
from kvmedic.core.compression_policy import NOT_DECLARED, CompressionPolicy
from kvmedic.core.figures import Figures
from kvmedic.core.reclamation_probe import Reclaim, Sample
from kvmedic.core.trialling import Question


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
    """None: it showed nothing."""
    seen: tuple[Sample, ...] = ()
    """Some of the readings, over the whole course."""
    block_tokens: int | None = None
    keep: Keep | None = None
    """What the method was taken to keep: with it each class predicts the readings."""


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
    keep: Keep | None = None
    """What it keeps of a sequence; None: not known, or it keeps all."""
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
    settings: tuple[Setting, ...] = ()
    """The bundle that turns it on; empty: not known."""
    policy: CompressionPolicy = NOT_DECLARED
    answer: Answer | None = None
    """Of the newest trial on this very template; None: there was none."""
    longest_request: int | None = None
    """Tokens of a request, at most, as the command line gives it; None: it does not."""


def standing_answers(answers: Sequence[Answer], generation: int) -> tuple[Answer, ...]:
    """Return the answers that count under a spec of some generation."""
    return tuple(each for each in answers if each.reclaim is not None or each.generation == generation)


def answer_for(answers: Sequence[Answer], template: str) -> Answer | None:
    """Return what the newest trial on a pod template showed; None where there was none."""
    found = [each for each in answers if each.template == template]
    return max(found, key=lambda each: each.at, default=None)
