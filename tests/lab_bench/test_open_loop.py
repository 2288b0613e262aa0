"""The open half of the benchmark: arrivals that do not wait, and when it fails."""

from dataclasses import replace
from itertools import islice
from random import Random

import pytest

from kvmedic.model.run import Verdict
from lab.bench.drive import UNCAPPED, OpenDrive, Outcome
from lab.bench.open_loop import Planned, Row, Starved, judged
from lab.bench.sizing import main
from lab.bench.workloads import Workload, drawn, varied
from run_builder import BASELINE

CHAT = Workload("chat", varied(60, 0.6, 8, 400), varied(240, 0.7, 10, 900), 80, 32, 24)
PER_SECOND = 2.4
NONE, GOOD = Planned(None, "CapBelowLoad", 1.0), Planned(16, "CapRightSized", 1.3)
ROW = Row("drawn 1", 1.05, 0.6, (GOOD, NONE))


def run(cap: int) -> Outcome:
    return OpenDrive(CHAT, cap, PER_SECOND, Random(3)).run_for(20, 120)


@pytest.mark.parametrize(
    ("looks", "code"),
    [
        pytest.param((GOOD, NONE), 0, id="a gain, and none"),
        pytest.param((NONE, NONE), 0, id="no plan"),
        pytest.param((GOOD, replace(GOOD, gain=0.951)), 0, id="within the bound"),
        pytest.param((GOOD, replace(GOOD, gain=0.949)), 1, id="two pages lose too much"),
        pytest.param((replace(GOOD, gain=0.5), NONE), 1, id="scrapes lose too much"),
    ],
)
def test_it_fails_where_a_plan_loses_to_doing_nothing(looks, code):
    assert judged([ROW, replace(ROW, looks=looks)]) == code


def test_a_row_says_what_was_planned_and_what_that_lost():
    row = replace(ROW, looks=(replace(GOOD, gain=0.9), NONE))

    assert row.loss == pytest.approx(0.1)
    assert str(row).split() == ["drawn", "1", "1.05", "60.0%", "16", "x0.90", "CapBelowLoad", "10.0%"]


def test_no_drawn_request_is_longer_than_its_pool():
    workload = drawn(1062)

    longest = max(one.prompt + one.output for one in islice(workload.lengths(), 20_000))

    assert longest == workload.blocks * workload.block_tokens


def test_the_same_requests_come_whatever_the_engine_does_with_them():
    free, capped = (OpenDrive(CHAT, cap, PER_SECOND, Random(3)) for cap in (UNCAPPED, 2))

    seen = [drive.run_for(20, 60) for drive in (free, capped)]

    arrived = [[one.times.arrived_at for one in drive.clients.values()] for drive in (free, capped)]
    fewer = min(map(len, arrived)) - 5
    assert fewer > 100
    assert arrived[0][:fewer] == arrived[1][:fewer]
    assert seen[0].finished > 1.5 * seen[1].finished


def test_a_cap_below_what_is_offered_serves_hardly_anything_in_time():
    free, capped = run(UNCAPPED), run(4)

    assert free.tokens > capped.tokens
    assert capped.timely_tokens() < 0.5 * free.timely_tokens()


@pytest.mark.parametrize(
    ("verdict", "kept"),
    [
        (Verdict.RECOVERED, True),
        (Verdict.IMPROVED, True),
        (Verdict.NOT_RECOVERED, False),
        (Verdict.INCONCLUSIVE, False),
    ],
)
def test_a_starving_cap_is_kept_where_the_verdict_is_good(verdict, *, kept):
    one = Starved(7, BASELINE, replace(BASELINE, time_to_first_token_p95_seconds=90.0), verdict)

    assert one.is_kept is kept
    assert str(one).endswith(f"-> 90.0 s: {verdict}")


def test_the_parts_of_the_open_half_are_asked_for_by_name(monkeypatch):
    asked: list[object] = []
    monkeypatch.setattr("lab.bench.sizing.open_half", lambda seeds: asked.append(list(seeds)) or 0)
    monkeypatch.setattr("lab.bench.sizing.starving_half", lambda count: asked.append(count) or 1)

    assert main(["open=20-21"]) == 0
    assert main(["open", "starving=12"]) == 1
    assert main(["starving"]) == 1
    assert asked == [[20, 21], list(range(10)), 12, 100]
