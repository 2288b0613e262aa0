"""From levers to a plan on a real command line: what it does not let be set is passed over."""

from __future__ import annotations

import pytest

from builders import THRASHING, an_evidence
from kvmedic.model.engine import Knob
from kvmedic.model.plan import Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.model.status import Record
from kvmedic.runbooks.branches import Advice, Assignment, Evidence, NoChange, Setting
from kvmedic.runbooks.planning import proposal
from kvmedic.runbooks.preemption.levers import present_setting
from kvmedic.runbooks.workload import Workload
from worlds.workloads import a_workload

EVIDENCE = an_evidence(THRASHING)
MARK, STEP, CAP = Knob.WATERMARK, Knob.MAX_NUM_BATCHED_TOKENS, Knob.MAX_NUM_SEQS
VALUES = {MARK: 0.02, STEP: 1024, CAP: 16}


def advise(_: Evidence, known: Setting) -> Advice:
    """Propose the first allowed lever that was not refused."""
    free = [lever.knob for lever in known.levers if lever.knob not in known.refused]
    if free:
        return Assignment(free[0], VALUES[free[0]], Reason.CAP_RIGHT_SIZED, "why")
    return NoChange(Reason.NO_LEVER_LEFT, "; ".join(each.message for each in known.refused.values()))


def known(workload: Workload, *knobs: Knob) -> Setting:
    return present_setting(workload, tuple(LeverBound(knob) for knob in knobs), Record(), EVIDENCE)


def proposed(workload: Workload, *knobs: Knob) -> Plan | NoChange:
    return proposal(workload, advise, EVIDENCE, known(workload, *knobs), 1)


def changed(plan: Plan | NoChange) -> tuple[Knob, str | None]:
    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    return step.knob, step.after


@pytest.mark.parametrize(
    ("image", "knob"),
    [
        ("vllm/vllm-openai:v0.24.0", MARK),
        ("vllm/vllm-openai:v0.32.0", MARK),
        ("vllm/vllm-openai:v0.23.0", STEP),
        ("vllm/vllm-openai:latest", STEP),
    ],
    ids=["the first that has it", "a newer one", "one that has it not", "nobody knows"],
)
def test_a_flag_is_added_only_to_an_engine_that_is_known_to_have_it(image: str, knob: Knob) -> None:
    plan = proposed(a_workload("--max-num-batched-tokens=8192", image=image), MARK, STEP)

    assert changed(plan)[0] is knob


def test_where_no_lever_can_be_set_each_says_why() -> None:
    found = proposed(a_workload("--config", "/etc/vllm.yaml", image="vllm/vllm-openai:v0.23.0"), CAP, MARK)

    assert isinstance(found, NoChange)
    assert "maxNumSeqs 16 cannot be set: " in found.message
    assert "watermark 0.02 cannot be set: vLLM 0.23.0 does not have --watermark" in found.message


def test_an_adviser_that_insists_is_not_asked_for_ever() -> None:
    workload = a_workload(image="vllm/vllm-openai:v0.23.0")
    stubborn = Assignment(MARK, 0.02, Reason.CAP_RIGHT_SIZED, "why")

    found = proposal(workload, lambda _, __: stubborn, EVIDENCE, known(workload, MARK), 1)

    assert isinstance(found, NoChange)
    assert found.reason is Reason.FLAG_UNKNOWN_TO_ENGINE


@pytest.mark.parametrize(
    ("args", "image", "chunks"),
    [
        ((), "vllm/vllm-openai:v0.32.0", True),
        ((), "vllm/vllm-openai:v0.11.0", True),
        ((), "vllm/vllm-openai:v0.10.2", None),
        ((), "vllm/vllm-openai:latest", None),
        (("--enable-chunked-prefill",), "vllm/vllm-openai:v0.10.2", True),
        (("--no-enable-chunked-prefill",), "vllm/vllm-openai:v0.32.0", False),
        (("--enable-chunked-prefill=False",), "vllm/vllm-openai:v0.7.3", False),
    ],
)
def test_whether_prefills_are_chunked_is_known_or_not(
    args: tuple[str, ...], image: str, *, chunks: bool | None
) -> None:
    assert known(a_workload(*args, image=image)).chunks_prefill is chunks


def test_the_cap_that_may_be_in_force_is_the_given_one_or_the_largest_default() -> None:
    assert known(a_workload("--max-num-seqs", "64")).most_sequences == 64
    assert known(a_workload()).most_sequences == 2048


def test_what_a_file_may_give_is_not_known() -> None:
    assert known(a_workload("--config", "/etc/vllm.yaml")).given is None
    assert known(a_workload("--max-model-len", "8k")).given == {Knob.MAX_MODEL_LEN: 8000}
