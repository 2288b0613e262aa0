"""KV blocks in the host's memory: a second prefix cache, asked when a request is admitted or comes back.

Follows vLLM 0.32 v1/kv_offload/cpu: every full block is copied there as it is computed, the least recently
used goes first, and what follows the blocks that the device itself still has is fetched instead of computed.
"""

from collections import OrderedDict
from collections.abc import Sequence


class HostTier:
    """Digests of the blocks that the host holds.

    Args:
        blocks: how many it holds at most.
    """

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
