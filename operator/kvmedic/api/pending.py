"""What the schema knows and this version does not do yet. Each is refused by name, never ignored.

The API server refuses it at admission. A resource that was stored under an older
CustomResourceDefinition is found by `not_implemented` and reported in the condition `Ready`. When a
feature lands, its entry leaves this table and nothing else changes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kvmedic.api.compression import CompressionSpec
from kvmedic.api.rules import Rule
from kvmedic.api.spec import KVRemediationSpec
from kvmedic.core.policy import Spare

T = TypeVar("T")


def _pending(field: str, holds: Callable[[CompressionSpec], bool]) -> Rule[KVRemediationSpec]:
    """Return the rule that a field of the compression is not there; `holds` says so of a compression."""
    parts = field.split(".")
    paths = [f"self.{'.'.join(parts[:length])}" for length in range(1, len(parts) + 1)]
    return Rule(
        cel=" || ".join(f"!has({path})" for path in paths),
        message=f"{field} is not implemented yet: remove it",
        holds=lambda s: s.compression is None or holds(s.compression),
        path=f".{field}",
        forbids=True,
    )


PENDING: tuple[Rule[KVRemediationSpec], ...] = (
    Rule(
        cel="self.rollout.spare != 'BestEffort'",
        message="rollout.spare BestEffort is not implemented yet: use Required",
        holds=lambda s: s.rollout.spare is not Spare.BEST_EFFORT,
        path=".rollout.spare",
        forbids=True,
    ),
    _pending(
        "compression.baseline.attentionBackend",
        lambda c: c.baseline is None or c.baseline.attention_backend is None,
    ),
)
"""Every feature of the spec that is not implemented yet."""


def not_implemented(spec: KVRemediationSpec) -> tuple[str, ...]:
    """Return what the spec asks for and this version does not do, one sentence each; empty: nothing."""
    return tuple(f"spec{rule.path}: {rule.message}" for rule in PENDING if not _holds(rule, spec))


def _holds(rule: Rule[T], value: T) -> bool:
    return rule.holds is None or rule.holds(value)
