"""The part of a window in which the pressure began is no part of what a change is judged against."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import CALM, NO_SERIES, THRASHING, TRIGGER, an_observation, with_number, without
from kvmedic.model.evidence import Signal
from kvmedic.verdict.baseline import has_begun, preemptions, pressured_replicas


def test_only_replicas_beyond_the_trigger_tell_when_it_began() -> None:
    at = with_number(CALM.readings(), Signal.PREEMPTIONS_PER_REQUEST_HELD, 0.5)
    silent = without(THRASHING.readings(), Signal.PREEMPTIONS_PER_REQUEST_HELD, NO_SERIES)
    seen = an_observation(THRASHING, CALM, at, silent)

    assert pressured_replicas(seen, TRIGGER) == ("llm-0",)
    assert preemptions(seen, ("llm-0",)) == THRASHING.preemptions


def test_preemptions_are_added_up_and_what_is_not_told_counts_nothing() -> None:
    silent = without(THRASHING.readings(), Signal.PREEMPTIONS, NO_SERIES)
    seen = an_observation(replace(THRASHING, preemptions=7), silent)

    assert preemptions(seen, seen.pods) == 7


@pytest.mark.parametrize(
    ("first_part", "begun"),
    [(10.0, True), (9.9, False), (0.0, False), (20.0, True)],
    ids=["at half its share", "under it", "nothing", "its share"],
)
def test_pressure_is_there_with_half_its_share_of_the_preemptions(first_part: float, *, begun: bool) -> None:
    """The window has 100 in five parts, so 20 are a part's share."""
    assert has_begun(100.0, 100.0 - first_part, 5) is begun


def test_without_preemptions_nothing_began() -> None:
    assert not has_begun(0.0, 0.0, 5)
