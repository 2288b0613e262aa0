"""What a plan says of requests that are in flight when a replica is ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kvmedic.engines.vllm import VLLM
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.spec import OnDrainTimeout, RolloutPolicy, RotationLabel, Spare
from kvmedic.runbooks.planning import drain_remark, end_of_requests
from kvmedic.runbooks.workload import Workload, workload_of
from run_builder import REPLACE, STEP
from worlds.world import deployment


def a_workload(
    *arguments: str, image: str = "v0.32.0", grace: int | None = None, **container: Any
) -> Workload:
    template = deployment(1)["spec"]["template"]
    [vllm] = template["spec"]["containers"]
    vllm["args"] += arguments
    vllm["image"] = f"vllm/vllm-openai:{image}"
    vllm.update(container)
    template["spec"].pop("terminationGracePeriodSeconds")
    if grace is not None:
        template["spec"]["terminationGracePeriodSeconds"] = grace
    found = workload_of(ObjectRef("Deployment", "llm"), "uid-1", template, "vllm", (VLLM,))
    assert isinstance(found, Workload)
    return found


def sleeps(seconds: int) -> dict[str, Any]:
    return {"lifecycle": {"preStop": {"sleep": {"seconds": seconds}}}}


EXEC = {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}}}


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (a_workload(), "aborts requests in flight"),
        (a_workload("--shutdown-timeout=0"), "aborts requests in flight"),
        (a_workload(image="v0.17.1"), "it has no --shutdown-timeout"),
        (a_workload("--shutdown-timeout=29"), "finishes requests in flight for 29 s"),
        (a_workload("--shutdown-timeout", "30"), "may be cut off"),
        (a_workload("--shutdown-timeout=50", grace=60, **sleeps(9)), "finishes requests in flight for 50 s"),
        (
            a_workload("--shutdown-timeout=50", grace=60, **sleeps(10)),
            "10 s + --shutdown-timeout 50 s do not",
        ),
        (a_workload("--shutdown-timeout=50", grace=60, **EXEC), "if preStop leaves them"),
    ],
    ids=[
        "not given",
        "none",
        "unknown to the engine",
        "within the grace period",
        "as long as the grace period",
        "both within it",
        "both as long",
        "a hook that takes its own time",
    ],
)
def test_it_is_known_whether_an_engine_would_abort_requests(workload: Workload, said: str) -> None:
    assert said in end_of_requests(workload)


@pytest.mark.parametrize(
    ("way", "said"),
    [(OnDrainTimeout.HOLD, "is not ended"), (OnDrainTimeout.PROCEED, "is ended all the same")],
)
def test_a_plan_says_what_becomes_of_a_replica_whose_drain_times_out(way: OnDrainTimeout, said: str) -> None:
    rollout = RolloutPolicy(
        Spare.REQUIRED, timedelta(minutes=10), RotationLabel("a", "b"), on_drain_timeout=way
    )

    for step in (STEP, REPLACE):
        remark = drain_remark(a_workload(), rollout, step)
        assert said in remark
        assert "aborts requests in flight" in remark
