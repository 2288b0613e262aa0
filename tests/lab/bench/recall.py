"""`make bench-recall`: what the lab's evaluation says of the lab engine, by what a method keeps and sees.

    python -m lab.bench.recall --samples 200

The evaluation's own samples and answers, and the engine's own scheduler in virtual time, so that a score
takes a second. Each follows from the slots that are left when a request ends. Beside it stands what is to be
expected: the share of prompts that the model understands, times the share of needles that survive.
"""

import argparse
from dataclasses import dataclass
from functools import cache

from lab.bench.drive import VirtualEngine
from lab.engine.blocks import BlockPool
from lab.engine.compression import Compression, Eviction, Recall, Survival
from lab.engine.openai import WORDS
from lab.engine.scheduler import Limits, Scheduler
from lab.engine.settings import StepCost
from lab.evaluation.samples import Sample, samples_of

PROMPT, OUTPUT, BLOCK_TOKENS = 400, 200, 16
"""The evaluation's defaults; blocks of vLLM's usual size."""
LIMITS = Limits(max_num_seqs=16, max_num_batched_tokens=2048, max_model_len=1024)
KEPT = (1.0, 0.75, 0.5, 0.25, 0.1)
SALIENCES = (0.0, 0.5, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Score:
    """Of one engine."""

    right: float
    """Share of samples, 0 to 1."""
    expected: float


def score(eviction: Eviction, samples: int, recall: Recall | None = None) -> Score:
    """Ask an engine that evicts so all samples, and count."""
    recall = recall or Recall()
    asked = _samples(samples)
    scheduler = Scheduler(LIMITS, BlockPool(2000, caching=False), BLOCK_TOKENS, None, Compression(eviction))
    scheduler.recall = recall
    engine = VirtualEngine(scheduler, StepCost())
    requests = [engine.send(list(sample.prompt), OUTPUT) for sample in asked]
    while engine.start_steps():
        engine.end_step()
    right = sum(
        WORDS[request.tokens[-1] % len(WORDS)].split() == [sample.answer]
        for request, sample in zip(requests, asked, strict=True)
    )
    understood = sum(recall.understands(list(sample.prompt)) for sample in asked)
    return Score(right / samples, understood / samples * survival_of(eviction))


def survival_of(eviction: Eviction) -> float:
    """Return the share of needles that survive, by arithmetic: no head that lost it, of those that judge."""
    lost = (1 - eviction.salience) * (1 - (eviction.keep or 0))
    return 1 - lost ** (eviction.heads if eviction.survival is Survival.PER_HEAD else 1)


@cache
def _samples(number: int) -> tuple[Sample, ...]:
    return tuple(samples_of(number, PROMPT))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.recall", description=__doc__)
    parser.add_argument("--samples", type=int, default=200, help="questions for each score")
    samples = parser.parse_args().samples
    print(f"score of {samples} samples, {PROMPT} tokens of prompt and {OUTPUT} of answer; (expected)\n")
    for survival in (Survival.SCATTERED, Survival.PER_HEAD):
        print(f"{survival:12}" + "".join(f"{f'salience {each:g}':>16}" for each in SALIENCES))
        for keep in KEPT:
            found = [score(Eviction(survival, keep=keep, salience=each), samples) for each in SALIENCES]
            cells = "".join(f"{f'{each.right:.3f} ({each.expected:.3f})':>16}" for each in found)
            print(f"{f'keeps {keep:g}':12}{cells}", flush=True)
        print()
    eight_bit = score(Eviction(keep=1), samples, Recall.of({}, eight_bit=True))
    print(f"{'fp8':12}{f'{eight_bit.right:.3f} ({eight_bit.expected:.3f})':>16}")


if __name__ == "__main__":
    main()
