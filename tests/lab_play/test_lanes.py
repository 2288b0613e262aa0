"""Several plays side by side, and the one table of them."""

from __future__ import annotations

import threading

import pytest

from lab.play import report
from lab.play.lanes import forbidden, in_order, most_gpus, play_all
from lab.play.result import Result
from lab.play.schema import Scenario
from lab_play.plays import CAP, a_result, a_scenario

QUIET = {"branch": "Healthy"}


def test_as_many_are_played_at_once_as_there_are_lanes() -> None:
    both, most, lock = threading.Barrier(2, timeout=20), [0, 0], threading.Lock()

    def played(scenario: Scenario, stopped: threading.Event) -> Result:
        with lock:
            most[0] += 1
            most[1] = max(most)
        both.wait()
        with lock:
            most[0] -= 1
        return Result(scenario)

    results = play_all([a_scenario(name=f"play-{n}") for n in range(4)], 2, played, lambda result: None)

    assert sorted(each.scenario.name for each in results) == [f"play-{n}" for n in range(4)]
    assert most[1] == 2


def test_one_plays_trouble_is_its_own() -> None:
    def played(scenario: Scenario, stopped: threading.Event) -> Result:
        if scenario.name == "bad":
            raise TimeoutError("3 replicas in rotation: not within 180 s")
        return a_result()

    told: list[Result] = []
    play_all([a_scenario(name="bad"), a_scenario(name="good")], 1, played, told.append)

    missed = {each.scenario.name: each.missed for each in told}
    assert missed == {
        "bad": ["it could not be played to its end: TimeoutError: 3 replicas in rotation: not within 180 s"],
        "a-play": [],
    }


def test_who_interrupts_ends_every_play() -> None:
    ended: list[str] = []

    def played(scenario: Scenario, stopped: threading.Event) -> Result:
        if scenario.name == "short":
            return a_result()
        assert stopped.wait(20)
        ended.append(scenario.name)
        return a_result()

    def interrupted(result: Result) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_all([a_scenario(name="long"), a_scenario(QUIET, name="short")], 2, played, interrupted)

    assert ended == ["long"]


def test_what_takes_long_begins_first() -> None:
    plays = [a_scenario(QUIET, name="quiet"), a_scenario(name="run")]

    assert [each.name for each in in_order(plays)] == ["run", "quiet"]


def test_the_node_has_a_gpu_for_every_replica_and_spare_that_may_stand_at_once() -> None:
    plays = [a_scenario(fleet={"replicas": count}) for count in (1, 3, 2)]

    assert most_gpus(plays, 2) == (3 + 1) + (2 + 1)
    assert most_gpus(plays, 9) == 4 + 3 + 2


def test_the_branches_of_all_whose_twin_it_is_are_forbidden() -> None:
    plays = [a_scenario(name="hot", twin="calm"), a_scenario({"branch": "GpuFault"}, name="ill", twin="calm")]

    assert forbidden("calm", plays) == {"FleetWideDemand", "GpuFault"}
    assert forbidden("hot", plays) == frozenset()


def test_the_table_has_a_row_for_each_play_and_a_line_for_each_miss() -> None:
    shown = a_result(
        {"branch": "FleetWideDemand", "held": "ObserveOnly"}, moves=[], verdicts=[], planned=[CAP]
    )
    good, bad = a_result(seconds=251.4), a_result(failed_requests=3, missed=["3 requests failed"])

    lines = report.table([good, bad, shown]).splitlines()

    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == list(report.COLUMNS)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:5]]
    assert rows[0] == [
        "a-play",
        "FleetWideDemand",
        "maxNumSeqs 64 -> 18",
        "Recovered",
        "0",
        "3 of 3",
        "251",
        "ok",
    ]
    assert (rows[1][4], rows[1][7]) == ("3", "MISSED")
    assert rows[2][2:4] == ["none (maxNumSeqs 64 -> 18 is shown)", "ObserveOnly"]
    assert lines[5] == "MISSED a-play: 3 requests failed"
