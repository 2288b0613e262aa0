"""The comparison of `make bench-blocks`, with fewer seeds; and that it notices what does not fit."""

from dataclasses import replace

import pytest

from kvmedic.model import compression as blocks
from lab.bench.blocks import CASES, ERRORS, counted

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
