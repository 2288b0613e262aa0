"""What a manifest says about a workload, and how a command finds the present pod template."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import pytest

from kvmedic.api.resource import policy_of, spec_from_wire
from kvmedic.cli.diagnose import policy_in, workload_in
from kvmedic.cli.plan import template_of
from kvmedic.kube.errors import Call, Refused
from kvmedic.kube.objects import Ref
from kvmedic.model.engine import Version
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import body_hash, template_hash
from kvmedic.model.status import Record, Resource, Wish
from kvmedic.runbooks.branches import GIB
from kvmedic.runbooks.preemption.memory_levers import host_terms
from kvmedic.runbooks.workload import Workload
from run_builder import UID

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
def test_shared_memory_is_read_from_the_volumes_of_the_pod(tmp_path, volumes, holds):
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

    assert isinstance(found, Blocked)
    assert "env[13] (V13) of container vllm takes more than the 20000 steps" in found.message


def test_a_manifest_with_numbers_that_nobody_quoted_is_distinguished_by_them(tmp_path):
    path = tmp_path / "ports.yaml"
    hashes = []
    for port in (8000, 8001):
        path.write_text(_MANIFEST + f"        ports: [{{containerPort: {port}}}]\n")
        found = workload_in(str(path), policy_in(""), None)
        assert isinstance(found, Workload)
        hashes.append(body_hash(found.template))

    assert hashes[0] != hashes[1]


TEMPLATE = {"spec": {"containers": [{"name": "vllm", "image": "vllm"}]}}
DEPLOYMENT = {"spec": {"template": TEMPLATE}}
POLICY = policy_of(spec_from_wire({"targetRef": {"name": "llm"}}))
RESOURCE = Resource("serving", "chat", UID, "1", 1, Wish.NONE, False, POLICY, None, Record())


@dataclass
class World:
    """An API server with at most one Deployment, which may be kept from us."""

    there: dict[str, Any] | None
    is_kept: bool = False

    @property
    def client(self):
        return self

    async def get(self, ref: Ref) -> dict[str, Any] | None:
        assert (ref.namespace, ref.name) == ("serving", "llm")
        if self.is_kept:
            raise Refused(Call("get", "deployments/llm"), 403, "Forbidden")
        return self.there


async def found(world: World, resource: Resource = RESOURCE) -> str:
    return await template_of(world, resource)  # type: ignore[arg-type]


async def test_it_is_the_hash_by_which_a_trial_remembers_it():
    assert await found(World(DEPLOYMENT)) == template_hash(TEMPLATE)


@pytest.mark.parametrize("resource", [RESOURCE, replace(RESOURCE, policy=None)], ids=["gone", "nobody knows"])
async def test_without_a_deployment_there_is_none(resource):
    assert await found(World(None), resource) == ""


async def test_who_may_not_read_deployments_sees_why_and_gets_the_rest(capsys):
    assert await found(World(DEPLOYMENT, is_kept=True)) == ""
    assert "the present pod template is not known: get deployments/llm: 403" in capsys.readouterr().err
