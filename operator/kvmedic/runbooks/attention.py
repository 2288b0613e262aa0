"""Wall 1: a method makes attention fall back to a kernel that is not fused, which holds scores in memory."""

from __future__ import annotations

from kvmedic.core.diagnosis import Evidence, Finding, Inconclusive
from kvmedic.core.savings import Worth
from kvmedic.runbooks.comparisons import told_without
from kvmedic.runbooks.compression_facts import EVICTING, brought_by, fact, silent, where_nodes_are_known
from kvmedic.runbooks.compression_figures import figures_of


def eager_fallback(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Throughput fell and device memory rose against the fleet without the method, at like load.

    Or a trial showed that device memory grows with the square of the prompt, which no fused kernel does. The
    name of the attention backend decides nothing: one fused kernel may take the place of another, and an
    unchanged line acquits nobody.
    """
    method = evidence.compression
    if method is None:
        return None
    if method.is_unfused and method.grown is not None:
        shown = f"{method.name}, {method.grown.growth}: {method.grown.message}"
        return where_nodes_are_known(
            evidence, *(fact(each) for each in (shown, told_without(method)) if each)
        )
    worth = brought_by(method, evidence)
    if worth.worth is not Worth.COSTS_MEMORY:
        return None
    return where_nodes_are_known(evidence, fact(f"{method.name}: {worth.message}"))


def attention_unproven(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Throughput fell or answers take longer, and nobody knows the device memory of before.

    Blocks are asked about first where they are in doubt. Where the source has no device memory of now, a
    trial could not be read either.
    """
    method = evidence.compression
    if method is None or (method.method_class in EVICTING and method.answer is None):
        return None
    worth = brought_by(method, evidence)
    is_compared = method.without.device_memory is not None or figures_of(evidence).device_memory is None
    if worth.worth is not Worth.COSTS_TIME or is_compared:
        return None
    if method.grown is None:
        return (fact(f"{method.name} ({method.told_by}): {worth.message}"),)
    return silent(method.grown) if method.grown.growth is None else None
