"""The benchmark's own arithmetic: what it counts, and when it fails."""

from dataclasses import replace
from itertools import islice

import pytest

from kvmedic.model import compression as blocks
from lab.bench import open_loop
from lab.bench.blocks import CASES, ERRORS, counted
from lab.bench.drive import UNCAPPED, runs_of
from lab.bench.footprint import arriving, crowded, room_of, tried
from lab.bench.recall import score
from lab.bench.shift import SHIFTS, WINDOW, WINDOWS_BEFORE, Followed, Turned
from lab.bench.sizing import DEFAULT_CAP, Row, _halved, _judged, row_of
from lab.bench.workloads import WORKLOADS, Workload, varied
from lab.engine.compression import Eviction, Survival

GOOD = Row(
    name="good",
    running=20.0,
    best_cap=15,
    idle_share=0.8,
    chosen=16,
    reason="CapRightSized",
    limit=30.0,
    regret=0.02,
    regret_soon=0.4,
    regret_goodput=0.3,
    from_pages=0.02,
    halving=0.2,
    halvings=4,
    by_length=0.8,
    verdict="Recovered",
    verdicts=(("gain", "Recovered"),),
)
OPEN = open_loop.Row("good", 0.9, 0.9, (open_loop.Planned(16, "CapRightSized", 0.96),), 1.2)
FOLLOWED = Turned("turns", (20,), 22, 0.05, 1)


@pytest.mark.parametrize(
    ("row", "turned", "code"),
    [
        pytest.param(GOOD, FOLLOWED, 0, id="all within"),
        pytest.param(replace(GOOD, regret=0.081), FOLLOWED, 1, id="too large a regret"),
        pytest.param(replace(GOOD, regret=0.031), FOLLOWED, 1, id="too large a median"),
        pytest.param(replace(GOOD, idle_share=0.991), FOLLOWED, 1, id="needless"),
        pytest.param(
            replace(GOOD, idle_share=0.991, chosen=None), FOLLOWED, 0, id="nothing to gain, not cut"
        ),
        pytest.param(replace(GOOD, verdict="NotRecovered"), FOLLOWED, 1, id="its own cut taken back"),
        pytest.param(replace(GOOD, opened=(OPEN,)), FOLLOWED, 0, id="open: it loses little to doing nothing"),
        pytest.param(
            replace(GOOD, opened=(replace(OPEN, looks=(open_loop.Planned(16, "CapRightSized", 0.94),)),)),
            FOLLOWED,
            1,
            id="open: it loses too much to doing nothing",
        ),
        pytest.param(GOOD, replace(FOLLOWED, regret=0.11), 1, id="turned too badly"),
        pytest.param(GOOD, replace(FOLLOWED, restarts=3), 1, id="too many restarts"),
    ],
)
def test_it_fails_where_a_bound_is_broken(row, turned, code):
    assert _judged([row], [turned]) == code


def test_an_open_row_is_compared_with_the_best_of_the_sweep_and_with_nothing():
    assert OPEN.regret == pytest.approx(1 - 0.96 / 1.2)
    assert OPEN.idle_regret == pytest.approx(1 - 1 / 1.2)
    assert replace(OPEN, most=0.5).regret == pytest.approx(0.04), "doing nothing was better than the sweep"


def test_only_restarts_after_the_turn_count():
    followed = Followed(((1, 30), (2, 20), (4, 12)), ())

    assert (followed.restarts, followed.last) == (2, 12)


@pytest.mark.parametrize("shift", SHIFTS, ids=lambda shift: shift.name)
def test_outputs_grow_in_the_middle(shift):
    before = round(WINDOW * WINDOWS_BEFORE)
    drawn = list(islice(shift.lengths(), before + 1000))

    early, late = ([one.output for one in part] for part in (drawn[:before], drawn[-800:]))

    assert sum(late) / len(late) > 2 * sum(early) / len(early)


def test_a_row_compares_the_choice_with_the_sweep_and_with_halving():
    chat = Workload("chat", varied(60, 0.6, 8, 400), varied(240, 0.7, 10, 900), 80, 32, 24, tokens=36_000)

    row = row_of(chat)

    assert row.chosen is not None
    assert 0 <= row.regret < 0.2
    assert row.halvings >= 4, f"{DEFAULT_CAP} is far over what runs"
    assert row.by_length > 0.5
    assert row.restarts == 1
    assert str(row).startswith("chat ")


def test_halving_stops_where_preemptions_are_few():
    calm = Workload("calm", varied(60, 0.6, 8, 400), varied(120, 0.7, 10, 600), 800, 32, 8, tokens=12_000)

    run = runs_of(calm)

    assert _halved(run, run(UNCAPPED)) == (run(UNCAPPED), 0)


SEEDS = 8


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_block_tables_free_what_arithmetic_says(case):
    assert abs(counted(case, SEEDS).off) <= ERRORS


def test_other_arithmetic_is_seen_to_be_wrong():
    scattered = next(case for case in CASES if case.name == "scattered")

    assert abs(counted(replace(scattered, expected=blocks.InRuns(2)), SEEDS).off) > ERRORS


def test_filling_holes_moves_far_less_than_keeping_the_order():
    in_order, filled = (counted(case, 2).moved for case in CASES if case.compaction is not None)

    assert in_order > 10 * filled > 0


@pytest.mark.parametrize(("keep", "salience"), [(0.3, 0.0), (0.1, 0.9)])
def test_a_score_is_near_what_arithmetic_says(keep, salience):
    found = score(Eviction(Survival.PER_HEAD, keep=keep, salience=salience, heads=4), samples=120)
    whole = score(Eviction(keep=1, salience=0), samples=60)

    assert found.right == pytest.approx(found.expected, abs=0.14)  # three standard errors of 120 samples
    assert whole.right == whole.expected


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

    printed = capsys.readouterr().out
    assert held
    assert all(held)
    assert printed.count("fits ") == len(held)
    assert f"room for {room_of(CHAT)}" in printed
