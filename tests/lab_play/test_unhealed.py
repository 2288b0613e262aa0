"""The second fleet: what the same arrivals would have got from the fleet as it was."""

from dataclasses import replace
from random import Random

import pytest

from lab.loadgen.record import ConnectionMode, Outcome, Record
from lab.play.schema import Scenario
from lab.play.unhealed import can_be_replayed, tokens_in_time
from lab_play.plays import a_scenario

pytestmark = pytest.mark.xdist_group("world")

BEGAN = 1_000_000.0
"""Unix seconds of the first request."""
OPEN = [{"rate": 5, "lengths": "32+100", "patience": "20s"}]


def a_fleet(load=OPEN, cap=64, **spec) -> Scenario:
    """Two replicas of 60 blocks of 32 tokens, of which ten such requests grow to 50."""
    flags = {"max-model-len": 1024, "block-size": 32, "num-gpu-blocks-override": 61, "max-num-seqs": cap}
    found = a_scenario(fleet={"replicas": 2, "flags": flags}, load=load)
    return found.model_copy(update={"remediation": {**found.remediation, **spec}})


def came(per_second: float, seconds: float) -> list[Record]:
    """Return what is written down of requests that nobody answered: only what they asked for counts."""
    drawn, at, found = Random(1), BEGAN, []
    while at < BEGAN + seconds:
        found.append(Record(len(found), Outcome.LEFT, ConnectionMode.FRESH, at, at, None, 32, 0, (), "", 100))
        at += drawn.expovariate(per_second)
    return found


def test_a_load_that_is_carried_is_served_in_time_to_its_last_token():
    calm, _ = tokens_in_time(a_fleet(), came(5, 60), [(BEGAN + 10, BEGAN + 50), (BEGAN + 10, BEGAN + 60)])

    assert calm == pytest.approx(5 * 100, rel=0.2)


def test_more_than_the_fleet_serves_leaves_fewer_tokens_in_time_and_the_cap_counts():
    window = [(BEGAN + 30, BEGAN + 60)]
    crowded, capped = (tokens_in_time(a_fleet(cap=cap), came(24, 60), window)[0] for cap in (64, 15))

    assert crowded < 0.7 * capped


def test_a_promise_of_the_first_token_is_what_in_time_means():
    window = [(BEGAN + 30, BEGAN + 60)]
    promised = a_fleet(objectives={"ttftP95": "1ms"})

    assert tokens_in_time(promised, came(5, 60), window) == [0.0]


@pytest.mark.parametrize(
    ("load", "can"),
    [
        (OPEN, True),
        ([*OPEN, {**OPEN[0], "requests": 9, "begins": "45s"}], True),
        ([{"clients": 5, "lengths": "32+100"}], False),
        ([*OPEN, {"clients": 5, "lengths": "32+100", "patience": "20s"}], False),
        ([{**OPEN[0], "shared": 64}], False),
        ([*OPEN, {"rate": 5, "lengths": "32+100"}], False),
    ],
    ids=["open", "a burst", "closed", "both", "prefixes that are shared", "two kinds of patience"],
)
def test_only_arrivals_that_do_not_wait_can_be_replayed(load, can):
    assert can_be_replayed(a_fleet(load=load)) is can


def test_requests_of_which_only_the_answer_is_known_are_left_out():
    known = came(5, 60)
    unknown = [replace(each, asked_tokens=0) for each in known]
    window = [(BEGAN, BEGAN + 60)]

    assert tokens_in_time(a_fleet(), known + unknown, window) == tokens_in_time(a_fleet(), known, window)
