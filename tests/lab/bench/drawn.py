"""Workloads drawn at random: what a rule was not made for.

Lengths, pools, clients and costs are drawn by a seed, independent of one another and evenly on a
logarithmic scale where they span decades.
"""

import math
import random

from lab.bench.workloads import Draw, Workload, either, even, fixed, varied
from lab.engine.settings import StepCost

LONGEST_MODEL = 16_384
"""Tokens of prompt and answer, at most; vLLM does not start with more than its pool holds."""
_SHAPES = ("varied", "varied", "varied", "two kinds", "fixed", "even")


def drawn(seed: int) -> Workload:
    source = random.Random(seed)
    prompt, prompt_mean = _lengths(source, _between(source, 40, 1200))
    output, output_mean = _lengths(source, _between(source, 80, 1200))
    block_tokens = source.choice((16, 32))
    sequences = _between(source, 8, 70)
    wanted = round(sequences * (prompt_mean + 0.8 * output_mean) / block_tokens)
    blocks = max(wanted, round(3 * (prompt_mean + output_mean) / block_tokens))
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
