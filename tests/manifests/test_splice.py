"""Odd YAML and JSON: what is read, and that an edit leaves every other byte alone."""

from __future__ import annotations

import pytest

from kvmedic.engines import ENGINES
from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.documents import ManifestContainer, containers_of
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.flags import edit, read_flags, setting_of
from kvmedic.manifests.invocation import Selector, engine_in
from kvmedic.manifests.yaml_text import splice_edit
from kvmedic.model.edits import Field, TokenEdit
from kvmedic.model.engine import Engine, Version

ENGINE = Engine(VLLM, Version.parse("0.32.0"))

HEAD = """\
apiVersion: apps/v1
kind: Deployment   # the fleet
metadata: {name: chat}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: "vllm/vllm-openai:v0.32.0"
"""


def the_engine(text: str, selector: Selector) -> ManifestContainer | ManifestError:
    found = engine_in(text, ENGINES, selector)
    return found if isinstance(found, ManifestError) else found[0]


def after(text: str, dest: str, value: object) -> str | ManifestError:
    found = the_engine(text, Selector())
    if isinstance(found, ManifestError):
        return found
    setting = setting_of(VLLM.by_dest()[dest], str(value), ENGINE)
    assert not isinstance(setting, ManifestError)
    outcome = edit(found.data, found.index, setting, ENGINE)
    return splice_edit(text, found, outcome) if isinstance(outcome, TokenEdit) else outcome  # type: ignore[return-value]


CHANGED = [
    pytest.param(
        '        args: [m, "--max-num-seqs=8"]\n', '"--max-num-seqs=8"', '"--max-num-seqs=16"', id="flow"
    ),
    pytest.param("        args: ['m','--max-num-seqs', '8', ]\n", "'8'", "'16'", id="flow, single quotes"),
    pytest.param(
        "        args:\n        - m\n        - --max-num-seqs=8  # cap\n", "=8", "=16", id="block, plain"
    ),
    pytest.param(
        '        args:\n          -  m\n          -    "--max-num-seqs=8"\t \n', "=8", "=16", id="wide dashes"
    ),
    pytest.param(
        "        args:\n        -\n          m\n        -\n          --max-num-seqs=8\n",
        "=8",
        "=16",
        id="below",
    ),
    pytest.param(
        '        args: ["m", "--max\\x2dnum-seqs=8"]\n',
        '"--max\\x2dnum-seqs=8"',
        '"--max-num-seqs=16"',
        id="escapes",
    ),
    pytest.param(
        '        args:\n        - m\n        - "--max-num-\\\n          seqs=8"\n',
        '"--max-num-\\\n          seqs=8"',
        '"--max-num-seqs=16"',
        id="over two lines",
    ),
    pytest.param(
        "        args: &args [m, --port=1]\n        command: [vllm, serve, --max-num-seqs=8]\n",
        "=8",
        "=16",
        id="an anchor on the other list",
    ),
]


TAILS = ["", "        ports: []\n---\nkind: Service\n...\n", "# end"]
SURROUNDINGS = [(mark, tail, ends) for mark in ("", "\ufeff") for tail in TAILS for ends in ("\n", "\r\n")]


@pytest.mark.parametrize(("lists", "old", "new"), CHANGED)
def test_a_token_changes_in_its_own_style(lists: str, old: str, new: str) -> None:
    for mark, tail, ends in SURROUNDINGS:
        text = mark + (HEAD + lists + tail).replace("\n", ends)
        start, _, rest = text.rpartition(old.replace("\n", ends))

        assert after(text, "max_num_seqs", 16) == start + new + rest


def test_an_unquoted_value_is_quoted_where_it_would_read_as_a_number() -> None:
    text = HEAD + "        args: [m, --max-model-len, 8k]\n"

    assert after(text, "max_model_len", 4096) == text.replace("8k", '"4096"')
    assert after(text, "max_model_len", "4k") == text.replace("8k", "4k")


ADDED = [
    pytest.param(
        "        args:\n        - m # model\n        # tail\n",
        "- m # model\n",
        "        - --watermark=0.1\n",
        id="block",
    ),
    pytest.param(
        "        args:\n          -   'm'\n",
        "'m'\n",
        "          -   '--watermark=0.1'\n",
        id="block, as it is laid out",
    ),
    pytest.param(
        '        args:\n        - "m"', '"m"', '\n        - "--watermark=0.1"', id="no newline at the end"
    ),
    pytest.param(
        "        args:\n        - |-\n          m\n        ports: []\n",
        "          m\n",
        '        - "--watermark=0.1"\n',
        id="after a block scalar",
    ),
    pytest.param(
        "        args:\n        - >-\n          m",
        "          m",
        '\n        - "--watermark=0.1"',
        id="after a block scalar at the end",
    ),
    pytest.param("        args: [m]\n", "[m", ", --watermark=0.1", id="flow of one"),
    pytest.param("        args: ['m']", "['m'", ", '--watermark=0.1'", id="flow, single quotes"),
    pytest.param("        args: [m,--port=1]\n", "--port=1", ",--watermark=0.1", id="flow without blanks"),
    pytest.param(
        '        args: ["m", "--port=1",]\n', '=1",', ' "--watermark=0.1",', id="flow with a comma at the end"
    ),
    pytest.param(
        '        args: [\n          "m",\n          "--port=1"   # x\n        ]\n',
        '--port=1"',
        ',\n          "--watermark=0.1"',
        id="flow over lines",
    ),
    pytest.param(
        '        args: [\n          "m",  # x, y\n        ]\n',
        '"m",',
        '\n          "--watermark=0.1",',
        id="flow over lines with a comma at the end",
    ),
    pytest.param(
        "        command: [vllm, serve, m]\n        args: []\n", "serve, m", ", --watermark=0.1", id="command"
    ),
]


@pytest.mark.parametrize(("lists", "behind", "added"), ADDED)
@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_a_token_is_added_as_its_neighbours_are_written(
    lists: str, behind: str, added: str, ends: str
) -> None:
    text = (HEAD + lists).replace("\n", ends)
    start, mark, rest = text.rpartition(behind.replace("\n", ends))

    assert after(text, "watermark", 0.1) == start + mark + added.replace("\n", ends) + rest


SCRIPTS = [
    pytest.param('        args: ["vllm serve m --max-num-seqs=8 --port 1"]\n', "=8", "=16", id="one line"),
    pytest.param("        args: ['vllm serve ''m'' --max-num-seqs=8']\n", "=8", "=16", id="doubled quotes"),
    pytest.param(
        '        args: ["vllm serve \\"m\\" \\\n          --max-num-seqs=8 --port 1"]\n',
        "=8",
        "=16",
        id="escapes",
    ),
    pytest.param(
        '        args:\n        - "vllm serve m\n          --max-num-seqs=8\n\n          "\n',
        "=8",
        "=16",
        id="folded in quotes",
    ),
    pytest.param(
        "        args:\n        - vllm serve m\n          --max-num-seqs=8\n          --port 1\n",
        "=8",
        "=16",
        id="plain, folded",
    ),
    pytest.param(
        "        args:\n        - |\n          cd /x   # there\n\n          vllm serve m \\\n"
        "            --max-num-seqs=8 \\\n            --port 1\n",
        "=8",
        "=16",
        id="literal block",
    ),
    pytest.param(
        "        args:\n        - >-  # folded\n          vllm serve m\n          --port 1\n"
        "          --max-num-seqs=8\n",
        "=8",
        "=16",
        id="folded block",
    ),
    pytest.param(
        "        args:\n        - >\n          true;\n\n          vllm serve m\n          --max-num-seqs=8\n",
        "=8",
        "=16",
        id="folded block with an empty line",
    ),
    pytest.param(
        "        args:\n        - |+\n          vllm serve m --max-num-seqs=8\n\n\n",
        "=8",
        "=16",
        id="block that keeps its end",
    ),
    pytest.param(
        "        args: [vllm serve m $A]\n        env:\n        - name: A\n"
        "          value: --port=1 --max-num-seqs=8\n",
        "=8",
        "=16",
        id="variable",
    ),
    pytest.param(
        "        args: [vllm serve m --max-num-seqs $A]\n        env: [{name: A, value: '8'}]\n",
        "'8'",
        "'16'",
        id="all of a variable",
    ),
    pytest.param(
        '        env:\n        - value: "8"\n          name: A\n'
        "        args: [vllm serve m --max-num-seqs $(A)]\n",
        '"8"',
        '"16"',
        id="variable, value first",
    ),
]


@pytest.mark.parametrize(("lists", "old", "new"), SCRIPTS)
def test_a_word_within_a_text_changes_in_every_style_of_yaml(lists: str, old: str, new: str) -> None:
    shell = "        command: [/bin/sh, -c]\n"
    for mark, tail, ends in SURROUNDINGS:
        text = mark + (HEAD + shell + lists + tail).replace("\n", ends)
        start, _, rest = text.rpartition(old)

        assert after(text, "max_num_seqs", 16) == start + new + rest


@pytest.mark.parametrize(
    ("lists", "behind"),
    [
        (
            "        args:\n        - |\n          vllm serve m \\\n            --port 1 2>&1 | tee log\n",
            "--port 1",
        ),
        (
            "        args:\n        - >\n          vllm serve m\n          --port 1\n\n          true\n",
            "--port 1",
        ),
        ('        args: ["vllm serve \\"m\\""]\n', 'm\\"'),
        ("        args: ['vllm serve ''m''']\n", "m''"),
        ("        args: [vllm serve m]\n", "m"),
    ],
)
def test_a_word_is_added_within_a_text(lists: str, behind: str) -> None:
    text = HEAD + "        command: [bash, -c]\n" + lists
    start, mark, rest = text.rpartition(behind)

    assert after(text, "watermark", 0.1) == start + mark + " --watermark=0.1" + rest


def test_a_block_whose_indentation_is_declared_is_not_edited() -> None:
    text = HEAD + "        command: [sh, -c]\n        args:\n        - |2\n            vllm serve m\n"

    error = after(text, "max_num_seqs", 16)

    assert isinstance(error, ManifestError)
    assert "laid out oddly" in error.message


JSON = """{
\t"kind": "Pod",
\t"metadata": {"name": "p"},
\t"spec": {"containers": [{"name": "c", "command": [
\t\t"vllm",
\t\t"serve",
\t\t"--max-num-seqs=8"
\t]}]}
}
"""


def test_json_stays_json_with_its_tabs() -> None:
    assert after(JSON, "max_num_seqs", 16) == JSON.replace("=8", "=16")
    assert after(JSON, "watermark", 0.1) == JSON.replace('=8"', '=8",\n\t\t"--watermark=0.1"')


REFUSED = [
    pytest.param(
        "        args: &a [m, --max-num-seqs=8]\n",
        ErrorReason.SHARED_YAML,
        "args of container vllm",
        id="anchor on the list",
    ),
    pytest.param(
        "        args: [m, &n --max-num-seqs=8]\n",
        ErrorReason.SHARED_YAML,
        "args[1]",
        id="anchor on the token",
    ),
    pytest.param(
        "        args: [m, --max-num-seqs, !!str 8]\n", ErrorReason.SHARED_YAML, "args[2]", id="tag"
    ),
    pytest.param(
        "        args: [m, *n]\n        env: [{name: A, value: &n --max-num-seqs=8}]\n",
        ErrorReason.NOT_A_MANIFEST,
        "undefined alias",
        id="alias before its anchor",
    ),
    pytest.param(
        "        env: [{name: A, value: &n --max-num-seqs=8}]\n        args: [m, *n]\n",
        ErrorReason.SHARED_YAML,
        "args[1]",
        id="alias as a token",
    ),
    pytest.param(
        "        args: [m, --max-num-seqs, 8]\n",
        ErrorReason.NOT_TEXT,
        "args[2] is the number 8",
        id="number",
    ),
    pytest.param(
        "        args: [m, --max-num-seqs, 1_0]\n",
        ErrorReason.NOT_TEXT,
        "args[2] is the number 1_0",
        id="number of YAML 1.1",
    ),
    pytest.param(
        "        args: [m, on]\n",
        ErrorReason.NOT_TEXT,
        "args[1] is the boolean on",
        id="boolean of YAML 1.1",
    ),
    pytest.param("        args: [m, 2024-01-01]\n", ErrorReason.NOT_TEXT, "args[1] is the date", id="date"),
    pytest.param("        args: [m, ~]\n", ErrorReason.NOT_TEXT, "args[1] is empty", id="null"),
    pytest.param(
        "        args:\n        - m\n        -\n",
        ErrorReason.NOT_TEXT,
        "args[1] is empty",
        id="nothing",
    ),
    pytest.param(
        "        args: [m, [a]]\n", ErrorReason.NOT_TEXT, "args[1] is a list", id="list in the list"
    ),
    pytest.param(
        "        args: &a [*a]\n", ErrorReason.NOT_TEXT, "args[0] is empty", id="a list within itself"
    ),
    pytest.param("        args: m --max-num-seqs 8\n", ErrorReason.NOT_TEXT, "is not a list", id="no list"),
    pytest.param(
        "        args:\n        - m\n        - |\n          --max-num-seqs=8\n",
        ErrorReason.UNSAFE,
        "block scalar",
        id="block scalar",
    ),
    pytest.param(
        "        args: [m]\n        args: [n]\n",
        ErrorReason.NOT_A_MANIFEST,
        "'args' twice in one mapping, line 11",
        id="twice",
    ),
    pytest.param("        args:\n\t- m\n", ErrorReason.NOT_A_MANIFEST, "line 11", id="tab"),
    pytest.param(
        "        args:\n        - m\n        {{- if .x }}\n        - n\n        {{- end }}\n",
        ErrorReason.NOT_A_MANIFEST,
        "Helm template",
        id="template",
    ),
]


@pytest.mark.parametrize(("lists", "reason", "said"), REFUSED)
def test_what_cannot_be_spliced_is_refused(lists: str, reason: ErrorReason, said: str) -> None:
    error = after(HEAD + lists, "max_num_seqs", 16)

    assert isinstance(error, ManifestError)
    assert error.reason is reason
    assert said in error.message


SHARED = [
    pytest.param("x: &a [m, --max-num-seqs=8]\n" + HEAD + "        args: *a\n", id="list by alias"),
    pytest.param("x: &a {args: [m, --max-num-seqs=8]}\n" + HEAD + "        <<: *a\n", id="list by merge"),
    pytest.param(
        "x: &a {args: [m, --max-num-seqs=8]}\n" + HEAD + "        <<: [*a]\n",
        id="list by one of several merges",
    ),
    pytest.param(
        "spec: &s {containers: [{name: vllm, command: [vllm, serve, m, --max-num-seqs=8]}]}\nother: *s\n",
        id="whole specification",
    ),
]


@pytest.mark.parametrize("text", SHARED)
def test_a_shared_list_is_shown_but_not_edited(text: str) -> None:
    found = the_engine(text, Selector())
    assert isinstance(found, ManifestContainer)

    view = read_flags(found.data, ENGINE)

    assert not isinstance(view, ManifestError)
    assert view.values() == {"max_num_seqs": 8}
    error = after(text, "max_num_seqs", 16)
    assert isinstance(error, ManifestError)
    assert error.reason is ErrorReason.SHARED_YAML


def test_an_anchor_that_nothing_refers_to_blocks_nothing_around_the_list() -> None:
    text = HEAD.replace("containers:\n", "containers: &all\n") + "        args: [m, --max-num-seqs=8]\n"

    assert after(text, "max_num_seqs", 16) == text.replace("=8", "=16")


WORKLOADS = [
    pytest.param("kind: Pod\nmetadata: {name: a}\nspec:\n  CONTAINERS", "Pod", id="Pod"),
    pytest.param(
        "kind: StatefulSet\nmetadata: {name: a}\nspec: {template: {spec: {CONTAINERS}}}",
        "StatefulSet",
        id="StatefulSet",
    ),
    pytest.param(
        "kind: CronJob\nmetadata: {name: a}\nspec: {jobTemplate: {spec: {template: {spec: {CONTAINERS}}}}}",
        "CronJob",
        id="CronJob",
    ),
    pytest.param(
        "kind: PodTemplate\nmetadata: {name: a}\ntemplate: {spec: {CONTAINERS}}",
        "PodTemplate",
        id="PodTemplate",
    ),
    pytest.param(
        "kind: LeaderWorkerSet\nmetadata: {name: a}\n"
        "spec: {leaderWorkerTemplate: {workerTemplate: {spec: {CONTAINERS}}}}",
        "LeaderWorkerSet",
        id="LeaderWorkerSet",
    ),
    pytest.param(
        "kind: List\nitems:\n- kind: Service\n  spec: {}\n"
        "- kind: Pod\n  metadata: {name: a}\n  spec: {CONTAINERS}",
        "Pod",
        id="List",
    ),
]


@pytest.mark.parametrize(("text", "kind"), WORKLOADS)
def test_containers_are_found_in_every_kind_of_workload(text: str, kind: str) -> None:
    found = containers_of(text.replace("CONTAINERS", "containers: [{name: c, args: [x]}]"))

    assert not isinstance(found, ManifestError)
    assert [(c.kind, c.owner, c.name, c.data["args"]) for c in found] == [(kind, "a", "c", ["x"])]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "---\n",
        "# nothing\n",
        "just text",
        "- a\n",
        "kind: X\nspec: 1\n",
        "spec: {containers: x}\n",
        "spec: {containers: [x]}\n",
    ],
)
def test_what_holds_no_container_gives_none(text: str) -> None:
    assert containers_of(text) == ()


def test_init_containers_are_left_out() -> None:
    text = HEAD.replace("containers:", "initContainers:") + "        args: [m]\n"

    error = the_engine(text, Selector())

    assert isinstance(error, ManifestError)
    assert "init containers are not looked at" in error.message


TWO = (
    HEAD
    + "        args: [m]\n      - name: proxy\n        image: envoy\n---\n"
    + HEAD.replace("chat", "code")
    + "        args: [m]\n"
)


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (Selector(), "2 containers could be meant: vllm of Deployment/chat, vllm of Deployment/code"),
        (Selector(container="vllm"), "2 containers could be meant"),
        (Selector(container="proxy"), "no container starts vLLM: proxy of Deployment/chat"),
        (Selector(container="none"), "no container of that name; the manifest has vllm of Deployment/chat"),
    ],
)
def test_of_several_none_is_guessed(selector: Selector, said: str) -> None:
    error = the_engine(TWO, selector)

    assert isinstance(error, ManifestError)
    assert said in error.message


def test_a_name_chooses_among_several() -> None:
    found = the_engine(TWO, Selector(owner="code"))

    assert isinstance(found, ManifestContainer)
    assert str(found) == "vllm of Deployment/code"


def test_an_engine_beside_one_that_cannot_be_followed_is_not_taken_for_all() -> None:
    text = HEAD + "        args: [m]\n      - name: other\n        command: [su, -c, vllm serve m]\n"

    error = the_engine(text, Selector())

    assert isinstance(error, ManifestError)
    assert error.reason is ErrorReason.SHELL_SCRIPT
    assert "container other of Deployment/chat" in error.message
    assert isinstance(the_engine(text, Selector(container="vllm")), ManifestContainer)


def test_a_removal_or_another_list_is_not_spliced() -> None:
    text = HEAD + "        args: [m, --max-num-seqs=8]\n"
    found = the_engine(text, Selector())
    assert isinstance(found, ManifestContainer)

    for unfit in (
        TokenEdit("vllm", 0, Field.ARGS, 1, "x", None),
        TokenEdit("vllm", 0, Field.COMMAND, 0, "x", "y"),
    ):
        error = splice_edit(text, found, unfit)
        assert isinstance(error, ManifestError)
        assert error.reason is ErrorReason.UNSAFE
