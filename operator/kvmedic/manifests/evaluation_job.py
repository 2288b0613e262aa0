"""An evaluation: the Job that a team's suspended CronJob describes, pointed at one trial pod.

What the team wrote stays as it is but for what bounds the Job: it runs one pod, once, for a limited time. A
template that wants more is refused by the field's name. The manifest may hold secrets and is never printed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvmedic.manifests.trial_pod import TRIAL_LABEL, Owner
from kvmedic.model.fleet import template_hash
from kvmedic.model.trial import NoEvaluation, Served

DIGEST = "kvmedic.io/evaluation-digest"
"""Annotation of a Job: the digest of the Job template that it was made of."""
SERVED_BEFORE = "kvmedic.io/served-before"
"""Annotation of a Job: what the trial pod had done when the Job was made."""
INSTANTIATED = {"cronjob.kubernetes.io/instantiate": "manual"}
"""Annotation of a Job that `kubectl create job --from=cronjob/x` made, and not the schedule."""
NAME_LENGTH = 63
"""Characters of a Job's name, at most: its pods carry it as a label's value."""
JOB_CONTROLLER = "kubernetes.io/job-controller"
"""The cluster's own (`spec.managedBy`); another one need not make pods here."""
ENDING_ACTIONS = frozenset({"FailJob", "Count"})
"""Actions of a pod failure policy after which no second pod comes, as no retry is left."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation."""

    name: str
    """Of the Job; the same for the same evaluation, so that a second creation finds the first."""
    namespace: str
    owner: Owner
    cron_job: str
    digest: str
    """Of the CronJob's Job template, as it was when the evaluation was planned."""
    deadline_seconds: int
    """After that the Job is ended, whatever became of everybody else."""


def job_name(resource: str, tail: str) -> str:
    """Return a Job's name that ends in `tail`, after as much of the resource's name as fits.

    Args:
        tail: what tells this evaluation from all others of the resource; up to 60 characters.
    """
    return f"{resource[: NAME_LENGTH - len(tail) - 1].rstrip('.-')}-{tail}"


def digest_of(cron_job: Mapping[str, Any]) -> str | NoEvaluation:
    """Return the digest of a CronJob's Job template, or why no evaluation can be made of it."""
    spec = _section(cron_job, "spec")
    for why in _obstacles(spec):
        return NoEvaluation(f"CronJob/{_section(cron_job, 'metadata').get('name')}: {why}")
    return template_hash(_section(spec, "jobTemplate"))


def evaluation_job(
    cron_job: Mapping[str, Any], evaluation: Evaluation, subject: Served
) -> dict[str, Any] | NoEvaluation:
    """Return the manifest of an evaluation's Job.

    Its containers find the trial pod by OPENAI_BASE_URL, KVMEDIC_URL and KVMEDIC_MODEL, which stand first so
    that arguments and later variables may refer to them.
    """
    digest = digest_of(cron_job)
    if isinstance(digest, NoEvaluation):
        return digest
    if digest != evaluation.digest:
        return NoEvaluation(f"CronJob/{evaluation.cron_job} was edited since the evaluation was planned")
    template = _section(_section(cron_job, "spec"), "jobTemplate")
    given, owner, counted = _section(template, "metadata"), evaluation.owner, subject.counted
    before = json.dumps({"requests": counted.requests, "tokens": counted.tokens})
    noted = {DIGEST: evaluation.digest, SERVED_BEFORE: before}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": evaluation.name,
            "namespace": evaluation.namespace,
            "labels": {**_section(given, "labels"), TRIAL_LABEL: owner.uid},
            "annotations": {**_section(given, "annotations"), **INSTANTIATED, **noted},
            "ownerReferences": [owner.reference()],
        },
        "spec": _spec(_section(template, "spec"), evaluation, subject),
    }


def _spec(given: Mapping[str, Any], evaluation: Evaluation, subject: Served) -> dict[str, Any]:
    spec = copy.deepcopy(dict(given))
    for name in ("ttlSecondsAfterFinished", "suspend"):
        spec.pop(name, None)
    own = spec.get("activeDeadlineSeconds")
    limits = [evaluation.deadline_seconds, *([own] if own is not None else [])]
    spec |= {"backoffLimit": 0, "activeDeadlineSeconds": min(limits), "completions": 1, "parallelism": 1}
    pod = _section(_section(spec, "template"), "spec") | {"restartPolicy": "Never"}
    for kind in ("initContainers", "containers"):
        if pod.get(kind):
            pod[kind] = [_point_at_subject(container, subject) for container in pod[kind]]
    spec["template"] = {**_section(spec, "template"), "spec": pod}
    return spec


def _point_at_subject(container: Mapping[str, Any], subject: Served) -> dict[str, Any]:
    """Return a container that is told where the subject serves."""
    told = {
        "OPENAI_BASE_URL": f"{subject.url}/v1",
        "KVMEDIC_URL": subject.url,
        "KVMEDIC_MODEL": subject.model,
    }
    # A value may refer to variables as $(NAME), and $$ is reduced to $ (core/v1 types.go, EnvVar.Value); the
    # model's name is the engine's word and refers to nothing.
    ours = [{"name": name, "value": text.replace("$", "$$")} for name, text in told.items()]
    theirs = [each for each in container.get("env") or () if each.get("name") not in told]
    return {**container, "env": [*ours, *theirs]}


def _obstacles(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield what keeps a CronJob from being one that runs for the gate alone, in one pod, once."""
    if spec.get("suspend") is not True:
        yield "set spec.suspend: true so that it runs for the gate alone"
    job = _section(_section(spec, "jobTemplate"), "spec")
    for field, why in (*_repetitions(job), *_strangers(job)):
        yield f"spec.jobTemplate.spec.{field} {why}"


def _repetitions(job: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what may send a sample twice, by field."""
    for name in ("completions", "parallelism"):
        if job.get(name) not in (None, 1):
            yield name, f"is {job[name]}: set 1, because each sample is to be sent once"
    for name in ("backoffLimitPerIndex", "maxFailedIndexes"):
        if job.get(name) is not None:
            yield name, "does not fit a Job of one pod that is not repeated: remove it"
    rules = _section(job, "podFailurePolicy").get("rules") or ()
    if any(rule.get("action") not in ENDING_ACTIONS for rule in rules):
        yield "podFailurePolicy", "repeats a pod: leave only rules with action FailJob or Count"


def _strangers(job: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield by which the Job's pods would not be known for its own, by field."""
    if job.get("manualSelector") or job.get("selector"):
        yield "selector", "keeps the Job's pods from being known: remove it and manualSelector"
    if job.get("managedBy") not in (None, JOB_CONTROLLER):
        yield "managedBy", "leaves the Job to another controller: remove it"
    if TRIAL_LABEL in _section(_section(_section(job, "template"), "metadata"), "labels"):
        yield "template", f"has the label {TRIAL_LABEL}, by which trial pods are known: remove it"


def _section(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a part of an object; an empty one where it is absent or null."""
    return dict(body.get(key) or {})
