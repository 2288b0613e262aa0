"""A fleet with an operator for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from lab.cluster.light import LightCluster
from lab.scripted.proxy import Fate, Proxy, Write
from reconcile.world import APPROVALS_CRD, CRD, SERVICE, World, deployment, no_harm, remediation


@pytest.fixture(scope="session")
def crd(light: LightCluster) -> None:
    light.apply(CRD.read_text())
    light.apply(APPROVALS_CRD.read_text())
    kinds = ("crd/kvremediations.kvmedic.io", "crd/kvapprovals.kvmedic.io")
    light.kubectl("wait", "--for=condition=Established", *kinds, "--timeout=10s")


@pytest.fixture
def a_world(light: LightCluster, crd: None, namespace: str, tmp_path: Any) -> Iterator[Callable[..., World]]:
    """Makes a settled fleet and its resource; the operator is started by the test."""
    with ExitStack() as stack:

        def make(
            replicas: int = 2,
            decide: Callable[[Write], Fate] = no_harm,
            spec: dict[str, Any] | None = None,
            annotations: dict[str, str] | None = None,
            arguments: Sequence[str] = (),
            *,
            change: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
        ) -> World:
            proxy = stack.enter_context(Proxy(light.url, light.token, decide))
            world = World(light, namespace, tmp_path, proxy)
            proxy.kill = world.kill
            stack.callback(world.kill)
            # Created, not applied: a field manager that applies the template would own it.
            fleet = deployment(replicas, **(annotations or {}))
            pod = fleet["spec"]["template"]["spec"]
            pod["containers"][0]["args"] += arguments
            if change is not None:
                change(pod["containers"][0], pod)
            for manifest in (fleet, SERVICE):
                light.api.create(manifest, namespace)
            stack.enter_context(world.watches())
            world.wait(world.is_settled, 30, "the fleet is made")
            world.wait(lambda: world.endpoints() == replicas, 30, "endpoints of every replica")
            world.write_script(old="thrash", new="recovered", revision=world.revision())
            light.apply(remediation(**(spec or {})), namespace)
            return world

        yield make
