"""What is remembered of a resource's status over a play."""

from lab.play.chronicle import Chronicle, line
from lab_play.plays import CAP, a_closed_run, a_plan, a_run, a_status


def test_branches_are_remembered_in_their_order_and_each_once_per_time():
    told = Chronicle()
    for reason in ("Healthy", "Healthy", "FleetWideDemand", "Healthy"):
        told.learn(a_status(reason))
    told.learn({})

    assert told.branches == ["Healthy", "FleetWideDemand", "Healthy"]
    assert told.reason == ""


def test_what_was_found_before_there_was_traffic_does_not_count():
    told = Chronicle()
    for reason in ("Healthy", "MetricsMissing"):
        told.learn(a_status(reason))
    told.begin()
    for reason in ("MetricsMissing", "Healthy", "MetricsMissing"):
        told.learn(a_status(reason))

    assert told.branches == ["Healthy", "MetricsMissing"]


def test_reasons_of_conditions_are_remembered_after_they_are_gone():
    told = Chronicle()
    for reason in ("Suspended", "Verifying"):
        told.learn({"conditions": [{"type": "Progressing", "reason": reason}]})

    assert (told.reasons, told.ever) == ({"Verifying"}, {"Suspended", "Verifying"})


def test_a_run_is_remembered_after_it_is_closed():
    told = Chronicle()
    told.learn(a_status("FleetWideDemand", run=a_run()))
    told.learn(a_status("FleetWideDemand", run=a_run(settled=True)))
    told.learn(a_status("Healthy", history=[a_closed_run()]))

    assert told.found == "FleetWideDemand"
    assert told.moves == [CAP]
    assert told.has_settled
    assert (told.run, [run["outcome"] for run in told.closed]) == ({}, ["Recovered"])


def test_closed_runs_are_told_oldest_first():
    told = Chronicle()
    told.learn(a_status(history=[a_closed_run("NotRecovered"), a_closed_run("Recovered")]))

    assert [run["outcome"] for run in told.closed] == ["Recovered", "NotRecovered"]


def test_a_plan_that_is_only_shown_has_its_steps():
    told = Chronicle()
    told.learn(a_status("FleetWideDemand", plan=a_plan()))

    assert (told.planned, told.moves) == ([CAP], [])


def test_texts_are_found_where_people_read_them_and_nowhere_else():
    told = Chronicle()
    told.learn(a_status(run={**a_run(), "message": "why it began"}))
    told.learn(a_status(aside={"message": "secret"}) | {"plan": a_plan() | {"message": 'say "64" …'}})

    assert told.says('say "64" …')
    assert told.says("so it is")
    assert told.says("why it began")
    assert not told.says("secret")


def test_steps_of_any_kind_are_one_short_line():
    assert line(CAP) == "maxNumSeqs 64 -> 18"
    assert line({**CAP, "before": None}) == "maxNumSeqs default -> 18"
    assert line({"kind": "ReplaceStep", "pod": "a-1"}) == "replace a-1"
    assert line({"kind": "RevisionStep", "after": {"number": 1, "replicaset": "a"}}) == "revision 1"
    assert line({"kind": "SomeStep"}) == "some"
