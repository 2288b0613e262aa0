"""Where a flag may stand, and what a plan changes there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from builders import THRASHING, an_evidence
from kvmedic.engines.vllm import VLLM
from kvmedic.model.edits import Field
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ObjectRef, template_hash
from kvmedic.model.plan import FlagStep, Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.status import Record
from kvmedic.runbooks.branches import Assignment, Setting
from kvmedic.runbooks.planning import plan_of
from kvmedic.runbooks.preemption.levers import present_setting
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


FROM_A_MAP = {"configMapKeyRef": {"name": "sizes", "key": "value"}}


def from_elsewhere(*args: str) -> Workload | Blocked:
    """Return an engine whose flags may refer to a variable that a ConfigMap gives."""
    env = [{"name": "SIZE", "valueFrom": FROM_A_MAP}]
    return workload_of(TARGET, "u", a_template(args=["m", *args], env=env), None, (VLLM,))


def setting_of_engine(workload: Workload) -> Setting:
    return present_setting(workload, (), Record(), an_evidence(THRASHING))


@pytest.mark.parametrize("flag", ["--max-model-len", "--gpu-memory-utilization", "--max-num-batched-tokens"])
def test_a_variable_from_elsewhere_blocks_its_own_knob_alone(flag: str) -> None:
    workload = from_elsewhere(f"{flag}=$(SIZE)", "--max-num-seqs=64")
    assert isinstance(workload, Workload), workload
    (knob,) = workload.unknown_knobs()

    plan = plan_of(workload, Assignment(Knob.MAX_NUM_SEQS, 16, Reason.FLEET_WIDE_DEMAND, "why"), 1)
    own = plan_of(workload, Assignment(knob, 1, Reason.FLEET_WIDE_DEMAND, "why"), 1)

    assert isinstance(plan, Plan), plan
    assert isinstance(own, Blocked)
    assert "comes from $(SIZE) (args[1]), set outside of the manifest" in own.message
    assert setting_of_engine(workload).refused[knob].reason is Reason.FLAG_NOT_EDITABLE


def test_a_value_that_is_given_and_not_known_is_not_taken_for_the_default() -> None:
    workload = from_elsewhere(
        "--max-num-seqs=$(SIZE)",
        "--gpu-memory-utilization=$(SIZE)",
        "--num-gpu-blocks-override=$(SIZE)",
    )
    assert isinstance(workload, Workload), workload

    setting = setting_of_engine(workload)

    assert setting.most_sequences is None
    assert setting.memory is not None
    assert (setting.memory.ratio, setting.memory.is_given) == (None, True)
    assert setting.memory.fixed_by == "--num-gpu-blocks-override"
    assert setting.gives(Knob.MAX_NUM_SEQS)
    assert setting.whole(Knob.MAX_NUM_SEQS) is None


def test_an_unknown_type_of_the_cache_leaves_nothing_to_judge() -> None:
    found = from_elsewhere("--kv-cache-dtype=$(SIZE)")

    assert isinstance(found, Blocked)
    assert "kv_cache_dtype comes from $(SIZE)" in found.message
