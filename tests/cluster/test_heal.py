"""The operator as users install it heals a fleet on a real cluster: the demo, judged by its own goals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster.api import Api
from lab.cluster.interface import GPU, Cluster, set_gpus
from lab.demo.view import PlainView
from lab.installation import uninstall
from lab.play.files import read
from lab.play.lanes import most_gpus
from lab.play.play import Play
from lab.play.stage import clear, stage
from lab.play.witness import Witness

NAMESPACE = "serving"
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture
def swept(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster; without a fleet and an operator again afterwards."""
    with Api(cluster.access) as api:
        gpus = int(api.list("Node", None)[0]["status"]["capacity"][GPU])
        yield cluster
        clear(api, NAMESPACE)
    uninstall(cluster)
    set_gpus(cluster.access, gpus)


def test_a_thrashing_fleet_is_healed_and_no_request_is_lost(swept: Cluster, tmp_path: Path) -> None:
    thrash = read("thrash")

    with (
        stage(swept, thrash.fleet.engine, most_gpus([thrash], 1)) as made,
        made.place(thrash, NAMESPACE) as place,
    ):
        witness = Witness(place.access, NAMESPACE)
        result = Play(thrash, witness, place.hands, place.url, PlainView()).run(tmp_path)

    assert result.missed == []
    assert result.verdicts == ["Recovered"]
    assert result.foreign_writers == ["kvmedic"]
