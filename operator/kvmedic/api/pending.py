"""What the schema knows and this version does not do yet. Each is refused by name, never ignored.

The API server refuses it at admission. A resource that was stored under an older
CustomResourceDefinition is found by `not_implemented` and reported in the condition `Ready`. When a
feature lands, its entry leaves this table and nothing else changes here.
"""

from __future__ import annotations

from typing import TypeVar

from kvmedic.api.rules import Rule
from kvmedic.api.spec import KVRemediationSpec
from kvmedic.core.policy import Spare

T = TypeVar("T")


PENDING: tuple[Rule[KVRemediationSpec], ...] = (
    Rule(
        cel="self.rollout.spare != 'BestEffort'",
        message="rollout.spare BestEffort is not implemented yet: use Required",
        holds=lambda s: s.rollout.spare is not Spare.BEST_EFFORT,
        path=".rollout.spare",
        forbids=True,
    ),
)
"""Every feature of the spec that is not implemented yet."""


def not_implemented(spec: KVRemediationSpec) -> tuple[str, ...]:
    """Return what the spec asks for and this version does not do, one sentence each; empty: nothing."""
    return tuple(f"spec{rule.path}: {rule.message}" for rule in PENDING if not _holds(rule, spec))


def _holds(rule: Rule[T], value: T) -> bool:
    return rule.holds is None or rule.holds(value)
