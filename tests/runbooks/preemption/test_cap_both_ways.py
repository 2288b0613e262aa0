"""A cap that is raised and lowered as the mix of requests turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmedic.runbooks.preemption.cap import CapUse, Room, lasting_room

BINDS = CapUse(
    cap=40,
    seconds=600,
    at_cap_share=0.8,
    waiting_mean=0.51,
    preemptions_per_request=0.049,
    kv_cache_usage_ratio=0.849,
)
HOUR = 3600.0


@pytest.mark.parametrize(
    ("use", "binds"),
    [
        pytest.param(BINDS, True, id="everything just so"),
        pytest.param(replace(BINDS, seconds=599), False, id="not for long enough"),
        pytest.param(replace(BINDS, at_cap_share=0.79), False, id="not at the cap often enough"),
        pytest.param(replace(BINDS, waiting_mean=0.5), False, id="nobody waits"),
        pytest.param(replace(BINDS, preemptions_per_request=0.05), False, id="it preempts"),
        pytest.param(replace(BINDS, kv_cache_usage_ratio=0.85), False, id="the cache is full"),
    ],
)
def test_a_cap_binds_beside_room_only_where_every_sign_says_so(use: CapUse, *, binds: bool) -> None:
    assert use.binds_beside_room is binds


@pytest.mark.parametrize(
    ("rooms", "lasting"),
    [
        pytest.param((), 20, id="no memory"),
        pytest.param(((3, 20), (1.5, 60)), 60, id="it comes back within three hours"),
        pytest.param(((3.01, 20), (1.5, 60)), 20, id="it came back later than that"),
        pytest.param(((1.5, 60),), 20, id="it never was so before"),
        pytest.param(((3, 20), (2, 21), (1, 19)), 20, id="it stayed"),
        pytest.param(((2, 20), (1, 24)), 20, id="it hardly moved"),
        pytest.param(((2, 20), (1, 25)), 25, id="it moved"),
        pytest.param(((3, 100), (2, 60), (1, 35)), 20, id="a mix that moves one way"),
        pytest.param(((23, 90), (3, 20), (1.5, 60)), 90, id="the day's most"),
        pytest.param(((24.1, 90), (3, 20), (1.5, 60)), 60, id="the day before does not count"),
    ],
)
def test_where_the_mix_turns_the_days_most_counts(rooms: tuple[tuple[float, int], ...], lasting: int) -> None:
    known = [Room(hours * HOUR, sequences) for hours, sequences in rooms]

    assert lasting_room(20, known) == lasting
