"""Pods in and out of rotation on a real API server with the real endpoint and ReplicaSet controllers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kvmedic.cluster.ownership import CORDON_COST, CORDONED, DELETION_COST
from kvmedic.cluster.rotation import confirm, move_pod
from kvmedic.kube.client import Client
from kvmedic.kube.errors import Conflict
from kvmedic.model.fleet import Fleet, Pod
from kvmedic.rollout.moves import Cordon, DeletePod, Uncordon
from lab.cluster.simulation import behaviour
from worlds.live_fleet import LiveFleet, is_whole

Effect = Callable[[Client, Fleet, Pod], Awaitable[None]]


async def cordon(client: Client, fleet: Fleet, pod: Pod) -> None:
    await move_pod(client, fleet, Cordon(pod))


async def uncordon(client: Client, fleet: Fleet, pod: Pod) -> None:
    await move_pod(client, fleet, Uncordon(pod))


async def delete(client: Client, fleet: Fleet, pod: Pod) -> None:
    await move_pod(client, fleet, DeletePod(pod))


def marks(live: LiveFleet, pod: Pod) -> tuple[dict[str, str], dict[str, str]]:
    metadata = live.pod(pod.name)["metadata"]
    return metadata["labels"], metadata.get("annotations", {})


async def again(live: LiveFleet, pod: Pod) -> tuple[Fleet, Pod]:
    """The same pod as it is now."""
    fleet = await live.fleet()
    return fleet, next(each for each in fleet.pods if each.uid == pod.uid)


async def test_a_cordoned_pod_leaves_rotation_and_goes_first(live: LiveFleet) -> None:
    fleet = await live.serving(3)
    chosen = max(fleet.pods, key=lambda pod: pod.name)

    await cordon(live.client, fleet, chosen)
    after = await live.until(lambda seen: seen.in_rotation == 2, "it leaves rotation")
    live.light.api.patch("Deployment", fleet.name, {"spec": {"replicas": 2}}, live.namespace)
    last = await live.until(is_whole, "scaled in")

    assert [pod.name for pod in after.pods if pod.cordoned] == [chosen.name]
    assert [pod.name for pod in after.pods if not pod.in_rotation] == [chosen.name]
    assert chosen.name not in {pod.name for pod in last.pods}


async def test_back_in_rotation_it_is_as_it_was(live: LiveFleet) -> None:
    fleet = await live.serving(1)
    pod = fleet.pods[0]
    before = marks(live, pod)

    await cordon(live.client, fleet, pod)
    between = marks(live, pod)
    await uncordon(live.client, *await again(live, pod))
    await live.until(is_whole, "back in rotation")

    assert between[0]["serving"] == "draining"
    assert between[1][DELETION_COST] == CORDON_COST
    assert marks(live, pod) == before


@pytest.mark.parametrize("label", ["canary", None])
async def test_a_deletion_cost_of_somebody_comes_back_and_the_label_is_the_templates(
    live: LiveFleet, label: str | None
) -> None:
    """Whatever label the note names, another than the template's would keep the pod out of every Service."""
    fleet = await live.serving(1)
    pod = fleet.pods[0]
    before = marks(live, pod)
    own = {"labels": {"serving": label}, "annotations": {DELETION_COST: "17", "note": "a/b~c"}}
    live.patch_pod(pod.name, {"metadata": own})

    await cordon(live.client, *await again(live, pod))
    await uncordon(live.client, *await again(live, pod))

    assert marks(live, pod) == (before[0], {**before[1], **own["annotations"]})


async def test_cordoning_twice_keeps_what_was_before(live: LiveFleet) -> None:
    fleet = await live.serving(1)
    pod = fleet.pods[0]
    live.patch_pod(pod.name, {"metadata": {"annotations": {DELETION_COST: "17"}}})

    await cordon(live.client, *await again(live, pod))
    once = marks(live, pod)
    await cordon(live.client, *await again(live, pod))

    assert marks(live, pod) == once
    assert json.loads(once[1][CORDONED]) == {
        "label": "true",
        "cost": "17",
        "key": "serving",
        "draining": "draining",
        "deployment": fleet.uid,
    }


async def test_uncordoning_twice_changes_and_writes_nothing(live: LiveFleet) -> None:
    fleet = await live.serving(1)
    pod = fleet.pods[0]

    await uncordon(live.client, fleet, pod)

    assert live.pod(pod.name)["metadata"]["resourceVersion"] == pod.resource_version


GARBAGE = {
    "gone": None,
    "no JSON": "not json",
    "a list": "[]",
    "deep": "[" * 5000,
    "another value": '{"label": "nobody-selects-me", "cost": null}',
    "our own marks": json.dumps({"label": "draining", "cost": CORDON_COST}),
    "no label's value": '{"label": "a b", "cost": "cheap"}',
    "numbers": '{"label": 7, "cost": 2147483648}',
    "a cost of many digits": json.dumps({"label": {}, "cost": "9" * 5000}),
    "a cost beyond 32 bits": '{"label": null, "cost": "2147483648"}',
    "a cost with a plus": '{"label": null, "cost": "+5"}',
}


async def test_whatever_a_pods_note_says_it_comes_back_into_rotation(live: LiveFleet) -> None:
    """One pod for all: a note that the API server's patch would choke on would keep it out for ever."""
    fleet = await live.serving(1)
    pod = fleet.pods[0]
    before = marks(live, pod)
    for note in GARBAGE.values():
        await cordon(live.client, *await again(live, pod))
        live.patch_pod(pod.name, {"metadata": {"annotations": {CORDONED: note}}})

        await uncordon(live.client, *await again(live, pod))

        assert marks(live, pod) == before


async def test_a_note_that_nobody_can_read_is_written_anew(live: LiveFleet) -> None:
    fleet = await live.serving(1)
    pod = fleet.pods[0]
    live.patch_pod(pod.name, {"metadata": {"annotations": {CORDONED: "garbage", DELETION_COST: "17"}}})

    await cordon(live.client, *await again(live, pod))

    note = json.loads(marks(live, pod)[1][CORDONED])
    assert (note["label"], note["cost"]) == ("true", "17")


async def test_half_a_cordon_left_by_a_person_is_cleared_away(live: LiveFleet) -> None:
    fleet = await live.serving(1)
    pod = fleet.pods[0]
    before = marks(live, pod)
    await cordon(live.client, fleet, pod)
    live.patch_pod(pod.name, {"metadata": {"labels": {"serving": "true"}}})

    await uncordon(live.client, *await again(live, pod))

    assert marks(live, pod) == before


@pytest.mark.parametrize("effect", [cordon, uncordon, delete])
async def test_a_pod_that_changed_is_left_alone(live: LiveFleet, effect: Effect) -> None:
    fleet = await live.serving(1)
    await cordon(live.client, fleet, fleet.pods[0])
    fleet, pod = await again(live, fleet.pods[0])
    live.patch_pod(pod.name, {"metadata": {"annotations": {"seen": "by somebody"}}})
    before = live.pod(pod.name)["metadata"]

    with pytest.raises(Conflict):
        await effect(live.client, fleet, pod)

    assert live.pod(pod.name)["metadata"] == before


async def test_the_patch_itself_tests_the_version_too(live: LiveFleet) -> None:
    """Somebody may write between the read and the patch of one effect."""
    fleet = await live.serving(1)
    pod = fleet.pods[0]

    class Meddled:
        async def get(self, ref: Any) -> Any:
            found = await live.client.get(ref)
            live.patch_pod(pod.name, {"metadata": {"annotations": {DELETION_COST: "17"}}})
            return found

        json_patch = live.client.json_patch

    with pytest.raises(Conflict):
        await cordon(Meddled(), fleet, pod)  # type: ignore[arg-type]

    assert marks(live, pod)[1][DELETION_COST] == "17"


@pytest.mark.parametrize("effect", [cordon, uncordon])
async def test_a_pod_that_is_gone_is_a_conflict(live: LiveFleet, effect: Effect) -> None:
    fleet = await live.serving(1)

    with pytest.raises(Conflict):
        await effect(live.client, fleet, replace(fleet.pods[0], name="gone"))


async def test_deleting_by_name_takes_exactly_that_pod_and_gives_it_its_time(live: LiveFleet) -> None:
    fleet = await live.serving(3, behaviour(gone_after="3s"))
    chosen = max(fleet.pods, key=lambda pod: pod.name)

    await delete(live.client, fleet, chosen)

    assert live.pod(chosen.name)["metadata"]["deletionGracePeriodSeconds"] == 1
    after = await live.until(is_whole, "replaced")
    names = {pod.name for pod in fleet.pods}
    assert names - {pod.name for pod in after.pods} == {chosen.name}
    await delete(live.client, fleet, chosen)


async def test_of_two_who_cordon_the_same_pod_one_wins(live: LiveFleet) -> None:
    fleet = await live.serving(1)
    pod = fleet.pods[0]

    ends = await asyncio.gather(
        cordon(live.client, fleet, pod), cordon(live.client, fleet, pod), return_exceptions=True
    )

    assert sorted(type(end).__name__ for end in ends) == ["Conflict", "NoneType"]


async def test_who_went_while_its_drain_was_observed_is_noticed(live: LiveFleet) -> None:
    fleet = await live.serving(2)
    pod_to_remove = fleet.pods[0]

    await confirm(live.client, fleet, [pod_to_remove.name])
    await confirm(live.client, fleet, "")
    live.light.api.delete("Pod", pod_to_remove.name, live.namespace)
    with pytest.raises(Conflict):
        await confirm(live.client, fleet, [pod_to_remove.name])
    await live.until(lambda seen: pod_to_remove.uid not in {pod.uid for pod in seen.pods}, "it is gone")
    with pytest.raises(Conflict):
        await confirm(live.client, fleet, [pod_to_remove.name])
