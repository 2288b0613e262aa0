from __future__ import annotations

import pytest

from kvmedic.kube.client import Pace


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    pace = Pace(per_second=10, burst=3)

    waits = [pace.spend(now=100.0) for _ in range(5)]

    assert waits == pytest.approx([0, 0, 0, 0.1, 0.2])


def test_the_burst_comes_back_while_nobody_asks() -> None:
    pace = Pace(per_second=10, burst=3)
    for _ in range(3):
        pace.spend(now=100.0)

    assert [pace.spend(now=100.3) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


def test_silence_is_not_saved_up_beyond_the_burst() -> None:
    pace = Pace(per_second=10, burst=1)
    pace.spend(now=0.0)

    assert [pace.spend(now=3600.0) for _ in range(2)] == pytest.approx([0, 0.1])


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_bound_that_lets_nothing_through_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="need more than 0"):
        Pace(rate, burst)
