"""Trials of what compresses a KV cache, on a real API server: asked, answered, and gone."""

from __future__ import annotations

import json

import pytest

from lab.scripted.readings import POOL
from worlds.command_line import kvmedic
from worlds.trying import (
    AS_BEFORE,
    FASTER,
    allow,
    alone,
    answers,
    bits,
    evicting,
    growths,
    is_tried,
    slower,
    spec,
    trial_pods,
)
from worlds.world import World

SECONDS = 60


def goes_on(given):
    """Whether something may be done about what a trial shows; else the other runbook would cap the fleet."""
    return given["compression"].get("allowedFixes") != []


@pytest.fixture
def tried(a_world):
    """Makes a thrashing fleet with a method on, and runs until its trial is over."""

    def run(probe: str, **compression) -> World:
        given = spec(**compression)
        world = a_world(replicas=2, spec=given if goes_on(given) else alone(given), change=evicting)
        allow(world)
        world.rewrite(probe=probe)
        world.start()
        world.wait(lambda: is_tried(world), SECONDS, "the trial is over")
        return world

    return run


def test_a_trial_is_explained_with_its_picture_while_its_template_stands(tried):
    world = tried("Scattered", allowedFixes=[])
    seen = world.status()["answers"][0]["seen"]
    world.wait(
        lambda: world.condition("ActionRequired") == ("True", "FixesExhausted"), SECONDS, "a person is asked"
    )
    assert world.status()["diagnosis"]["reason"] == "BlocksNotFreed"

    explained = kvmedic(world, "explain", "llm", "-v")
    facts = json.loads(kvmedic(world, "explain", "llm", "-o", "json").stdout)["trial"]
    world.kubectl("set", "env", "deployment/llm", "OTHER=1")
    after = kvmedic(world, "explain", "llm", "-v")

    assert explained.returncode == 0, explained.stderr
    assert " on this pod template: Scattered: on a trial pod " in explained.stdout
    assert f"{seen[-1]['tokens']} tokens of the request" in explained.stdout
    assert [(each["tokens"], each["usedBlocks"]) for each in facts["readings"]] == [
        (each["tokens"], each["used"]) for each in seen
    ]
    assert " on another pod template: Scattered: on a trial pod " in after.stdout
    assert "tokens of the request" not in after.stdout


def test_where_blocks_come_back_the_other_runbook_goes_on(tried):
    world = tried("Reclaims")

    world.wait(lambda: len(world.outcomes()) == 2, SECONDS, "its run is closed")
    assert answers(world) == ["Reclaims"]
    assert world.outcomes() == ["Recovered", "TrialAnswered"]
    assert any("max-num-seqs=" in arg and arg != "--max-num-seqs=64" for arg in world.args())


@pytest.mark.parametrize(
    ("prompts", "growth", "reason", "says"),
    [
        ("Square", "Square", "EagerFallback", "grows with the power 2.00"),
        ("Linear", "Linear", "BaselineMissing", "attention did not fall back"),
        ("short", None, "TrialUnanswered", "1 prompts were sent, 3 are needed"),
    ],
)
def test_where_a_fleet_is_slower_prompts_show_whether_attention_is_fused(
    a_world, prompts, growth, reason, says
):
    known = {"baseline": {**FASTER, "blocks": 1}}
    world = a_world(replicas=2, spec=bits(allowedFixes=[], **known), change=evicting)
    slower(world, prompts)
    before = world.deployment()["spec"]["template"]
    world.start()

    world.wait(lambda: bool(world.outcomes()), SECONDS, "the trial is over")
    world.wait(lambda: world.status()["diagnosis"]["reason"] == reason, SECONDS, "it counts")
    explained = kvmedic(world, "explain", "llm", "-v")

    assert (growths(world), answers(world), trial_pods(world)) == ([growth], [None], [])
    assert "computes prompts of up to 16384 tokens" in world.status()["history"][0]["steps"][0]
    assert says in world.status()["diagnosis"]["message"]
    assert world.deployment()["spec"]["template"] == before
    assert "prompt tokens device memory, MiB more than before" in explained.stdout, explained.stderr


@pytest.mark.parametrize(
    ("without", "outcome", "growth"), [("None", "TrialAnswered", "None"), ("short", "TrialUnanswered", None)]
)
def test_a_method_that_made_attention_fall_back_is_turned_off(a_world, without, outcome, growth):
    at_once = {**bits(), "limits": {"cooldown": "0s"}}
    world = a_world(replicas=2, spec=at_once, change=evicting)
    slower(world, "Square", promptsWithout=without)
    world.start()

    world.wait(lambda: len(world.outcomes()) == 3, SECONDS, "its run is closed")

    assert world.outcomes()[1:] == [outcome, "TrialAnswered"]
    assert growths(world) == [growth, "Square"]
    assert "env" not in world.deployment()["spec"]["template"]["spec"]["containers"][0]
    assert world.traces() == []


def test_attention_that_is_not_fused_without_the_method_either_is_no_reason_to_turn_it_off(a_world):
    world = a_world(replicas=2, spec=bits(baseline={**FASTER, "blocks": 1}), change=evicting)
    slower(world, "Square", promptsWithout="Square")
    before = world.deployment()["spec"]["template"]
    world.start()

    world.wait(lambda: len(world.outcomes()) == 2, SECONDS, "both halves are shown")
    world.wait(lambda: world.status()["diagnosis"]["reason"] == "BaselineMissing", SECONDS, "it counts")
    explained = kvmedic(world, "explain", "llm", "-v")

    assert growths(world) == ["Square", "Square"]
    assert "without Mine it is not either" in world.status()["diagnosis"]["message"]
    assert "With the method off, at " in explained.stdout, explained.stderr
    assert world.deployment()["spec"]["template"] == before
    assert trial_pods(world) == []


@pytest.mark.parametrize(
    ("blocks", "reason", "says"),
    [
        (POOL.blocks, "CompressionNotApplied", f"holds {POOL.tokens} tokens, {POOL.tokens} without it"),
        (POOL.blocks // 2, "BaselineMissing", f"without Mine there are {POOL.blocks // 2} blocks"),
    ],
    ids=["as many as without", "twice as many"],
)
def test_where_nobody_knows_the_blocks_of_before_a_start_without_the_method_shows_it(
    a_world, blocks, reason, says
):
    world = a_world(replicas=2, spec=bits(baseline=AS_BEFORE), change=evicting)
    slower(world, "hangs", blocksWithout=blocks)
    before = world.deployment()["spec"]["template"]
    world.start()

    world.wait(lambda: bool(world.outcomes()), SECONDS, "the trial is over")
    world.wait(lambda: world.status()["diagnosis"]["reason"] == reason, SECONDS, "it counts")

    assert world.outcomes() == ["TrialAnswered"]
    assert "a trial pod starts without Mine" in world.status()["history"][0]["steps"][0]
    assert says in str(world.status()["diagnosis"])
    assert world.status()["answers"][0]["backends"] == ["FLASH_ATTN"]
    assert (world.deployment()["spec"]["template"], trial_pods(world)) == (before, [])


def test_what_shows_nothing_is_said(tried):
    world = tried("short", allowedFixes=[])

    assert answers(world) == [None]
    assert trial_pods(world) == []


def test_a_trial_that_cannot_be_made_hands_the_fleet_to_the_other_runbook(a_world):
    world = a_world(replicas=2, spec=spec(), change=evicting)
    world.start()

    world.wait(lambda: bool(world.outcomes()) and world.is_closed(), SECONDS, "the fleet is capped")

    assert world.outcomes() == ["Recovered"]
    assert "--max-num-seqs=64" not in world.args()
    (given,) = world.status()["runbookSwitches"]
    assert (given["reason"], given["toRunbook"]) == ("TrialImpossible", "PreemptionThrash")
    assert "probe.trialPods" in given["message"]


def test_a_template_that_takes_a_port_of_its_host_is_not_tried(a_world):
    def with_port(container, pod):
        evicting(container, pod)
        container["ports"] = [{"containerPort": 8000, "hostPort": 8000}]

    world = a_world(replicas=1, spec=alone(spec()), change=with_port)
    allow(world)
    world.start()

    world.wait(
        lambda: world.condition("ActionRequired") == ("True", "TrialImpossible"), SECONDS, "a person is asked"
    )
    assert "hostPort" in str(world.status()["conditions"])
    assert trial_pods(world) == []


def test_after_a_trial_that_is_refused_by_the_engine_the_other_runbook_goes_on_at_once(tried):
    world = tried("refused")

    world.wait(lambda: len(world.outcomes()) == 2 and world.is_closed(), SECONDS, "the fleet is capped")

    assert world.outcomes() == ["Recovered", "TrialUnanswered"], "within the cooldown of 30 minutes"
    assert (answers(world), trial_pods(world)) == ([None], [])


def test_a_test_that_is_broken_off_begins_anew_on_the_same_pod(a_world):
    world = a_world(replicas=2, spec=alone(spec(allowedFixes=[])), change=evicting)
    allow(world)
    world.start()
    world.wait(
        lambda: world.condition("Progressing") == ("True", "TrialRunning"), SECONDS, "the test goes on"
    )
    before = {pod["metadata"]["uid"] for pod in trial_pods(world)}

    world.kill()
    world.rewrite(probe="PerHead")
    world.start()

    assert {pod["metadata"]["uid"] for pod in trial_pods(world)} == before
    world.wait(lambda: is_tried(world), SECONDS, "the trial is over")
    assert answers(world) == ["None"]
    assert trial_pods(world) == []


def test_suspending_ends_a_trial(a_world):
    world = a_world(replicas=2, spec=spec(), change=evicting)
    allow(world)
    world.start()
    world.wait(lambda: bool(trial_pods(world)), SECONDS, "the trial pod is there")

    world.kubectl("patch", "kvr", "llm", "--type=merge", "-p", '{"spec": {"suspend": true}}')

    world.wait(world.is_closed, SECONDS, "the run is closed")
    assert world.outcomes() == ["Suspended"]
    assert trial_pods(world) == []


def test_deleting_the_resource_ends_its_trial(a_world):
    world = a_world(replicas=2, spec=spec(), change=evicting)
    allow(world)
    world.start()
    world.wait(lambda: bool(trial_pods(world)), SECONDS, "the trial pod is there")

    world.kubectl("delete", "kvr", "llm", "--wait=true", f"--timeout={SECONDS}s")

    world.wait(lambda: trial_pods(world) == [], SECONDS, "the trial pod is gone")
    assert world.traces() == []


def test_editing_the_template_ends_its_trial(a_world):
    world = a_world(replicas=2, spec=spec(), change=evicting)
    allow(world)
    world.start()
    world.wait(lambda: bool(trial_pods(world)), SECONDS, "the trial pod is there")
    (first,) = trial_pods(world)

    world.kubectl("set", "env", "deployment/llm", "OTHER=1")

    world.wait(lambda: bool(world.outcomes()), SECONDS, "the run is closed")
    assert world.outcomes()[-1] == "FlagDrifted"
    assert answers(world) == []
    names = lambda: [each["metadata"]["name"] for each in trial_pods(world)]  # noqa: E731
    world.wait(lambda: first["metadata"]["name"] not in names(), SECONDS, "the trial pod is gone")


def test_a_trial_pod_that_somebody_deletes_is_made_anew(a_world):
    world = a_world(replicas=2, spec=alone(spec()), change=evicting)
    allow(world)
    world.start()
    world.wait(lambda: bool(trial_pods(world)), SECONDS, "the trial pod is there")
    (first,) = trial_pods(world)

    world.kubectl("delete", "pod", first["metadata"]["name"], "--grace-period=0", "--force")
    world.rewrite(probe="PerHead")

    world.wait(lambda: is_tried(world), SECONDS, "the trial is over")
    assert world.outcomes()[-1] in ("TrialAnswered", "TrialUnanswered")
    assert trial_pods(world) == []


def test_a_method_that_frees_no_blocks_is_turned_off_with_all_its_settings(tried):
    world = tried("Scattered")

    world.wait(lambda: len(world.outcomes()) == 2, SECONDS, "its run is closed")

    assert world.outcomes() == ["Recovered", "TrialAnswered"]
    assert "env" not in world.deployment()["spec"]["template"]["spec"]["containers"][0]
    assert world.traces() == []
    world.wait(
        lambda: world.status()["diagnosis"]["runbook"] == "PreemptionThrash", SECONDS, "the method is off"
    )
