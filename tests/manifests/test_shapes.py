"""A table of manifest shapes: each is set by the command, and run before and after by a shell."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from kvmedic.cli.app import app_for
from kvmedic.model.engine import Version
from manifests import reference_parser
from manifests.shell_oracle import ShellOracle, engine_arguments

SHAPES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "shapes.yaml").read_text())
PARSER = reference_parser.parser_of(Version.parse("0.32.0"))
TEMPLATES: dict[str, tuple[str, ...]] = {
    "Deployment": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "Pod": ("spec",),
    "LeaderWorkerSet": ("spec", "leaderWorkerTemplate", "leaderTemplate", "spec"),
    "ServingRuntime": ("spec",),
    "InferenceService": ("spec", "predictor"),
    "RoleBasedGroup": ("spec", "roles", "template", "spec"),
}


def manifest_of(shape: dict[str, Any]) -> dict[str, Any]:
    """Return the object that a shape's container is in, beside a sidecar."""
    kind = shape.get("kind", "Deployment")
    image = shape.get("image", "vllm/vllm-openai:v0.32.0")
    container = {"name": "engine", "image": image, **shape["container"]}
    body: Any = {"containers": [{"name": "sidecar", "image": "envoy"}, container]}
    for key in reversed(TEMPLATES[kind]):
        body = {key: [body] if key == "roles" else body}
    return {"kind": kind, "metadata": {"name": "chat"}, **body}


def engine_of(text: str, kind: str) -> dict[str, Any]:
    """Return the engine's container in a manifest's text, as PyYAML reads it."""
    found = yaml.safe_load(text)
    for key in TEMPLATES[kind]:
        found = found[key]
        found = found[0] if isinstance(found, list) else found
    container: dict[str, Any] = found["containers"][1]
    return container


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> ShellOracle:
    return ShellOracle(tmp_path_factory.mktemp("shapes"))


def test_the_shapes_are_enough_and_in_the_proportions_that_were_counted() -> None:
    counts = Counter(shape["of"] for shape in SHAPES)

    assert len(SHAPES) >= 60
    assert counts["shell"] > counts["command"] >= counts["split"] - 1 > counts["args"] > counts["config"]
    assert len({shape["name"] for shape in SHAPES}) == len(SHAPES)


def arguments(oracle: ShellOracle, container: dict[str, Any]) -> dict[str, Any]:
    """Return what the engine is given, by its own names."""
    if "command" not in container:
        return reference_parser.parse(PARSER, container["args"])
    unset = {**container, "env": [entry for entry in container.get("env", ()) if "value" in entry]}
    (argv,) = oracle.argvs(unset)
    return reference_parser.parse(PARSER, engine_arguments(argv))


@pytest.mark.parametrize("shape", SHAPES, ids=[shape["name"] for shape in SHAPES])
def test_a_shape_is_set_or_refused_by_name(oracle: ShellOracle, shape: dict[str, Any]) -> None:
    text = yaml.safe_dump(manifest_of(shape), sort_keys=False, width=10000)
    options = ["flags", "set", "max_num_seqs=16", "-f", "-", "--engine-version", "0.32.0"]

    result = CliRunner().invoke(app_for(options), options, input=text)

    if "refused" in shape:
        assert result.exit_code == 3
        assert shape["refused"] in result.stderr
        assert result.stdout == ""
        return
    assert result.exit_code == 0, result.stderr
    kind = shape.get("kind", "Deployment")
    before, after = (engine_of(each, kind) for each in (text, result.stdout))
    assert arguments(oracle, after) == {**arguments(oracle, before), "max_num_seqs": 16}
    changed = {key for key in before if before[key] != after[key]}
    assert len(changed) == 1
    assert changed <= {"command", "args", "env"}
