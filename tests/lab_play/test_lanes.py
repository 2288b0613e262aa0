"""Several plays side by side, and the one table of them."""

import threading

import pytest

from lab.play import __main__ as main
from lab.play import lanes
from lab.play.lanes import forbidden, in_order, most_gpus, play_all
from lab.play.result import Result
from lab.play.schema import Scenario
from lab_play.plays import CAP, SPEC, a_result, a_scenario

QUIET = {"branch": "Healthy"}


def test_as_many_are_played_at_once_as_there_are_lanes():
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


def test_one_plays_trouble_is_its_own():
    def played(scenario: Scenario, stopped: threading.Event) -> Result:
        if scenario.name == "bad":
            raise TimeoutError("3 replicas in rotation: not within 180 s")
        return a_result()

    results: list[Result] = []
    play_all([a_scenario(name="bad"), a_scenario(name="good")], 1, played, results.append)

    missed = {each.scenario.name: each.missed for each in results}
    assert missed == {
        "bad": ["it could not be played to its end: TimeoutError: 3 replicas in rotation: not within 180 s"],
        "a-play": [],
    }


def test_who_interrupts_ends_every_play():
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


def test_what_takes_long_begins_first():
    plays = [a_scenario(QUIET, name="quiet"), a_scenario(name="run")]

    assert [each.name for each in in_order(plays)] == ["run", "quiet"]


def test_who_is_named_first_is_played_first_and_the_rest_as_ever():
    plays = [a_scenario(QUIET, name="quiet"), a_scenario(QUIET, name="silent"), a_scenario(name="run")]

    ordered = in_order(plays, ["silent", "quiet"])

    assert [each.name for each in ordered] == ["silent", "quiet", "run"]


def test_who_stops_the_operator_is_played_last_and_alone():
    stops = [{"at": "5s", "do": "stop"}]
    plays = [
        a_scenario(name="stop-a", incidents=stops),
        a_scenario(name="beside-a"),
        a_scenario(name="stop-b", incidents=stops),
        a_scenario(name="beside-b"),
    ]
    on: list[str] = []
    seen: list[tuple[str, ...]] = []
    both = threading.Barrier(2, timeout=20)

    def played(scenario: Scenario, stopped: threading.Event) -> Result:
        on.append(scenario.name)
        if not scenario.stops_everything:
            both.wait()
        seen.append(tuple(sorted(on)))
        if not scenario.stops_everything:
            both.wait()
        on.remove(scenario.name)
        return Result(scenario)

    results = play_all(plays, 2, played, lambda result: None)

    assert seen == [("beside-a", "beside-b")] * 2 + [("stop-a",), ("stop-b",)]
    assert len(results) == 4


def test_replicas_that_may_be_added_need_gpus_too():
    levers = [{"name": "scaleOut", "maxReplicas": 5}]
    play = a_scenario(fleet={"replicas": 2}, remediation={**SPEC, "levers": levers})

    assert (play.gpus, a_scenario(fleet={"replicas": 3}).gpus) == (5 + 1, 3 + 1)


def test_the_node_has_a_gpu_for_every_replica_and_spare_that_may_stand_at_once():
    plays = [a_scenario(fleet={"replicas": count}) for count in (1, 3, 2)]

    assert most_gpus(plays, 2) == (3 + 1) + (2 + 1)
    assert most_gpus(plays, 9) == 4 + 3 + 2


def test_the_branches_of_all_whose_twin_it_is_are_forbidden():
    plays = [a_scenario(name="hot", twin="calm"), a_scenario({"branch": "GpuFault"}, name="ill", twin="calm")]

    assert forbidden("calm", plays) == {"FleetWideDemand", "GpuFault"}
    assert forbidden("hot", plays) == frozenset()


def test_what_has_ended_so_far_is_in_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(main, "OUT", tmp_path)
    report = main.make_reporter([])

    report(a_result(seconds=251.4))
    first = (tmp_path / "table.md").read_text()
    report(a_result(failed_requests=3, missed=["3 requests failed"]))

    assert (first.count("a-play"), first.count("MISSED")) == (1, 0)
    assert "MISSED a-play: 3 requests failed" in (tmp_path / "table.md").read_text()


def test_a_name_that_there_is_not_is_refused_with_its_variable():
    with pytest.raises(ValueError, match="FIRST=thrush: there are a-play"):
        main.require_known([a_scenario()], ["thrush"], "FIRST")


def test_the_table_has_a_row_for_each_play_and_a_line_for_each_miss():
    shown = a_result(
        {"branch": "FleetWideDemand", "held": "ObserveOnly"}, moves=[], verdicts=[], planned=[CAP]
    )
    good, bad = a_result(seconds=251.4), a_result(failed_requests=3, missed=["3 requests failed"])

    lines = lanes.table([good, bad, shown]).splitlines()

    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == list(lanes.COLUMNS)
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
