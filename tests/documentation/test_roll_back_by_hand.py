"""The page on rolling back by hand does what it says, in the middle of a walk, on real controllers."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from kvmedic.cluster.workloads import DeploymentTarget
from kvmedic.kube.client import Limits, connect
from kvmedic.kube.errors import Conflict
from kvmedic.model.edits import ReferenceEdit
from kvmedic.model.fleet import Fleet, Pod, template_hash
from kvmedic.rollout.moves import Cordon, ScaleOut
from lab.cluster.light import LightCluster
from worlds.live_fleet import NAME, POLL_SECONDS, LiveFleet, is_whole, walker

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "roll-back-by-hand.md").read_text()
SERVING = "true"
"""The label's value in the fleet of these tests, where the page has `active`."""
STOPS = {"while the canary is there": 2, "while a replica is drained": 3, "with one replica swapped": 6}
"""Effects of a walk after which nobody goes on: freeze, pause, then cordon, pulse, pause for each."""


@pytest.fixture
async def live(light: LightCluster, namespace: str) -> AsyncIterator[LiveFleet]:
    async with await connect(light.kubeconfig, Limits(per_second=500, burst=500)) as client:
        yield LiveFleet(light, client, namespace)


def block(name: str) -> str:
    """Return the code under a mark of the page."""
    found = re.search(rf"<!-- tested: {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found, name
    return found.group(1)


def type_in(live: LiveFleet, name: str, pod: str = "") -> None:
    """Run the commands of a block as a person would, with the names filled in."""
    text = re.sub(r"\bPOD\b", pod, re.sub(r"\bNAME\b", NAME, re.sub(r"\bNS\b", live.namespace, block(name))))
    text = text.replace("serving=active", f"serving={SERVING}")
    for command in re.split(r"\n(?=kubectl)", text.strip()):
        program, *arguments = shlex.split(command)
        assert program == "kubectl"
        live.light.kubectl(*arguments)


@pytest.mark.parametrize("effects", STOPS.values(), ids=STOPS)
async def test_a_run_that_nobody_goes_on_with_is_taken_back_by_the_commands_of_the_page(
    live: LiveFleet, effects: int
) -> None:
    await live.serving(3)
    before = live.deployment()["spec"]
    forward = walker(live, await live.look())
    while len(forward.effects()) < effects:
        await forward.step()
    note = json.loads(live.deployment()["metadata"]["annotations"]["kvmedic.io/recorded"])

    for pod in (await live.fleet()).pods:
        if pod.cordoned:
            type_in(live, "uncordon", pod.name)
    type_in(live, "patch")
    fleet = await live.until(
        lambda f: is_whole(f) and {p.revision for p in f.pods} == {f.revision}, "the old setting everywhere"
    )
    type_in(live, "unclaim")

    marks = live.deployment()["metadata"]["annotations"]
    assert note == json.loads(block("note"))
    assert live.deployment()["spec"] == before
    assert not any(pod.cordoned for pod in fleet.pods)
    assert [name for name in marks if name.startswith("kvmedic.io/")] == []


async def test_a_reference_to_a_copy_is_put_back_by_the_command_of_the_page(live: LiveFleet) -> None:
    await live.serving(2)
    volumes = [{"name": "config", "configMap": {"name": "limits"}}]
    live.patch({"spec": {"template": {"spec": {"volumes": volumes}}}})
    await live.until(
        lambda f: is_whole(f) and {p.revision for p in f.pods} == {f.revision}, "the volume everywhere"
    )
    before, seen = live.deployment()["spec"]["template"], await live.look()
    edit = ReferenceEdit("config", 0, None, "limits", "limits-0123456789")
    forward = walker(live, seen, edit=edit, toward=template_hash(edit.apply(seen.template)))
    while len(forward.effects()) < STOPS["while the canary is there"]:
        await forward.step()
    changed = live.deployment()
    note = json.loads(changed["metadata"]["annotations"]["kvmedic.io/recorded"])

    type_in(live, "reference")

    named = {"volume": "config", "volumeIndex": 0, "before": "limits", "after": "limits-0123456789"}
    assert changed["spec"]["template"] != before
    assert {key: note[key] for key in named} == named
    assert live.deployment()["spec"]["template"] == before


async def test_a_replacement_that_nobody_goes_on_with_is_ended_by_the_commands_of_the_page(
    live: LiveFleet,
) -> None:
    first = (await live.serving(3)).pods[0]
    before = live.deployment()["spec"]
    target = DeploymentTarget(live.client)
    await repeated(live, lambda fleet: target.apply(fleet, ScaleOut(3, 4, first.name), "r/1/1"))
    await live.until(is_whole, "a spare")
    await repeated(live, lambda fleet: target.apply(fleet, Cordon(pod_of(fleet, first.uid)), "r/1/1"))
    await live.until(lambda fleet: fleet.in_rotation == 3, "one replica out of rotation")

    type_in(live, "scale")
    fleet = await live.until(lambda seen: len(seen.pods) == 3 and is_whole(seen), "the number of before")
    type_in(live, "unclaim")

    assert first.uid not in {pod.uid for pod in fleet.pods}
    assert live.deployment()["spec"] == before
    assert not any(key.startswith("kvmedic.io/") for key in live.deployment()["metadata"]["annotations"])


def pod_of(fleet: Fleet, uid: str) -> Pod:
    return next(pod for pod in fleet.pods if pod.uid == uid)


async def repeated(live: LiveFleet, effect: Callable[[Fleet], Awaitable[None]]) -> None:
    """Carry out an effect on a fresh look, again where the world moved in between."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await effect(await live.fleet())
            except Conflict:
                await asyncio.sleep(POLL_SECONDS)
