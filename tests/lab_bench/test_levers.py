"""The levers' benchmark: when it fails, and that a chosen watermark helps and does no harm."""

from dataclasses import replace

import pytest

from kvmedic.model.run import Verdict
from lab.bench.levers import Row, StepRow, _judged, row_of, step_row_of
from lab.bench.supply import SHAPES, HostRow, PrefixRow, faults_of, prefix_row
from lab.bench.workloads import GPU, Workload, varied

GOOD = Row(
    name="good",
    growth=0.1,
    stalls=0.02,
    gains=(1.0, 1.01, 0.99),
    choice="watermark 0.02",
    is_watermark=True,
    ratio=1.01,
    regret=0.0,
    verdict="Recovered",
)
STEP = StepRow("good", "512", 0.995)
AGENTS = Workload(
    "agents", varied(600, 0.5, 60, 3000), varied(140, 0.8, 10, 700), 700, 16, 48, GPU, tokens=36_000
)
CHAT = Workload("chat", varied(60, 0.6, 8, 400), varied(240, 0.7, 10, 900), 80, 32, 24, tokens=24_000)


@pytest.mark.parametrize(
    ("row", "step", "code"),
    [
        pytest.param(GOOD, STEP, 0, id="all within"),
        pytest.param(replace(GOOD, ratio=0.97), STEP, 1, id="harm"),
        pytest.param(replace(GOOD, regret=0.06), STEP, 1, id="too large a regret"),
        pytest.param(replace(GOOD, verdict="NotRecovered"), STEP, 1, id="taken back"),
        pytest.param(
            replace(GOOD, ratio=0.9, regret=0.1, is_watermark=False), STEP, 0, id="a cap is not judged here"
        ),
        pytest.param(GOOD, replace(STEP, ratio=0.97), 1, id="a step that throttles"),
    ],
)
def test_it_fails_where_a_bound_is_broken(row, step, code):
    assert _judged([row], [step]) == code


def test_where_prompts_fill_the_cache_a_watermark_is_chosen_helps_and_does_no_harm():
    row = row_of(AGENTS)

    assert row.growth < 0.2
    assert row.choice.startswith("watermark 0.0")
    assert row.verdict == "Recovered"
    assert row.ratio > 0.98
    assert row.regret < 0.03


def test_where_outputs_fill_the_cache_a_cap_is_chosen_instead():
    row = row_of(CHAT)

    assert row.choice.startswith("maxNumSeqs ")
    assert row.ratio > 1.1


def test_a_step_that_the_traffic_fits_costs_hardly_anything():
    row = step_row_of(AGENTS)

    assert int(row.choice) < 8192
    assert row.ratio > 0.97


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
def test_supply_fails_where_a_bound_is_broken(prefix, host, faults):
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
