"""What `make release` packs is one version, and whole."""

from __future__ import annotations

import tarfile

import pytest
import yaml

from chart.generated import CHART
from chart.rendering import kustomize, objects
from kvmedic import __version__
from lab.release import has_section, pack, refuse_several_versions, versions


def test_chart_package_and_manifests_name_one_version():
    refuse_several_versions(versions())


def test_a_release_of_several_versions_is_refused_with_their_places():
    with pytest.raises(ValueError, match=r"Chart\.yaml version 9\.9\.9; write the same everywhere"):
        refuse_several_versions({"package": __version__, "charts/kvmedic/Chart.yaml version": "9.9.9"})


def test_the_changelog_of_a_release_has_its_section():
    assert has_section(f"# Changelog\n\n## [Unreleased]\n\n## [{__version__}] - 2027-01-01\n")
    assert not has_section("# Changelog\n\n## [Unreleased]\n")


@pytest.mark.light
def test_the_packed_chart_and_the_manifests_are_those_of_the_tree(tmp_path):
    chart, install, crds = pack(tmp_path)

    with tarfile.open(chart) as packed:
        inside = {name.removeprefix("kvmedic/") for name in packed.getnames()}
    assert inside == {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    assert objects(install.read_text()) == kustomize()
    kinds = {document["kind"] for document in yaml.safe_load_all(crds.read_text())}
    assert kinds == {"CustomResourceDefinition"}
