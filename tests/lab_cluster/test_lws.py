"""What of LeaderWorkerSet's installation shows without building it; a scenario shows if it works."""

import base64
from pathlib import Path

from lab.cluster.toolchain import Tool
from lab.lws import installation
from lab.lws.installation import ACCOUNT, CONFIGURATION, MODULE, NAMESPACE, WEBHOOKS, own_manifests, webhooks

HOOK = """\
- admissionReviewVersions: [v1]
  clientConfig: {service: {name: webhook-service, namespace: system, path: /PATH}}
  failurePolicy: Fail
  name: NAME.kb.io
  rules: [{apiGroups: ["*"], apiVersions: [v1], operations: [CREATE], resources: [RESOURCE]}]
  sideEffects: None
"""


def test_the_module_pins_what_is_built():
    lines = Path(Tool.LEADER_WORKER_SET.value.module, "go.mod").read_text().split("\n")

    assert f"\t{MODULE} v0.8.0 // indirect" in lines, "decision 0039 says 0.8: look at it again"
    assert f"tool {Tool.LEADER_WORKER_SET.value.package}" in lines


def written(config: Path, name: str, text: str) -> None:
    path = config / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_its_account_has_the_rights_of_its_own_role_and_no_more(tmp_path):
    definition = "crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"
    written(tmp_path, definition, "{kind: CustomResourceDefinition, metadata: {name: a}}\n")
    role = "{kind: ClusterRole, metadata: {name: manager-role}, rules: [{verbs: [get]}]}\n"
    written(tmp_path, "rbac/role.yaml", role)
    written(tmp_path, "rbac/leader_election_role.yaml", "{kind: Role, metadata: {name: b}}\n")

    made = {each["kind"]: each for each in own_manifests(tmp_path)}

    assert list(made)[:3] == ["CustomResourceDefinition", "Namespace", "ServiceAccount"]
    assert made["ClusterRole"]["rules"] == [{"verbs": ["get"]}]
    bound = made["ClusterRoleBinding"]
    assert bound["roleRef"]["name"] == made["ClusterRole"]["metadata"]["name"]
    assert bound["subjects"] == [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}]


def test_its_webhooks_are_asked_on_this_machine_and_only_of_pods_of_groups(tmp_path):
    hooks = [
        HOOK.replace("PATH", each).replace("NAME", each).replace("RESOURCE", each)
        for each in ("leaderworkersets", "pods")
    ]
    head = "kind: ValidatingWebhookConfiguration\nmetadata: {name: validating-webhook-configuration}\n"
    text = f"{head}webhooks:\n{''.join(hooks)}"
    written(tmp_path, "webhook/manifests.yaml", text)

    (made,) = webhooks(tmp_path, 20003, b"authority")

    assert made["metadata"]["name"] == WEBHOOKS
    sets, pods = made["webhooks"]
    assert sets["clientConfig"]["url"] == "https://127.0.0.1:20003/leaderworkersets"
    assert base64.b64decode(pods["clientConfig"]["caBundle"]) == b"authority"
    assert "service" not in pods["clientConfig"]
    assert "objectSelector" not in sets
    assert pods["objectSelector"]["matchExpressions"][0]["key"] == "leaderworkerset.sigs.k8s.io/name"


def test_it_listens_where_it_is_asked_with_the_labs_certificate():
    text = CONFIGURATION.format(host="127.0.0.1", port=20003, certificates="/certs")

    assert "webhook: {host: 127.0.0.1, port: 20003, certDir: /certs}" in text
    assert "internalCertManagement: {enable: false}" in text


def test_processes_of_others_are_none_of_a_clusters_controller(tmp_path):
    assert installation._processes(tmp_path) == []
