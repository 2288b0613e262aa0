"""The share of its devices' memory that an engine takes, one step down."""

from __future__ import annotations

import pytest

from builders import CALM, an_evidence
from kvmedic.model.devices import Cause
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.plan import Goal
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.model.status import Record
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Assignment, Diagnosed, MemoryShare, NoChange, Setting, diagnose
from kvmedic.runbooks.planning import plan_of
from kvmedic.runbooks.preemption.levers import present_setting
from kvmedic.runbooks.preemption.memory_levers import lower_share, memory_share
from worlds.vitals_builder import an_end, restarted
from worlds.workloads import a_workload

LEVER = LeverBound(Knob.GPU_MEMORY_UTILIZATION, 0.8, 0.95, 0.02)
QUIET = an_evidence(*[CALM] * 3)


def share_of(*args: str, image: str = "vllm/vllm-openai:v0.32.0") -> MemoryShare:
    return memory_share(a_workload(*args, image=image))


def advised(share: MemoryShare | None, *levers: LeverBound, tried: bool = False) -> Assignment | NoChange:
    exhausted = frozenset({Knob.GPU_MEMORY_UTILIZATION} if tried else ())
    return lower_share(QUIET, Setting(None, levers, exhausted, share))


@pytest.mark.parametrize(
    ("before", "lever", "after"),
    [
        (0.92, LEVER, 0.9),
        (0.9, LEVER, 0.88),
        (0.81, LEVER, 0.8),
        (0.8001, LEVER, 0.8),
        (0.3, LeverBound(Knob.GPU_MEMORY_UTILIZATION, 0.1, None, 0.1), 0.2),
    ],
    ids=["a step", "another", "the bound is nearer", "just over the bound", "no binary dust"],
)
def test_it_goes_down_by_one_step_and_never_under_the_bound(
    before: float, lever: LeverBound, after: float
) -> None:
    found = advised(MemoryShare(before, is_given=True), lever)

    assert isinstance(found, Assignment)
    assert (found.knob, found.value, found.reason) == (LEVER.knob, after, Reason.MEMORY_STEPPED_DOWN)


@pytest.mark.parametrize(
    ("share", "levers", "reason", "words"),
    [
        (None, (LEVER,), Reason.PRESENT_VALUE_UNKNOWN, "manifest"),
        (MemoryShare(0.9, True), (), Reason.LEVER_NOT_ALLOWED, "add {name: gpuMemoryUtilization"),
        (
            MemoryShare(0.9, True),
            (LeverBound(Knob.GPU_MEMORY_UTILIZATION, None, 0.95, 0.02),),
            Reason.LEVER_NOT_ALLOWED,
            "needs min and step",
        ),
        (
            MemoryShare(0.9, True),
            (LeverBound(Knob.GPU_MEMORY_UTILIZATION, 0.8, 0.95),),
            Reason.LEVER_NOT_ALLOWED,
            "needs min and step",
        ),
        (MemoryShare(0.8, True), (LEVER,), Reason.LEVER_AT_BOUND, "no less than 0.8"),
        (MemoryShare(0.7, True), (LEVER,), Reason.LEVER_AT_BOUND, "is 0.7"),
        (MemoryShare(None, False), (LEVER,), Reason.PRESENT_VALUE_UNKNOWN, "version"),
        (MemoryShare(0.9, True, unread="/etc/c.yaml"), (LEVER,), Reason.PRESENT_VALUE_UNKNOWN, "/etc/c.yaml"),
        (
            MemoryShare(0.9, True, fixed_by="--num-gpu-blocks-override"),
            (LEVER,),
            Reason.LEVER_WITHOUT_EFFECT,
            "--num-gpu-blocks-override fixes the size of the KV cache",
        ),
    ],
    ids=[
        "no command line",
        "not allowed",
        "no bound",
        "no step",
        "at the bound",
        "under the bound",
        "no known default",
        "a configuration file",
        "a fixed pool",
    ],
)
def test_it_is_not_lowered(
    share: MemoryShare | None, levers: tuple[LeverBound, ...], reason: Reason, words: str
) -> None:
    found = advised(share, *levers)

    assert isinstance(found, NoChange)
    assert found.reason is reason
    assert words in found.message


def test_what_did_not_help_is_not_tried_again() -> None:
    found = advised(MemoryShare(0.9, is_given=True), LEVER, tried=True)

    assert found.reason is Reason.LEVER_EXHAUSTED


@pytest.mark.parametrize(
    ("args", "image", "expected"),
    [
        (("--gpu-memory-utilization=0.85",), "v0.32.0", MemoryShare(0.85, is_given=True)),
        (("--gpu-memory-util", "0.85"), "v0.32.0", MemoryShare(0.85, is_given=True)),
        (("--gpu-memory-utilization=1",), "v0.32.0", MemoryShare(1.0, is_given=True)),
        ((), "v0.32.0", MemoryShare(0.92, is_given=False)),
        ((), "v0.20.0", MemoryShare(0.92, is_given=False)),
        ((), "v0.19.1", MemoryShare(0.9, is_given=False)),
        ((), "v0.8.5", MemoryShare(0.9, is_given=False)),
        ((), "v0.1.0", MemoryShare(None, is_given=False)),
        ((), "latest", MemoryShare(None, is_given=False)),
        (("--gpu-memory-utilization=0.85",), "latest", MemoryShare(0.85, is_given=True)),
        (
            ("--num-gpu-blocks-override=100",),
            "v0.32.0",
            MemoryShare(0.92, is_given=False, fixed_by="--num-gpu-blocks-override"),
        ),
        (
            ("--kv-cache-memory-bytes=1G", "--gpu-memory-utilization=0.9"),
            "v0.32.0",
            MemoryShare(0.9, is_given=True, fixed_by="--kv-cache-memory-bytes"),
        ),
        (
            ("--config", "/etc/c.yaml"),
            "v0.32.0",
            MemoryShare(0.92, is_given=False, unread="/etc/c.yaml"),
        ),
    ],
    ids=[
        "given",
        "abbreviated",
        "a whole number",
        "the default of today",
        "from 0.20 on",
        "before 0.20",
        "long before",
        "older than all that was looked at",
        "of no known version",
        "given, of no known version",
        "blocks are fixed",
        "bytes are fixed",
        "a configuration file",
    ],
)
def test_the_share_is_read_off_the_command_line(
    args: tuple[str, ...], image: str, expected: MemoryShare
) -> None:
    assert share_of(*args, image=f"vllm/vllm-openai:{image}") == expected


@pytest.mark.parametrize(
    ("args", "before", "token"),
    [
        (("--gpu-memory-utilization=0.92",), "0.92", "--gpu-memory-utilization=0.9"),
        ((), None, "--gpu-memory-utilization=0.9"),
    ],
    ids=["given", "appended"],
)
def test_a_gpu_that_ran_out_of_memory_is_answered_with_one_token(
    args: tuple[str, ...], before: str | None, token: str
) -> None:
    evidence = restarted(QUIET, an_end(Cause.DEVICE_MEMORY))
    found, engine = diagnose(RUNBOOKS["PreemptionThrash"], evidence), a_workload(*args)
    assert isinstance(found, Diagnosed)
    assert found.branch.then is not None

    advice = found.branch.then(evidence, present_setting(engine, (LEVER,), Record(), evidence))

    assert found.branch.goal is Goal.STAYS_UP
    assert isinstance(advice, Assignment)
    plan = plan_of(engine, advice, 1)
    assert not isinstance(plan, Blocked)
    (step,) = plan.steps
    assert (step.before, step.after, step.edit.after) == (before, "0.9", token)


def test_host_memory_is_answered_with_nothing_but_who_and_what_to_do() -> None:
    evidence = restarted(QUIET, an_end(Cause.HOST_MEMORY))
    found = diagnose(RUNBOOKS["PreemptionThrash"], evidence)
    assert isinstance(found, Diagnosed)
    assert found.branch.then is not None

    advice = found.branch.then(evidence, Setting(None, (LEVER,)))

    assert isinstance(advice, NoChange)
    assert advice.reason is Reason.HOST_OUT_OF_MEMORY
    assert "llm-0 killed at the container's memory limit (OOMKilled)" in advice.message
    assert "raise the container's memory limit" in advice.message


def test_an_end_that_nobody_can_explain_is_reported_with_what_would() -> None:
    found = diagnose(RUNBOOKS["PreemptionThrash"], restarted(QUIET, an_end(Cause.UNKNOWN)))

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.LOG_UNREADABLE
    assert "llm-0 ended 02:58:00Z with exit code 1" in found.message
    assert "pods/log" in found.message
    assert "403 Forbidden" in found.message
