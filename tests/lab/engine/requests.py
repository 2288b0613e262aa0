"""One request: its tokens, how far they are computed, and the block table that holds their keys and
values.
"""

from dataclasses import dataclass, field
from enum import Enum, StrEnum

from lab.engine.blocks import Block, chained_digest

VOCABULARY = 50_000
"""Token ids of the lab's model are below this; the measured Llama had 32,000, the value does not matter."""

NEEDLE_MARK = VOCABULARY
"""Stands before a needle: a token that nobody can ask for with words, as a model's special tokens are."""

HOLE = -1
"""Stands in a block table for a slot whose token was evicted."""


def needle_in(prompt: list[int]) -> int | None:
    """Return the position of a prompt's needle, the token behind the first mark; None where there is none."""
    if NEEDLE_MARK not in prompt:
        return None
    position = prompt.index(NEEDLE_MARK) + 1
    return position if position < len(prompt) else None


class Status(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    PREEMPTED = "preempted"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Label values of `finished_reason` that the lab engine can produce."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True)
class BlockTable:
    """The slots of one request.

    Slot i lies in `blocks[i // block_size]`; `positions[i]` is the position of the token whose keys and
    values it holds, or `HOLE`. Without eviction `positions[i] == i`. A block that was given back has the
    pool's null block in its place.
    """

    block_size: int
    blocks: list[Block] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    windowed: list[Block] = field(default_factory=list)
    """Blocks of the layers that see a window of the newest tokens only."""

    def blocks_for(self, slots: int) -> int:
        return -(-slots // self.block_size)

    def blocks_short_of(self, slots: int) -> int:
        """Return how many more blocks are needed to have `slots` slots."""
        return max(0, self.blocks_for(slots) - len(self.blocks))

    def clear(self) -> list[Block]:
        """Empty the table; return its blocks in the order in which vLLM frees them (last first)."""
        blocks = [block for block in reversed(self.blocks) if block.references] + self.windowed
        self.blocks = []
        self.windowed = []
        self.positions = []
        return blocks


@dataclass(slots=True, eq=False)
class Request:
    """A request inside the scheduler.

    `computed` counts tokens with keys and values, those of steps still in flight included. `placeholders`
    are output tokens that such steps will sample; `stale` are in-flight tokens scheduled before a
    preemption, whose output is still delivered (vLLM v1/core/sched/scheduler.py 0.32, `_preempt_request`).
    `held_needle` is whether its needle was still there when it was last preempted, which such output knows.
    """

    request_id: str
    tokens: list[int]
    max_tokens: int
    table: BlockTable
    seed: int = 0
    prompt_length: int = field(init=False)
    needle: int | None = field(init=False)
    """Position of the token that the answer's last word must be; None: nobody asks for one."""
    status: Status = Status.WAITING
    computed: int = 0
    placeholders: int = 0
    in_flight: int = 0
    stale: int = 0
    preemptions: int = 0
    unreported_preemptions: int = 0
    held_needle: bool = False
    cached_prompt_tokens: int = 0
    loaded_prompt_tokens: int = 0
    finish_reason: FinishReason | None = None
    digests: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)
        self.needle = needle_in(self.tokens)

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def outstanding(self) -> int:
        """Tokens, placeholders included, that have no keys and values yet."""
        return len(self.tokens) + self.placeholders - self.computed

    @property
    def last_token_is_in_flight(self) -> bool:
        """Whether a step in flight samples the last token that the request may have."""
        return (
            self.placeholders > 0
            and self.computed + 2 - self.placeholders >= self.prompt_length + self.max_tokens
        )

    @property
    def holds_needle(self) -> bool:
        """Whether keys and values of the needle are in a slot."""
        return self.needle is not None and self.needle in self.table.positions

    def sample(self) -> int:
        """Append and return the next output token: any token will do, but no two requests agree on it."""
        token = (self.seed * 7919 + len(self.tokens) * 104_729) % VOCABULARY
        self.tokens.append(token)
        return token

    def full_block_digests(self) -> list[int]:
        """Return the chained hashes of all full blocks of the tokens known so far."""
        size = self.table.block_size
        for index in range(len(self.digests), len(self.tokens) // size):
            before = self.digests[-1] if self.digests else 0
            self.digests.append(chained_digest(before, self.tokens[index * size : (index + 1) * size]))
        return self.digests
