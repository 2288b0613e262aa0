"""The benchmark of a day: what each controller makes of what it sees, and a few hours from end to end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvmedic.runbooks.preemption.cap import CapUse
from lab.bench.day import HOUR, day_of, main, move_cap, turning

pytestmark = pytest.mark.xdist_group("world")


@pytest.mark.parametrize(
    ("hour", "share"), [(0, 0), (10.9, 0), (12, 0.5), (13, 1), (22, 1), (24, 0.5), (29, 0)]
)
def test_it_is_night_once_in_a_day(hour: float, share: float):
    assert day_of(np.array([hour]))[0] == pytest.approx(share)


def test_the_other_mix_turns_every_90_minutes():
    assert turning(np.array([0, 1.4, 1.5, 2.9, 3.0])).tolist() == [0, 0, 1, 1, 0]


def test_a_few_hours_from_end_to_end(capsys: pytest.CaptureFixture[str]):
    assert main(["--before", "0", "--hours", "1", "--mix", "turning every 90 min"]) == 0

    rows = capsys.readouterr().out.splitlines()
    names = [row[:28].strip() for row in rows[2:]]
    assert names[0] == "best setting of each hour"
    assert names[-3:] == ["only lowered", "both ways", "both ways, from 52"]
    assert "no cap" in names
    assert float(rows[2].split()[-4].rstrip("%")) == 0


BINDS = CapUse(
    cap=40,
    seconds=600,
    running_low=36,
    waiting_mean=0.51,
    preemptions_per_request=0.049,
    kv_cache_usage_ratio=0.849,
)
PRESSED = replace(BINDS, preemptions_per_request=1.7, kv_cache_usage_ratio=0.98)


@pytest.mark.parametrize(
    ("use", "room", "cut", "cap"),
    [
        pytest.param(BINDS, 50, None, 50, id="everything just so"),
        pytest.param(BINDS, 49, None, 40, id="too little more room"),
        pytest.param(BINDS, 400, None, 400, id="far more room"),
        pytest.param(replace(BINDS, seconds=599), 50, None, 40, id="not for long enough"),
        pytest.param(replace(BINDS, running_low=35.9), 50, None, 40, id="not enough run"),
        pytest.param(replace(BINDS, waiting_mean=0.5), 50, None, 40, id="nobody waits"),
        pytest.param(replace(BINDS, preemptions_per_request=0.05), 50, None, 40, id="it preempts"),
        pytest.param(replace(BINDS, kv_cache_usage_ratio=0.85), 50, None, 40, id="the cache is full"),
        pytest.param(PRESSED, 36, 36, 36, id="pressed, and a cut is planned"),
        pytest.param(PRESSED, 36, None, 40, id="pressed, and no cut is planned"),
        pytest.param(BINDS, 10, None, 40, id="room for less, and calm"),
        pytest.param(PRESSED, 80, None, 40, id="pressed, and room for more"),
    ],
)
def test_a_cap_follows_what_the_pool_holds(use: CapUse, room: int, cut: int | None, cap: int) -> None:
    assert move_cap(use, room, cut, ()) == cap


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
    assert move_cap(BINDS, 80, None, changes) == (80 if moves else 40)
    assert move_cap(PRESSED, 20, 20, changes) == (20 if moves else 40)
