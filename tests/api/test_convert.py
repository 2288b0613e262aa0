"""A spec as the core reads it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from api.bad_specs import MINIMAL
from kvmedic.api.resource import KNOBS, policy_of, spec_from_wire
from kvmedic.api.spec import LeverName
from kvmedic.model.devices import NodeHealth
from kvmedic.model.engine import Knob
from kvmedic.model.spec import (
    LeverBound,
    Limits,
    Mode,
    Objectives,
    OnInconclusive,
    Ownership,
    Policy,
    RollbackPolicy,
    RolloutPolicy,
    RotationLabel,
    Runbook,
    ScaleBound,
    SideBySide,
    Spare,
    TargetRef,
    Trigger,
    Waves,
    Windows,
)

FULL = {
    "targetRef": {"name": "llm", "container": "vllm"},
    "mode": "Auto",
    "suspend": True,
    "metrics": {"source": "thanos"},
    "ownership": "Apply",
    "objectives": {"interTokenP95": "80ms", "e2eP95": "30s", "ttftP95": "5s"},
    "trigger": {
        "preemptionsPerRequest": 1,
        "kvCacheUsage": 0.9,
        "silentSeconds": 3,
        "stallsPerRequest": 0.1,
        "window": "2m",
        "for": "30s",
    },
    "sizing": {"window": "1h"},
    "levers": [{"name": "maxNumSeqs", "min": 16, "max": 64}],
    "rollout": {
        "waves": "Quarter",
        "drainTimeout": "90s",
        "startTimeout": "45m",
        "rotationLabel": {"key": "a/b", "draining": "out"},
    },
    "verify": {"for": "5m", "onInconclusive": "RollBack", "holdAtMost": "3h", "sideBySide": "Never"},
    "limits": {
        "cooldown": "1h",
        "maxRunsPerDay": 2,
        "minHealthyReplicas": 3,
        "approvalMaxAge": "90m",
    },
    "nodeHealth": "IfAvailable",
}


def test_every_field_reaches_the_core() -> None:
    assert policy_of(spec_from_wire(FULL)) == Policy(
        target=TargetRef("Deployment", "llm", "vllm"),
        ownership=Ownership.APPLY,
        mode=Mode.AUTO,
        suspended=True,
        runbooks=(Runbook.PREEMPTION_THRASH,),
        source="thanos",
        objectives=Objectives(
            inter_token_p95_seconds=0.08, e2e_p95_seconds=30, time_to_first_token_p95_seconds=5
        ),
        trigger=Trigger(
            preemptions_per_request=1, kv_cache_usage_ratio=0.9, silent_seconds=3, stalls_per_request=0.1
        ),
        windows=Windows(
            trigger=timedelta(minutes=2),
            hold=timedelta(seconds=30),
            sizing=timedelta(hours=1),
            verify=timedelta(minutes=5),
        ),
        node_health=NodeHealth.IF_AVAILABLE,
        levers=(LeverBound(Knob.MAX_NUM_SEQS, minimum=16, maximum=64),),
        rollout=RolloutPolicy(
            Spare.REQUIRED,
            timedelta(seconds=90),
            RotationLabel("a/b", "out"),
            timedelta(minutes=45),
            waves=Waves.QUARTER,
        ),
        on_inconclusive=OnInconclusive.ROLL_BACK,
        hold_at_most=timedelta(hours=3),
        side_by_side=SideBySide.NEVER,
        limits=Limits(
            cooldown=timedelta(hours=1),
            max_runs_per_day=2,
            min_healthy_replicas=3,
            approval_max_age=timedelta(minutes=90),
        ),
    )


def test_the_defaults_are_those_of_the_reference() -> None:
    policy = policy_of(spec_from_wire(MINIMAL))

    assert policy.target == TargetRef("Deployment", "inference-llm", None)
    assert policy.objectives == Objectives()
    assert policy.node_health is NodeHealth.IF_AVAILABLE
    assert policy.windows == Windows(
        trigger=timedelta(minutes=5),
        hold=timedelta(minutes=2),
        sizing=timedelta(minutes=30),
        verify=timedelta(minutes=10),
    )
    assert policy.levers == (LeverBound(Knob.MAX_NUM_SEQS),)
    assert policy.rollout.rotation_label == RotationLabel("serving", "draining")


def test_levers_keep_their_order() -> None:
    levers = [
        {"name": "gpuMemoryUtilization", "min": 0.8, "max": 0.95, "step": 0.02},
        {"name": "scaleOut", "maxReplicas": 8},
        {"name": "maxNumSeqs", "min": 16},
        {"name": "prefixCaching"},
        {"name": "chunkedPrefill"},
        {"name": "cpuOffload", "maxGiB": 32},
    ]

    policy = policy_of(spec_from_wire({**MINIMAL, "levers": levers}))

    assert policy.levers == (
        LeverBound(Knob.GPU_MEMORY_UTILIZATION, 0.8, 0.95, 0.02),
        LeverBound(Knob.MAX_NUM_SEQS, 16),
        LeverBound(Knob.PREFIX_CACHING),
        LeverBound(Knob.CHUNKED_PREFILL),
        LeverBound(Knob.KV_OFFLOADING_SIZE, maximum=32),
    )


@pytest.mark.parametrize("name", list(LeverName))
def test_an_implemented_lever_is_a_knob_or_has_a_field_of_its_own(name: LeverName) -> None:
    assert (name in KNOBS) is not (name in (LeverName.REVISION_ROLLBACK, LeverName.SCALE_OUT))


@pytest.mark.parametrize(
    ("levers", "expected"),
    [
        ([{"name": "maxNumSeqs"}], RollbackPolicy(is_allowed=False, within=timedelta(hours=1))),
        ([{"name": "revisionRollback"}], RollbackPolicy(is_allowed=True, within=timedelta(hours=1))),
        (
            [{"name": "maxNumSeqs"}, {"name": "revisionRollback", "within": "90m"}],
            RollbackPolicy(is_allowed=True, within=timedelta(minutes=90)),
        ),
    ],
    ids=["absent: not allowed", "allowed within an hour", "allowed within a time of its own"],
)
def test_a_way_back_to_another_revision_is_a_lever(
    levers: list[dict[str, str]], expected: RollbackPolicy
) -> None:
    assert policy_of(spec_from_wire({**MINIMAL, "levers": levers})).rollback == expected


@pytest.mark.parametrize(
    ("lever", "bound"),
    [
        ({"name": "scaleOut"}, ScaleBound(None, 1, timedelta(hours=1))),
        (
            {"name": "scaleOut", "maxReplicas": 8, "step": 2, "restoreAfter": "90m"},
            ScaleBound(8, 2, timedelta(minutes=90)),
        ),
    ],
    ids=["without bounds", "with all"],
)
def test_how_far_replicas_may_be_added(lever: dict[str, object], bound: ScaleBound) -> None:
    policy = policy_of(spec_from_wire({**MINIMAL, "levers": [lever]}))

    assert (policy.scale_out, policy.levers) == (bound, ())


def test_replicas_that_are_not_mentioned_may_not_be_added() -> None:
    assert policy_of(spec_from_wire(MINIMAL)).scale_out is None


@pytest.mark.parametrize(("lever", "hours"), [({}, 1), ({"restoreAfter": "3h"}, 3)], ids=["not said", "said"])
def test_how_long_host_memory_stays_is_a_bound_of_its_lever(lever: dict[str, object], hours: int) -> None:
    levers = [{"name": "cpuOffload", "maxGiB": 32, **lever}]

    [bound] = policy_of(spec_from_wire({**MINIMAL, "levers": levers})).levers

    assert (bound.maximum, bound.restore_after) == (32, timedelta(hours=hours))


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 5.0),
        ({"objectives": {"e2eP95": "30s"}}, 5.0),
        ({"objectives": {"ttftP95": "2s"}}, 1.0),
        ({"objectives": {"ttftP95": "2s"}, "trigger": {"silentSeconds": 4}}, 4.0),
    ],
    ids=["nothing is given", "no objective on the first token", "half of the objective", "as given"],
)
def test_silence_triggers_at_half_of_what_was_promised(given: dict[str, Any], seconds: float) -> None:
    policy = policy_of(spec_from_wire({**MINIMAL, **given}))

    assert policy.trigger.silent_seconds == seconds
