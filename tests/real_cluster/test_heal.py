"""The operator as users install it on a real cluster: scenarios, each judged by its own file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chart.dashboards import queries
from lab.cluster.api import Api, until
from lab.cluster.interface import GPU, Cluster, set_gpus
from lab.demo import PlainView
from lab.installation import NAMESPACE as OPERATOR
from lab.installation import RELEASE, install, uninstall
from lab.play.files import read
from lab.play.lanes import most_gpus
from lab.play.schema import FLEET
from lab.play.stage import Stage, clear, operator_values, stage
from worlds.inbox import Inbox

NAMESPACE = "serving"
REPRESENTATIVE = ("thrash", "gpu-fault")
"""One in which a fleet is healed and one in which it must be left alone; `make scenarios` plays all."""
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def clean_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster; without a fleet and an operator again afterwards."""
    with Api(cluster.access) as api:
        gpus = int(api.list("Node", None)[0]["status"]["capacity"][GPU])
        yield cluster
        clear(api, NAMESPACE)
    uninstall(cluster)
    set_gpus(cluster.access, gpus)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_a_scenario_ends_as_its_file_says(clean_cluster: Cluster, tmp_path: Path, name: str) -> None:
    scenario, began = read(name), time.time()

    with (
        Inbox(clean_cluster.host_address) as inbox,
        stage(clean_cluster, [scenario], most_gpus([scenario], 1)) as made,
    ):
        _notify(made, inbox)
        with made.set(scenario, NAMESPACE, PlainView()) as play:
            result = play.run(tmp_path)
        empty = _empty_panels(made, began)
        events = _events(made)
        until(lambda: not _unsent_events(events, inbox), 30, "a notification of each Event")

    assert result.missed == []
    assert empty <= MAY_BE_EMPTY
    assert result.foreign_writers == (["kvmedic"] if scenario.expect.moves else [])
    assert events
    assert {(each["cluster"], each["installation"]) for each in inbox.received} == {
        ("lab", f"{OPERATOR}/{RELEASE}")
    }


MAY_BE_EMPTY = {"fleets: Looks 1"}
"""Looks that failed: most plays have none."""


def _empty_panels(made: Stage, began: float) -> set[str]:
    """Return the dashboards' queries that show nothing of a play, asked as Grafana asks."""
    asked = queries(NAMESPACE, FLEET, "1m")
    return {where for where, text in asked if not made.prometheus.query_range(text, began, time.time(), 5)}


def _notify(made: Stage, inbox: Inbox) -> None:
    """Have the operator send its Events to somebody, at a URL from a Secret."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "webhook"}}
    with Api(made.cluster.access) as api:
        api.apply({**secret, "stringData": {"url": inbox.url}}, OPERATOR)
    team = {"urlSecret": {"name": "webhook", "key": "url"}, "only": "all", "cluster": "lab"}
    way = {"to": [{"ipBlock": {"cidr": f"{inbox.host}/32"}}], "ports": [{"port": inbox.port}]}
    values = {"notify": {"team": team}, "networkPolicy": {"egress": [way]}}
    install(made.cluster, operator_values(made.prometheus.url) | values)


PAGE = "[page] "
"""What an Event's message has in front; a notification has the severity as a field."""


def _unsent_events(events: set[tuple[str, str]], inbox: Inbox) -> list[tuple[str, str]]:
    """Return the Events of which nobody was notified."""
    return [event for event in events if not any(map(partial(_matches, event), inbox.received))]


def _matches(event: tuple[str, str], sent: dict[str, Any]) -> bool:
    """Return whether a notification says what an Event does, of whose message the end may be cut."""
    reason, message = event
    return sent["reason"] == reason and str(sent["message"]).startswith(message.removeprefix(PAGE))


def _events(made: Stage) -> set[tuple[str, str]]:
    """Return reason and message of each Event of the fleet's resource."""
    with Api(made.cluster.access) as api:
        found = api.list("Event", NAMESPACE)
    return {
        (event["reason"], event["message"])
        for event in found
        if event["involvedObject"]["kind"] == "KVRemediation"
    }
