"""What people do to a fleet while a run is open on it, on the real deployment controller.

Whatever they do, the run ends, nothing of it is left behind, and no more replicas with requests in
flight go than would have gone without it, plus one.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kvmedic.cluster.patches import CORDON_COST
from reconcile.phases import PATIENCE_SECONDS, Phase, conditions, drained, let_go, reach
from reconcile.world import DRAINING, Eye, World

REPLICAS = 3
OLD, NEW = "--max-num-seqs=64", "--max-num-seqs=14"
EDITED = "--max-num-seqs=32"
FIELDS = ("strategy", "minReadySeconds", "progressDeadlineSeconds", "paused", "revisionHistoryLimit")


def cap(world: World) -> str:
    return next(arg for arg in world.args() if arg.startswith("--max-num-seqs="))


def edit_flag(world: World) -> None:
    args = [EDITED if arg.startswith("--max-num-seqs=") else arg for arg in world.args()]
    patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args}]
    world.kubectl("patch", "deployment", "llm", "--type=json", "-p", json.dumps(patch))


def set_env(world: World) -> None:
    world.kubectl("set", "env", "deployment/llm", "CUDA_LAUNCH_BLOCKING=1")


def scale(count: int) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.kubectl("scale", "deployment/llm", f"--replicas={count}")

    return act


def rollout(verb: str) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.kubectl("rollout", verb, "deployment/llm")

    return act


def refused(verb: str) -> Callable[[World], None]:
    """kubectl itself refuses on a paused Deployment: that is as good as nothing happening."""

    def act(world: World) -> None:
        with pytest.raises(subprocess.CalledProcessError):
            rollout(verb)(world)

    return act


def pause_and_resume(world: World) -> None:
    if not world.deployment()["spec"].get("paused"):
        rollout("pause")(world)
    rollout("resume")(world)


def delete_pod(which: Callable[[World], str]) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.kubectl("delete", "pod", which(world), "--wait=false")

    return act


def a_pod(flag: str) -> Callable[[World], str]:
    """A pod with the old or the new setting that is in rotation, or none but it."""

    def which(world: World) -> str:
        out = drained(world)
        names = [p["metadata"]["name"] for p in world.pods() if flag in p["spec"]["containers"][0]["args"]]
        return next(name for name in names if name not in out)

    return which


def victim(world: World) -> str:
    return drained(world)[0]


def delete_resource(world: World) -> None:
    world.kubectl("delete", "kvr", "llm", "--wait=false")


def abandon_resource(world: World) -> None:
    world.kubectl("annotate", "kvr", "llm", "kvmedic.io/abandon=true")
    delete_resource(world)


@dataclass(frozen=True, slots=True)
class Deed:
    """What a person does, and what must come of it."""

    act: Callable[[World], None]
    outcome: str = "Recovered"
    cap: str = NEW
    replicas: int = REPLICAS
    lost: int = 0
    """Replicas that may go with requests in flight: the deed's own share, plus one for the run."""


THEIR_ROLLOUT = REPLICAS + 1
"""An edit replaces every replica in the ordinary way, undrained, as it would without us."""
WITH_OURS = 3
"""Replicas that an edit's rollout may have made with the run's change in it, before that was taken out."""

DEEDS = {
    "edits the flag": Deed(edit_flag, "FlagDrifted", EDITED, lost=THEIR_ROLLOUT),
    "sets an environment variable": Deed(set_env, "FlagDrifted", OLD, lost=THEIR_ROLLOUT),
    "scales up": Deed(scale(REPLICAS + 2), replicas=REPLICAS + 2, lost=1),
    "scales down": Deed(scale(REPLICAS - 1), replicas=REPLICAS - 1, lost=2),
    "scales to zero": Deed(scale(0), "ScaledToZero", OLD, 0, lost=REPLICAS + 1),
    "pauses and resumes": Deed(pause_and_resume),
    "deletes an old pod": Deed(delete_pod(a_pod(OLD)), lost=1),
    "deletes a new pod": Deed(delete_pod(a_pod(NEW)), lost=1),
}
ONLY_FROZEN = {
    "tries to undo": Deed(refused("undo")),
    "tries to restart": Deed(refused("restart")),
}
ONLY_DRAINING = {"deletes the drained pod": Deed(delete_pod(victim))}
ONLY_VERIFYING = {
    "undoes": Deed(rollout("undo"), "ChangeReverted", OLD, lost=THEIR_ROLLOUT),
    "restarts": Deed(rollout("restart"), "FlagDrifted", OLD, lost=THEIR_ROLLOUT + WITH_OURS),
}
CASES: tuple[tuple[Phase, str, Deed], ...] = tuple(
    (phase, name, deed)
    for phase, deeds in (
        (Phase.DRAIN, {**DEEDS, **ONLY_FROZEN, **ONLY_DRAINING}),
        (
            Phase.CANARY,
            {name: DEEDS[name] for name in ("edits the flag", "scales down", "deletes a new pod")},
        ),
        (Phase.VERIFY, {**{name: DEEDS[name] for name in ("scales to zero",)}, **ONLY_VERIFYING}),
    )
    for name, deed in deeds.items()
)


def untouched(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a run borrows and has to put back."""
    return {name: spec.get(name) for name in FIELDS}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("phase", "deed"), [pytest.param(p, d, id=f"{p}: somebody {n}") for p, n, d in CASES]
)
def test_a_run_survives_people(a_world: Callable[..., World], phase: Phase, deed: Deed) -> None:
    world = a_world(REPLICAS, **conditions(phase))
    before = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        reach(world, phase)
        deed.act(world)
        let_go(world)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert world.outcomes() == [deed.outcome]
    assert (cap(world), world.replicas()) == (deed.cap, deed.replicas)
    assert untouched(world.deployment()["spec"]) == untouched(before)
    assert world.traces() == []
    assert len(eye.lost) <= deed.lost, eye.lost


def is_gone(world: World, kind: str = "KVRemediation") -> bool:
    return not world.cluster.api.list(kind, world.namespace)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("phase", list(Phase))
def test_deleting_the_resource_takes_its_run_back(a_world: Callable[..., World], phase: Phase) -> None:
    world = a_world(2, **conditions(phase))
    before = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, phase)
        delete_resource(world)
        let_go(world)
        world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert world.deployment()["spec"] == before
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2


@pytest.mark.timeout(240)
@pytest.mark.parametrize("phase", [Phase.DRAIN, Phase.VERIFY])
def test_abandoning_the_resource_leaves_the_template(a_world: Callable[..., World], phase: Phase) -> None:
    world = a_world(2, **conditions(phase))
    before = world.deployment()["spec"]

    reach(world, phase)
    abandon_resource(world)
    world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")
    world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert cap(world) == NEW
    assert untouched(world.deployment()["spec"]) == untouched(before)
    assert world.traces() == []


FOREIGN = json.dumps({"metadata": {"finalizers": ["example.com/keep"]}})
UNKEPT = json.dumps({"metadata": {"finalizers": None}})


def orphan(world: World) -> None:
    """Delete the target and leave its replicas; of one that drains somebody took the labels off before."""
    world.kubectl("label", "pod", drained(world)[0], "app-")
    world.kubectl("delete", "deployment", "llm", "--cascade=orphan", "--wait=false")


def keep_by_finalizer(world: World) -> None:
    world.kubectl("patch", "deployment", "llm", "-p", FOREIGN)
    world.kubectl("delete", "deployment", "llm", "--wait=false")


def marked(world: World) -> list[str]:
    """Return the pods, whosever they are, on which something of ours is left."""
    left = []
    for pod in world.cluster.api.list("Pod", world.namespace):
        metadata = pod["metadata"]
        text = json.dumps([metadata.get("labels"), metadata.get("annotations")])
        signs = any(sign in text for sign in ("kvmedic.io/", CORDON_COST, f'"{DRAINING}"'))
        left += [metadata["name"]] if signs and "deletionTimestamp" not in metadata else []
    return left


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("deed", "told"), [(orphan, "does not exist"), (keep_by_finalizer, "kept by example.com/keep")]
)
def test_deleting_the_target_ends_the_run_and_leaves_nobody_out_of_rotation(
    a_world: Callable[..., World], deed: Callable[[World], None], told: str
) -> None:
    world = a_world(2)

    reach(world, Phase.DRAIN)
    assert marked(world)
    deed(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes and the finalizer goes")
    asked = ("True", "TargetNotFound")
    world.wait(lambda: world.condition("ActionRequired") == asked, PATIENCE_SECONDS, "a person is asked")
    message = next(c["message"] for c in world.status()["conditions"] if c["type"] == "ActionRequired")
    left = marked(world)
    if deed is keep_by_finalizer:
        world.kubectl("patch", "deployment", "llm", "-p", UNKEPT)

    assert world.outcomes() == ["TargetDeleted"]
    assert told in message
    assert left == []


@pytest.mark.timeout(240)
def test_a_namespace_that_is_deleted_in_the_middle_of_a_run_goes(a_world: Callable[..., World]) -> None:
    """The Lease goes with it and cannot be made anew, so nobody leads who could take the run back."""
    world = a_world(2)

    reach(world, Phase.DRAIN)
    world.kubectl("delete", "namespace", world.namespace, "--wait=false")

    def is_away() -> bool:
        names = [each["metadata"]["name"] for each in world.cluster.api.list("Namespace")]
        return world.namespace not in names

    world.wait(is_away, PATIENCE_SECONDS, "the namespace goes")


def suspend(world: World) -> None:
    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"suspend": True}}, world.namespace)


def unsuspend(world: World) -> None:
    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"suspend": False}}, world.namespace)


def stop(world: World) -> None:
    world.kubectl("create", "configmap", "kvmedic-stop")


def unstop(world: World) -> None:
    world.kubectl("delete", "configmap", "kvmedic-stop")


def observe(world: World) -> None:
    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"mode": "Observe"}}, world.namespace)


def automatic(world: World) -> None:
    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"mode": "Auto"}}, world.namespace)


BRAKES = {
    "spec.suspend": (suspend, unsuspend, "Suspended"),
    "the operator-wide stop": (stop, unstop, "Stopped"),
    "mode: Observe": (observe, automatic, "ObserveOnly"),
}
STILL_SECONDS = 1.5
"""Thirty seconds of the fast clock, in which a run that is not held makes many moves."""


def stands_still(world: World) -> None:
    """Assert that nothing is written to the fleet for a while."""
    generation, names = world.deployment()["metadata"]["generation"], {*pod_names(world)}
    time.sleep(STILL_SECONDS)
    assert world.deployment()["metadata"]["generation"] == generation
    assert {*pod_names(world)} == names
    assert drained(world) == []


def pod_names(world: World) -> list[str]:
    return [pod["metadata"]["name"] for pod in world.pods()]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("brake", BRAKES)
def test_a_run_that_is_stopped_stands_still_and_goes_on(a_world: Callable[..., World], brake: str) -> None:
    world = a_world(2)
    hold, release, reason = BRAKES[brake]

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, Phase.DRAIN)
        hold(world)
        let_go(world)
        world.wait(
            lambda: world.condition("Progressing") == ("True", reason), PATIENCE_SECONDS, "the stop is told"
        )
        world.wait(lambda: drained(world) == [], PATIENCE_SECONDS, "every replica is in rotation again")
        stands_still(world)
        held = world.deployment()
        release(world)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert held["spec"]["paused"]
    assert "kvmedic.io/run" in held["metadata"]["annotations"]
    assert world.outcomes() == ["Recovered"]
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2


@pytest.mark.timeout(240)
@pytest.mark.parametrize("brake", BRAKES)
def test_a_stop_before_a_run_opens_none(a_world: Callable[..., World], brake: str) -> None:
    world = a_world(2)
    hold, release, reason = BRAKES[brake]
    hold(world)

    world.start()
    world.wait(
        lambda: world.condition("Progressing") == ("False", reason), PATIENCE_SECONDS, "the stop is told"
    )
    stands_still(world)
    assert world.step_state() == ""
    release(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]


@pytest.mark.timeout(240)
def test_a_way_back_is_open_while_everything_is_stopped(a_world: Callable[..., World]) -> None:
    world = a_world(2)
    before = world.deployment()["spec"]

    reach(world, Phase.WAY_BACK)
    stop(world)
    suspend(world)
    let_go(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert world.traces() == []
