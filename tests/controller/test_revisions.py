"""A deploy that brought trouble is rolled back on real controllers, and its near twins are not."""

from __future__ import annotations

import json
import time

from worlds.conditions import message_of
from worlds.deploying import (
    ALLOWED,
    CALM_CAP,
    CAP,
    RAISED_CAP,
    ROLLBACK,
    break_earlier,
    cap,
    deploy,
    numbers,
    patch_args,
    settle,
)
from worlds.phases import PATIENCE_SECONDS
from worlds.world import Eye, World

TICKS_SECONDS = 3.0


def test_an_earlier_revision_that_does_not_start_is_given_up(a_world):
    world = a_world(2, spec=ALLOWED)
    deploy(world)
    break_earlier(world)
    before, pods = world.deployment()["spec"], {pod["metadata"]["name"] for pod in world.pods()}

    world.start()
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["CanaryFailed"]
    assert [one["why"] for one in world.status()["failedAttempts"]] == ["CanaryFailed"]
    assert world.deployment()["spec"] == before
    world.wait(lambda: {pod["metadata"]["name"] for pod in world.pods()} == pods, 60, "the canary is gone")


def test_what_it_will_take_is_said_before_and_nothing_of_a_template_is_in_the_status(a_world):
    world = a_world(2, spec={**ALLOWED, "mode": "Approve"})
    world.kubectl("set", "env", "deployment/llm", "TOKEN=hunter2-hunter2")
    settle(world)
    deploy(world)

    world.start()
    world.wait(lambda: "plan" in world.status(), PATIENCE_SECONDS, "a plan is shown")

    plan = world.status()["plan"]
    assert plan["reason"] == "DeployCorrelated"
    assert "maxNumSeqs 64 -> 256; back to revision 2, 2 new replicas at" in plan["message"]
    assert "until Ready (measured): about" in plan["message"]
    assert world.status()["change"] == "pod template of revision 3 -> of revision 2"
    assert world.status()["plan"]["exact"]["steps"][0]["kind"] == "RevisionStep"
    assert "hunter2" not in str(world.resource())
    assert "hunter2" not in world.log


def test_a_revision_that_ran_before_a_person_tried_another_is_not_rolled_back(a_world):
    world = a_world(2, spec={"levers": [ROLLBACK, CAP], "mode": "Observe"})
    patch_args(world, lambda args: ["--max-num-seqs=32" if arg == CALM_CAP else arg for arg in args])
    settle(world)
    world.kubectl("rollout", "undo", "deployment/llm")
    settle(world)
    world.rewrite(before="recovered", revision=world.revision())

    world.start()
    world.wait(lambda: "plan" in world.status(), PATIENCE_SECONDS, "a plan is shown")

    assert world.status()["diagnosis"]["reason"] == "FleetWideDemand"
    assert world.status()["change"].startswith("maxNumSeqs")


def test_without_a_past_nothing_is_changed(a_world):
    world = a_world(2, spec=ALLOWED)
    deploy(world, before=None)
    generation = world.deployment()["metadata"]["generation"]

    world.start()
    doubt = ("Unknown", "MetricsMissing")
    world.wait(lambda: world.condition("Diagnosed") == doubt, PATIENCE_SECONDS, "the doubt is reported")
    time.sleep(TICKS_SECONDS)

    assert "revision 2 came at" in message_of(world, "Diagnosed")
    assert world.deployment()["metadata"]["generation"] == generation
    assert (world.outcomes(), world.traces()) == ([], [])


def test_where_the_earlier_revision_is_gone_the_cap_is_right_sized(a_world):
    world = a_world(2, spec=ALLOWED)
    world.cluster.api.patch("Deployment", "llm", {"spec": {"revisionHistoryLimit": 0}}, world.namespace)
    deploy(world)
    world.wait(lambda: len(numbers(world)) == 1, PATIENCE_SECONDS, "the earlier ReplicaSet is collected")

    world.start()
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    run = world.status()["history"][0]
    assert (run["reason"], run["outcome"]) == ("FleetWideDemand", "Recovered")
    assert cap(world) == "--max-num-seqs=14"


def test_where_it_is_not_allowed_the_cap_is_right_sized_and_the_revision_named(a_world):
    world = a_world(2)
    deploy(world)

    world.start()
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    run = world.status()["history"][0]
    assert (run["reason"], run["outcome"]) == ("DeployCorrelated", "Recovered")
    assert cap(world) == "--max-num-seqs=14"


def test_a_rollback_that_did_not_help_is_taken_back_and_remembered(a_world):
    world = a_world(2, spec={**ALLOWED, "limits": {"cooldown": "0s", "maxRunsPerDay": 10}})
    deploy(world, new="worse")
    after_deploy = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(lambda: bool(world.outcomes()), 2 * PATIENCE_SECONDS, "the first run closes")
        restored = world.deployment()["spec"]
        world.rewrite(new="recovered")
        world.wait(lambda: len(world.outcomes()) == 2, PATIENCE_SECONDS, "the next one closes")

    newest, first = world.status()["history"]
    assert (first["reason"], first["outcome"]) == ("DeployCorrelated", "NotRecovered")
    assert restored["template"] == after_deploy["template"]
    assert [one["why"] for one in world.status()["failedAttempts"]] == ["NotRecovered"]
    assert (newest["reason"], newest["outcome"]) == ("DeployCorrelated", "Recovered")
    assert cap(world) == "--max-num-seqs=14"
    assert eye.lost == []
    assert eye.fewest >= 2


def test_labels_that_no_service_of_today_selects_forbid_it(a_world):
    world = a_world(2, spec=ALLOWED)
    args = [RAISED_CAP if arg == CALM_CAP else arg for arg in world.args()]
    patch = [
        {"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args},
        {"op": "replace", "path": "/spec/template/metadata/labels/serving", "value": "on"},
    ]
    world.kubectl("patch", "deployment", "llm", "--type=json", "-p", json.dumps(patch))
    settle(world)
    world.kubectl("set", "selector", "service", "llm", "app=llm,serving=on")
    world.rewrite(before="recovered", revision=world.revision())
    generation = world.deployment()["metadata"]["generation"]

    world.start()
    asked = ("True", "RevisionUnreachable")
    world.wait(lambda: world.condition("ActionRequired") == asked, PATIENCE_SECONDS, "a person is asked")
    time.sleep(TICKS_SECONDS)

    assert "llm would not lead requests to them" in message_of(world, "ActionRequired")
    assert world.deployment()["metadata"]["generation"] == generation


SOAK_SECONDS = 40
"""How long a new replica of this fleet must serve before the controller goes on."""


def is_available(world: World) -> bool:
    status = world.deployment()["status"]
    return status.get("availableReplicas", 0) == status.get("replicas") == world.replicas()


def test_a_deploy_that_is_under_way_is_turned_and_ready_replicas_of_before_are_kept(a_world):
    world = a_world(2, spec=ALLOWED)
    world.kubectl("patch", "deployment", "llm", "-p", json.dumps({"spec": {"minReadySeconds": SOAK_SECONDS}}))
    world.wait(lambda: is_available(world), 2 * SOAK_SECONDS, "the fleet has soaked")
    before, kept = world.deployment()["spec"], {pod["metadata"]["name"] for pod in world.pods()}
    patch_args(world, lambda args: [RAISED_CAP if arg == CALM_CAP else arg for arg in args])
    world.wait(lambda: len(ready(world)) == 3, PATIENCE_SECONDS, "the first replica of the deploy serves")
    world.write_script(old="thrash", new="recovered", before="recovered", revision=world.revision())

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(world.is_closed, 2 * PATIENCE_SECONDS, "the run closes")

    run = world.status()["history"][0]
    assert (run["reason"], run["outcome"]) == ("DeployCorrelated", "Recovered")
    assert {pod["metadata"]["name"] for pod in world.pods()} == kept, "none was made, and none of these went"
    assert world.deployment()["spec"] == before
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2
    assert len(eye.seen) == 3


def ready(world: World) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in world.pods()
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    ]
