"""The share of its devices' memory that an engine takes, one step up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import NOW, THRASHING, an_evidence
from kvmedic.model.devices import Vital
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Absence, Measured, Missing
from kvmedic.model.fleet import body_hash, template_hash
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.model.status import Attempt, OomShare, Record
from kvmedic.runbooks.branches import (
    Assignment,
    Evidence,
    MemoryShare,
    NoChange,
    Setting,
    SettingAdvice,
    Supply,
)
from kvmedic.runbooks.preemption.levers import first_that_applies, present_setting
from kvmedic.runbooks.preemption.memory_levers import TAKEN
from kvmedic.runbooks.workload import Workload
from run_builder import a_failure
from runbooks.cases import CASE, propose
from worlds.vitals_builder import a_device, with_vitals
from worlds.workloads import a_workload

SHARE = Knob.GPU_MEMORY_UTILIZATION
LEVER = LeverBound(SHARE, 0.8, 0.95, 0.02)
FREE = 0.1
"""Of each device, all through the window."""


def in_use(share: float, **more: object) -> Supply:
    return Supply(memory_in_use=share, **more)  # type: ignore[arg-type]


def advised(
    share: MemoryShare | None, supply: Supply, lever: LeverBound = LEVER, **more: object
) -> SettingAdvice:
    return propose(
        Knob.GPU_MEMORY_UTILIZATION, CASE, Setting(None, (lever,), memory=share, supply=supply, **more)
    )  # type: ignore[arg-type]


def given_share(ratio: float) -> MemoryShare:
    return MemoryShare(ratio, is_given=True)


@pytest.mark.parametrize(
    ("before", "used", "after"),
    [
        (0.88, 0.90, 0.90),
        (0.90, 0.95, 0.92),
        (0.92, 0.96, 0.94),
        (0.94, 0.90, 0.95),
        (0.90, 0.97, 0.91),
        (0.90, 0.98, 0.91),
        (0.935, 0.90, 0.95),
    ],
    ids=[
        "a step",
        "half of what is free is more than a step",
        "exactly a step",
        "the bound is nearer",
        "free memory allows half a step",
        "exactly half a step",
        "the rest of the way to the bound",
    ],
)
def test_it_goes_up_by_one_step_at_most(before: float, used: float, after: float) -> None:
    found = advised(given_share(before), in_use(used))

    assert isinstance(found, Assignment)
    assert (found.knob, found.value, found.reason) == (SHARE, after, Reason.MEMORY_STEPPED_UP)
    assert f"{used:.1%} of any GPU's memory" in found.message


@pytest.mark.parametrize("used", [0.9601, 0.967, 0.9732, 0.9799])
def test_the_value_does_not_follow_the_noise_of_a_measurement(used: float) -> None:
    found = advised(given_share(0.9), in_use(used))

    assert isinstance(found, Assignment)
    assert found.value == 0.91


def test_from_the_engines_default_it_says_so() -> None:
    found = advised(MemoryShare(0.92, is_given=False), in_use(0.9))

    assert isinstance(found, Assignment)
    assert "from 0.92 (the engine's default) to 0.94" in found.message


@pytest.mark.parametrize(
    ("share", "supply", "lever", "reason", "words"),
    [
        (None, in_use(0.9), LEVER, Reason.PRESENT_VALUE_UNKNOWN, "manifest"),
        (
            given_share(0.9),
            in_use(0.9),
            LeverBound(SHARE, 0.8, 0.95),
            Reason.LEVER_NOT_ALLOWED,
            "max and step",
        ),
        (given_share(0.95), in_use(0.8), LEVER, Reason.LEVER_AT_BOUND, "no more than 0.95"),
        (given_share(0.945), in_use(0.8), LEVER, Reason.LEVER_AT_BOUND, "no more than 0.95"),
        (given_share(0.97), in_use(0.8), LEVER, Reason.LEVER_AT_BOUND, "is 0.97"),
        (given_share(0.9), in_use(0.981), LEVER, Reason.HEADROOM_SHORT, "98.1%"),
        (given_share(0.9), in_use(1.0), LEVER, Reason.HEADROOM_SHORT, "100.0%"),
        (
            given_share(0.9),
            Supply(memory_unknown="no fresh series for llm-0"),
            LEVER,
            Reason.HEADROOM_UNKNOWN,
            "no fresh series for llm-0",
        ),
        (
            MemoryShare(0.9, is_given=True, fixed_by="--num-gpu-blocks-override"),
            in_use(0.8),
            LEVER,
            Reason.LEVER_WITHOUT_EFFECT,
            "--num-gpu-blocks-override fixes",
        ),
        (MemoryShare(None, is_given=False), in_use(0.8), LEVER, Reason.PRESENT_VALUE_UNKNOWN, "version"),
        (
            MemoryShare(0.9, is_given=False, unread="/c.yaml"),
            in_use(0.8),
            LEVER,
            Reason.PRESENT_VALUE_UNKNOWN,
            "/c.yaml",
        ),
        (
            given_share(0.9),
            in_use(0.8, raise_failed_before=True),
            LEVER,
            Reason.LEVER_EXHAUSTED,
            "did not help",
        ),
        (
            given_share(0.9),
            in_use(0.8, oom_limit=0.92),
            LEVER,
            Reason.LEVER_AT_BOUND,
            "ran out of memory at 0.92",
        ),
        (
            given_share(0.9),
            in_use(0.8, oom_limit=0.9),
            LEVER,
            Reason.LEVER_AT_BOUND,
            "ran out of memory at 0.9 ",
        ),
    ],
    ids=[
        "no command line",
        "no step",
        "at the bound",
        "nearly at the bound",
        "over the bound",
        "too little is free",
        "nothing is free",
        "nobody knows what is free",
        "a fixed pool",
        "no known default",
        "a configuration file",
        "it failed before",
        "a step below a share that was too much",
        "at a share that was too much",
    ],
)
def test_it_is_not_raised(
    share: MemoryShare | None, supply: Supply, lever: LeverBound, reason: Reason, words: str
) -> None:
    found = advised(share, supply, lever)

    assert isinstance(found, NoChange)
    assert found.reason is reason
    assert words in found.message


def test_below_a_share_that_was_too_much_it_stops_a_step_short() -> None:
    found = advised(given_share(0.87), in_use(0.8, oom_limit=0.90))

    assert isinstance(found, Assignment)
    assert found.value == 0.88  # 0.90 - a step of 0.02


shares = st.floats(0.1, 1.0, allow_nan=False)
steps = st.floats(0.001, 0.1, allow_nan=False)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(before=shares, used=shares, maximum=shares, step=steps, oom_share=st.none() | shares)
def test_it_stays_within_every_bound(
    before: float, used: float, maximum: float, step: float, oom_share: float | None
) -> None:
    dust = 1e-9
    found = advised(
        given_share(before), in_use(used, oom_limit=oom_share), LeverBound(SHARE, None, maximum, step)
    )

    if isinstance(found, NoChange):
        return
    assert before < found.value <= min(1.0, maximum) + dust
    assert found.value <= before + step + dust
    assert found.value - before <= TAKEN * (1 - used) + dust
    assert oom_share is None or found.value <= oom_share - step + dust


@settings(max_examples=200, deadline=None, derandomize=True)
@given(before=shares, used=shares, step=steps)
def test_what_it_takes_is_counted_the_next_time(before: float, used: float, step: float) -> None:
    lever = LeverBound(SHARE, None, 1.0, step)
    taken, share, rounds = used, before, 0

    while isinstance(found := advised(given_share(share), in_use(taken), lever), Assignment):
        taken, share, rounds = taken + float(found.value) - share, float(found.value), rounds + 1
        assert rounds < 2000

    assert taken <= 1.0


def loaded(*used: float | Missing) -> Evidence:
    """Two replicas that thrash; the first has one device for each share in use, the second one at 0.5."""
    evidence = an_evidence(THRASHING, THRASHING)
    devices = tuple(a_device(f"GPU {at}", memory_in_use=share) for at, share in enumerate(used))
    evidence = with_vitals(evidence, "llm-0", devices=Measured(devices, NOW))
    return with_vitals(evidence, "llm-1", devices=Measured((a_device(memory_in_use=0.5),), NOW))


def test_the_fullest_device_of_all_replicas_counts() -> None:
    known = present_setting(a_workload(), (LEVER,), Record(), loaded(0.7, 0.93, 0.8))

    assert known.supply.memory_in_use == 0.93


@pytest.mark.parametrize(
    "evidence",
    [
        loaded(0.7, Missing(Absence.NO_SERIES)),
        loaded(),
        an_evidence(THRASHING, THRASHING),
        with_vitals(loaded(0.7), "llm-1", devices=Missing(Absence.SOURCE_UNAVAILABLE)),
    ],
    ids=["one device is not reported", "no device is known", "nobody looked", "one replica is not reported"],
)
def test_what_one_replica_does_not_report_is_unknown_of_all(evidence: Evidence) -> None:
    known = present_setting(a_workload(), (LEVER,), Record(), evidence)

    assert known.supply.memory_in_use is None
    assert "DCGM_FI_DEV_FB_FREE" in known.supply.memory_unknown
    assert propose(Knob.GPU_MEMORY_UTILIZATION, CASE, known).reason is Reason.HEADROOM_UNKNOWN


OOM_SHARE = OomShare(0.92, body_hash(a_workload().template), NOW)


@pytest.mark.parametrize(
    ("now", "share"),
    [
        (a_workload("--gpu-memory-utilization=0.9"), 0.92),
        (a_workload("--gpu-memory-utilization=0.9", "--max-num-seqs=8"), 0.92),
        (
            a_workload(template={"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}),
            0.92,
        ),
        (a_workload(image="vllm/vllm-openai:v0.33.0"), None),
    ],
    ids=["the share lowered", "other flags", "restarted", "another image"],
)
def test_a_share_that_was_too_much_is_remembered_for_the_template_whatever_its_flags(
    now: Workload, share: float | None
) -> None:
    known = present_setting(now, (LEVER,), Record(oom_shares=(OOM_SHARE,)), loaded(0.5))

    assert known.supply.oom_limit == share


def test_the_step_down_after_an_out_of_memory_is_never_undone() -> None:
    known = present_setting(
        a_workload("--gpu-memory-utilization=0.9"), (LEVER,), Record(oom_shares=(OOM_SHARE,)), loaded(0.5)
    )

    found = first_that_applies(CASE, known)

    assert isinstance(found, NoChange)
    assert "a GPU ran out of memory at 0.92 with this pod template" in found.message


@pytest.mark.parametrize(
    ("attempt", "up", "down"),
    [(Attempt.RAISE_MEMORY, False, True), (Attempt.TURN_LEVER, True, False)],
    ids=["the raise failed before", "the cut failed before"],
)
def test_up_and_down_are_remembered_apart(attempt: Attempt, *, up: bool, down: bool) -> None:
    now = a_workload("--gpu-memory-utilization=0.9")
    failed = a_failure(attempt, SHARE, template_hash(now.template))
    known = present_setting(now, (LEVER,), Record(failed_attempts=(failed,)), loaded(0.8))

    assert isinstance(first_that_applies(CASE, known), Assignment) is up
    assert (SHARE not in known.exhausted) is down


def test_without_a_max_the_lever_is_none_of_this_branch() -> None:
    known = replace(
        present_setting(a_workload(), (LeverBound(SHARE, 0.8, None, 0.02),), Record(), loaded(0.5)),
        max_num_seqs=64,
    )

    found = first_that_applies(CASE, known)

    assert isinstance(found, NoChange)
    assert SHARE not in found.message


def test_a_device_reports_its_memory_as_a_share() -> None:
    device = a_device(memory_in_use=0.875)

    assert device.ratio(Vital.MEMORY_IN_USE) == 0.875
    assert a_device(memory_in_use=Missing(Absence.NO_SERIES)).ratio(Vital.MEMORY_IN_USE) is None
