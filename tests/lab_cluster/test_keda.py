"""What of KEDA's installation shows without building it; a scenario's stage shows whether it works."""

import base64
import subprocess
from pathlib import Path

import pytest

from lab.cluster.toolchain import Tool
from lab.keda import installation
from lab.keda.installation import (
    ADAPTER,
    MANIFESTS,
    MODULE,
    OPERATOR,
    Ports,
    adapter_flags,
    aggregation,
    certified,
    is_needed,
    operator_flags,
    own_manifests,
    service,
)

PORTS = Ports(grpc=20001, metrics=20002)


def test_the_module_pins_what_is_built():
    lines = Path(Tool.KEDA_OPERATOR.value.module, "go.mod").read_text().split("\n")

    assert f"\t{MODULE} v2.21.0 // indirect" in lines, "kvmedic's facts of KEDA say 2.21: look at them again"
    for tool in (Tool.KEDA_OPERATOR, Tool.KEDA_ADAPTER):
        assert any(line.removeprefix("tool").strip() == tool.value.package for line in lines)


def test_the_adapter_asks_the_operator_where_it_listens_and_by_a_name_of_its_certificate(tmp_path):
    certificate = certified(tmp_path).directory / "tls.crt"

    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", str(certificate)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "--metrics-service-bind-address=127.0.0.1:20001" in operator_flags(PORTS)
    assert "--metrics-service-address=127.0.0.1:20001" in adapter_flags(PORTS)
    assert f"--metrics-service-grpc-authority={service(OPERATOR)}" in adapter_flags(PORTS)
    assert f"DNS:{service(OPERATOR)}" in shown
    assert f"DNS:{service(ADAPTER)}" in shown, "the API server asks the adapter by its Service's name"


def test_the_api_server_is_given_where_the_adapter_listens_and_whom_to_trust(tmp_path):
    authority = certified(tmp_path).certificate.read_bytes()

    named, registered = aggregation(PORTS, authority)

    assert "--secure-port=20002" in adapter_flags(PORTS)
    asked = registered["spec"]["service"]
    assert (asked["namespace"], asked["name"], asked["port"]) == ("keda", ADAPTER, 20002)
    assert (named["metadata"]["namespace"], named["metadata"]["name"]) == ("keda", ADAPTER)
    assert named["spec"] == {"type": "ExternalName", "externalName": "127.0.0.1"}
    assert base64.b64decode(registered["spec"]["caBundle"]) == authority
    group, version = registered["spec"]["group"], registered["spec"]["version"]
    assert registered["metadata"]["name"] == f"{version}.{group}"


def written(config: Path, name: str) -> None:
    path = config / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{{kind: K, metadata: {{name: {name}}}}}\n")


def test_only_definitions_and_rights_are_taken_of_its_manifests_in_an_order_that_can_be_applied(tmp_path):
    for each in (*(pattern.replace("*", "b") for pattern in MANIFESTS), "crd/bases/a.yaml"):
        written(tmp_path, each)
    for each in ("manager/manager.yaml", "metrics-server/deployment.yaml", "webhooks/webhooks.yaml"):
        written(tmp_path, each)

    names = [each["metadata"]["name"] for each in own_manifests(tmp_path)]

    assert names[:4] == [*MANIFESTS[:2], "crd/bases/a.yaml", "crd/bases/b.yaml"]
    assert names[4:] == list(MANIFESTS[3:])


def test_a_version_that_has_its_rights_elsewhere_is_refused(tmp_path):
    for each in MANIFESTS[:-1]:
        written(tmp_path, each.replace("*", "b"))

    with pytest.raises(LookupError, match=r"no metrics-server/role_binding\.yaml"):
        list(own_manifests(tmp_path))


@pytest.mark.parametrize(
    ("version", "needed"), [("keda.sh/v1alpha1", True), ("autoscaling/v2", False), ("v1", False)]
)
def test_keda_runs_for_objects_of_its_own_and_for_no_others(version, needed):
    other = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "a"}}
    one = {"apiVersion": version, "kind": "Any", "metadata": {"name": "b"}}

    assert is_needed((other, one)) is needed
    assert not is_needed(())


def test_processes_of_others_are_none_of_a_clusters_keda(tmp_path):
    assert installation.processes_of(tmp_path) == []
