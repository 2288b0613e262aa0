"""Random engines and loads for the property tests, and the rules that every scheduled step must keep."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import strategies as st

from lab.engine.blocks import BlockPool, HostTier
from lab.engine.compression import Compaction, Compression
from lab.engine.requests import HOLE, BlockTable, FinishReason, Request, Status
from lab.engine.scheduler import Limits, Scheduler, Step


@dataclass(frozen=True)
class Shape:
    """One request of a random load; `family` chooses the beginning of its prompt, so that prompts share
    blocks."""

    prompt: int
    output: int
    arrives_at_step: int
    family: int
    aborts_at_step: int | None


@dataclass(frozen=True)
class Case:
    """A random engine with a random load."""

    limits: Limits
    block_size: int
    usable_blocks: int
    caching: bool
    shapes: tuple[Shape, ...]
    host_blocks: int = 0
    compression: Compression | None = None


@st.composite
def cases(draw, *, aborts: bool = True, limits_for=None):
    block_size = draw(st.integers(1, 6))
    usable = draw(st.integers(3, 24))
    capacity = block_size * usable
    limits = draw(limits_for(capacity) if limits_for else any_limits(capacity))
    longest = min(capacity, limits.max_model_len)
    shapes = []
    for _ in range(draw(st.integers(1, 14))):
        prompt = draw(st.integers(1, longest - 1))
        output = draw(st.integers(1, longest - prompt))
        abort = draw(st.none() | st.integers(0, 60)) if aborts else None
        shapes.append(Shape(prompt, output, draw(st.integers(0, 20)), draw(st.integers(0, 2)), abort))
    shapes.sort(key=lambda shape: shape.arrives_at_step)
    host_blocks = draw(st.sampled_from((0, 0, 3, 100)))
    return Case(limits, block_size, usable, draw(st.booleans()), tuple(shapes), host_blocks)


@st.composite
def any_limits(draw, capacity: int):
    chunked = draw(st.booleans())
    length = draw(st.integers(2, capacity))
    cap = draw(st.integers(1, 10))
    return Limits(
        max_num_seqs=cap,
        max_num_batched_tokens=draw(st.integers(1, 2 * capacity)) if chunked else length,
        max_model_len=length,
        max_num_active_seqs=draw(st.none() | st.integers(1, cap)),
        watermark=draw(st.sampled_from((0.0, 0.1, 0.4))),
        chunked_prefill=chunked,
        reserve_full_isl=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
    )


@dataclass
class Drive:
    """A scheduler under a random load, checked after each move."""

    case: Case
    scheduler: Scheduler = field(init=False)
    requests: list[Request] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[tuple[Request, int, FinishReason | None]] = field(default_factory=list)
    reported_preemptions: Counter = field(default_factory=Counter)

    def __post_init__(self):
        pool = BlockPool(self.case.usable_blocks + 1, caching=self.case.caching)
        host = HostTier(self.case.host_blocks) if self.case.host_blocks else None
        case = self.case
        self.scheduler = Scheduler(case.limits, pool, case.block_size, host, case.compression)

    def run(self, limit: int = 60_000) -> "Drive":
        waiting_shapes = list(self.case.shapes)
        in_flight: list[Step] = []
        depth = 2 if self.case.limits.async_scheduling else 1
        for turn in range(limit):
            while waiting_shapes and waiting_shapes[0].arrives_at_step <= turn:
                self._add(waiting_shapes.pop(0))
            self._abort(turn)
            late = [request for request in self.scheduler.waiting if request.stale]
            step = self.scheduler.schedule()
            assert not set(late) & set(step.admitted)
            self.check(step)
            self.steps.append(step)
            if step.scheduled:
                in_flight.append(step)
            if in_flight and (len(in_flight) == depth or not step.scheduled):
                self._finish(in_flight.pop(0))
            if not (waiting_shapes or in_flight or self.scheduler.has_requests):
                return self
        raise AssertionError(f"not done after {limit} steps")

    def _add(self, shape: Shape) -> None:
        number = len(self.requests)
        prompt = [
            shape.family * 1000 + i if i < shape.prompt - 1 else 9_000 + number for i in range(shape.prompt)
        ]
        request = Request(str(number), prompt, shape.output, BlockTable(self.case.block_size), seed=number)
        self.requests.append(request)
        self.scheduler.add(request)

    def _abort(self, turn: int) -> None:
        doomed = [
            request
            for request, shape in zip(self.requests, self.case.shapes, strict=False)
            if shape.aborts_at_step == turn
        ]
        self.scheduler.abort(doomed)

    def _finish(self, step: Step) -> None:
        for output in self.scheduler.finish(step):
            self.outputs.append((output.request, output.token, output.finish_reason))
            self.reported_preemptions[output.request.request_id] += output.preemptions
        self.check_blocks()

    def check(self, step: Step) -> None:
        limits = self.case.limits
        assert step.tokens == sum(share.tokens for share in step.scheduled) <= limits.max_num_batched_tokens
        assert all(share.tokens > 0 for share in step.scheduled)
        assert len(self.scheduler.running) <= limits.active
        assert not (step.preempted and step.admitted)
        waiting = [request.status for request in self.scheduler.waiting]
        assert waiting == sorted(waiting, key=lambda status: status is not Status.PREEMPTED)
        assert len({id(share.request) for share in step.scheduled}) == len(step.scheduled)
        self.check_blocks()

    def _check_slots(self, request: Request) -> None:
        """Every token is in one slot at most, and every slot that has one lies in a block of the request."""
        table, method = request.table, self.case.compression
        there = [position for position in table.positions if position != HOLE]
        if method is None:
            assert there == table.positions == list(range(len(table.positions)))
        assert len(set(there)) == len(there)
        assert set(there) <= set(range(request.computed))
        in_order = method is None or method.compaction is not Compaction.FILL_HOLES
        assert not in_order or there == sorted(there)
        needed = -(-len(table.positions) // table.block_size)
        assert len(table.blocks) == needed or (len(table.blocks) > needed and not method.gives_back)
        for index, block in enumerate(table.blocks):
            slots = table.positions[index * table.block_size : (index + 1) * table.block_size]
            if block is self.scheduler.pool.null_block:
                assert slots == [HOLE] * table.block_size

    def check_blocks(self) -> None:
        pool = self.scheduler.pool
        held = Counter()
        for request in self.requests:
            table = request.table
            own = [block for block in table.blocks if block is not pool.null_block]
            self._check_slots(request)
            assert len({block.block_id for block in own}) == len(own)
            if request.status is not Status.RUNNING:
                assert table.blocks == []
            held.update(block.block_id for block in own)
            for index, block in enumerate(table.blocks):
                if block.references > 1 or block.digest is not None:
                    assert block.digest == request.full_block_digests()[index]
        for block in pool.blocks[1:]:
            assert block.references == held[block.block_id]
            assert pool.is_free(block) == (block.references == 0)
        assert pool.free_count == pool.usable - len(held)
        assert abs(pool.usage - len(held) / pool.usable) < 1e-9
