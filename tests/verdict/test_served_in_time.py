"""What users feel of a fleet, from what engines export."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf

import pytest

from kvmedic.model.spec import Objectives
from kvmedic.verdict.served_in_time import (
    FirstTokens,
    first_token_limit,
    served_in_time,
    silent_seconds,
    stalls_per_request,
)

FIRSTS = FirstTokens(came=999.0, in_time=899.5, aborted=0.0, waiting_at_end=0.0, arrivals_per_second=2.0)


@pytest.mark.parametrize(("promised", "limit"), [(None, 30.0), (5.0, 5.0), (120.0, 120.0)])
def test_a_first_token_is_in_time_by_the_objective_or_else_by_what_most_accept(
    promised: float | None, limit: float
) -> None:
    assert first_token_limit(Objectives(time_to_first_token_p95_seconds=promised)) == limit


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, 0.9),
        ({"waiting_at_end": 60.0}, 0.9),
        ({"waiting_at_end": 160.0}, 900 / 1100),
        ({"aborted": 800.0}, 0.5),
        ({"waiting_at_end": 860.0}, 0.5),
        ({"waiting_at_end": 800.0, "arrivals_per_second": 0.0}, 0.5),
        ({"came": 0.0, "in_time": 0.0}, 0.5),
        ({"came": 0.0, "in_time": 0.0, "waiting_at_end": 109.0}, 0.01),
    ],
    ids=[
        "late first tokens alone",
        "as many wait as arrive within the limit",
        "those beyond it are late",
        "those given up are late",
        "most wait for longer than the limit",
        "none arrives, so all that wait are late",
        "nothing is known",
        "nobody got a first token, and some wait for one",
    ],
)
def test_the_share_in_time_counts_those_that_no_histogram_has(
    changes: dict[str, float], share: float
) -> None:
    assert replace(FIRSTS, **changes).share_in_time(30.0) == pytest.approx(share)


@pytest.mark.parametrize(
    ("stalls", "tokens", "expected"),
    [(10.0, 2000.0, 1.0), (0.0, 2000.0, 0.0), (100.0, 2000.0, 10.0), (0.0, 0.0, 0.0)],
    ids=["ten per ten answers", "none", "ten per answer", "no token"],
)
def test_stalls_are_counted_by_token_for_requests_of_one_length(
    stalls: float, tokens: float, expected: float
) -> None:
    assert stalls_per_request(stalls, tokens, 200.0) == expected


def test_tokens_are_served_in_time_of_requests_that_began_soon_and_never_hung() -> None:
    assert served_in_time(1000.0, 0.9, 0.0) == 900.0
    assert served_in_time(1000.0, 0.9, 1.0) == pytest.approx(900 * exp(-1))
    assert served_in_time(1000.0, 0.9, 100.0) == served_in_time(1000.0, 0.9, 9.0) > 0


def test_requests_that_wait_over_those_that_come_are_silent_seconds() -> None:
    assert silent_seconds(30.0, 10.0) == 3.0
    assert silent_seconds(0.0, 0.0) == 0.0
    assert silent_seconds(30.0, 0.0) == inf
