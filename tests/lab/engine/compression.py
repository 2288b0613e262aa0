"""KV compression by token eviction, on the block table of each request.

After every so many decoded tokens a pass takes the tokens that are not kept out of their slots. A block is
given back once all its slots are empty: what a pass frees is counted there, and follows from no formula.
Compaction moves survivors together first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from lab.engine.blocks import BlockPool
from lab.engine.eviction import SALIENCE, Eviction, Survival, Survivors
from lab.engine.requests import HOLE, BlockTable, Request
from lab.engine.settings import number

PASS_TOKENS = 128
"""Decoded tokens between two passes (TRIATTN_RUNTIME_DIVIDE_LENGTH's default)."""


class Compaction(StrEnum):
    """How survivors are moved together."""

    IN_ORDER = "in-order"
    """All move up, in their order: whatever stands behind the first hole is moved, and no slot needs to know
    whose it is."""
    FILL_HOLES = "fill-holes"
    """The last ones move into the first holes: only as many are moved as there are holes before the new end,
    and each slot must know the position of its token, since order no longer tells."""


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
        self.told: Callable[[Request, Pass], None] = lambda request, done: None
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
        self.told(request, done)
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
    """A pool that holds less than one request of the greatest length is told of and no more refused."""


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
    """Return TriAttention's runtime: it moves survivors together, and gives blocks back where told to."""
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
