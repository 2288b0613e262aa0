"""A LeaderWorkerSet read as a fleet of groups, and the patches on it; its objects are documents."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest

from kvmedic.cluster.fronts import DrainWay
from kvmedic.cluster.parts import SERVICE_NAME
from kvmedic.cluster.snapshot import rollout_fields, snapshot
from kvmedic.cluster.stateful.groups import GROUP_INDEX, NAME, WORKER_INDEX, group_operations, on_groups
from kvmedic.doctor.documents import Documents, as_served
from kvmedic.kube.objects import JsonObject, labels_of, name_of, pod_template, uid_of
from kvmedic.model.edits import Field, PatchOperation, TokenEdit
from kvmedic.model.fleet import FROZEN_PARTITION, LEADER_WORKER_SET, hold_by_partition
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import RotationLabel, RotationWay, TargetRef
from kvmedic.rollout.preconditions import find_rollout_blockers
from kvmedic.rollout.stateful.groups import let_go_fields
from kvmedic.runbooks.workload import View

ARGS = ["serve", "meta/llama", "--tensor-parallel-size=8", "--pipeline-parallel-size=2", "--max-num-seqs=64"]
EDIT = TokenEdit("vllm", 0, Field.ARGS, 4, "--max-num-seqs=64", "--max-num-seqs=16")
RAY = ["sh", "-c", "bash /vllm-workspace/multi-node-serving.sh worker --ray_address=$(LWS_LEADER_ADDRESS)"]
TARGET = TargetRef(LEADER_WORKER_SET, "llm", None)


def leader() -> JsonObject:
    engine = {"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "command": ["vllm"], "args": [*ARGS]}
    probe = {"tcpSocket": {"port": 8080}, "initialDelaySeconds": 0}
    return {
        "metadata": {"labels": {"role": "leader"}},
        "spec": {"containers": [{**engine, "readinessProbe": probe, "resources": {}}]},
    }


def a_set(**more: Any) -> JsonObject:
    worker = {"spec": {"containers": [{"name": "ray", "image": "vllm/vllm-openai:v0.11.0", "command": RAY}]}}
    groups = {"size": 2, "leaderTemplate": leader(), "workerTemplate": worker, **more}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "llm", "namespace": "serving"},
        "spec": {"replicas": 3, "leaderWorkerTemplate": groups},
    }


def a_service(name: str = "front", **selector: str) -> JsonObject:
    spec = {"selector": selector, "ports": [{"port": 8080}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def served(*bodies: JsonObject) -> list[JsonObject]:
    """The objects of a namespace in which everything is Ready, with the controller's own headless Service."""
    found = [copy.deepcopy(each) for each in as_served(bodies, "serving").bodies]
    owner = {"uid": uid_of(one(found, "LeaderWorkerSet", "llm")), "controller": True}
    metadata = {"name": "llm", "namespace": "serving", "ownerReferences": [owner]}
    own = {**a_service(**{NAME: "llm"}), "metadata": metadata}
    pods = [{"targetRef": {"uid": uid_of(each)}} for each in found if each["kind"] == "Pod"]
    labels = {SERVICE_NAME: "llm"}
    place = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
    return [*found, own, {**place, "metadata": {"name": "llm-x", "labels": labels}, "endpoints": pods}]


def look(bodies: list[JsonObject]) -> View:
    way = DrainWay(RotationWay.AUTO)
    label = RotationLabel("serving", "draining")
    seen = asyncio.run(snapshot(Documents(bodies), "serving", TARGET, label, way))
    assert seen is not None
    return seen


def one(bodies: list[JsonObject], kind: str, name: str) -> JsonObject:
    return next(each for each in bodies if (each.get("kind"), name_of(each)) == (kind, name))


FRONT = a_service(**{NAME: "llm", "role": "leader"})


def test_each_group_is_a_replica_by_its_leader_and_drains_by_a_label_of_its_own():
    view = look(served(a_set(), FRONT))

    fleet = view.fleet
    assert [(pod.name, pod.ordinal, pod.ready) for pod in fleet.pods] == [
        ("llm-0", 0, True),
        ("llm-1", 1, True),
        ("llm-2", 2, True),
    ]
    assert {pod.revision for pod in fleet.pods} == {fleet.revision}
    assert {pod.listed_by for pod in fleet.pods} == {("Service front",)}
    assert fleet.observed
    assert fleet.is_complete
    assert fleet.groups is not None
    assert (fleet.groups.obeyed, fleet.groups.comes_back, fleet.groups.unfit) == (0, fleet.revision, "")
    assert fleet.rotation.relabel is not None
    assert fleet.rotation.relabel.keys == ("role",)
    assert find_rollout_blockers(fleet) == ()


def worker_down(bodies: list[JsonObject]) -> None:
    pod = one(bodies, "Pod", "llm-1-1")
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00+00:00"}
    pod["status"]["conditions"] = [condition]


def worker_gone(bodies: list[JsonObject]) -> None:
    bodies.remove(one(bodies, "Pod", "llm-1-1"))


@pytest.mark.parametrize("lose", [worker_down, worker_gone])
def test_a_group_with_a_worker_that_is_not_ready_is_not(lose: Callable[[list[JsonObject]], None]):
    bodies = served(a_set(), FRONT)
    lose(bodies)
    one(bodies, "Pod", "llm-1")["status"]["podIP"] = "10.0.0.1"

    pods = look(bodies).fleet.pods

    assert [pod.ready for pod in pods] == [True, False, True]
    assert pods[1].unready_at is not None
    assert not pods[1].is_unreached  # its leader may have got requests meanwhile


def test_a_controller_that_lags_has_not_seen_the_newest_spec_and_old_leaders_keep_their_template():
    bodies = served(a_set(), FRONT)
    before = look(bodies).fleet.revision
    body = one(bodies, "LeaderWorkerSet", "llm")
    containers = body["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"]
    containers[0]["args"][4] = "--max-num-seqs=16"
    body["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"] = FROZEN_PARTITION

    fleet = look(bodies).fleet

    assert not fleet.observed
    assert fleet.fields.is_frozen
    assert fleet.revision != before
    assert {pod.revision for pod in fleet.pods} == {before}
    assert fleet.groups is not None
    assert (fleet.groups.obeyed, fleet.groups.comes_back) == (0, before)


def test_a_revision_is_the_same_template_as_gos_types_write_it():
    bodies = served(a_set(), FRONT)
    kept = one(
        bodies, "ControllerRevision", next(n for n in map(name_of, bodies) if n.endswith("-1") and "-" in n)
    )
    written = copy.deepcopy(kept["data"]["spec"]["leaderWorkerTemplate"])
    written["$patch"] = "replace"
    written["leaderTemplate"]["metadata"]["creationTimestamp"] = None
    del written["leaderTemplate"]["spec"]["containers"][0]["readinessProbe"]["initialDelaySeconds"]
    kept["data"]["spec"]["leaderWorkerTemplate"] = written

    fleet = look(bodies).fleet

    assert fleet.observed
    assert {pod.revision for pod in fleet.pods} == {fleet.revision}


def test_an_edit_of_the_workers_alone_is_another_template():
    bodies = served(a_set(), FRONT)
    before = look(bodies).fleet
    live = one(bodies, "LeaderWorkerSet", "llm")
    live["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"] = {"labels": {"tried": "1"}}

    after = look(bodies).fleet

    assert after.revision != before.revision
    assert {pod.revision for pod in after.pods} == {before.revision}


def without_partition(bodies: list[JsonObject]) -> None:
    del one(bodies, "LeaderWorkerSet", "llm")["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"][
        "partition"
    ]


ENGINE_OF_ITS_OWN = {
    "spec": {"containers": [{"name": "w", "image": "vllm/vllm-openai:v0.11.0", "args": ARGS}]}
}


@pytest.mark.parametrize(
    ("made", "front", "change", "says"),
    [
        (a_set(), FRONT, without_partition, "0.7 or newer"),
        (a_set(workerTemplate=ENGINE_OF_ITS_OWN), FRONT, None, "container w of its workerTemplate"),
        (a_set(), a_service(**{NAME: "llm"}), None, "Service front selects the workers"),
    ],
    ids=["an old version", "workers with an engine", "a Service of leaders and workers"],
)
def test_groups_that_are_not_changed_are_refused_by_name(
    made: JsonObject, front: JsonObject, change: Callable[[list[JsonObject]], None] | None, says: str
):
    bodies = served(made, front)
    if change:
        change(bodies)

    found = find_rollout_blockers(look(bodies).fleet)

    assert found[0].reason is Reason.KIND_UNSUPPORTED
    assert says in found[0].message


def test_a_service_that_goes_by_the_controllers_labels_alone_takes_no_leader_out():
    found = find_rollout_blockers(look(served(a_set(), a_service(**{NAME: "llm", WORKER_INDEX: "0"}))).fleet)

    assert found[0].reason is Reason.DRAIN_IMPOSSIBLE
    assert "give leaderTemplate a label of its own" in found[0].message


def test_one_template_for_leaders_and_workers_is_changed_where_it_is():
    made = a_set(workerTemplate=leader(), size=1)
    del made["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    bodies = served(made, a_service(role="leader"))
    live = one(bodies, "LeaderWorkerSet", "llm")

    paths = [each.path for each in on_groups(live, EDIT.patch(pod_template(live)))]

    assert find_rollout_blockers(look(bodies).fleet) == ()
    assert all(
        path.startswith("/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/") for path in paths
    )


def test_a_whole_template_is_put_without_the_labels_of_its_controller():
    bodies = served(a_set(), FRONT)
    view, live = look(bodies), one(bodies, "LeaderWorkerSet", "llm")
    assert labels_of(view.template)[WORKER_INDEX] == "0"

    (put,) = on_groups(live, [PatchOperation("replace", "/spec/template", dict(view.template))])

    assert put.path == "/spec/leaderWorkerTemplate/leaderTemplate"
    assert isinstance(put.value, dict)
    assert labels_of(put.value) == {"role": "leader"}
    assert GROUP_INDEX not in labels_of(put.value)


def applied(live: JsonObject, operations: tuple[PatchOperation, ...]) -> JsonObject:
    body = copy.deepcopy(live)
    for each in operations:
        *parents, name = [part.replace("~1", "/") for part in each.path.split("/")[1:]]
        at = body
        for part in parents:
            at = at.setdefault(part, {})
        if each.op == "remove":
            del at[name]
        else:
            at[name] = each.value
    return body


def test_what_a_rollout_changes_for_a_while_is_given_back_as_it_was():
    live = one(served(a_set()), "LeaderWorkerSet", "llm")
    live["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"].update(maxSurge="25%", maxUnavailable=2)
    own = rollout_fields(live)
    held = applied(live, group_operations(live, hold_by_partition(own)))
    let_go = applied(held, group_operations(held, let_go_fields(own, 2, 0)))

    back = applied(let_go, group_operations(let_go, own))

    assert rollout_fields(held).is_frozen
    assert rollout_fields(held).paused
    assert rollout_fields(let_go).permits
    assert rollout_fields(let_go).partition == 2
    assert back["spec"] == live["spec"]
    assert not back["metadata"].get("annotations")
