"""What `make release` packs is one version, and whole."""

from __future__ import annotations

import json
import re
import tarfile
from typing import Any

import pytest
import yaml

from chart.generated import CHART, ROOT
from chart.rendering import kustomize, objects
from kvmedic import __version__
from lab.release import (
    NOT_AUDITED,
    VULNERABLE,
    base_component,
    has_section,
    judge_audit,
    pack,
    refuse_several_versions,
    versions,
)

DIGEST = "sha256:" + "0a" * 32
SAFE: dict[str, Any] = {"name": "aiohttp", "version": "3.14.5", "vulns": []}
UNKNOWN: dict[str, Any] = {"name": "kopf", "skip_reason": "kopf was not found and could not be audited"}
UNSAFE: dict[str, Any] = {"name": "idna", "version": "3.2", "vulns": [{"id": "CVE-2024-3651"}]}


def test_chart_package_and_manifests_name_one_version():
    refuse_several_versions(versions())


def test_a_release_of_several_versions_is_refused_with_their_places():
    with pytest.raises(ValueError, match=r"Chart\.yaml version 9\.9\.9; write the same everywhere"):
        refuse_several_versions({"package": __version__, "charts/kvmedic/Chart.yaml version": "9.9.9"})


def test_the_changelog_of_a_release_has_its_section():
    assert has_section(f"# Changelog\n\n## [Unreleased]\n\n## [{__version__}] - 2027-01-01\n")
    assert not has_section("# Changelog\n\n## [Unreleased]\n")


@pytest.mark.parametrize(
    ("base", "path", "purl"),
    [
        (f"python:3.11-slim@{DIGEST}", "python", "pkg:oci/python@sha256%3A" + "0a" * 32 + "?tag=3.11-slim"),
        (f"registry.example:5000/a/python@{DIGEST}", "registry.example:5000/a/python", None),
    ],
)
def test_a_base_by_digest_is_part_of_the_bill_of_materials(base, path, purl):
    found = base_component(base)

    assert (found["name"], found["version"]) == (path, DIGEST)
    assert found["purl"] == (purl or "pkg:oci/python@sha256%3A" + "0a" * 32)


@pytest.mark.parametrize("base", ["", "python:3.11-slim", "python@sha256:0a", f"python@{DIGEST}0"])
def test_a_base_that_may_be_another_image_tomorrow_is_refused_with_what_to_type(base):
    with pytest.raises(ValueError, match=r"make release BASE=python:3\.11-slim@sha256:"):
        base_component(base)


@pytest.mark.parametrize(
    ("found", "code", "says"),
    [
        ([SAFE], 0, "none of 1 packages"),
        ([SAFE, UNKNOWN], NOT_AUDITED, "NOT AUDITED: 1 of 2 packages, such as: kopf was not found"),
        ([UNSAFE, UNKNOWN], VULNERABLE, "idna 3.2: CVE-2024-3651"),
        ([], NOT_AUDITED, "NOT AUDITED: 0 of 0 packages"),
    ],
)
def test_only_packages_that_were_all_looked_up_count_as_safe(found, code, says):
    verdict, sentence = judge_audit(json.dumps({"dependencies": found}))

    assert verdict == code
    assert says in sentence


def test_an_advisory_service_that_cannot_be_reached_is_named():
    verdict, sentence = judge_audit("", "Traceback\nConnectionError: no route to host\n")

    assert verdict == NOT_AUDITED
    assert sentence.endswith("cannot be reached (ConnectionError: no route to host)")


def test_the_image_is_what_its_last_stage_copies_and_no_root_runs_it():
    last = (ROOT / "Containerfile").read_text().rpartition("\nFROM ")[2]

    assert last.startswith("scratch\n")
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == ["65532:65532"]
    assert "RUN [" in last, "what it loads is loaded once, without a shell"
    assert not re.search(r"^(RUN [^\[]|ADD )", last, re.MULTILINE)


def test_the_packed_chart_and_the_manifests_are_those_of_the_tree(tmp_path):
    chart, install, crds = pack(tmp_path)

    with tarfile.open(chart) as packed:
        inside = {name.removeprefix("kvmedic/") for name in packed.getnames()}
    assert inside == {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    assert objects(install.read_text()) == kustomize()
    kinds = {document["kind"] for document in yaml.safe_load_all(crds.read_text())}
    assert kinds == {"CustomResourceDefinition"}
