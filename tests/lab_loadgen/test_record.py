"""Summaries over a window: what is in it, what is not, and what nothing looks like."""

import math
from dataclasses import replace

import pytest

from lab.loadgen.record import ConnectionMode, Outcome, Record, percentile, read, summarise

SMOOTH = Record(
    number=1,
    outcome=Outcome.OK,
    connection=ConnectionMode.FRESH,
    started_at=100.0,
    ended_at=102.0,
    first_token_at=101.0,
    prompt_tokens=5,
    tokens=3,
    gaps_ms=(400.0, 600.0),
)
STALLED = replace(SMOOTH, number=2, started_at=100.0, ended_at=105.0, gaps_ms=(500.0, 3000.0))


def test_a_record_survives_its_line():
    assert Record.from_line(SMOOTH.line()) == SMOOTH


def test_a_half_written_last_line_is_left_out(tmp_path):
    file = tmp_path / "requests.jsonl"
    file.write_text(SMOOTH.line() + "\n" + STALLED.line()[:20])

    assert read(file) == [SMOOTH]


def test_tokens_and_gaps_count_where_they_arrive_and_requests_where_they_end():
    summary = summarise([SMOOTH, STALLED], 100.0, 104.0)

    assert summary.ok == 1  # the stalled one ends at 105
    assert summary.tokens_per_second == 5 / 4  # 3 of the smooth one, 2 of the stalled one before its stall
    assert summary.inter_token_p95 == 0.6
    assert summary.longest_gap_p95 == 0.6


def test_goodput_leaves_out_requests_that_waited_over_two_seconds():
    summary = summarise([SMOOTH, STALLED], 100.0, 110.0)

    assert summary.tokens_per_second == 6 / 10
    assert summary.goodput_per_second == 3 / 10
    assert summary.longest_gap_p95 == 3.0


@pytest.mark.parametrize(("gap", "counts"), [(1999.9, True), (2000.0, True), (2000.1, False)])
def test_two_seconds_is_not_over_two_seconds(gap, counts):
    summary = summarise([replace(SMOOTH, gaps_ms=(100.0, gap))], 100.0, 110.0)

    assert (summary.goodput_per_second > 0) == counts


def test_lost_requests_are_counted_by_how_they_were_lost():
    lost = [replace(SMOOTH, outcome=outcome) for outcome in Outcome]

    summary = summarise(lost, 100.0, 110.0)

    assert (summary.ok, summary.failed, summary.aborted, summary.refused, summary.lost) == (1, 1, 1, 1, 3)


def test_nothing_is_nan_and_not_zero():
    summary = summarise([], 0.0, 1.0)

    assert math.isnan(summary.longest_gap_p95)
    assert math.isnan(summary.ttft_p95)
    assert math.isnan(summary.inter_token_mean)
    assert summary.tokens_per_second == 0.0


def test_an_empty_window_is_refused():
    with pytest.raises(ValueError, match="not after"):
        summarise([SMOOTH], 10.0, 10.0)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 5), (0.95, 10), (1.0, 10)])
def test_percentiles_are_nearest_rank(share, value):
    assert percentile(list(range(1, 11)), share) == value
