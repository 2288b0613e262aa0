"""Which tokens of one request a method keeps: every token has a score for each head.

A pass keeps the highest scores of all tokens so far. Scores are drawn once and for ever, so survivors are the
same as if all had been chosen at once; but `RESCORED` draws those of all survivors anew in each pass.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import chain, count, islice
from random import Random
from zlib import crc32

from lab.engine.settings import number

SALIENCE = 0.9
"""Share of needles that a head knows for what they are. An assumption of the lab: nobody measured it."""
RECOGNISED = 1.0
"""Score of a needle that a head knows: above all others, which are below it."""


class Survival(StrEnum):
    """Where the tokens are that a method keeps."""

    SCATTERED = "scattered"
    """Anywhere, the same for all heads."""
    PER_HEAD = "per-head"
    """Anywhere, and each head keeps tokens of its own."""
    RUNS = "runs"
    """In runs of neighbours that may overlap, anywhere, the same for all heads."""
    RESCORED = "rescored"
    """Anywhere, the same for all heads, chosen anew in each pass."""
    RECENT = "recent"
    """The newest, as StreamingLLM does."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """What a method keeps of one request.

    Raises:
        ValueError: neither or both of `budget` and `keep`, or a number out of its bounds.
    """

    survival: Survival = Survival.SCATTERED
    budget: int | None = None
    """Tokens that each head keeps."""
    keep: float | None = None
    """Share of all tokens so far that each head keeps, above 0 to 1."""
    heads: int = 8
    """KV heads that share a block; only `PER_HEAD` asks."""
    run: int = 8
    """Tokens of a run; only `RUNS` asks."""
    sinks: int = 0
    """First tokens that are always kept, on top of the others."""
    window: int = 0
    """Newest tokens that are always kept, on top of the others."""
    salience: float = SALIENCE
    """How surely a head sees that a needle matters, 0 to 1: at 0 it is a token like any other. `RECENT` looks
    at the place alone and asks not."""

    def __post_init__(self) -> None:
        if (self.budget is None) == (self.keep is None):
            raise ValueError("give a budget or a share to keep, one of them")
        if self.budget is not None and self.budget < 1:
            raise ValueError(f"a budget of {self.budget} tokens keeps nothing: give 1 or more")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise ValueError(f"the share to keep is {self.keep}: above 0 to 1 may be")
        if min(self.heads, self.run) < 1 or min(self.sinks, self.window) < 0:
            raise ValueError("heads and run are 1 or more, sinks and window 0 or more")
        if not 0 <= self.salience <= 1:
            raise ValueError(f"the salience is {self.salience}: 0 to 1 may be")

    def kept_of(self, tokens: int) -> int:
        """Return how many of so many tokens each head keeps, sinks and window not counted."""
        return self.budget if self.budget is not None else round((self.keep or 0) * tokens)


class Survivors:
    """The tokens of one request that are kept; made anew where it is computed again.

    Args:
        eviction: what is kept.
        seed: same seed, same scores.
        needle: position of the token that matters; None: no token matters more than others.
    """

    def __init__(self, eviction: Eviction, seed: int, needle: int | None = None) -> None:
        self._eviction = eviction
        heads = eviction.heads if eviction.survival is Survival.PER_HEAD else 1
        self._scores = [_scores(eviction, f"{seed}/{head}", needle) for head in range(heads)]
        self._kept: list[list[tuple[float, int]]] = [[] for _ in range(heads)]
        self._holders: Counter[int] = Counter()
        self._scored = 0

    def evict(self, tokens: int) -> set[int]:
        """Return the positions that no head keeps any more, of those before `tokens`."""
        eviction = self._eviction
        for position in range(self._scored, max(self._scored, tokens - eviction.window)):
            self._score(position)
        kept, gone = eviction.kept_of(tokens), set()
        for heap, scores in zip(self._kept, self._scores, strict=True):
            if eviction.survival is Survival.RESCORED and len(heap) > kept:
                _draw_anew(heap, scores)
            while len(heap) > kept:
                _, position = heappop(heap)
                self._holders[position] -= 1
                if not self._holders[position]:
                    del self._holders[position]
                    gone.add(position)
        return gone

    def _score(self, position: int) -> None:
        """Let every head judge one more token; sinks are beyond judgement."""
        for heap, scores in zip(self._kept, self._scores, strict=True):
            score = next(scores)
            if position >= self._eviction.sinks:
                heappush(heap, (score, position))
                self._holders[position] += 1
        self._scored = position + 1


def _draw_anew(heap: list[tuple[float, int]], scores: Iterator[float]) -> None:
    """Give every token of a heap another score, in the order of their places; a needle stays known."""
    ordered = sorted(heap, key=lambda each: each[1])
    heap[:] = [(score if score == RECOGNISED else next(scores), place) for score, place in ordered]
    heapify(heap)


def _scores(eviction: Eviction, seed: str, needle: int | None) -> Iterator[float]:
    draws = iter(Random(seed).random, None)
    if needle is not None and Random(f"{seed}/needle").random() < eviction.salience:
        draws = chain(islice(draws, needle), (RECOGNISED,), draws)
    match eviction.survival:
        case Survival.RECENT:
            return map(float, count())
        case Survival.RUNS:
            return _of_runs(draws.__next__, eviction.run)
        case _:
            return draws


def _of_runs(draw: Callable[[], float], length: int) -> Iterator[float]:
    """Yield scores under which whole runs survive: a token has that of the best run that it is part of."""
    starts = [draw() for _ in range(length - 1)]
    while True:
        starts.append(draw())
        yield max(starts)
        del starts[0]


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
