"""A fleet with a method that evicts tokens, and an operator that may try it on a trial pod."""

from __future__ import annotations

from typing import Any

from kvmedic.manifests.trial_pod import PRIORITY_CLASS, TRIAL_LABEL
from kvmedic.model.plan import TrialStep
from kvmedic.model.trial import Question
from worlds.phases import SLOW
from worlds.world import World

METHOD = "Mine"
SWITCH = "EVICT_TOKENS"
CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": PRIORITY_CLASS},
    "value": -10,
    "preemptionPolicy": "Never",
}
STEP = TrialStep.__name__


def spec(**compression: Any) -> dict[str, Any]:
    """Return a spec with both runbooks and a declared method."""
    return {
        "runbooks": ["PreemptionThrash", "CompressionWithoutSavings"],
        "compression": {
            "method": METHOD,
            "class": "CompactingEviction",
            "keepTokens": 2048,
            "settings": [{"env": SWITCH, "after": "1"}],
            **compression,
        },
    }


def alone(made: dict[str, Any]) -> dict[str, Any]:
    """Return a spec with the runbook on compression only: nothing goes on where that does not."""
    return {**made, "runbooks": ["CompressionWithoutSavings"]}


FASTER = {
    "requestsPerSecond": 13.3,
    "tokensPerSecond": 3800,
    "preemptionsPerRequest": 0.05,
    "kvCacheUsage": 0.85,
    "replicas": 2,
}
"""Two calm replicas without the method: half as many tokens again."""


AS_BEFORE = {**FASTER, "tokensPerSecond": 2533}
"""The same that made no more tokens."""


def bits(**compression: Any) -> dict[str, Any]:
    """Return the same with a method of fewer bits, and a fleet that was faster without it."""
    fields = {"class": "Quantization", "baseline": FASTER, **compression}
    made = spec(**fields)
    del made["compression"]["keepTokens"]
    return made


def slower(world: World, prompts: str, **shown: str | int) -> None:
    """Make a calm fleet whose GPUs are known and that is slower than before; and what trials show of it."""
    allow(world)
    gpu = {"memoryInUse": 0.5, "memoryFreeMiB": 40_000}
    world.rewrite(old="recovered", new="recovered", devices={"*": gpu}, prompts=prompts, **shown)


def evicting(container: dict[str, Any], pod: dict[str, Any]) -> None:
    """Turn the method on in a pod template, whose engine takes requests that are long enough."""
    del pod
    container["args"] = ["--max-model-len", "32768", "--max-num-seqs=64", "--block-size=16"]
    container["env"] = [{"name": SWITCH, "value": "1"}]


def allow(world: World) -> None:
    """Let the operator make trial pods, and leave it the time that a trial has on a busy machine."""
    world.speed = SLOW
    world.cluster.apply(CLASS)
    world.settings |= {"probe": {"trialPods": True}}


def quota(world: World, pods: int) -> None:
    """Leave no room for more pods than so many."""
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}}
    world.cluster.api.create({**body, "spec": {"hard": {"pods": str(pods)}}}, world.namespace)


def trial_pods(world: World) -> list[dict[str, Any]]:
    """Return the trial pods that are there, terminating ones included."""
    return world.cluster.api.list("Pod", world.namespace, TRIAL_LABEL)


def answers(world: World) -> list[str | None]:
    """Return what trials showed, the newest first; None for nothing."""
    return [each.get("reclaim") for each in world.status().get("answers", [])]


def growths(world: World) -> list[str | None]:
    """Return what trials of prompts showed, the newest first; None for nothing."""
    found = world.status().get("answers", [])
    return [each.get("growth") for each in found if each["question"] == Question.PROMPTS]


def is_tried(world: World) -> bool:
    """Return whether a trial's run was closed."""
    closed = world.status().get("history", [])
    return any("trial pod" in step for run in closed for step in run["steps"])
