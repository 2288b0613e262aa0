"""One pressured replica makes room for a new one, on the real controllers, whatever people do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from reconcile.phases import PATIENCE_SECONDS, drained, let_go, without_repeats
from reconcile.replacing import Phase, conditions, names, press_one, reach
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
from reconcile.world import Eye, World

REPLICAS = 3
THEIR_ROLLOUT = REPLICAS + 1
"""An edit replaces every replica in the ordinary way, undrained, as it would without us; the spare too."""


def settled(world: World) -> None:
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
    world.wait(world.is_settled, PATIENCE_SECONDS, "the Deployment is settled")


@pytest.mark.timeout(240)
def test_exactly_the_pressured_replica_is_replaced(a_world: Callable[..., World]) -> None:
    world = a_world(REPLICAS)
    before, spec = names(world), world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        pressured = press_one(world)
        world.start()
        settled(world)

    assert world.outcomes() == ["Recovered"]
    assert before - names(world) == {pressured}
    assert world.deployment()["spec"] == spec
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= REPLICAS
    assert len(eye.seen) == REPLICAS + 1
    (run,) = world.status()["history"]
    assert run["reason"] == "OneReplicaPressured"
    assert run["steps"] == [f"Deployment/llm: replica {pressured} -> a new one: Kept"]


@pytest.mark.timeout(240)
def test_a_replacement_that_did_not_help_is_remembered_and_not_tried_again(
    a_world: Callable[..., World],
) -> None:
    world = a_world(REPLICAS, spec={"limits": {"cooldown": "1s"}})
    pressured = reach(world, Phase.DRAIN)
    other = max(names(world) - {pressured})
    world.rewrite(pods={other: "thrash"}, inFlight=0)
    settled(world)
    before = names(world)

    world.wait(
        lambda: world.condition("Progressing") == ("False", "LeverExhausted"),
        PATIENCE_SECONDS,
        "the next look says why nothing is done",
    )

    assert world.outcomes() == ["NotRecovered"]
    (tried,) = world.status()["failedAttempts"]
    assert (tried["change"], tried["key"], tried["why"]) == (
        f"replica {pressured} -> a new one",
        str(REPLICAS),
        "NotRecovered",
    )
    assert tried["template"] == world.revision()
    assert world.condition("ActionRequired") == ("True", "LeverExhausted")
    assert names(world) == before
    world.kubectl("scale", "deployment/llm", f"--replicas={REPLICAS + 1}")
    world.wait(lambda: len(world.outcomes()) == 2, PATIENCE_SECONDS, "another number is other evidence")


@pytest.mark.timeout(240)
def test_a_spare_for_which_there_is_no_room_is_called_off(a_world: Callable[..., World]) -> None:
    world = a_world(2)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two"}}
    world.cluster.api.create({**quota, "spec": {"hard": {"pods": "2"}}}, world.namespace)
    before, spec = names(world), world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        press_one(world)
        world.start()
        settled(world)

    assert world.outcomes() == ["SpareUnschedulable"]
    assert "quota" in world.status()["history"][0]["message"]
    assert (names(world), world.deployment()["spec"]) == (before, spec)
    assert world.traces() == []
    assert eye.fewest >= 2


@pytest.mark.timeout(240)
def test_an_autoscaler_is_never_fought(a_world: Callable[..., World]) -> None:
    world = a_world(2)
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "llm"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"},
            "minReplicas": 2,
            "maxReplicas": 4,
        },
    }
    world.cluster.api.create(autoscaler, world.namespace)
    generation = world.deployment()["metadata"]["generation"]
    press_one(world)

    world.start()
    world.wait(
        lambda: world.condition("ActionRequired") == ("True", "ReplicasAutoscaled"),
        PATIENCE_SECONDS,
        "the autoscaler is named",
    )

    assert world.deployment()["metadata"]["generation"] == generation
    assert "run" not in world.status()


# Twins: what must not replace anything.


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "pressed",
    [4, 3, 2],
    ids=["all of four", "three of four", "two of four"],
)
def test_several_pressured_replicas_are_never_replaced(a_world: Callable[..., World], pressed: int) -> None:
    world = a_world(4, spec={"mode": "Observe"})
    hot = sorted(names(world))[:pressed]
    world.rewrite(old="recovered", pods=dict.fromkeys(hot, "thrash"))

    world.start()
    world.wait(
        lambda: world.condition("Diagnosed") == ("True", "FleetWideDemand"),
        PATIENCE_SECONDS,
        "the branch is named",
    )

    assert not [step for step in world.status().get("plan", {}).get("steps", []) if "replica " in step]


# People.


def delete_pod(which: Callable[[World, str], str]) -> Callable[[World, str], None]:
    def act(world: World, pressured: str) -> None:
        world.kubectl("delete", "pod", which(world, pressured), "--wait=false")

    return act


def the_pressured(world: World, pressured: str) -> str:
    return pressured


def newest(world: World, pressured: str) -> str:
    others = [pod["metadata"] for pod in world.pods() if pod["metadata"]["name"] != pressured]
    return str(max(others, key=lambda each: each["creationTimestamp"])["name"])


def a_peer(world: World, pressured: str) -> str:
    others = [pod["metadata"] for pod in world.pods() if pod["metadata"]["name"] != pressured]
    return str(min(others, key=lambda each: each["creationTimestamp"])["name"])


def simply(act: Callable[[World], None]) -> Callable[[World, str], None]:
    return lambda world, _: act(world)


@dataclass(frozen=True, slots=True)
class Deed:
    """What a person does, and what must come of it."""

    act: Callable[[World, str], None]
    outcomes: frozenset[str]
    cap: str = OLD
    replicas: int = REPLICAS
    lost: int = 0
    """Replicas that may go with requests in flight: the deed's own share, plus one for the run."""


def ends(*outcomes: str) -> frozenset[str]:
    return frozenset(outcomes)


EITHER = ends("Recovered", "ReplacementCalledOff")
DEEDS = {
    "edits the flag": Deed(simply(edit_flag), ends("FlagDrifted"), EDITED, lost=THEIR_ROLLOUT),
    "sets an environment variable": Deed(simply(set_env), ends("FlagDrifted"), lost=THEIR_ROLLOUT),
    "restarts": Deed(simply(rollout("restart")), ends("FlagDrifted"), lost=THEIR_ROLLOUT),
    "scales up": Deed(simply(scale(REPLICAS + 2)), ends("ReplicasChanged"), replicas=REPLICAS + 2),
    "scales down": Deed(simply(scale(REPLICAS - 1)), ends("ReplicasChanged"), replicas=REPLICAS - 1, lost=2),
    "scales to the number before": Deed(simply(scale(REPLICAS)), ends("ReplicasChanged"), lost=1),
    "scales to zero": Deed(simply(scale(0)), ends("ScaledToZero"), replicas=0, lost=REPLICAS + 1),
    "pauses and resumes": Deed(simply(pause_and_resume), ends("Recovered")),
    "deletes the pressured pod": Deed(delete_pod(the_pressured), ends("Recovered"), lost=1),
    "deletes the spare": Deed(delete_pod(newest), EITHER, lost=1),
    "deletes a peer": Deed(delete_pod(a_peer), EITHER, lost=1),
}
IN_VERIFY = ("restarts", "scales to zero", "deletes a peer", "pauses and resumes")
CASES = [
    pytest.param(phase, DEEDS[name], id=f"{phase}: somebody {name}")
    for turn, phase in enumerate(Phase)
    for name in (IN_VERIFY if phase is Phase.VERIFY else without_repeats(DEEDS, turn))
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("phase", "deed"), CASES)
def test_a_replacement_survives_people(a_world: Callable[..., World], phase: Phase, deed: Deed) -> None:
    world = a_world(REPLICAS, **conditions(phase))

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        pressured = reach(world, phase)
        deed.act(world, pressured)
        let_go(world)
        settled(world)

    assert set(world.outcomes()) <= deed.outcomes
    assert (cap(world), world.replicas()) == (deed.cap, deed.replicas)
    assert world.traces() == []
    assert len(eye.lost) <= deed.lost, eye.lost


@pytest.mark.timeout(240)
@pytest.mark.parametrize("abandoned", [False, True], ids=["deleting", "abandoning"])
@pytest.mark.parametrize("phase", list(Phase))
def test_with_the_resource_everything_temporary_goes(
    a_world: Callable[..., World], phase: Phase, *, abandoned: bool
) -> None:
    world = a_world(REPLICAS, **conditions(phase))
    before, spec = names(world), world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        pressured = reach(world, phase)
        (abandon_resource if abandoned else delete_resource)(world)
        let_go(world)
        world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the Deployment is settled")

    assert world.deployment()["spec"] == spec
    assert world.traces() == []
    assert before - names(world) == ({pressured} if phase is Phase.VERIFY else set())
    assert eye.lost == []
    assert eye.fewest >= REPLICAS


@pytest.mark.timeout(240)
@pytest.mark.parametrize("brake", BRAKES)
def test_a_replacement_that_is_stopped_stands_still_with_its_spare_and_goes_on(
    a_world: Callable[..., World], brake: str
) -> None:
    world = a_world(REPLICAS)
    hold, release, reason = BRAKES[brake]

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        pressured = reach(world, Phase.DRAIN)
        hold(world)
        let_go(world)
        world.wait(
            lambda: world.condition("Progressing") == ("True", reason), PATIENCE_SECONDS, "the stop is told"
        )
        world.wait(lambda: drained(world) == [], PATIENCE_SECONDS, "every replica is in rotation again")
        held = names(world)
        release(world)
        settled(world)

    assert len(held) == REPLICAS + 1
    assert pressured in held
    assert world.outcomes() == ["Recovered"]
    assert pressured not in names(world)
    assert eye.lost == []
    assert eye.fewest >= REPLICAS
