"""The benchmark of verdicts: what it counts, and a few fleets from end to end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.bench.verdict import Row, Said, main, missed_goals, summary, table

pytestmark = pytest.mark.xdist_group("world")
KEPT, BACK, HELD = Said("kept", 12.0), Said("back", 5.0), Said("held", 40.0)
ROW = Row(
    seed=2,
    change="lower",
    load="constant",
    routing="random",
    replicas=4,
    changed=1,
    share=0.9,
    ratio=0.5,
    starves=True,
    refused=False,
    refused_by_prediction=False,
    goodput=KEPT,
    today=KEPT,
    beside=BACK,
    whole=BACK,
    hours=10.0,
    simulated=1.0,
)


@pytest.mark.parametrize(
    ("ratio", "kind"), [(0.949, "harm"), (0.95, "neutral"), (1.05, "neutral"), (1.051, "better")]
)
def test_a_twentieth_more_or_less_is_neutral(ratio: float, kind: str):
    assert replace(ROW, ratio=ratio).kind == kind


def test_the_table_counts_what_each_rule_did_to_harm_and_to_gain():
    better = replace(ROW, ratio=1.2, today=HELD, beside=KEPT, whole=BACK)

    lines = table([ROW, better, replace(ROW, refused_by_prediction=True, whole=KEPT)], "three").splitlines()

    assert lines[0] == "three: 3 fleets, 2 harm, 1 better, 0 neutral"
    assert "2/2 = 100%" in lines[2]
    assert "0/1 = 0% (0)" in lines[2]
    assert "2/2 = 100%" in lines[3]
    assert "0/1 = 0% (1)" in lines[3]
    assert "1/2 = 50%" in lines[5]
    assert "0/2 = 0%" in lines[6]
    assert "1/1 = 100% (0)" in lines[6]


def test_the_summary_says_what_the_floors_refuse_and_who_starves():
    text = summary(
        [
            replace(ROW, refused_by_prediction=True),
            replace(ROW, ratio=1.5, starves=False, refused_by_prediction=True),
            replace(ROW, beside=replace(BACK, minutes=11)),
        ]
    )

    assert "1 of 2 stopped within 10 minutes side by side (of several replicas 1 of 2)" in text
    assert "by true capacities, lower caps in open worlds: refused 0 of 2 harm, 0 of 1 better" in text
    assert (
        "by the operator's prediction, lower caps in open worlds: refused 1 of 2 harm, 1 of 1 better" in text
    )
    assert "starving: 2, kept by goodput 2, before and after 2, side by side 0" in text


def test_a_goal_that_is_missed_is_named_with_its_figures():
    refused, better = replace(ROW, refused_by_prediction=True), replace(ROW, ratio=1.2, whole=KEPT)

    lone = replace(refused, replicas=1, changed=0, beside=replace(BACK, minutes=12.0))

    assert missed_goals([refused] * 6 + [ROW] * 4 + [better] * 4) == []
    assert missed_goals([lone] * 6 + [ROW] * 4 + [better] * 4) == []
    assert missed_goals(
        [refused] * 5 + [replace(ROW, beside=HELD, whole=KEPT)] * 5 + [replace(better, whole=BACK)]
    ) == [
        "harm kept: 5 of 10, not 0% to 5%",
        "better taken back: 1 of 1, not 0% to 30%",
        "deep harm stopped within 10 minutes: 5 of 10, not 70% to 100%",
        "harmful plans refused: 5 of 10, not 60% to 100%",
    ]


def test_a_few_fleets_from_end_to_end(capsys: pytest.CaptureFixture[str]):
    assert main(["--fleets", "3", "--first", "4", "--starving", "2", "--workers", "1", "--rows"]) == 0

    printed = capsys.readouterr().out
    assert "all: 3 fleets" in printed
    assert printed.rstrip().endswith("goals: need 300 fleets")
    rows = printed.splitlines()[:5]
    assert [row.split()[0] for row in rows] == ["4", "5", "6", "1000000", "1000001"]
    assert "starves" in rows[3]
    assert rows[0].count("back") == 4
    assert "1/0" in rows[2]
