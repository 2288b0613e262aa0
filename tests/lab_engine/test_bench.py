"""The lab engine against the measured table of real vLLM, and that the comparison can fail."""

from dataclasses import replace
from functools import cache

import pytest

from lab.engine import bench
from lab.engine.bench import LOAD, Comparison, measured_rows, ranking_faults, replay
from lab.engine.simulation import ClosedLoop

ROWS = measured_rows()
replayed = cache(replay)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"cap {row.cap} {' '.join(row.arguments)}")
def test_the_lab_engine_preempts_and_steps_as_real_vllm_did(row):
    assert Comparison(row, replayed(row)).is_within_bounds


def test_the_caps_rank_as_they_did_on_real_vllm():
    assert ranking_faults([Comparison(row, replayed(row)) for row in ROWS]) == []


@pytest.mark.parametrize("stagger_seconds", [0.0, 0.002])
def test_the_fit_does_not_hang_on_when_the_clients_start(stagger_seconds):
    load = replace(LOAD, stagger_seconds=stagger_seconds)

    outside = [
        row.cap for row in ROWS if row.is_plain and not Comparison(row, replayed(row, load)).is_within_bounds
    ]

    assert outside == []


@pytest.mark.parametrize(
    "wrong", ["--async-scheduling", "--watermark=0.1", "--no-scheduler-reserve-full-isl"]
)
def test_an_engine_that_schedules_otherwise_is_out_of_bounds(wrong):
    row = next(row for row in ROWS if row.cap == 64 and row.is_plain)

    other = replayed(replace(row, arguments=(wrong,)))

    same = wrong == "--no-scheduler-reserve-full-isl"  # prompts of 64 fit whole: nothing to reserve
    assert Comparison(row, other).is_within_bounds == same


def test_a_bench_out_of_bounds_exits_with_1(monkeypatch, capsys):
    wrong = replace(ROWS[0], preemptions=100)
    monkeypatch.setattr(bench, "measured_rows", lambda: [wrong])

    assert bench.main() == 1
    assert "cap 4 is out of bounds" in capsys.readouterr().out


def test_a_wrong_ranking_is_a_fault():
    small = [replayed(row, ClosedLoop(clients=8, requests=8)) for row in ROWS[:2]]
    swapped = [Comparison(ROWS[0], small[1]), Comparison(ROWS[1], small[0])]

    assert ranking_faults(swapped) != []
