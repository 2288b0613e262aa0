"""Evaluations on a real API server with its Job controller: made once, read truly, gone with their pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from chart.rendering import render
from kvmedic.cluster.trial_pods import UNREADABLE, Evaluations, Trials
from kvmedic.kube.client import Client, Limits
from kvmedic.kube.errors import Conflict
from kvmedic.kube.objects import Ref
from kvmedic.manifests.trial_pod import (
    DIGEST,
    NAME_LENGTH,
    SERVED_BEFORE,
    TRIAL_LABEL,
    Evaluation,
    Owner,
    job_name,
)
from kvmedic.model.evidence import Blocked
from kvmedic.model.trial import Counted, JobEnd, JobSight, Served
from kvmedic.runbooks.compression.accuracy import Evaluation as Seen
from kvmedic.runbooks.compression.accuracy import NotPassed, score_of
from lab.cluster.api import until
from lab.cluster.light import LightCluster

BEFORE = Counted(1, 34.5)
SUBJECT = Served("http://10.0.0.7:8000", "tiny", "fp8", BEFORE)
SCORE = '{"score": 0.57, "samples": 200}'
SECRET = "hunter2"


def a_cron_job(*containers: dict[str, Any], suspend: bool = True, **job: Any) -> dict[str, Any]:
    named = containers or ({"name": "eval"},)
    pod = {
        "containers": [{"image": "registry/eval:1", **each} for each in named],
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 1,
    }
    template = {"metadata": {"labels": {"team": "llm"}}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "gsm8k"},
        "spec": {
            "schedule": "0 0 1 1 *",
            "suspend": suspend,
            "jobTemplate": {"spec": {"template": template, **job}},
        },
    }


@dataclass
class Place:
    """A namespace with a ConfigMap in the place of the resource that evaluations are made for."""

    light: LightCluster
    evaluations: Evaluations
    namespace: str
    owner: Owner

    async def planned(self, cron_job: dict[str, Any], deadline_seconds: int = 600) -> Evaluation:
        self.light.apply(cron_job, self.namespace)
        digest = await self.evaluations.evaluation_digest(self.namespace, "gsm8k")
        assert isinstance(digest, str), digest
        return Evaluation("llm-eval-1", self.namespace, self.owner, "gsm8k", digest, deadline_seconds)

    async def made(self, *containers: dict[str, Any], deadline_seconds: int = 600) -> Evaluation:
        evaluation = await self.planned(a_cron_job(*containers), deadline_seconds)
        assert await self.evaluations.make(evaluation, SUBJECT) == ""
        return evaluation

    def job(self) -> dict[str, Any]:
        return self.light.api.get("Job", "llm-eval-1", self.namespace)

    def pods(self) -> list[dict[str, Any]]:
        return self.light.api.list("Pod", self.namespace)

    def pod(self) -> dict[str, Any]:
        """The Job's pod, once it runs."""

        def running() -> dict[str, Any] | None:
            found = self.pods()
            return found[0] if found and found[0]["status"].get("phase") == "Running" else None

        found = until(running, 30, "the Job's pod runs")
        assert found is not None
        return found

    def finish(self, phase: str, **messages: str) -> None:
        """End the Job's pod, as the kubelet does."""
        pod = self.pod()
        names = [each["name"] for each in reversed(pod["spec"]["containers"])]
        self.end(pod["metadata"]["name"], phase, {name: messages.get(name, "") for name in names})

    def end(self, pod: str, phase: str, messages: Mapping[str, str]) -> None:
        """Write a pod's end with its containers' messages."""
        code = 0 if phase == "Succeeded" else 1
        idle = {"image": "a", "imageID": "", "ready": False, "restartCount": 0}
        statuses = [
            {**idle, "name": name, "state": {"terminated": {"exitCode": code, "message": message}}}
            for name, message in messages.items()
        ]
        status = {"phase": phase, "containerStatuses": statuses}
        self.light.api.patch("Pod", pod, {"status": status}, self.namespace, "status")

    async def delete_all(self, evaluations: Evaluations) -> None:
        """Delete as ticks do, until nothing is there."""
        async with asyncio.timeout(60):
            while await evaluations.delete_evaluations(self.namespace, self.owner.uid):
                await asyncio.sleep(0.05)

    async def ended(self, evaluation: Evaluation) -> JobSight:
        return await self.until(evaluation, lambda seen: seen.end is not None)

    async def until(self, evaluation: Evaluation, holds: Callable[[JobSight], bool]) -> JobSight:
        async with asyncio.timeout(30):
            while True:
                seen = await self.evaluations.look(evaluation)
                if seen is not None and holds(seen):
                    return seen
                await asyncio.sleep(0.05)


@pytest.fixture
def place(light: LightCluster, client: Client, namespace: str) -> Place:
    owner = light.api.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}, namespace
    )
    reference = Owner("v1", "ConfigMap", "owner", owner["metadata"]["uid"])
    return Place(light, Evaluations(client), namespace, reference)


async def test_an_evaluation_that_ends_well_says_its_score_and_what_was_before(place: Place) -> None:
    """Of several containers the first one with a message is read."""
    evaluation = await place.made({"name": "proxy"}, {"name": "eval"}, {"name": "logs"})
    place.pod()
    meanwhile = await place.evaluations.look(evaluation)
    place.finish("Succeeded", logs="uploaded", eval=SCORE)

    seen = await place.ended(evaluation)

    assert meanwhile == JobSight(None, "", BEFORE)
    assert seen == JobSight(JobEnd.SUCCEEDED, SCORE, BEFORE)


async def test_one_that_fails_is_not_repeated(place: Place) -> None:
    evaluation = await place.made()
    place.finish("Failed", eval="no such data set")

    seen = await place.ended(evaluation)

    assert seen == JobSight(JobEnd.FAILED, "no such data set", BEFORE)
    assert len(place.pods()) == 1


async def test_one_whose_time_is_over_is_late(place: Place) -> None:
    evaluation = await place.made(deadline_seconds=1)

    seen = await place.ended(evaluation)

    assert seen.end is JobEnd.LATE


async def test_a_pod_that_only_looks_like_the_jobs_is_not_read(place: Place) -> None:
    evaluation = await place.made()
    own = place.pod()
    forged = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a-forged-one", "labels": own["metadata"]["labels"]},
        "spec": {"containers": [{"name": "eval", "image": "a"}], "nodeName": "nowhere"},
    }
    place.light.api.create(forged, place.namespace)
    place.end("a-forged-one", "Succeeded", {"eval": '{"score": 1.0, "samples": 200}'})
    name = own["metadata"]["name"]

    seen = await place.evaluations.look(evaluation)

    assert name in {each["metadata"]["name"] for each in place.pods()}
    assert seen.message == ""


@dataclass
class JobClient:
    """A client of an API server that holds one Job and its pods."""

    job: dict[str, Any]
    pods: list[dict[str, Any]]

    async def get(self, _: Ref) -> dict[str, Any]:
        return self.job

    async def list(self, *_: object) -> list[dict[str, Any]]:
        return self.pods


GSM8K = Evaluation("llm-eval-1", "serving", Owner("v1", "ConfigMap", "owner", "uid-1"), "gsm8k", "d1", 600)
KEPT = {SERVED_BEFORE: '{"requests": 1, "tokens": 34.5}', DIGEST: "d1"}


async def seen_of(
    conditions: list[tuple[str, str, str]], annotations: dict[str, str] = KEPT, phase: str = "Succeeded"
) -> JobSight | None:
    """What is seen of a Job with these conditions and annotations, and of its pod."""
    entries = [{"type": kind, "status": status, "reason": why} for kind, status, why in conditions]
    ours = {"controller": True, "uid": "uid-1"}
    metadata = {"name": GSM8K.name, "namespace": "serving", "uid": "job-1", "annotations": annotations}
    job = {"metadata": metadata | {"ownerReferences": [ours]}, "status": {"conditions": entries}}
    of_job = [{"controller": True, "uid": "job-1"}]
    ended = {"name": "eval", "state": {"terminated": {"message": SCORE}}}
    pod = {
        "metadata": {"name": "p", "creationTimestamp": "2026-03-01T03:00:00Z", "ownerReferences": of_job},
        "spec": {"containers": [{"name": "eval"}]},
        "status": {"phase": phase, "containerStatuses": [ended]},
    }
    return await Evaluations(JobClient(job, [pod])).look(GSM8K)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("conditions", "end"),
    [
        ([], None),
        ([("Suspended", "True", "")], None),
        ([("Complete", "False", "")], None),
        ([("Failed", "Unknown", "DeadlineExceeded")], None),
        ([("FailureTarget", "True", "BackoffLimitExceeded")], None),
        ([("SuccessCriteriaMet", "True", "CompletionsReached")], JobEnd.SUCCEEDED),
        ([("SuccessCriteriaMet", "True", ""), ("Complete", "True", "")], JobEnd.SUCCEEDED),
        ([("SuccessCriteriaMet", "True", ""), ("Failed", "True", "")], JobEnd.FAILED),
        ([("FailureTarget", "True", ""), ("Failed", "True", "BackoffLimitExceeded")], JobEnd.FAILED),
        ([("Failed", "True", "PodFailurePolicy")], JobEnd.FAILED),
        ([("Failed", "True", "DeadlineExceeded")], JobEnd.LATE),
    ],
)
async def test_its_conditions_say_how_it_ended(
    conditions: list[tuple[str, str, str]], end: JobEnd | None
) -> None:
    assert await seen_of(conditions) == JobSight(end, SCORE, BEFORE)


async def test_a_complete_one_goes_on_while_its_pod_does() -> None:
    seen = await seen_of([("Complete", "True", "")], phase="Running")

    assert seen.end is None


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {DIGEST: "d1"},
        KEPT | {DIGEST: "d2"},
        {SERVED_BEFORE: KEPT[SERVED_BEFORE]},
        *(
            KEPT | {SERVED_BEFORE: text}
            for text in (
                "",
                "[",
                "[" * 100_000,
                "[1, 34.5]",
                "null",
                '{"requests": 1}',
                '{"requests": 1.0, "tokens": 1}',
                '{"requests": true, "tokens": 1}',
                '{"requests": "1", "tokens": 1}',
                '{"requests": -1, "tokens": 1}',
                '{"requests": 1, "tokens": NaN}',
                '{"requests": 1, "tokens": Infinity}',
                '{"requests": 1, "tokens": -1}',
                f'{{"requests": 1, "tokens": 1{"0" * 400}}}',
                f'{{"requests": 1{"0" * 400}, "tokens": 1}}',
            )
        ),
    ],
    ids=lambda annotations: str(annotations)[:80],
)
async def test_one_that_does_not_say_what_was_before_never_passes(annotations: dict[str, str]) -> None:
    seen = await seen_of([("Complete", "True", "")], annotations)

    assert seen is UNREADABLE
    assert seen.end is not None
    assert isinstance(score_of(Seen(seen.end, SCORE, 200, 5000.0), None), NotPassed)


async def test_a_second_creation_finds_the_first_and_changes_nothing(place: Place) -> None:
    evaluation = await place.made()
    first = place.job()["metadata"]
    place.light.apply(a_cron_job({"name": "another"}), place.namespace)

    again = await place.evaluations.make(evaluation, replace(SUBJECT, counted=Counted(9, 9.0)))

    assert again == ""
    assert place.job()["metadata"]["uid"] == first["uid"]
    seen = await place.evaluations.look(evaluation)
    assert seen.before == BEFORE


async def test_of_two_that_make_it_at_once_one_does_and_both_are_content(place: Place) -> None:
    evaluation = await place.planned(a_cron_job())

    made = await asyncio.gather(*(place.evaluations.make(evaluation, SUBJECT) for _ in range(4)))

    assert made == ["", "", "", ""]
    assert len(place.light.api.list("Job", place.namespace)) == 1


async def test_a_job_of_somebody_else_is_neither_taken_nor_removed(place: Place) -> None:
    evaluation = await place.planned(a_cron_job())
    pod = {"containers": [{"name": "a", "image": "a"}], "restartPolicy": "Never"}
    metadata = {"name": evaluation.name, "labels": {TRIAL_LABEL: place.owner.uid}}
    theirs = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"template": {"spec": pod}},
    }
    place.light.api.create(theirs, place.namespace)

    with pytest.raises(Conflict):
        await place.evaluations.make(evaluation, SUBJECT)
    with pytest.raises(Conflict):
        await place.evaluations.look(evaluation)
    assert await place.evaluations.delete_evaluations(place.namespace, place.owner.uid) == ()
    assert place.job()["metadata"]["name"] == evaluation.name


async def test_deleting_is_done_when_the_pods_are_gone_too(place: Place) -> None:
    evaluation = await place.made()
    place.pod()

    deleted = await place.evaluations.delete_evaluations(place.namespace, place.owner.uid)
    await place.delete_all(place.evaluations)

    assert deleted == (evaluation.name,)
    assert place.pods() == []
    assert await place.evaluations.look(evaluation) is None


async def test_a_job_is_not_gone_before_its_pods(place: Place) -> None:
    await place.made()
    name = place.pod()["metadata"]["name"]
    hold = {"metadata": {"finalizers": ["example.com/hold"]}}
    place.light.api.patch("Pod", name, hold, place.namespace)
    async with asyncio.timeout(30):
        while "deletionTimestamp" not in place.pods()[0]["metadata"]:
            await place.evaluations.delete_evaluations(place.namespace, place.owner.uid)
            await asyncio.sleep(0.05)

    still = await place.evaluations.delete_evaluations(place.namespace, place.owner.uid)
    place.light.api.patch("Pod", name, {"metadata": {"finalizers": None}}, place.namespace)

    assert still == ("llm-eval-1",)
    until(lambda: not place.light.api.list("Job", place.namespace), 30, "the Job is gone")


async def test_deleting_trial_pods_leaves_the_jobs_pods_alone(place: Place) -> None:
    await place.made()
    name = place.pod()["metadata"]["name"]

    deleted = await Trials(place.evaluations.client).delete_trials(place.namespace, place.owner.uid)

    assert deleted == ()
    assert "deletionTimestamp" not in place.light.api.get("Pod", name, place.namespace)["metadata"]


async def test_the_digest_holds_while_nobody_edits_the_template(place: Place) -> None:
    planned = await place.planned(a_cron_job())
    place.light.api.patch("CronJob", "gsm8k", {"spec": {"schedule": "0 0 2 2 *"}}, place.namespace)

    assert await place.evaluations.evaluation_digest(place.namespace, "gsm8k") == planned.digest

    place.light.apply(a_cron_job({"name": "eval", "args": ["--few"]}), place.namespace)
    why = await place.evaluations.make(planned, SUBJECT)

    assert why == "CronJob/gsm8k was edited since the evaluation was planned"
    assert await place.evaluations.look(planned) is None


async def test_without_a_suspended_cron_job_there_is_no_evaluation(place: Place) -> None:
    planned = await place.planned(a_cron_job())

    for suspended, says in ((False, "set spec.suspend: true"), (None, "CronJob/gsm8k is not there")):
        if suspended is None:
            place.light.api.delete("CronJob", "gsm8k", place.namespace)
        else:
            place.light.apply(a_cron_job(suspend=suspended), place.namespace)
        refused = await place.evaluations.evaluation_digest(place.namespace, "gsm8k")
        why = await place.evaluations.make(planned, SUBJECT)

        assert isinstance(refused, Blocked)
        assert refused.message == why
        assert says in why


async def test_a_name_of_the_longest_kind_is_taken_and_no_longer_one(place: Place) -> None:
    planned = await place.planned(a_cron_job())
    name = job_name("x" * 250, "eval-20260301-030000-1")

    assert len(name) == NAME_LENGTH
    assert await place.evaluations.make(replace(planned, name=name), SUBJECT) == ""
    assert "422" in await place.evaluations.make(replace(planned, name=f"x{name}"), SUBJECT)


async def test_what_the_api_server_refuses_is_reported_without_the_job(place: Place) -> None:
    cron_job = a_cron_job({"name": "eval", "env": [{"name": "TOKEN", "value": SECRET}]})
    planned = await place.planned(cron_job)

    why = await place.evaluations.make(replace(planned, name="Not A Name"), SUBJECT)

    assert "422" in why
    assert SECRET not in why


@asynccontextmanager
async def with_rights(place: Place, **probe: bool) -> AsyncIterator[Evaluations]:
    """Evaluations made with the chart's ServiceAccount and rights."""
    values = {"watchNamespaces": [place.namespace], "probe": probe}
    made = render(values, namespace=place.namespace)
    kinds = {"ServiceAccount", "Role", "RoleBinding"}
    place.light.apply([each for (kind, _), each in made.items() if kind in kinds], place.namespace)
    configuration = Configuration(host=place.light.url, ssl_ca_cert=str(place.light.ca_file))
    token = place.light.api.token_for("kvmedic", place.namespace)
    configuration.api_key["BearerToken"] = f"Bearer {token}"
    async with Client(configuration, Limits()) as client:
        yield Evaluations(client)


async def test_the_charts_rights_suffice_where_evaluations_are_switched_on(place: Place) -> None:
    planned = await place.planned(a_cron_job())

    async with with_rights(place, trialPods=True, evaluations=True) as evaluations:
        assert await evaluations.evaluation_digest(place.namespace, "gsm8k") == planned.digest
        assert await evaluations.make(planned, SUBJECT) == ""
        seen = await evaluations.look(planned)
        deleted = await evaluations.delete_evaluations(place.namespace, place.owner.uid)
        await place.delete_all(evaluations)

    assert seen == JobSight(None, "", BEFORE)
    assert deleted == (planned.name,)
    assert place.light.api.list("Job", place.namespace) == []


async def test_where_they_are_switched_off_none_can_be_made_and_it_is_said(place: Place) -> None:
    async with with_rights(place, trialPods=True) as evaluations:
        refused = await evaluations.evaluation_digest(place.namespace, "gsm8k")

    assert isinstance(refused, Blocked)
    assert "403" in refused.message
