"""The attention backend of a device: what it says of itself, and what it takes where it is not fused.

A fused kernel never holds the scores of queries against keys. An eager one does, for one layer at a time: the
memory of the largest step's scores, queries times keys, is taken and kept, as torch's allocator does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lab.engine.scheduler import Step

FUSED, FUSED_EIGHT_BIT, EAGER = "FLASH_ATTN", "FLASHINFER", "TORCH_SDPA"
"""FlashAttention takes fp8 keys only in some versions: vLLM may turn to another fused kernel for them."""
SCORE_BYTES = 64
"""Of one query against one key: 16 query heads, four bytes each."""
SLOWDOWN = 1.6
"""Of each step where attention is not fused. An assumption of the lab: nobody measured it."""


@dataclass(frozen=True, slots=True)
class Attention:
    """How attention is computed.

    `LAB_EAGER_ATTENTION=1` is the fallback of a method that needs the scores; with `quiet` the start-up line
    still names the fused kernel, as where a method replaces attention after the backend was chosen.
    """

    backend: str | None
    """Named in the start-up log; None: the CPU build, which names none."""
    is_eager: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str], *, eight_bit: bool) -> "Attention":
        """Return what an environment switches on."""
        eager = environ.get("LAB_EAGER_ATTENTION", "")
        is_eager = eager not in ("", "0")
        if "LAB_DEVICE_MEMORY_MIB" not in environ:
            return cls(None, is_eager)
        fused = FUSED_EIGHT_BIT if eight_bit else FUSED
        return cls(EAGER if is_eager and eager != "quiet" else fused, is_eager)

    @property
    def slowdown(self) -> float:
        """Factor on the duration of each step."""
        return SLOWDOWN if self.is_eager else 1.0

    def scores_bytes(self, step: Step) -> int:
        """Return the memory that a step's scores take, those of its largest request."""
        if not self.is_eager:
            return 0
        pairs = (share.tokens * share.request.computed for share in step.scheduled)
        return SCORE_BYTES * max(pairs, default=0)


@dataclass(slots=True)
class DeviceMemory:
    """Memory of the device in use: fixed from the start on, but for scores."""

    total: int
    """Bytes."""
    reserved: int
    """Bytes that weights, pool and kernels take, used or not."""
    scores: int = 0
    """Bytes of the largest step so far."""

    @property
    def used(self) -> int:
        """Bytes; never more than there are."""
        return min(self.total, self.reserved + self.scores)

    def note(self, scores: int) -> None:
        """Take the scores of one more step in."""
        self.scores = max(self.scores, scores)
