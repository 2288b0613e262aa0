"""A cap that is raised and lowered as the mix of requests turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmedic.runbooks.preemption.cap import CapUse, Room, lasting_room, move_cap

BINDS = CapUse(
    cap=40,
    seconds=600,
    at_cap_share=0.8,
    waiting_mean=0.51,
    preemptions_per_request=0.049,
    kv_cache_usage_ratio=0.849,
)
PRESSED = replace(BINDS, preemptions_per_request=1.7, kv_cache_usage_ratio=0.98, is_pressed=True)
HOUR = 3600.0


@pytest.mark.parametrize(
    ("use", "room", "cap"),
    [
        pytest.param(BINDS, 50, 50, id="everything just so"),
        pytest.param(BINDS, 49, 40, id="too little more room"),
        pytest.param(BINDS, 400, 400, id="far more room"),
        pytest.param(replace(BINDS, seconds=599), 50, 40, id="not for long enough"),
        pytest.param(replace(BINDS, at_cap_share=0.79), 50, 40, id="not at the cap often enough"),
        pytest.param(replace(BINDS, waiting_mean=0.5), 50, 40, id="nobody waits"),
        pytest.param(replace(BINDS, preemptions_per_request=0.05), 50, 40, id="it preempts"),
        pytest.param(replace(BINDS, kv_cache_usage_ratio=0.85), 50, 40, id="the cache is full"),
        pytest.param(PRESSED, 36, 36, id="pressed, and room for less"),
        pytest.param(PRESSED, 37, 40, id="pressed, and hardly less room"),
        pytest.param(replace(PRESSED, is_pressed=False), 10, 40, id="room for less, and calm"),
        pytest.param(PRESSED, 80, 40, id="pressed, and room for more"),
    ],
)
def test_a_cap_follows_what_the_pool_holds(use: CapUse, room: int, cap: int) -> None:
    assert move_cap(use, room, (), ()) == cap


@pytest.mark.parametrize(
    ("changes", "moves"),
    [
        ((1800,), True),
        ((1799,), False),
        ((1800, 5 * HOUR, 9 * HOUR), True),
        ((1800, 5 * HOUR, 9 * HOUR, 24 * HOUR - 1), False),
        ((1800, 5 * HOUR, 9 * HOUR, 24 * HOUR), True),
    ],
    ids=["after the pause", "within it", "three a day", "four a day", "the fourth is a day old"],
)
def test_changes_are_few_and_far_between(changes: tuple[float, ...], *, moves: bool) -> None:
    assert move_cap(BINDS, 80, (), changes) == (80 if moves else 40)
    assert move_cap(PRESSED, 20, (), changes) == (20 if moves else 40)


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
    assert move_cap(replace(PRESSED, cap=lasting), 20, known, ()) == lasting
