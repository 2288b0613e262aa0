"""The whole frozen rollout on the real deployment controller, with simulated pods."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvmedic.cluster.workloads import unclaim
from kvmedic.kube.errors import Conflict
from kvmedic.model.fleet import Fleet
from kvmedic.model.reasons import Reason
from kvmedic.rollout.drift import releasing_move
from kvmedic.rollout.frozen_rollout import rest_template as resting_move
from kvmedic.rollout.moves import Cordon, Failed, Move, Pause, Restore, Settled, Wait
from lab.cluster.simulation import behaviour
from worlds.live_fleet import EDIT, NAME, LiveFleet, Walker, is_whole, walker, witnessed

TWO_FILL_THE_NODE = "500Gi"
"""Of 1 TiB, which nobody else asks for."""
"""Of the shared cluster's node (`conftest.py`)."""


def text(spec: dict[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True)


def with_edit(spec: dict[str, Any]) -> dict[str, Any]:
    changed = json.loads(json.dumps(spec))
    changed["template"] = EDIT.apply(changed["template"])
    return dict(changed)


async def stopped_after(forward: Walker, effects: int) -> None:
    """Let a walk die right after so many effects."""
    while len(forward.effects()) < effects:
        await forward.step()


@pytest.mark.parametrize("replicas", [1, 4])
async def test_every_replica_is_drained_before_it_goes(live: LiveFleet, replicas: int) -> None:
    await live.serving(replicas)
    forward = walker(live, await live.look())

    async with witnessed(live) as witness:
        end = await forward.walk()

    assert isinstance(end, Settled)
    assert forward.effects() == [
        "Freeze",
        "Pause",
        *["Cordon", "Pulse", "Pause"] * replicas,
        "Restore",
        "Settled",
    ]
    assert len(witness.gone) == replicas
    assert witness.undrained() == []
    assert witness.fewest >= replicas
    assert is_whole(await live.fleet())


OWN_FIELDS: list[dict[str, Any]] = [
    {},
    {"minReadySeconds": 1, "progressDeadlineSeconds": 300},
    {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
    {
        "strategy": {"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 0}},
        "progressDeadlineSeconds": 2147483647,
    },
    {"paused": False, "minReadySeconds": 0, "revisionHistoryLimit": 2},
]


@pytest.mark.parametrize("own", OWN_FIELDS, ids=text)
async def test_there_and_back_the_spec_is_the_same_byte_for_byte(
    live: LiveFleet, own: dict[str, Any]
) -> None:
    await live.serving(1, **own)
    before = live.deployment()
    forward = walker(live, await live.look())

    await forward.walk()
    there = live.deployment()
    await forward.back().walk()
    await unclaim(live.client, await live.fleet())
    back = live.deployment()

    assert text(there["spec"]) == text(with_edit(before["spec"]))
    assert text(back["spec"]) == text(before["spec"])
    assert [name for name in back["metadata"]["annotations"] if "kvmedic" in name] == []


BAD = behaviour(mode="crash", mode_when="--max-num-seqs=16")


async def test_a_canary_that_crashes_goes_and_nobody_else_does(live: LiveFleet) -> None:
    await live.serving(3, BAD)
    before = live.deployment()
    forward = walker(live, await live.look())

    async with witnessed(live) as witness:
        failed = await forward.walk()
        end = await forward.back().walk()

    assert isinstance(failed, Failed)
    assert failed.reason is Reason.CANARY_FAILED
    assert isinstance(end, Settled)
    assert [_args(pod) for pod in witness.gone] == [EDIT.after]
    assert witness.fewest == 3
    assert text(live.deployment()["spec"]) == text(before["spec"])


async def test_a_spare_that_no_node_takes_goes_and_nobody_else_does(live: LiveFleet) -> None:
    await live.serving(2, resources={"requests": {"ephemeral-storage": TWO_FILL_THE_NODE}})
    before = live.deployment()
    forward = walker(live, await live.look(), spare_limit=timedelta(seconds=1))

    async with witnessed(live) as witness:
        failed = await forward.walk()
        end = await forward.back().walk()

    assert isinstance(failed, Failed)
    assert failed.reason is Reason.SPARE_UNSCHEDULABLE
    assert isinstance(end, Settled)
    assert [_args(pod) for pod in witness.gone] == [EDIT.after]
    assert witness.fewest == 2
    assert text(live.deployment()["spec"]) == text(before["spec"])


@pytest.mark.parametrize("effects", [1, 2, 3, 4, 5, 9])
async def test_from_everywhere_the_way_back_takes_only_drained_replicas(
    live: LiveFleet, effects: int
) -> None:
    await live.serving(2)
    before = live.deployment()
    forward = walker(live, await live.look())

    async with witnessed(live) as witness:
        await stopped_after(forward, effects)
        end = await forward.back().walk()

    assert isinstance(end, Settled)
    assert witness.undrained() == []
    assert witness.fewest >= 2
    assert text(live.deployment()["spec"]) == text(before["spec"])
    assert is_whole(await live.until(is_whole, "whole again"))


async def test_a_successor_finds_its_way_after_any_effect(live: LiveFleet) -> None:
    """Each operator dies after one effect; the next knows claim, draining pods and when the last move was."""
    await live.serving(2)
    walks = [walker(live, await live.look())]

    async with witnessed(live) as witness, asyncio.timeout(120):
        while True:
            await stopped_after(walks[-1], 1)
            if isinstance(walks[-1].moves[-1], Settled | Failed):
                break
            await asyncio.sleep(1)
            walks.append(Walker(live, walks[-1].order, walks[0].claim_of))

    one_replica = ["Cordon", "Pulse", "Pause"]
    assert [walk.effects()[-1] for walk in walks] == [
        "Freeze",
        "Pause",
        *one_replica,
        *one_replica,
        "Restore",
        "Settled",
    ]
    assert len(witness.gone) == 2
    assert witness.undrained() == []
    assert witness.fewest >= 2


async def test_two_operators_at_once_take_only_drained_replicas(live: LiveFleet) -> None:
    """Both believe in their claim and look at nothing else: only the tests in the patches keep them apart."""
    await live.serving(3)
    seen = await live.look()
    first, second = walker(live, seen), walker(live, seen)
    second.claim_of = "other/run/{}".format

    async with witnessed(live) as witness:
        # A look that began before the first effect would show a change that nobody's record knows.
        await stopped_after(first, 1)
        ends = await asyncio.gather(first.walk(), second.walk())

    assert all(isinstance(end, Settled) for end in ends)
    assert first.conflicts + second.conflicts > 0
    assert len(witness.gone) == 3
    assert witness.undrained() == []
    assert witness.fewest >= 3


async def test_a_replica_that_is_not_ready_goes_first(live: LiveFleet) -> None:
    whole = await live.serving(3)
    forward = walker(live, await live.look())
    await stopped_after(forward, 2)
    sick = max(pod.name for pod in whole.pods)
    live.patch_pod(sick, {"metadata": {"annotations": behaviour(mode="unready")}})
    await live.until(
        lambda fleet: not _pod(fleet, sick).ready and fleet.in_rotation == 3,
        "the canary carries on for the sick one",
    )

    async with witnessed(live) as witness:
        end = await forward.walk()

    assert isinstance(end, Settled)
    assert witness.gone[0]["metadata"]["name"] == sick
    assert witness.undrained() == []
    assert witness.fewest >= 3


async def test_a_peer_that_fails_right_before_the_pulse_does_not_go_undrained(live: LiveFleet) -> None:
    await live.serving(3)
    forward = walker(live, await live.look())

    async with witnessed(live) as witness:
        await stopped_after(forward, 3)
        assert isinstance(forward.moves[-1], Cordon)
        peer = next(
            p for p in (await live.fleet()).pods if p.in_rotation and p.revision == forward.order.away
        )
        live.patch_pod(peer.name, {"metadata": {"annotations": behaviour(mode="unready")}})
        await live.until(lambda seen: not _pod(seen, peer.name).ready, "a peer fails")
        end = await forward.walk()

    assert isinstance(end, Settled)
    assert witness.undrained() == []


async def test_scaled_to_nothing_in_the_middle_there_is_a_way_back(live: LiveFleet) -> None:
    await live.serving(2)
    before = live.deployment()
    forward = walker(live, await live.look())
    await stopped_after(forward, 5)
    live.patch({"spec": {"replicas": 0}})

    end = await forward.back().walk()

    spec = live.deployment()["spec"]
    assert isinstance(end, Settled)
    assert text({**spec, "replicas": 2}) == text(before["spec"])


@pytest.mark.parametrize("replicas", [3, 5])
async def test_scaled_in_the_middle_only_the_scaling_takes_its_share(live: LiveFleet, replicas: int) -> None:
    await live.serving(4)
    forward = walker(live, await live.look())
    await stopped_after(forward, 6)
    live.light.api.patch("Deployment", NAME, {"spec": {"replicas": replicas}}, live.namespace, "scale")
    pods = replicas + 1
    await live.until(lambda fleet: len(fleet.pods) == pods == fleet.ready, "scaled", 30)

    async with witnessed(live) as witness:
        end = await forward.walk()

    assert isinstance(end, Settled)
    assert witness.undrained() == []
    assert witness.fewest >= replicas
    fleet = await live.until(is_whole, "whole again")
    assert (fleet.replicas, fleet.revision) == (replicas, forward.order.toward)


@pytest.mark.parametrize("effects", [2, 3, 4])
async def test_left_to_somebodys_edit_the_fields_are_given_back_and_their_rollout_goes_on(
    live: LiveFleet, effects: int
) -> None:
    await live.serving(2)
    own = live.deployment()["spec"]
    forward = walker(live, await live.look())
    await stopped_after(forward, effects)
    live.light.kubectl("-n", live.namespace, "set", "image", f"deployment/{NAME}", "vllm=vllm:next")
    theirs = live.deployment()["spec"]["template"]

    await led(live, forward, lambda fleet: releasing_move(fleet, forward.order.recorded))
    await live.until(lambda fleet: is_whole(fleet) and fleet.updated_replicas == 2, "their rollout ends")

    assert text(live.deployment()["spec"]) == text({**own, "template": theirs})


async def test_at_rest_the_fleet_stands_still_with_every_replica_in_rotation(live: LiveFleet) -> None:
    """After each effect of a walk, once for each number of replicas that are changed already."""
    await live.serving(2)
    forward, rested = walker(live, await live.look()), set()

    def rest(fleet: Fleet) -> Move:
        move = resting_move(fleet, datetime.now(UTC), forward.order.pulsed_at)
        return Settled() if isinstance(move, Wait) and move.reason is Reason.HOLDING else move

    while not isinstance(move := await forward.step(), Settled):
        place = (type(move).__name__, (await live.fleet()).updated_replicas)
        if isinstance(move, Wait | Restore | Pause) or place in rested:
            # A pulse whose number the status shows late is passed over, and the walk pauses by itself then.
            await asyncio.sleep(0.05)
            continue
        rested.add(place)
        await led(live, forward, rest)
        before = await live.until(
            lambda fleet: fleet.in_rotation == len(fleet.pods) >= 2, "all are in rotation"
        )
        await asyncio.sleep(1)
        after = await live.fleet()
        assert after.fields.paused
        assert [pod.uid for pod in after.pods] == [pod.uid for pod in before.pods]
        assert not any(pod.cordoned for pod in after.pods)

    assert {name for name, _ in rested} == {"Freeze", "Cordon", "Pulse"}


async def test_a_person_can_neither_undo_nor_restart_between_two_steps(live: LiveFleet) -> None:
    await live.serving(1)
    forward = walker(live, await live.look())
    await stopped_after(forward, 2)

    for command in (["undo"], ["restart"]):
        with pytest.raises(subprocess.CalledProcessError):
            live.light.kubectl("-n", live.namespace, "rollout", *command, f"deployment/{NAME}")


async def led(live: LiveFleet, walk: Walker, decide: Callable[[Fleet], Move], seconds: float = 40) -> None:
    """Carry out what some other decision than the walk's wants, until it is satisfied."""
    async with asyncio.timeout(seconds):
        while True:
            fleet = await live.fleet()
            move = decide(fleet)
            if isinstance(move, Settled):
                return
            with suppress(Conflict):
                await walk.carry_out(fleet, move)
            await asyncio.sleep(0.05)


def _args(pod: dict[str, Any]) -> str:
    return str(pod["spec"]["containers"][0]["args"][EDIT.index])


def _pod(fleet: Fleet, name: str) -> Any:
    return next(pod for pod in fleet.pods if pod.name == name)


IN_WAVES = {"wave": 2, "compared": 1}
"""The first new replica went on, so that the rest may go by twos."""
WAVE = ["Cordon", "Cordon", "Pulse", "Pause"]


async def test_a_wave_waits_for_its_spares_and_takes_only_drained_replicas(live: LiveFleet) -> None:
    await live.serving(5)
    forward = walker(live, await live.look(), **IN_WAVES)

    async with witnessed(live) as witness:
        end = await forward.walk()

    assert isinstance(end, Settled)
    last = ["Cordon", "Pulse", "Pause"]
    assert forward.effects() == [
        *["Freeze", "Pause", "Pulse", "Pause"],
        *WAVE,
        *WAVE,
        *last,
        *["Restore", "Settled"],
    ]
    assert len(witness.gone) == 5
    assert witness.undrained() == []
    assert witness.fewest >= 5
    assert is_whole(await live.fleet())


@pytest.mark.parametrize("effects", [3, 4, 5, 6, 7, 8, 10, 12])
async def test_from_anywhere_in_a_wave_the_way_back_takes_only_drained_replicas(
    live: LiveFleet, effects: int
) -> None:
    await live.serving(5)
    before = live.deployment()
    forward = walker(live, await live.look(), **IN_WAVES)

    async with witnessed(live) as witness:
        await stopped_after(forward, effects)
        end = await forward.back().walk()

    assert isinstance(end, Settled)
    assert witness.undrained() == []
    assert witness.fewest >= 5
    assert text(live.deployment()["spec"]) == text(before["spec"])


async def test_a_successor_finds_its_way_after_any_effect_of_a_wave(live: LiveFleet) -> None:
    await live.serving(5)
    walks = [walker(live, await live.look(), **IN_WAVES)]

    async with witnessed(live) as witness, asyncio.timeout(120):
        while True:
            await stopped_after(walks[-1], 1)
            if isinstance(walks[-1].moves[-1], Settled | Failed):
                break
            await asyncio.sleep(0.5)
            walks.append(Walker(live, walks[-1].order, walks[0].claim_of))

    assert isinstance(walks[-1].moves[-1], Settled)
    assert len(witness.gone) == 5
    assert witness.undrained() == []
    assert witness.fewest >= 5
