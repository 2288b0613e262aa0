"""Replicas are added for a while and given back, on the real controllers, whatever people do meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lab.cluster.simulation import behaviour
from reconcile.phases import PATIENCE_SECONDS, drained, let_go, without_repeats
from reconcile.scaling import MORE, REPLICAS, Phase, calm, conditions, grow, held, press, reach, spec
from reconcile.test_people import (
    BRAKES,
    EDITED,
    OLD,
    abandon_resource,
    cap,
    delete_resource,
    edit_flag,
    is_gone,
    pause_and_resume,
    rollout,
    scale,
    set_env,
)
from reconcile.test_plan_and_explain import kvmedic
from reconcile.world import Eye, World

LOOKS_SECONDS = 6.0
"""Two minutes of the fast clock: twice as long as it must be calm."""


def names(world: World) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.pods()}


def ended(world: World, runs: int = 1) -> None:
    """Wait until as many runs are closed and the Deployment is settled."""
    world.wait(
        lambda: len(world.outcomes()) >= runs and "run" not in world.status(),
        PATIENCE_SECONDS,
        f"{runs} runs close",
    )
    world.wait(world.is_settled, PATIENCE_SECONDS, "the Deployment is settled")


@pytest.mark.timeout(240)
def test_a_replica_is_added_and_stays_until_fewer_carry_the_load(a_world: Callable[..., World]) -> None:
    world = a_world(REPLICAS, spec=spec())
    before, deployed = names(world), world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        grow(world)
        added, footprint = world.replicas(), held(world)
        finalizers = world.resource()["metadata"].get("finalizers")
        world.wait(
            lambda: bool(held(world).get("outlook")),
            PATIENCE_SECONDS,
            "somebody asked whether fewer would do",
        )
        time.sleep(LOOKS_SECONDS)
        told = kvmedic(world, "explain", "llm").stdout
        stays = (world.replicas(), len(world.outcomes()))
        calm(world)
        ended(world, 2)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the finalizer goes")

    assert (added, stays) == (MORE, (MORE, 1)), "the load is what two could not carry"
    assert (footprint["before"], footprint["after"]) == (REPLICAS, MORE)
    assert finalizers, "what is held is given back before the resource goes"
    assert "For a while it holds replicas 2 -> 3" in told
    assert "45 requests wait on 3 replicas" in told
    assert world.condition("ActionRequired")[0] == "False"
    assert world.outcomes() == ["Recovered", "Recovered"]
    assert [run["steps"][0] for run in world.status()["history"]] == [
        "Deployment/llm: replicas 3 -> 2: Kept",
        "Deployment/llm: replicas 2 -> 3: Kept",
    ]
    assert held(world) == {}
    assert names(world) == before, "the one that came last went"
    assert world.deployment()["spec"] == deployed
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= REPLICAS


@pytest.mark.timeout(240)
def test_more_replicas_that_did_not_help_go_and_are_not_tried_again(a_world: Callable[..., World]) -> None:
    world = a_world(REPLICAS, spec=spec())
    before = names(world)

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        press(world, more="fewer requests, and thrash")
        world.start()
        ended(world)
        world.wait(
            lambda: world.condition("Diagnosed") == ("True", "CapacityExhausted"),
            PATIENCE_SECONDS,
            "no lever is left",
        )
        time.sleep(LOOKS_SECONDS)

    assert world.outcomes() == ["NotRecovered"]
    [tried] = world.status()["failedAttempts"]
    assert (tried["change"], tried["key"]) == (f"replicas {REPLICAS} -> {MORE}", str(REPLICAS))
    assert tried["template"] == world.revision()
    assert world.condition("ActionRequired") == ("True", "CapacityExhausted")
    assert held(world) == {}
    assert names(world) == before
    assert eye.lost == []
    assert eye.fewest >= REPLICAS


@pytest.mark.timeout(240)
def test_where_fewer_turn_out_to_be_too_few_they_come_back(a_world: Callable[..., World]) -> None:
    world = a_world(REPLICAS, spec=spec(limits={"cooldown": "24h", "maxRunsPerDay": 10}))

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        grow(world)
        world.rewrite(old="thrash", byCount={str(MORE): "idle"})
        world.cluster.api.patch(
            "KVRemediation", "llm", {"spec": {"limits": {"cooldown": "1s"}}}, world.namespace
        )
        world.wait(lambda: world.replicas() == REPLICAS, PATIENCE_SECONDS, "it is given back")
        world.cluster.api.patch(
            "KVRemediation", "llm", {"spec": {"limits": {"cooldown": "24h"}}}, world.namespace
        )
        ended(world, 2)

    assert world.outcomes() == ["NotRecovered", "Recovered"]
    assert world.replicas() == MORE
    assert (held(world)["before"], held(world)["after"]) == (REPLICAS, MORE)
    assert eye.lost == []
    assert eye.fewest >= REPLICAS


@pytest.mark.timeout(240)
def test_a_replica_for_which_there_is_no_room_is_given_up(a_world: Callable[..., World]) -> None:
    world = a_world(REPLICAS, spec=spec())
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two"}}
    world.cluster.api.create({**quota, "spec": {"hard": {"pods": str(REPLICAS)}}}, world.namespace)
    before, deployed = names(world), world.deployment()["spec"]

    press(world)
    world.start()
    ended(world)

    assert world.outcomes()[-1] == "SpareUnschedulable"
    assert "quota" in world.status()["history"][-1]["message"]
    assert (names(world), world.deployment()["spec"]["replicas"]) == (before, deployed["replicas"])
    assert held(world) == {}


# Twins: what must not add anything.


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("levers", "state", "reason"),
    [
        ([{"name": "maxNumSeqs"}, {"name": "scaleOut", "maxReplicas": MORE}], "thrash", "FleetWideDemand"),
        ([{"name": "maxModelLen"}], "thrash", "FleetWideDemand"),
        ([{"name": "scaleOut", "maxReplicas": MORE}], "prompts", "FleetWideDemand"),
        ([{"name": "scaleOut", "maxReplicas": REPLICAS}], "thrash", "CapacityExhausted"),
        ([{"name": "scaleOut", "maxReplicas": MORE}], "recovered", "Healthy"),
    ],
    ids=["demand is not capped", "not allowed", "preemptions are cheap", "at its bound", "calm"],
)
def test_no_replica_is_added(
    a_world: Callable[..., World], levers: list[dict[str, object]], state: str, reason: str
) -> None:
    world = a_world(REPLICAS, spec=spec(mode="Observe", levers=levers))
    world.rewrite(old=state, new=state)

    world.start()
    world.wait(lambda: world.condition("Diagnosed")[1] == reason, PATIENCE_SECONDS, "the branch is named")

    steps = world.status().get("plan", {}).get("steps", [])
    assert not [step for step in steps if "replicas " in step]
    assert world.replicas() == REPLICAS


# People.


def delete_pod(which: Callable[[World], str]) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.kubectl("delete", "pod", which(world), "--wait=false")

    return act


def _by_age(world: World) -> list[str]:
    pods = sorted((pod["metadata"] for pod in world.pods()), key=lambda each: each["creationTimestamp"])
    return [str(each["name"]) for each in pods]


def hang(world: World, name: str) -> None:
    """Let one replica be not Ready, as one that starts."""
    marks = {"metadata": {"annotations": behaviour(mode="unready")}}
    serving = world.endpoints()
    world.cluster.api.patch("Pod", name, marks, world.namespace)
    world.wait(lambda: world.endpoints() == serving - 1, PATIENCE_SECONDS, "it serves no more")


def newest(world: World) -> str:
    return _by_age(world)[-1]


def oldest(world: World) -> str:
    return _by_age(world)[0]


@dataclass(frozen=True, slots=True)
class Deed:
    """What a person does, and what must come of it."""

    act: Callable[[World], None]
    outcomes: frozenset[str]
    cap: str = OLD
    replicas: frozenset[int] = frozenset({REPLICAS})
    """What the fleet may have once the run is closed."""
    lost: int = 0
    """Replicas that may go with requests in flight: the deed's own share, plus one for the run."""


def ends(*outcomes: str) -> frozenset[str]:
    return frozenset(outcomes)


THEIR_ROLLOUT = MORE + 1
"""An edit replaces every replica in the ordinary way, undrained, as it would without us."""
BOTH = frozenset({REPLICAS, MORE})
KEPT = {"replicas": frozenset({MORE})}
AS_IT_WENT = ends("Recovered", "NotRecovered", "CanaryFailed")
DEEDS = {
    "edits the flag": Deed(edit_flag, ends("FlagDrifted"), EDITED, BOTH, lost=THEIR_ROLLOUT),
    "sets an environment variable": Deed(set_env, ends("FlagDrifted"), OLD, BOTH, lost=THEIR_ROLLOUT),
    "restarts": Deed(rollout("restart"), ends("FlagDrifted"), OLD, BOTH, lost=THEIR_ROLLOUT),
    "scales up": Deed(scale(MORE + 2), ends("ReplicasChanged"), OLD, frozenset({MORE + 2})),
    "scales down": Deed(scale(REPLICAS - 1), ends("ReplicasChanged"), OLD, frozenset({REPLICAS - 1}), lost=2),
    "scales to the number before": Deed(scale(REPLICAS), ends("ReplicasChanged"), lost=1),
    "scales to zero": Deed(scale(0), ends("ScaledToZero"), OLD, frozenset({0}), lost=MORE),
    "pauses and resumes": Deed(pause_and_resume, AS_IT_WENT, OLD, BOTH),
    "deletes the new pod": Deed(delete_pod(newest), AS_IT_WENT, OLD, BOTH, lost=1),
    "deletes an old pod": Deed(delete_pod(oldest), AS_IT_WENT, OLD, BOTH, lost=1),
}
IN_CHECK = ("edits the flag", "scales up", "scales to zero", "deletes an old pod")
CASES = [
    pytest.param(phase, DEEDS[name], id=f"{phase}: somebody {name}")
    for turn, phase in enumerate(Phase)
    for name in (IN_CHECK if phase is Phase.CHECKED else without_repeats(DEEDS, turn))
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("phase", "deed"), CASES)
def test_a_scaling_survives_people(a_world: Callable[..., World], phase: Phase, deed: Deed) -> None:
    world = a_world(REPLICAS, **conditions(phase))
    first = 2 if phase in (Phase.DRAIN, Phase.CHECKED) else 1

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        reach(world, phase)
        # One run is enough: what a later look finds is another matter.
        world.cluster.api.patch(
            "KVRemediation", "llm", {"spec": {"limits": {"cooldown": "24h"}}}, world.namespace
        )
        deed.act(world)
        let_go(world)
        ended(world, first)

    assert world.outcomes()[0] in deed.outcomes
    assert cap(world) == deed.cap
    assert world.replicas() in deed.replicas
    assert world.traces() == []
    assert len(eye.lost) <= deed.lost, eye.lost


@pytest.mark.timeout(240)
@pytest.mark.parametrize("phase", list(Phase))
def test_with_the_resource_everything_that_was_added_goes(
    a_world: Callable[..., World], phase: Phase
) -> None:
    world = a_world(REPLICAS, **conditions(phase))
    before, deployed = names(world), world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        reach(world, phase)
        delete_resource(world)
        let_go(world)
        world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the Deployment is settled")

    assert world.deployment()["spec"] == deployed
    assert names(world) == before
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= REPLICAS


@pytest.mark.timeout(240)
def test_what_is_held_without_a_run_goes_with_the_resource_though_everything_is_stopped(
    a_world: Callable[..., World],
) -> None:
    world = a_world(REPLICAS, spec=spec())
    before, deployed = names(world), world.deployment()["spec"]
    hold, _, _ = BRAKES["the operator-wide stop"]

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        grow(world)
        hold(world)
        delete_resource(world)
        world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the Deployment is settled")

    assert world.deployment()["spec"] == deployed
    assert names(world) == before
    assert world.traces() == []
    assert eye.lost == []


@pytest.mark.timeout(240)
def test_one_is_added_beside_one_that_is_down_and_an_abandoned_resource_leaves_it(
    a_world: Callable[..., World],
) -> None:
    world = a_world(MORE, spec=spec(levers=[{"name": "scaleOut", "maxReplicas": MORE + 1}]))
    hang(world, oldest(world))

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        grow(world, MORE + 1)
        abandon_resource(world)
        world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")

    assert (world.replicas(), world.endpoints()) == (MORE + 1, MORE)
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= REPLICAS


@pytest.mark.timeout(240)
def test_a_number_that_somebody_sets_while_no_run_is_open_stays(a_world: Callable[..., World]) -> None:
    world = a_world(REPLICAS, spec=spec())

    grow(world)
    world.cluster.api.patch(
        "KVRemediation", "llm", {"spec": {"limits": {"cooldown": "24h"}}}, world.namespace
    )
    calm(world)
    world.kubectl("scale", "deployment/llm", f"--replicas={MORE + 1}")
    world.wait(lambda: held(world) == {}, PATIENCE_SECONDS, "it is forgotten")
    world.wait(world.is_closed, PATIENCE_SECONDS, "the finalizer goes")
    time.sleep(LOOKS_SECONDS)

    assert world.replicas() == MORE + 1
    assert len(world.outcomes()) == 1


@pytest.mark.timeout(240)
@pytest.mark.parametrize("phase", [Phase.START, Phase.DRAIN])
@pytest.mark.parametrize("brake", BRAKES)
def test_a_scaling_that_is_stopped_stands_still_and_goes_on(
    a_world: Callable[..., World], brake: str, phase: Phase
) -> None:
    world = a_world(REPLICAS, **conditions(phase))
    hold, release, reason = BRAKES[brake]

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        reach(world, phase)
        hold(world)
        let_go(world)
        world.wait(
            lambda: world.condition("Progressing") == ("True", reason), PATIENCE_SECONDS, "the stop is told"
        )
        world.wait(lambda: drained(world) == [], PATIENCE_SECONDS, "every replica is in rotation again")
        stands = len(names(world))
        release(world)
        ended(world, 2 if phase is Phase.DRAIN else 1)

    assert stands == MORE
    assert world.outcomes()[0] == "Recovered"
    assert eye.lost == []
    assert eye.fewest >= REPLICAS
