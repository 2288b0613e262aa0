"""The tests on trial pods, answered from the script that a test may rewrite at any time.

`"probe": "Scattered"` is what a generation shows: the name of a class of `Reclaim`, or `refused`, `hangs` and
`short`, which show nothing; `"prompts": "Square"` is the same of prompts, with names of `Growth`,
and `"promptsWithout"` with the method off; `"blocksWithout": 8192` are those of an engine that starts so.
What this process began it alone knows, as with real tests. `"answered": 200` is how many requests an
evaluation sends to the trial pod, `"stored": "fp8"` the type of the pod's cache.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvmedic.metrics.generation import lengths_up_to
from kvmedic.model.compression import Compacted, Keep, Pattern, PerHead, Scattered, used_blocks
from kvmedic.model.fleet import Pod
from kvmedic.model.plan import TrialStep
from kvmedic.model.trial import (
    Begun,
    Counted,
    Growth,
    Interrupted,
    Progress,
    Prompt,
    Prompted,
    Question,
    Reclaim,
    Sample,
    Served,
    Underway,
    Watched,
)
from lab.engine.config import SCORE_BYTES

BLOCK_TOKENS = 16
KEEP = Keep(2048)
SAMPLES = 200
MEAN_TOKENS = 3000.0
"""Of an evaluation: its requests, and prompt and answer of one together."""
BEFORE = float(40 << 30)
"""Device memory in use before the first prompt, in bytes."""
LOOKS = 2
"""Times that a test is looked at before it ends."""
_KEYS = {
    (Question.RECLAMATION, False): "probe",
    (Question.PROMPTS, False): "prompts",
    (Question.PROMPTS, True): "promptsWithout",
    (Question.START, True): "blocksWithout",
}
"""Where the script says what a question shows, with the method on and off."""
_PATTERNS: Mapping[Reclaim, Pattern] = {
    Reclaim.RECLAIMS: Compacted(),
    Reclaim.SCATTERED: Scattered(),
    Reclaim.PER_HEAD: PerHead(8),
}


@dataclass(slots=True)
class ScriptedProbes:
    """Answers from the script."""

    path: Path
    begun: dict[str, TrialStep] = field(default_factory=dict)
    """What each pod was asked, by its uid."""
    looks: dict[str, int] = field(default_factory=dict)
    jobs: Callable[[str], list[Any]] = lambda namespace: []
    """Returns the Jobs of a namespace."""

    def progress(self, pod: Pod) -> Progress | None:
        if pod.uid not in self.begun:
            return None
        self.looks[pod.uid] = self.looks.get(pod.uid, 0) + 1
        step, script = self.begun[pod.uid], json.loads(self.path.read_text())
        tokens, what = step.tokens, script.get(_KEYS[step.question, step.without], "hangs")
        if what == "refused":
            return Interrupted("the engine answered 400")
        if what == "hangs" or self.looks[pod.uid] <= LOOKS:
            return Underway(tokens // 2, tokens)
        if step.question is Question.START:
            return Begun(what, "auto", ("FLASH_ATTN",))
        if step.question is Question.PROMPTS:
            return computed(tokens, what)
        return generation(tokens // 2 if what == "short" else tokens, what)

    def begin(self, namespace: str, pod: Pod, template: Mapping[str, object], step: TrialStep) -> None:
        self.begun.setdefault(pod.uid, step)

    def forget(self, pod: Pod) -> None:
        self.begun.pop(pod.uid, None)
        self.looks.pop(pod.uid, None)

    def forget_all(self) -> None:
        self.begun.clear()
        self.looks.clear()

    async def read_served(self, namespace: str, pod: Pod) -> Served | str:
        """Return a pod that answered as many requests as the script says once a Job has come to its end."""
        script = json.loads(self.path.read_text())
        ended = [job for job in self.jobs(namespace) if job.status.succeeded or job.status.failed]
        requests = script.get("answered", SAMPLES) if ended else 0
        counted = Counted(requests, requests * MEAN_TOKENS)
        return Served(f"http://{pod.address}:8000", "tiny", script.get("stored", "auto"), counted)


def computed(longest: int, what: str) -> Prompted:
    """Return prompts whose memory grows in the named way."""
    more = {Growth.NONE: 0.0, Growth.LINEAR: SCORE_BYTES * 4096, Growth.SQUARE: SCORE_BYTES}
    power = {Growth.NONE: 0, Growth.LINEAR: 1, Growth.SQUARE: 2}
    growth = Growth.SQUARE if what == "short" else Growth(what)
    lengths = lengths_up_to(longest)[: 1 if what == "short" else None]
    prompts = (Prompt(each, BEFORE + more[growth] * each ** power[growth]) for each in lengths)
    return Prompted(BEFORE, tuple(prompts), in_chunks=False)


def generation(tokens: int, what: str) -> Watched:
    """Return a generation as arithmetic has it for a class of methods."""
    counts = range(256, tokens + 1, 128)
    pattern = _PATTERNS.get(Reclaim(what)) if what in set(Reclaim) else None

    def blocks(count: int) -> float:
        return count / BLOCK_TOKENS if pattern is None else used_blocks(count, BLOCK_TOKENS, KEEP, pattern)

    samples = tuple(Sample(count, blocks(count)) for count in counts)
    return Watched(samples, tokens, BLOCK_TOKENS, 4 * tokens // BLOCK_TOKENS)
