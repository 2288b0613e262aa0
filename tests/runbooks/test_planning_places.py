"""Where a flag may stand, and what a plan changes there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from kvmedic.engines.vllm import VLLM
from kvmedic.model.edits import Field
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ObjectRef, template_hash
from kvmedic.model.plan import FlagStep, Plan
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import Assignment
from kvmedic.runbooks.planning import plan_of
from kvmedic.runbooks.workload import Workload, workload_of

SECRET = "s3cret"
TARGET = ObjectRef("Deployment", "chat")


def a_template(**container: Any) -> dict[str, Any]:
    base = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0"}
    return {"spec": {"containers": [{"name": "proxy", "image": "envoy"}, {**base, **container}]}}


PLACES = [
    pytest.param(
        {"command": ["sh", "-c", f"vllm serve m --api-key {SECRET} --max-num-seqs 64 --port 1"]},
        (Field.COMMAND, "64", "16"),
        id="script",
    ),
    pytest.param(
        {
            "command": ["sh", "-c", f"vllm serve m --api-key {SECRET} --max-num-seqs $S"],
            "env": [{"name": "S", "value": "64"}],
        },
        (Field.ENV, "64", "16"),
        id="variable",
    ),
    pytest.param(
        {"args": ["m", "--max-num-seqs=64", f"--api-key={SECRET}"]},
        (Field.ARGS, "--max-num-seqs=64", "--max-num-seqs=16"),
        id="list",
    ),
]


@pytest.mark.parametrize(("container", "expected"), PLACES)
def test_a_plan_changes_the_token_where_it_is_and_knows_the_way_back(
    container: dict[str, Any], expected: tuple[Field, str, str]
) -> None:
    template = a_template(**container)
    workload = workload_of(TARGET, "u", template, None, (VLLM,))
    assert isinstance(workload, Workload), workload

    plan = plan_of(workload, Assignment(Knob.MAX_NUM_SEQS, 16, Reason.FLEET_WIDE_DEMAND, "why"), 1)

    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    assert isinstance(step, FlagStep)
    assert (step.edit.field, step.edit.before, step.edit.after) == expected
    assert step.before == "64"
    changed = step.edit.apply(template)
    assert template_hash(changed) == step.after_template
    assert step.edit.inverse().apply(changed) == template
    assert SECRET not in str(asdict(step))


def test_a_script_that_cannot_be_followed_is_no_plan() -> None:
    template = a_template(command=["sh", "-c", "while true; do vllm serve m; done"])

    fault = workload_of(TARGET, "u", template, None, (VLLM,))

    assert isinstance(fault, Blocked)
    assert fault.reason is Reason.FLAG_NOT_EDITABLE
    assert "a loop around it" in fault.message
