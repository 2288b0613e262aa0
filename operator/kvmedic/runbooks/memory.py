"""Which levers were tried on what is seen now, and did not help.

A lever is left alone while the evidence is the one that it failed on: the pod template (and with it the
engine's version and every setting), the lengths of requests and the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvmedic.core.complete import complete, pools
from kvmedic.core.diagnosis import Evidence, Inconclusive
from kvmedic.core.distribution import merged
from kvmedic.core.engine import Knob
from kvmedic.core.evidence import Signal
from kvmedic.core.reasons import Reason
from kvmedic.core.record import TriedLever
from kvmedic.runbooks.doubts import POOLS_ALIKE

LENGTHS_ALIKE = 2 / 3
"""Mean prompt (or output) length, the smaller over the larger, at least, for the lengths to be those of then.
Of sequences that are half as long again a third fewer fit, more than a right cap takes away; means of 100
requests of the widest shape that was simulated (relative deviation 1.3) differ by that once in 40 times."""
_LENGTHS = (Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH)


def exhausted(tried: Sequence[TriedLever], revision: str, evidence: Evidence) -> frozenset[Knob]:
    """Return the levers that are not to be tried again on this evidence.

    A share of the devices' memory that was raised in vain may still be lowered: that is another trouble's
    lever (`raised_in_vain`).
    """
    failed = failures(tried, revision, evidence)
    return frozenset(lever.knob for lever in failed if lever.reason is not Reason.MEMORY_STEPPED_UP)


def raised_in_vain(tried: Sequence[TriedLever], revision: str, evidence: Evidence) -> bool:
    """Return whether a larger share of the devices' memory was tried on this evidence and did not help."""
    failed = failures(tried, revision, evidence)
    return any(lever.reason is Reason.MEMORY_STEPPED_UP for lever in failed)


def failures(tried: Sequence[TriedLever], revision: str, evidence: Evidence) -> tuple[TriedLever, ...]:
    """Return what was tried on this evidence and did not help.

    What cannot be read counts as unchanged: silence is no new evidence.

    Args:
        tried: what did not help.
        revision: hash of the pod template as it is now.
        evidence: both looks.
    """
    means, blocks = _means(evidence), _blocks(evidence)
    return tuple(
        lever
        for lever in tried
        if lever.revision == revision
        and _alike((lever.prompt_tokens, lever.output_tokens), means, LENGTHS_ALIKE)
        and _alike((lever.blocks,), (blocks,), 1 - POOLS_ALIKE)
    )


def _alike(then: Iterable[float | None], now: Iterable[float | None], least: float) -> bool:
    """Return whether no two figures that are both known differ by more than a ratio."""
    pairs = [(a, b) for a, b in zip(then, now, strict=True) if a is not None and b is not None]
    return all(min(pair) >= least * max(pair) for pair in pairs)


def _means(evidence: Evidence) -> tuple[float | None, ...]:
    """Return the mean prompt and output over the sizing window; None where they cannot be told."""
    found = complete(evidence.sizing, frozenset(_LENGTHS))
    if isinstance(found, Inconclusive):
        return (None, None)
    counted = [[one.histograms[signal] for one in found.values()] for signal in _LENGTHS]
    if any(len({one.bounds for one in each}) != 1 for each in counted):
        return (None, None)
    whole = [merged(each) for each in counted]
    return tuple(one.mean if one.count > 0 else None for one in whole)


def _blocks(evidence: Evidence) -> float | None:
    """Return the smallest pool, as a run records it; None where one is not known."""
    held = pools(evidence.sizing)
    return None if isinstance(held, Inconclusive) or not held else min(one.blocks for one in held.values())
