"""The benchmark of the prediction: what runs under random arrivals, against what a crowd showed."""

from itertools import islice

import pytest

from lab.bench.footprint import arriving, crowded, room_of, tried
from lab.bench.workloads import WORKLOADS

CHAT = WORKLOADS[0]
REQUESTS = 150


def test_under_random_arrivals_no_more_runs_than_the_share_of_a_crowd():
    mean = sum(each.output for each in islice(CHAT.lengths(), 5000)) / 5000
    before = crowded(CHAT, REQUESTS)

    half = arriving(CHAT, 0.5 * before.tokens_per_second / mean, REQUESTS)

    assert before.preemptions > 0.5 * before.finished
    assert 0 < half.running <= 0.5 * before.running
    assert half.tokens_per_second == pytest.approx(0.5 * before.tokens_per_second, rel=0.35)
    assert half.preemptions <= 0.5 * half.finished


def test_a_prediction_that_fits_is_counted_and_printed(capsys):
    held = tried(CHAT, 20_000)

    told = capsys.readouterr().out
    assert held
    assert all(held)
    assert told.count("fits ") == len(held)
    assert f"room for {room_of(CHAT)}" in told
