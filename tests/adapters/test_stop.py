from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest
from kubernetes.aio.client import Configuration

from kvmedic.cluster.switches import read_stop, storm_over_at
from kvmedic.kube.client import Client, Limits, connect
from kvmedic.rollout.gates import Stop
from lab.cluster.light import LightCluster


@pytest.fixture
async def client(light: LightCluster) -> AsyncIterator[Client]:
    async with await connect(light.kubeconfig, Limits(per_second=500)) as made:
        yield made


@pytest.mark.light
async def test_one_command_turns_it_on_and_one_off(
    client: Client, light: LightCluster, namespace: str
) -> None:
    before = await read_stop(client, namespace, "kvmedic-stop")
    light.kubectl("-n", namespace, "create", "configmap", "kvmedic-stop")
    between = await read_stop(client, namespace, "kvmedic-stop")
    light.kubectl("-n", namespace, "delete", "configmap", "kvmedic-stop")
    after = await read_stop(client, namespace, "kvmedic-stop")

    assert (before, between, after) == (Stop.OFF, Stop.ON, Stop.OFF)


@pytest.mark.light
async def test_whatever_it_contains_it_is_on(client: Client, light: LightCluster, namespace: str) -> None:
    light.kubectl("-n", namespace, "create", "configmap", "kvmedic-stop", "--from-literal=stop=false")

    assert await read_stop(client, namespace, "kvmedic-stop") is Stop.ON


@pytest.mark.light
async def test_without_permission_nobody_knows(light: LightCluster, namespace: str, tmp_path: Path) -> None:
    kubeconfig = light.impersonate("default", namespace).write_kubeconfig(tmp_path / "config")
    async with await connect(kubeconfig, Limits()) as nobody:
        assert await read_stop(nobody, namespace, "kvmedic-stop") is Stop.UNREADABLE


@pytest.mark.light
async def test_a_storm_is_over_since_somebody_said_so(
    client: Client, light: LightCluster, namespace: str
) -> None:
    before = await storm_over_at(client, namespace, "kvmedic-storm-over")
    light.kubectl("-n", namespace, "create", "configmap", "kvmedic-storm-over")
    made = light.api.get("ConfigMap", "kvmedic-storm-over", namespace)["metadata"]["creationTimestamp"]
    after = await storm_over_at(client, namespace, "kvmedic-storm-over")

    assert before is None
    assert after == datetime.fromisoformat(made)


async def test_a_word_that_cannot_be_read_was_not_said() -> None:
    async with Client(Configuration(host="http://127.0.0.1:1"), Limits()) as client:
        assert await storm_over_at(client, "kvmedic-system", "kvmedic-storm-over") is None


async def test_without_an_answer_nobody_knows() -> None:
    async with Client(Configuration(host="http://127.0.0.1:1"), Limits()) as client:
        assert await read_stop(client, "kvmedic-system", "kvmedic-stop") is Stop.UNREADABLE
