"""What stands between a fleet and a change: each precondition by a namespace that breaks it alone."""

from typing import Any

import pytest

from kvmedic.doctor.checks import Check, Examination, Result, Topic, Verdict, describe_run, labels_that_change
from kvmedic.doctor.documents import DocumentsError, as_served
from kvmedic.doctor.examine import examine_manifests
from kvmedic.doctor.targets import find_targets
from kvmedic.model.reasons import Reason
from run_builder import a_run
from worlds.documents import a_deployment, a_service, an_engine, an_object

KEDA = {"scaleTargetRef": {"name": "llm"}, "minReplicaCount": 1, "maxReplicaCount": 4}
TIED = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}}
ARGO_CD = {"annotations": {"argocd.argoproj.io/tracking-id": "prod:apps/Deployment:serving/llm"}}
HELM = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": "chat", "meta.helm.sh/release-namespace": "serving"},
}


def marked(body: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], **metadata}}


def examine(*documents: dict[str, Any], **spec: Any) -> Examination:
    given = {"targetRef": {"name": "llm"}, **spec} if spec else None
    return examine_manifests(documents, "llm", spec=given)


def check(found: Examination, topic: Topic) -> Check:
    return next(each for each in found.checks if each.name is topic)


def test_a_plain_fleet_with_its_service_is_eligible_as_it_is():
    found = examine(a_deployment(), a_service())

    assert found.verdict is Verdict.ELIGIBLE
    assert "released from its ReplicaSet" in check(found, Topic.DRAIN).saw
    assert "maxNumSeqs (not given)" in check(found, Topic.LEVERS).saw


def test_a_label_that_only_services_select_is_used_where_it_is_there():
    body = a_deployment()
    body["spec"]["template"]["metadata"]["labels"]["serving"] = "yes"

    found = examine(body, a_service(app="llm", serving="yes"))

    assert "rotation: Label" in check(found, Topic.DRAIN).saw


POOL = an_object(
    "inference.networking.k8s.io/v1", "InferencePool", "pool", selector={"matchLabels": {"app": "llm"}}
)
POLICY = an_object(
    "networking.k8s.io/v1", "NetworkPolicy", "closed", podSelector={"matchLabels": {"app": "llm"}}
)
VPA = an_object("autoscaling.k8s.io/v1", "VerticalPodAutoscaler", "size", targetRef=TIED["scaleTargetRef"])
ASKING_FOR_MORE = {
    **an_object("autoscaling/v2", "HorizontalPodAutoscaler", "hpa", **TIED, maxReplicas=5),
    "status": {
        "desiredReplicas": 4,
        "conditions": [
            {"type": "ScalingActive", "status": "True"},
            {"type": "AbleToScale", "status": "True"},
        ],
    },
}


@pytest.mark.parametrize(
    ("documents", "topic", "reason"),
    [
        ([a_deployment()], Topic.FRONT, Reason.ROTATION_LABEL_WITHOUT_EFFECT),
        ([a_deployment(), a_service(app="x")], Topic.FRONT, Reason.ROTATION_LABEL_WITHOUT_EFFECT),
        ([a_deployment(replicas=0), a_service()], Topic.REPLICAS, Reason.NO_REPLICAS),
        ([a_deployment(paused=True), a_service()], Topic.ROLLOUT, Reason.TARGET_PAUSED),
        ([marked(a_deployment(), **ARGO_CD), a_service()], Topic.OWNER, Reason.MANAGED_BY_GITOPS),
        ([a_deployment(), a_service(), POLICY], Topic.DRAIN, Reason.DRAIN_IMPOSSIBLE),
        ([a_deployment(), a_service(), VPA], Topic.AUTOSCALER, Reason.MANAGED_BY_VPA),
        ([a_deployment(), a_service(), ASKING_FOR_MORE], Topic.AUTOSCALER, Reason.AUTOSCALER_ACTIVE),
        (
            [a_deployment({"name": "web", "image": "nginx"}), a_service()],
            Topic.ENGINE,
            Reason.ENGINE_UNRECOGNISED,
        ),
        (
            [a_deployment({"name": "s", "image": "lmsysorg/sglang:v0.5"}), a_service()],
            Topic.ENGINE,
            Reason.ENGINE_NOT_SUPPORTED,
        ),
        (
            [a_deployment(an_engine(), an_engine(name="second")), a_service()],
            Topic.ENGINE,
            Reason.ENGINE_UNRECOGNISED,
        ),
        (
            [a_deployment(an_engine("--config", "/etc/vllm.yaml")), a_service()],
            Topic.LEVERS,
            Reason.FLAG_NOT_EDITABLE,
        ),
    ],
)
def test_what_breaks_one_precondition_fails_that_check_alone(documents, topic, reason):
    found = examine(*documents)

    assert [(each.name, each.reason) for each in found.failed] == [(topic, reason)]
    assert found.verdict is Verdict.NOT_ELIGIBLE
    assert found.failed[0].saw


def test_a_helm_release_is_asked_to_give_way_where_no_resource_says_otherwise():
    objects = marked(a_deployment(), **HELM), a_service()

    free, respected = examine(*objects), examine(*objects, ownership="Respect")

    assert check(free, Topic.OWNER).saw == "Helm release serving/chat gives way (spec.ownership: Apply)"
    assert check(respected, Topic.OWNER).reason is Reason.MANAGED_BY_HELM


def test_all_that_stands_in_the_way_is_reported_at_once():
    body = marked(a_deployment(paused=True, replicas=0), **ARGO_CD)

    found = examine(body, VPA)

    topics = {each.name for each in found.failed}
    assert topics == {Topic.FRONT, Topic.REPLICAS, Topic.ROLLOUT, Topic.OWNER, Topic.AUTOSCALER}


def test_a_failed_check_says_what_to_type_with_the_names_of_the_fleet():
    found = check(examine(a_deployment(paused=True), a_service()), Topic.ROLLOUT)

    assert found.fix == "in the manifest, Deployment/llm: write spec.paused: false, or leave it out"
    assert "undrained" in found.risk


OWN = an_object(
    "kvmedic.io/v1alpha1", "KVRemediation", "own", targetRef={"name": "llm"}, rollout={"rotation": "Label"}
)
FILES = {"Deployment/llm": "a.yaml", "Service/llm": "b.yaml", "KVRemediation/own": "c.yaml"}


@pytest.mark.parametrize(
    ("documents", "fix"),
    [
        (
            [a_deployment(replicas=0), a_service()],
            "in a.yaml, Deployment/llm: write spec.replicas: 1 or more",
        ),
        (
            [a_deployment(), a_service(), OWN],
            "in c.yaml, KVRemediation/own: write spec.rollout.rotation: Auto",
        ),
        (
            [a_deployment({"name": "web", "image": "nginx", "args": ["--model=m"]}), a_service()],
            "in the KVRemediation of it, which kvmedic init -f a.yaml writes: spec.targetRef.container",
        ),
        (
            [a_deployment({"name": "vllm", "image": "vllm/vllm-openai:v0.9.2"}), a_service()],
            "write what starts the engine into command itself, as [vllm, serve, MODEL]",
        ),
        (
            [a_deployment({**an_engine(), "command": ["/scripts/startup.sh"]}), a_service()],
            "write what starts the engine into command itself, as [vllm, serve, MODEL]",
        ),
        ([a_deployment(), a_service(), POLICY], "in a.yaml or b.yaml: change the selector of the object"),
        ([a_deployment()], "if another file has it, give both (-f FILE -f FILE); else make a Service in"),
        ([a_deployment(), a_service(), ASKING_FOR_MORE], "once it is applied: kubectl -n default get hpa"),
        (
            [a_deployment(an_engine("--config", "/etc/vllm.yaml")), a_service()],
            "kvmedic flags show -f a.yaml",
        ),
    ],
)
def test_of_files_the_fix_is_the_field_of_a_manifest_and_its_file(documents, fix):
    files = {key: file for key, file in FILES.items() if "KVR" not in key or OWN in documents}

    found = examine_manifests(documents, "llm", files=files)

    assert found.failed[0].fix.startswith(fix), found.failed[0].fix


def test_a_pool_of_the_gateway_is_a_front_without_a_service():
    found = examine(a_deployment(), POOL)

    assert check(found, Topic.FRONT).result is Result.PASS
    assert "label app changes" in check(found, Topic.DRAIN).saw


def test_all_that_leads_requests_is_named():
    found = examine(a_deployment(), a_service(), POOL)

    saw = check(found, Topic.FRONT).saw
    assert saw == "Service llm and InferencePool pool by app=llm lead requests to the pods"


def test_a_router_that_the_spec_names_is_a_front():
    rollout = {"routers": [{"matchLabels": {"app": "llm"}}]}

    found = check(examine(a_deployment(), rollout=rollout), Topic.FRONT)

    assert (found.result, found.saw) == (Result.PASS, "a router by app=llm leads requests to the pods")


@pytest.mark.parametrize(
    ("numbers", "port", "said"),
    [
        ((8000,), 8000, ("at port 8000", "")),
        ((8000, 5557), 8000, ("at port 8000; several are declared: 5557, 8000", "spec.targetRef.port")),
        ((8000, 8001, 8002), 8000, ("several are declared: 8000, 8001, 8002", "spec.targetRef.ports")),
        ((), 8000, ("at port 8000", "")),
    ],
)
def test_several_unnamed_ports_are_named_and_the_services_counts(numbers, port, said):
    engine = an_engine(ports=[{"containerPort": each} for each in numbers])

    found = check(examine(a_deployment(engine), a_service()), Topic.PORT)

    assert found.figures["port"] == port
    assert (found.saw.endswith(said[0]), said[1] in found.fix) == (True, True)
    assert bool(found.fix) is (len(numbers) > 1)


def test_ports_that_the_spec_names_are_an_engine_each():
    target = {"name": "llm", "ports": [8001, 8000]}

    found = check(examine(a_deployment(), a_service(), targetRef=target), Topic.PORT)

    assert found.saw == "each replica is asked for its metrics at ports 8000, 8001, an engine each"
    assert (found.result, found.fix) == (Result.PASS, "")


def test_a_named_port_of_the_service_is_the_containers_port_of_that_name():
    engine = an_engine(ports=[{"containerPort": 9000, "name": "api"}, {"containerPort": 5557, "name": "zmq"}])
    service = a_service()
    service["spec"]["ports"] = [{"port": 80, "targetPort": "api"}]

    found = check(examine(a_deployment(engine), service), Topic.PORT)

    assert found.figures["port"] == 9000


def test_labels_that_change_are_named_as_one_or_as_several():
    assert [labels_that_change(keys) for keys in (("app",), ("app", "tier"))] == [
        "label app changes",
        "labels app and tier change",
    ]


def test_an_autoscaler_at_rest_is_named_and_stands_in_no_ones_way():
    found = examine(a_deployment(), a_service(), an_object("keda.sh/v1alpha1", "ScaledObject", "so", **KEDA))

    scaler = check(found, Topic.AUTOSCALER)
    assert (scaler.result, "ScaledObject so" in scaler.saw) == (Result.PASS, True)


def test_a_disruption_budget_is_named_though_no_rollout_heeds_it():
    budget = an_object("policy/v1", "PodDisruptionBudget", "pdb", selector={"matchLabels": {"app": "llm"}})

    found = check(examine(a_deployment(), a_service(), budget), Topic.DISRUPTION_BUDGET)

    assert (found.result, "pdb" in found.saw) == (Result.PASS, True)


@pytest.mark.parametrize(
    ("args", "said"),
    [((), "17"), (("--max-num-seqs", "17"), "17"), (("--max-num-seqs=18",), "18")],
)
def test_a_lever_counts_as_free_whatever_its_present_value(args, said):
    found = check(examine(a_deployment(an_engine(*args)), a_service()), Topic.LEVERS)

    assert found.result is Result.PASS
    assert (f"({said})" in found.saw) is bool(args)


@pytest.mark.parametrize(
    ("lever", "flag"),
    [
        ({"name": "watermark", "max": 0.1}, "watermark"),
        ({"name": "gpuMemoryUtilization", "min": 0.8, "step": 0.02}, "gpuMemoryUtilization"),
        ({"name": "prefixCaching"}, "prefixCaching"),
        ({"name": "maxModelLen", "min": 1024}, "maxModelLen"),
    ],
)
def test_each_lever_of_the_spec_is_tried_on_the_command_line(lever, flag):
    found = examine(a_deployment(an_engine(image="vllm/vllm-openai:v0.32.0")), a_service(), levers=[lever])

    assert flag in check(found, Topic.LEVERS).saw
    assert check(found, Topic.LEVERS).result is Result.PASS


def test_one_lever_that_can_be_set_is_enough_and_the_others_are_named():
    levers = [{"name": "watermark", "max": 0.1}, {"name": "maxNumSeqs"}]

    found = check(examine(a_deployment(), a_service(), levers=levers), Topic.LEVERS)

    assert found.result is Result.PASS
    assert "watermark cannot be set" in found.saw


def test_a_spec_among_the_documents_is_the_one_that_counts():
    own = an_object(
        "kvmedic.io/v1alpha1",
        "KVRemediation",
        "own",
        targetRef={"name": "llm"},
        rollout={"rotation": "Label"},
    )

    found = examine(a_deployment(), a_service(), own)

    assert [each.reason for each in found.failed] == [Reason.ROTATION_LABEL_WITHOUT_EFFECT]


def test_a_configuration_file_is_read_from_its_config_map():
    volume = {"name": "c", "configMap": {"name": "conf"}}
    engine = an_engine("--config", "/etc/vllm/c.yaml", volumeMounts=[{"name": "c", "mountPath": "/etc/vllm"}])
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "conf"},
        "data": {"c.yaml": "max-num-seqs: 99\n"},
    }

    found = examine(a_deployment(engine, pod={"volumes": [volume]}), a_service(), config)

    assert "maxNumSeqs (99)" in check(found, Topic.LEVERS).saw
    assert found.verdict is Verdict.ELIGIBLE


def test_a_deployment_that_is_not_there_fails_by_its_name():
    found = examine_manifests([a_service()], "gone")

    assert [(each.name, each.reason) for each in found.checks] == [(Topic.TARGET, Reason.TARGET_NOT_FOUND)]


def test_the_namespace_of_a_document_counts_and_others_are_left_out():
    body, front = (marked(each, namespace="serving") for each in (a_deployment(), a_service()))

    assert examine(body, front).namespace == "serving"
    assert examine(body, front).verdict is Verdict.ELIGIBLE
    assert check(examine(body, marked(a_service(), namespace="other")), Topic.FRONT).result is Result.FAIL


def test_what_no_document_can_show_is_unknown_and_does_not_count_there():
    found = examine(a_deployment(), a_service())

    unknown = {each.name for each in found.checks if each.result is Result.UNKNOWN}
    assert unknown == {Topic.METRICS, Topic.SPARE, Topic.NODE_HEALTH, Topic.RIGHTS}
    assert found.unknown == ()


def test_only_deployments_that_start_an_engine_are_targets():
    web = marked(a_deployment({"name": "web", "image": "nginx"}), name="web")

    assert find_targets([web, a_deployment(), a_service()]) == ("llm",)


def a_node(gpus: int) -> dict[str, Any]:
    amounts = {"nvidia.com/gpu": str(gpus), "cpu": "64", "memory": "512Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "gpu-1"},
        "status": {"allocatable": amounts},
    }


def on_node(*documents: dict[str, Any]) -> list[dict[str, Any]]:
    """The namespace as it is served, its replicas on the node."""
    served = as_served(documents, "default").bodies
    for each in served:
        if each["kind"] == "Pod":
            each["spec"] = {**each["spec"], "nodeName": "gpu-1"}
    return [*served]


@pytest.mark.parametrize(
    ("gpus", "result", "reason"), [(3, Result.PASS, None), (2, Result.FAIL, Reason.NO_ROOM_FOR_SPARE)]
)
def test_room_for_a_spare_is_computed_where_the_nodes_are_among_the_documents(gpus, result, reason):
    found = examine(*on_node(a_deployment(), a_service(), a_node(gpus)))

    assert (check(found, Topic.SPARE).result, check(found, Topic.SPARE).reason) == (result, reason)


def test_nodes_without_the_pods_on_them_do_not_show_whether_a_spare_fits():
    found = check(examine(a_deployment(), a_service(), a_node(8)), Topic.SPARE)

    assert (found.result, "no pods that run on them" in found.saw) == (Result.UNKNOWN, True)


CLAIMED = {"volumes": [{"name": "w", "persistentVolumeClaim": {"claimName": "weights"}}]}
CLAIM = an_object("v1", "PersistentVolumeClaim", "weights", accessModes=["ReadWriteOnce"])
SHARED = an_object("v1", "PersistentVolumeClaim", "weights", accessModes=["ReadWriteMany"])
HOST_PORT = an_engine(ports=[{"containerPort": 8000, "hostPort": 8000}])


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([a_deployment(HOST_PORT)], "takes port 8000: a spare needs a node where no replica has it"),
        (
            [a_deployment(an_engine(ports=[{"containerPort": 8001}]), pod={"hostNetwork": True})],
            "takes port 8001: a spare needs a node",
        ),
        (
            [a_deployment(pod=CLAIMED), CLAIM],
            "weights is ReadWriteOnce: a spare needs room on the node that has it",
        ),
        ([a_deployment(pod=CLAIMED)], "access modes of PersistentVolumeClaim weights are not known"),
        ([a_deployment(pod=CLAIMED), SHARED], "(no node is listed)"),
        ([a_deployment()], "(no node is listed)"),
    ],
)
def test_what_leaves_a_spare_few_nodes_is_reported_without_any_node(documents, said):
    found = check(examine(*documents, a_service()), Topic.SPARE)

    assert (found.result, said in found.saw) == (Result.UNKNOWN, True), found.saw


@pytest.mark.parametrize(
    ("replicas", "said"), [(1, "1 replica is asked for"), (2, "2 replicas are asked for")]
)
def test_one_replica_is_reported_as_one(replicas, said):
    found = check(examine(a_deployment(replicas=replicas), a_service()), Topic.REPLICAS)

    assert found.saw.startswith(said)


def test_a_strategy_that_a_walk_changes_is_reported_to_be_put_back():
    found = check(examine(a_deployment(strategy={"type": "Recreate"}), a_service()), Topic.STRATEGY)

    assert "RollingUpdate while a run" in found.saw


@pytest.mark.parametrize("replicas", ["2", -1, True, 1.5])
def test_replicas_that_are_no_count_are_refused_by_object_and_field(replicas):
    with pytest.raises(DocumentsError, match=r"Deployment/llm: spec\.replicas is .*: write a whole number"):
        examine(a_deployment(replicas=replicas), a_service())


def test_a_quota_that_is_full_leaves_no_room_for_a_spare():
    hard = {"requests.nvidia.com/gpu": "2"}
    quota = {**an_object("v1", "ResourceQuota", "gpus", hard=hard), "status": {"hard": hard, "used": hard}}

    found = examine(a_deployment(), a_service(), quota)

    assert [each.reason for each in found.failed] == [Reason.NO_ROOM_FOR_SPARE]


def test_room_that_nobody_can_determine_is_unknown_and_stops_nothing_as_the_operator_tries():
    found = examine(a_deployment(), a_service())

    assert check(found, Topic.SPARE).result is Result.UNKNOWN
    assert found.verdict is Verdict.ELIGIBLE


@pytest.mark.parametrize(
    ("spare", "gpus", "replicas", "label", "result", "reason"),
    [
        ("BestEffort", 3, 2, True, Result.PASS, None),
        ("BestEffort", 2, 2, True, Result.UNKNOWN, None),
        ("BestEffort", 1, 1, True, Result.FAIL, Reason.SPARE_NEEDED),
        ("BestEffort", 2, 2, False, Result.UNKNOWN, None),
        ("None", 2, 2, True, Result.PASS, None),
        ("None", 2, 2, False, Result.PASS, None),
        ("None", 1, 1, True, Result.FAIL, Reason.SPARE_NEEDED),
    ],
    ids=["room", "short", "alone", "short, no label", "never", "never, no label", "never, and alone"],
)
def test_a_fleet_may_go_one_short_where_its_spec_says_so(spare, gpus, replicas, label, result, reason):
    body, front = a_deployment(replicas=replicas), a_service()
    if label:
        body["spec"]["template"]["metadata"]["labels"]["serving"] = "yes"
        front = a_service(app="llm", serving="yes")

    found = check(examine(*on_node(body, front, a_node(gpus)), rollout={"spare": spare}), Topic.SPARE)

    assert (found.result, found.reason) == (result, reason)
    assert not reason or found.fix.startswith("set spec.rollout.spare: Required")


@pytest.mark.parametrize(
    ("kind", "version", "spec", "result", "words"),
    [
        ("InferenceService", "serving.kserve.io/v1beta1", {}, Result.FAIL, "or see spec.ownership"),
        ("Rollout", "argoproj.io/v1alpha1", {"ownership": "Apply"}, Result.FAIL, "make the change there"),
        (
            "InferenceService",
            "serving.kserve.io/v1beta1",
            {"ownership": "Apply"},
            Result.UNKNOWN,
            "a flag is changed in KServe InferenceService chat",
        ),
    ],
    ids=["nobody lets it", "another controller", "its own field"],
)
def test_whether_an_owners_own_field_is_certain_only_a_plan_shows(kind, version, spec, result, words):
    owner = {"apiVersion": version, "kind": kind, "name": "chat", "uid": "1", "controller": True}

    found = examine(marked(a_deployment(), ownerReferences=[owner]), a_service(), **spec)

    assert check(found, Topic.OWNER).result is result
    assert words in check(found, Topic.OWNER).saw
    assert found.verdict is not Verdict.ELIGIBLE


def test_a_config_map_that_no_file_has_is_not_said_to_be_gone():
    body = a_deployment(
        {"name": "llm", "image": "vllm/vllm-openai:v0.32.0", "args": ["--config", "/etc/c.yaml"]}
    )
    pod = body["spec"]["template"]["spec"]
    pod["containers"][0]["volumeMounts"] = [{"name": "c", "mountPath": "/etc"}]
    pod["volumes"] = [{"name": "c", "configMap": {"name": "conf"}}]

    found = check(examine(body, a_service()), Topic.LEVERS)

    assert found.saw.endswith("/etc/c.yaml is in ConfigMap/conf, which is not in the files")


@pytest.mark.parametrize("tag", ["v0.5.4", "nightly"])
def test_a_tag_that_names_no_release_that_is_known_is_answered_with_the_oldest_known(tag):
    body = a_deployment({"name": "llm", "image": f"vllm/vllm-openai:{tag}", "args": ["--max-num-seqs=8"]})

    found = check(examine(body, a_service()), Topic.ENGINE)

    assert found.result is Result.PASS
    assert found.saw.endswith("of no release that is known: the image's tag names none from 0.5.5 on")


def test_a_run_that_is_open_is_reported_in_place_of_a_rollout_at_rest():
    checks, run = examine(a_deployment(), a_service()).checks, a_run()

    idle, moved = ([describe_run(each, "own", one) for each in checks] for one in (None, run))

    saw = {each.name: each.saw for each in moved}
    assert idle == list(checks)
    assert saw.pop(Topic.ROLLOUT) == f"run {run.id} of KVRemediation own is open: it moves the rollout"
    assert saw == {each.name: each.saw for each in checks if each.name is not Topic.ROLLOUT}
