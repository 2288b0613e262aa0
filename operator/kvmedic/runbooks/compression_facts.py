"""What the branches on KV compression have in common: facts, what a method brought, what was not answered."""

from __future__ import annotations

from dataclasses import replace

from kvmedic.core.compressed import AGAIN, Answer, Compressed
from kvmedic.core.compression import MethodClass
from kvmedic.core.diagnosis import Evidence, Finding, Inconclusive
from kvmedic.core.figures import Figures
from kvmedic.core.reasons import Reason
from kvmedic.core.savings import Brought, Worth, brought
from kvmedic.runbooks.compression_figures import figures_of
from kvmedic.runbooks.node_health import thermal_emergency

EVICTING = frozenset(
    {MethodClass.SCATTERED_EVICTION, MethodClass.PER_HEAD_EVICTION, MethodClass.COMPACTING_EVICTION}
)
"""Methods whose blocks are to become free while requests run."""


def fact(text: str) -> Finding:
    """Return a fact of the whole fleet."""
    return Finding("fleet", None, None, None, text)


def where_nodes_are_known(evidence: Evidence, *findings: Finding) -> tuple[Finding, ...] | Inconclusive:
    """Return findings that lead to a change, or what must be known of the nodes before one is made."""
    doubt = thermal_emergency(evidence)
    return doubt if isinstance(doubt, Inconclusive) else findings


def brought_by(method: Compressed, evidence: Evidence) -> Brought:
    """Return what a method brought, with where the figures of before are from or why there are none."""
    found = brought(method.without, figures_of(evidence))
    origin = f"before is {method.without_from}" if method.without_from else ""
    told = (found.message, origin, method.no_history)
    return replace(found, message="; ".join(each for each in told if each))


def rests_on_spec_alone(method: Compressed, evidence: Evidence) -> bool:
    """Return whether nothing but figures that the spec declares speaks against a method.

    A trial does, or the same figures as history has them.
    """
    if method.policy.baseline == Figures() or method.is_unfused:
        return False
    if brought_by(method, evidence).worth is not Worth.COSTS_MEMORY:
        return False
    recalled = method.recalled
    if recalled is None or recalled.trouble:
        return True
    return brought(recalled.figures, figures_of(evidence)).worth is not Worth.COSTS_MEMORY


def silent(answer: Answer) -> Inconclusive:
    """Return that a trial showed nothing, and when it is made again."""
    return Inconclusive(
        Reason.TRIAL_UNANSWERED,
        f"{answer.message}; tried again after {answer.at + AGAIN:%Y-%m-%dT%H:%MZ}, or at once where the "
        "pod template or spec.compression is edited",
    )
