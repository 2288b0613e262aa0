"""Configuration files in ConfigMaps: what is shown, and that only a copy is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from kvmedic.cli.app import app_for

DATA = Path(__file__).parents[1] / "data" / "vllm"
CASES: list[dict[str, Any]] = json.loads((DATA / "argv_cases.json").read_text())
FILES = {f"/config/{path.name}": path.read_text() for path in (DATA / "config").iterdir()}

MAP = """\
apiVersion: v1
kind: ConfigMap   # limits
metadata:
  name: limits    # by hand
  labels: {app: chat}
data:
  other.txt: |
    nothing
  engine.yaml: |
    # limits of the fleet
    max-num-seqs: 64   # cap
    gpu_memory_utilization: "0.9"
    enable-prefix-caching: true
"""
POD = """\
kind: Deployment
metadata: {name: chat}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        command: [vllm, serve, m, --config, /etc/vllm/engine.yaml]
        args: [--port=80]
        volumeMounts:
        - {name: config, mountPath: /etc/vllm}
      volumes:
      - name: config
        configMap:
          name: limits
"""


def kvmedic(*arguments: str, text: str) -> Result:
    return CliRunner().invoke(app_for(("flags",)), ["flags", *arguments, "-f", "-"], input=text)


def shown(text: str) -> dict[str, Any]:
    result = kvmedic("show", "-o", "json", text=text)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)["containers"]["vllm"]
    return found


def test_the_file_is_read_through_its_config_map() -> None:
    result = kvmedic("show", text=MAP + "---\n" + POD)

    assert result.stdout.splitlines()[1:] == [
        "  max_num_seqs             64               ConfigMap/limits engine.yaml line 2",
        "  gpu_memory_utilization   0.9              ConfigMap/limits engine.yaml line 3",
        "  enable_prefix_caching    true             ConfigMap/limits engine.yaml line 4",
    ]
    assert result.stderr == ""


def test_the_command_line_beats_the_file() -> None:
    text = MAP + "---\n" + POD.replace("--port=80", "--max-num-seqs=8")

    assert shown(text)["max_num_seqs"] == 8
    result = kvmedic("set", "max_num_seqs=16", text=text)
    assert result.stdout == text.replace("--max-num-seqs=8", "--max-num-seqs=16")


@pytest.mark.parametrize("order", [(MAP, POD), (POD, MAP)], ids=["map first", "map last"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_a_copy_is_changed_and_the_template_refers_to_it(order: tuple[str, str], ends: str) -> None:
    text = "---\n".join(order).replace("\n", ends)
    old = list(yaml.safe_load_all(text))

    result = kvmedic("set", "max_num_seqs=16", text=text)

    assert result.exit_code == 0, result.stderr
    changed = result.stdout_bytes.decode()
    new = list(yaml.safe_load_all(changed))
    maps = [document for document in new if document["kind"] == "ConfigMap"]
    (pod,) = [document for document in new if document["kind"] == "Deployment"]
    original = next(document for document in old if document["kind"] == "ConfigMap")
    (copy,) = [document for document in maps if document != original]
    assert original in maps, "never in place"
    assert copy["metadata"]["name"].startswith("limits-")
    assert copy["data"] == {
        **original["data"],
        "engine.yaml": original["data"]["engine.yaml"].replace("64", "16"),
    }
    volumes = pod["spec"]["template"]["spec"].pop("volumes")
    assert volumes == [{"name": "config", "configMap": {"name": copy["metadata"]["name"]}}]
    (before,) = [document for document in old if document["kind"] == "Deployment"]
    before["spec"]["template"]["spec"].pop("volumes")
    assert pod == before
    assert changed.count("# cap") == 2
    assert shown(changed) == {**shown(text), "max_num_seqs": 16}


def test_a_copy_of_a_copy_has_one_hash_and_the_same_change_gives_the_same_name() -> None:
    first = kvmedic("set", "max_num_seqs=16", text=MAP + "---\n" + POD).stdout
    second = kvmedic("set", "max_num_seqs=32", text=first).stdout
    again = kvmedic("set", "max_num_seqs=16", text=MAP + "---\n" + POD).stdout

    names = {document["metadata"]["name"] for document in yaml.safe_load_all(second)}
    assert again == first
    assert len([name for name in names if name.startswith("limits")]) == 3
    assert all(name.count("-") <= 1 for name in names)
    assert shown(second)["max_num_seqs"] == 32


def test_a_quoted_value_keeps_its_quotes() -> None:
    result = kvmedic("set", "gpu_memory_utilization=0.85", text=MAP + "---\n" + POD)

    assert 'gpu_memory_utilization: "0.85"' in result.stdout
    assert shown(result.stdout)["gpu_memory_utilization"] == 0.85


def test_a_switch_is_turned_off_on_the_command_line_because_the_file_cannot() -> None:
    text = MAP + "---\n" + POD

    result = kvmedic("set", "enable_prefix_caching=false", text=text)

    assert result.stdout == text.replace("[--port=80]", "[--port=80, --no-enable-prefix-caching]")


def test_what_the_file_does_not_give_is_appended_to_the_command_line() -> None:
    text = MAP + "---\n" + POD

    assert kvmedic("set", "watermark=0.1", text=text).stdout == text.replace(
        "[--port=80]", "[--port=80, --watermark=0.1]"
    )


def test_what_is_set_already_stays() -> None:
    result = kvmedic("set", "max_num_seqs=64", text=MAP + "---\n" + POD)

    assert result.stdout == MAP + "---\n" + POD
    assert "already" in result.stderr


OTHER_LAYOUTS = [
    pytest.param(
        "mountPath: /etc/vllm}", "mountPath: /etc/vllm/engine.yaml, subPath: engine.yaml}", id="subPath"
    ),
    pytest.param(
        "          name: limits\n",
        '          name: "limits"\n          items: [{key: engine.yaml, path: engine.yaml}]\n',
        id="items",
    ),
    pytest.param("[vllm, serve, m, --config, /etc/vllm/engine.yaml]", "sh -c", id="script"),
]


@pytest.mark.parametrize(("old", "new"), OTHER_LAYOUTS)
def test_other_ways_to_the_file(old: str, new: str) -> None:
    pod = POD.replace(old, new)
    if new == "sh -c":
        pod = pod.replace("sh -c", "[sh, -c]").replace(
            "[--port=80]", "[vllm serve m --config /etc/vllm/engine.yaml]"
        )
    text = MAP + "---\n" + pod

    result = kvmedic("set", "max_num_seqs=16", text=text)

    assert result.exit_code == 0, result.stderr
    assert shown(result.stdout) == {**shown(text), "max_num_seqs": 16}


UNSEEN = [
    pytest.param(MAP, "", "ConfigMap/limits, which is not in the manifest", id="no ConfigMap"),
    pytest.param(
        "engine.yaml: |", "engine.yml: |", "ConfigMap/limits has no 'engine.yaml'", id="no such key"
    ),
    pytest.param(
        "mountPath: /etc/vllm", "mountPath: /data", "no volume is mounted at /etc/vllm", id="not mounted"
    ),
    pytest.param(
        "configMap:\n          name: limits", "emptyDir: {}", "which is no ConfigMap", id="another volume"
    ),
    pytest.param("- name: config\n", "- name: other\n", "which is not in the pod", id="no volume"),
    pytest.param("    max-num-seqs: 64", "    max-num-seqs: [64", "not readable as YAML", id="broken file"),
]


@pytest.mark.parametrize(("old", "new", "said"), UNSEEN)
def test_a_file_that_cannot_be_seen_refuses_what_may_be_in_it(old: str, new: str, said: str) -> None:
    text = (MAP + "---\n" + POD).replace(old, new)

    refused = kvmedic("set", "max_num_seqs=16", text=text)
    on_the_line = kvmedic("set", "max_num_seqs=16", text=text.replace("--port=80", "--max-num-seqs=8"))

    assert refused.exit_code == 3
    assert refused.stdout == ""
    assert said in refused.stderr
    assert "max_num_seqs may be in a file" in refused.stderr
    assert on_the_line.exit_code == 0
    assert said in kvmedic("show", text=text).stderr


def test_a_config_map_in_a_list_is_not_copied() -> None:
    text = json.dumps({"kind": "List", "items": list(yaml.safe_load_all(MAP + "---\n" + POD))})

    result = kvmedic("set", "max_num_seqs=16", text=text)

    assert result.exit_code == 3
    assert "not in the manifest" in result.stderr


@pytest.mark.parametrize("case", [c for c in CASES if "--config" in c["argv"] and "parsed" in c], ids=str)
def test_recorded_files_read_as_vllm_read_them(case: dict[str, Any]) -> None:
    argv = case["argv"]
    path = argv[argv.index("--config") + 1]
    config = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {Path(path).name: FILES[path]}}
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "command": argv,
        "volumeMounts": [{"name": "v", "mountPath": "/config"}],
    }
    spec = {"containers": [container], "volumes": [{"name": "v", "configMap": {"name": "c"}}]}
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}

    values = shown(yaml.safe_dump_all([config, pod]))

    assert values == {dest: case["parsed"][dest] for dest in values}
    assert values["max_num_seqs"] == case["parsed"]["max_num_seqs"]
