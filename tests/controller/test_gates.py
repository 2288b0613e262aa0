"""The accuracy gate on a real API server: nothing is turned on that the team's evaluation did not pass."""

from __future__ import annotations

import pytest

from lab.cluster.simulation import behaviour
from lab.scripted.proxy import Write
from worlds import gating
from worlds.gating import COMPACTING, FP8, SWITCH, allow, cron_job, jobs, roomy, scores, turned_off, variables
from worlds.trying import answers, trial_pods
from worlds.world import World

SECONDS = 120


@pytest.fixture
def fixing(a_world):
    """Makes a calm fleet whose method was turned off, and starts the operator on it."""

    def run(compression, evaluation=None, **script) -> World:
        world = a_world(replicas=2, spec=gating.spec(**compression), change=roomy)
        allow(world, evaluation)
        world.rewrite(**script)
        turned_off(world)
        world.start()
        return world

    return run


def declare(world: World, accuracy: float) -> None:
    """Give an accuracy of the present pod template in the spec. Alone it changes nothing in mode Auto."""
    known = {"accuracy": accuracy, "accuracyConfiguration": world.revision()}
    patch = {"spec": {"compression": {"baseline": known}}}
    world.cluster.api.patch("KVRemediation", "llm", patch, world.namespace)


def needs(world: World, reason: str) -> None:
    world.wait(lambda: world.condition("ActionRequired") == ("True", reason), SECONDS, f"{reason} is shown")


def nothing_was_changed(world: World) -> None:
    assert world.traces() == []
    assert (trial_pods(world), jobs(world)) == ([], [])
    assert len(world.cluster.api.list("ReplicaSet", world.namespace, "app=llm")) == 1


def test_a_method_that_proves_itself_takes_the_place_of_the_one_that_did_not(fixing):
    world = fixing(COMPACTING, cron_job())
    declare(world, 0.99)
    before = world.revision()

    world.wait(lambda: len(world.outcomes()) == 4, SECONDS, "it is turned on")

    assert world.outcomes() == ["Recovered", "TrialAnswered", "TrialAnswered", "TrialAnswered"]
    assert variables(world) == {SWITCH: "1"}
    assert answers(world) == ["Reclaims"]
    assert scores(world) == [(world.revision(), 0.8), (before, 0.8)]
    assert "turnedOff" not in world.status()
    message = world.status()["history"][0]["message"]
    assert "live traffic does not show whether blocks of Mine come back (requests are too short: " in message
    assert "the trial with this very pod template did: on a trial pod 16384 tokens " in message
    assert (trial_pods(world), jobs(world), world.traces()) == ([], [], [])


def on_long_answers(a_world, new: str) -> World:
    """Start the operator on a fleet of long answers; `new` scripts replicas with the method."""
    world = a_world(replicas=2, spec=gating.spec(**COMPACTING), change=roomy)
    allow(world, cron_job())
    world.rewrite(old="long", new=new)
    turned_off(world)
    world.start()
    return world


def test_a_method_whose_blocks_come_back_on_live_traffic_stays_with_the_numbers(a_world):
    world = on_long_answers(a_world, "long, kept short")

    world.wait(lambda: len(world.outcomes()) == 4, SECONDS, "it is turned on")

    assert world.outcomes()[0] == "Recovered"
    assert variables(world) == {SWITCH: "1"}
    message = world.status()["history"][0]["message"]
    assert message.startswith("blocks come back on the fleet: a running sequence takes 130.0 blocks, ")
    assert "answers of over 16384 tokens were completed; no worse than before; " in message
    assert world.traces() == []


def test_a_method_whose_blocks_do_not_come_back_on_live_traffic_is_taken_back(a_world):
    world = on_long_answers(a_world, "long")
    before = world.revision()

    needs(world, "FixesExhausted")

    assert world.outcomes() == ["NotRecovered", "TrialAnswered", "TrialAnswered", "TrialAnswered"]
    assert (variables(world), world.revision()) == ({}, before)
    message = world.status()["history"][0]["message"]
    assert message.startswith("blocks do not come back on the fleet: a running sequence takes 450.0 blocks, ")
    assert (trial_pods(world), jobs(world), world.traces()) == ([], [], [])


def test_the_job_gets_the_address_of_the_trial_pod_and_the_fleet_is_not_asked(fixing):
    world = fixing(FP8, cron_job(**behaviour(complete_after="1h")))
    world.wait(lambda: bool(jobs(world)), SECONDS, "the Job is there")

    [job], [pod] = jobs(world), trial_pods(world)

    given = {each["name"]: each["value"] for each in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert given["OPENAI_BASE_URL"] == f"http://{pod['status']['podIP']}:8000/v1"
    assert job["spec"]["backoffLimit"] == 0
    assert len(pod["metadata"]["labels"]) == 1


def test_a_trial_pod_that_keeps_the_bits_as_they_are_is_not_evaluated(fixing):
    world = fixing(FP8, cron_job(), stored="auto")

    world.wait(lambda: world.outcomes()[:1] == ["TrialUnanswered"], SECONDS, "the gate is over")

    assert world.outcomes() == ["TrialUnanswered", "TrialAnswered"]
    assert [score for _, score in scores(world)] == [None, 0.8]
    assert "stores keys and values as auto" in world.status()["history"][0]["message"]
    nothing_was_changed(world)


@pytest.mark.parametrize(
    ("evaluation", "script", "named"),
    [
        (cron_job(**behaviour(exit_code="1")), {}, "the evaluation failed"),
        (cron_job(), {"answered": 150}, "finished 150 requests"),
    ],
)
def test_what_is_no_score_is_reported_and_not_asked_for_again(fixing, evaluation, script, named):
    world = fixing(FP8, evaluation, **script)

    world.wait(lambda: world.outcomes() == ["TrialUnanswered"], SECONDS, "the gate is over")

    assert [score for _, score in scores(world)] == [None]
    assert named in world.status()["history"][0]["message"]
    nothing_was_changed(world)


@pytest.mark.parametrize(
    ("evaluation", "named"),
    [
        (None, "CronJob/aime24"),
        ({**cron_job(), "spec": {**cron_job()["spec"], "suspend": False}}, "suspend"),
    ],
)
def test_without_an_evaluation_a_person_is_asked_and_nothing_begun(fixing, evaluation, named):
    world = fixing(FP8, evaluation)

    needs(world, "GateMissing")

    assert named in str(world.status()["conditions"])
    assert world.outcomes() == []
    nothing_was_changed(world)


def test_an_operator_that_may_make_no_job_says_so(a_world):
    world = a_world(replicas=2, spec=gating.spec(**FP8), change=roomy)
    allow(world, cron_job())
    world.settings |= {"probe": {"trialPods": True}}
    turned_off(world)
    world.start()

    needs(world, "GateMissing")
    assert "probe.evaluations" in str(world.status()["conditions"])


def test_the_process_after_a_crash_goes_on_with_the_same_job(fixing):
    world = fixing(FP8, cron_job(**behaviour(complete_after="4s")))
    world.wait(lambda: bool(jobs(world)), SECONDS, "the Job is there")
    before = [job["metadata"]["uid"] for job in jobs(world)]

    world.kill()
    world.start()

    world.wait(lambda: bool(scores(world)), SECONDS, "the score is there")
    world.wait(lambda: [job["metadata"]["uid"] for job in jobs(world)] != before, SECONDS, "the Job is gone")
    assert [score for _, score in scores(world)] == [0.8]


PHRASE = "FlashAttention does not support fp8 kv-cache on this device"
SECRET = "sesame"
BAD = behaviour(mode="crash", restart_after="1h")


def a_refusing_world(a_world, log: str) -> World:
    """Start the operator on a fleet whose trial pods end at start-up, with a log that holds a secret too."""
    world = a_world(replicas=2, spec=gating.spec(**FP8), change=roomy)
    allow(world, cron_job(**behaviour(complete_after="1h")))
    world.rewrite(stored="fp8")

    def crash(write: Write) -> None:
        for pod in trial_pods(world) if (write.verb, write.object) == ("POST", "pods") else ():
            patch = {"metadata": {"annotations": BAD}}
            world.cluster.api.patch("Pod", pod["metadata"]["name"], patch, world.namespace)

    world.proxy.committed = crash
    world.proxy.log = f"non-default args: {{'api_key': ['{SECRET}']}}\n{log}\n"
    turned_off(world, measured=0.8)
    world.start()
    return world


def test_an_engine_that_refuses_the_type_at_start_up_is_not_tried_again_and_says_why(a_world):
    world = a_refusing_world(a_world, f"NotImplementedError: {PHRASE}.")

    needs(world, "FixesExhausted")

    assert world.outcomes() == ["TrialAnswered"]
    [score, _] = world.status()["scores"]
    assert score["refused"] is True
    assert score["message"] == f"fp8: the engine refuses it on this hardware: {PHRASE}"
    [failed] = world.status()["failedAttempts"]
    assert (failed["key"], PHRASE in failed["why"]) == ("Fp8KVCache", True)
    assert SECRET not in str(world.status()) + world.log
    nothing_was_changed(world)


def test_an_engine_that_ends_otherwise_is_reported_and_not_tried_again_that_day(a_world):
    world = a_refusing_world(a_world, "KeyError: 'rope'")

    world.wait(lambda: world.outcomes() == ["TrialUnanswered"], SECONDS, "the gate is over")

    assert [score for _, score in scores(world)] == [None, 0.8]
    message = "fp8: the trial pod ended by itself (exit code 1, Error)"
    assert world.status()["history"][0]["message"] == message
    nothing_was_changed(world)


def test_suspending_ends_an_evaluation(fixing):
    world = fixing(FP8, cron_job(**behaviour(complete_after="1h")))
    world.wait(lambda: bool(jobs(world)), SECONDS, "the Job is there")

    world.kubectl("patch", "kvr", "llm", "--type=merge", "-p", '{"spec": {"suspend": true}}')

    world.wait(lambda: world.outcomes() == ["Suspended"], SECONDS, "the run is closed")
    nothing_was_changed(world)


def test_a_loss_of_accuracy_keeps_the_fleet_as_it_is_and_is_reported(a_world):
    world = a_world(replicas=2, spec=gating.spec(**FP8), change=roomy)
    allow(world, cron_job(score=0.6))
    world.rewrite(stored="fp8")
    turned_off(world, measured=0.8)
    world.start()

    needs(world, "FixesExhausted")

    assert world.outcomes() == ["TrialAnswered"]
    assert "a loss of 0.200" in str(world.status()["conditions"])
    nothing_was_changed(world)
