"""What counts as a good end of a play, and that each miss is named."""

import math
from dataclasses import replace

import pytest

from lab.demo import table
from lab.play.result import misses
from lab_play.plays import BEFORE, CAP, HEALS, a_result, a_scenario, bounded

AFTER = replace(
    BEFORE, preemptions_per_request=0.1, longest_gap_p95=1.0, tokens_per_second=1950, in_time_per_second=1900
)
GOALS = bounded(longest_gap_p95={"at_most": 0.25}, tokens_per_second={"at_least": 0.95})


def test_a_good_end_misses_nothing():
    assert misses(a_result()) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"branch": "Healthy", "message": "calm"}, "Healthy was found, expected FleetWideDemand: calm"),
        ({"branch": ""}, "no branch was found, expected FleetWideDemand"),
        ({"verdicts": ["NotRecovered"]}, "runs ended as NotRecovered, expected Recovered"),
        ({"verdicts": []}, "runs ended as no run ended, expected Recovered"),
        ({"verdicts": ["Recovered", "Recovered"]}, "runs ended as Recovered, Recovered, expected Recovered"),
        ({"moves": []}, "the runs had no step; expected FlagStep maxNumSeqs -> 10 to 30"),
        ({"moves": [CAP | {"after": "31"}]}, "the runs had maxNumSeqs 64 -> 31; expected"),
        ({"moves": [CAP | {"knob": "watermark"}]}, "the runs had watermark 64 -> 18; expected"),
        ({"moves": [CAP, CAP]}, "the runs had maxNumSeqs 64 -> 18, maxNumSeqs 64 -> 18; expected"),
        ({"moves": [{"kind": "ReplaceStep", "pod": "a"}]}, "the runs had replace a; expected"),
        ({"failed_requests": 1, "failures": ["aborted: cut"]}, "1 requests failed or were cut, expected 0"),
        ({"failed_kept_requests": 1}, "1 requests on kept connections failed or were cut, expected 0"),
        ({"min_in_rotation": 2}, "only 2 replicas were in rotation at some time, expected 3"),
        ({"requests": 0}, "no request was answered"),
        ({"unsaid": ["XID 79"]}, "nothing in the status says 'XID 79'"),
        ({"missing_reasons": ["Suspended"]}, "no condition said Suspended at any time"),
        ({"trouble": "TimeoutError: no pods"}, "it could not be played to its end: TimeoutError: no pods"),
    ],
)
def test_each_miss_is_named(changes, named):
    found = misses(a_result(**changes))

    assert len(found) == 1
    assert found[0].startswith(named)


def test_pods_at_once_and_released_replicas_that_expired_are_counted():
    expect = {**HEALS, "pods_at_once": {"at_least": 4, "at_most": 5}, "expired": 0}

    assert misses(a_result(expect, most_pods=5)) == []
    assert misses(a_result(expect, most_pods=6, expired=1)) == [
        "6 pods were there at once, expected at least 4 and at most 5",
        "1 released replicas ended at their deadline, expected 0",
    ]


@pytest.mark.parametrize("after", ["10", "30"])
def test_the_bounds_of_a_move_belong_to_it(after):
    assert misses(a_result(moves=[CAP | {"after": after}])) == []


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (AFTER, ""),
        (replace(AFTER, longest_gap_p95=2.5, tokens_per_second=1900), ""),
        (
            replace(AFTER, longest_gap_p95=2.51),
            "longest_gap_p95 is 0.251 of before (10 -> 2.51), expected at most",
        ),
        (replace(AFTER, longest_gap_p95=math.nan), "longest_gap_p95 is nan of before"),
        (replace(AFTER, tokens_per_second=1899), "tokens_per_second is 0.950 of before"),
        (None, "figures before or after are missing"),
    ],
    ids=["good", "the bounds", "gap", "nan", "throughput", "none"],
)
def test_ratios_after_over_before_are_bounded(after, named):
    found = misses(a_result(GOALS, before=BEFORE, after=after))

    assert [miss[: len(named)] for miss in found] == ([named] if named else [])


def test_a_figure_that_was_zero_before_must_not_come_up():
    bound = bounded(preemptions_per_request={"at_most": 2})
    none = replace(BEFORE, preemptions_per_request=0.0)

    assert misses(a_result(bound, before=none, after=none)) == []
    assert misses(a_result(bound, before=none, after=AFTER))[0].startswith("preemptions_per_request is inf")


@pytest.mark.parametrize(
    ("unhealed", "named"),
    [
        ({"after": 950.0}, ""),
        ({"after": 951.0}, "1900 tokens/s are served in time and 951 without the operator, expected 2 times"),
        ({}, "what the fleet would have served without the operator is not known"),
    ],
    ids=["the bound", "too little", "not simulated"],
)
def test_what_is_gained_over_the_fleet_as_it_was_is_bounded(unhealed, named):
    found = misses(a_result({**HEALS, "gain": 2}, before=BEFORE, after=AFTER, unhealed=unhealed))

    assert [miss[: len(named)] for miss in found] == ([named] if named else [])


ALONE = {"branch": "Healthy", "writes": "untouched", "restarts_per_replica": 0}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, ""),
        ({"planned": [CAP]}, "the plan had maxNumSeqs 64 -> 18; expected none"),
        ({"moves": [CAP]}, "the runs had maxNumSeqs 64 -> 18; expected none"),
        ({"verdicts": ["Recovered"]}, "runs ended as Recovered, expected no run"),
        ({"foreign_writers": ["kvmedic"]}, "somebody wrote to the workload or its pods: kvmedic"),
        ({"rewritten": ["inference-llm"]}, "their resourceVersion is another than before: inference-llm"),
        ({"template_changed": True}, "the workload is not as it was before"),
        ({"restarts_per_replica": 1 / 3}, "0.33 restarts per replica, expected 0 at most"),
    ],
)
def test_a_fleet_that_must_be_left_alone_is(changes, named):
    calm = {
        "moves": [],
        "verdicts": [],
        "branch": "Healthy",
        "branches": ["Healthy"],
        "restarts_per_replica": 0.0,
    }

    found = misses(a_result(ALONE, **{**calm, **changes}))

    assert [miss[: len(named)] for miss in found] == ([named] if named else [])


def test_a_twin_must_not_find_its_scenarios_branch_even_for_a_moment():
    forbidden = frozenset({"FleetWideDemand", "Healthy"})
    calm = a_result(ALONE, moves=[], verdicts=[], branch="Healthy", restarts_per_replica=0.0)

    assert misses(calm, forbidden) == ["FleetWideDemand was found, which only its twin must find"]
    assert misses(a_result(branches=["FleetWideDemand"]), frozenset({"FleetWideDemand"})) == []


def test_what_holds_a_plan_back_must_be_said():
    held = {"branch": "FleetWideDemand", "held": "ObserveOnly", "plan": [{"knob": "maxNumSeqs"}]}
    shown = a_result(held, moves=[], verdicts=[], planned=[CAP], reasons=["ObserveOnly", "TargetFound"])

    assert misses(shown) == []
    shown.reasons = ["TargetFound"]
    assert misses(shown) == ["no condition says ObserveOnly; there are TargetFound"]


def test_what_an_incident_costs_is_not_the_operators():
    hard = {**HEALS, "failed_requests": "any", "min_in_rotation": 1}

    assert misses(a_result(hard, failed_requests=40, min_in_rotation=1)) == []
    assert len(misses(a_result(hard, min_in_rotation=0))) == 1


def test_of_several_verdicts_any_will_do():
    either = {**HEALS, "verdicts": [["Recovered", "Improved"]]}

    assert misses(a_result(either, verdicts=["Improved"])) == []
    assert "expected Recovered or Improved" in misses(a_result(either, verdicts=["NotRecovered"]))[0]


def test_the_table_of_the_demo_shows_both_sides_and_every_miss():
    during = replace(BEFORE, in_time_per_second=300)
    without = {"before": 880.0, "during": 250.0, "after": 40.0}
    result = a_result(before=BEFORE, during=during, after=AFTER, unhealed=without, failed_requests=2)
    result.missed = misses(result)

    shown = {
        line.partition("  ")[0]: line.split()[-3:] for line in table(result).replace("\n  ", "\n").split("\n")
    }

    assert shown["served in time, tokens/s"] == ["900", "300", "1900"]
    assert shown["the same without kvmedic*"] == ["880", "250", "40"]
    assert shown["preemptions per request"] == ["1.50", "1.50", "0.10"]
    assert "first token within 30 s" in table(result)
    assert "MISSED   2 requests failed" in table(result)
    assert "without kvmedic" not in table(a_result(before=BEFORE, after=AFTER))
    assert "as it should be" in table(a_result())


def test_the_summary_has_the_promised_fields_and_no_nan():
    summary = a_result(before=BEFORE, after=replace(AFTER, ttft_p95=math.nan)).as_json()

    promised = {"before", "after", "failed_requests", "min_in_rotation", "replicas", "restarts_per_replica"}
    assert promised | {"plan", "verdict", "seconds"} <= summary.keys()
    assert summary["after"]["ttft_p95"] is None
    assert (summary["plan"], summary["verdict"]) == ("maxNumSeqs 64 -> 18", "Recovered")


def test_a_scenario_without_a_run_is_named_by_what_held_it():
    held = a_result({"branch": "FleetWideDemand", "held": "ObserveOnly"}, verdicts=[], moves=[])

    assert held.verdict == "ObserveOnly"
    assert a_scenario().fleet.cap == "64"
