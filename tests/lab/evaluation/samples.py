"""The questions: prompts of token ids with a needle somewhere, the same ones in every evaluation."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from lab.engine.requests import NEEDLE_MARK, VOCABULARY

ANSWERS = 1000
"""Different answers that the lab engine has words for."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One question."""

    prompt: tuple[int, ...]
    answer: str
    """The last word of a right answer."""


def samples_of(number: int, prompt_tokens: int) -> Iterator[Sample]:
    """Yield so many questions; their needles lie anywhere, and no two prompts begin alike."""
    if prompt_tokens < 3:
        raise ValueError(f"a prompt of {prompt_tokens} tokens holds no needle: 3 or more do")
    for index in range(number):
        draw = Random(index)
        answer, place = draw.randrange(ANSWERS), draw.randrange(1, prompt_tokens - 1)
        prompt = [index, *(draw.randrange(VOCABULARY) for _ in range(prompt_tokens - 1))]
        prompt[place : place + 2] = [NEEDLE_MARK, answer]
        yield Sample(tuple(prompt), f"w{answer}")
