"""What two hundred fleets cost one operator, as a process of its own against a real API server.

Ratios within one run, and counts: how long anything takes is the machine's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.bench.scale import ROUND_SECONDS, Scale, watch_calm, world

FLEETS = 200
COLD_SECONDS = 400.0
"""For the first look at all, beside other tests."""


@pytest.fixture(scope="module")
def cold() -> Iterator[Scale]:
    with world(FLEETS, 1, None) as scale:
        scale.start()
        looked = scale.wait(lambda seen: len(seen.looked_at) == FLEETS, COLD_SECONDS)
        assert looked is not None, (
            f"{len(scale.witness.looked_at)} of {FLEETS}: {scale.log.read_text()[-2000:]}"
        )
        yield scale


def test_calm_fleets_are_looked_at_for_a_fraction_of_the_first_look(cold: Scale) -> None:
    first_look = cold.cpu_seconds() / FLEETS

    calm = watch_calm(cold, 1.5 * ROUND_SECONDS)

    assert calm.spent.looks >= FLEETS
    assert calm.cpu_per_look < first_look / 3
    assert calm.writes == 0
    assert sum(calm.requests.values()) / calm.spent.wall < 5
    # Two queries at each moment of looks, and what was under way before; six at most in a round.
    assert calm.spent.queries <= 8 * (calm.rounds + 1)
    assert calm.spent.received / FLEETS / calm.rounds < 1500
