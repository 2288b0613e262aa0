"""The image that tests of the lab itself run in pods."""

from pathlib import Path

import pytest

from lab.images import Recipe, provide

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def probe_image(cluster):
    """Python, as nobody, in the cluster."""
    containerfile = HERE / "Containerfile"
    return provide(cluster, Recipe("probe", containerfile, context=HERE, inputs=[containerfile]))
