"""One engine under a closed loop of clients in virtual time, scraped as Prometheus would scrape it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import glimpse, moment, observe_pages, parse_page
from kvmedic.model.compression import TokenEviction
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Observation
from kvmedic.model.spec import LeverBound, Trigger
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Advice, Assignment, Evidence, NoChange, Setting, diagnose
from lab.bench.workloads import Lengths, Workload
from lab.engine.blocks import BlockPool, HostTier
from lab.engine.metrics import EngineMetrics, Times
from lab.engine.requests import BlockTable, Request
from lab.engine.scheduler import Limits, Output, Scheduler, Step

STALL_SECONDS = 2.0
"""A request with a longer gap between two tokens does not count as good."""
UNCAPPED = 100_000
BATCHED_TOKENS = 2048
PAGES = 24
"""Scrapes of a run: enough for the mean of a gauge, few enough to parse in no time."""


@dataclass(slots=True)
class Outcome:
    """What clients and scrapes saw once the engine was warm."""

    cap: int
    evicts: TokenEviction | None = None
    """What evicts tokens, as the engine's settings tell."""
    seconds: float = 0.0
    tokens: int = 0
    good_tokens: int = 0
    finished: int = 0
    pages: list[tuple[datetime, str]] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Tokens per second of requests without a stall."""
        return self.good_tokens / self.seconds

    @property
    def throughput(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(slots=True)
class Client:
    """What the client of one request saw."""

    times: Times
    longest_gap: float = 0.0


class Drive:
    """One run of a workload at one setting."""

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
        caching = caching and workload.method is None
        pool = BlockPool(workload.blocks + 1, caching=caching)
        host = HostTier(host_blocks) if host_blocks else None
        self.scheduler = Scheduler(limits, pool, workload.block_tokens, host, workload.method)
        labels = {
            "num_gpu_blocks": str(workload.blocks + 1),
            "block_size": str(workload.block_tokens),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(caching),
            "engine": "0",
        }
        self.metrics = EngineMetrics("bench", workload.max_model_len, labels)
        self.now = 0.0
        self._epoch = datetime.now(UTC)
        self._lengths = workload.lengths() if lengths is None else lengths
        self._finished = 0
        self._clients: dict[Request, Client] = {}
        self._in_flight: list[tuple[Step, float]] = []
        self._last_end = 0.0

    def run(self, warm: int, count: int) -> Outcome:
        """Serve `warm` requests, then `count` more that are measured and scraped."""
        self.warm_up(warm)
        return self.measure(count)

    def warm_up(self, count: int) -> None:
        """Begin: let every client send, and serve that many requests."""
        for _ in range(self.workload.clients):
            self._send()
        while self._finished < count:
            self._advance()

    def measure(self, count: int) -> Outcome:
        """Serve that many more requests, measured and scraped."""
        interval = self.now / self._finished * count / PAGES
        return self._measured(interval, lambda outcome: outcome.finished >= count)

    def _measured(self, interval: float, is_over: Callable[[Outcome], bool]) -> Outcome:
        """Serve until it is over, measured, and scraped at that interval in seconds."""
        outcome = Outcome(self.scheduler.limits.max_num_seqs, self.workload.evicts)
        started = due = self.now
        while not is_over(outcome):
            if self.now >= due:
                self._scrape(outcome)
                due += interval
            for client, request in self._advance():
                self._count(outcome, client, request)
        self._scrape(outcome)
        outcome.seconds = self.now - started
        return outcome

    def _count(self, outcome: Outcome, client: Client, request: Request) -> None:
        outcome.finished += 1
        outcome.tokens += request.output_length
        if client.longest_gap <= STALL_SECONDS:
            outcome.good_tokens += request.output_length

    def _scrape(self, outcome: Outcome) -> None:
        at = self._epoch + timedelta(seconds=self.now)
        if outcome.pages and at <= outcome.pages[-1][0]:
            return
        self.metrics.record_scheduler(self.scheduler)
        outcome.pages.append((at, self.metrics.text()))

    def _send(self, at: float | None = None) -> None:
        lengths = next(self._lengths)
        number = len(self._clients)
        prompt = prompt_of(number, lengths)
        request = Request(
            str(number), prompt, lengths.output, BlockTable(self.scheduler.block_size), seed=number + 1
        )
        self._clients[request] = Client(Times(self.now if at is None else at))
        self.scheduler.add(request)

    def _advance(self) -> list[tuple[Client, Request]]:
        """End one step; return the requests that it finished, each replaced by the client's next one."""
        while len(self._in_flight) < 2:
            step = self.scheduler.schedule()
            if not step.scheduled:
                break
            for request in step.admitted:
                times = self._clients[request].times
                times.scheduled_at = times.scheduled_at or self.now
            self._last_end = max(self.now, self._last_end) + self.workload.cost.of(
                step.tokens, step.loaded, step.moved
            )
            self._in_flight.append((step, self._last_end))
        step, self.now = self._in_flight.pop(0)
        return self._take(self.scheduler.finish(step))

    def _take(self, outputs: list[Output]) -> list[tuple[Client, Request]]:
        ended = []
        for output in outputs:
            client = self._clients[output.request]
            if client.times.first_token_at:
                client.longest_gap = max(client.longest_gap, self.now - client.times.last_token_at)
        self.metrics.record_step([(o, self._clients[o.request].times) for o in outputs], self.now)
        for output in outputs:
            if output.finish_reason is not None:
                ended.append((self._clients[output.request], output.request))
                self._finished += 1
                self._follow_up()
        return ended

    def _follow_up(self) -> None:
        """Let whoever was answered send again: a closed loop."""
        self._send()


def prompt_of(number: int, lengths: Lengths) -> list[int]:
    """Return a prompt whose first tokens are those of its group and whose rest is its own."""
    shared = [-1 - lengths.group, *range(lengths.shared - 1)] if lengths.shared else []
    return [*shared, number, *range(lengths.prompt - len(shared) - 1)]


TRIGGER = Trigger(preemptions_per_request=0.1, kv_cache_usage_ratio=0.85)
"""Lower than the default, so that sizing is asked where a cut must not come, too."""
_LEVERS = (LeverBound(Knob.MAX_NUM_SEQS),)


def observed(outcome: Outcome, pages: int) -> Observation:
    parsed = [parse_page(text, at) for at, text in outcome.pages[-pages:]]
    return observe_pages({"bench-0": parsed}, VLLM_SIGNALS)


def seen(outcome: Outcome) -> Evidence:
    """Return what the operator sees at the end of a run: its second half, and all of it."""
    pages = len(outcome.pages)
    whole = observed(outcome, pages)
    return Evidence(observed(outcome, pages // 2), whole, TRIGGER, evicts=outcome.evicts)


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


def glimpsed_cap(outcome: Outcome) -> tuple[int | None, str]:
    """Return the cap that two pages tell: the first and the last, without a clock."""
    first, last = outcome.pages[0][1], outcome.pages[-1][1]
    pages = [parse_page(text, moment(place)) for place, text in enumerate((first, last))]
    glanced = glimpse({"bench-0": pages}, VLLM_SIGNALS, None).observation
    return _advised(Evidence(glanced, glanced, TRIGGER, evicts=outcome.evicts), Setting(None, _LEVERS))


def _advised(evidence: Evidence, setting: Setting) -> tuple[int | None, str]:
    advice = advice_on(evidence, setting)
    return (
        (int(advice.value), str(advice.reason))
        if isinstance(advice, Assignment)
        else (None, str(advice.reason))
    )
