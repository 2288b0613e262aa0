"""Trials on a replica that is drained for them, where no room is for a trial pod, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from reconcile.complaints import no_gpu_left
from reconcile.phases import drained
from reconcile.replacing import names
from reconcile.trying import allow, answers, evicting, in_place, quota, trial_pods
from reconcile.world import Eye, World

pytestmark = pytest.mark.light
SECONDS = 90
PATCH = ("patch", "kvr", "llm", "--type=merge", "-p")


def crowded(a_world: Any, replicas: int = 2, **changes: Any) -> World:
    """Return a fleet without room for a trial pod, whose operator has begun."""
    world: World = a_world(replicas=replicas, spec={**in_place(), **changes}, change=evicting)
    allow(world)
    quota(world, replicas)
    return world


def held(world: World) -> str:
    """Run until a test goes on, on a drained replica; return the replica."""
    world.start()
    world.wait(
        lambda: bool(drained(world)) and world.condition("Progressing") == ("True", "ReclamationProbed"),
        SECONDS,
        "the test goes on",
    )
    (name,) = drained(world)
    return name


def is_over(world: World, runs: int = 2) -> bool:
    return len(world.outcomes()) >= runs and world.is_closed()


def test_where_a_quota_has_no_room_a_replica_is_drained_asked_and_put_back(a_world):
    world = crowded(a_world)
    world.rewrite(probe="Scattered")
    before, pods = world.deployment()["spec"], names(world)

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(lambda: is_over(world), SECONDS, "the trial is over")

    assert world.outcomes() == ["TrialAnswered", "SpareUnschedulable"]
    assert answers(world) == ["Scattered"]
    told = world.status()["answers"][0]["message"]
    (name,) = eye.cordoned
    assert f"on replica {name}, drained for it, 16384 tokens" in told
    assert (eye.fewest, eye.lost) == (1, [])
    assert (world.deployment()["spec"], names(world), world.traces()) == (before, pods, [])
    world.wait(lambda: world.endpoints() == 2, SECONDS, "both replicas serve")


def test_where_no_node_takes_a_trial_pod_a_replica_serves(a_world):
    world: World = a_world(replicas=2, spec=in_place(), change=evicting)
    allow(world)
    no_gpu_left(world)
    world.wait(lambda: world.is_settled() and world.endpoints() == 2, SECONDS, "the fleet is there again")
    world.rewrite(probe="Scattered")

    world.start()
    world.wait(lambda: is_over(world), SECONDS, "the trial is over")

    assert world.outcomes() == ["TrialAnswered", "SpareUnschedulable"]
    assert (trial_pods(world), world.traces()) == ([], [])


def test_requests_on_the_replica_are_waited_for(a_world):
    world = crowded(a_world)
    world.rewrite(probe="Scattered", inFlight=1)
    world.start()
    world.wait(lambda: bool(drained(world)), SECONDS, "a replica is drained")
    assert answers(world) == []

    world.rewrite(inFlight=0)

    world.wait(lambda: is_over(world), SECONDS, "the trial is over")
    assert answers(world) == ["Scattered"]


def test_requests_that_do_not_end_end_the_trial(a_world):
    world = crowded(a_world, rollout={**LABEL, "drainTimeout": "1m"})
    world.rewrite(inFlight=1)

    world.start()
    world.wait(lambda: len(world.outcomes()) >= 2, SECONDS, "the trial is over")

    closed = world.status()["history"][-2]
    assert (closed["outcome"], answers(world)) == ("TrialUnanswered", [None])
    assert "drainTimeout" in closed["message"]


LABEL = {"rotationLabel": {"key": "serving", "draining": "draining"}}


@pytest.mark.parametrize(
    ("replicas", "changes"),
    [(1, {}), (2, {"limits": {"cooldown": "0s", "maxRunsPerDay": 2, "minHealthyReplicas": 2}})],
    ids=["the only one", "all are demanded"],
)
def test_a_replica_that_cannot_be_spared_is_not_drained(a_world, replicas, changes):
    limits = {"limits": {"cooldown": "0s", "maxRunsPerDay": 2}, **changes}
    world = crowded(a_world, replicas, **limits)
    world.rewrite(probe="Scattered")

    with Eye(world.cluster, world.namespace, replicas) as eye:
        world.start()
        world.wait(
            lambda: world.condition("ActionRequired") == ("True", "SpareUnschedulable") and is_over(world, 1),
            SECONDS,
            "a person is asked",
        )

    assert world.outcomes() == ["SpareUnschedulable"], "what found no room is not asked again"
    assert (eye.cordoned, eye.fewest) == (set(), replicas)


def test_where_the_label_has_no_effect_no_replica_is_drained(a_world):
    world = crowded(a_world)
    world.kubectl("patch", "service", "llm", "--type=json", "-p", NO_LABEL)

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(
            lambda: world.condition("ActionRequired") == ("True", "TrialImpossible"), SECONDS, "it is said"
        )

    assert "selects the pods without label serving" in str(world.status()["conditions"])
    assert (eye.cordoned, world.outcomes()) == (set(), ["SpareUnschedulable"])


NO_LABEL = '[{"op": "remove", "path": "/spec/selector/serving"}]'


def test_suspending_puts_the_replica_back(a_world):
    world = crowded(a_world)
    held(world)

    world.kubectl(*PATCH, '{"spec": {"suspend": true}}')

    world.wait(lambda: is_over(world), SECONDS, "the run is closed")
    assert world.outcomes()[0] == "Suspended"
    assert (answers(world), world.traces()) == ([], [])


def test_the_operator_wide_stop_puts_the_replica_back(a_world):
    world = crowded(a_world)
    held(world)

    world.kubectl("create", "configmap", "kvmedic-stop")

    world.wait(lambda: is_over(world), SECONDS, "the run is closed")
    assert world.outcomes()[0] == "Stopped"
    assert (answers(world), world.traces()) == ([], [])


def test_deleting_the_resource_puts_the_replica_back(a_world):
    world = crowded(a_world)
    held(world)

    world.kubectl("delete", "kvr", "llm", "--wait=true", f"--timeout={SECONDS}s")

    assert world.traces() == []


def test_editing_the_template_puts_the_replica_back(a_world):
    world = crowded(a_world)
    name = held(world)
    world.kubectl("rollout", "pause", "deployment/llm")

    world.kubectl("set", "env", "deployment/llm", "OTHER=1")

    world.wait(lambda: len(world.outcomes()) >= 2, SECONDS, "the run is closed")
    assert world.outcomes()[-2] == "FlagDrifted"
    assert name in names(world)
    assert (answers(world), world.traces()) == ([], [])


def test_a_replica_that_is_deleted_in_the_middle_ends_the_trial(a_world):
    world = crowded(a_world)
    name = held(world)
    world.kubectl(*PATCH, '{"spec": {"limits": {"cooldown": "24h"}}}')

    world.kubectl("delete", "pod", name, "--grace-period=0", "--force")

    world.wait(lambda: is_over(world), SECONDS, "the run is closed")
    assert world.outcomes() == ["TrialUnanswered", "SpareUnschedulable"]
    world.wait(lambda: world.endpoints() == 2, SECONDS, "another one serves")
    assert world.traces() == []


def test_a_process_that_dies_in_the_middle_begins_the_test_anew_on_the_same_replica(a_world):
    world = crowded(a_world)
    name = held(world)

    world.kill()
    world.rewrite(probe="PerHead")
    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(lambda: is_over(world), SECONDS, "the trial is over")

    assert eye.cordoned == {name}
    assert answers(world) == ["None"]
    assert world.traces() == []
