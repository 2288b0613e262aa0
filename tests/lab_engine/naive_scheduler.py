"""A slow, plain reading of vLLM's rules with numbers instead of blocks: no prefix cache, no pipeline."""

from dataclasses import dataclass
from math import ceil


@dataclass(eq=False)
class Naive:
    """One request: `known` tokens exist, `computed` of them have keys and values."""

    name: str
    known: int
    left: int
    computed: int = 0


class NaiveScheduler:
    """First come first served, preempt the newest, admit only in steps without preemption."""

    def __init__(self, *, blocks, block_size, cap, budget, watermark_blocks):
        self.blocks, self.block_size, self.cap = blocks, block_size, cap
        self.budget, self.watermark_blocks = budget, watermark_blocks
        self.running, self.waiting = [], []

    def used(self, *, without=None):
        return sum(ceil(r.computed / self.block_size) for r in self.running if r is not without)

    def fits(self, request, tokens, spare):
        need = ceil(tokens / self.block_size)
        return self.used(without=request) + need + spare <= self.blocks

    def step(self):
        """Run one whole step; return (admitted, preempted, finished) names."""
        left, sampled, preempted, admitted = self.budget, [], [], []
        for request in list(self.running):
            if left == 0 or request not in self.running:
                break
            tokens = min(request.known - request.computed, left)
            while request in self.running and not self.fits(request, request.computed + tokens, 0):
                last = self.running.pop()
                last.computed = 0
                self.waiting.insert(0, last)
                preempted.append(last.name)
            if request in self.running:
                request.computed += tokens
                left -= tokens
                sampled.append(request)
        while not preempted and self.waiting and left and len(self.running) < self.cap:
            request = self.waiting[0]
            spare = self.watermark_blocks if self.running else 0
            if not self.fits(request, request.known, spare):
                break
            tokens = min(request.known, left)
            self.running.append(self.waiting.pop(0))
            request.computed = tokens
            left -= tokens
            sampled.append(request)
            admitted.append(request.name)
        return admitted, preempted, self.sample(sampled)

    def sample(self, sampled):
        finished = []
        for request in sampled:
            if request.computed == request.known:
                request.known += 1
                request.left -= 1
                if request.left == 0:
                    self.running.remove(request)
                    finished.append(request.name)
        return finished
