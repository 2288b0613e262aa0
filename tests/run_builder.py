"""Builders of runs and fleets for tests; they refuse impossible states."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kvmedic.model.config_edits import FileEdit, Revision
from kvmedic.model.edits import BundleEdit, EnvEdit, Field, ReferenceEdit, TokenEdit
from kvmedic.model.engine import Knob
from kvmedic.model.fleet import Fleet, ObjectRef, Pod, ReplicaSet, RolloutFields, Rotation
from kvmedic.model.plan import BundleStep, FlagStep, ReplaceStep, ReplicasStep, RevisionStep, Step
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Intent, Outcome, Run, StepRecord, StepState
from kvmedic.model.status import Attempt, FailedAttempt

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
UID = "11111111-2222-3333-4444-555555555555"
OLD, NEW = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"
OWN_FIELDS = RolloutFields(False, "25%", "25%", 0, 600)
EDIT = TokenEdit("vllm", 0, Field.ARGS, 3, "--max-num-seqs=64", "--max-num-seqs=16")
STEP = FlagStep(
    target=ObjectRef("Deployment", "llm"),
    container="vllm",
    knob=Knob.MAX_NUM_SEQS,
    edit=EDIT,
    before="64",
    after="16",
    before_template=OLD,
    after_template=NEW,
    reason=Reason.CAP_RIGHT_SIZED,
)
REPLACE = ReplaceStep(
    target=ObjectRef("Deployment", "llm"),
    container="vllm",
    pod="a",
    uid="uid-a",
    replicas=3,
    template=OLD,
    reason=Reason.ONE_REPLICA_PRESSURED,
)
ROLLBACK = RevisionStep(
    target=ObjectRef("Deployment", "llm"),
    container="vllm",
    before=Revision(7, "llm-7c", OLD),
    after=Revision(6, "llm-6f", NEW),
    reason=Reason.DEPLOY_CORRELATED,
)
CONFIG = FlagStep(
    target=ObjectRef("Deployment", "llm"),
    container="vllm",
    knob=Knob.MAX_NUM_SEQS,
    edit=ReferenceEdit("config", 0, None, "limits", "limits-0123456789"),
    file_of=FileEdit("limits", "limits-0123456789", "engine.yaml", 14, "64", "16", "c" * 16, "d" * 16),
    before="64",
    after="16",
    before_template=OLD,
    after_template=NEW,
    reason=Reason.CAP_RIGHT_SIZED,
)
BUNDLE = BundleStep(
    target=ObjectRef("Deployment", "llm"),
    container="vllm",
    method="TriAttention",
    edit=BundleEdit(
        (
            EnvEdit("vllm", 0, "ENABLE_TRIATTENTION", 1, "1", "0"),
            EnvEdit("vllm", 0, "TRIATTN_RUNTIME_KV_BUDGET", 0, "4096", None),
            TokenEdit("vllm", 0, Field.ARGS, 3, "--no-enable-prefix-caching", None),
        )
    ),
    before="--no-enable-prefix-caching, TRIATTN_RUNTIME_KV_BUDGET=4096, ENABLE_TRIATTENTION=1",
    after="off (ENABLE_TRIATTENTION=0)",
    before_template=OLD,
    after_template=NEW,
    reason=Reason.COMPRESSION_REVERTED,
)
SCALE = ReplicasStep(
    target=ObjectRef("Deployment", "llm"),
    container="vllm",
    before=3,
    after=4,
    template=OLD,
    reason=Reason.REPLICAS_ADDED,
)
BASELINE = Baseline(
    window_seconds=300,
    replicas=3,
    preemptions_per_request=2.5,
    requests_per_second=6.0,
    prompt_tokens_mean=64,
    output_tokens_mean=190,
    generated_tokens_per_second=1140,
    inter_token_p95_seconds=0.08,
    inter_token_tail_seconds=2.0,
    stalls_per_request=0.1,
    time_to_first_token_p95_seconds=1.0,
    first_token_limit_seconds=30.0,
    in_time_share=1.0,
    served_in_time_per_second=1032,
    end_to_end_p95_seconds=14.0,
    kv_cache_usage_ratio=0.95,
    waiting_mean=28.0,
    restarts=0,
)


def an_intent(
    sequence: int = 1, move: str = "Freeze", *, before: str = OLD, after: str = NEW, frozen: bool = True
) -> Intent:
    return Intent(sequence, move, before, after, frozen, NOW)


def a_scaling(sequence: int, before: int, after: int) -> Intent:
    move = "ScaleOut" if after > before else "ScaleIn"
    return Intent(
        sequence, move, OLD, OLD, False, NOW, was_frozen=False, replicas_before=before, replicas_after=after
    )


def a_failure(attempt: Attempt, key: object = "", template: str = OLD, **changes: Any) -> FailedAttempt:
    """An attempt that did not help, without figures unless they are given."""
    failed = FailedAttempt(attempt, str(key), template, "a -> b", "NotRecovered", NOW)
    return replace(failed, **changes)


def a_run(
    state: StepState = StepState.PENDING,
    intent: Intent | None = None,
    ending: Outcome | None = None,
    step: Step = STEP,
) -> Run:
    """Return a run with one step in a state.

    Raises:
        ValueError: a state that cannot be reached without an intent.
    """
    if intent is None and state in (StepState.ROLLING_OUT, StepState.VERIFYING, StepState.ROLLING_BACK):
        raise ValueError(f"{state} needs an intent")
    settled = NOW - timedelta(minutes=5) if state is StepState.VERIFYING else None
    return Run(
        id="20260301-025500",
        target_uid="uid-1",
        digest="0123456789abcdef",
        reason=Reason.FLEET_WIDE_DEMAND,
        message="64 run at most, 16 fit",
        spec_generation=1,
        started_at=NOW - timedelta(minutes=10),
        steps=(StepRecord(step, state, settled),),
        recorded=OWN_FIELDS,
        replicas=3,
        in_rotation=3,
        blocks=149,
        baseline=BASELINE,
        intent=intent,
        ending=ending,
    )


def a_pod(name: str, revision: str = OLD, **changes: object) -> Pod:
    pod = Pod(
        name=name,
        uid=f"uid-{name}",
        resource_version="1",
        revision=revision,
        address="10.0.0.1",
        created_at=NOW - timedelta(hours=1),
        ready_at=NOW - timedelta(minutes=59),
        terminating=False,
        unschedulable=False,
        in_rotation=True,
        cordoned=False,
        restarts=0,
        waiting_reason="",
    )
    return replace(pod, **changes)


def a_fleet(**changes: object) -> Fleet:
    """Return a settled fleet of three replicas that runs the old template."""
    fleet = Fleet(
        namespace="serving",
        name="llm",
        uid="uid-1",
        resource_version="10",
        generation=4,
        observed=True,
        replicas=3,
        strategy="RollingUpdate",
        fields=OWN_FIELDS,
        revision=OLD,
        status_replicas=3,
        updated_replicas=3,
        fence="",
        replica_sets=(ReplicaSet("llm-old", OLD, 1, 3, 3, 0, observed=True),),
        pods=tuple(a_pod(name) for name in ("a", "b", "c")),
        rotation=Rotation("serving", "draining", ("llm",), effective=True, in_selector=False),
        owner=None,
        recorded={},
    )
    return replace(fleet, **changes)
