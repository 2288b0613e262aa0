"""KV compression by token eviction: which tokens a method keeps, and what becomes of their blocks.

Every token has a score for each head, and a pass keeps the highest scores of all tokens so far. Scores are
drawn once and for ever, so survivors are the same as if all had been chosen at once; but `RESCORED` draws
those of all survivors anew in each pass. After every so many decoded tokens a pass takes the tokens that are
not kept out of their slots. A block is given back once all its slots are empty: what a pass frees is counted
there, and follows from no formula. Compaction moves survivors together first.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import chain, count, islice
from pathlib import Path
from random import Random
from zlib import crc32

from lab.engine.blocks import BlockPool
from lab.engine.requests import HOLE, BlockTable, Request
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


PASS_TOKENS = 128
"""Decoded tokens between two passes (TRIATTN_RUNTIME_DIVIDE_LENGTH's default)."""


class Compaction(StrEnum):
    """How survivors are moved together."""

    IN_ORDER = "in-order"
    """All move up, in their order: whatever stands behind the first hole is moved, and no slot needs to know
    whose it is."""
    FILL_HOLES = "fill-holes"
    """The last ones move into the first holes: only as many are moved as there are holes before the new end,
    and each slot must know the position of its token, since order no longer shows it."""


@dataclass(frozen=True, slots=True)
class Compression:
    """A method."""

    eviction: Eviction
    every: int = PASS_TOKENS
    """Decoded tokens of a request from one pass to the next."""
    compaction: Compaction | None = None
    gives_back: bool = True
    """Blocks without a token return to the pool; without it they stay with their request until its end."""


@dataclass(slots=True)
class Pass:
    """What one pass did to one request."""

    evicted: int = 0
    """Tokens."""
    moved: int = 0
    """Tokens that compaction moved to another slot."""
    freed: int = 0
    """Blocks that went back to the pool."""


class Compressor:
    """Carries out the passes of one engine.

    Args:
        method: what is done.
        pool: gets freed blocks back; must not cache prefixes.

    Raises:
        ValueError: the pool caches prefixes: a cached block must hold all of its tokens.
    """

    def __init__(self, method: Compression, pool: BlockPool) -> None:
        if pool.caching:
            raise ValueError("token eviction needs prefix caching off: give --no-enable-prefix-caching")
        self._method = method
        self._pool = pool
        self._survivors: dict[Request, Survivors] = {}
        self._last: dict[Request, int] = {}
        """Tokens of a request at its last pass."""
        self.total = Pass()
        """Of all passes."""
        self.on_pass: Callable[[Request, Pass], None] = lambda request, done: None
        """Gets every pass."""

    def decoded(self, request: Request) -> Pass | None:
        """Make a pass over a request that got a token, when one is due."""
        known = request.computed - request.in_flight
        if known - self._last.get(request, request.prompt_length) < self._method.every:
            return None
        self._last[request] = known
        if request not in self._survivors:
            self._survivors[request] = Survivors(self._method.eviction, request.seed, request.needle)
        done = compress(request.table, self._survivors[request].evict(known), self._method, self._pool)
        self.total.evicted += done.evicted
        self.total.moved += done.moved
        self.total.freed += done.freed
        self.on_pass(request, done)
        return done

    def forget(self, request: Request) -> None:
        """The request has no slots any more: it ended, or will be computed again from its first token on."""
        self._survivors.pop(request, None)
        self._last.pop(request, None)


def compress(table: BlockTable, gone: set[int], method: Compression, pool: BlockPool) -> Pass:
    """Empty the slots of some positions, move survivors together and give blocks back as the method does."""
    done = Pass(evicted=len(gone))
    table.positions = [HOLE if position in gone else position for position in table.positions]
    if method.compaction is not None:
        done.moved = compact(table, method.compaction)
    if method.gives_back:
        done.freed = _give_back(table, pool)
    return done


def compact(table: BlockTable, compaction: Compaction) -> int:
    """Move survivors together; return how many were moved. Blocks behind them stay with the table."""
    if HOLE not in table.positions:
        return 0
    if compaction is Compaction.IN_ORDER:
        first = table.positions.index(HOLE)
        table.positions = [position for position in table.positions if position != HOLE]
        return len(table.positions) - first
    return _fill_holes(table.positions)


def _fill_holes(positions: list[int]) -> int:
    moved, hole = 0, 0
    while True:
        while positions and positions[-1] == HOLE:
            positions.pop()
        while hole < len(positions) and positions[hole] != HOLE:
            hole += 1
        if hole >= len(positions):
            return moved
        positions[hole] = positions.pop()
        moved += 1


def _give_back(table: BlockTable, pool: BlockPool) -> int:
    """Return blocks without a token to the pool; the null block takes the place of those in the middle."""
    size = table.block_size
    needed = table.blocks_for(len(table.positions))
    freed = table.blocks[needed:]
    del table.blocks[needed:]
    for index in range(len(table.positions) // size):
        held = table.positions[index * size : (index + 1) * size]
        if table.blocks[index] is not pool.null_block and held.count(HOLE) == size:
            freed.append(table.blocks[index])
            table.blocks[index] = pool.null_block
    pool.release(freed)
    return len(freed)


TRIATTENTION = "triattention"
"""Its entry point in `vllm.general_plugins`."""
BUDGET = 2048
"""TRIATTN_RUNTIME_KV_BUDGET's default, in tokens."""
_OFF = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Method:
    """A method that is on."""

    name: str
    lines: tuple[str, ...]
    """What it logs when it is loaded; it is not one of vLLM's loggers."""
    compression: Compression | None
    """None: it frees no memory, as page selection."""
    says_reclaim: bool = False
    """It logs a line for each pass that gives blocks back."""
    relaxes_length: bool = False
    """A pool that holds less than one request of the greatest length is logged and no longer refused."""


def method_of(environ: Mapping[str, str]) -> Method | None:
    """Return the method that an environment switches on, None for none.

    Raises:
        ValueError: a variable is no number or out of its bounds, or a file that one names is not there.
    """
    if _loaded(TRIATTENTION, environ) and environ.get("ENABLE_TRIATTENTION", "1").lower() not in _OFF:
        return _triattention(environ)
    if environ.get("LAB_EVICTION"):
        return Method("eviction", (), _eviction(environ))
    if pages := environ.get("LAB_PAGE_SELECTION"):
        return Method("page selection", (f"[PageSelection] each step reads {pages} pages per head",), None)
    return None


def _loaded(plugin: str, environ: Mapping[str, str]) -> bool:
    allowed = environ.get("VLLM_PLUGINS")
    return plugin in _names(environ.get("LAB_PLUGINS", "")) and (allowed is None or plugin in _names(allowed))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _triattention(environ: Mapping[str, str]) -> Method:
    """Return TriAttention's runtime: it moves survivors together, and gives blocks back where set to."""
    prefix = "TRIATTN_RUNTIME_"
    stats = environ.get(f"{prefix}SPARSE_STATS_PATH", "")
    if stats and not Path(stats).exists():
        raise ValueError(f"{prefix}SPARSE_STATS_PATH={stats!r}: there is no such file")
    reclaims = environ.get(f"{prefix}ENABLE_EXPERIMENTAL_BLOCK_RECLAIM", "0").lower() not in _OFF
    eviction = Eviction(
        budget=int(number(environ, f"{prefix}KV_BUDGET", BUDGET)),
        window=int(number(environ, f"{prefix}WINDOW_SIZE", 0)),
        salience=number(environ, "LAB_SALIENCE", SALIENCE),
    )
    every = int(number(environ, f"{prefix}DIVIDE_LENGTH", PASS_TOKENS))
    return Method(
        "TriAttention",
        ("[TriAttention] Runtime (V2) plugin activated: patch_scheduler=True patch_worker=True",),
        Compression(eviction, every, Compaction.IN_ORDER, gives_back=reclaims),
        says_reclaim=reclaims,
        relaxes_length=True,
    )


def _eviction(environ: Mapping[str, str]) -> Compression:
    """Return what LAB_EVICTION says: scattered, per-head, runs, rescored or recent."""
    budget, keep = environ.get("LAB_EVICTION_BUDGET"), environ.get("LAB_EVICTION_KEEP")
    eviction = Eviction(
        Survival(environ["LAB_EVICTION"]),
        budget=int(number(environ, "LAB_EVICTION_BUDGET", 0)) if budget else None,
        keep=number(environ, "LAB_EVICTION_KEEP", 0) if keep else None,
        heads=int(number(environ, "LAB_EVICTION_HEADS", 8)),
        run=int(number(environ, "LAB_EVICTION_RUN", 8)),
        sinks=int(number(environ, "LAB_EVICTION_SINKS", 0)),
        window=int(number(environ, "LAB_EVICTION_WINDOW", 0)),
        salience=number(environ, "LAB_SALIENCE", SALIENCE),
    )
    compaction = environ.get("LAB_EVICTION_COMPACTION")
    return Compression(
        eviction,
        int(number(environ, "LAB_EVICTION_EVERY", PASS_TOKENS)),
        Compaction(compaction) if compaction else None,
        gives_back=environ.get("LAB_EVICTION_GIVES_BACK", "1").lower() not in _OFF,
    )
