"""When something of a play is due and when it is over, by the status and what is remembered of it."""

from typing import Any

import pytest

from lab.play.course import Chronicle, Course, line
from lab.play.schema import Cue, Moment, moment, seconds
from lab_play.plays import CAP, HEALS, a_closed_run, a_plan, a_run, a_scenario, a_status

DEMAND = "FleetWideDemand"
OBSERVED = {"branch": DEMAND, "held": "ObserveOnly", "plan": [{"knob": "maxNumSeqs"}]}
HELD = {"type": "Progressing", "status": "False", "reason": "ObserveOnly", "message": "only shown"}


def a_course(expect: dict[str, Any] | None = None, **changes: Any) -> tuple[Course, Chronicle]:
    chronicle = Chronicle()
    return Course(a_scenario(expect, **changes), chronicle), chronicle


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("30s", Moment(Cue.START, 30)),
        ("start + 2m", Moment(Cue.START, 120)),
        ("plan", Moment(Cue.PLAN, 0)),
        ("settled+5s", Moment(Cue.SETTLED, 5)),
    ],
)
def test_moments_are_written_as_people_say_them(text, at):
    assert moment(text) == at
    assert moment(str(at)) == at


@pytest.mark.parametrize("text", ["soon", "plan-5s", "plan+", "30", 30, "branch+x"])
def test_what_is_no_moment_is_answered_with_how_to_write_one(text):
    with pytest.raises(
        ValueError, match="is no moment: write a duration such as 30s, or one of start, branch"
    ):
        moment(text)


def test_a_duration_needs_its_unit():
    assert seconds("90s") == 90
    with pytest.raises(ValueError, match="has no unit"):
        seconds(90)


def test_an_incident_happens_once_after_its_cue_and_again_where_the_file_says_so():
    course, chronicle = a_course(
        incidents=[
            {"at": "5s", "do": "kill"},
            {"at": "plan+2s", "do": "approve"},
            {"at": "plan", "every": "3s", "do": "apply"},
        ]
    )
    seen: dict[float, list[str]] = {}
    for now in (0, 5, 6, 10, 11, 12, 13, 16):
        if now == 10:
            chronicle.learn(a_status(DEMAND, plan=a_plan()))
        course.look(now)
        seen[now] = [incident.do for incident in course.due(now)]

    assert seen == {
        0: [],
        5: ["kill"],
        6: [],
        10: ["apply"],
        11: [],
        12: ["approve"],
        13: ["apply"],
        16: ["apply"],
    }


def test_streams_begin_and_end_at_their_moments_each_once():
    load = [
        {"clients": 1, "lengths": "8+8", "ends": "20s"},
        {"clients": 2, "lengths": "8+8", "begins": "20s"},
        {"clients": 3, "lengths": "8+8", "begins": "settled"},
    ]
    course, chronicle = a_course(load=load)

    assert [number for number, _ in course.starting(0)] == [0]
    assert (list(course.starting(19)), list(course.ending(19))) == ([], [])
    assert ([number for number, _ in course.starting(20)], list(course.ending(20))) == ([1], [0])
    assert list(course.ending(21)) == []
    chronicle.learn(a_status(DEMAND, run=a_run(settled=True)))
    course.look(30)
    assert [stream.clients for _, stream in course.starting(30)] == [3]


def test_what_only_pods_show_is_a_cue_too():
    course = Course(a_scenario(), Chronicle())

    course.look(3, {Cue.RELEASED})
    course.look(5, {Cue.RELEASED, Cue.DRAINING})

    assert course.cues == {Cue.START: 0, Cue.RELEASED: 3, Cue.DRAINING: 5}


def test_each_cue_keeps_the_time_at_which_it_came_first():
    course, chronicle = a_course()
    course.look(1)
    chronicle.learn(a_status("TooFewRequests"))
    course.look(2)
    chronicle.learn(a_status(DEMAND, plan=a_plan()))
    course.look(3)
    chronicle.learn(a_status(DEMAND, run=a_run()))
    course.look(4)
    chronicle.learn(a_status(DEMAND, run=a_run(settled=True)))
    course.look(5)
    chronicle.learn(a_status("Healthy", history=[a_closed_run()]))
    course.look(6)
    course.look(7)

    assert course.cues == {Cue.START: 0, Cue.BRANCH: 3, Cue.PLAN: 3, Cue.SETTLED: 5, Cue.CLOSED: 6}


def test_the_figures_of_after_begin_with_the_change_that_counts():
    course, chronicle = a_course()
    course.scenario = course.scenario.model_copy(
        update={"expect": course.scenario.expect.model_copy(update={"measured_change": 2})}
    )
    chronicle.learn(a_status(DEMAND, run=a_run(settled=True)))
    course.look(1)
    first = course.measured_from
    chronicle.learn(a_status(DEMAND, run={**a_run(settled=True), "id": "20260301-025600"}))
    course.look(2)
    course.look(3)

    assert (first, course.measured_from) == (None, 2)


def test_a_trial_changes_nothing_and_is_no_turning_point():
    course, chronicle = a_course()
    trial = {**a_run(), "steps": [{"step": {"kind": "TrialStep"}, "state": "RollingOut"}]}
    course.look(1)
    chronicle.learn(a_status(DEMAND, run=trial))
    course.look(2)
    before = course.turned_at
    chronicle.learn(a_status(DEMAND, run={**a_run(), "id": "20260301-025600"}))
    course.look(3)
    course.look(4)

    assert before is None
    assert (course.cues[Cue.PLAN], course.turned_at) == (2, 3)


def test_a_play_with_a_run_ends_when_it_is_closed_and_all_is_measured():
    bounds = {**HEALS, "ratios": {"tokens_per_second": {"at_least": 0.95}}}
    course, chronicle = a_course(bounds, limits={"measure": "60s"})
    chronicle.learn(a_status(DEMAND, run=a_run(settled=True)))
    course.look(100)
    assert not course.is_over(130)
    chronicle.learn(a_status("Healthy", history=[a_closed_run()]))
    course.look(150)

    assert not course.is_over(159)
    assert course.is_over(160)


def test_a_play_with_a_run_ends_at_its_limits_all_the_same():
    course, chronicle = a_course(limits={"diagnosis": "100s", "run": "200s"})
    assert (course.is_over(99), course.is_over(100)) == (False, True)

    chronicle.learn(a_status(DEMAND, run=a_run()))
    course.look(90)
    assert (course.is_over(289), course.is_over(290)) == (False, True)


@pytest.mark.parametrize("expected", [{"held": "LeverExhausted"}, {"reported": ["LeverExhausted"]}])
def test_after_a_run_a_reason_that_is_expected_is_waited_for(expected):
    course, chronicle = a_course({**HEALS, **expected})
    chronicle.learn(a_status(DEMAND, run=a_run()))
    chronicle.learn(a_status("Healthy", history=[a_closed_run()]))
    course.look(200)
    assert not course.is_over(200)

    chronicle.learn(
        a_status(DEMAND, history=[a_closed_run()], conditions=[HELD | {"reason": "LeverExhausted"}])
    )
    assert course.is_over(210)


def test_where_no_run_is_expected_it_is_watched_after_all_was_seen():
    course, chronicle = a_course(OBSERVED, limits={"quiet": "15s"})
    chronicle.learn(a_status(DEMAND, plan=a_plan()))
    course.look(40)
    assert not course.is_over(60), "no condition says why the plan waits"
    chronicle.learn(a_status(DEMAND, plan=a_plan(), conditions=[HELD]))
    course.look(60)

    assert (course.is_over(74), course.is_over(75)) == (False, True)


def test_where_no_run_is_expected_the_words_of_the_file_are_waited_for():
    course, chronicle = a_course({**OBSERVED, "says": ["is out of rotation"]}, limits={"quiet": "15s"})
    chronicle.learn(a_status(DEMAND, plan=a_plan(), conditions=[HELD]))
    course.look(40)
    assert not course.is_over(60)
    chronicle.learn(
        a_status(DEMAND, plan=a_plan(), conditions=[HELD | {"message": "a-1 is out of rotation"}])
    )
    course.look(60)

    assert (course.is_over(74), course.is_over(75)) == (False, True)


def test_what_was_expected_must_last():
    course, chronicle = a_course(OBSERVED, limits={"quiet": "15s"})
    chronicle.learn(a_status(DEMAND, plan=a_plan(), conditions=[HELD]))
    course.look(60)
    chronicle.learn(a_status("MetricsStale"))
    course.look(70)
    chronicle.learn(a_status(DEMAND, plan=a_plan(), conditions=[HELD]))
    course.look(80)

    assert (course.is_over(94), course.is_over(95)) == (False, True)


def test_a_run_that_must_not_be_ends_the_play_at_once():
    course, chronicle = a_course(OBSERVED)
    chronicle.learn(a_status(DEMAND, run=a_run()))
    course.look(50)

    assert course.is_over(50)


def test_a_branch_that_never_comes_ends_the_play_at_its_limit():
    course, chronicle = a_course(OBSERVED, limits={"diagnosis": "100s", "quiet": "20s"})
    chronicle.learn(a_status("Healthy"))
    course.look(119)

    assert (course.is_over(119), course.is_over(120)) == (False, True)


def test_branches_are_remembered_in_their_order_and_each_once_per_time():
    chronicle = Chronicle()
    for reason in ("Healthy", "Healthy", "FleetWideDemand", "Healthy"):
        chronicle.learn(a_status(reason))
    chronicle.learn({})

    assert chronicle.branches == ["Healthy", "FleetWideDemand", "Healthy"]
    assert chronicle.reason == ""


def test_what_was_found_before_there_was_traffic_does_not_count():
    chronicle = Chronicle()
    for reason in ("Healthy", "MetricsMissing"):
        chronicle.learn(a_status(reason))
    chronicle.begin()
    for reason in ("MetricsMissing", "Healthy", "MetricsMissing"):
        chronicle.learn(a_status(reason))

    assert chronicle.branches == ["Healthy", "MetricsMissing"]


def test_reasons_of_conditions_are_remembered_after_they_are_gone():
    chronicle = Chronicle()
    for reason in ("Suspended", "Verifying"):
        chronicle.learn({"conditions": [{"type": "Progressing", "reason": reason}]})

    assert (chronicle.reasons, chronicle.ever) == ({"Verifying"}, {"Suspended", "Verifying"})


def test_a_run_is_remembered_after_it_is_closed():
    chronicle = Chronicle()
    chronicle.learn(a_status("FleetWideDemand", run=a_run()))
    chronicle.learn(a_status("FleetWideDemand", run=a_run(settled=True)))
    chronicle.learn(a_status("Healthy", history=[a_closed_run()]))

    assert chronicle.found == "FleetWideDemand"
    assert chronicle.moves == [CAP]
    assert chronicle.has_settled
    assert (chronicle.run, [run["outcome"] for run in chronicle.closed]) == ({}, ["Recovered"])


def test_closed_runs_are_listed_oldest_first():
    chronicle = Chronicle()
    chronicle.learn(a_status(history=[a_closed_run("NotRecovered"), a_closed_run("Recovered")]))

    assert [run["outcome"] for run in chronicle.closed] == ["Recovered", "NotRecovered"]


def test_a_plan_that_is_only_shown_has_its_steps():
    chronicle = Chronicle()
    chronicle.learn(a_status("FleetWideDemand", plan=a_plan()))

    assert (chronicle.planned, chronicle.moves) == ([CAP], [])


def test_texts_are_found_where_people_read_them_and_nowhere_else():
    chronicle = Chronicle()
    chronicle.learn(a_status(run={**a_run(), "message": "why it began"}))
    chronicle.learn(a_status(aside={"message": "secret"}) | {"plan": a_plan() | {"message": 'say "64" …'}})

    assert chronicle.says('say "64" …')
    assert chronicle.says("so it is")
    assert chronicle.says("why it began")
    assert not chronicle.says("secret")


def test_steps_of_any_kind_are_one_short_line():
    assert line(CAP) == "maxNumSeqs 64 -> 18"
    assert line({**CAP, "before": None}) == "maxNumSeqs default -> 18"
    assert line({"kind": "ReplaceStep", "pod": "a-1"}) == "replace a-1"
    assert line({"kind": "RevisionStep", "after": {"number": 1, "replicaset": "a"}}) == "revision 1"
    assert line({"kind": "SomeStep"}) == "some"


BURST = [{"rate": 5, "lengths": "8+8"}, {"rate": 9, "requests": 20, "lengths": "8+8", "begins": "45s"}]


@pytest.mark.parametrize(
    ("load", "planned", "settled", "windows"),
    [
        (BURST, 80, 150, {"before": (10, 45), "during": (45, 150), "after": (150, 210)}),
        (BURST[:1], 80, 150, {"before": (20, 80), "during": (80, 150), "after": (150, 210)}),
        (BURST, 80, None, {"before": (10, 45)}),
        (BURST, 40, 90, {"before": (10, 40), "during": (40, 90), "after": (90, 150)}),
        (BURST, 8, 90, {"during": (8, 90), "after": (90, 150)}),
        (BURST, None, None, {}),
    ],
    ids=["a burst", "none", "no change settles", "a plan before it", "pools not full yet", "no plan"],
)
def test_what_goes_wrong_begins_with_the_burst_or_else_with_the_plan(load, planned, settled, windows):
    course, chronicle = a_course(load=load)
    for now in (0, 8, 40, 45, 80, 90, 150):
        if planned is not None and now >= planned:
            chronicle.learn(a_status(DEMAND, run=a_run(settled=settled is not None and now >= settled)))
        course.look(now)
        list(course.starting(now))

    assert course.windows(full_from=10) == windows
