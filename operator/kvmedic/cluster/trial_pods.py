"""Trial pods and evaluations in a cluster: made, looked at, and removed by nobody but their resource.

Evaluations are Jobs made of suspended CronJobs, and go with their pods. Whatever cannot be read of a Job
counts as a failed evaluation, so that no gate opens by it. A manifest may hold secrets, so the server's
words on one that it refuses are never repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

from kvmedic.cluster.containers.exit_causes import last_words_of
from kvmedic.cluster.fronts import selects
from kvmedic.cluster.snapshot import Frame, pod_of
from kvmedic.engines import profiles_for
from kvmedic.kube.errors import Call, Conflict, Refused
from kvmedic.kube.objects import (
    CLAIMS,
    CRON_JOBS,
    JOBS,
    PODS,
    SERVICES,
    JsonObject,
    Preconditions,
    Propagation,
    Ref,
    Resource,
    annotations_of,
    controller_uid,
    is_finished,
    items,
    labels_of,
    note_on,
    section,
    uid_of,
)
from kvmedic.manifests.trial_pod import (
    DIGEST,
    SERVED_BEFORE,
    TRIAL_LABEL,
    Evaluation,
    Trial,
    digest_of,
    evaluation_job,
)
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Pod, Rotation
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import TargetRef
from kvmedic.model.trial import Counted, JobEnd, JobSight, Served
from kvmedic.rollout.trial import LastWords

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

ONE_AT_A_TIME = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})
"""Access modes under which a second pod may not get the volume, or only on the same node."""
_NOWHERE = Rotation("", "", (), effective=False, in_selector=False)
"""No Service leads to a trial pod, so that it is in no rotation."""


@dataclass(frozen=True, slots=True)
class Trials:
    """Trial pods in one cluster."""

    client: Client

    def explain_refusal(self) -> str:
        """Return nothing: trial pods are made."""
        return ""

    async def look(self, trial: Trial, target: TargetRef) -> Pod | None:
        """Return the pod of a trial, None where there is none.

        Raises:
            Conflict: a pod of that name is somebody else's.
        """
        body = await _get_own(self.client, Ref(PODS, trial.namespace, trial.name), trial.owner.uid)
        profiles = profiles_for(target.engine)
        frame = Frame(
            "", target.container, _NOWHERE, {}, profiles, target.first_port, engine_ports=target.ports
        )
        return None if body is None else pod_of(body, frame)

    async def last_words(self, namespace: str, pod: Pod, refusals: Sequence[re.Pattern[str]]) -> LastWords:
        """Return what the log of a trial pod that ended says of it; that it cannot be read is a value."""
        return await last_words_of(self.client, namespace, pod, refusals)

    async def make(self, trial: Trial, manifest: JsonObject) -> str:
        """Make a trial's pod; return why the API server will not have it, or nothing.

        One that is there already is what was asked for.

        Raises:
            Conflict: a pod of that name is somebody else's.
        """
        ref = Ref(PODS, trial.namespace, trial.name)
        try:
            for service in await self.client.list(SERVICES, trial.namespace):
                if selects(service, labels_of(manifest)):
                    name = section(service, "metadata").get("name")
                    return f"Service {name} selects labels that the trial pod needs to start: it would serve"
            await self.client.create(ref, manifest)
        except Conflict:
            await _get_own(self.client, ref, trial.owner.uid)
        except Refused as error:
            return str(error)
        return ""

    async def delete_trials(self, namespace: str, owner_uid: str, but: str = "") -> tuple[str, ...]:
        """Remove all trial pods of a resource but one; return the names of those that were there."""
        return await _delete_own(self.client, PODS, namespace, owner_uid, but=but)

    async def held_claims(self, namespace: str, template: Mapping[str, Any]) -> frozenset[str]:
        """Return those PersistentVolumeClaims of a template that are not for several pods.

        A claim that is not there counts as one of them.
        """
        claims = [
            section(volume, "persistentVolumeClaim") for volume in items(section(template, "spec"), "volumes")
        ]
        held: set[str] = set()
        for name in sorted({str(claim["claimName"]) for claim in claims if claim}):
            claim = await self.client.get(Ref(CLAIMS, namespace, name))
            modes = section(claim or {}, "spec").get("accessModes") or ()
            if not modes or ONE_AT_A_TIME & set(modes):
                held.add(name)
        return frozenset(held)


async def _get_own(client: Client, ref: Ref, owner_uid: str) -> JsonObject | None:
    """Return what was made for a resource's trial, None where it is not there.

    Raises:
        Conflict: something of that name is somebody else's.
    """
    body = await client.get(ref)
    if body is not None and controller_uid(body) != owner_uid:
        raise Conflict(Call("get", ref.path), None, "what has that name is not ours")
    return body


async def _delete_own(
    client: Client,
    resource: Resource,
    namespace: str,
    owner_uid: str,
    propagation: Propagation = Propagation.DEFAULT,
    but: str = "",
) -> tuple[str, ...]:
    """Remove what was made for a resource's trials; return the names of what was there.

    One that changed in the middle, as a pod does while it starts and a Job whenever its pod moves on, is left
    to the next time.
    """
    found: list[str] = []
    for body in await client.list(resource, namespace, f"{TRIAL_LABEL}={owner_uid}"):
        metadata = section(body, "metadata")
        name = str(metadata["name"])
        if controller_uid(body) != owner_uid or name == but:
            continue
        found.append(name)
        if "deletionTimestamp" not in metadata:
            preconditions = Preconditions(uid_of(body), str(metadata["resourceVersion"]))
            with suppress(Conflict):
                ref = Ref(resource, str(metadata["namespace"]), name)
                await client.delete(ref, preconditions, propagation)
    return tuple(sorted(found))


JOB_NAME = "batch.kubernetes.io/job-name"
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
"""Labels of a Job's pods (batch/v1 types.go, JobNameLabel, ControllerUidLabel)."""
SUCCESS = frozenset({"Complete", "SuccessCriteriaMet"})
"""Conditions of a Job that can only end well."""
LATE = "DeadlineExceeded"
"""Reason of a Job's failure after its activeDeadlineSeconds."""
MOST = 2**53
"""Largest number that an engine's page shows exactly; infinities and NaN are no smaller."""
UNREADABLE = JobSight(JobEnd.FAILED, "", Counted(0, nan))
"""A Job that does not say what the trial pod had done before, or of which template it was made: it failed,
whatever it says itself."""


@dataclass(frozen=True, slots=True)
class Evaluations:
    """Evaluations in one cluster."""

    client: Client

    def explain_refusal(self) -> str:
        """Return nothing: evaluations are made."""
        return ""

    async def evaluation_digest(self, namespace: str, cron_job: str) -> str | Blocked:
        """Return the digest of a CronJob's Job template, or why no evaluation can be made of it."""
        body = await self._cron_job(namespace, cron_job)
        return body if isinstance(body, Blocked) else digest_of(body)

    async def look(self, evaluation: Evaluation) -> JobSight | None:
        """Return how an evaluation's Job stands, None where there is none.

        A Job that does not say what was before, or was made of another template, counts as failed.

        Raises:
            Conflict: a Job of that name is somebody else's.
        """
        ref = Ref(JOBS, evaluation.namespace, evaluation.name)
        body = await _get_own(self.client, ref, evaluation.owner.uid)
        if body is None:
            return None
        before = _read_counts_before(body)
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
        """
        ref = Ref(JOBS, evaluation.namespace, evaluation.name)
        if await _get_own(self.client, ref, evaluation.owner.uid) is not None:
            return ""
        cron_job = await self._cron_job(evaluation.namespace, evaluation.cron_job)
        if isinstance(cron_job, Blocked):
            return cron_job.message
        manifest = evaluation_job(cron_job, evaluation, subject)
        if isinstance(manifest, Blocked):
            return manifest.message
        try:
            await self.client.create(ref, manifest)
        except Conflict:
            if await _get_own(self.client, ref, evaluation.owner.uid) is None:
                raise
        except Refused as error:
            return str(error)
        return ""

    async def delete_evaluations(self, namespace: str, owner_uid: str) -> tuple[str, ...]:
        """Remove all evaluations of a resource with their pods; return the names of those that were there.

        A Job is there until its pods are gone.
        """
        return await _delete_own(self.client, JOBS, namespace, owner_uid, Propagation.FOREGROUND)

    async def _cron_job(self, namespace: str, name: str) -> JsonObject | Blocked:
        try:
            body = await self.client.get(Ref(CRON_JOBS, namespace, name))
        except Refused as error:
            return Blocked(Reason.GATE_MISSING, str(error))
        advice = f"CronJob/{name} is not there: make it, with spec.suspend: true"
        return Blocked(Reason.GATE_MISSING, advice) if body is None else body

    async def _pods(self, job: JsonObject) -> list[JsonObject]:
        """Return a Job's own pods, the oldest first."""
        metadata, uid = section(job, "metadata"), uid_of(job)
        selector = f"{JOB_NAME}={metadata['name']},{CONTROLLER_UID}={uid}"
        found = await self.client.list(PODS, str(metadata["namespace"]), selector)
        by_age = sorted(
            found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])
        )
        return [pod for pod in by_age if controller_uid(pod) == uid]


def _end(job: JsonObject) -> JobEnd | None:
    conditions = [
        each for each in items(section(job, "status"), "conditions") if each.get("status") == "True"
    ]
    failed = next((each for each in conditions if each.get("type") == "Failed"), None)
    if failed is not None:
        return JobEnd.LATE if failed.get("reason") == LATE else JobEnd.FAILED
    return JobEnd.SUCCEEDED if any(each.get("type") in SUCCESS for each in conditions) else None


def _read_counts_before(job: JsonObject) -> Counted | None:
    """Return what a Job's annotation says; None where it is no pair of numbers."""
    note = note_on(job, SERVED_BEFORE)
    requests, tokens = note.get("requests"), note.get("tokens")
    if not isinstance(requests, int) or not isinstance(tokens, int | float) or isinstance(requests, bool):
        return None
    return Counted(requests, float(tokens)) if 0 <= requests <= MOST and 0 <= tokens <= MOST else None


def _message(pods: Sequence[JsonObject]) -> str:
    """Return the first message that a container left at its end, by the order of the pods' specs."""
    for pod in pods:
        statuses = items(section(pod, "status"), "containerStatuses")
        left = {each.get("name"): section(each, "state", "terminated").get("message") for each in statuses}
        for container in items(section(pod, "spec"), "containers"):
            if text := left.get(container.get("name")):
                return str(text)
    return ""
