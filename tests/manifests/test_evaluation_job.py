"""An evaluation's Job: what the team's CronJob says, once, in one pod, on the trial pod."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.manifests.trial_pod import (
    DIGEST,
    NAME_LENGTH,
    SERVED_BEFORE,
    TRIAL_LABEL,
    Evaluation,
    Owner,
    digest_of,
    evaluation_job,
    job_name,
)
from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.model.trial import Counted, Served

OWNER = Owner("kvmedic.io/v1alpha1", "KVRemediation", "llm", "uid-1")
SUBJECT = Served("http://10.0.0.7:8000", "tiny", "fp8", Counted(1, 34.0))
OURS = {
    "OPENAI_BASE_URL": "http://10.0.0.7:8000/v1",
    "KVMEDIC_URL": "http://10.0.0.7:8000",
    "KVMEDIC_MODEL": "tiny",
}
NEVER = 10**9


def container(name: str = "eval", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "registry/eval:1", "args": ["--model=$(KVMEDIC_MODEL)"], **fields}


def a_cron_job(pod: dict[str, Any] | None = None, suspended: object = True, **job: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [container()], "restartPolicy": "OnFailure", **(pod or {})}}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "gsm8k", "namespace": "serving"},
        "spec": {
            "schedule": "0 0 1 1 *",
            "suspend": suspended,
            "jobTemplate": {
                "metadata": {"labels": {"team": "llm"}, "annotations": {"note": "ours"}},
                "spec": {"template": template, **job},
            },
        },
    }


def an_evaluation(cron_job: dict[str, Any], deadline_seconds: int = 1800) -> Evaluation:
    digest = digest_of(cron_job)
    assert isinstance(digest, str), digest
    return Evaluation("llm-eval-1", "serving", OWNER, "gsm8k", digest, deadline_seconds)


def job_of(
    cron_job: dict[str, Any], subject: Served = SUBJECT, deadline_seconds: int = 1800
) -> dict[str, Any]:
    made = evaluation_job(cron_job, an_evaluation(cron_job, deadline_seconds), subject)
    assert not isinstance(made, Blocked), made
    return made


def variables(made: dict[str, Any]) -> list[tuple[str, str]]:
    (found,) = made["spec"]["template"]["spec"]["containers"]
    return [(each["name"], each.get("value", "")) for each in found["env"]]


def test_it_is_instantiated_as_kubectl_does_and_belongs_to_the_resource() -> None:
    cron_job = a_cron_job()

    metadata = job_of(cron_job)["metadata"]

    assert (metadata["name"], metadata["namespace"]) == ("llm-eval-1", "serving")
    assert metadata["labels"] == {"team": "llm", TRIAL_LABEL: "uid-1"}
    assert metadata["annotations"] == {
        "note": "ours",
        "cronjob.kubernetes.io/instantiate": "manual",
        DIGEST: digest_of(cron_job),
        SERVED_BEFORE: json.dumps({"requests": 1, "tokens": 34.0}),
    }
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("KVRemediation", "llm", "uid-1")
    assert owner["controller"]
    assert not owner["blockOwnerDeletion"]


def test_it_runs_once_at_once_and_stays_until_it_is_removed() -> None:
    asked = {"backoffLimit": 6, "ttlSecondsAfterFinished": 5, "suspend": True, "completions": 1}

    spec = job_of(a_cron_job(**asked))["spec"]

    assert (spec["backoffLimit"], spec["completions"], spec["parallelism"]) == (0, 1, 1)
    assert not {"ttlSecondsAfterFinished", "suspend"} & set(spec)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(("own", "least"), [(None, 1800), (1799, 1799), (1800, 1800), (1801, 1800)])
def test_it_ends_with_the_earlier_of_both_deadlines(own: int | None, least: int) -> None:
    cron_job = a_cron_job() if own is None else a_cron_job(activeDeadlineSeconds=own)

    assert job_of(cron_job)["spec"]["activeDeadlineSeconds"] == least


def test_its_pods_are_not_taken_for_trial_pods() -> None:
    cron_job = a_cron_job()
    cron_job["spec"]["jobTemplate"]["spec"]["template"]["metadata"] = {"labels": {"team": "llm"}}

    assert job_of(cron_job)["spec"]["template"]["metadata"]["labels"] == {"team": "llm"}


def test_every_container_first_gets_where_the_trial_pod_serves() -> None:
    pod = {"initContainers": [container("wait")], "containers": [container("eval"), container("logs")]}

    made = job_of(a_cron_job(pod))["spec"]["template"]["spec"]

    for each in (*made["initContainers"], *made["containers"]):
        assert {variable["name"]: variable["value"] for variable in each["env"]} == OURS


def test_what_the_team_sets_stands_after_it_and_cannot_take_its_place() -> None:
    secret = {"name": "KVMEDIC_URL", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    env = [
        {"name": "OPENAI_BASE_URL", "value": "https://elsewhere"},
        {"name": "URL", "value": "$(KVMEDIC_URL)/v1"},
        secret,
    ]

    made = variables(job_of(a_cron_job({"containers": [container(env=env)]})))

    assert made == [*OURS.items(), ("URL", "$(KVMEDIC_URL)/v1")]


def expanded(text: str) -> str:
    """What the kubelet makes of a value where `SECRET` is a variable."""
    known = {"$$": "$", "$(SECRET)": "hunter2"}
    return re.sub(r"\$\$|\$\(SECRET\)", lambda found: known[found.group()], text)


@given(model=st.text(st.sampled_from("$()SECRT"), max_size=20) | st.just("$(SECRET)"))
def test_a_models_name_is_a_name_and_refers_to_no_variable(model: str) -> None:
    made = dict(variables(job_of(a_cron_job(), Served("http://a", model, "", Counted(0, 0.0)))))

    assert expanded(made["KVMEDIC_MODEL"]) == model


@pytest.mark.parametrize(
    ("cron_job", "says"),
    [
        (a_cron_job(suspended=False), "set spec.suspend: true so that it runs for the gate alone"),
        (a_cron_job(suspended=None), "set spec.suspend: true"),
        (a_cron_job(completions=2), "spec.completions is 2: set 1"),
        (a_cron_job(parallelism=2), "spec.parallelism is 2: set 1"),
        (a_cron_job(parallelism=0), "spec.parallelism is 0: set 1"),
        (a_cron_job(completionMode="Indexed", backoffLimitPerIndex=0), "spec.backoffLimitPerIndex"),
        (a_cron_job(completionMode="Indexed", maxFailedIndexes=1), "spec.maxFailedIndexes"),
        (a_cron_job(podFailurePolicy={"rules": [{"action": "Ignore"}]}), "spec.podFailurePolicy repeats"),
        (
            a_cron_job(podFailurePolicy={"rules": [{"action": "FailJob"}, {"action": "FailIndex"}]}),
            "spec.podFailurePolicy repeats",
        ),
        (a_cron_job(manualSelector=True), "spec.selector keeps"),
        (a_cron_job(selector={"matchLabels": {"a": "b"}}), "spec.selector keeps"),
        (a_cron_job(managedBy="kueue.x-k8s.io/multikueue"), "spec.managedBy leaves"),
        (a_cron_job(template={"metadata": {"labels": {TRIAL_LABEL: "x"}}}), f"has the label {TRIAL_LABEL}"),
    ],
)
def test_a_cron_job_that_does_not_fit_is_refused_by_field_and_fix(
    cron_job: dict[str, Any], says: str
) -> None:
    refused = digest_of(cron_job)

    assert isinstance(refused, Blocked)
    assert refused.message.startswith("CronJob/gsm8k: ")
    assert says in refused.message
    again = evaluation_job(cron_job, Evaluation("a", "b", OWNER, "gsm8k", "0", 1), SUBJECT)
    assert again == refused


@pytest.mark.parametrize(
    "job",
    [
        {"completions": 1, "parallelism": 1},
        {"managedBy": "kubernetes.io/job-controller"},
        {"podFailurePolicy": {"rules": [{"action": "FailJob"}, {"action": "Count"}]}},
        {"completionMode": "Indexed", "completions": 1, "successPolicy": {"rules": [{"succeededCount": 1}]}},
    ],
)
def test_what_runs_one_pod_once_fits(job: dict[str, Any]) -> None:
    made = job_of(a_cron_job(**job))["spec"]

    assert {key: made[key] for key in job} == job


def test_one_that_was_edited_since_is_refused() -> None:
    planned, edited = an_evaluation(a_cron_job()), a_cron_job({"containers": [container(args=["--few"])]})

    refused = evaluation_job(edited, planned, SUBJECT)

    assert refused == Blocked(
        Reason.GATE_MISSING, "CronJob/gsm8k was edited since the evaluation was planned"
    )


def test_only_the_job_template_makes_the_digest() -> None:
    cron_job, other = a_cron_job(), a_cron_job()
    other["spec"] |= {"schedule": "0 0 2 2 *", "failedJobsHistoryLimit": 9}
    other["metadata"]["resourceVersion"] = "7"

    assert digest_of(other) == digest_of(cron_job)
    assert digest_of(a_cron_job(activeDeadlineSeconds=5)) != digest_of(cron_job)


_NAMES = st.sampled_from(["A", "URL", "OPENAI_BASE_URL", "KVMEDIC_MODEL"])
_VARIABLES = st.lists(st.fixed_dictionaries({"name": _NAMES, "value": st.sampled_from(["", "x", "$(A)"])}))
_CONTAINERS = st.builds(
    container,
    name=st.sampled_from(["eval", "logs"]),
    command=st.lists(st.text(max_size=5), max_size=3),
    env=_VARIABLES,
    resources=st.just({"limits": {"cpu": "1"}}),
    volumeMounts=st.just([{"name": "data", "mountPath": "/data"}]),
)
_PODS = st.fixed_dictionaries(
    {"containers": st.lists(_CONTAINERS, min_size=1, max_size=3)},
    optional={
        "initContainers": st.lists(_CONTAINERS, max_size=2),
        "volumes": st.just([{"name": "data", "secret": {"secretName": "keys"}}]),
        "serviceAccountName": st.just("evaluator"),
        "nodeSelector": st.dictionaries(st.sampled_from("ab"), st.sampled_from("cd")),
    },
)
_BOUNDS = {
    "backoffLimit": st.integers(0, 9),
    "activeDeadlineSeconds": st.integers(1, NEVER),
    "ttlSecondsAfterFinished": st.integers(0, 9),
    "suspend": st.booleans(),
    "completions": st.just(1),
    "parallelism": st.just(1),
}


@given(pod=_PODS, bounds=st.fixed_dictionaries({}, optional=_BOUNDS), deadline=st.integers(1, NEVER))
def test_nothing_else_of_the_template_changes(
    pod: dict[str, Any], bounds: dict[str, Any], deadline: int
) -> None:
    cron_job = a_cron_job(pod, completionMode="NonIndexed", **bounds)
    before = copy.deepcopy(cron_job)

    made = job_of(cron_job, deadline_seconds=deadline)["spec"]

    assert cron_job == before
    given_spec = before["spec"]["jobTemplate"]["spec"]
    assert {k: v for k, v in made.items() if k not in _BOUNDS and k != "template"} == {
        k: v for k, v in given_spec.items() if k not in _BOUNDS and k != "template"
    }
    assert made["activeDeadlineSeconds"] == min(deadline, bounds.get("activeDeadlineSeconds", deadline))
    theirs = given_spec["template"]["spec"] | {"restartPolicy": "Never"}
    for kind in ("initContainers", "containers"):
        for each in theirs.get(kind, ()):
            left = [variable for variable in each["env"] if variable["name"] not in OURS]
            each["env"] = [*({"name": name, "value": text} for name, text in OURS.items()), *left]
    assert made["template"] == {"spec": theirs}


@given(
    resource=st.from_regex(
        r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?)*", fullmatch=True
    ),
    tail=st.from_regex(r"eval-[0-9]{8}-[0-9]{6}(-[0-9])?", fullmatch=True),
)
def test_a_jobs_name_fits_a_label_and_ends_in_what_distinguishes_it(resource: str, tail: str) -> None:
    made = job_name(resource, tail)

    assert len(made) <= NAME_LENGTH
    assert made.endswith(f"-{tail}")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", made)
