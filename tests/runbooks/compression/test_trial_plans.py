"""What differs on a trial pod that computes prompts whole, and where none can."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.flags import may_chunk
from kvmedic.model.compression import BundleSetting as Setting
from kvmedic.model.compression import Keep
from kvmedic.model.edits import BundleEdit
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ObjectRef, template_hash
from kvmedic.model.plan import Plan, TrialStep
from kvmedic.model.reasons import Reason
from kvmedic.model.trial import Question
from kvmedic.runbooks.branches import Try
from kvmedic.runbooks.compression.trial_plans import ROOM, trial_plan, whole_prompts
from kvmedic.runbooks.workload import Workload, workload_of
from run_builder import a_fleet

LONGEST = 16_384
NEED = LONGEST + ROOM
CHUNKS = "--no-enable-chunked-prefill"
FITTING = ("--max-model-len=8192", "--max-num-batched-tokens=8192")
LENGTH, STEPS = f"--max-model-len={NEED}", f"--max-num-batched-tokens={NEED}"


def a_workload(*args: str, tag: str = "v0.32.0", **more: Any) -> Workload:
    image = f"vllm/vllm-openai:{tag}"
    container = {"name": "vllm", "image": image, "args": ["m", *args], **more}
    template = {"spec": {"containers": [container]}}
    found = workload_of(ObjectRef("Deployment", "llm"), "u", template, None, (VLLM,))
    assert isinstance(found, Workload), found
    return found


def on_trial(workload: Workload, change: BundleEdit | Blocked | None) -> dict[str, Any]:
    assert isinstance(change, BundleEdit), change
    return change.apply(workload.template)


def args_of(template: dict[str, Any]) -> list[str]:
    found: list[str] = template["spec"]["containers"][0]["args"][1:]
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), [CHUNKS]),
        (("--enable-chunked-prefill",), [CHUNKS]),
        (("--max-model-len=32768",), [LENGTH, CHUNKS]),
        (("--max-model-len", "32768"), ["--max-model-len", str(NEED), CHUNKS]),
        (
            ("--max-model-len=131072", "--max-num-batched-tokens=8192"),
            [LENGTH, STEPS, CHUNKS],
        ),
        (
            ("--max-model-len=8192", "--max-num-batched-tokens=8192"),
            ["--max-model-len=8192", "--max-num-batched-tokens=8192", CHUNKS],
        ),
        (
            ("--max-model-len=8192", "--max-num-batched-tokens=4096", "--max-num-seqs=64"),
            ["--max-model-len=8192", "--max-num-batched-tokens=8192", "--max-num-seqs=64", CHUNKS],
        ),
        (("--max-num-batched-tokens=8192",), [CHUNKS]),
        ((CHUNKS, "--max-model-len=32768"), [CHUNKS, LENGTH]),
    ],
    ids=[
        "nothing given",
        "chunks are asked for",
        "a long limit",
        "as two tokens",
        "small steps",
        "a short limit",
        "steps under a short limit",
        "steps, and nobody knows the limit",
        "whole already, and a long limit",
    ],
)
def test_a_trial_pod_computes_prompts_whole(given: tuple[str, ...], expected: list[str]) -> None:
    workload = a_workload(*given)

    template = on_trial(workload, whole_prompts(workload, LONGEST))

    assert args_of(template) == expected
    assert not may_chunk(template, "vllm", VLLM)


def test_where_prompts_are_whole_already_nothing_differs() -> None:
    workload = a_workload(CHUNKS, *FITTING)

    assert whole_prompts(workload, 8191) is None


@pytest.mark.parametrize("tag", ["v0.8.5.post1", "v0.11.0"])
def test_a_release_that_does_not_listen_is_not_tried(tag: str) -> None:
    found = whole_prompts(a_workload(tag=tag), LONGEST)

    assert isinstance(found, Blocked)
    assert found.reason is Reason.TRIAL_IMPOSSIBLE
    assert "whatever --enable-chunked-prefill says" in found.message
    assert may_chunk(a_workload(CHUNKS, tag=tag).template, "vllm", VLLM)


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        (a_workload("--config", "/etc/vllm.yaml"), "in the file /etc/vllm.yaml"),
        (a_workload(tag="latest"), "name the engine's version"),
    ],
    ids=["in a file", "nobody knows the version"],
)
def test_a_command_line_that_cannot_be_edited_is_not_tried(workload: Workload, says: str) -> None:
    found = whole_prompts(workload, LONGEST)

    assert isinstance(found, Blocked)
    assert found.reason is Reason.TRIAL_IMPOSSIBLE
    assert says in found.message


ADVICE = Try(Question.PROMPTS, "Mine", LONGEST, Keep(), timedelta(minutes=30), Reason.TRIAL_RUNNING, "slower")


def test_the_step_has_the_change_and_the_source_and_the_target_keeps_its_template() -> None:
    workload, fleet = a_workload(), a_fleet()

    plan = trial_plan(workload, fleet, "main", ADVICE, 1)

    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    assert isinstance(step, TrialStep)
    assert step.on_trial == template_hash(on_trial(workload, step.change))
    assert (step.source, step.template, step.after_template) == ("main", fleet.revision, fleet.revision)
    assert step.line() == "Deployment/llm: a trial pod computes prompts of up to 16384 tokens with Mine"


BUNDLE = (Setting(env="EVICT", on="1", off=None), Setting(flag="--kv-cache-dtype", on="fp8", off=None))


def a_pressed_workload(**more: Any) -> Workload:
    return a_workload(
        "--kv-cache-dtype=fp8", "--max-model-len=32768", env=[{"name": "EVICT", "value": "1"}], **more
    )


def test_with_the_method_off_prompts_are_computed_whole_too() -> None:
    workload = a_pressed_workload()

    plan = trial_plan(workload, a_fleet(), "main", replace(ADVICE, off=BUNDLE), 1)

    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    assert isinstance(step, TrialStep)
    made = on_trial(workload, step.change)
    assert args_of(made) == [LENGTH, CHUNKS]
    assert "env" not in made["spec"]["containers"][0]
    assert (step.without, step.source, step.tried) == (True, "main", template_hash(made))
    assert step.line() == "Deployment/llm: a trial pod computes prompts of up to 16384 tokens without Mine"


def test_with_the_method_off_an_engine_starts_as_it_is_otherwise() -> None:
    workload = a_pressed_workload()

    plan = trial_plan(workload, a_fleet(), "main", replace(ADVICE, question=Question.START, off=BUNDLE), 1)

    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    assert isinstance(step, TrialStep)
    assert args_of(on_trial(workload, step.change)) == ["--max-model-len=32768"]
    assert (step.without, step.source) == (True, "")


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        (
            a_pressed_workload(envFrom=[{"configMapRef": {"name": "x"}}]),
            "cannot be turned off as a whole, on a trial pod",
        ),
        (a_workload(), "Mine is off already"),
    ],
    ids=["a variable that may come from elsewhere", "nothing is on"],
)
def test_a_method_that_cannot_be_turned_off_is_not_compared(workload: Workload, says: str) -> None:
    found = trial_plan(workload, a_fleet(), "main", replace(ADVICE, off=BUNDLE), 1)

    assert isinstance(found, Blocked)
    assert says in found.message


def test_who_cannot_start_without_a_type_may_give_its_blocks() -> None:
    workload = a_pressed_workload(envFrom=[{"configMapRef": {"name": "x"}}])

    found = trial_plan(workload, a_fleet(), "main", replace(ADVICE, question=Question.START, off=BUNDLE), 1)

    assert isinstance(found, Blocked)
    assert found.message.endswith("; or give spec.compression.baseline.blocks")


def test_a_trial_of_blocks_has_the_templates_own_setting() -> None:
    plan = trial_plan(a_workload(), a_fleet(), "main", replace(ADVICE, question=Question.RECLAMATION), 1)

    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    assert isinstance(step, TrialStep)
    assert (step.change, step.tried, step.source) == (None, "", "")


def test_a_trial_that_cannot_be_whole_is_no_plan() -> None:
    found = trial_plan(a_workload(tag="v0.11.0"), a_fleet(), "main", ADVICE, 1)

    assert isinstance(found, Blocked)
    assert found.reason is Reason.TRIAL_IMPOSSIBLE
