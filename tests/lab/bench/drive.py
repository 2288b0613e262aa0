"""One engine in virtual time, its clients, and what the operator reads off its pages.

The scheduler is the engine's own: only clock and clients are replaced. A step's results come out when it
ends. Pages are scraped as Prometheus would scrape them.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import Page, moment, observe_pages, observe_saved_pages, parse_page
from kvmedic.model.compression import TokenEviction
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Observation
from kvmedic.model.run import Baseline, Verdict
from kvmedic.model.spec import LeverBound, Objectives, Trigger
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Advice, Assignment, Evidence, NoChange, Setting, diagnose
from kvmedic.runbooks.preemption.pressure import queue_of
from kvmedic.verdict.baseline import patient_baseline_of
from kvmedic.verdict.goals import judge_relief
from kvmedic.verdict.served_in_time import FIRST_TOKEN_SECONDS, STALL_SECONDS
from kvmedic.verdict.vetoes import Confirmation, VerdictInput
from lab.bench.workloads import Lengths, Workload
from lab.engine.blocks import BlockPool, HostTier
from lab.engine.metrics import EngineMetrics, Times
from lab.engine.requests import BlockTable, Request
from lab.engine.scheduler import Limits, Output, Scheduler, Step
from lab.engine.settings import StepCost

UNCAPPED = 100_000
BATCHED_TOKENS = 2048
PAGES = 24
"""Scrapes of a run: enough for the mean of a gauge, few enough to parse in no time."""


@dataclass(slots=True)
class Client:
    """What the client of one request saw, in seconds of virtual time."""

    times: Times
    longest_gap: float = 0.0


class VirtualEngine:
    """A scheduler whose steps take the time that their cost says."""

    def __init__(self, scheduler: Scheduler, cost: StepCost, metrics: EngineMetrics | None = None) -> None:
        self.scheduler, self.cost, self.metrics = scheduler, cost, metrics
        self.now = 0.0
        self.steps = 0
        """Steps with output, as `vllm:iteration_tokens_total_count`."""
        self.clients: dict[Request, Client] = {}
        self._in_flight: deque[tuple[Step, float]] = deque()
        self._depth = 2 if scheduler.limits.async_scheduling else 1
        self._last_end = 0.0

    def send(self, prompt: list[int], output: int, at: float | None = None) -> Request:
        """Queue a request that arrives now, or did at a moment before."""
        number = len(self.clients)
        table = BlockTable(self.scheduler.block_size)
        request = Request(str(number), prompt, output, table, seed=number + 1)
        self.clients[request] = Client(Times(self.now if at is None else at))
        self.scheduler.add(request)
        return request

    def start_steps(self) -> bool:
        """Schedule as many steps as the pipeline has room for; return whether any is in flight."""
        while len(self._in_flight) < self._depth and self.scheduler.has_requests:
            step = self.scheduler.schedule()
            if not step.scheduled:
                break
            for request in step.admitted:
                times = self.clients[request].times
                times.scheduled_at = times.scheduled_at or self.now
            cost = self.cost.of(step.tokens, step.loaded, step.moved)
            self._last_end = max(self.now, self._last_end) + cost
            self._in_flight.append((step, self._last_end))
        return bool(self._in_flight)

    def end_step(self) -> list[Request]:
        """Advance to the end of the oldest step in flight; return the requests that it finished."""
        step, end = self._in_flight.popleft()
        self.now = max(self.now, end)
        outputs = self.scheduler.finish(step)
        self.steps += bool(outputs)
        for output in outputs:
            client = self.clients[output.request]
            if client.times.first_token_at:
                client.longest_gap = max(client.longest_gap, self.now - client.times.last_token_at)
        self._note_times(outputs)
        return [output.request for output in outputs if output.finish_reason is not None]

    def _note_times(self, outputs: list[Output]) -> None:
        timed = [(output, self.clients[output.request].times) for output in outputs]
        if self.metrics is not None:
            self.metrics.record_step(timed, self.now)
            return
        for _, times in timed:
            times.first_token_at = times.first_token_at or self.now
            times.last_token_at = self.now


def prompt_of(number: int, lengths: Lengths) -> list[int]:
    """Return a prompt whose first tokens are those of its group and whose rest is its own."""
    shared = [-1 - lengths.group, *range(lengths.shared - 1)] if lengths.shared else []
    return [*shared, number, *range(lengths.prompt - len(shared) - 1)]


@dataclass(slots=True)
class Outcome:
    """What clients and scrapes saw once the engine was warm."""

    cap: int
    evicts: TokenEviction | None = None
    """What evicts tokens, by the engine's settings."""
    seconds: float = 0.0
    tokens: int = 0
    good_tokens: int = 0
    finished: int = 0
    unbroken: list[tuple[float, int]] = field(default_factory=list)
    """Seconds to the first token, and tokens, of each request without a stall."""
    pages: list[tuple[datetime, str]] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Tokens per second of requests without a stall."""
        return self.good_tokens / self.seconds

    def timely_tokens(self, limit: float = FIRST_TOKEN_SECONDS) -> int:
        """Return the tokens of requests without a stall whose first token came within so many seconds."""
        return sum(tokens for waited, tokens in self.unbroken if waited <= limit)

    def served_in_time(self, limit: float = FIRST_TOKEN_SECONDS) -> float:
        """Return the tokens per second of requests that were served in time."""
        return self.timely_tokens(limit) / self.seconds

    @property
    def throughput(self) -> float:
        return self.tokens / self.seconds


class Drive(VirtualEngine):
    """One run of a workload at one setting, under a closed loop of clients."""

    def __init__(
        self,
        workload: Workload,
        cap: int,
        lengths: Iterator[Lengths] | None = None,
        *,
        watermark: float = 0.0,
        batched_tokens: int = BATCHED_TOKENS,
        caching: bool = True,
        host_blocks: int = 0,
    ) -> None:
        self.workload = workload
        limits = Limits(cap, batched_tokens, workload.max_model_len, watermark=watermark)
        caching = caching and workload.method is None and workload.windows is None
        pool = BlockPool(workload.blocks + 1, caching=caching)
        host = HostTier(host_blocks) if host_blocks else None
        labels = {
            "num_gpu_blocks": str(workload.blocks + 1),
            "block_size": str(workload.block_tokens),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(caching),
            "engine": "0",
            **_labels_of_windows(workload, batched_tokens),
        }
        super().__init__(
            Scheduler(limits, pool, workload.block_tokens, host, workload.method, workload.windows),
            workload.cost,
            EngineMetrics("bench", workload.max_model_len, labels),
        )
        self.finished = 0
        self._epoch = datetime.now(UTC)
        self._lengths = workload.lengths() if lengths is None else lengths

    def run(self, warm: int, count: int) -> Outcome:
        """Serve `warm` requests, then `count` more that are measured and scraped."""
        self.warm_up(warm)
        return self.measure(count)

    def warm_up(self, count: int) -> None:
        """Begin: let every client send, and serve that many requests."""
        for _ in range(self.workload.clients):
            self._send_next()
        while self.finished < count:
            self.advance()

    def measure(self, count: int) -> Outcome:
        """Serve that many more requests, measured and scraped."""
        interval = self.now / self.finished * count / PAGES
        return self._measure_until(interval, lambda outcome: outcome.finished >= count)

    def advance(self) -> list[Request]:
        """End one step; return the requests that it finished, each replaced by the client's next one."""
        self.start_steps()
        ended = self.end_step()
        for _ in ended:
            self.finished += 1
            self._follow_up()
        return ended

    def _measure_until(self, interval: float, is_over: Callable[[Outcome], bool]) -> Outcome:
        """Serve until it is over, measured, and scraped at that interval in seconds."""
        outcome = Outcome(self.scheduler.limits.max_num_seqs, self.workload.evicts)
        started = due = self.now
        while not is_over(outcome):
            if self.now >= due:
                self._scrape(outcome)
                due += interval
            for request in self.advance():
                outcome.finished += 1
                outcome.tokens += request.output_length
                client = self.clients[request]
                if client.longest_gap > STALL_SECONDS:
                    continue
                outcome.good_tokens += request.output_length
                waited = client.times.first_token_at - client.times.arrived_at
                outcome.unbroken.append((waited, request.output_length))
        self._scrape(outcome)
        outcome.seconds = self.now - started
        return outcome

    def _scrape(self, outcome: Outcome) -> None:
        at = self._epoch + timedelta(seconds=self.now)
        if self.metrics is None or (outcome.pages and at <= outcome.pages[-1][0]):
            return
        self.metrics.record_scheduler(self.scheduler)
        outcome.pages.append((at, self.metrics.text()))

    def _send_next(self, at: float | None = None) -> None:
        lengths = next(self._lengths)
        self.send(prompt_of(len(self.clients), lengths), lengths.output, at)

    def _follow_up(self) -> None:
        """Let the client that was answered send again: a closed loop."""
        self._send_next()


def _labels_of_windows(workload: Workload, step_tokens: int) -> dict[str, str]:
    """Return the labels in which vLLM reports a model with sliding windows.

    The tokens that the pool holds are those of requests as long as the model takes them (vLLM
    v1/core/kv_cache_utils.py, `get_kv_cache_capacity`).
    """
    if workload.windows is None:
        return {}
    longest = -(-workload.max_model_len // workload.block_tokens)
    whole = longest + workload.windows.most(longest, step_tokens, workload.block_tokens)
    tokens = int((workload.blocks + 1) / whole * workload.max_model_len)
    return {"sliding_window": str(workload.windows.tokens), "kv_cache_size_tokens": str(tokens)}


class OpenDrive(Drive):
    """A run in which requests come by a Poisson process, however long others wait.

    The same chance gives the same requests at the same moments, whatever the engine does with them.

    Args:
        workload: the engine and the lengths of requests.
        cap: of running requests.
        per_second: requests that arrive, on average.
        chance: of the arrivals.
        lengths: those of the requests.
        next_at: when the first one comes; None: drawn.
    """

    def __init__(
        self,
        workload: Workload,
        cap: int,
        per_second: float,
        chance: random.Random,
        lengths: Iterator[Lengths] | None = None,
        next_at: float | None = None,
    ) -> None:
        super().__init__(workload, cap, lengths)
        self._chance, self._per_second = chance, per_second
        self._next_at = chance.expovariate(per_second) if next_at is None else next_at

    def run_for(self, warm_seconds: float, seconds: float) -> Outcome:
        """Serve for a while, then for a while that is measured and scraped."""
        while self.now < warm_seconds:
            self.advance()
        until = self.now + seconds
        return self._measure_until(seconds / PAGES, lambda _: self.now >= until)

    def advance(self) -> list[Request]:
        """End one step, after every request that has arrived by then."""
        if not self._in_flight and not self.scheduler.has_requests:
            self.now = max(self.now, self._next_at)
        while self._next_at <= self.now:
            self._send_next(self._next_at)
            self._next_at += self._chance.expovariate(self._per_second)
        return super().advance()

    def _follow_up(self) -> None:
        """Send nothing: who comes next does not ask how others fared."""


Run = Callable[..., Outcome]


def runs_of(workload: Workload) -> Run:
    """Return what runs a workload at a cap, and a watermark if one is given; once each."""
    warm, count = workload.requests

    @cache
    def run(cap: int, watermark: float = 0.0) -> Outcome:
        return Drive(workload, cap, watermark=watermark).run(warm, count)

    return run


TRIGGER = Trigger(preemptions_per_request=0.1, kv_cache_usage_ratio=0.85)
"""Lower than the default, so that sizing is asked where a cut must not come, too."""
_LEVERS = (LeverBound(Knob.MAX_NUM_SEQS),)


@lru_cache(1024)
def parse_once(text: str, at: datetime) -> Page:
    """Return a scraped page; a workload's are asked for by one figure after the other."""
    return parse_page(text, at)


def observed(outcome: Outcome, pages: int | None = None) -> Observation:
    """Return what the last pages report; all of them where no number is given."""
    parsed = [parse_once(text, at) for at, text in outcome.pages[-(pages or len(outcome.pages)) :]]
    return observe_pages({"bench-0": parsed}, VLLM_SIGNALS)


def seen(outcome: Outcome) -> Evidence:
    """Return what the operator sees at the end of a run: its second half, and all of it."""
    half = observed(outcome, len(outcome.pages) // 2)
    return Evidence(half, observed(outcome), TRIGGER, evicts=outcome.evicts)


def figures_of(outcome: Outcome) -> Baseline | Inconclusive:
    """Return the figures that a change is compared with."""
    looked = seen(outcome)
    stay = queue_of(looked.burn).is_steady and queue_of(looked.sizing).is_steady
    return patient_baseline_of(looked.sizing, 0, Objectives(), clients_stay=stay)


def verdict_on(
    before: Baseline, after: Outcome, confirmed_by: Confirmation = Confirmation.FIGURES
) -> Verdict:
    """Return what the operator says of a change, by the scrapes of a run after it."""
    known = VerdictInput(before, observed(after), Objectives(), TRIGGER, confirmed_by=confirmed_by)
    return judge_relief(known).verdict


def advice_on(evidence: Evidence, setting: Setting) -> Advice:
    """Return what the operator would set, or why nothing."""
    found = diagnose(RUNBOOKS["PreemptionThrash"], evidence)
    if isinstance(found, Inconclusive):
        return NoChange(found.reason, found.message)
    if found.branch.then is None:
        return NoChange(found.reason, "")
    return found.branch.then(evidence, setting)


def chosen_cap(outcome: Outcome, present: int | None = None, *, ours: bool = False) -> tuple[int | None, str]:
    """Return the cap that the operator reads off the scrapes, or None, with its reason.

    Args:
        outcome: the run.
        present: the cap that is set.
        ours: it is one that the operator computed, and has not corrected yet.
    """
    return _advised(seen(outcome), Setting(present, _LEVERS, is_our_cap=ours))


def saved_pages_cap(outcome: Outcome) -> tuple[int | None, str]:
    """Return the cap by two pages: the first and the last, without a clock."""
    first, last = outcome.pages[0][1], outcome.pages[-1][1]
    pages = [parse_page(text, moment(place)) for place, text in enumerate((first, last))]
    seen = observe_saved_pages({"bench-0": pages}, VLLM_SIGNALS, None).observation
    return _advised(Evidence(seen, seen, TRIGGER, evicts=outcome.evicts), Setting(None, _LEVERS))


def _advised(evidence: Evidence, setting: Setting) -> tuple[int | None, str]:
    advice = advice_on(evidence, setting)
    return int(advice.value) if isinstance(advice, Assignment) else None, str(advice.reason)
