"""Approvals as the operator reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from kvmedic.api.approval import approval_manifest
from kvmedic.cluster.switches import StoredApprovals
from kvmedic.kube.client import Client, Limits, connect
from kvmedic.kube.errors import Refused, Unavailable
from kvmedic.kube.objects import Resource
from kvmedic.model.evidence import Blocked
from lab.cluster.light import LightCluster
from worlds.world import APPROVALS_CRD

DIGEST = "0123456789abcdef"
UID = "11111111-2222-3333-4444-555555555555"
pytestmark = pytest.mark.light


@pytest.fixture(scope="session")
def known(light: LightCluster) -> LightCluster:
    light.apply(APPROVALS_CRD.read_text())
    light.kubectl("wait", "--for=condition=Established", "crd/kvapprovals.kvmedic.io", "--timeout=10s")
    return light


@pytest.fixture
async def stored(known: LightCluster) -> AsyncIterator[StoredApprovals]:
    async with await connect(known.kubeconfig, Limits(per_second=500)) as client:
        yield StoredApprovals(client)


def make(light: LightCluster, namespace: str, name: str = "chat", **spec: Any) -> dict[str, Any]:
    body = approval_manifest(name, UID, namespace, DIGEST)
    del body["metadata"]["ownerReferences"]  # of no resource that exists: the garbage collector would act
    return light.api.create({**body, "spec": {**body["spec"], **spec}}, namespace)


async def test_what_was_approved_is_read_with_the_servers_time(
    stored: StoredApprovals, known: LightCluster, namespace: str
) -> None:
    body = make(known, namespace, expiresAt="2030-01-01T00:00:00+01:00")

    found = await stored.list_approvals(namespace, "chat")

    assert not isinstance(found, Blocked)
    [approval] = found
    assert (approval.name, approval.uid) == (body["metadata"]["name"], body["metadata"]["uid"])
    assert (approval.digest, approval.resource_uid) == (DIGEST, UID)
    assert approval.expires_at == datetime(2029, 12, 31, 23, tzinfo=UTC)
    assert abs(datetime.now(UTC) - approval.made_at) < timedelta(seconds=10)


async def test_those_of_other_names_and_namespaces_and_withdrawn_ones_are_not_there(
    stored: StoredApprovals, known: LightCluster, namespace: str
) -> None:
    make(known, "default")
    make(known, namespace, name="other")
    body = make(known, namespace)
    name = body["metadata"]["name"]
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    known.api.patch("KVApproval", name, held, namespace)
    known.api.delete("KVApproval", name, namespace)

    assert known.api.get("KVApproval", name, namespace)["metadata"]["deletionTimestamp"]
    assert await stored.list_approvals(namespace, "chat") == ()
    known.api.patch("KVApproval", name, {"metadata": {"finalizers": None}}, namespace)
    known.kubectl("delete", "kvapp", "--all", "-n", "default")


async def test_without_the_right_nobody_knows_and_it_says_what_to_do(
    known: LightCluster, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = known.impersonate("default", namespace).write_kubeconfig(tmp_path / "config")
    async with await connect(kubeconfig, Limits()) as nobody:
        found = await StoredApprovals(nobody).list_approvals(namespace, "chat")

    assert isinstance(found, Blocked)
    assert "let the operator list it" in found.message
    assert "403" in found.message


async def test_without_an_answer_the_look_is_made_again() -> None:
    async with Client(Configuration(host="http://127.0.0.1:1"), Limits()) as client:
        with pytest.raises(Unavailable):
            await StoredApprovals(client).list_approvals("serving", "chat")


async def test_a_kind_that_is_not_installed_is_a_refusal_not_an_outage(
    stored: StoredApprovals, namespace: str
) -> None:
    with pytest.raises(Refused, match="404"):
        await stored.client.list(Resource("kvmedic.io/v1alpha1", "nothing"), namespace)
