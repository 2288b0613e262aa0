"""Trial pods on a real API server and scheduler: out of sight, made once, and gone with their resource."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from chart.rendering import render
from kvmedic.cluster.trial_pods import Trials
from kvmedic.kube.client import Client, Limits
from kvmedic.kube.errors import Conflict
from kvmedic.manifests.trial_pod import Owner, Trial, trial_pod
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Pod
from kvmedic.model.spec import TargetRef
from lab.cluster.api import until
from lab.cluster.light import LightCluster, gpus
from worlds.live_fleet import LiveFleet, is_whole, service
from worlds.trying import CLASS

TRIED = TargetRef("Deployment", "llm", "vllm")


@dataclass
class Place:
    """A fleet, and a ConfigMap in the place of the resource that trials are made for."""

    fleet: LiveFleet
    trials: Trials
    trial: Trial

    @property
    def light(self) -> LightCluster:
        return self.fleet.light

    def manifest(self) -> dict[str, Any]:
        made = trial_pod(self.fleet.deployment()["spec"]["template"], self.trial)
        assert not isinstance(made, Blocked)
        return made

    def pods(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.light.api.list("Pod", self.trial.namespace)}


@pytest.fixture
async def place(light: LightCluster, client: Client, namespace: str) -> Place:
    light.apply(CLASS)
    owner = light.api.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}, namespace
    )
    trial = Trial("llm-trial-1", namespace, Owner("v1", "ConfigMap", "owner", owner["metadata"]["uid"]), 600)
    fleet = LiveFleet(light, client, namespace)
    await fleet.serving(2)
    return Place(fleet, Trials(client), trial)


async def test_a_trial_runs_and_the_fleet_knows_nothing_of_it(place: Place) -> None:
    before = await place.fleet.fleet()

    assert await place.trials.make(place.trial, place.manifest()) == ""
    pod = await settled(place)
    assert await place.trials.make(place.trial, place.manifest()) == "", "a second creation finds the first"
    again = await place.trials.look(place.trial, TRIED)

    assert again.uid == pod.uid
    assert pod.ready_at is not None
    assert not pod.in_rotation
    after = await place.fleet.fleet()
    assert is_whole(after)
    assert {each.uid for each in after.pods} == {each.uid for each in before.pods}
    assert after.in_rotation == 2


async def test_a_pod_of_somebody_else_is_neither_taken_nor_removed(place: Place) -> None:
    theirs = place.manifest()
    del theirs["metadata"]["ownerReferences"]
    place.light.api.create(theirs, place.trial.namespace)

    with pytest.raises(Conflict):
        await place.trials.make(place.trial, place.manifest())
    with pytest.raises(Conflict):
        await place.trials.look(place.trial, TRIED)
    assert await place.trials.delete_trials(place.trial.namespace, place.trial.owner.uid) == ()
    assert place.trial.name in place.pods()


async def test_deleting_removes_all_trials_of_the_resource_but_the_present_one(place: Place) -> None:
    other = replace(place.trial, name="llm-trial-2")
    await place.trials.make(place.trial, place.manifest())
    await place.trials.make(
        other, {**place.manifest(), "metadata": {**place.manifest()["metadata"], "name": other.name}}
    )

    deleted = await place.trials.delete_trials(place.trial.namespace, place.trial.owner.uid, but=other.name)
    async with asyncio.timeout(60):
        while place.trial.name in place.pods():
            await place.trials.delete_trials(place.trial.namespace, place.trial.owner.uid, but=other.name)
            await asyncio.sleep(0.05)

    assert deleted == (place.trial.name,)
    assert other.name in place.pods()
    assert len(place.pods()) == 3


async def test_a_trial_that_changes_while_it_is_deleted_is_left_to_the_next_time(place: Place) -> None:
    other = replace(place.trial, name="llm-trial-2")
    for trial in (place.trial, other):
        manifest = place.manifest()
        manifest["metadata"]["name"] = trial.name
        await place.trials.make(trial, manifest)
        await settled(place, trial)
    client = place.trials.client

    class Late:
        """Lists pods as they were before somebody changed one of them."""

        async def list(self, *asked: Any) -> list[dict[str, Any]]:
            found = await client.list(*asked)
            changed = {"metadata": {"labels": {"a": "b"}}}
            place.light.api.patch("Pod", place.trial.name, changed, place.trial.namespace)
            return found

        async def delete(self, *asked: Any) -> None:
            await client.delete(*asked)

    late = Trials(Late())  # type: ignore[arg-type]

    assert await late.delete_trials(place.trial.namespace, place.trial.owner.uid) == (
        place.trial.name,
        other.name,
    )
    until(lambda: other.name not in place.pods(), 60, "the other trial is gone")
    still = place.light.api.get("Pod", place.trial.name, place.trial.namespace)
    assert "deletionTimestamp" not in still["metadata"]


async def test_with_its_resource_a_trial_goes_too(place: Place) -> None:
    await place.trials.make(place.trial, place.manifest())

    place.light.api.delete("ConfigMap", "owner", place.trial.namespace)

    until(lambda: place.trial.name not in place.pods(), 30, "the garbage collector took it")
    assert await place.trials.look(place.trial, TRIED) is None


async def settled(place: Place, trial: Trial | None = None) -> Pod:
    """A trial's pod, once it is Ready; the place's own where none is named."""
    async with asyncio.timeout(60):
        while True:
            pod = await place.trials.look(trial or place.trial, TRIED)
            if pod is not None and pod.ready:
                return pod
            await asyncio.sleep(0.05)


@asynccontextmanager
async def with_rights(place: Place, **values: Any) -> AsyncIterator[Trials]:
    """Trials made with the chart's ServiceAccount and rights, and its PriorityClass."""
    made = render({"watchNamespaces": [place.trial.namespace], **values}, namespace=place.trial.namespace)
    kinds = {"ServiceAccount", "Role", "RoleBinding", "PriorityClass"}
    place.light.apply([each for (kind, _), each in made.items() if kind in kinds], place.trial.namespace)
    configuration = Configuration(host=place.light.url, ssl_ca_cert=str(place.light.ca_file))
    token = place.light.api.token_for("kvmedic", place.trial.namespace)
    configuration.api_key["BearerToken"] = f"Bearer {token}"
    async with Client(configuration, Limits()) as client:
        yield Trials(client)


async def test_the_charts_rights_and_priority_class_suffice_where_trial_pods_are_switched_on(
    place: Place,
) -> None:
    volumes = [{"name": "a", "persistentVolumeClaim": {"claimName": "not-there"}}]
    where, owner = place.trial.namespace, place.trial.owner.uid

    async with with_rights(place, probe={"trialPods": True}) as trials:
        assert await trials.held_claims(where, {"spec": {"volumes": volumes}}) == {"not-there"}
        assert await trials.make(place.trial, place.manifest()) == ""
        assert await trials.make(place.trial, place.manifest()) == ""
        assert await trials.look(place.trial, TRIED) is not None
        assert place.light.api.get("Pod", place.trial.name, where)["spec"]["priority"] == -10
        assert await trials.delete_trials(where, owner) == (place.trial.name,)


async def test_where_they_are_switched_off_none_can_be_made_and_it_is_said(place: Place) -> None:
    async with with_rights(place) as trials:
        why = await trials.make(place.trial, place.manifest())

    assert "403" in why
    assert place.trial.name not in place.pods()


async def test_what_a_service_selects_or_the_server_refuses_is_reported_without_the_pod(place: Place) -> None:
    manifest = place.manifest()
    place.light.api.create(service("trap", **{"sidecar.istio.io/inject": "true"}), place.trial.namespace)
    manifest["metadata"]["labels"]["sidecar.istio.io/inject"] = "true"
    assert "Service trap" in await place.trials.make(place.trial, manifest)
    del manifest["metadata"]["labels"]["sidecar.istio.io/inject"]
    manifest["spec"]["priorityClassName"] = "no-such-class"
    manifest["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": "hunter2"}]

    why = await place.trials.make(place.trial, manifest)

    assert why
    assert "hunter2" not in why
    assert await place.trials.look(place.trial, TRIED) is None


async def test_without_room_it_waits_and_pushes_nobody_aside(place: Place) -> None:
    manifest = place.manifest()
    manifest["spec"]["containers"][0]["resources"] = gpus(1000)

    await place.trials.make(place.trial, manifest)

    for _ in range(200):
        pod = await place.trials.look(place.trial, TRIED)
        if pod is not None and pod.unschedulable:
            break
        await asyncio.sleep(0.05)
    assert pod.unschedulable
    assert is_whole(await place.fleet.fleet())


@pytest.mark.parametrize(
    ("modes", "held"),
    [
        (["ReadWriteOnce"], True),
        (["ReadWriteOncePod"], True),
        (["ReadOnlyMany"], False),
        (["ReadWriteMany"], False),
        (["ReadOnlyMany", "ReadWriteOnce"], True),
    ],
)
async def test_claims_that_only_one_pod_may_use_are_known(place: Place, modes: list[str], held: bool) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models"},
        "spec": {"accessModes": modes, "resources": {"requests": {"storage": "1Gi"}}},
    }
    place.light.api.create(claim, place.trial.namespace)
    volumes = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "models"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "not-there"}},
        {"name": "c", "emptyDir": {}},
    ]

    found = await place.trials.held_claims(place.trial.namespace, {"spec": {"volumes": volumes}})

    assert found == ({"models", "not-there"} if held else {"not-there"})
