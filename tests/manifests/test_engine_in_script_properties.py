"""Scripts put together at random: after an edit the engine gets one other value."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.errors import ManifestError
from kvmedic.manifests.flags import AlreadySet, edit, setting_of
from kvmedic.model.edits import Field, TokenEdit
from kvmedic.model.engine import Engine, Version
from manifests import reference_parser
from manifests.shell_oracle import ShellOracle, engine_arguments

ENGINE = Engine(VLLM, Version.parse("0.32.0"))
PARSER = reference_parser.parser_of(Version.parse("0.32.0"))
BEFORE = [
    "",
    "set -e\n",
    "cd / && ",
    "A=1 ",
    "export B=2; ",
    "# vllm\n",
    "echo 'x y' | cat; ",
    "true || false; ",
]
WRAPPED = ["", "exec ", "env C=1 ", "nice ", "numactl -N 0 "]
BEHIND = ["", "\n", " # end", " 2>&1 | cat", " >/dev/null 2>&1", "; true", " && true", " \\\n", " &\nwait"]
GAPS = [" ", "  ", " \\\n  ", "\t"]
USES = [
    ["--max-num-seqs", "64"],
    ["--max-num-seqs=64"],
    ["--max_num_seqs", "8"],
    ["--port", "80"],
    ["--served-model-name", "a b", "c"],
    ["--hf-overrides", '{"a": [1, "$x"]}'],
    ["--enable-prefix-caching"],
    ["--gpu-memory-utilization", ".9"],
    ["--api-key=a'b"],
    ["--max-model-len=8k"],
]


@cache
def oracle() -> ShellOracle:
    """Return the one oracle of this module."""
    return ShellOracle(Path(mkdtemp()))


@st.composite
def written(draw: st.DrawFn, word: str) -> str:
    """Return a word as a shell reads it: bare, in single or double quotes, or half of it so."""
    bare = all(character.isalnum() or character in "-_=./" for character in word)
    single = "'" + word.replace("'", "'\\''") + "'"
    double = '"' + "".join("\\" + c if c in '$`"\\' else c for c in word) + '"'
    escaped = "".join(c if c.isalnum() or c in "-_=./" else "\\" + c for c in word)
    name, equals, value = word.partition("=")
    forms = [single, double, escaped, *([word, word] if bare else [])]
    if equals and name.startswith("--") and "'" not in value:
        forms += [f'{name}="{value}"', f"{name}='{value}'"]
    return draw(st.sampled_from(forms))


@st.composite
def containers(draw: st.DrawFn) -> dict[str, Any]:
    """Return a container whose shell starts the engine; some words come from a variable."""
    uses = draw(st.lists(st.sampled_from(USES), max_size=5))
    words = [draw(written(word)) for use in uses for word in use]
    env = []
    if draw(st.booleans()):
        value = draw(st.sampled_from(["--seed 1", "--max-num-seqs 32", " --seed=1  --max-num-seqs=32 ", ""]))
        words.append(draw(st.sampled_from(["$MORE", "${MORE}", "$(MORE)", "${MORE:-}"])))
        env = [{"name": "OTHER", "value": "x"}, {"name": "MORE", "value": value}]
    line = draw(
        st.sampled_from(["vllm serve m", "python3 -m vllm.entrypoints.openai.api_server", "'vllm' serve m"])
    )
    script = draw(st.sampled_from(BEFORE)) + draw(st.sampled_from(WRAPPED)) + line
    script += "".join(draw(st.sampled_from(GAPS)) + word for word in words) + draw(st.sampled_from(BEHIND))
    shell = draw(st.sampled_from([["sh", "-c"], ["/bin/bash", "-euo", "pipefail", "-c"]]))
    return {"name": "c", "image": "x", "command": [*shell, script], "env": env}


SETTINGS = st.sampled_from(
    [("max_num_seqs", 16), ("enable_prefix_caching", False), ("watermark", 0.05), ("max_model_len", 4096)]
)


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(containers(), SETTINGS)
def test_the_shell_gives_the_engine_the_one_value_and_nothing_else_is_changed(
    container: dict[str, Any], desired: tuple[str, Any]
) -> None:
    setting = setting_of(VLLM.by_dest()[desired[0]], desired[1], ENGINE)
    assert not isinstance(setting, ManifestError)
    (old,) = oracle().argvs(container)
    given_values = reference_parser.parse(PARSER, engine_arguments(old))

    outcome = edit(container, 0, setting, ENGINE)

    if isinstance(outcome, AlreadySet):
        assert given_values[desired[0]] == desired[1]
        return
    assert isinstance(outcome, TokenEdit), outcome
    changed: Any = outcome.apply({"spec": {"containers": [container]}})["spec"]
    (new,) = oracle().argvs(changed["containers"][0])
    assert reference_parser.parse(PARSER, engine_arguments(new)) == {**given_values, desired[0]: desired[1]}
    others = {field: value for field, value in container.items() if field != outcome.field}
    assert {f: v for f, v in changed["containers"][0].items() if f != outcome.field} == others
    assert outcome.field in {Field.COMMAND, Field.ENV}


PIECES = st.sampled_from(
    [
        "vllm serve m",
        "--max-num-seqs 8",
        "$A",
        "${A:-b}",
        "${",
        "$(",
        ")",
        "`x`",
        "'",
        '"',
        "\\",
        "\n",
        ";",
        "&&",
        "|",
        "||",
        "&",
        "<<E\n",
        "E\n",
        "for i in a; do",
        "done",
        "if x; then",
        "fi",
        "{",
        "}",
        "f() {",
        "(",
        "#",
        "eval",
        "A=1",
        "A+=2",
        "A=(x)",
        '"${A[@]}"',
        "$@",
        "$*",
        "$1",
        "set --",
        "shift",
        "bash -c",
        "exec",
        ">f",
        "2>&1",
        "é",
        "~",
    ]
)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES, max_size=14), st.sampled_from([" ", ""]))
def test_no_script_is_too_odd_for_an_answer(pieces: list[str], gap: str) -> None:
    setting = setting_of(VLLM.by_dest()["max_num_seqs"], 16, ENGINE)
    assert not isinstance(setting, ManifestError)
    script = gap.join(pieces)
    container = {
        "name": "c",
        "image": "x",
        "command": ["bash", "-c", script],
        "env": [{"name": "A", "value": "1"}],
    }

    outcome = edit(container, 0, setting, ENGINE)

    assert isinstance(outcome, TokenEdit | AlreadySet | ManifestError)
    if isinstance(outcome, TokenEdit):
        changed: Any = outcome.apply({"spec": {"containers": [container]}})["spec"]
        again = edit(changed["containers"][0], 0, setting, ENGINE)
        assert isinstance(again, AlreadySet)
