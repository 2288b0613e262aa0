"""The supply levers' benchmark: when it fails, and that what is tried and kept helps."""

from dataclasses import replace

import pytest

from kvmedic.model.run import Verdict
from lab.bench.supply import SHAPES, HostRow, PrefixRow, faults_of, prefix_row

PREFIX = PrefixRow("chat", 4, 512, 0.5, 2.0, is_tried=True, verdict=Verdict.IMPROVED)
UNSHARED = replace(PREFIX, common=0, goodput=1.0, verdict=Verdict.NOT_RECOVERED)
HOST = HostRow("reasoning", (30.0, 20.0), (1.0, 0.8), 1.3, Verdict.IMPROVED)


@pytest.mark.parametrize(
    ("prefix", "host", "faults"),
    [
        pytest.param(PREFIX, HOST, 0, id="all within"),
        pytest.param(UNSHARED, HOST, 0, id="tried, without hits, and taken back"),
        pytest.param(replace(PREFIX, goodput=1.05), HOST, 1, id="tried for little"),
        pytest.param(replace(PREFIX, goodput=1.05, is_tried=False), HOST, 0, id="little, and left alone"),
        pytest.param(replace(UNSHARED, verdict=Verdict.RECOVERED), HOST, 1, id="kept for nothing"),
        pytest.param(PREFIX, replace(HOST, goodput=0.97), 1, id="host memory that does harm"),
        pytest.param(
            PREFIX,
            replace(HOST, goodput=0.97, verdict=Verdict.NOT_RECOVERED),
            0,
            id="harm that is taken back",
        ),
    ],
)
def test_it_fails_where_a_bound_is_broken(prefix, host, faults):
    assert len(faults_of([prefix], [host])) == faults


def test_prompts_that_begin_alike_are_tried_gain_much_and_stay():
    row = prefix_row(replace(SHAPES[0], tokens=24_000), 512, 4)

    assert row.is_tried
    assert row.verdict is Verdict.IMPROVED
    assert row.goodput > 1.5


def test_prompts_without_anything_in_common_are_left_alone():
    row = prefix_row(replace(SHAPES[0], tokens=24_000), 0, 4)

    assert not row.is_tried
    assert row.verdict is Verdict.NOT_RECOVERED
    assert row.goodput == pytest.approx(1, abs=0.1)
