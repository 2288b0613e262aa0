"""A trial pod: a target's pod template, alone, for a limited time, cut off from remote KV stores.

No Service selects it. It never restarts, evicts nobody, ends by itself and goes with its resource. With the
fleet's connector it would store blocks where the fleet reads: what cannot be taken off is refused by name.
The engine's API key is secret: never print or store it.

An evaluation of it is the Job that a team's suspended CronJob describes. What the team wrote stays but for
what bounds the Job: one pod, once, for a limited time. A template that wants more is refused by field name.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvmedic.manifests.engine_file import Configuration
from kvmedic.manifests.errors import ManifestError
from kvmedic.manifests.flags import parse_line, remove_option
from kvmedic.manifests.invocation import NotAnEngine, invocation_of, version_of
from kvmedic.manifests.size_limits import Budget
from kvmedic.manifests.variables import environment_of
from kvmedic.model.edits import containers_of
from kvmedic.model.engine import Engine, EngineProfile, RemoteCache
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import template_hash
from kvmedic.model.reasons import Reason
from kvmedic.model.trial import Served

TRIAL_LABEL = "kvmedic.io/trial"
"""The label of a trial pod, and one of an evaluation's Job, not of its pods; its value is the uid of the
resource that it is made for."""
PRIORITY_CLASS = "kvmedic-trial"
"""Its PriorityClass must be in the cluster, and must never preempt (`preemptionPolicy: Never`)."""
GRACE_SECONDS = 1
"""Between SIGTERM and the end: a trial serves nobody."""
KEPT_LABELS = (
    "azure.workload.identity/",
    "aadpodidbinding",
    "gke-gcsfuse/",
    "iam.",
    "eks.amazonaws.com/",
    "vault.hashicorp.com/",
    "sidecar.istio.io/",
    "istio.io/",
    "linkerd.io/",
    "k8s.v1.cni.cncf.io/",
    "kai.scheduler/queue",
    "runai/queue",
    "yunikorn.apache.org/queue",
)
"""Beginnings of labels by which webhooks and schedulers let a pod in and equip it: identity, volumes,
networks, sidecars, queues. A list and no rule: routers find replicas by labels that no object names."""
DROPPED_ANNOTATIONS = (
    "kvmedic.io/",
    "kubectl.kubernetes.io/",
    "deployment.kubernetes.io/",
    "controller.kubernetes.io/",
    "prometheus.io/",
    "ad.datadoghq.com/",
    "external-dns.alpha.kubernetes.io/",
    "consul.hashicorp.com/",
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/",
    "pod-group.scheduling.",
    "kueue.x-k8s.io/",
)
"""Beginnings of annotations that make a pod one of the fleet for others: who scrapes it, names it in DNS or
in a mesh's catalogue, counts it in a group; and notes of controllers. Any other may be needed to start."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The resource that a trial is made for."""

    api_version: str
    kind: str
    name: str
    uid: str

    def reference(self) -> dict[str, Any]:
        """Return the reference by which an object goes with its owner, and does not hold it up."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial."""

    name: str
    """Of the pod; the same for the same trial, so that a second creation finds the first."""
    namespace: str
    owner: Owner
    deadline_seconds: int
    """After that the pod is ended by the kubelet, whatever became of everybody else."""


def trial_pod(
    template: Mapping[str, Any], trial: Trial, held_claims: frozenset[str] = frozenset()
) -> dict[str, Any] | Blocked:
    """Return the manifest of a trial pod.

    Args:
        template: a pod template as the API server returns it, with the change under test where there is one.
        held_claims: PersistentVolumeClaims of the namespace that only one node or pod may use at a time.
    """
    spec = copy.deepcopy(dict(template.get("spec") or {}))
    for why in _find_blockers(spec, held_claims):
        return Blocked(Reason.TRIAL_IMPOSSIBLE, why)
    _cut_shared_claims(spec)
    for name in ("priority", "preemptionPolicy"):
        spec.pop(name, None)
    spec |= {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": trial.deadline_seconds,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "priorityClassName": PRIORITY_CLASS,
    }
    given = template.get("metadata") or {}
    labels = {key: text for key, text in (given.get("labels") or {}).items() if key.startswith(KEPT_LABELS)}
    notes = given.get("annotations") or {}
    annotations = {key: text for key, text in notes.items() if not key.startswith(DROPPED_ANNOTATIONS)}
    metadata: dict[str, Any] = {
        "name": trial.name,
        "namespace": trial.namespace,
        "labels": {**labels, TRIAL_LABEL: trial.owner.uid},
        "ownerReferences": [trial.owner.reference()],
    }
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _shared_claims(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of resource claims that all pods of a template share, with the claim's own name."""
    claims = spec.get("resourceClaims") or ()
    return {each["name"]: each["resourceClaimName"] for each in claims if each.get("resourceClaimName")}


def _claimed_names(container: Mapping[str, Any]) -> list[str]:
    """Return the names of the resource claims that a container uses."""
    return [each.get("name") for each in (container.get("resources") or {}).get("claims") or ()]


def _cut_shared_claims(spec: dict[str, Any]) -> None:
    """Take off the devices that are the fleet's own; those of a template are made for each pod."""
    shared = _shared_claims(spec)
    if not shared:
        return
    spec["resourceClaims"] = [each for each in spec["resourceClaims"] if each["name"] not in shared]
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        if _claimed_names(container):
            kept = [each for each in container["resources"]["claims"] if each.get("name") not in shared]
            container["resources"]["claims"] = kept


def _lost_device(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield which container would have no device of its own without those that the fleet shares."""
    shared = _shared_claims(spec)
    for container in spec.get("containers") or ():
        names = _claimed_names(container)
        devices = [name for name in (container.get("resources") or {}).get("limits") or {} if "/" in name]
        if names and not devices and all(name in shared for name in names):
            yield (
                f"container {container.get('name')} has its device by ResourceClaim {shared[names[0]]}, "
                "which is the fleet's own: name a resourceClaimTemplateName, of which each pod gets one"
            )


def _find_blockers(spec: Mapping[str, Any], held_claims: frozenset[str]) -> Iterator[str]:
    """Yield what would keep a second pod of this template from running, or let it disturb the others."""
    if spec.get("hostNetwork"):
        yield "the template uses its host's network, where a second engine would take the same ports"
    if spec.get("nodeName"):
        yield f"the template names its node ({spec['nodeName']}), past the scheduler that knows what is free"
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                name, number = container.get("name"), port["hostPort"]
                yield f"container {name} takes port {number} of its host (hostPort), which only one pod can"
    yield from _lost_device(spec)
    for volume in spec.get("volumes") or ():
        name, claim = volume.get("name"), (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim in held_claims:
            yield f"volume {name} is PersistentVolumeClaim/{claim}, which is not for several pods"


def api_key_of(template: Mapping[str, object], profile: EngineProfile) -> str:
    """Return a key that the engine of a pod template takes; empty where there is none in plain text.

    The command line beats the environment, and of several keys each is as good.
    """
    budget = Budget()
    keys = (_api_key_of(each, profile, budget) for each in containers_of(template))
    return next(filter(None, keys), "")


def _api_key_of(container: Mapping[str, object], profile: EngineProfile, budget: Budget) -> str:
    spelling = profile.api_key
    if spelling is None:
        return ""
    parsed = parse_line(container, Engine(profile, version_of(container, profile)), budget)
    given = None if isinstance(parsed, ManifestError) else parsed.last(spelling.dest)
    if given is not None:
        return next((word.text for word in given.values if word.text and not word.token.unresolved), "")
    environment = environment_of(container, budget)
    return "" if isinstance(environment, ManifestError) else environment.values.get(spelling.variable, "")


def without_remote_cache(
    template: Mapping[str, Any], container: str, profiles: Sequence[EngineProfile]
) -> dict[str, Any] | Blocked:
    """Return a pod template whose engine shares no blocks with others, or why it cannot be cut off."""
    alone = copy.deepcopy(dict(template))
    containers = (alone.get("spec") or {}).get("containers") or []
    index = next((at for at, each in enumerate(containers) if each.get("name") == container), None)
    if index is None:
        return alone
    known = (each for each in profiles if not isinstance(invocation_of(containers[index], each), NotAnEngine))
    profile = next(known, None)
    remote = profile.remote_cache if profile else None
    if profile is None or remote is None:
        return alone
    for field in ("command", "args"):
        if isinstance(containers[index].get(field), list):
            containers[index][field] = _without_dotted(containers[index][field], remote)
    for option in remote.options:
        engine = Engine(profile, version_of(containers[index], profile))
        edits = remove_option(containers[index], index, option, engine)
        if isinstance(edits, ManifestError):
            return Blocked(
                Reason.TRIAL_IMPOSSIBLE, f"a trial pod must not share the fleet's KV store: {edits.message}"
            )
        for edit in edits:
            alone = edit.apply(alone)
        containers = alone["spec"]["containers"]
    _without_variables(containers[index], remote)
    return alone


def remote_cache_in_file(file: Configuration | ManifestError | None, profile: EngineProfile) -> str:
    """Return why an engine's configuration file keeps it from being cut off; empty where it does not."""
    remote = profile.remote_cache
    if remote is None or file is None:
        return ""
    if isinstance(file, ManifestError):
        return f"whether the configuration file names a remote KV store is not known: {file.message}"
    given = [each.dest for each in remote.options if file.read.parsed.last(each.dest) is not None]
    if not given:
        return ""
    return (
        f"the configuration file gives {', '.join(given)}, and a trial pod must not share the fleet's KV "
        "store: give it on the command line, where it can be left out"
    )


def _without_dotted(words: list[Any], remote: RemoteCache) -> list[Any]:
    """Return the words of a list without `--option.key value` and `--option.key=value` of these options."""
    names = tuple(f"{each.dest}." for each in remote.options)
    kept, rest = [], iter(words)
    for word in rest:
        text = str(word)
        if not text.startswith("--") or not text[2:].replace("-", "_").startswith(names):
            kept.append(word)
        elif "=" not in text:
            next(rest, None)
    return kept


def _without_variables(container: dict[str, Any], remote: RemoteCache) -> None:
    """Take the variables off that only a remote store reads; one that something else refers to stays."""
    env, sources = container.get("env"), container.get("envFrom")
    if isinstance(env, list):
        text = json.dumps({key: each for key, each in container.items() if key != "name"}, default=str)
        container["env"] = [
            each
            for each in env
            if not str(each.get("name")).startswith(remote.variables)
            or any(f"{opening}{each.get('name')}" in text for opening in ("$(", "${", "$"))
        ]
    if isinstance(sources, list):
        container["envFrom"] = [
            each for each in sources if not str(each.get("prefix") or "").startswith(remote.variables)
        ]


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
        tail: what distinguishes this evaluation from all others of the resource; up to 60 characters.
    """
    return f"{resource[: NAME_LENGTH - len(tail) - 1].rstrip('.-')}-{tail}"


def digest_of(cron_job: Mapping[str, Any]) -> str | Blocked:
    """Return the digest of a CronJob's Job template, or why no evaluation can be made of it."""
    spec = _section(cron_job, "spec")
    for why in _find_job_blockers(spec):
        return Blocked(Reason.GATE_MISSING, f"CronJob/{_section(cron_job, 'metadata').get('name')}: {why}")
    return template_hash(_section(spec, "jobTemplate"))


def evaluation_job(
    cron_job: Mapping[str, Any], evaluation: Evaluation, subject: Served
) -> dict[str, Any] | Blocked:
    """Return the manifest of an evaluation's Job.

    Its containers find the trial pod by OPENAI_BASE_URL, KVMEDIC_URL and KVMEDIC_MODEL, which stand first so
    that arguments and later variables may refer to them.
    """
    digest = digest_of(cron_job)
    if isinstance(digest, Blocked):
        return digest
    if digest != evaluation.digest:
        return Blocked(
            Reason.GATE_MISSING, f"CronJob/{evaluation.cron_job} was edited since the evaluation was planned"
        )
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
        "spec": _job_spec(_section(template, "spec"), evaluation, subject),
    }


def _job_spec(given: Mapping[str, Any], evaluation: Evaluation, subject: Served) -> dict[str, Any]:
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
    """Return a container whose variables say where the subject serves."""
    variables = {
        "OPENAI_BASE_URL": f"{subject.url}/v1",
        "KVMEDIC_URL": subject.url,
        "KVMEDIC_MODEL": subject.model,
    }
    # A value may refer to variables as $(NAME), and $$ is reduced to $ (core/v1 types.go, EnvVar.Value); the
    # model's name is the engine's word and refers to nothing.
    ours = [{"name": name, "value": text.replace("$", "$$")} for name, text in variables.items()]
    theirs = [each for each in container.get("env") or () if each.get("name") not in variables]
    return {**container, "env": [*ours, *theirs]}


def _find_job_blockers(spec: Mapping[str, Any]) -> Iterator[str]:
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
