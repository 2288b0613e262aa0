"""Reusing prefixes: only where an engine is known not to, and where enough could be shared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import THRASHING, an_evidence
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Measured, Pool
from kvmedic.model.plan import Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.status import Record
from kvmedic.runbooks.branches import Assignment, Evidence, NoChange, Setting, Supply
from kvmedic.runbooks.planning import plan_of
from kvmedic.runbooks.preemption.levers import LEAST_SAVED, present_setting, saved_at_most
from kvmedic.runbooks.preemption.pressure import Case
from runbooks.cases import CASE, propose
from worlds.workloads import a_workload

OFF = Supply(caches_prefixes=False)
ALIKE = replace(
    CASE,
    strain=replace(CASE.strain, running_mean=17),
    blocks=1000,
    block_tokens=16,
    prompt_tokens=800,
    shortest_tokens=500,
)
"""Sixteen sequences beside the one that holds the 31 whole blocks of 500 tokens: half of the cache."""
SAVED = 16 * 31 / 1000


def advised(supply: Supply, case: Case = ALIKE) -> Assignment | NoChange:
    return propose(Knob.PREFIX_CACHING, case, Setting(None, (), supply=supply))


def test_what_could_be_shared_is_what_the_shortest_prompts_hold_in_whole_blocks() -> None:
    assert saved_at_most(ALIKE) == pytest.approx(SAVED)


def test_it_is_switched_on_where_enough_could_be_shared() -> None:
    found = advised(OFF)

    assert isinstance(found, Assignment)
    assert (found.knob, found.value, found.reason) == (Knob.PREFIX_CACHING, True, Reason.SETTING_ADJUSTED)
    assert "shows only once it is on" in found.message


@pytest.mark.parametrize(
    ("supply", "case", "reason"),
    [
        pytest.param(Supply(caches_prefixes=True), ALIKE, Reason.LEVER_WITHOUT_EFFECT, id="it is on"),
        pytest.param(Supply(), ALIKE, Reason.PRESENT_VALUE_UNKNOWN, id="nobody knows"),
        pytest.param(
            replace(OFF, leaves_prefixes=True), ALIKE, Reason.LEVER_WITHOUT_EFFECT, id="its own choice"
        ),
        pytest.param(OFF, replace(ALIKE, shortest_tokens=10), Reason.TRAFFIC_UNSUITED, id="short"),
        pytest.param(OFF, replace(ALIKE, shortest_tokens=15), Reason.TRAFFIC_UNSUITED, id="no block"),
        pytest.param(OFF, replace(ALIKE, blocks=4000), Reason.TRAFFIC_UNSUITED, id="outputs fill it"),
        pytest.param(
            OFF,
            replace(ALIKE, strain=replace(ALIKE.strain, running_mean=1)),
            Reason.TRAFFIC_UNSUITED,
            id="one at a time",
        ),
    ],
)
def test_it_is_not_switched_on(supply: Supply, case: Case, reason: Reason) -> None:
    found = advised(supply, case)

    assert isinstance(found, NoChange)
    assert found.reason is reason


@pytest.mark.parametrize(
    ("over", "applies"), [(0.001, True), (-0.001, False)], ids=["just enough", "just short"]
)
def test_the_threshold_is_exact(over: float, *, applies: bool) -> None:
    case = replace(ALIKE, blocks=16 * 31 / (LEAST_SAVED + over))

    assert isinstance(advised(OFF, case), Assignment) is applies


def evidence_of(*says: bool | None) -> Evidence:
    pods = [replace(THRASHING.readings(), pool=Measured(Pool(149, 32, "auto", one), NOW)) for one in says]
    return an_evidence(*pods)


NOW = an_evidence(THRASHING).burn.at


@pytest.mark.parametrize(
    ("args", "version", "says", "caches", "leaves"),
    [
        pytest.param(("--no-enable-prefix-caching",), "0.32.0", None, False, False, id="switched off"),
        pytest.param(("--enable-prefix-caching",), "0.7.3", None, True, False, id="switched on"),
        pytest.param((), "0.7.3", None, False, False, id="V0: off by default"),
        pytest.param((), "0.7.3", False, False, False, id="V0 says so itself"),
        pytest.param((), "0.7.3", True, True, False, id="V1 on a version that had V0 by default"),
        pytest.param((), "0.32.0", True, True, False, id="V1: on by default"),
        pytest.param((), "0.32.0", False, False, True, id="V1 that left it off by itself"),
        pytest.param((), "0.32.0", None, None, False, id="nobody says"),
        pytest.param((), "0.8.5", None, None, False, id="either engine"),
    ],
)
def test_the_command_line_counts_then_the_engine_then_its_version(
    args: tuple[str, ...], version: str, *, says: bool | None, caches: bool | None, leaves: bool
) -> None:
    supply = present_setting(
        a_workload(*args, image=f"vllm/vllm-openai:v{version}"), (), Record(), evidence_of(says, says)
    ).supply

    assert (supply.caches_prefixes, supply.leaves_prefixes) == (caches, leaves)


def test_engines_that_differ_leave_it_unknown() -> None:
    supply = present_setting(a_workload(), (), Record(), evidence_of(True, False)).supply

    assert supply.caches_prefixes is None


@pytest.mark.parametrize(
    ("args", "version", "before", "token"),
    [
        pytest.param(
            ("--no-enable-prefix-caching",),
            "0.32.0",
            "--no-enable-prefix-caching",
            "--enable-prefix-caching",
            id="V1",
        ),
        pytest.param((), "0.7.3", None, "--enable-prefix-caching", id="V0, a switch"),
        pytest.param((), "0.6.3.post1", None, "--enable-prefix-caching", id="V0, with no way to say no"),
    ],
)
def test_the_plan_is_one_token(args: tuple[str, ...], version: str, before: str | None, token: str) -> None:
    advice = advised(OFF)
    assert isinstance(advice, Assignment)

    plan = plan_of(a_workload(*args, image=f"vllm/vllm-openai:v{version}"), advice, 1)

    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    assert (step.edit.before, step.edit.after) == (before, token)
    assert step.line() == f"Deployment/llm: prefixCaching {'false' if before else '(engine default)'} -> true"
