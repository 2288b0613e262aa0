"""What some settings must show beside fewer preemptions, before they may stay.

A setting may do nothing on some traffic, and a fleet may be calm again for another reason: what is shared is
told by hits, and what is fetched instead of computed by how smoothly answers come.
"""

from __future__ import annotations

from dataclasses import replace

from kvmedic.core.complete import complete, total
from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.engine import Knob
from kvmedic.core.evidence import Absence, Missing, Observation, Signal, Unsupported
from kvmedic.core.judged import Judged, Verdict, not_recovered, undecided
from kvmedic.core.reasons import Reason
from kvmedic.core.verdict import Baseline, Objectives, is_smoother, serves_more

LEAST_HITS = 0.05
"""Share of the looked-up tokens that must be found for prefixes to count as shared. At 5 % of the prompts the
mean sequence is at most 5 % smaller, which is no more than two windows of 10 minutes differ by
(`verdict`)."""
ROOM = frozenset({Knob.GPU_MEMORY_UTILIZATION, Knob.PREFIX_CACHING, Knob.CHUNKED_PREFILL})
"""What makes room in the KV cache, or takes less of it."""
HOST = frozenset({Knob.KV_OFFLOADING_SIZE, Knob.SWAP_SPACE})
"""What makes no room, and a preemption cheaper."""
_COUNTED = frozenset({Signal.PREFIX_CACHE_QUERIES, Signal.PREFIX_CACHE_HITS})


def confirmed(
    knob: Knob, judged: Judged, before: Baseline, looked: Observation, objectives: Objectives
) -> Judged:
    """Return the verdict on a setting, with what must confirm it.

    Args:
        knob: what was turned.
        judged: the verdict by the fleet's figures; no replica restarted.
        before: the fleet before the change.
        looked: the look over the sustained window, at replicas that run the change only.
        objectives: service levels.
    """
    if knob in ROOM and serves_more(before, looked, objectives):
        judged = _kept(judged)
    if judged.verdict is Verdict.INCONCLUSIVE:
        return judged
    if knob is Knob.PREFIX_CACHING:
        return _by_hits(judged, looked)
    if knob in HOST:
        return _by_latency(judged, before, looked, objectives)
    return judged


def _kept(judged: Judged) -> Judged:
    """Return the verdict on a fleet that serves clearly more, however many preemptions that takes."""
    if judged.verdict in (Verdict.RECOVERED, Verdict.IMPROVED):
        return judged
    told = f"it serves more, and no more answers hang; {judged.message}"
    return Judged(Verdict.IMPROVED, Reason.IMPROVED, told)


def _by_hits(judged: Judged, looked: Observation) -> Judged:
    """Return the verdict on reusing prefixes: without hits it did not help, whatever else happened."""
    if _are_uncounted(looked):
        return replace(judged, message=f"this engine counts no hits, so none confirm it; {judged.message}")
    found = complete(looked, _COUNTED)
    if isinstance(found, Inconclusive):
        return undecided(found)
    queries, hits = total(found, Signal.PREFIX_CACHE_QUERIES), total(found, Signal.PREFIX_CACHE_HITS)
    share = hits / queries if queries > 0 else 0.0
    told = f"{share:.0%} of the looked-up tokens were found in the prefix cache ({LEAST_HITS:.0%} are needed)"
    if share >= LEAST_HITS or judged.verdict is Verdict.NOT_RECOVERED:
        return replace(judged, message=f"{told}; {judged.message}")
    return not_recovered(f"{told}; {judged.message}")


def _are_uncounted(looked: Observation) -> bool:
    """Return whether no replica exports the counters, as engines of old do; a silent source differs."""
    readings = [pod.number(signal) for pod in looked.pods.values() for signal in _COUNTED]
    return bool(readings) and all(one in (Missing(Absence.NOTHING_FOUND), Unsupported()) for one in readings)


def _by_latency(judged: Judged, before: Baseline, looked: Observation, objectives: Objectives) -> Judged:
    """Return the verdict on host memory: it prevents no preemption, so smoother answers decide."""
    smoother = is_smoother(before, looked, objectives)
    if smoother and judged.verdict is Verdict.NOT_RECOVERED:
        told = f"answers come more smoothly, which is what it is for; {judged.message}"
        return Judged(Verdict.IMPROVED, Reason.IMPROVED, told)
    if smoother or judged.verdict is Verdict.NOT_RECOVERED:
        return judged
    told = f"answers come no more smoothly, so it is not what helped; {judged.message}"
    return not_recovered(told)
