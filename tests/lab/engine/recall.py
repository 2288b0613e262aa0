"""What the model can tell of a needle in its prompt, as far as that is not a matter of what the cache kept.

A prompt may hold a needle: `NEEDLE_MARK` and behind it any token. The last token of the answer is that one
where its keys and values are still in a slot of the request (`Request.holds_needle`) and the model
understands the prompt; else it is whatever the model would say anyway.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from lab.engine.settings import number

COMPETENCE = 0.9
"""Share of prompts that the model understands with a whole cache. An assumption of the lab."""
EIGHT_BIT_LOSS = 0.01
"""Share of those that it no longer does where keys and values have eight bits. An assumption of the lab."""


@dataclass(frozen=True, slots=True)
class Recall:
    """How well the model understands.

    Raises:
        ValueError: the competence is out of its bounds.
    """

    competence: float = COMPETENCE
    """Share of prompts, 0 to 1; the same prompt is understood each time, or never."""

    def __post_init__(self) -> None:
        if not 0 <= self.competence <= 1:
            raise ValueError(f"the competence is {self.competence}: 0 to 1 may be")

    @classmethod
    def of(cls, environ: Mapping[str, str], *, eight_bit: bool) -> "Recall":
        """Return what LAB_COMPETENCE says, less LAB_EIGHT_BIT_LOSS of it where keys have eight bits.

        Raises:
            ValueError: a variable is no number, or out of its bounds.
        """
        loss = number(environ, "LAB_EIGHT_BIT_LOSS", EIGHT_BIT_LOSS) if eight_bit else 0.0
        return cls(number(environ, "LAB_COMPETENCE", COMPETENCE) * (1 - loss))

    def understands(self, prompt: list[int]) -> bool:
        """Return whether the model gets this prompt right when it has all of it."""
        return crc32(array("q", prompt).tobytes()) < self.competence * (1 << 32)
