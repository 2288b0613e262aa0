"""A verdict in view of what engines' metrics do not tell: ends, and memory at the edge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import NO_SERIES, NOW
from kvmedic.core.edge import EDGE_MIB, in_view_of_ends, in_view_of_memory, least_free_mib
from kvmedic.core.evidence import Measured, Missing, Reading
from kvmedic.core.reasons import Reason
from kvmedic.core.verdict import Judged, Verdict
from kvmedic.core.vitals import Cause, Device
from run_builder import BASELINE
from vitals_builder import a_device, an_end

GOOD = Judged(Verdict.RECOVERED, Reason.RECOVERED, "2.0 -> 0.1", BASELINE)
ROOMY = replace(BASELINE, memory_free_mib=4000)
FULL = replace(BASELINE, memory_free_mib=EDGE_MIB - 1)


def devices(*free: float | Missing) -> Reading[tuple[Device, ...]]:
    return Measured(tuple(a_device(f"GPU {i}", memory_free=one) for i, one in enumerate(free)), NOW)


@pytest.mark.parametrize(
    ("replicas", "least"),
    [
        ((), None),
        ((NO_SERIES,), None),
        ((devices(NO_SERIES),), None),
        ((devices(900, 300), NO_SERIES, devices(500)), 300),
        ((devices(900, NO_SERIES),), 900),
        ((devices(0),), 0),
    ],
    ids=["nobody", "no exporter", "not exported", "the fullest of all", "one tells", "nothing is left"],
)
def test_the_fullest_gpu_counts(
    replicas: tuple[Reading[tuple[Device, ...]], ...], least: float | None
) -> None:
    assert least_free_mib(replicas) == least


@pytest.mark.parametrize(
    ("free", "edge"),
    [(EDGE_MIB - 1, True), (EDGE_MIB, False), (EDGE_MIB + 1, False), (None, False)],
    ids=["below", "at", "above", "unknown"],
)
@pytest.mark.parametrize(
    ("before", "verdict"),
    [
        (ROOMY, Verdict.NOT_RECOVERED),
        (FULL, Verdict.IMPROVED),
        (BASELINE, Verdict.IMPROVED),
        (None, Verdict.IMPROVED),
    ],
    ids=["brought there by the change", "as before", "unknown before", "no figures before"],
)
def test_memory_at_the_edge_is_no_recovery(
    free: float | None, before: object, verdict: Verdict, *, edge: bool
) -> None:
    found = in_view_of_memory(GOOD, before, free)  # type: ignore[arg-type]

    if not edge:
        assert found is GOOD
        return
    assert (found.verdict, found.reason) == (verdict, Reason(verdict.value))
    assert found.message.startswith("a GPU has 149 MiB of memory left (limit 150)")
    assert found.message.endswith(GOOD.message)
    assert found.after == BASELINE


def test_engines_that_ended_are_named_with_why() -> None:
    bad = Judged(Verdict.NOT_RECOVERED, Reason.NOT_RECOVERED, "2 restarts")

    found = in_view_of_ends(bad, {"b": an_end(Cause.HOST_MEMORY), "a": an_end(Cause.DEVICE_MEMORY)})

    assert found.message == (
        "2 restarts; a (exit code 1): its GPU's memory ran out; "
        "b (exit code 137): it was ended at its container's memory limit"
    )
    assert in_view_of_ends(bad, {}) is bad


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_its_words(cause: Cause) -> None:
    assert ": " in in_view_of_ends(replace(GOOD, message=""), {"a": an_end(cause)}).message
