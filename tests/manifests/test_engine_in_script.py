"""Shell strings: what is read and edited, checked against the shells themselves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.flags import FlagsView, Outcome, edit, read_flags, setting_of
from kvmedic.model.edits import TokenEdit
from kvmedic.model.engine import Engine, Version
from manifests import reference_parser
from manifests.shell_oracle import ShellOracle, engine_arguments

ENGINE = Engine(VLLM, Version.parse("0.32.0"))
PARSER = reference_parser.parser_of(Version.parse("0.32.0"))
MODULE = "vllm.entrypoints.openai.api_server"


def a_container(script: str, *rest: str, shell: tuple[str, ...] = ("sh", "-c"), **env: str) -> dict[str, Any]:
    entries = [{"name": name, "value": value} for name, value in env.items()]
    return {"name": "c", "image": "x", "command": list(shell), "args": [script, *rest], "env": entries}


def outcome_of(container: dict[str, Any], dest: str = "max_num_seqs", value: object = 16) -> Outcome:
    setting = setting_of(VLLM.by_dest()[dest], str(value), ENGINE)
    assert not isinstance(setting, ManifestError)
    return edit(container, 0, setting, ENGINE)


def edited(container: dict[str, Any], change: TokenEdit) -> dict[str, Any]:
    result: Any = change.apply({"spec": {"containers": [container]}})["spec"]
    return dict(result["containers"][0])


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> ShellOracle:
    return ShellOracle(tmp_path_factory.mktemp("shells"))


BASH = ("bash", "-c")
EDITED = [
    pytest.param(
        a_container(
            "R=$(( ${W:-0} * N ))\n. /opt/x/bin/activate || true\n"
            "vllm serve m --data-parallel-rank $((1 + 1)) --port $R --max-num-seqs $S",
            shell=BASH,
            S="64",
            N="2",
        ),
        "64",
        "16",
        id="arithmetic and a virtual environment",
    ),
    pytest.param(
        a_container(
            'true && echo go && eval "$START" &\nuntil pip check > /dev/null 2>&1; do\n  sleep 1;\n'
            'done && echo "ready" &&\nvllm serve m \\\n  --dtype half\n',
            shell=BASH,
        ),
        None,
        " --max-num-seqs=16",
        id="an eval of something else, and a loop, before it",
    ),
    pytest.param(a_container("vllm serve m --max-num-seqs 64"), "64", "16", id="value"),
    pytest.param(
        a_container("vllm serve m --max_num_seqs=64 --port 1"),
        "--max_num_seqs=64",
        "--max_num_seqs=16",
        id="joined",
    ),
    pytest.param(a_container("vllm serve m"), None, " --max-num-seqs=16", id="appended"),
    pytest.param(
        a_container("vllm serve m --max-num-seqs 64 \\\n \\\n  "), "64", "16", id="continued by nothing"
    ),
    pytest.param(
        a_container("vllm serve m \\\n  $(MORE)", MORE=""),
        None,
        " --max-num-seqs=16",
        id="continued by a blank",
    ),
    pytest.param(
        a_container("vllm serve m --max-num-seqs 64; echo \\\\\n  "), "64", "16", id="a backslash at the end"
    ),
    pytest.param(
        a_container("exec vllm serve m --port 1", shell=("bash", "-lc")),
        None,
        " --max-num-seqs=16",
        id="exec",
    ),
    pytest.param(
        a_container("vllm serve m \\\n  --max-num-seqs '64' \\\n  --port 1\n"),
        "64",
        "16",
        id="continued, quoted",
    ),
    pytest.param(a_container('vllm serve m --max-num-seqs="64"'), "64", "16", id="quoted behind ="),
    pytest.param(
        a_container('vllm serve m "--max-num-seqs=64"'),
        "--max-num-seqs=64",
        "--max-num-seqs=16",
        id="all quoted",
    ),
    pytest.param(a_container("vllm serve m --max-num-\\\nseqs 64 "), "64", "16", id="name over two lines"),
    pytest.param(
        a_container("cd / && vllm serve m > log 2>&1"), None, " --max-num-seqs=16", id="before a redirection"
    ),
    pytest.param(
        a_container("vllm serve m >log --port 1"), None, " --max-num-seqs=16", id="words behind a redirection"
    ),
    pytest.param(a_container("vllm serve m 2>&1 | tee log"), None, " --max-num-seqs=16", id="before a pipe"),
    pytest.param(a_container("vllm serve m; echo done"), None, " --max-num-seqs=16", id="before a semicolon"),
    pytest.param(a_container("(vllm serve m)"), None, " --max-num-seqs=16", id="subshell"),
    pytest.param(a_container("{ vllm serve m; } || exit 1"), None, " --max-num-seqs=16", id="group"),
    pytest.param(a_container("vllm serve m & wait"), None, " --max-num-seqs=16", id="background"),
    pytest.param(
        a_container("set -ex\nexport A=1 B=2\nC=3 vllm serve m --port $A\n"),
        None,
        " --max-num-seqs=16",
        id="lines",
    ),
    pytest.param(a_container("# vllm serve x\nvllm serve m # end"), None, " --max-num-seqs=16", id="remarks"),
    pytest.param(
        a_container("vllm serve m \\\n  --port 1 \\\n  # --seed 2 \\\n"),
        None,
        " --max-num-seqs=16",
        id="a remark at the end",
    ),
    pytest.param(
        a_container("vllm serve m --port 1 \\\n"), None, " --max-num-seqs=16", id="a continuation at the end"
    ),
    pytest.param(
        a_container("pip install x && vllm serve m"), None, " --max-num-seqs=16", id="after an installation"
    ),
    pytest.param(a_container("ray start --head && vllm serve m"), None, " --max-num-seqs=16", id="after ray"),
    pytest.param(a_container("uv run vllm serve m --port 1"), None, " --max-num-seqs=16", id="wrapped"),
    pytest.param(a_container("env A=1 vllm serve m"), None, " --max-num-seqs=16", id="env"),
    pytest.param(a_container(f"python3 -m {MODULE} --max-num-seqs 64"), "64", "16", id="module"),
    pytest.param(a_container("vllm serve 'é ü' --max-num-seqs 64"), "64", "16", id="more than ASCII"),
    pytest.param(
        a_container("vllm serve m --hf-overrides '{\"a\": [1]}' --max-num-seqs 64"),
        "64",
        "16",
        id="JSON in single quotes",
    ),
    pytest.param(
        a_container('vllm serve m --hf-overrides "{\\"a\\": 1}" --max-num-seqs 64'),
        "64",
        "16",
        id="JSON with escapes",
    ),
    pytest.param(
        a_container("vllm serve m --enable-prefix-caching --port 1"),
        None,
        " --max-num-seqs=16",
        id="switch before",
    ),
    pytest.param(
        a_container('vllm serve "$@"', "sh", "m", "--max-num-seqs", "64"), "64", "16", id="parameters"
    ),
    pytest.param(
        a_container('exec "$0" "$@"', "vllm", "serve", "m"), None, " --max-num-seqs=16", id="all parameters"
    ),
    pytest.param(a_container("vllm serve m --max-num-seqs $1", "sh", "64"), "64", "16", id="one parameter"),
    pytest.param(
        a_container("vllm serve m --max-num-seqs 64", "--max-num-seqs", "8"),
        "64",
        "16",
        id="items that nobody reads",
    ),
    pytest.param(a_container("vllm serve m --max-num-seqs $SEQS", SEQS="64"), "64", "16", id="variable"),
    pytest.param(
        a_container('vllm serve m --max-num-seqs="${SEQS}"', SEQS="64"), "64", "16", id="variable in quotes"
    ),
    pytest.param(
        a_container("vllm serve m --max-num-seqs $(SEQS)", SEQS="64"), "64", "16", id="Kubernetes' variable"
    ),
    pytest.param(
        a_container("vllm serve m --max-num-seqs ${SEQS:-64}", SEQS="32"),
        "32",
        "16",
        id="variable before its default",
    ),
    pytest.param(
        a_container("vllm serve m --max-num-seqs ${SEQS:-64}"), "${SEQS:-64}", "${SEQS:-16}", id="default"
    ),
    pytest.param(
        a_container("vllm serve m $MORE", MORE=" --port 1  --max-num-seqs=64 --seed 2"),
        "64",
        "16",
        id="words in a variable",
    ),
    pytest.param(
        a_container("vllm serve m $MORE", MORE="--port 1"), None, " --max-num-seqs=16", id="behind a variable"
    ),
    pytest.param(
        a_container("vllm serve m $NONE --port 1", NONE=""), None, " --max-num-seqs=16", id="empty variable"
    ),
    pytest.param(a_container("SEQS=64\nvllm serve m --max-num-seqs $SEQS"), "64", "16", id="assignment"),
    pytest.param(
        a_container("S=${S:-64}\nvllm serve m --max-num-seqs ${S}"),
        "64",
        "16",
        id="assigned default",
    ),
    pytest.param(
        a_container('A="--port 1"\nA="$A --max-num-seqs 64"\nvllm serve m $A'),
        "64",
        "16",
        id="assignment in two steps",
    ),
    pytest.param(
        a_container('A=(--port 1 --max-num-seqs "64")\nA+=(--seed 2)\nvllm serve m "${A[@]}"', shell=BASH),
        "64",
        "16",
        id="array",
    ),
    pytest.param(
        a_container('CMD="vllm serve m"\nCMD+=" --max-num-seqs 64"\nexec $CMD', shell=BASH),
        "64",
        "16",
        id="a command in a variable",
    ),
    pytest.param(
        a_container('eval "vllm serve m --max-num-seqs 64"'), "64", "16", id="eval of what is known"
    ),
    pytest.param(a_container("bash -c 'vllm serve m --max-num-seqs 64'"), "64", "16", id="shell in a shell"),
    pytest.param(
        a_container('if [ -z "$X" ]; then vllm serve m; else ray start; fi'),
        None,
        " --max-num-seqs=16",
        id="a branch",
    ),
    pytest.param(
        a_container("until pip check; do sleep 1; done\nvllm serve m"),
        None,
        " --max-num-seqs=16",
        id="after a loop",
    ),
    pytest.param(
        a_container("log() { echo $1; }\nlog x\nvllm serve m"),
        None,
        " --max-num-seqs=16",
        id="after a function",
    ),
    pytest.param(
        a_container("cat >/dev/null <<EOF\nx: $A\nEOF\nvllm serve m"),
        None,
        " --max-num-seqs=16",
        id="after a heredoc",
    ),
    pytest.param(
        a_container('echo "vllm serve now" && vllm serve m'), None, " --max-num-seqs=16", id="after a message"
    ),
    pytest.param(
        a_container('vllm serve m --host "$(hostname)"'), None, " --max-num-seqs=16", id="quoted output"
    ),
    pytest.param(
        a_container("vllm serve m", shell=("tini", "--", "bash", "-euo", "pipefail", "-c")),
        None,
        " --max-num-seqs=16",
        id="options",
    ),
    pytest.param(
        a_container("HOST=x; vllm serve m --max-num-seqs 64 --host $HOST --api-key=a\\ b"),
        "64",
        "16",
        id="escaped blank",
    ),
]


@pytest.mark.parametrize(("container", "before", "after"), EDITED)
def test_one_word_changes_and_the_shell_gives_the_engine_this_one_value(
    oracle: ShellOracle, container: dict[str, Any], before: str | None, after: str
) -> None:
    outcome = outcome_of(container)
    assert isinstance(outcome, TokenEdit), outcome
    assert (outcome.before, outcome.after) == (before, after)

    old, new = oracle.argvs(container), oracle.argvs(edited(container, outcome))

    assert len(old) == len(new) == 1
    given = reference_parser.parse(PARSER, engine_arguments(old[0]))
    expected = {**given, "max_num_seqs": 16}
    assert reference_parser.parse(PARSER, engine_arguments(new[0])) == expected
    view = read_flags(container, ENGINE)
    assert isinstance(view, FlagsView)
    assert view.values() == {dest: given[dest] for dest in given if dest in VLLM.by_dest()}
    assert edited(edited(container, outcome), outcome.inverse()) == container


REFUSED = [
    pytest.param(
        "vllm serve m \\ --port 1", "a backslash before a blank", id="a continued line that was folded"
    ),
    pytest.param(
        "vllm serve $VLLM_OPTIONS", "VLLM_OPTIONS (args[0]) is set outside", id="options for the model"
    ),
    pytest.param('vllm serve "${ARGS[@]}"', "ARGS[@] (args[0]) is set outside", id="an unknown array"),
    pytest.param(
        'A=(m); [ -n "$X" ] && A+=(--max-num-seqs 8)\nvllm serve "${A[@]}"',
        "A[@]",
        id="an array of a condition",
    ),
    pytest.param("for i in 1 2; do vllm serve m; done", "a loop", id="for"),
    pytest.param("while true; do vllm serve m; done", "a loop", id="while"),
    pytest.param("run() { vllm serve m; }; run", "the function run", id="function"),
    pytest.param("vllm() { :; }; vllm serve m", "the function vllm", id="a function by the engine's name"),
    pytest.param("vllm serve a & vllm serve b", "starts vLLM 2 times", id="two engines"),
    pytest.param("if $X; then vllm serve a; else vllm serve b; fi", "2 times", id="two branches"),
    pytest.param("vllm serve m --port $(cat port)", "a command substitution", id="output without quotes"),
    pytest.param("vllm serve m `cat flags`", "a command substitution", id="backquotes"),
    pytest.param(
        'vllm serve m --max-num-seqs "$(nproc)"', "max_num_seqs comes from", id="the value is an output"
    ),
    pytest.param("vllm serve m --max-num-seqs $((2*8))", "max_num_seqs comes from", id="arithmetic"),
    pytest.param("vllm serve m <<EOF\nx\nEOF", "a heredoc", id="heredoc to the engine"),
    pytest.param("cat >x.sh <<EOF\nvllm serve m\nEOF\nsh x.sh", "a heredoc", id="script in a heredoc"),
    pytest.param("vllm serve m --lora-modules {a,b}", "a brace expansion", id="braces"),
    pytest.param(
        "vllm serve m --allowed-media-domains <(ls)", "process substitution", id="process substitution"
    ),
    pytest.param('eval "vllm serve m $MORE"', "eval of what is not known", id="eval of an unknown variable"),
    pytest.param("vllm serve m $MORE", "MORE (args[0]) is set outside", id="unknown words"),
    pytest.param(
        "vllm serve m --served-model-name a $MORE",
        "MORE (args[0]) is set outside",
        id="unknown words taken in",
    ),
    pytest.param("source env.sh; S=1; vllm serve m $T", "T (args[0]) is set outside", id="sourced"),
    pytest.param("vllm serve m --max-num-seqs $S", "comes from $S (args[0])", id="unknown value"),
    pytest.param(
        "S=8; if $X; then S=64; fi; vllm serve m --max-num-seqs $S", "comes from $S", id="set in a branch"
    ),
    pytest.param(
        "S=8; true && S=9 || S=7; vllm serve m --max-num-seqs $S", "comes from $S", id="set in a list"
    ),
    pytest.param("S=8; read S; vllm serve m --max-num-seqs $S", "comes from $S", id="read"),
    pytest.param(
        "f() { S=9; }; S=8; f; vllm serve m --max-num-seqs $S", "comes from $S", id="set by a function"
    ),
    pytest.param("S=64; echo $S; vllm serve m --max-num-seqs $S", "used elsewhere too", id="used twice"),
    pytest.param("S=64; T=4; vllm serve m --max-num-seqs $S$T", "several pieces", id="two pieces"),
    pytest.param("vllm serve m --max-num-seqs=6'4'", "several pieces", id="half quoted"),
    pytest.param("su u -c 'vllm serve m'", "`su` starts vLLM in its own way", id="su"),
    pytest.param("launch vllm serve m", "`launch` starts vLLM in its own way", id="wrapper"),
    pytest.param("X=$(vllm serve m)", "a command substitution", id="output of the engine"),
    pytest.param("IFS=,; A=1,2; vllm serve m $A", "another IFS", id="IFS"),
    pytest.param("vllm serve 'm", "not understood", id="open quote"),
    pytest.param("if vllm serve m", "not understood", id="cut off"),
    pytest.param("vllm serve m --port 1 --", "unrecognized arguments: --", id="double dash"),
    pytest.param('set -- m --port 1; shift; vllm serve "$@"', "set outside", id="shifted parameters"),
]


@pytest.mark.parametrize(("script", "said"), REFUSED)
def test_what_is_not_followed_is_refused_by_name(script: str, said: str) -> None:
    error = outcome_of(a_container(script))

    assert isinstance(error, ManifestError), error
    assert said in error.message


def test_a_variable_of_the_container_that_is_used_elsewhere_is_not_edited() -> None:
    container = a_container("vllm serve m --max-num-seqs $S", S="64", T="$(S)0")

    error = outcome_of(container)

    assert isinstance(error, ManifestError)
    assert error.reason is ErrorReason.FROM_VARIABLE
    assert "S, which is used elsewhere too" in error.message


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}}, "by key y of ConfigMap x: change it"),
        ({"value": "$(OTHER)4"}, "several pieces"),
    ],
)
def test_a_variable_that_is_not_written_out_is_not_edited(entry: dict[str, Any], said: str) -> None:
    container = a_container("vllm serve m --max-num-seqs $S", OTHER="6")
    container["env"].append({"name": "S", **entry})

    error = outcome_of(container)

    assert isinstance(error, ManifestError)
    assert said in error.message


@pytest.mark.parametrize(
    "script", ["curl localhost | grep vllm:", "echo 'x", "echo vllm serve m", "nginx -g 'daemon off;'"]
)
def test_a_script_that_starts_no_engine_is_none(script: str) -> None:
    error = outcome_of(a_container(script))

    assert isinstance(error, ManifestError)
    assert error.reason in {ErrorReason.NO_ENGINE, ErrorReason.SHELL_SCRIPT}


def test_the_shells_of_this_machine_are_there() -> None:
    assert shutil.which("bash")
    assert shutil.which("sh")
    assert Path(shutil.which("sh") or "").exists()
