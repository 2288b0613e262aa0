"""`kvmedic crd` prints what the repository holds."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from kvmedic.cli.app import app_for

ROOT = Path(__file__).parents[2]
KINDS = ("kvremediations", "kvapprovals")


def crd(*arguments: str) -> Result:
    return CliRunner().invoke(app_for(["crd"]), ["crd", *arguments])


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_is_its_file_and_its_page(kind):
    manifest, page = crd(kind), crd(kind, "-o", "markdown")

    assert manifest.output == (ROOT / "crds" / f"kvmedic.io_{kind}.yaml").read_text()
    assert page.output == (ROOT / "docs" / "reference" / f"{kind.removesuffix('s')}.md").read_text()


def test_without_a_kind_kubectl_can_apply_them_all():
    documents = list(yaml.safe_load_all(crd().output))

    assert [each["metadata"]["name"] for each in documents] == [f"{kind}.kvmedic.io" for kind in KINDS]


def test_another_kind_is_refused_with_those_that_there_are():
    done = crd("pods")

    assert done.exit_code == 2
    assert all(kind in done.output for kind in KINDS)
