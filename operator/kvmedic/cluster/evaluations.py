"""Evaluations in a cluster: Jobs made of suspended CronJobs, looked at, and removed with their pods.

A Job's manifest may hold secrets, so the server's words on one that it refuses are never repeated. Whatever
cannot be read of a Job counts as a failed evaluation, so that no gate opens by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan

from kvmedic.cluster.snapshot import is_finished
from kvmedic.cluster.trial_pods import is_of, made_for, swept
from kvmedic.kube.client import Client, Propagation
from kvmedic.kube.errors import Call, Conflict, Refused
from kvmedic.kube.objects import (
    CRON_JOBS,
    JOBS,
    PODS,
    JsonObject,
    Ref,
    annotations_of,
    controller_uid,
    items,
    section,
    uid_of,
)
from kvmedic.manifests.evaluation_job import DIGEST, SERVED_BEFORE, Evaluation, digest_of, evaluation_job
from kvmedic.model.trial import Counted, JobEnd, JobSight, NoEvaluation, Served

JOB_NAME = "batch.kubernetes.io/job-name"
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
"""Labels of a Job's pods (batch/v1 types.go, JobNameLabel, ControllerUidLabel)."""
SUCCESS = frozenset({"Complete", "SuccessCriteriaMet"})
"""Conditions of a Job that can only end well."""
LATE = "DeadlineExceeded"
"""Reason of a Job's failure after its activeDeadlineSeconds."""
MOST = 2**53
"""Largest number that an engine's page tells exactly; infinities and NaN are no smaller."""
UNREADABLE = JobSight(JobEnd.FAILED, "", Counted(0, nan))
"""A Job that does not tell what the trial pod had done before, or of which template it was made: it failed,
whatever it says itself."""


@dataclass(frozen=True, slots=True)
class Evaluations:
    """Evaluations in one cluster."""

    client: Client

    def forbidden(self) -> str:
        """Return nothing: evaluations are made."""
        return ""

    async def digest(self, namespace: str, cron_job: str) -> str | NoEvaluation:
        """Return the digest of a CronJob's Job template, or why no evaluation can be made of it.

        Raises:
            Unavailable: the API did not answer.
        """
        body = await self._cron_job(namespace, cron_job)
        return body if isinstance(body, NoEvaluation) else digest_of(body)

    async def look(self, evaluation: Evaluation) -> JobSight | None:
        """Return how an evaluation's Job stands, None where there is none.

        A Job that does not tell what was before, or was made of another template, counts as failed.

        Raises:
            Conflict: a Job of that name is somebody else's.
            Unavailable: the API did not answer.
        """
        body = await self._job(evaluation)
        if body is None:
            return None
        before = _before(body)
        if before is None or annotations_of(body).get(DIGEST) != evaluation.digest:
            return UNREADABLE
        # The Job is read before its pods: a Job is counted as complete after its pod has ended with its
        # message, so that of a complete one the message is there.
        pods = await self._pods(body)
        end = _end(body)
        if end is JobEnd.SUCCEEDED and not all(map(is_finished, pods)):
            end = None
        return JobSight(end, _message(pods), before)

    async def make(self, evaluation: Evaluation, subject: Served) -> str:
        """Make an evaluation's Job; return why there can be none, or nothing.

        One that is there already is what was asked for, and stays as it is.

        Raises:
            Conflict: a Job of that name is somebody else's.
            Unavailable: the API did not answer.
        """
        if await self._job(evaluation) is not None:
            return ""
        cron_job = await self._cron_job(evaluation.namespace, evaluation.cron_job)
        if isinstance(cron_job, NoEvaluation):
            return cron_job.why
        manifest = evaluation_job(cron_job, evaluation, subject)
        if isinstance(manifest, NoEvaluation):
            return manifest.why
        return await self._create(evaluation, manifest)

    async def sweep(self, namespace: str, owner_uid: str) -> tuple[str, ...]:
        """Remove all evaluations of a resource with their pods; return the names of those that were there.

        A Job is there until its pods are gone.

        Raises:
            Unavailable: the API did not answer.
        """
        going = await made_for(self.client, JOBS, namespace, owner_uid)
        return await swept(self.client, JOBS, going, Propagation.FOREGROUND)

    async def _create(self, evaluation: Evaluation, manifest: JsonObject) -> str:
        try:
            await self.client.create(_job_ref(evaluation), manifest)
        except Conflict:
            if await self._job(evaluation) is None:
                raise
        except Refused as error:
            return str(error)
        return ""

    async def _job(self, evaluation: Evaluation) -> JsonObject | None:
        body = await self.client.get(_job_ref(evaluation))
        if body is not None and not is_of(body, evaluation.owner.uid):
            raise Conflict(Call("get", _job_ref(evaluation).path), None, "a Job of that name is not ours")
        return body

    async def _cron_job(self, namespace: str, name: str) -> JsonObject | NoEvaluation:
        try:
            body = await self.client.get(Ref(CRON_JOBS, namespace, name))
        except Refused as error:
            return NoEvaluation(str(error))
        return (
            NoEvaluation(f"CronJob/{name} is not there: make it, with spec.suspend: true")
            if body is None
            else body
        )

    async def _pods(self, job: JsonObject) -> list[JsonObject]:
        """Return a Job's own pods, the oldest first."""
        name, uid = section(job, "metadata")["name"], uid_of(job)
        found = await self.client.list(PODS, _namespace(job), f"{JOB_NAME}={name},{CONTROLLER_UID}={uid}")
        return sorted((pod for pod in found if controller_uid(pod) == uid), key=_age)


def _job_ref(evaluation: Evaluation) -> Ref:
    return Ref(JOBS, evaluation.namespace, evaluation.name)


def _namespace(body: JsonObject) -> str:
    return str(section(body, "metadata")["namespace"])


def _age(pod: JsonObject) -> tuple[str, str]:
    metadata = section(pod, "metadata")
    return str(metadata["creationTimestamp"]), str(metadata["name"])


def _end(job: JsonObject) -> JobEnd | None:
    conditions = [
        each for each in items(section(job, "status"), "conditions") if each.get("status") == "True"
    ]
    failed = next((each for each in conditions if each.get("type") == "Failed"), None)
    if failed is not None:
        return JobEnd.LATE if failed.get("reason") == LATE else JobEnd.FAILED
    return JobEnd.SUCCEEDED if any(each.get("type") in SUCCESS for each in conditions) else None


def _before(job: JsonObject) -> Counted | None:
    """Return what a Job's annotation tells; None where it is no pair of numbers."""
    try:
        found = json.loads(annotations_of(job).get(SERVED_BEFORE, ""))
    except (ValueError, RecursionError):
        return None
    told: Mapping[str, object] = found if isinstance(found, dict) else {}
    requests, tokens = told.get("requests"), told.get("tokens")
    if not isinstance(requests, int) or not isinstance(tokens, int | float) or isinstance(requests, bool):
        return None
    return Counted(requests, float(tokens)) if 0 <= requests <= MOST and 0 <= tokens <= MOST else None


def _message(pods: Sequence[JsonObject]) -> str:
    """Return the first message that a container left at its end, by the order of the pods' specs."""
    return next((text for pod in pods for text in _messages(pod)), "")


def _messages(pod: JsonObject) -> Iterator[str]:
    statuses = items(section(pod, "status"), "containerStatuses")
    left = {each.get("name"): section(each, "state", "terminated").get("message") for each in statuses}
    for container in items(section(pod, "spec"), "containers"):
        if text := left.get(container.get("name")):
            yield str(text)
