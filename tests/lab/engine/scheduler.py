"""vLLM V1's scheduler, reduced to what decides about admission, preemption and recompute.

Follows vLLM 0.32 v1/core/sched/scheduler.py (first come, first served): running requests first; where
blocks run out the last of the running set is preempted and recomputed from zero; in a step that preempted
nothing is admitted; a waiting request that does not fit waits and everything behind it too. With
asynchronous scheduling a step is scheduled while the one before it is in flight.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from lab.engine.blocks import Block, BlockPool, HostTier, Windows
from lab.engine.compression import Compression, Compressor, Recall
from lab.engine.requests import FinishReason, Request, Status


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that the scheduler reads once, at start.

    `max_num_active_seqs` None means `max_num_seqs`; `watermark` is the share of all blocks that an admission
    must leave free while others run (0-1).
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_num_active_seqs: int | None = None
    watermark: float = 0.0
    chunked_prefill: bool = True
    reserve_full_isl: bool = True
    async_scheduling: bool = True

    @property
    def active(self) -> int:
        return self.max_num_seqs if self.max_num_active_seqs is None else self.max_num_active_seqs


@dataclass(slots=True)
class Scheduled:
    """One request's share of a step; `samples` is False for a prefill chunk that is not the last."""

    request: Request
    tokens: int
    samples: bool


@dataclass(slots=True)
class Step:
    """What one forward pass of the model computes."""

    scheduled: list[Scheduled] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    tokens: int = 0
    loaded: int = 0
    """Tokens whose keys and values come from the host's memory instead."""
    moved: int = 0
    """Tokens whose keys and values compaction moved since the step before."""

    def add(self, request: Request, tokens: int) -> None:
        self.scheduled.append(Scheduled(request, tokens, samples=True))
        self.tokens += tokens


@dataclass(slots=True)
class Output:
    """One generated token, with what the API server learns along with it."""

    request: Request
    token: int
    preemptions: int
    finish_reason: FinishReason | None


@dataclass(slots=True)
class PrefixCounts:
    """Tokens looked up in the prefix cache and found there, first admissions only."""

    queries: int = 0
    hits: int = 0


class Scheduler:
    """The running set, the waiting queue and the pool.

    `schedule` and `finish` alternate; with asynchronous scheduling one further `schedule` may come before the
    `finish` of the step before it. Steps finish in the order in which they were scheduled.
    """

    def __init__(
        self,
        limits: Limits,
        pool: BlockPool,
        block_size: int,
        host: HostTier | None = None,
        compression: Compression | None = None,
        windows: Windows | None = None,
    ) -> None:
        self.limits = limits
        self.windows = windows
        self.host = host
        self.compressor = None if compression is None else Compressor(compression, pool)
        self.pool = pool
        self.block_size = block_size
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.prefix = PrefixCounts()
        self.external = PrefixCounts()
        """The same of the host's memory: looked up is what the device did not have."""
        self.preemptions = 0
        self.recall = Recall()
        """What the model reports of needles."""
        self._watermark_blocks = int(limits.watermark * pool.total)
        self._moved = 0

    @property
    def has_requests(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def abort(self, requests: Iterable[Request]) -> None:
        """End requests now and free their blocks; outputs of steps in flight are dropped."""
        for request in list(requests):
            if request.status is not Status.FINISHED:
                self._leave_queue(request)
                self._end(request, FinishReason.ABORT)

    def schedule(self) -> Step:
        """Decide the next step; it may be empty while the last tokens of all running requests are in
        flight.
        """
        step = Step(moved=self._moved)
        self._moved = 0
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        for share in step.scheduled:
            self._advance(share)
        return step

    def finish(self, step: Step) -> list[Output]:
        """Take the results of a step: one token for each request that was not in the middle of its prompt."""
        outputs = []
        for share in step.scheduled:
            request = share.request
            request.in_flight -= share.tokens
            stale = request.stale > 0
            if stale:
                request.stale -= share.tokens
            if share.samples and request.status is not Status.FINISHED:
                outputs.append(self._sample(request, stale=stale))
        if any(output.finish_reason for output in outputs):
            self.running = [request for request in self.running if request.status is not Status.FINISHED]
        return outputs

    def _schedule_running(self, step: Step) -> None:
        index = 0
        while index < len(self.running) and step.tokens < self.limits.max_num_batched_tokens:
            request = self.running[index]
            index += 1
            if request.last_token_is_in_flight:
                continue
            tokens = min(
                request.outstanding,
                self.limits.max_num_batched_tokens - step.tokens,
                self.limits.max_model_len - request.computed - 1,
            )
            if tokens <= 0:
                continue
            if not self._make_room(request, tokens, step):
                return
            step.add(request, tokens)

    def _make_room(self, request: Request, tokens: int, step: Step) -> bool:
        """Give a running request its slots, preempting from the end of the running set until it fits."""
        while not self._allocate(request, tokens):
            last = self.running.pop()
            self._preempt(last)
            step.preempted.append(last)
            if last is request:
                return False
        return True

    def _allocate(self, request: Request, tokens: int) -> bool:
        table = request.table
        slots = len(table.positions) + tokens
        missing = table.blocks_short_of(slots)
        windowed = self._windowed_short_of(request, table.blocks_for(slots))
        if missing + windowed > self.pool.free_count:
            return False
        if missing:
            table.blocks += self.pool.take(missing)
        if windowed:
            table.windowed += self.pool.take(windowed)
        table.positions.extend(range(request.computed, request.computed + tokens))
        self._cache_full_blocks(request, min(request.computed + tokens, len(request.tokens)))
        return True

    def _windowed_short_of(self, request: Request, blocks: int) -> int:
        """Give back what the windows have left behind; return what they need for so many blocks of slots."""
        if self.windows is None:
            return 0
        table, gone = request.table, self.windows.left_behind(request.computed, self.block_size)
        held = self.windows.groups * max(0, len(table.blocks) - gone)
        self.pool.release(table.windowed[held:])
        del table.windowed[held:]
        return self.windows.groups * max(0, blocks - gone) - held

    def _preempt(self, request: Request) -> None:
        request.held_needle = request.holds_needle
        self._give_back(request)
        request.status = Status.PREEMPTED
        request.computed = 0
        request.placeholders = 0
        request.stale = request.in_flight
        request.preemptions += 1
        request.unreported_preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _schedule_waiting(self, step: Step) -> None:
        """Admit in order of arrival, preempted requests first, until one does not fit.

        vLLM also skips requests whose output from before a preemption is still in flight; with at most two
        steps in flight that output has always come back by the next step that may admit.
        """
        while (
            self.waiting
            and step.tokens < self.limits.max_num_batched_tokens
            and len(self.running) < self.limits.active
            and self._admit(self.waiting[0], step)
        ):
            continue

    def _admit(self, request: Request, step: Step) -> bool:
        """Move the first waiting request into the running set if it may start and fits."""
        hit = self._cached_prefix(request)
        cached = len(hit) * request.table.block_size
        loaded = self._held_by_host(request, len(hit)) * request.table.block_size
        tokens = len(request.tokens) - cached - loaded
        budget = self.limits.max_num_batched_tokens - step.tokens
        if not self.limits.chunked_prefill and tokens > budget:
            return False
        tokens = min(tokens, budget)
        if not self._fits(request, hit, cached + loaded + tokens):
            return False
        self._start(request, hit, loaded, tokens)
        step.admitted.append(request)
        step.loaded += loaded
        step.add(request, tokens)
        return True

    def _cached_prefix(self, request: Request) -> list[Block]:
        """Return the blocks that the request can take over; at least its last token is always computed."""
        if not self.pool.caching:
            return []
        longest = (len(request.tokens) - 1) // request.table.block_size
        return self.pool.longest_hit(request.full_block_digests()[:longest])

    def _held_by_host(self, request: Request, known: int) -> int:
        """Return how many blocks after those that the device has can be fetched from the host's memory."""
        if self.host is None:
            return 0
        longest = (len(request.tokens) - 1) // request.table.block_size
        return self.host.longest_hit(request.full_block_digests()[known:longest])

    def _fits(self, request: Request, hit: list[Block], slots: int) -> bool:
        if self.limits.reserve_full_isl:
            slots = max(slots, min(len(request.tokens), self.limits.max_model_len))
        watermark = self._watermark_blocks if self.running else 0
        evictable = sum(1 for block in hit if block.references == 0)
        blocks = -(-slots // request.table.block_size)
        needed = blocks - len(hit)
        if self.windows is not None:
            needed += self.windows.most(blocks, self.limits.max_num_batched_tokens, self.block_size)
        return needed + evictable + watermark <= self.pool.free_count

    def _start(self, request: Request, hit: list[Block], loaded: int, tokens: int) -> None:
        cached = len(hit) * request.table.block_size
        self.waiting.popleft()
        self.running.append(request)
        if not request.preemptions:
            self._count_first(request, cached, loaded)
        request.status = Status.RUNNING
        request.computed = cached
        self.pool.share(hit)
        request.table.blocks = list(hit)
        request.table.positions = list(range(cached))
        if loaded:
            self._allocate(request, loaded)
            request.computed += loaded
        self._allocate(request, tokens)

    def _count_first(self, request: Request, cached: int, loaded: int) -> None:
        self.prefix.queries += len(request.tokens)
        self.prefix.hits += cached
        request.cached_prompt_tokens = cached
        if self.host is not None:
            self.external.queries += len(request.tokens) - cached
            self.external.hits += loaded
            request.loaded_prompt_tokens = loaded

    def _advance(self, share: Scheduled) -> None:
        request = share.request
        request.computed += share.tokens
        request.in_flight += share.tokens
        share.samples = request.computed >= len(request.tokens) + request.placeholders
        if share.samples and self.limits.async_scheduling:
            request.placeholders += 1

    def _sample(self, request: Request, *, stale: bool) -> Output:
        token = request.sample()
        is_last = (
            request.output_length >= request.max_tokens or len(request.tokens) >= self.limits.max_model_len
        )
        if is_last and request.needle is not None:
            held = request.held_needle if stale else request.holds_needle
            token = self._conclude(request, request.needle if held else None)
        if self.limits.async_scheduling and not stale:
            request.placeholders -= 1
        if request.status is Status.RUNNING:
            self._cache_full_blocks(request, request.computed - request.placeholders)
            self._compress(request)
        reported, request.unreported_preemptions = request.unreported_preemptions, 0
        if is_last:
            if request.status is Status.PREEMPTED:
                self.waiting.remove(request)
            self._end(request, FinishReason.LENGTH)
        return Output(request, token, reported, request.finish_reason)

    def _conclude(self, request: Request, needle: int | None) -> int:
        """Return the last token of an answer, which is the needle's where the model still finds it."""
        if needle is not None and self.recall.understands(request.tokens[: request.prompt_length]):
            request.tokens[-1] = request.tokens[needle]
        return request.tokens[-1]

    def _compress(self, request: Request) -> None:
        done = self.compressor and self.compressor.decoded(request)
        self._moved += done.moved if done else 0

    def _cache_full_blocks(self, request: Request, tokens: int) -> None:
        self._copy_to_host(request, tokens // request.table.block_size)
        if not self.pool.caching:
            return
        full = tokens // request.table.block_size
        blocks = request.table.blocks
        if full == 0 or blocks[full - 1].digest is not None:
            return
        digests = request.full_block_digests()
        for index in range(full - 1, -1, -1):
            if blocks[index].digest is not None:
                break
            self.pool.remember(blocks[index], digests[index])

    def _copy_to_host(self, request: Request, full: int) -> None:
        if self.host is None:
            return
        digests = request.full_block_digests()
        for index in range(full - 1, -1, -1):
            if digests[index] in self.host:
                break
            self.host.store(digests[index])

    def _leave_queue(self, request: Request) -> None:
        if request.status is Status.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)

    def _give_back(self, request: Request) -> None:
        self.pool.release(request.table.clear())
        if self.compressor is not None:
            self.compressor.forget(request)

    def _end(self, request: Request, reason: FinishReason) -> None:
        self._give_back(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
