"""The operator as users install it heals a fleet on a real cluster: the demo, judged by its own goals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster.api import Api
from lab.cluster.interface import GPU, Cluster, set_gpus
from lab.demo.play import Play
from lab.demo.scenario import THRASH
from lab.demo.stage import clear, stage
from lab.demo.view import PlainView
from lab.installation import uninstall

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def swept(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster; without a fleet and an operator again afterwards."""
    with Api(cluster.access) as api:
        gpus = int(api.list("Node", None)[0]["status"]["capacity"][GPU])
        yield cluster
        clear(api)
    uninstall(cluster)
    set_gpus(cluster.access, gpus)


def test_a_thrashing_fleet_is_healed_and_no_request_is_lost(swept: Cluster, tmp_path: Path) -> None:
    with stage(THRASH, swept) as made:
        result = Play(THRASH, made.cluster.access, made.url, PlainView()).run(tmp_path)

    assert result.missed == []
    assert result.verdict == "Recovered"
    assert result.foreign_writers == ["kvmedic"]
