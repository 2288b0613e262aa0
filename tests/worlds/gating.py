"""A fleet whose method was turned off, what may come in its place, and the team's evaluation of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from kvmedic.api.status import record_to_wire
from kvmedic.manifests.trial_pod import digest_of
from kvmedic.model.plan import EvaluationStep
from kvmedic.model.reasons import Reason
from kvmedic.model.status import Record, TurnedOff
from kvmedic.model.trial import EvaluationResult, Score
from lab.cluster.simulation import behaviour
from worlds.phases import SLOW
from worlds.trying import CLASS
from worlds.world import World

STEP = EvaluationStep.__name__
EVALUATION = "aime24"
SWITCH = "COMPACT_TOKENS"
GATE = {"cronJobRef": {"name": EVALUATION}, "maxLoss": 0.1}
FP8 = {"allowedFixes": ["RevertBundle", "Fp8KVCache"]}
COMPACTING = {
    "allowedFixes": ["RevertBundle", "CompactingMethod"],
    "replacement": {"method": "Mine", "keepTokens": 2048, "settings": [{"env": SWITCH, "after": "1"}]},
}


def cron_job(score: float = 0.8, samples: int = 200, **annotations: str) -> dict[str, Any]:
    """Return an evaluation that always leaves the same score."""
    message = json.dumps({"score": score, "samples": samples})
    marks = behaviour(mode="complete", exit_message=message) | annotations
    container = {"name": "evaluation", "image": "registry.invalid/evaluation", "command": ["evaluate"]}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": EVALUATION},
        "spec": {
            "schedule": "0 0 1 1 *",
            "suspend": True,
            "jobTemplate": {"spec": {"template": {"metadata": {"annotations": marks}, "spec": pod}}},
        },
    }


def spec(**compression: Any) -> dict[str, Any]:
    """Return a spec with both runbooks and the gate."""
    return {
        "runbooks": ["PreemptionThrash", "CompressionWithoutSavings"],
        "compression": {"accuracyGate": GATE, **compression},
    }


def roomy(container: dict[str, Any], pod: dict[str, Any]) -> None:
    """Let a pod template's engine take requests that are long enough for a trial."""
    del pod
    container["args"] = ["--max-model-len", "32768", "--max-num-seqs=64", "--block-size=16"]


def allow(world: World, evaluation: dict[str, Any] | None = None) -> None:
    """Let the operator make trial pods and evaluations; make the team's own, unless there is to be none."""
    world.speed = SLOW
    world.cluster.apply(CLASS)
    if evaluation is not None:
        world.cluster.apply(evaluation, world.namespace)
    world.settings |= {"probe": {"trialPods": True, "evaluations": True}}
    world.rewrite(old="recovered", new="recovered", revision=world.revision(), probe="Reclaims")


def turned_off(world: World, measured: float | None = None) -> None:
    """Put on record that a method was turned off because it saved nothing; `measured`: accuracy now."""
    gone = TurnedOff("Theirs", Reason.BLOCKS_NOT_FREED, datetime.now(UTC) - timedelta(hours=1))
    results = () if measured is None else (_measured(world, measured),)
    status = record_to_wire(Record(turned_off=gone, scores=results), "")
    world.cluster.api.patch("KVRemediation", "llm", {"status": status}, world.namespace, subresource="status")


def _measured(world: World, accuracy: float) -> EvaluationResult:
    digest = digest_of(world.cluster.api.get("CronJob", EVALUATION, world.namespace))
    text = f"the present setting scored {accuracy}"
    return EvaluationResult(world.revision(), digest, text, datetime.now(UTC), 1, Score(accuracy, 5000))


def jobs(world: World) -> list[dict[str, Any]]:
    """Return the Jobs that are there, those that go included."""
    return world.cluster.api.list("Job", world.namespace)


def scores(world: World) -> list[tuple[str, float | None]]:
    """Return configurations with their scores, the newest first; None where an evaluation showed nothing."""
    found = world.status().get("scores", [])
    return [(each["configuration"], each.get("score", {}).get("accuracy")) for each in found]


def variables(world: World) -> dict[str, str]:
    container = world.deployment()["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each.get("value", "") for each in container.get("env", [])}
