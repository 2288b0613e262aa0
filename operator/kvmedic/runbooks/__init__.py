"""Runbooks: for each kind of trouble an ordered table of branches. Pure; they never name an engine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kvmedic.core.diagnosis import Branch
from kvmedic.runbooks import compression_without_savings, preemption_thrash

RUNBOOKS: Mapping[str, tuple[Branch, ...]] = MappingProxyType(
    {
        "CompressionWithoutSavings": compression_without_savings.BRANCHES,
        "PreemptionThrash": preemption_thrash.BRANCHES,
    }
)
"""Every runbook by the name that `spec.runbooks` uses."""
