"""The CustomResourceDefinition comes after the operator, or goes while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster.light import LightCluster
from lab.scripted.proxy import Proxy
from worlds.phases import PATIENCE_SECONDS
from worlds.world import CRD, World, no_harm, remediation

NAMED = "customresourcedefinition/kvremediations.kvmedic.io"
LONG_ENOUGH_SECONDS = 3.0


@pytest.fixture
def bare(private_light: Callable[..., LightCluster], tmp_path: Path) -> Iterator[World]:
    """A cluster that knows no KVRemediation yet, and no operator."""
    light = private_light(controllers=True)
    with Proxy(light.url, light.token, no_harm) as proxy:
        world = World(light, light.create_namespace("serving"), tmp_path, proxy)
        proxy.kill = world.kill
        world.write_script(old="idle", new="idle", revision="none")
        yield world
        world.kill()


def install(world: World) -> None:
    world.cluster.apply(CRD.read_text())
    world.cluster.kubectl("wait", "--for=condition=Established", NAMED, "--timeout=10s")
    world.cluster.apply(remediation(), world.namespace)


def is_looked_after(world: World) -> bool:
    return world.condition("Ready") == ("False", "TargetNotFound")


@pytest.mark.timeout(120)
def test_a_definition_that_comes_later_is_waited_for(bare: World) -> None:
    bare.start()
    bare.wait(lambda: "is not installed" in bare.log, PATIENCE_SECONDS, "it says what is missing")
    time.sleep(LONG_ENOUGH_SECONDS)
    assert bare.log.count("is not installed") == 1

    install(bare)

    bare.wait(lambda: is_looked_after(bare), PATIENCE_SECONDS, "the resource is looked after")
    assert bare.starts == 1


@pytest.mark.timeout(120)
def test_without_its_definition_the_process_ends_and_the_next_one_waits(bare: World) -> None:
    install(bare)
    bare.start()
    bare.wait(lambda: is_looked_after(bare), PATIENCE_SECONDS, "the resource is looked after")

    bare.cluster.kubectl("delete", NAMED)
    bare.operators[0].process.join(PATIENCE_SECONDS)
    assert bare.operators[0].process.exitcode == 1, "Kubernetes restarts what ends"
    bare.start()
    bare.wait(lambda: "is not installed" in bare.log, PATIENCE_SECONDS, "it says what is missing")
    install(bare)

    bare.wait(lambda: is_looked_after(bare), PATIENCE_SECONDS, "the resource is looked after again")
