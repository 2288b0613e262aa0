"""What `kvmedic blocks` and `kvmedic crd` print."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from kvmedic.cli.app import app_for

POST = ("--tokens", "16000", "--block-size", "16", "--evict", "14000")


def blocks(*arguments: str) -> Result:
    return CliRunner().invoke(app_for(["blocks"]), ["blocks", *arguments])


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("scattered", "free       117.9 of 1000 blocks (11.8 %), give or take 8.5"),
        ("per-head", "free       0.0 of 1000 blocks (0.0 %)"),
        ("compact", "free       875.0 of 1000 blocks (87.5 %)"),
        ("runs:8", "free       681.2 of 1000 blocks (68.1 %)"),
    ],
)
def test_one_eviction_frees_by_where_the_survivors_are(pattern, line):
    done = blocks(*POST, "--pattern", pattern)

    assert done.exit_code == 0
    assert done.output.splitlines() == ["evicted    14000 of 16000 tokens (87.5 %)", line]


def test_layers_that_choose_for_themselves_are_shown_beside_one_choice_for_all():
    done = blocks("--tokens", "16000", "--evict", "15840", "--layers", "4")

    assert done.output.splitlines() == [
        "evicted    15840 of 16000 tokens (99.0 %)",
        "free       525.4 of 1000 blocks (52.5 %), give or take 8.4",
        "else       851.4 if all 4 layers kept the same tokens",
    ]
    assert json.loads(blocks(*POST, "--layers", "2", "-o", "json").output)["layers"] == 2


def test_a_program_gets_every_number():
    numbers = json.loads(blocks(*POST, "-o", "json").output)

    assert (numbers["blocks"], numbers["evictedTokens"], numbers["pattern"]) == (1000, 14000, "scattered")
    assert numbers["freeBlocks"] == pytest.approx(117.94, abs=0.01)
    assert numbers["freeBlocksDeviation"] == pytest.approx(8.5, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--tokens", "10", "--evict", "11"), "--evict must be between 0 and --tokens (10), got 11"),
        (
            (*POST, "--pattern", "sideways"),
            "--pattern must be scattered, per-head, runs:LENGTH or compact, got 'sideways'",
        ),
        ((*POST, "--pattern", "runs:0"), "--pattern runs:LENGTH must be 1 or more, got 0"),
        ((*POST, "--layers", "0"), "--layers must be 1 or more, got 0"),
    ],
)
def test_what_names_no_eviction_is_refused_with_what_may_be(arguments, named):
    done = blocks(*arguments)

    assert done.exit_code == 2
    assert named in done.output


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
