"""A replica is spared only where its peers are known to carry its requests too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import (
    CALM,
    IDLE,
    STALE,
    THRASHING,
    Replica,
    an_evidence,
    with_number,
    without,
)
from kvmedic.model.evidence import PodReadings, Signal
from kvmedic.runbooks.branches import Evidence
from kvmedic.runbooks.preemption.pressure import NEEDED, beyond_trigger, overload
from kvmedic.verdict.quorum import LeftOut

ILL = replace(THRASHING, usage_mean=0.5, waiting_mean=9)
ROOMY = replace(CALM, usage_mean=0.6)


def told(*peers: Replica | PodReadings) -> str:
    """Return what speaks against sparing llm-0, whose cache is half full."""
    return overload(an_evidence(ILL, *peers), "llm-0")


def held(rate: float) -> PodReadings:
    return with_number(ROOMY.readings(), Signal.PREEMPTIONS_PER_REQUEST_HELD, rate)


@pytest.mark.parametrize(
    ("peers", "why"),
    [
        ((ROOMY, ROOMY), ""),
        ((IDLE,), ""),
        ((), "it is the only replica"),
        ((replace(ROOMY, usage_mean=0.35),), ""),
        ((replace(ROOMY, usage_mean=0.36),), "their KV cache would be 0.86 full (limit 0.85)"),
        ((replace(ROOMY, usage_mean=0.1), replace(ROOMY, usage_mean=0.61)), "would be 0.86 full"),
        ((held(0.25), ROOMY), ""),
        ((ROOMY, held(0.26)), "llm-2 has 0.26 preemptions per request"),
        ((replace(ROOMY, waiting_mean=0.9), ROOMY), ""),
        ((replace(ROOMY, waiting_mean=1.0), ROOMY), "1 requests wait on llm-1"),
    ],
    ids=[
        "two with room",
        "an idle one",
        "no peer",
        "just room",
        "no room",
        "the fullest counts",
        "at half the trigger",
        "over it",
        "hardly a queue",
        "a queue",
    ],
)
def test_peers_carry_a_replica_or_the_reason_why_not(
    peers: tuple[Replica | PodReadings, ...], why: str
) -> None:
    found = told(*peers)

    assert why in found
    assert bool(found) is bool(why)


@pytest.mark.parametrize("signal", sorted(NEEDED))
def test_what_is_not_known_of_a_peer_spares_nobody(signal: Signal) -> None:
    assert f"llm-1: {signal}: " in told(without(ROOMY.readings(), signal, STALE), ROOMY)


def test_only_what_is_known_of_a_peer_takes_a_replica_back() -> None:
    silent = without(THRASHING.readings(), Signal.PREEMPTIONS_PER_REQUEST_HELD, STALE)

    assert beyond_trigger(an_evidence(THRASHING, CALM, silent), "llm-0") == ()
    assert beyond_trigger(an_evidence(ILL, CALM, THRASHING, held(0.5)), "llm-0") == ("llm-2",)


def apart(evidence: Evidence, *names: str) -> Evidence:
    """Return evidence in which some replicas are left out."""
    pods = evidence.burn.pods
    kept = evidence.burn.only(name for name in pods if name not in names)
    return replace(evidence, burn=kept, left_out={n: LeftOut("no metrics", False, pods[n]) for n in names})


def test_a_peer_that_is_left_out_carries_nothing() -> None:
    roomy = replace(ROOMY, usage_mean=0.5)
    evidence = an_evidence(ILL, roomy, roomy)

    assert overload(evidence, "llm-0") == ""
    assert overload(apart(evidence, "llm-2"), "llm-0") == "their KV cache would be 1.00 full (limit 0.85)"
    assert overload(apart(evidence, "llm-1", "llm-2"), "llm-0") == "no peer is known to carry anything"
    assert overload(apart(evidence, "llm-0"), "llm-0") == "nobody knows what it holds (no metrics)"


def test_a_peer_that_is_left_out_and_known_to_be_pressured_counts() -> None:
    evidence = an_evidence(ILL, ROOMY, THRASHING)

    assert beyond_trigger(apart(evidence, "llm-2"), "llm-0") == ("llm-2",)
