"""A fleet with a method of compression that is to be turned off, and the run for it as it was just opened."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from kvmedic.api.status import record_to_wire
from kvmedic.engines.kv_methods import TRIATTENTION
from kvmedic.engines.vllm import VLLM
from kvmedic.model.evidence import Observation
from kvmedic.model.fleet import ObjectRef, RolloutFields, template_hash
from kvmedic.model.plan import Goal, Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Run, StepRecord
from kvmedic.model.spec import RotationLabel, RunSpec
from kvmedic.model.status import Record
from kvmedic.runbooks.branches import TurnOff
from kvmedic.runbooks.compression.bundle import bundle_plan
from kvmedic.runbooks.workload import Workload, workload_of
from kvmedic.verdict.baseline import baseline_of
from lab.scripted.readings import State, readings
from worlds.world import DRAINING, START_LIMIT_SECONDS, World

FLAG, SWITCH, BUDGET = "--no-enable-prefix-caching", "ENABLE_TRIATTENTION", "TRIATTN_RUNTIME_KV_BUDGET"
ON = [
    {"name": BUDGET, "value": "4096"},
    {"name": "HF_HUB_OFFLINE", "value": "1"},
    {"name": "TRIATTN_RUNTIME_ENABLE_EXPERIMENTAL_BLOCK_RECLAIM", "value": "1"},
    {"name": SWITCH, "value": "1"},
]
OFF = [ON[1], {"name": SWITCH, "value": "0"}]


def compressing(container: dict[str, Any], _pod: dict[str, Any]) -> None:
    """Give a fleet the method; a budget of its own among what others set."""
    container["args"].append(FLAG)
    container["env"] = [dict(variable) for variable in ON]


def engine(world: World) -> dict[str, Any]:
    container: dict[str, Any] = world.deployment()["spec"]["template"]["spec"]["containers"][0]
    return container


def variables(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = engine(world)["env"]
    return found


def templates(world: World) -> set[str]:
    """Return the hashes of all pod templates that there ever were."""
    sets = world.cluster.api.list("ReplicaSet", world.namespace, "app=llm")
    return {template_hash(each["spec"]["template"]) for each in sets}


def begin(world: World, new: str) -> None:
    """Store the run that turns the method off, as one does who dies right after it was opened.

    `new` is how replicas fare without the method; with it they are calm.
    """
    world.rewrite(old="recovered", new=new, revision=world.revision())
    world.cluster.api.patch(
        "KVRemediation", "llm", {"metadata": {"finalizers": ["kvmedic.io/run"]}}, world.namespace
    )
    status = record_to_wire(Record(run=_run(world)), "")
    world.cluster.api.patch("KVRemediation", "llm", {"status": status}, world.namespace, subresource="status")


def _run(world: World) -> Run:
    deployed, replicas = world.deployment(), world.replicas()
    uid, template = deployed["metadata"]["uid"], deployed["spec"]["template"]
    workload = workload_of(ObjectRef("Deployment", "llm"), uid, template, None, (VLLM,))
    assert isinstance(workload, Workload)
    advice = TurnOff(
        TRIATTENTION.name, TRIATTENTION.settings, Reason.COMPRESSION_REVERTED, "no block becomes free"
    )
    plan = bundle_plan(workload, advice, 1)
    assert isinstance(plan, Plan), plan
    return Run(
        id="20260301-030000",
        target_uid=uid,
        digest=plan.digest,
        reason=plan.reason,
        message=plan.message,
        spec_generation=1,
        started_at=datetime.now(UTC),
        steps=tuple(StepRecord(step) for step in plan.steps),
        recorded=RolloutFields(False, "25%", "25%", 0, START_LIMIT_SECONDS),
        replicas=replicas,
        in_rotation=replicas,
        blocks=149,
        baseline=_calm(replicas),
        goal=Goal.NO_WORSE,
        run_spec=RunSpec(RotationLabel("serving", DRAINING), timedelta(minutes=30)),
    )


def _calm(replicas: int) -> Baseline:
    now = datetime.now(UTC)
    pods = {f"llm-{number}": readings(State.RECOVERED, now) for number in range(replicas)}
    found = baseline_of(Observation(now, 60.0, 0.0, pods), 0)
    assert isinstance(found, Baseline), found
    return found
