"""Fixtures of the adapters' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import fleet_tape


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A real Prometheus that knows the scripted fleet's last hour."""
    directory = tmp_path_factory.mktemp("prometheus")
    fleet_tape().write(directory)
    with PrometheusServer(directory) as server:
        yield server
