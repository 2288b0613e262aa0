"""Traffic and engines for the benchmarks: lengths of public traces, and shapes that are hard to size."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import methodcaller

from kvmedic.model.compression import Compacted, Scattered, TokenEviction
from lab.engine.blocks import Windows
from lab.engine.compression import Compaction, Compression, Eviction
from lab.engine.settings import StepCost

Draw = Callable[[random.Random], int]
"""One length from a source of chance."""

CPU = StepCost()
"""As measured: a prefilled token is dear (0.42 ms against steps of 11 ms)."""
GPU = StepCost(step_seconds=0.020, token_seconds=0.000_04)
"""A large accelerator: 25,000 prefilled tokens a second beside steps of 20 ms."""

AZURE_PROMPT = ((0, 3), (0.1, 207), (0.25, 396), (0.5, 1020), (0.75, 1189), (0.9, 2735), (0.95, 4083))
AZURE_PROMPT += ((0.99, 4142), (1, 14050))
AZURE_OUTPUT = ((0, 1), (0.1, 54), (0.25, 85), (0.5, 129), (0.75, 395), (0.9, 424), (0.95, 451))
AZURE_OUTPUT += ((0.99, 601), (1, 1000))
"""Quantiles of the Azure 2023 conversation trace (19,366 requests, CC-BY, Splitwise, ISCA 2024)."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of one request; the first `shared` of the prompt are those of its group."""

    prompt: int
    output: int
    shared: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """One engine and the closed loop of clients in front of it."""

    name: str
    prompt: Draw
    output: Draw
    blocks: int
    block_tokens: int
    clients: int
    cost: StepCost = CPU
    shared: int = 0
    """Tokens that the prompts of one group begin with; there are four groups."""
    tokens: int = 240_000
    """Generated tokens that a run measures, about."""
    max_model_len: int = 16_384
    method: Compression | None = None
    """KV compression that is on."""
    reports_budget: bool = True
    """Whether its settings say how many tokens are kept."""
    windows: Windows | None = None
    """Of a model that mixes kinds of attention: gpt-oss has one group of 128, Gemma 3 six of 512 or 1024."""

    @property
    def evicts(self) -> TokenEviction | None:
        """Return what the engine's settings say of its compression."""
        if self.method is None:
            return None
        pattern = Scattered() if self.method.compaction is None else Compacted()
        budget = self.method.eviction.budget if self.reports_budget else None
        return TokenEviction("eviction", pattern, budget)

    @property
    def mean_output(self) -> float:
        """Tokens that a request generates, on average."""
        return sum(one.output for one in islice(self.lengths(), 2000)) / 2000

    @property
    def requests(self) -> tuple[int, int]:
        """How many requests warm an engine, and how many are measured then."""
        count = round(self.tokens / self.mean_output)
        return max(2 * self.clients, count // 4), count

    def lengths(self, seed: int = 7) -> Iterator[Lengths]:
        """Yield the requests' lengths, the same ones for the same seed."""
        drawn = random.Random(seed)
        while True:
            prompt, output = self.prompt(drawn), self.output(drawn)
            shared = min(self.shared, self.max_model_len // 2)
            prompt = min(prompt + shared, self.max_model_len - 2)
            yield Lengths(prompt, min(output, self.max_model_len - prompt), shared, drawn.randrange(4))


def varied(mean: float, variation: float, low: int, high: int) -> Draw:
    """Return lognormal lengths by mean and relative deviation, clipped."""
    sigma = math.sqrt(math.log(1 + variation**2))
    return partial(_draw_varied, math.log(mean) - sigma**2 / 2, sigma, low, high)


def even(low: int, high: int) -> Draw:
    return methodcaller("randint", low, high)


def fixed(length: int) -> Draw:
    return even(length, length)


def either(first: Draw, second: Draw, share: float) -> Draw:
    """Return lengths of the first kind for a share of the requests, of the second for the others."""
    return partial(_draw_either, first, second, share)


def table(quantiles: Sequence[tuple[float, float]]) -> Draw:
    """Return lengths of a table of quantiles, straight lines between them."""
    return partial(_draw_between, quantiles)


# Functions of the module, so that a workload travels to another process.
def _draw_varied(mu: float, sigma: float, low: int, high: int, drawn: random.Random) -> int:
    return min(high, max(low, round(drawn.lognormvariate(mu, sigma))))


def _draw_either(first: Draw, second: Draw, share: float, drawn: random.Random) -> int:
    return (first if drawn.random() < share else second)(drawn)


def _draw_between(quantiles: Sequence[tuple[float, float]], drawn: random.Random) -> int:
    share = drawn.random()
    at = next(i for i, (upto, _) in enumerate(quantiles) if share <= upto)
    (low, a), (high, b) = quantiles[max(0, at - 1)], quantiles[max(1, at)]
    return max(1, round(a + (b - a) * (share - low) / (high - low)))


CHAT_PROMPT, CHAT_OUTPUT = varied(60, 0.6, 8, 400), varied(190, 0.7, 10, 1200)
SHARE_PROMPT, SHARE_OUTPUT = varied(220, 1.2, 4, 1024), varied(200, 0.9, 4, 1024)
REASON_PROMPT, REASON_OUTPUT = varied(120, 0.8, 10, 1000), varied(1000, 0.8, 50, 5000)

COMPACTED = Compression(Eviction(budget=512), compaction=Compaction.IN_ORDER)
SCATTERED = Compression(Eviction(budget=512))

WORKLOADS = (
    Workload("chat", CHAT_PROMPT, CHAT_OUTPUT, 149, 32, 32),
    Workload("chat, fast engine", CHAT_PROMPT, CHAT_OUTPUT, 149, 32, 64, CPU.scaled(0.2)),
    Workload("chat, accelerator", CHAT_PROMPT, CHAT_OUTPUT, 149, 32, 64, GPU),
    Workload("shared chats", SHARE_PROMPT, SHARE_OUTPUT, 600, 16, 80),
    Workload("shared chats, large pool", SHARE_PROMPT, SHARE_OUTPUT, 2400, 16, 200),
    Workload("shared chats, accelerator", SHARE_PROMPT, SHARE_OUTPUT, 1000, 16, 120, GPU),
    Workload("Azure conversation", table(AZURE_PROMPT), table(AZURE_OUTPUT), 1500, 16, 64),
    Workload("Azure conversation, accelerator", table(AZURE_PROMPT), table(AZURE_OUTPUT), 4000, 16, 128, GPU),
    Workload("reasoning, small pool", REASON_PROMPT, REASON_OUTPUT, 800, 16, 32, tokens=400_000),
    Workload("reasoning", REASON_PROMPT, REASON_OUTPUT, 2400, 16, 80, tokens=400_000),
    Workload("reasoning, accelerator", REASON_PROMPT, REASON_OUTPUT, 1600, 16, 64, GPU, tokens=400_000),
    Workload("fixed 64 + 512", fixed(64), fixed(512), 149, 32, 64),
    Workload("fixed 256 + 256, accelerator", fixed(256), fixed(256), 1000, 16, 80, GPU),
    Workload("nearly fixed", even(61, 67), even(700, 760), 600, 16, 40),
    Workload("even 201 to 500", even(100, 200), even(201, 500), 500, 16, 60),
    Workload(
        "bimodal",
        either(even(20, 100), even(200, 400), 0.7),
        either(even(20, 80), even(400, 900), 0.7),
        300,
        32,
        64,
    ),
    Workload("shared prefixes", varied(200, 0.8, 8, 2000), SHARE_OUTPUT, 1000, 16, 120, shared=512),
    Workload(
        "reasoning, evicted, compacted",
        REASON_PROMPT,
        REASON_OUTPUT,
        400,
        16,
        48,
        tokens=400_000,
        method=COMPACTED,
    ),
    Workload(
        "reasoning, evicted, scattered",
        REASON_PROMPT,
        REASON_OUTPUT,
        800,
        16,
        48,
        tokens=400_000,
        method=SCATTERED,
    ),
    Workload(
        "reasoning, window of 128",
        REASON_PROMPT,
        REASON_OUTPUT,
        1800,
        16,
        48,
        tokens=300_000,
        windows=Windows(1, 128),
    ),
    Workload(
        "reasoning, six windows of 512",
        REASON_PROMPT,
        REASON_OUTPUT,
        6000,
        16,
        48,
        tokens=300_000,
        windows=Windows(6, 512),
    ),
    Workload("chat, window of 128", CHAT_PROMPT, CHAT_OUTPUT, 400, 16, 40, windows=Windows(1, 128)),
    Workload("summaries", varied(2000, 0.6, 200, 8000), varied(100, 0.6, 20, 400), 4000, 16, 48),
    Workload("light load", SHARE_PROMPT, SHARE_OUTPUT, 1000, 16, 24),
)
"""Every workload of the benchmark."""

MID = StepCost(step_seconds=0.015, token_seconds=0.000_15)
"""A small accelerator: 6,700 prefilled tokens a second."""
SUMMARY_PROMPT, RETRIEVED_PROMPT = varied(2000, 0.6, 200, 8000), varied(3000, 0.4, 500, 8000)
AGENT_PROMPT, CODE_PROMPT = varied(1200, 0.5, 100, 6000), varied(2000, 0.95, 30, 7500)
LONG_PROMPTS = (
    Workload("summaries, small pool", SUMMARY_PROMPT, varied(100, 0.6, 20, 400), 1500, 16, 32, tokens=72_000),
    Workload("code", CODE_PROMPT, varied(60, 1.5, 5, 800), 2000, 16, 48, GPU, tokens=30_000),
    Workload("retrieval", RETRIEVED_PROMPT, varied(300, 0.6, 20, 900), 3000, 16, 48, MID, tokens=60_000),
    Workload("agents", AGENT_PROMPT, varied(150, 0.8, 10, 800), 1200, 16, 64, GPU, tokens=72_000),
    Workload(
        "agents, slow engine",
        AGENT_PROMPT,
        varied(250, 0.8, 10, 1200),
        1500,
        16,
        40,
        CPU.scaled(0.5),
        tokens=72_000,
    ),
    Workload("extraction, fixed 1024 + 128", fixed(1024), fixed(128), 1500, 16, 64, GPU, tokens=72_000),
    Workload("Azure, small pool", table(AZURE_PROMPT), table(AZURE_OUTPUT), 1000, 16, 40, MID, tokens=72_000),
    Workload("Azure, middling", table(AZURE_PROMPT), table(AZURE_OUTPUT), 1500, 16, 64, MID, tokens=72_000),
)
"""Requests of which the prompt is nearly all: little of a running sequence is its own output."""


LONGEST_MODEL = 16_384
"""Tokens of prompt and answer, at most; vLLM does not start with more than its pool holds."""
_SHAPES = ("varied", "varied", "varied", "two kinds", "fixed", "even")


def range_of(text: str) -> range:
    """Return `20-29` as those ten numbers, and a number alone as itself."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def chosen(arguments: Sequence[str], known: Sequence[Workload]) -> list[Workload]:
    """Return the known workloads that parts of names say, all by default; `drawn=0-98` adds drawn ones."""
    names = [text for text in arguments if not text.startswith("drawn=")]
    seeds = [seed for text in arguments if text.startswith("drawn=") for seed in range_of(text[6:])]
    named = [one for one in known if not arguments or any(name in one.name for name in names)]
    return named + [drawn(seed) for seed in seeds]


def drawn(seed: int) -> Workload:
    source = random.Random(seed)
    prompt, prompt_mean = _lengths(source, _between(source, 40, 1200))
    output, output_mean = _lengths(source, _between(source, 80, 1200))
    block_tokens = source.choice((16, 32))
    sequences = _between(source, 8, 70)
    needed = round(sequences * (prompt_mean + 0.8 * output_mean) / block_tokens)
    blocks = max(needed, round(3 * (prompt_mean + output_mean) / block_tokens))
    clients = round(sequences * source.uniform(1.3, 3)) + 4
    cost = StepCost(_between(source, 0.006, 0.03), _between(source, 0.000_03, 0.000_5))
    shared = source.choice((0, 0, 0, 0, 256))
    longest = min(LONGEST_MODEL, blocks * block_tokens)
    return Workload(
        f"drawn {seed}", prompt, output, blocks, block_tokens, clients, cost, shared, max_model_len=longest
    )


def _between(source: random.Random, low: float, high: float) -> float:
    return math.exp(source.uniform(math.log(low), math.log(high)))


def _lengths(source: random.Random, mean: float) -> tuple[Draw, float]:
    match source.choice(_SHAPES):
        case "fixed":
            return fixed(round(mean)), mean
        case "even":
            width = source.choice((0.05, 0.2, 0.45, 0.8))
            return even(max(1, round(mean * (1 - width))), round(mean * (1 + width))), mean
        case "two kinds":
            share, factor = source.uniform(0.3, 0.85), source.uniform(3, 8)
            low = mean / (share + (1 - share) * factor)
            return either(varied(low, 0.3, 2, 20_000), varied(low * factor, 0.3, 2, 20_000), share), mean
        case _:
            variation = source.choice((0.3, 0.6, 0.9, 1.3))
            return varied(mean, variation, 2, min(8000, round(mean * 8))), mean
