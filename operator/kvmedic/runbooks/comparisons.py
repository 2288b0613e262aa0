"""The other half of a comparison: what a trial pod shows with the method off.

It is asked for where history cannot tell and the answer decides something: how many blocks there are without
a type of fewer bits, and whether attention is fused without a method with which it is not.
"""

from __future__ import annotations

from kvmedic.core.compressed import GIVEN, Compressed
from kvmedic.core.compression import MethodClass
from kvmedic.core.compression_policy import Fix
from kvmedic.core.diagnosis import Evidence, Finding, Inconclusive
from kvmedic.core.prompt_probe import Growth
from kvmedic.core.reasons import Reason
from kvmedic.core.savings import Brought
from kvmedic.runbooks.compression_facts import fact, silent, where_nodes_are_known


def attention_uncompared(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """A trial showed that device memory grows with the square of the prompt, and none yet how it is without.

    Where it grows so without the method too, turning that off would not help. A comparison that showed
    nothing keeps nobody from it: the first half is proof that attention is not fused.
    """
    method = evidence.compression
    if method is None or not method.is_unfused or method.grown is None or not method.settings:
        return None
    if method.grown_without is not None or Fix.REVERT_BUNDLE not in method.policy.fixes:
        return None
    return where_nodes_are_known(evidence, fact(f"{method.name}: {method.grown.message}"))


def told_without(method: Compressed) -> str:
    """Return what is known of attention without the method, for a person; empty: nothing."""
    given = method.policy.attention_backend
    told = f"attention without {method.name} by {given} ({GIVEN}.attentionBackend)" if given else ""
    return "; ".join(filter(None, (method.grown_without.message if method.grown_without else "", told)))


def is_start_due(method: Compressed) -> bool:
    """Return whether a start without a type of fewer bits is to show how many blocks there are then.

    Where the command line sizes the pool they tell nothing.
    """
    is_known = method.blocks_without is not None or method.start_without is not None
    is_type = method.method_class is MethodClass.QUANTIZATION
    return is_type and bool(method.settings) and not (is_known or method.pool_is_fixed)


def unexplained(method: Compressed, worth: Brought) -> Inconclusive:
    """Return that figures speak against a method and no trial would tell more, with what would."""
    start, grown = method.start_without, method.grown
    if start is not None and start.blocks is None:
        return silent(start)
    compared = f"; {start.message}" if start is not None else ""
    if grown is not None and grown.growth is Growth.SQUARE:
        told = (
            f"attention is not fused, and without {method.name} it is not either, so that turning it off "
            f"would not help: {grown.message}; {told_without(method)}"
        )
    elif grown is not None and grown.growth is not None:
        told = (
            f"attention did not fall back: {grown.message}; what else differs from the fleet of before is "
            "for a person"
        )
    else:
        told = (
            "whether attention fell back to a kernel that is not fused shows in device memory: give that of "
            "the fleet without the method in spec.compression.baseline.deviceMemory, and let the source have "
            "the DCGM exporter's series"
        )
    return Inconclusive(Reason.BASELINE_MISSING, f"{method.name}: {worth.message}{compared}; {told}")
