"""A step of each kind that is judged or moved without a cluster, and the trial pod that it makes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from kvmedic.model.compression import Keep
from kvmedic.model.devices import ContainerEnd, Instance
from kvmedic.model.fleet import Minimum, ObjectRef
from kvmedic.model.plan import EvaluationStep, MinimumHolder, ReplicasStep, TrialStep
from kvmedic.model.reasons import Reason
from kvmedic.model.trial import Question
from kvmedic.rollout.start_failure import StartLimits
from run_builder import BUNDLE, NOW, OLD, a_pod

HPA = ObjectRef("HorizontalPodAutoscaler", "llm")
MINIMUM = ReplicasStep(
    target=ObjectRef("Deployment", "llm"),
    container="vllm",
    before=2,
    after=4,
    template=OLD,
    reason=Reason.REPLICAS_ADDED,
    holder=MinimumHolder(HPA, "hpa-1", is_given=True),
)
GATE = EvaluationStep(
    target=ObjectRef("Deployment", "llm"),
    container="vllm",
    subject="Mine",
    change=None,
    tried="4567",
    cron_job="aime24",
    evaluation="e1e1",
    budget=2048,
    cache_types=(),
    limit_seconds=7200,
    template="0123",
    reason=Reason.ACCURACY_EVALUATED,
)
KEEP = Keep(2048)
TRIAL = TrialStep(
    target=ObjectRef("Deployment", "llm"),
    container="vllm",
    question=Question.RECLAMATION,
    method="Mine",
    tokens=16_384,
    keep=KEEP,
    limit_seconds=1800,
    template="0123",
    reason=Reason.TRIAL_RUNNING,
)
LIMITS = StartLimits(timedelta(minutes=10), timedelta(minutes=5))
POD = a_pod("llm-trial-1", created_at=NOW - timedelta(minutes=2))
STARTING = replace(POD, ready_at=None)
CHANGE = BUNDLE.edit


def an_end(reason: str = "Error") -> ContainerEnd:
    return ContainerEnd("vllm", 1, reason, POD.created_at, NOW, Instance.PRESENT)


def a_minimum(number: int = 2, **changes: object) -> Minimum:
    found = Minimum(HPA.kind, HPA.name, "hpa-1", "7", number, is_given=True, most=8)
    return replace(found, **changes)
