"""What an open run goes by when its spec cannot be followed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.model.plan import Step
from kvmedic.model.run import policy_during
from kvmedic.model.spec import RotationLabel, RunSpec
from run_builder import BUNDLE, CONFIG, REPLACE, ROLLBACK, STEP, a_run

RUN_SPEC = RunSpec(RotationLabel("serving", "draining"), timedelta(minutes=5))


@pytest.mark.parametrize(
    ("step", "container"),
    [
        (STEP, "vllm"),
        (REPLACE, "vllm"),
        (replace(REPLACE, container=None), None),
        (ROLLBACK, "vllm"),
        (CONFIG, "vllm"),
        (BUNDLE, "vllm"),
    ],
    ids=["a flag", "a replica", "a replica, container not named", "a revision", "a file", "a method"],
)
def test_the_record_alone_says_enough_to_end_a_run(step: Step, container: str | None) -> None:
    policy = policy_during(replace(a_run(step=step), run_spec=RUN_SPEC), None)

    assert policy.suspended
    assert (policy.target.kind, policy.target.name, policy.target.container) == (
        "Deployment",
        "llm",
        container,
    )
    assert policy.rollout.rotation_label == RUN_SPEC.rotation_label
