"""The paged KV pool: blocks with reference counts, a free queue and a prefix cache.

Follows vLLM 0.32 v1/core/block_pool.py: block 0 is the null block and is never handed out; a block that is
freed with a hash goes to the end of the free queue and stays in the prefix cache until it is handed out again
(least recently used first); a block without a hash goes to the front.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Block:
    """One block of `block_size` slots.

    `references` counts the block tables that hold it; `digest` is the chained hash of its tokens and of all
    tokens before them, None while it is not full or while caching is off.
    """

    block_id: int
    references: int = 0
    digest: int | None = None


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free: the caller did not look at `free_count` first."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Groups of layers that see a sliding window, beside one group that sees everything.

    Each group has blocks of its own in the one pool. A block whose tokens no later token sees is given back
    before the next slots are allocated (vLLM v1/core/single_type_kv_cache_manager.py, `SlidingWindowManager`:
    of n computed tokens n - w + 1 are skipped, in whole blocks).
    """

    groups: int
    tokens: int
    """Of the window."""

    def left_behind(self, computed: int, block_tokens: int) -> int:
        """Return the leading blocks of a group that no later token sees."""
        return max(0, computed - self.tokens + 1) // block_tokens

    def most(self, blocks: int, step_tokens: int, block_tokens: int) -> int:
        """Return the most blocks that these groups ever hold of a request of so many blocks.

        vLLM v1/kv_cache_interface.py, `SlidingWindowSpec.max_memory_usage_bytes`: the window less one token
        and the tokens of a step, and one block more as a window may begin inside one.
        """
        return self.groups * min(blocks, -(-(self.tokens - 1 + step_tokens) // block_tokens) + 1)


class BlockPool:
    """All blocks of one engine.

    Args:
        total: blocks in the pool, the null block included, as the label `num_gpu_blocks` counts them.
        caching: whether full blocks enter the prefix cache.
    """

    def __init__(self, total: int, *, caching: bool = True) -> None:
        if total < 2:
            raise ValueError(f"num_gpu_blocks is {total}; one is the null block, so give at least 2")
        self.total = total
        self.caching = caching
        self.blocks = [Block(block_id) for block_id in range(total)]
        self.null_block = self.blocks[0]
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, total))
        self._cached: dict[int, dict[int, Block]] = {}

    @property
    def usable(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.total - 1

    @property
    def free_count(self) -> int:
        """Blocks held by no request; cached ones count."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that live requests hold, 0-1."""
        return 1.0 - len(self._free) / self.usable

    @property
    def cached_count(self) -> int:
        """Blocks that a new request with the same prefix could take over."""
        return sum(len(same) for same in self._cached.values())

    def is_free(self, block: Block) -> bool:
        return block.block_id in self._free

    def take(self, count: int) -> list[Block]:
        """Hand out blocks from the front of the free queue; each leaves the prefix cache."""
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks needed, {len(self._free)} free")
        taken = []
        for _ in range(count):
            block = self.blocks[self._free.popitem(last=False)[0]]
            self._forget(block)
            block.references = 1
            taken.append(block)
        return taken

    def share(self, blocks: Iterable[Block]) -> None:
        """Add one reference to each cached block, taking it out of the free queue if nobody held it."""
        for block in blocks:
            if block.references == 0:
                del self._free[block.block_id]
            block.references += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """Drop one reference from each block, in the order in which they should be reused.

        Blocks without a hash go to the front of the free queue as given; cached ones to its end.
        """
        uncached = []
        for block in blocks:
            block.references -= 1
            if block.references:
                continue
            if block.digest is None:
                uncached.append(block.block_id)
            else:
                self._free[block.block_id] = None
        for block_id in reversed(uncached):
            self._free[block_id] = None
            self._free.move_to_end(block_id, last=False)

    def remember(self, block: Block, digest: int) -> None:
        """Enter a full block into the prefix cache; does nothing when caching is off or it is already in."""
        if self.caching and block.digest is None:
            block.digest = digest
            self._cached.setdefault(digest, {})[block.block_id] = block

    def longest_hit(self, digests: Sequence[int]) -> list[Block]:
        """Return the cached blocks of the longest prefix; they are not referenced yet."""
        hit: list[Block] = []
        for digest in digests:
            same = self._cached.get(digest)
            if not same:
                break
            hit.append(next(iter(same.values())))
        return hit

    def _forget(self, block: Block) -> None:
        if block.digest is None:
            return
        same = self._cached[block.digest]
        del same[block.block_id]
        if not same:
            del self._cached[block.digest]
        block.digest = None


def chained_digest(before: int, tokens: Sequence[int]) -> int:
    """Return the hash of a full block given the hash of the block before it (0 for the first)."""
    return hash((before, *tokens))


class HostTier:
    """Digests of the blocks that the host holds."""

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError(f"a host tier of {blocks} blocks holds nothing: leave it out")
        self.blocks = blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, digest: int) -> bool:
        return digest in self._held

    def store(self, digest: int) -> None:
        """Take in a block, or note its use; the least recently used one goes where there is no room."""
        self._held[digest] = None
        self._held.move_to_end(digest)
        if len(self._held) > self.blocks:
            self._held.popitem(last=False)

    def longest_hit(self, digests: Sequence[int]) -> int:
        """Return how many blocks, from the first on, are held; they count as used."""
        found = 0
        for digest in digests:
            if digest not in self._held:
                break
            self._held.move_to_end(digest)
            found += 1
        return found
