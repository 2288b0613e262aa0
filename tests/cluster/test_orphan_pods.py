"""The orphan drain on the real controllers: what each write leaves, and whole walks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.cluster.orphan_pods import find_unchanged_labels, move_orphan, release
from kvmedic.rollout.moves import CordonOrphan, Settled
from kvmedic.rollout.orphan_drain import draining_value
from worlds.live_fleet import LiveFleet, is_whole, walker, witnessed
from worlds.plain_fleet import PlainFleet


@pytest.fixture
def plain(live: LiveFleet) -> PlainFleet:
    """A fleet without a rotation label, in a namespace of its own."""
    return PlainFleet(live.light, live.client, live.namespace)


@pytest.mark.parametrize("replicas", [1, 3])
async def test_every_replica_is_released_drained_and_deleted(plain: PlainFleet, replicas: int) -> None:
    await plain.serving(replicas)
    forward = walker(plain, await plain.look())

    async with witnessed(plain) as witness:
        end = await forward.walk(120)

    assert isinstance(end, Settled)
    between = ["Pulse", "Pause"]
    step = ["ReleasePod", "MarkStandIn", "Pulse", "Pause", "CordonOrphan", "DeletePod"]
    steps = [*step, *(*between, *step) * (replicas - 1)]
    assert forward.effects() == ["Freeze", "Pause", *steps, "Restore", "Settled"]
    assert witness.undrained_ready() == []
    assert witness.fewest >= replicas
    assert is_whole(await plain.fleet())
    assert (await plain.fleet()).orphans == ()


WRITES = range(2, 11)
"""Effects after which a walk dies: the first step of two, and the pulse that adds the next replica."""


@pytest.mark.parametrize("back", [False, True], ids=["forward", "back"])
@pytest.mark.parametrize("effects", WRITES)
async def test_a_successor_that_remembers_nothing_brings_it_to_its_end(
    plain: PlainFleet, effects: int, back: bool
) -> None:
    await plain.serving(2)
    before = plain.deployment()["spec"]
    first = walker(plain, await plain.look())

    async with witnessed(plain) as witness:
        while len(first.effects()) < effects:
            await first.step()
        order = replace(first.order, draining_pods=())
        second = (
            replace(first, order=order, moves=[]).back() if back else replace(first, order=order, moves=[])
        )
        end = await second.walk(120)

    print(effects, back, second.effects())
    assert isinstance(end, Settled)
    assert witness.undrained_ready() == []
    assert witness.fewest >= 2
    after = await plain.fleet()
    assert is_whole(after)
    assert after.orphans == ()
    fields = ("strategy", "minReadySeconds", "progressDeadlineSeconds", "paused")
    assert [plain.deployment()["spec"].get(name) for name in fields] == [before.get(name) for name in fields]
    assert (after.revision == first.order.away) is back


async def test_a_label_that_is_named_only_after_the_cordon_is_changed_as_well(plain: PlainFleet) -> None:
    """As where a router is found that nobody knew of: the replica gets no more of its requests."""
    await plain.serving(1)
    fleet = await plain.fleet()
    pod = fleet.pods[0]
    plain.light.kubectl("-n", plain.namespace, "label", "pod", pod.name, "served-by=router")
    await release(plain.client, fleet, pod, dry_run=False)
    (orphan,) = (await plain.fleet()).orphans
    await move_orphan(plain.client, fleet, CordonOrphan(orphan, ("app",), timedelta(hours=1)))

    (cordoned,) = (await plain.fleet()).orphans
    await move_orphan(plain.client, fleet, CordonOrphan(cordoned, ("served-by",), timedelta(hours=1)))

    body = plain.light.api.get("Pod", pod.name, plain.namespace)
    labels = body["metadata"]["labels"]
    assert orphan.led_by == ("app",)
    assert cordoned.led_by == ()
    assert labels["served-by"] == labels["app"] == draining_value(pod.uid)
    assert find_unchanged_labels(body, ("app", "served-by", "other")) == ()
