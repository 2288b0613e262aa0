"""A bundle on a real API server: the template that comes of it is the one that was told, both ways."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from kvmedic.cluster.workloads import assign
from kvmedic.kube.client import Limits, connect
from kvmedic.kube.errors import Conflict
from kvmedic.model.edits import BundleEdit, BundlePart, EnvEdit, Field, TokenEdit
from kvmedic.model.fleet import frozen, template_hash
from kvmedic.rollout.moves import Freeze
from lab.cluster.light import LightCluster
from live_fleet import LiveFleet, deployment

pytestmark = pytest.mark.light

HELD = frozen(max_unavailable=0, paused=True)
ONLY = EnvEdit("vllm", 0, "A", 0, "1", None)
BUNDLES: dict[str, tuple[list[dict[str, Any]], tuple[BundlePart, ...]]] = {
    "the only variable goes": ([{"name": "A", "value": "1"}], (ONLY,)),
    "the first variable comes": ([], (ONLY.inverse(),)),
    "a value becomes empty": ([{"name": "A", "value": "1"}], (replace(ONLY, after=""),)),
    "several": (
        [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}],
        (
            replace(ONLY, index=1, after="0"),
            EnvEdit("vllm", 0, "B", 0, "2", None),
            TokenEdit("vllm", 0, Field.ARGS, 2, "--max-num-seqs=64", None),
        ),
    ),
}


@pytest.fixture
async def live(light: LightCluster, namespace: str) -> AsyncIterator[LiveFleet]:
    async with await connect(light.kubeconfig, Limits(per_second=500, burst=500)) as client:
        yield LiveFleet(light, client, namespace)


async def put(live: LiveFleet, edit: BundleEdit, fence: str) -> dict[str, Any]:
    """Assign a bundle and return the template that the API server made of it."""
    while True:
        try:
            await assign(live.client, await live.fleet(), Freeze(edit, HELD), fence, {})
        except Conflict:
            continue
        template: dict[str, Any] = live.deployment()["spec"]["template"]
        return template


@pytest.mark.parametrize(("env", "parts"), BUNDLES.values(), ids=BUNDLES)
async def test_the_template_is_the_one_that_was_told(
    live: LiveFleet, env: list[dict[str, Any]], parts: tuple[BundlePart, ...]
) -> None:
    made = deployment(1, paused=True)
    made["spec"]["template"]["spec"]["containers"][0]["env"] = env
    live.light.api.create(made, live.namespace)
    await live.until(lambda fleet: fleet.observed, "the controller has seen it")
    before, bundle = live.deployment()["spec"]["template"], BundleEdit(parts)

    after = await put(live, bundle, "r/1/1")
    again = await put(live, bundle.inverse(), "r/1/2")

    assert template_hash(after) == template_hash(bundle.apply(before)) != template_hash(before)
    assert (after, again) == (bundle.apply(before), before)
