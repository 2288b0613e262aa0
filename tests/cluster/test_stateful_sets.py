"""A StatefulSet's whole walk on the real controller, with simulated pods: there, back, after a bad start."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvmedic.cluster.rotation import find_cordoned_pods, free, move_pod
from kvmedic.cluster.stateful.revisions import ordinal_of
from kvmedic.cluster.workloads import unclaim
from kvmedic.kube.objects import controller_uid
from kvmedic.rollout.moves import Cordon, Failed, Settled
from lab.cluster.simulation import behaviour
from worlds.live_fleet import EDIT, NAME, LiveFleet, Walker, deployment, is_whole, service, walker, witnessed

BAD = behaviour(mode="crash", mode_when="--max-num-seqs=16")


async def a_set(live: LiveFleet, selector: dict[str, str], **more: Any) -> Walker:
    """Create a StatefulSet of three and its Service; return its walk once every replica is in rotation."""
    live.kind = "StatefulSet"
    made = deployment(3, more.pop("annotations", None))
    made["kind"], made["spec"] = live.kind, {**made["spec"], "serviceName": NAME, **more}
    live.light.api.create(service(NAME, **selector), live.namespace)
    live.light.api.create(made, live.namespace)
    seen = await live.until(is_whole, "three replicas in rotation")
    assert sorted(pod.ordinal or 0 for pod in seen.pods) == [0, 1, 2]
    return walker(live, await live.look(), may_lack=1)


@pytest.mark.parametrize(
    ("selector", "more"),
    [
        ({"app": NAME, "serving": "true"}, {}),
        ({"app": NAME}, {"updateStrategy": {"rollingUpdate": {"partition": 2}}}),
    ],
    ids=["by its label", "by the labels of its own selector"],
)
async def test_every_replica_is_drained_one_short_and_back_the_spec_is_the_same(
    live: LiveFleet, selector: dict[str, str], more: dict[str, Any]
) -> None:
    forward = await a_set(live, selector, **more)
    before = live.deployment()

    async with witnessed(live) as witness:
        end = await forward.walk()
        there = live.deployment()
        # By now its controller counts this rollout as complete, and keeps what is below a partition by it.
        assert there["status"]["currentRevision"] == there["status"]["updateRevision"]
        back = await forward.back().walk()

    assert isinstance(end, Settled)
    assert isinstance(back, Settled)
    assert [name for name in forward.effects() if name != "Pulse"] == [
        "Freeze",
        *["Cordon", "DeletePod", "Pause"] * 3,
        "Restore",
        "Settled",
    ]
    assert len(witness.gone) == 6
    assert witness.undrained() == []
    assert witness.fewest >= 2
    await unclaim(live.client, await live.fleet())
    after = live.deployment()
    assert there["spec"]["template"] == EDIT.apply(before["spec"]["template"])
    assert json.dumps(after["spec"], sort_keys=True) == json.dumps(before["spec"], sort_keys=True)
    assert [name for name in after["metadata"].get("annotations", {}) if "kvmedic" in name] == []


async def test_a_bad_start_is_taken_back_though_its_controller_waits_for_it_for_ever(live: LiveFleet) -> None:
    forward = await a_set(live, {"app": NAME}, annotations=BAD)

    async with witnessed(live) as witness:
        failed = await forward.walk()
        end = await forward.back().walk()

    assert isinstance(failed, Failed)
    assert isinstance(end, Settled)
    assert sum(pod["spec"]["containers"][0]["args"][2].endswith("=64") for pod in witness.gone) == 1
    assert witness.undrained_ready() == []
    assert witness.fewest >= 2
    # One that a lost record left out of rotation is put back, and its controller has it again.
    fleet = await live.fleet()
    last = max(fleet.live, key=lambda pod: pod.ordinal or 0)
    await move_pod(live.client, fleet, Cordon(last))
    assert controller_uid(live.pod(last.name)) == ""
    for each in await find_cordoned_pods(live.client, live.namespace):
        await free(live.client, each)
    held = live.pod(last.name)
    assert controller_uid(held) == fleet.uid
    assert held["metadata"]["labels"]["app"] == NAME


@pytest.mark.parametrize(
    ("name", "spec", "place"),
    [
        ("llm-2", {}, 2),
        ("llm-7", {"ordinals": {"start": 5}}, 2),
        ("llm-7", {"ordinals": {}}, 7),
        ("llm", {}, None),
    ],
)
def test_a_place_is_counted_from_where_the_ordinals_start(
    name: str, spec: dict[str, Any], place: int | None
) -> None:
    assert ordinal_of({"metadata": {"name": name}}, {"spec": spec}) == place
