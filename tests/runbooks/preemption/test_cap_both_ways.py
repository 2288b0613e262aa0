"""A cap that is raised and lowered as the mix of requests turns."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from builders import NOW, THRASHING, an_evidence
from kvmedic.engines.signal_sources import LOW_QUANTILE
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Histogram, Inconclusive, PastLengths, Signal
from kvmedic.model.readings import histogram
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Setting
from kvmedic.runbooks.preemption.cap import CapUse, Room, cut_cap, lasting_room, rooms_of
from kvmedic.runbooks.preemption.pressure import Case, size_fleet

BINDS = CapUse(
    cap=40,
    seconds=600,
    running_low=36,
    waiting_mean=0.51,
    preemptions_per_request=0.049,
    kv_cache_usage_ratio=0.849,
)
HOUR = 3600.0
SAMPLES = 40
"""Of a gauge in ten minutes, at a scrape every 15 s."""


def after_steps(cap: int, tokens: int, seed: int) -> CapUse:
    """Return a cap with a queue behind it, as vLLM's gauge shows it.

    The gauge is that after a step: each of those who ran has ended with probability 1 / `tokens`, and nobody
    has followed yet.
    """
    running = cap - np.random.default_rng(seed).binomial(cap, 1 / tokens, SAMPLES)
    low = float(np.quantile(running, LOW_QUANTILE))
    return replace(BINDS, cap=int(running.max()), running_low=low)


@pytest.mark.parametrize(
    ("use", "binds"),
    [
        pytest.param(BINDS, True, id="everything just so"),
        pytest.param(replace(BINDS, seconds=599), False, id="not for long enough"),
        pytest.param(replace(BINDS, running_low=35.9), False, id="not enough run"),
        pytest.param(replace(BINDS, waiting_mean=0.5), False, id="nobody waits"),
        pytest.param(replace(BINDS, preemptions_per_request=0.05), False, id="it preempts"),
        pytest.param(replace(BINDS, kv_cache_usage_ratio=0.85), False, id="the cache is full"),
    ],
)
def test_a_cap_binds_beside_room_only_where_every_sign_says_so(use: CapUse, *, binds: bool) -> None:
    assert use.binds_beside_room is binds


@pytest.mark.parametrize("tokens", [30, 100, 400])
@pytest.mark.parametrize("cap", [8, 19, 43, 64, 128, 256, 512])
def test_a_cap_binds_although_a_step_empties_seats(cap: int, tokens: int) -> None:
    seen = [after_steps(cap, tokens, seed) for seed in range(50)]

    assert all(use.binds_beside_room and use.is_under(cap) for use in seen)


@pytest.mark.parametrize(
    ("most", "low", "seconds", "taken"),
    [
        pytest.param(1, 1, 600, True, id="one seat, always taken"),
        pytest.param(1, 0, 600, False, id="one seat, not always taken"),
        pytest.param(3, 2, 600, False, id="a third of few is free"),
        pytest.param(4, 3, 600, True, id="one of few is free"),
        pytest.param(8, 6, 600, False, id="two of few are free"),
        pytest.param(64, 57, 600, True, id="a tenth is free"),
        pytest.param(64, 56.9, 600, False, id="more than a tenth is free"),
        pytest.param(64, 64, 599, False, id="not for long enough"),
        pytest.param(0, 0, 600, False, id="nobody ever ran"),
    ],
)
def test_seats_are_taken_where_hardly_any_is_free(
    most: int, low: float, seconds: float, *, taken: bool
) -> None:
    assert replace(BINDS, cap=most, running_low=low, seconds=seconds).is_taken is taken


@pytest.mark.parametrize(
    ("most", "cap", "under"),
    [(12, 12, True), (11, 12, True), (9, 12, False), (13, 12, False), (57, 64, True), (56, 64, False)],
)
def test_what_runs_is_under_a_cap_that_it_nearly_fills(most: int, cap: int, *, under: bool) -> None:
    assert replace(BINDS, cap=most).is_under(cap) is under


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


PRESENT = Setting(None, (LeverBound(Knob.MAX_NUM_SEQS),))
LOOKS = an_evidence(*[THRASHING] * 3)
LENGTHS = Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH


def a_day(*times: tuple[float, float]) -> Case:
    """Return a thrashing fleet whose prompts and outputs were so many times those of now, by half hours."""
    prompt, output = (histogram(LOOKS.sizing.pods["llm-0"], each) for each in LENGTHS)
    past = tuple(
        PastLengths(NOW - timedelta(minutes=30 * ago), stretched(prompt, prompts), stretched(output, outputs))
        for ago, (prompts, outputs) in zip(reversed(range(len(times))), times, strict=True)
    )
    case = size_fleet(replace(LOOKS, past_lengths=past), LOOKS.burn.pods)
    assert not isinstance(case, Inconclusive)
    return case


def stretched(lengths: Histogram | None, times: float) -> Histogram:
    assert lengths is not None
    bounds = tuple(times * bound for bound in lengths.bounds)
    return replace(lengths, bounds=bounds, total=times * lengths.total)


def test_what_the_pool_held_follows_from_the_lengths_of_then() -> None:
    rooms = rooms_of(a_day((0.1, 0.1), (10, 10), (1, 1)), replace(PRESENT, cap_rooms=((60, 9),)), 20)

    sizes = [(room.seconds_ago, room.sequences) for room in rooms]
    assert [each[0] for each in sizes] == [60, 3600, 1800, 0]
    assert sizes[0] == (60, 9)
    assert sizes[1][1] > 100
    assert sizes[2][1] == 2
    assert sizes[3] == (0, 20)


def test_a_sequence_grows_by_its_prompt_and_by_what_it_generates() -> None:
    """Each as far as it is of the mean sequence."""
    case = a_day((1, 3), (3, 1))

    grown = case.sequence.growth_share
    assert 0.1 < grown < 0.9
    sizes = [size for _, size in case.sizes_then]
    assert sizes == [pytest.approx(1 + 2 * grown, rel=0.1), pytest.approx(3 - 2 * grown, rel=0.1)]


@pytest.mark.parametrize(
    ("day", "turns"),
    [
        pytest.param((1, 1, 1, 1, 1, 1), False, id="requests as ever"),
        pytest.param((0.1, 0.1, 0.1, 1, 1, 1), False, id="requests grew, and stayed so"),
        pytest.param((1, 1.2, 0.85, 1, 1.1, 1), False, id="a mix that hardly moves"),
        pytest.param((1, 1, 0.1, 0.1, 1, 1), True, id="it comes back within three hours"),
    ],
)
def test_a_mix_that_turns_is_not_cut_for_its_longest_requests(day: tuple[float, ...], *, turns: bool) -> None:
    found = cut_cap(a_day(*((times, times) for times in day)), PRESENT)

    assert found.reason is (Reason.CAP_WITHOUT_EFFECT if turns else Reason.CAP_RIGHT_SIZED)
    assert ("within the last day: the mix of requests turns" in found.message) is turns
