"""vLLM V1's scheduler, compiled, and a fleet of it behind a router.

The rules are those of `lab.engine.scheduler`, step by step: asynchronous scheduling with two steps in
flight, preemption from the end of the running set, recompute, and a prefix cache in which a preempted
request finds its own blocks. Left out: prefixes that requests share, eviction, the host's memory. Where all
running requests decode, nothing can be admitted and the pool lasts, several steps are taken at once.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Small = NDArray[np.int32]
Records = NDArray[np.void]
Share = np.void
"""One record of `SHARE`."""

WAITING, RUNNING, PREEMPTED, FINISHED, LEFT = range(5)
"""What becomes of a request."""
RANDOM, LEAST_LOADED, TWO_CHOICES, STICKY = range(4)
"""How the router finds a replica."""
COUNTERS = 11
FINISHES, LEAVES, TOKENS, PREEMPTIONS, STEPS, TTFT_SUM, GAP_SUM, E2E_SUM, PREFILL_SUM, PROMPTS, OUTPUTS = (
    range(COUNTERS)
)
RUNS, WAITS, USAGE, HISTOGRAMS = range(COUNTERS, COUNTERS + 4)
"""Columns of what an engine exports: counters, gauges, and where its histograms begin."""
NEVER = 1e18
BATCHED_TOKENS = 2048
MOST_BLOCKS = 1 << 16
"""More than any request has; a block's digest is its request times this, plus its place."""
MOST_AT_ONCE = 64
"""Steps that are taken at once, at most."""

inlined = njit(forceinline=True, error_model="numpy")
"""The state is many arrays, and handing it from function to function costs more than most of them do."""

REQUEST = np.dtype(
    [(name, np.float64) for name in ("arrived", "first", "last", "gap", "scheduled")]
    + [
        (name, np.int32)
        for name in (
            "prompt",
            "output",
            "client",
            "engine",
            "made",
            "status",
            "preempted",
            "computed",
            "placeholders",
            "in_flight",
            "stale",
            "unreported",
            "held",
            "marked",
            "row",
            "behind",
        )
    ]
)
"""One request. `first`, `last` and `gap` are what its client sees of its `made` tokens. `held` are its
blocks, of which the first `marked` are in the prefix cache, or were when it was preempted; `row` is its block
table, `behind` the next of the queue; all else as in `lab.engine.requests`."""
ENGINE = np.dtype(
    [(name, np.float64) for name in ("now", "last_end")]
    + [
        (name, np.int32)
        for name in ("cap", "running", "evicted", "queued", "head", "tail", "free", "rows", "depth", "oldest")
    ]
)
"""One engine: how many run, were preempted and queue; free blocks and block tables; steps in flight."""
SEAT = np.dtype([(name, np.int32) for name in ("running", "evicted", "row")])
"""Lists of an engine: running requests, preempted ones (the last comes back first), and free block tables."""
BLOCK = np.dtype([("digest", np.int64), ("before", np.int32), ("after", np.int32)])
"""One block and its neighbours in the free queue, which begins and ends at block 0."""
SHARE = np.dtype([("request", np.int32), ("tokens", np.int32), ("samples", np.int32)])
STEP = np.dtype([("end", np.float64), ("shares", np.int32)])


class State(NamedTuple):
    """Everything that changes."""

    requests: Records
    engines: Records
    seats: Records
    blocks: Records
    table: Small
    shares: Records
    steps: Records
    exported: Floats
    next_at: Floats
    """When each client of a closed loop asks next."""


class Rules(NamedTuple):
    """What does not change."""

    block: int
    step_seconds: float
    token_seconds: float
    patience: float
    """Seconds without a token after which a waiting client leaves."""
    think: float
    """Seconds from an answer to the next request of a closed loop's client; 0: an open world."""
    bounds: Floats
    """Of the histograms of first token, gap, whole request, prefill, prompt and output; filled up with
    infinities."""
    places: Small
    """Columns at which these histograms begin."""


class Course(NamedTuple):
    """What happens when, whatever the fleet does."""

    routing: int
    chances: Floats
    """Of each request, see `_choose`."""
    swaps: Floats
    """Rows of (time, place, engine): that engine is there from then on; the old one serves what it has."""
    scrapes: Floats
    """Moments at which every engine is scraped, ascending."""


@inlined
def _observe(s: State, rules: Rules, e: int, which: int, value: float, times: int) -> None:
    place = 0
    while value > rules.bounds[which, place]:
        place += 1
    s.exported[e, rules.places[which] + place] += times


@inlined
def _blocks_for(slots: int, size: int) -> int:
    return (slots + size - 1) // size


@inlined
def _unlink(s: State, e: int, number: int) -> None:
    """Take a block out of the free queue."""
    block = s.blocks[e, number]
    s.blocks[e, block.before].after = block.after
    s.blocks[e, block.after].before = block.before
    s.engines[e].free -= 1


@inlined
def _link(s: State, e: int, number: int, before: int) -> None:
    """Put a block into the free queue behind another."""
    after = s.blocks[e, before].after
    s.blocks[e, number].before = before
    s.blocks[e, number].after = after
    s.blocks[e, before].after = number
    s.blocks[e, after].before = number
    s.engines[e].free += 1


@inlined
def _allocate(s: State, rules: Rules, e: int, r: int, tokens: int) -> bool:
    """Give a request slots for more tokens; return whether there was room."""
    q, size = s.requests[r], rules.block
    slots = q.computed + tokens
    if slots > q.held * size and _blocks_for(slots, size) - q.held > s.engines[e].free:
        return False
    while q.held * size < slots:
        number = s.blocks[e, 0].after
        _unlink(s, e, number)
        s.blocks[e, number].digest = -1
        s.table[e, q.row, q.held] = number
        q.held += 1
    _remember(s, rules, e, r, min(q.computed + tokens, q.prompt + q.made))
    return True


@inlined
def _remember(s: State, rules: Rules, e: int, r: int, known: int) -> None:
    """Enter blocks that are full of known tokens into the prefix cache."""
    q = s.requests[r]
    while (q.marked + 1) * rules.block <= known:
        s.blocks[e, s.table[e, q.row, q.marked]].digest = r * MOST_BLOCKS + q.marked
        q.marked += 1


@inlined
def _give_back(s: State, e: int, r: int) -> None:
    """Free a request's blocks, the last first: cached ones are reused last, others first."""
    q = s.requests[r]
    for place in range(q.marked, q.held):
        _link(s, e, s.table[e, q.row, place], 0)
    for place in range(min(q.marked, q.held) - 1, -1, -1):
        _link(s, e, s.table[e, q.row, place], s.blocks[e, 0].before)
    q.held = 0


@inlined
def _end(s: State, rules: Rules, e: int, r: int, status: int) -> None:
    """End a request that is in no list any more."""
    q, engine = s.requests[r], s.engines[e]
    q.status = status
    if q.row >= 0:
        s.seats[e, engine.rows].row = q.row
        engine.rows += 1
        q.row = -1
    s.exported[e, FINISHES if status == FINISHED else LEAVES] += 1
    if rules.think > 0:
        s.next_at[q.client] = engine.now + rules.think


@inlined
def _preempt(s: State, e: int, r: int) -> None:
    _give_back(s, e, r)
    q, engine = s.requests[r], s.engines[e]
    q.status = PREEMPTED
    q.computed = q.placeholders = 0
    q.stale = q.in_flight
    q.preempted += 1
    q.unreported += 1
    s.seats[e, engine.evicted].evicted = r
    engine.evicted += 1


@inlined
def _leave(s: State, rules: Rules, e: int) -> None:
    """Let clients go who have waited for too long."""
    engine = s.engines[e]
    while engine.evicted > 0:
        r = s.seats[e, engine.evicted - 1].evicted
        if engine.now - max(s.requests[r].last, s.requests[r].arrived) <= rules.patience:
            break
        engine.evicted -= 1
        _end(s, rules, e, r, LEFT)
    while engine.queued > 0:
        r = engine.head
        if engine.now - s.requests[r].arrived <= rules.patience:
            break
        engine.head = s.requests[r].behind
        engine.queued -= 1
        _end(s, rules, e, r, LEFT)


@inlined
def _first_in_line(s: State, e: int) -> int:
    """Return who waits and comes next, or -1."""
    engine = s.engines[e]
    if engine.evicted > 0:
        return s.seats[e, engine.evicted - 1].evicted
    if engine.queued > 0 and s.requests[engine.head].arrived <= engine.now:
        return engine.head
    return -1


@inlined
def _may_start(s: State, rules: Rules, e: int, r: int) -> bool:
    engine = s.engines[e]
    if r < 0 or engine.running >= engine.cap:
        return False
    return _blocks_for(s.requests[r].prompt + s.requests[r].made, rules.block) <= engine.free


@inlined
def _start(s: State, rules: Rules, e: int, r: int) -> None:
    """Move the first in line into the running set, with the blocks of its own that are still cached."""
    q, engine = s.requests[r], s.engines[e]
    if q.status == PREEMPTED:
        engine.evicted -= 1
    else:
        if engine.rows == 0:
            raise RuntimeError("more requests have begun than there are block tables")
        engine.head = q.behind
        engine.queued -= 1
        engine.rows -= 1
        q.row = s.seats[e, engine.rows].row
        q.scheduled = engine.now
    hits = 0
    while hits < min(q.marked, (q.prompt + q.made - 1) // rules.block):
        number = s.table[e, q.row, hits]
        if s.blocks[e, number].digest != r * MOST_BLOCKS + hits:
            break
        _unlink(s, e, number)
        hits += 1
    q.held = q.marked = hits
    q.computed = hits * rules.block
    q.status = RUNNING
    s.seats[e, engine.running].running = r
    engine.running += 1


@inlined
def _schedule(s: State, rules: Rules, e: int) -> bool:
    """Decide the next step; return whether there is anything to compute."""
    engine = s.engines[e]
    place = (engine.oldest + engine.depth) % 2
    count, total, has_preempted = _schedule_running(s, rules, e, place)
    _leave(s, rules, e)
    while not has_preempted and total < BATCHED_TOKENS:
        r = _first_in_line(s, e)
        if not _may_start(s, rules, e, r):
            break
        _start(s, rules, e, r)
        q = s.requests[r]
        tokens = min(q.prompt + q.made - q.computed, BATCHED_TOKENS - total)
        _allocate(s, rules, e, r, tokens)
        _add_share(s, s.shares[e, place, count], r, tokens)
        count += 1
        total += tokens
    if count == 0:
        return False
    engine.last_end = max(engine.now, engine.last_end) + rules.step_seconds + rules.token_seconds * total
    s.steps[e, place].shares = count
    s.steps[e, place].end = engine.last_end
    engine.depth += 1
    return True


@inlined
def _schedule_running(s: State, rules: Rules, e: int, place: int) -> tuple[int, int, bool]:
    """Give running requests their tokens; return how many got some, of how many tokens, and who had to go."""
    engine = s.engines[e]
    count = total = at = 0
    has_preempted = False
    while at < engine.running and total < BATCHED_TOKENS:
        r = s.seats[e, at].running
        q = s.requests[r]
        at += 1
        last_is_coming = q.placeholders > 0 and q.computed + 2 - q.placeholders >= q.prompt + q.output
        tokens = min(q.prompt + q.made + q.placeholders - q.computed, BATCHED_TOKENS - total)
        if last_is_coming or tokens <= 0:
            continue
        while q.status == RUNNING and not _allocate(s, rules, e, r, tokens):
            engine.running -= 1
            _preempt(s, e, s.seats[e, engine.running].running)
            has_preempted = True
        if q.status != RUNNING:
            break
        _add_share(s, s.shares[e, place, count], r, tokens)
        count += 1
        total += tokens
    return count, total, has_preempted


@inlined
def _add_share(s: State, share: Share, r: int, tokens: int) -> None:
    q = s.requests[r]
    q.computed += tokens
    q.in_flight += tokens
    share.request = r
    share.tokens = tokens
    share.samples = q.computed >= q.prompt + q.made + q.placeholders
    q.placeholders += share.samples


@inlined
def _finish(s: State, rules: Rules, e: int) -> None:
    """Take the results of the oldest step in flight."""
    engine = s.engines[e]
    place = engine.oldest
    engine.now = max(engine.now, s.steps[e, place].end)
    engine.oldest = 1 - place
    engine.depth -= 1
    sampled = 0
    for at in range(s.steps[e, place].shares):
        sampled += _take_result(s, rules, e, s.shares[e, place, at])
    s.exported[e, STEPS] += sampled > 0
    s.exported[e, TOKENS] += sampled
    kept = 0
    for at in range(engine.running):
        r = s.seats[e, at].running
        s.seats[e, kept].running = r
        kept += s.requests[r].status == RUNNING
    engine.running = kept


@inlined
def _take_result(s: State, rules: Rules, e: int, share: Share) -> bool:
    """Take one request's result of a step; return whether it is a token."""
    r = share.request
    q = s.requests[r]
    q.in_flight -= share.tokens
    is_stale = q.stale > 0
    if is_stale:
        q.stale -= share.tokens
    if share.samples == 0 or q.status >= FINISHED:
        return False
    q.made += 1
    if not is_stale:
        q.placeholders -= 1
    if q.status == RUNNING:
        _remember(s, rules, e, r, q.computed - q.placeholders)
    _see_token(s, rules, e, r)
    if q.made >= q.output:
        _see_end(s, rules, e, r)
    return True


@inlined
def _see_token(s: State, rules: Rules, e: int, r: int) -> None:
    q, now = s.requests[r], s.engines[e].now
    s.exported[e, PREEMPTIONS] += q.unreported
    q.unreported = 0
    if q.made == 1:
        q.first = now
        _observe(s, rules, e, 0, now - q.arrived, 1)
        s.exported[e, TTFT_SUM] += now - q.arrived
    else:
        _see_gap(s, rules, e, r, now - q.last)
    q.last = now


@inlined
def _see_gap(s: State, rules: Rules, e: int, r: int, gap: float) -> None:
    _observe(s, rules, e, 1, gap, 1)
    s.exported[e, GAP_SUM] += gap
    s.requests[r].gap = max(s.requests[r].gap, gap)


@inlined
def _see_end(s: State, rules: Rules, e: int, r: int) -> None:
    q, engine = s.requests[r], s.engines[e]
    if q.status == PREEMPTED:
        kept = 0
        for at in range(engine.evicted):
            if s.seats[e, at].evicted != r:
                s.seats[e, kept].evicted = s.seats[e, at].evicted
                kept += 1
        engine.evicted = kept
    _give_back(s, e, r)
    _observe(s, rules, e, 2, engine.now - q.arrived, 1)
    s.exported[e, E2E_SUM] += engine.now - q.arrived
    _observe(s, rules, e, 3, q.first - q.scheduled, 1)
    s.exported[e, PREFILL_SUM] += q.first - q.scheduled
    _observe(s, rules, e, 4, q.prompt, 1)
    s.exported[e, PROMPTS] += q.prompt
    _observe(s, rules, e, 5, q.made, 1)
    s.exported[e, OUTPUTS] += q.made
    _end(s, rules, e, r, FINISHED)


@inlined
def _count_alike(s: State, rules: Rules, e: int, until: float) -> int:
    """Return how many steps can be taken at once: all decode, none ends, nothing starts, the pool lasts."""
    engine = s.engines[e]
    step = s.steps[e, engine.oldest]
    is_coming = engine.queued > 0 and s.requests[engine.head].arrived > engine.now
    if engine.running != step.shares or is_coming:
        return 0
    seconds = rules.step_seconds + rules.token_seconds * engine.running
    steps = min(MOST_AT_ONCE, int((until - step.end) / seconds) + 1)
    for at in range(engine.running):
        share = s.shares[e, engine.oldest, at]
        q = s.requests[share.request]
        decodes = share.tokens == 1 and share.samples and q.placeholders == 1 and q.made and q.stale == 0
        if not decodes or share.request != s.seats[e, at].running:
            return 0
        steps = min(steps, q.output - q.made - 1)
    if _may_start(s, rules, e, _first_in_line(s, e)):
        return 0
    while steps >= 2 and _blocks_of(s, rules, e, steps) > engine.free:
        steps //= 2
    return steps if steps >= 2 else 0


@inlined
def _blocks_of(s: State, rules: Rules, e: int, steps: int) -> int:
    """Return the blocks that so many steps take in addition."""
    needed = 0
    for at in range(s.engines[e].running):
        q = s.requests[s.seats[e, at].running]
        if q.computed + steps > q.held * rules.block:
            needed += _blocks_for(q.computed + steps, rules.block) - q.held
    return needed


@inlined
def _take_steps(s: State, rules: Rules, e: int, steps: int) -> None:
    """Take some steps of one token for each running request; the newest stays in flight."""
    engine = s.engines[e]
    count, step = engine.running, s.steps[e, engine.oldest]
    seconds = rules.step_seconds + rules.token_seconds * count
    begins = step.end
    engine.now = begins + (steps - 1) * seconds
    step.end = engine.last_end = begins + steps * seconds
    _observe(s, rules, e, 1, seconds, count * (steps - 1))
    s.exported[e, GAP_SUM] += seconds * count * (steps - 1)
    for at in range(count):
        r = s.seats[e, at].running
        q = s.requests[r]
        _allocate(s, rules, e, r, steps)
        q.computed += steps
        q.made += steps
        _remember(s, rules, e, r, q.computed - 1)
        s.exported[e, PREEMPTIONS] += q.unreported
        q.unreported = 0
        _see_gap(s, rules, e, r, begins - q.last)
        q.gap = max(q.gap, seconds)
        q.last = engine.now
    s.exported[e, STEPS] += steps
    s.exported[e, TOKENS] += steps * count


@njit(cache=True, error_model="numpy")
def _advance(s: State, rules: Rules, e: int, until: float) -> None:
    """Take every step of an engine that ends by then."""
    engine = s.engines[e]
    while True:
        if engine.depth == 1 and s.steps[e, engine.oldest].end <= until:
            _leave(s, rules, e)
            steps = _count_alike(s, rules, e, until)
            if steps > 0:
                _take_steps(s, rules, e, steps)
                continue
        while engine.depth < 2 and _schedule(s, rules, e):
            pass
        if engine.depth == 0 or s.steps[e, engine.oldest].end > until:
            return
        _finish(s, rules, e)


@inlined
def _in_flight(s: State, e: int) -> int:
    return s.engines[e].running + s.engines[e].evicted + s.engines[e].queued


@inlined
def _candidates(slots: Small, routing: int, chance: Floats) -> tuple[int, int]:
    """Return the place that a request goes to, and how many of the next ones are asked for less.

    Args:
        slots: the router's places.
        routing: how it chooses.
        chance: two numbers of 0-1, and that of the request's key.
    """
    if routing == STICKY:
        return int(chance[2] * slots.size), 0
    asked = 0 if routing == RANDOM else slots.size - 1
    return int(chance[0] * slots.size), min(asked, 1) if routing == TWO_CHOICES else asked


@inlined
def _choose(s: State, rules: Rules, course: Course, slots: Small, came: int) -> int:
    """Return the replica that a request goes to, once it is where it is as the request comes."""
    clock = s.requests[came].arrived
    place, others = _candidates(slots, course.routing, course.chances[came])
    e = slots[place]
    _advance(s, rules, e, clock)
    for step in range(1, others + 1):
        other = slots[(place + step) % slots.size]
        _advance(s, rules, other, clock)
        if _in_flight(s, other) < _in_flight(s, e):
            e = other
    return e


@inlined
def _push(s: State, e: int, r: int) -> None:
    q, engine = s.requests[r], s.engines[e]
    if engine.depth == 0 and _in_flight(s, e) == 0:
        engine.now = max(engine.now, q.arrived)
    q.engine = e
    if engine.queued == 0:
        engine.head = r
    else:
        s.requests[engine.tail].behind = r
    engine.tail = r
    engine.queued += 1


@njit(cache=True, error_model="numpy")
def run_fleet(s: State, rules: Rules, course: Course, slots: Small, pages: Floats, came: int) -> int:
    """Serve until the last scrape; return how many requests came.

    Args:
        s: the fleet at its start, or as it was left; it is left as it ends.
        rules: what does not change.
        course: what happens when.
        slots: the engine behind each of the router's places; left as they end.
        pages: what is scraped, by moment, engine and column.
        came: how many requests have come before.
    """
    swap = scrape = 0
    clock = seen = 0.0
    while scrape < course.scrapes.size:
        asker = int(np.argmin(s.next_at))
        next_at = _arrival(s, rules, came, asker)
        swap_at = course.swaps[swap, 0] if swap < course.swaps.shape[0] else NEVER
        # A client of a closed loop asks again one think time after its answer, so none is missed until then.
        known = seen + rules.think if rules.think > 0 else NEVER
        clock = min(next_at, swap_at, course.scrapes[scrape], known)
        if clock == known or clock == course.scrapes[scrape]:
            seen = clock
            for e in range(s.engines.size):
                _advance(s, rules, e, clock)
        if swap_at <= clock:
            slots[int(course.swaps[swap, 1])] = int(course.swaps[swap, 2])
            swap += 1
        elif next_at <= clock:
            s.requests[came].arrived = next_at
            s.requests[came].client = asker
            s.next_at[asker] = NEVER
            _push(s, _choose(s, rules, course, slots, came), came)
            came += 1
        elif course.scrapes[scrape] <= clock:
            _scrape(s, pages[scrape])
            scrape += 1
    return came


@inlined
def _arrival(s: State, rules: Rules, came: int, asker: int) -> float:
    """Return when the next request comes."""
    if came >= s.requests.size:
        return NEVER
    return s.next_at[asker] if rules.think > 0 else s.requests[came].arrived


@inlined
def _scrape(s: State, page: Floats) -> None:
    for e in range(s.engines.size):
        engine = s.engines[e]
        s.exported[e, RUNS] = engine.running
        s.exported[e, WAITS] = engine.evicted + engine.queued
        s.exported[e, USAGE] = 1.0 - engine.free / (s.blocks.shape[1] - 1)
    page[:] = s.exported
