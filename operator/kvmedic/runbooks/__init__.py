"""Runbooks: for each kind of trouble an ordered table of branches. Pure; they never name an engine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kvmedic.runbooks.branches import Branch
from kvmedic.runbooks.compression.branches import COMPRESSION_BRANCHES
from kvmedic.runbooks.preemption.branches import PREEMPTION_BRANCHES

RUNBOOKS: Mapping[str, tuple[Branch, ...]] = MappingProxyType(
    {
        "CompressionWithoutSavings": COMPRESSION_BRANCHES,
        "PreemptionThrash": PREEMPTION_BRANCHES,
    }
)
"""Every runbook by the name that `spec.runbooks` uses."""
