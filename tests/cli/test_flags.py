import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from kvmedic.cli.app import app_for

MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  template:
    spec:
      containers:
      - {name: proxy, image: envoy}
      - name: vllm
        image: vllm/vllm-openai:v0.32.0   # engine
        command: [vllm, serve]
        args:
        - /models/tiny
        - --max-num-seqs
        - "64"    # cap
        - --gpu_memory_utilization=.9
        - --no-enable-prefix-caching
        - "--api-key=s3cret"
"""


def kvmedic(*arguments: str, text: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app_for(arguments), list(arguments), input=text)


@pytest.fixture
def manifest(tmp_path) -> Path:
    path = tmp_path / "chat.yaml"
    path.write_bytes(MANIFEST.encode())
    return path


def test_show_gives_typed_values_by_the_engines_names(manifest):
    result = kvmedic("flags", "show", "-f", str(manifest), "-o", "json")

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "containers": {
            "vllm": {"max_num_seqs": 64, "gpu_memory_utilization": 0.9, "enable_prefix_caching": False}
        }
    }


def test_show_names_the_token_of_each_flag_and_no_secret(manifest):
    result = kvmedic("flags", "show", "-f", str(manifest))

    assert result.stdout.splitlines() == [
        "container vllm of Deployment/chat",
        "  max_num_seqs             64               args[2]",
        "  gpu_memory_utilization   0.9              args[3]",
        "  enable_prefix_caching    false            args[4]",
    ]


def test_show_of_several_objects_has_each_container():
    text = (
        MANIFEST + "---\n" + MANIFEST.replace("chat", "code").replace("vllm\n", "coder\n").replace("64", "8")
    )

    result = kvmedic("flags", "show", "-f", "-", "-o", "json", text=text)

    shown = json.loads(result.stdout)["containers"]
    assert {name: flags["max_num_seqs"] for name, flags in shown.items()} == {"vllm": 64, "coder": 8}


def test_show_says_that_a_file_is_read_besides():
    result = kvmedic(
        "flags", "show", "-f", "-", text=MANIFEST + "        - --config\n        - /etc/c.yaml\n"
    )

    assert result.exit_code == 0
    assert "also reads /etc/c.yaml" in result.stderr


def test_show_says_when_nothing_is_given():
    pod = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, command: [vllm, serve, m]}]}\n"

    result = kvmedic("flags", "show", "-f", "-", text=pod)

    assert "no flag that kvmedic knows" in result.stdout
    assert json.loads(kvmedic("flags", "show", "-f", "-", "-o", "json", text=pod).stdout) == {
        "containers": {"c": {}}
    }


@pytest.mark.parametrize(
    "name", ["max_num_seqs", "max-num-seqs", "--max-num-seqs", "--max_num_seqs", "maxNumSeqs"]
)
def test_set_takes_a_name_in_every_spelling(manifest, name):
    arguments = ["flags", "set", "-f", str(manifest), "--", f"{name}=16"]

    result = kvmedic(*arguments)

    assert result.exit_code == 0, result.stderr
    assert result.stdout_bytes == MANIFEST.replace('"64"', '"16"').encode()
    assert "args[2] of container vllm of Deployment/chat: '64' -> '16'" in result.stderr


def test_set_reads_standard_input_and_keeps_its_bytes():
    text = b"\xef\xbb\xbf" + MANIFEST.replace("\n", "\r\n").rstrip().encode()

    result = kvmedic("flags", "set", "enable_prefix_caching=true", "-f", "-", text=text)

    assert result.stdout_bytes == text.replace(b"--no-enable", b"--enable")


def test_set_to_the_value_that_is_there_prints_the_manifest_as_it_is(manifest):
    result = kvmedic("flags", "set", "gpu_memory_utilization=0.90", "-f", str(manifest))

    assert result.exit_code == 0
    assert result.stdout_bytes == MANIFEST.encode()
    assert "already" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["max_num_seqs=1k"], "invalid int value: '1k'"),
        (["max_num_sequences=4"], "did you mean max_num_seqs"),
        (["zzz=4"], "it knows max_num_seqs"),
        (["no_enable_prefix_caching=true"], "did you mean enable_prefix_caching"),
        (["swap_space=4"], "vLLM 0.32.0 does not have --swap-space"),
        (["watermark=0.1", "--engine-version", "0.20.2"], "vLLM 0.20.2 does not have --watermark"),
        (
            ["max_num_seqs=4", "--container", "proxy"],
            "no container starts vLLM: proxy of Deployment/chat; if one does all the same, say --engine",
        ),
        (["max_num_seqs=4", "--name", "code"], "no container of that name"),
    ],
)
def test_a_refusal_exits_3_with_its_reason_and_prints_no_manifest(manifest, arguments, said):
    result = kvmedic("flags", "set", *arguments, "-f", str(manifest))

    assert result.exit_code == 3
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", [["show"], ["set", "max_num_seqs=4"]])
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "command: [vllm, serve]",
            'command: [sh, -c, "f() { vllm serve m; }; f"]',
            "the function f around it",
        ),
        ('"64"', "64", "args[2] is the number 64"),
        ('"64"', '"64k"', "invalid int value: '64k'"),
        ("spec:", "spec: {", "not readable as YAML"),
    ],
)
def test_what_is_broken_is_refused_by_both(command, old, new, said):
    result = kvmedic("flags", *command, "-f", "-", text=MANIFEST.replace(old, new, 1))

    assert result.exit_code == 3
    assert said in result.stderr
    assert "s3cret" not in result.stderr


def test_a_list_with_an_anchor_is_shown_and_not_edited():
    anchored = MANIFEST.replace("args:", "args: &a", 1)

    shown = kvmedic("flags", "show", "-f", "-", text=anchored)
    edited = kvmedic("flags", "set", "max_num_seqs=4", "-f", "-", text=anchored)

    assert (shown.exit_code, edited.exit_code) == (0, 3)
    assert shown.stdout == kvmedic("flags", "show", "-f", "-", text=MANIFEST).stdout
    assert "has a YAML anchor" in edited.stderr


def test_containers_of_one_name_are_shown_by_the_objects_they_are_of():
    text = MANIFEST + "---\n" + MANIFEST.replace("chat", "code").replace("64", "8")

    shown = kvmedic("flags", "show", "-f", "-", text=text)
    containers = json.loads(kvmedic("flags", "show", "-f", "-", "-o", "json", text=text).stdout)["containers"]

    assert "container vllm of Deployment/chat\n" in shown.stdout
    assert {name: flags["max_num_seqs"] for name, flags in containers.items()} == {
        "vllm of Deployment/chat": 64,
        "vllm of Deployment/code": 8,
    }


def test_the_same_object_twice_is_shown_twice():
    result = kvmedic("flags", "show", "-f", "-", "-o", "json", text=MANIFEST + "---\n" + MANIFEST)

    assert len(json.loads(result.stdout)["containers"]) == 2


def test_what_cannot_be_followed_does_not_hide_the_others():
    broken = MANIFEST.replace("chat", "code").replace('"64"', '"64k"')

    shown = kvmedic("flags", "show", "-f", "-", text=MANIFEST + "---\n" + broken)
    answer = json.loads(
        kvmedic("flags", "show", "-f", "-", "-o", "json", text=MANIFEST + "---\n" + broken).stdout
    )

    assert shown.exit_code == 0
    assert "max_num_seqs             64" in shown.stdout
    assert (
        "container vllm of Deployment/code: not shown (WouldNotStart): vLLM 0.32.0 would not" in shown.stderr
    )
    assert list(answer["containers"]) == ["vllm of Deployment/chat"]
    assert list(answer["refused"]) == ["vllm of Deployment/code"]


def test_a_flag_from_a_config_map_is_named_and_the_others_are_shown():
    source = "valueFrom: {configMapKeyRef: {name: sizes, key: length}}"
    text = f"{MANIFEST}        - --max-model-len=$(LEN)\n        env: [{{name: LEN, {source}}}]\n"

    shown = kvmedic("flags", "show", "-f", "-", text=text)
    answer = json.loads(kvmedic("flags", "show", "-f", "-", "-o", "json", text=text).stdout)

    assert shown.exit_code == 0
    assert "max_model_len            (unknown)        args[6]" in shown.stdout
    assert "max_model_len comes from $(LEN) (args[6]), set outside of the manifest" in shown.stderr
    assert answer["containers"]["vllm"]["max_num_seqs"] == 64
    assert list(answer["unknown"]["vllm"]) == ["max_model_len"]


def test_an_image_that_says_nothing_is_read_as_the_engine_that_is_named(tmp_path):
    path = tmp_path / "own.yaml"
    text = MANIFEST.replace("vllm/vllm-openai:v0.32.0", "example.com/llm:7").replace("[vllm, serve]", "[]")
    path.write_text(text, encoding="utf-8")
    asked = ("-f", str(path), "--engine-version", "0.32.0")

    unnamed = kvmedic("flags", "set", "max_num_seqs=32", *asked)
    found = kvmedic("flags", "set", "max_num_seqs=32", "--engine", "vLLM", *asked)

    assert (unnamed.exit_code, found.exit_code) == (3, 0)
    assert found.stdout == text.replace('"64"', '"32"')


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set", "max_num_seqs"], "is not NAME=VALUE"),
        (["set", "=4"], "is not NAME=VALUE"),
        (["set"], "Missing argument"),
        (["show", "--engine-version", "latest"], "is not a version"),
        (["show", "--engine", "vllm"], "'vllm' is not known; use vLLM"),
    ],
)
def test_wrong_usage_exits_2(manifest, arguments, said):
    result = kvmedic("flags", *arguments, "-f", str(manifest))

    assert result.exit_code == 2
    assert said in result.stderr


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    missing = kvmedic("flags", "show", "-f", str(tmp_path / "none.yaml"))
    (tmp_path / "odd").write_bytes(b"\xff\xfe\x00")
    odd = kvmedic("flags", "show", "-f", str(tmp_path / "odd"))

    assert (missing.exit_code, odd.exit_code) == (2, 2)
    assert "No such file" in missing.stderr
    assert "not UTF-8" in odd.stderr


CHAIN = "".join(f", {{name: V{i}, value: $(V{i - 1})$(V{i - 1})}}" for i in range(1, 40))


def test_a_manifest_that_would_never_be_read_is_refused_in_a_sentence(tmp_path):
    path = tmp_path / "grows.yaml"
    path.write_text(MANIFEST + f"        env: [{{name: V0, value: xxxxxxxx}}{CHAIN}]\n")

    results = [
        kvmedic("flags", "show", "-f", str(path)),
        kvmedic("flags", "set", "max_num_seqs=8", "-f", str(path)),
    ]

    for result in results:
        assert result.exit_code == 3
        assert "TooLarge" in result.stderr
        assert "env[13] (V13) of container vllm takes more than the 20000 steps" in result.stderr


ENVIRONMENT = """\
        - --port=$(PORT)
        - --max-model-len=$(LENGTH)
        env:
        - {name: PORT, value: 8000}
        - {name: LENGTH, value: "8192"}
        - {name: DEBUG, value: yes}
"""


@pytest.mark.parametrize("as_json", [False, True], ids=["YAML", "JSON"])
def test_a_variable_is_changed_beside_numbers_that_nobody_quoted(tmp_path, as_json):
    text = MANIFEST + ENVIRONMENT
    path = tmp_path / "chat.yaml"
    path.write_text(json.dumps(YAML(typ="safe").load(text), indent=1) if as_json else text)

    result = kvmedic("flags", "set", "max_model_len=4096", "-f", str(path))

    assert result.exit_code == 0, result.output
    assert result.stdout == path.read_text().replace("8192", "4096")
