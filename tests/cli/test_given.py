"""What a manifest says about a workload: the pod counts, not the engine's container alone."""

from math import inf

import pytest

from kvmedic.cli.diagnose import policy_in, workload_in
from kvmedic.model.engine import Version
from kvmedic.model.fleet import body_hash
from kvmedic.runbooks.preemption.host_memory import host_terms
from kvmedic.runbooks.workload import Fault, Workload
from kvmedic.verdict.sizing import GIB

_MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  template:
    spec:
      containers:
      - {name: proxy, image: envoy}
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        args: ["--model=m"]
        resources: {limits: {memory: 32Gi}}
        volumeMounts: [{name: shm, mountPath: /dev/shm}]
"""


@pytest.mark.parametrize(
    ("tag", "given", "counts"),
    [
        (":v0.32.0", None, "0.32.0"),
        (":v0.32.0", "0.9.2", "0.9.2"),
        ("@sha256:0", "0.9.2", "0.9.2"),
        ("@sha256:0", None, None),
    ],
)
def test_a_version_that_is_given_beats_the_tag(tmp_path, tag, given, counts):
    file = tmp_path / "llm.yaml"
    file.write_text(_MANIFEST.replace(":v0.32.0", tag))

    workload = workload_in(str(file), policy_in(""), Version.parse(given) if given else None)

    assert isinstance(workload, Workload)
    assert workload.engine.version == (Version.parse(counts) if counts else None)


@pytest.mark.parametrize(
    ("volumes", "holds"),
    [
        ("[{name: shm, emptyDir: {medium: Memory}}]", inf),
        ("[{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]", 8 * GIB),
        ("[{name: shm, emptyDir: {}}]", None),
    ],
)
def test_shared_memory_is_told_by_the_volumes_of_the_pod(tmp_path, volumes, holds):
    file = tmp_path / "llm.yaml"
    file.write_text(f"{_MANIFEST}      volumes: {volumes}\n")

    workload = workload_in(str(file), policy_in(""))

    assert isinstance(workload, Workload)
    assert host_terms(workload).shared_bytes == holds


def test_a_manifest_that_would_never_be_read_is_a_fault_in_a_sentence(tmp_path):
    chain = "".join(f", {{name: V{i}, value: $(V{i - 1})$(V{i - 1})}}" for i in range(1, 40))
    path = tmp_path / "grows.yaml"
    path.write_text(_MANIFEST + f"        env: [{{name: V0, value: xxxxxxxx}}{chain}]\n")

    found = workload_in(str(path), policy_in(""), None)

    assert isinstance(found, Fault)
    assert "env[14] (V14) of container vllm comes to more than 65536 characters" in found.message


def test_a_manifest_with_numbers_that_nobody_quoted_is_told_apart_by_them(tmp_path):
    path = tmp_path / "ports.yaml"
    hashes = []
    for port in (8000, 8001):
        path.write_text(_MANIFEST + f"        ports: [{{containerPort: {port}}}]\n")
        found = workload_in(str(path), policy_in(""), None)
        assert isinstance(found, Workload)
        hashes.append(body_hash(found.template))

    assert hashes[0] != hashes[1]
