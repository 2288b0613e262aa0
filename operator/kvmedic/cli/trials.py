"""What the newest trial showed: on a terminal with a picture or a table, and as JSON with its readings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvmedic.core.compressed import Answer, answer_for
from kvmedic.core.prompt_probe import Prompt
from kvmedic.core.reclamation_probe import Sample
from kvmedic.core.record import Record
from kvmedic.core.trial_picture import Trace, picture_of, trace_of
from kvmedic.core.vitals import MIB


@dataclass(frozen=True, slots=True)
class ShownTrial:
    """The newest answer on record that says most of the fleet as it is."""

    answer: Answer
    is_of_present_template: bool
    without: Answer | None = None
    """What the same showed with the method off, or a start did; None: nothing was asked."""

    @property
    def trace(self) -> Trace | None:
        """Return what there is to draw; None of another pod template, or where no reading is on record."""
        return trace_of(self.answer) if self.is_of_present_template else None

    def sentence(self) -> str:
        """Return the answer with its numbers."""
        answer = self.answer
        whose = "this" if self.is_of_present_template else "another"
        verdict = answer.reclaim or answer.growth
        found = f"{verdict}: " if verdict else ""
        return f"Trial of {answer.at:%Y-%m-%dT%H:%M:%SZ} on {whose} pod template: {found}{answer.message}."

    def as_text(self) -> Iterator[str]:
        """Yield the answer line by line, with its picture or its table where there is one."""
        yield self.sentence()
        trace = self.trace
        yield from (f"  {line}" for line in (picture_of(trace) if trace else ()))
        if self.is_of_present_template:
            yield from (f"  {line}" for line in table_of(self.answer))
        if self.without is not None:
            yield f"With the method off, at {self.without.at:%Y-%m-%dT%H:%M:%SZ}: {self.without.message}."
            yield from (f"  {line}" for line in table_of(self.without))

    def as_json(self) -> dict[str, Any]:
        """Return the answer for a program, with every reading on record."""
        answer, trace = self.answer, trace_of(self.answer)
        return _told(answer) | {
            "isOfPresentTemplate": self.is_of_present_template,
            "reclaim": str(answer.reclaim) if answer.reclaim else None,
            "blockTokens": answer.block_tokens,
            "readings": [_reading(trace, each) for each in trace.seen] if trace else [],
            "without": _told(self.without) | {"cacheType": self.without.cache_type} if self.without else None,
        }


def trial_of(record: Record | None, template: str) -> ShownTrial | None:
    """Return the newest trial on a pod template, else the newest of all; None where there was none."""
    answers = record.answers if record else ()
    of_present = answer_for(answers, template)
    half = max((one for one in answers if one.beside == template), key=lambda one: one.at, default=None)
    if of_present is not None:
        return ShownTrial(of_present, is_of_present_template=True, without=half)
    if half is not None:
        return ShownTrial(half, is_of_present_template=False)
    newest = max(answers, key=lambda each: each.at, default=None)
    return ShownTrial(newest, is_of_present_template=False) if newest is not None else None


def table_of(answer: Answer) -> Iterator[str]:
    """Yield the device memory after each prompt, line by line; nothing where no prompt is on record."""
    before = answer.memory_before
    if before is None or not answer.prompts:
        return
    yield f"{'prompt tokens':>13} {'device memory, MiB':>18} {'more than before':>16}"
    for each in (Prompt(0, before), *answer.prompts):
        yield f"{each.tokens:>13} {each.used / MIB:>18.0f} {(each.used - before) / MIB:>16.0f}"


def _told(answer: Answer) -> dict[str, Any]:
    """Return what either half of a comparison tells."""
    return {
        "question": str(answer.question),
        "at": f"{answer.at:%Y-%m-%dT%H:%M:%SZ}",
        "template": answer.template,
        "growth": str(answer.growth) if answer.growth else None,
        "message": answer.message,
        "memoryBefore": answer.memory_before,
        "prompts": [{"tokens": each.tokens, "deviceMemory": each.used} for each in answer.prompts],
        "blocks": answer.blocks,
        "backends": list(answer.backends),
    }


def _reading(trace: Trace, sample: Sample) -> dict[str, Any]:
    predicted = trace.predicted(max(1, sample.tokens))
    return {
        "tokens": sample.tokens,
        "usedBlocks": sample.used,
        "blocksThatCameBack": round(trace.freed(sample), 2),
        "predicted": {str(reclaim): round(blocks, 2) for reclaim, blocks in predicted.items()},
    }
