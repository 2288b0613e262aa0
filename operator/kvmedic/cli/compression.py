"""What is known of a fleet's KV compression, for a person: method, class, wall, and what would tell more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any

from kvmedic.core.compressed import Compressed
from kvmedic.core.compression import MethodClass
from kvmedic.core.diagnosis import Diagnosis, Evidence, Inconclusive, diagnose
from kvmedic.core.figures import Figures
from kvmedic.core.policy import Runbook
from kvmedic.core.reasons import Reason
from kvmedic.core.savings import Worth, brought
from kvmedic.core.started import Start, Started
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.compression_facts import EVICTING
from kvmedic.runbooks.compression_figures import figures_of

WALLS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.COMPRESSION_SAVES: "none: it saves what it should, at like load",
        Reason.COMPRESSION_UNDOUBTED: "none shows: nothing speaks against it",
        Reason.COMPRESSION_NOT_APPLIED: "none yet: it is configured and running engines do not have it",
        Reason.EAGER_FALLBACK: "wall 1: attention falls back to an eager kernel",
        Reason.PAGE_SELECTION: "none: it frees no memory by design",
        Reason.BLOCKS_NOT_FREED: "wall 2: evicted tokens free too few blocks or none",
        Reason.FIX_WAITS: "none any more: what saved nothing is off, and the fix after it waits",
        Reason.FIX_DUE: "none any more: what saved nothing is off, and the fix after it is due",
        Reason.PRESSED_THOUGH_COMPRESSED: "none: it does what it can, and demand is beyond that",
        Reason.ATTENTION_UNPROVEN: "not told: whether attention fell back (wall 1) has to be asked",
        Reason.ATTENTION_UNCOMPARED: "wall 1, unless attention is not fused without the method either",
        Reason.COMPRESSION_UNPROVEN: "not told: whether blocks come back or stay (wall 2) has to be asked",
    }
)
"""What each branch of the runbook says of the two walls: attention that is not fused any more, and survivors
that keep their blocks."""

_IN_FILE = "(with saved evidence: in --spec FILE)"


@dataclass(frozen=True, slots=True)
class Account:
    """What is known of a fleet's KV compression."""

    method: Compressed | None
    finding: Diagnosis | None
    """Of the runbook on compression; None without a method."""
    missing: tuple[str, ...] = ()
    """What would tell more, and how to provide it."""
    started: Mapping[str, Start] = field(default_factory=dict)

    @property
    def wall(self) -> str:
        """Return which wall the evidence shows."""
        if self.finding is None or isinstance(self.finding, Inconclusive):
            return f"not told: {self.finding.message}" if self.finding else ""
        return WALLS.get(self.finding.reason, "")

    def lines(self) -> Iterator[str]:
        """Yield the account for a person, one fact a line."""
        for name, start in sorted(self.started.items()):
            yield f"log        {name}: {_line(start)}"
        method = self.method
        if method is None:
            yield "method     none is known to be on"
            return
        by = f"{method.told_by}{'' if method.is_confirmed else ', which no engine confirms'}"
        yield f"method     {method.name}, {method.method_class or 'of no known class'}, known by {by}"
        if method.method_class is not None:
            yield f"blocks     {method.method_class.frees}"
        yield f"wall       {self.wall}"
        yield from (f"missing    {each}" for each in self.missing)

    def as_json(self) -> dict[str, Any]:
        """Return the account for a program."""
        method = self.method
        return {
            "method": method.name if method else None,
            "class": str(method.method_class) if method and method.method_class else None,
            "knownBy": method.told_by if method else None,
            "isConfirmed": method.is_confirmed if method else None,
            "blocks": method.method_class.frees if method and method.method_class else None,
            "reason": str(self.finding.reason) if self.finding else None,
            "wall": self.wall or None,
            "missing": list(self.missing),
            "startLogs": {name: _as_json(start) for name, start in sorted(self.started.items())},
        }


def account_of(evidence: Evidence, doubt: Inconclusive | None = None) -> Account | None:
    """Return what evidence tells of KV compression; None where nobody asked and nothing tells of any.

    Args:
        evidence: with the method, where one is known.
        doubt: why the evidence says nothing at all.
    """
    method = evidence.compression
    if method is None:
        return Account(None, None, started=evidence.started) if evidence.started else None
    finding = doubt or diagnose(RUNBOOKS[Runbook.COMPRESSION_WITHOUT_SAVINGS], evidence)
    return Account(method, finding, tuple(_missing(method, evidence)), evidence.started)


def _missing(method: Compressed, evidence: Evidence) -> Iterator[str]:
    """Yield what would tell more of a method."""
    present, without = figures_of(evidence), method.without
    if method.method_class is None:
        yield "what it does to blocks: spec.compression.class"
    if not method.is_confirmed and not evidence.started:
        yield "the engine's own word that it is on: its start-up log (with saved pages --log FILE)"
    if not isfinite(evidence.burn.window_seconds):
        yield "the time between the pages, without which no load is like another: --interval"
    worth = brought(without, present)
    if without == Figures():
        yield f"how the fleet was without it: spec.compression.baseline {_IN_FILE}"
    elif worth.worth is Worth.UNKNOWN:
        yield f"figures to compare: {worth.message}"
    yield from _missing_of_class(method, present)


def _missing_of_class(method: Compressed, present: Figures) -> Iterator[str]:
    if method.method_class is MethodClass.QUANTIZATION and method.blocks_without is None:
        yield f"the blocks of a replica without it: spec.compression.baseline.blocks {_IN_FILE}"
    if method.method_class not in EVICTING:
        return
    if method.without.device_memory is None or present.device_memory is None:
        yield (
            "device memory with it and without, in which wall 1 shows: spec.compression.baseline."
            "deviceMemory, and a Prometheus with the DCGM exporter's series (--prometheus URL --at TIME)"
        )
    if method.answer is None:
        yield (
            "whether evicted tokens free blocks, wall 2: a long generation on a trial pod shows it, which "
            "needs a cluster (kvmedic diagnose NAME) that allows trial pods"
        )


def _line(start: Start) -> str:
    if not isinstance(start, Started):
        return f"could not be read ({start.why})"
    told = [
        f"method by: {'; '.join(start.methods)}" if start.methods else "",
        f"keys and values as {start.cache_type}" if start.cache_type else "",
        f"attention backend {', '.join(start.backends)} (decides nothing by itself)"
        if start.backends
        else "",
        f"pool of {start.size.amount:,} {start.size.unit}" if start.size else "",
        "" if start.is_whole else "not the whole start",
    ]
    return ", ".join(each for each in told if each)


def _as_json(start: Start) -> dict[str, Any]:
    if not isinstance(start, Started):
        return {"unread": start.why}
    return {
        "methods": list(start.methods),
        "cacheType": start.cache_type or None,
        "attentionBackends": list(start.backends),
        "pool": {str(start.size.unit): start.size.amount} if start.size else None,
        "isWhole": start.is_whole,
    }
