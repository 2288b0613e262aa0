"""The operator as users install it on a real cluster: scenarios, each judged by its own file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster.api import Api
from lab.cluster.interface import GPU, Cluster, set_gpus
from lab.demo import PlainView
from lab.installation import uninstall
from lab.play.files import read
from lab.play.lanes import most_gpus
from lab.play.stage import clear, stage

NAMESPACE = "serving"
REPRESENTATIVE = ("thrash", "gpu-fault")
"""One in which a fleet is healed and one in which it must be left alone; `make scenarios` plays all."""
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def swept(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster; without a fleet and an operator again afterwards."""
    with Api(cluster.access) as api:
        gpus = int(api.list("Node", None)[0]["status"]["capacity"][GPU])
        yield cluster
        clear(api, NAMESPACE)
    uninstall(cluster)
    set_gpus(cluster.access, gpus)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_a_scenario_ends_as_its_file_says(swept: Cluster, tmp_path: Path, name: str) -> None:
    scenario = read(name)

    with (
        stage(swept, [scenario], most_gpus([scenario], 1)) as made,
        made.set(scenario, NAMESPACE, PlainView()) as play,
    ):
        result = play.run(tmp_path)

    assert result.missed == []
    assert result.foreign_writers == (["kvmedic"] if scenario.expect.moves else [])
