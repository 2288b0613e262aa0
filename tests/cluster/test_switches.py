"""Words of people to the operator: the stop, the end of a storm, and approvals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from kvmedic.api.resource import approval_manifest
from kvmedic.cluster.switches import (
    NamespaceLabel,
    StoredApprovals,
    read_required_label,
    read_stop,
    read_storm_end,
)
from kvmedic.kube.client import Client, Limits, connect
from kvmedic.kube.errors import Call, Refused, Unavailable
from kvmedic.kube.objects import CONFIG_MAPS, Resource
from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.rollout.gates.opening import Stop
from lab.cluster.light import LightCluster
from worlds.world import APPROVALS_CRD

DIGEST = "0123456789abcdef"
UID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture(scope="session")
def known(light: LightCluster) -> LightCluster:
    light.apply(APPROVALS_CRD.read_text())
    light.kubectl("wait", "--for=condition=Established", "crd/kvapprovals.kvmedic.io", "--timeout=10s")
    return light


@pytest.fixture
def stored(known: LightCluster, client: Client) -> StoredApprovals:
    return StoredApprovals(client)


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
        stop = await read_stop(nobody, namespace, "kvmedic-stop")

    assert stop is Stop.UNREADABLE
    assert isinstance(found, Blocked)
    assert "let the operator list it" in found.message
    assert "403" in found.message


async def test_a_kind_that_is_not_installed_is_a_refusal_not_an_outage(
    stored: StoredApprovals, namespace: str
) -> None:
    with pytest.raises(Refused, match="404"):
        await stored.client.list(Resource("kvmedic.io/v1alpha1", "nothing"), namespace)


async def test_one_command_turns_the_stop_on_and_one_off_whatever_it_contains(
    client: Client, light: LightCluster, namespace: str
) -> None:
    before = await read_stop(client, namespace, "kvmedic-stop")
    light.kubectl("-n", namespace, "create", "configmap", "kvmedic-stop", "--from-literal=stop=false")
    between = await read_stop(client, namespace, "kvmedic-stop")
    light.kubectl("-n", namespace, "delete", "configmap", "kvmedic-stop")
    after = await read_stop(client, namespace, "kvmedic-stop")

    assert (before, between, after) == (Stop.OFF, Stop.ON, Stop.OFF)


async def test_a_storm_is_over_since_somebody_said_so(
    client: Client, light: LightCluster, namespace: str
) -> None:
    before = await read_storm_end(client, namespace, "kvmedic-storm-over")
    light.kubectl("-n", namespace, "create", "configmap", "kvmedic-storm-over")
    made = light.api.get("ConfigMap", "kvmedic-storm-over", namespace)["metadata"]["creationTimestamp"]
    after = await read_storm_end(client, namespace, "kvmedic-storm-over")

    assert before is None
    assert after == datetime.fromisoformat(made)


async def test_without_an_answer_nobody_knows_and_nothing_was_said() -> None:
    async with Client(Configuration(host="http://127.0.0.1:1"), Limits()) as nowhere:
        assert await read_storm_end(nowhere, "kvmedic-system", "kvmedic-storm-over") is None
        assert await read_stop(nowhere, "kvmedic-system", "kvmedic-stop") is Stop.UNREADABLE
        with pytest.raises(Unavailable):
            await StoredApprovals(nowhere).list_approvals("serving", "chat")


class Namespaces:
    """A cluster with one namespace, or one that does not show it."""

    def __init__(self, labels: dict[str, str] | None) -> None:
        self.labels = labels
        self.asked: list[str] = []

    async def get(self, ref: Any) -> dict[str, Any]:
        self.asked.append(ref.path)
        if self.labels is None:
            raise Refused(Call("get", ref.path), 403, "namespaces is forbidden")
        return {"metadata": {"name": "serving", "labels": self.labels}}


HEAL = "kvmedic.io/heal=true"


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (
            {},
            "namespace serving has no label kvmedic.io/heal, so its fleets are only diagnosed: "
            f"kubectl label namespace serving {HEAL}",
        ),
        ({"kvmedic.io/heal": "false"}, f"kubectl label --overwrite namespace serving {HEAL}"),
        ({"kvmedic.io/heal": ""}, "has kvmedic.io/heal=, so its fleets are only diagnosed"),
        (None, "cannot be read"),
    ],
    ids=["none", "another value", "an empty value", "not shown"],
)
async def test_a_namespace_without_the_label_is_named_with_the_command_that_adds_it(
    labels: dict[str, str] | None, says: str
) -> None:
    world: Any = Namespaces(labels)

    found = await NamespaceLabel(world, HEAL).refuse_unlabelled("serving")

    assert found is not None
    assert found.reason is Reason.NAMESPACE_NOT_LABELLED
    assert says in found.message
    assert world.asked == ["/api/v1/namespaces/serving"]


async def test_a_namespace_with_the_label_may_be_changed_and_nothing_is_read_where_none_is_asked_for() -> (
    None
):
    labelled: Any = Namespaces({"kvmedic.io/heal": "true", "team": "a"})
    silent: Any = Namespaces(None)

    assert await NamespaceLabel(labelled, HEAL).refuse_unlabelled("serving") is None
    assert await NamespaceLabel(silent, "").refuse_unlabelled("serving") is None
    assert silent.asked == []


class Configurations:
    """A cluster with ConfigMaps, or one that does not show them."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    async def list(self, resource: Resource, namespace: str, label_selector: str) -> list[dict[str, Any]]:
        assert (resource, namespace) == (CONFIG_MAPS, "kvmedic-system")
        assert label_selector == "app.kubernetes.io/name=kvmedic"
        if not self.texts:
            raise Refused(Call("list", "/api/v1/namespaces/kvmedic-system/configmaps"), 403, "no")
        return [{"data": {"config.yaml": text} if text else None} for text in self.texts]


@pytest.mark.parametrize(
    ("texts", "label"),
    [
        (("process: {namespace: kvmedic-system}\nnamespaces: {requireLabel: kvmedic.io/heal=true}",), HEAL),
        (("", "namespaces: {requireLabel: kvmedic.io/heal=true}"), HEAL),
        (("namespaces: {}",), ""),
        (("namespaces:",), ""),
        (("just text",), ""),
        (("namespaces: {requireLabel: [",), ""),
        ((), ""),
    ],
    ids=["asked for", "in the second", "not asked for", "empty", "no mapping", "no YAML", "not shown"],
)
async def test_the_label_that_an_operator_asks_for_is_read_off_its_configuration(
    texts: tuple[str, ...], label: str
) -> None:
    world: Any = Configurations(*texts)

    assert await read_required_label(world, "kvmedic-system") == label


async def test_one_command_lets_the_fleets_of_a_namespace_be_changed(
    client: Client, light: LightCluster, namespace: str
) -> None:
    before = await NamespaceLabel(client, HEAL).refuse_unlabelled(namespace)
    assert before is not None
    light.kubectl(*before.message.rpartition("kubectl ")[2].split())

    assert await NamespaceLabel(client, HEAL).refuse_unlabelled(namespace) is None
