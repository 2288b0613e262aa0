from __future__ import annotations

from typing import Any

import pytest

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.flags import AlreadySet, FlagsView, Outcome, Setting, edit, read_flags, setting_of
from kvmedic.manifests.tokens import Place
from kvmedic.model.edits import Field, TokenEdit
from kvmedic.model.engine import Engine, Scalar, Version

FROM_MAP = {"configMapKeyRef": {"name": "limits", "key": "seqs"}}


def an_engine(version: str | None = "0.32.0") -> Engine:
    return Engine(VLLM, Version.parse(version) if version else None)


def a_container(*args: str, **more: Any) -> dict[str, Any]:
    return {"name": "vllm", "image": "x", "command": ["vllm", "serve"], "args": ["m", *args], **more}


def a_setting(dest: str, value: Scalar, engine: Engine | None = None) -> Setting:
    setting = setting_of(VLLM.by_dest()[dest], value, engine or an_engine())
    assert isinstance(setting, Setting), setting
    return setting


def outcome_of(
    container: dict[str, Any], dest: str, value: Scalar, version: str | None = "0.32.0"
) -> Outcome:
    engine = an_engine(version)
    return edit(container, 3, a_setting(dest, value, engine), engine)


def an_edit(index: int, before: str | None, after: str, field: Field = Field.ARGS) -> TokenEdit:
    return TokenEdit("vllm", 3, field, index, before, after)


EDITS = [
    pytest.param(["--max-num-seqs", "64"], "max_num_seqs", 16, an_edit(2, "64", "16"), id="value"),
    pytest.param(
        ["--max-num-seqs=64"],
        "max_num_seqs",
        16,
        an_edit(1, "--max-num-seqs=64", "--max-num-seqs=16"),
        id="joined",
    ),
    pytest.param(
        ["--max_num-seq=64"],
        "max_num_seqs",
        16,
        an_edit(1, "--max_num-seq=64", "--max_num-seq=16"),
        id="abbreviated",
    ),
    pytest.param(
        ["--device-memory-utilization", ".9"],
        "gpu_memory_utilization",
        0.88,
        an_edit(2, ".9", "0.88"),
        id="alias",
    ),
    pytest.param(
        ["--max-num-seqs=64", "--max_num_seqs", "32"],
        "max_num_seqs",
        16,
        an_edit(3, "32", "16"),
        id="the last wins",
    ),
    pytest.param(
        ["--max-num-seqs", " 64"], "max_num_seqs", 16, an_edit(2, " 64", "16"), id="blank in the value"
    ),
    pytest.param(
        ["--max-model-len", "8k"], "max_model_len", "4K", an_edit(2, "8k", "4K"), id="written as asked"
    ),
    pytest.param(["--max-model-len", "8k"], "max_model_len", "auto", an_edit(2, "8k", "auto"), id="auto"),
    pytest.param(
        ["--max-num-seqs", "-1"],
        "max_num_seqs",
        16,
        an_edit(2, "-1", "16"),
        id="a value that only the start refuses",
    ),
    pytest.param(
        ["--enable-prefix-caching", "--port=1"],
        "enable_prefix_caching",
        False,
        an_edit(1, "--enable-prefix-caching", "--no-enable-prefix-caching"),
        id="switch off",
    ),
    pytest.param(
        ["--no_enable_prefix_caching"],
        "enable_prefix_caching",
        "true",
        an_edit(1, "--no_enable_prefix_caching", "--enable_prefix_caching"),
        id="switch on, with underscores",
    ),
    pytest.param(
        ["--enable-prefix-caching", "--no-enable-prefix-caching"],
        "enable_prefix_caching",
        True,
        an_edit(2, "--no-enable-prefix-caching", "--enable-prefix-caching"),
        id="of two switches the last",
    ),
    pytest.param(
        ["--no-enable-chunked"],
        "enable_chunked_prefill",
        True,
        an_edit(1, "--no-enable-chunked", "--enable-chunked-prefill"),
        id="an abbreviated switch is written out",
    ),
    pytest.param(["--port=1"], "max_num_seqs", 16, an_edit(2, None, "--max-num-seqs=16"), id="append"),
    pytest.param(
        [],
        "enable_chunked_prefill",
        False,
        an_edit(1, None, "--no-enable-chunked-prefill"),
        id="append a switch",
    ),
    pytest.param(
        ["--served-model-name", "a", "b"],
        "watermark",
        0.05,
        an_edit(4, None, "--watermark=0.05"),
        id="append after an option of many values",
    ),
    pytest.param(
        ["--max-num-seqs=64", "--config", "c.yaml"],
        "max_num_seqs",
        16,
        an_edit(1, "--max-num-seqs=64", "--max-num-seqs=16"),
        id="the list beats the file",
    ),
    pytest.param(
        ["--config=c.yaml"],
        "max_num_seqs",
        16,
        an_edit(2, None, "--max-num-seqs=16"),
        id="a file that the engine ignores",
    ),
]


@pytest.mark.parametrize(("args", "dest", "value", "expected"), EDITS)
def test_one_token_changes(args: list[str], dest: str, value: Scalar, expected: TokenEdit) -> None:
    assert outcome_of(a_container(*args), dest, value) == expected


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        pytest.param(
            {"name": "vllm", "command": ["vllm", "serve", "m"]},
            an_edit(3, None, "--max-num-seqs=16", Field.COMMAND),
            id="no args",
        ),
        pytest.param(
            {"name": "vllm", "command": ["vllm", "serve", "m"], "args": []},
            an_edit(3, None, "--max-num-seqs=16", Field.COMMAND),
            id="empty args",
        ),
        pytest.param(
            {"name": "vllm", "command": ["vllm", "serve", "--max-num-seqs"], "args": ["8", "m"]},
            an_edit(0, "8", "16"),
            id="name in command, value in args",
        ),
        pytest.param(
            {"name": "vllm", "image": "vllm/vllm-openai", "args": ["--model", "m"]},
            an_edit(2, None, "--max-num-seqs=16"),
            id="args of the server's image",
        ),
    ],
)
def test_a_flag_goes_where_the_engine_reads_it(container: dict[str, Any], expected: TokenEdit) -> None:
    assert outcome_of(container, "max_num_seqs", 16) == expected


@pytest.mark.parametrize(
    ("args", "dest", "value", "index"),
    [
        (["--max-num-seqs", "64"], "max_num_seqs", 64, 2),
        (["--max-num-seqs= 6_4"], "max_num_seqs", 64, 1),
        (["--max-model-len", "2K"], "max_model_len", 2048, 2),
        (["--enable-prefix-caching"], "enable_prefix_caching", True, 1),
        (["--gpu-memory-utilization=.90"], "gpu_memory_utilization", 0.9, 1),
        (["--max-num-seqs=$(SEQS)"], "max_num_seqs", 8, 1),
    ],
)
def test_what_is_set_already_stays_as_it_is_written(
    args: list[str], dest: str, value: Scalar, index: int
) -> None:
    container = a_container(*args, env=[{"name": "SEQS", "value": "8"}])

    assert outcome_of(container, dest, value) == AlreadySet(Place(Field.ARGS, index))


@pytest.mark.parametrize(
    ("container", "dest", "reason", "said"),
    [
        pytest.param(
            a_container("--max-num-seqs=$(SEQS)", env=[{"name": "SEQS", "valueFrom": FROM_MAP}]),
            "max_num_seqs",
            ErrorReason.FROM_VARIABLE,
            "args[1]), set outside of the manifest by key seqs of ConfigMap limits: change it there, or",
            id="from another object",
        ),
        pytest.param(
            a_container("--config", "/etc/c.yaml"),
            "max_num_seqs",
            ErrorReason.IN_CONFIG_FILE,
            "may be in the file /etc/c.yaml",
            id="in a file, perhaps",
        ),
        pytest.param(
            a_container("vllm", "serve", "m", command=["sh", "-c"]),
            "max_num_seqs",
            ErrorReason.SHELL_SCRIPT,
            "script of the shell",
            id="a shell that runs only the first word",
        ),
        pytest.param(
            a_container("$(MORE)", env=[{"name": "MORE", "value": "--max-num-seqs=8 --port=1"}]),
            "max_num_seqs",
            ErrorReason.WOULD_NOT_START,
            "argument --max-num-seqs: invalid int value",
            id="flags in one variable",
        ),
        pytest.param(
            a_container("--", "x"),
            "max_num_seqs",
            ErrorReason.WOULD_NOT_START,
            "args[2] belongs to no option",
            id="double dash",
        ),
        pytest.param(
            a_container("--omni"),
            "max_num_seqs",
            ErrorReason.WOULD_NOT_START,
            "another program",
            id="foreign",
        ),
        pytest.param(
            {"name": "vllm", "image": "vllm/vllm-openai"},
            "max_num_seqs",
            ErrorReason.NO_ENGINE,
            "neither command nor args",
            id="the image's own command",
        ),
    ],
)
def test_what_cannot_be_edited_is_refused_with_the_place(
    container: dict[str, Any], dest: str, reason: ErrorReason, said: str
) -> None:
    error = outcome_of(container, dest, 16)

    assert isinstance(error, ManifestError)
    assert error.reason is reason
    assert said in error.message


@pytest.mark.parametrize(
    ("args", "value", "before", "after"),
    [
        (["--max-num-seqs", "$(SEQS)"], "8", "8", "16"),
        (["--max-num-seqs=$(SEQS)"], "8", "8", "16"),
        (["$(MORE)"], "--max-num-seqs=8", "8", "16"),
    ],
)
def test_a_variable_that_is_used_once_is_edited_where_it_is_set(
    args: list[str], value: str, before: str, after: str
) -> None:
    name = "MORE" if "MORE" in args[0] else "SEQS"
    container = a_container(*args, env=[{"name": "A", "value": "1"}, {"name": name, "value": value}])

    outcome = outcome_of(container, "max_num_seqs", 16)

    assert isinstance(outcome, TokenEdit)
    assert (outcome.field, outcome.index, outcome.before, outcome.after) == (Field.ENV, 1, before, after)


def test_a_variable_that_is_used_twice_is_not_edited() -> None:
    container = a_container("--max-num-seqs=$(S)", "--seed", "$(S)", env=[{"name": "S", "value": "8"}])

    error = outcome_of(container, "max_num_seqs", 16)

    assert isinstance(error, ManifestError)
    assert "the variable S, which is used elsewhere too: write the value itself" in error.message


def test_a_variable_in_another_flag_blocks_nothing() -> None:
    container = a_container(
        "--host=$(POD_IP)", "--max-num-seqs=8", env=[{"name": "POD_IP", "valueFrom": FROM_MAP}]
    )

    assert outcome_of(container, "max_num_seqs", 16) == an_edit(2, "--max-num-seqs=8", "--max-num-seqs=16")


def test_a_variable_that_may_hold_flags_is_one_where_no_model_is_expected() -> None:
    container = {
        "name": "vllm",
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server", "$(MORE)"],
        "envFrom": [{"configMapRef": {"name": "x"}}],
    }

    error = outcome_of(container, "max_num_seqs", 16)

    assert isinstance(error, ManifestError)
    assert error.reason is ErrorReason.FROM_VARIABLE
    assert (
        "MORE (command[3]) is set outside of the manifest by ConfigMap x and may hold any flag"
        in error.message
    )


def test_a_model_from_another_object_is_a_model() -> None:
    container = a_container("--max-num-seqs=8", envFrom=[{"configMapRef": {"name": "x"}}])
    container["args"][0] = "$(MODEL)"

    assert isinstance(outcome_of(container, "max_num_seqs", 16), TokenEdit)


@pytest.mark.parametrize(
    ("dest", "value", "version", "reason", "said"),
    [
        ("max_num_seqs", "1k", "0.32.0", ErrorReason.INVALID_VALUE, "invalid int value: '1k'"),
        ("max_num_seqs", "", "0.32.0", ErrorReason.INVALID_VALUE, "invalid int value: ''"),
        ("max_num_seqs", 0, "0.32.0", ErrorReason.INVALID_VALUE, "max_num_seqs is at least 1, not 0"),
        ("max_num_seqs", 0.5, "0.32.0", ErrorReason.INVALID_VALUE, "invalid int value"),
        ("max_model_len", -2, "0.32.0", ErrorReason.INVALID_VALUE, "at least 1, or -1, not -2"),
        (
            "gpu_memory_utilization",
            0,
            "0.32.0",
            ErrorReason.INVALID_VALUE,
            "over 0 and at most 1, not 0",
        ),
        ("gpu_memory_utilization", 1.01, "0.32.0", ErrorReason.INVALID_VALUE, "not 1.01"),
        ("gpu_memory_utilization", "nan", "0.32.0", ErrorReason.INVALID_VALUE, "not a finite number"),
        ("watermark", 1, "0.32.0", ErrorReason.INVALID_VALUE, "at least 0 and under 1"),
        ("kv_cache_dtype", "FP8", "0.32.0", ErrorReason.INVALID_VALUE, "invalid choice: 'FP8'"),
        ("kv_cache_dtype", "$(X)", "0.33.0", ErrorReason.INVALID_VALUE, "can't be '$(X)'"),
        (
            "enable_prefix_caching",
            "maybe",
            "0.32.0",
            ErrorReason.INVALID_VALUE,
            "expected true or false",
        ),
        (
            "enable_prefix_caching",
            False,
            "0.6.3.post1",
            ErrorReason.NOT_IN_VERSION,
            "no way to write",
        ),
        ("swap_space", 4, "0.32.0", ErrorReason.NOT_IN_VERSION, "0.5.5 to 0.17.1 are known to"),
        (
            "watermark",
            0.1,
            "0.20.2",
            ErrorReason.NOT_IN_VERSION,
            "vLLM 0.20.2 does not have --watermark",
        ),
        ("watermark", 0.1, None, ErrorReason.VERSION_UNKNOWN, "name the engine's version"),
        (
            "enable_chunked_prefill",
            True,
            "0.8.2",
            ErrorReason.VERSION_UNKNOWN,
            "0.7.3 and 0.8.5.post1 differ",
        ),
    ],
)
def test_a_value_that_the_engine_would_not_take_is_refused_before_anything_is_read(
    dest: str, value: Scalar, version: str | None, reason: ErrorReason, said: str
) -> None:
    error = setting_of(VLLM.by_dest()[dest], value, an_engine(version))

    assert isinstance(error, ManifestError)
    assert error.reason is reason
    assert said in error.message


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            ["--enable-chunked-prefill"],
            an_edit(1, "--enable-chunked-prefill", "--enable-chunked-prefill=false"),
        ),
        (["--enable-chunked-prefill", "True"], an_edit(2, "True", "false")),
        (
            ["--enable-chunked-prefill=True"],
            an_edit(1, "--enable-chunked-prefill=True", "--enable-chunked-prefill=false"),
        ),
        ([], an_edit(1, None, "--enable-chunked-prefill=false")),
    ],
)
def test_engines_of_old_take_a_truth_value(args: list[str], expected: TokenEdit) -> None:
    assert outcome_of(a_container(*args), "enable_chunked_prefill", False, "0.7.3") == expected


@pytest.mark.parametrize(
    ("version", "args", "values"),
    [
        pytest.param("0.17.1", ["--swap-space", "4"], {"swap_space": 4.0}, id="a flag of its time"),
        pytest.param(
            "0.99.0", ["--brand-new", "x", "--max-num-seqs=8"], {"max_num_seqs": 8}, id="newer than known"
        ),
        pytest.param("0.6.4", ["--disable-log-requests"], {}, id="between releases"),
        pytest.param(None, ["--max-num-seqs=8", "-tp=2", "-O3"], {"max_num_seqs": 8}, id="unknown"),
        pytest.param(None, ["--swap-space", "4"], {"swap_space": 4.0}, id="of some time, nobody knows which"),
        pytest.param(
            None, ["--brand-new", "--swap-space=4", "--max-num-seqs=8"], {"max_num_seqs": 8}, id="new"
        ),
        pytest.param("0.9.2", ["-O3", "--max-num-seqs=8"], {"max_num_seqs": 8}, id="a level of old"),
    ],
)
def test_each_version_reads_its_own_options(
    version: str | None, args: list[str], values: dict[str, Scalar]
) -> None:
    view = read_flags(a_container(*args), an_engine(version))

    assert isinstance(view, FlagsView), view
    assert view.values() == values


@pytest.mark.parametrize(
    ("version", "command", "args"),
    [
        pytest.param(
            "0.11.1", ["vllm", "serve"], ["--model", "x", "--max-num-seqs=8"], id="model as an option"
        ),
        pytest.param("0.32.0", ["vllm", "serve"], ["--max-num-seqs=8", "--"], id="dashes and no model"),
        pytest.param("0.32.0", ["vllm", "serve"], ["--max-num-seqs=8", "--", "m"], id="dashes and the model"),
        pytest.param("0.32.0", ["vllm", "serve"], ["--max-num-seqs=8", "m", "--"], id="the model and dashes"),
        pytest.param(
            "0.32.0", ["tini", "--", "vllm", "serve"], ["--max-num-seqs", "8", "m", "--"], id="tini"
        ),
    ],
)
def test_what_argparse_takes_beside_options_is_taken(
    version: str, command: list[str], args: list[str]
) -> None:
    container = {"name": "vllm", "image": "x", "command": command, "args": args}

    view = read_flags(container, an_engine(version))

    assert isinstance(view, FlagsView), view
    assert view.values() == {"max_num_seqs": 8}


@pytest.mark.parametrize(
    ("version", "args", "said"),
    [
        ("0.18.0", ["--swap-space", "4"], "unrecognized arguments: --swap-space (args[1])"),
        ("0.17.1", ["--watermark=0.1"], "unrecognized arguments: --watermark (args[1])"),
        ("0.10.2", ["--model", "x"], "--model (args[1]) is not accepted after the subcommand"),
        (None, ["--max-num-seqs", "many"], "its version is not known, and none that is known takes it"),
        ("0.11.0", ["--model", "x"], "--model (args[1]) is not accepted after the subcommand"),
        ("0.32.0", ["--revision", "s3cret", "s3cret2"], "args[3] belongs to no option"),
        ("0.32.0", ["--api-key s3cret"], "an option and its value in one item need `=`"),
        ("0.32.0", ["--max-num-s=4"], "ambiguous option: --max-num-s could match"),
        ("0.32.0", ["--max-num-seqs"], "argument --max-num-seqs: expected one argument (args[1])"),
        ("0.32.0", ["--served-model-name", "--port=1"], "expected at least one argument"),
        ("0.32.0", ["--kv-transfer-config.kv_role"], "--kv-transfer-config.kv_role without a value"),
        ("0.32.0", ["--config", "a.yaml", "--config", "b.yaml"], "more than one --config (args[3])"),
        ("0.32.0", ["--config"], "--config without a file (args[1])"),
        ("0.32.0", ["--config", "a.json"], "must be named .yaml or .yml (args[2])"),
        ("0.32.0", ["--model"], "argument --model: expected one argument"),
        ("0.32.0", ["-h"], "prints the help and ends"),
    ],
)
def test_what_would_not_start_is_refused_without_its_values(
    version: str | None, args: list[str], said: str
) -> None:
    error = read_flags(a_container(*args), an_engine(version))

    assert isinstance(error, ManifestError)
    assert said in error.message
    assert "s3cret" not in error.message


def test_a_name_for_the_model_needs_the_model_first() -> None:
    error = read_flags({"name": "v", "command": ["vllm", "serve", "--served_model_name=x", "m"]}, an_engine())

    assert isinstance(error, ManifestError)
    assert "--served-model-name needs the model" in error.message


def test_a_value_from_outside_is_not_made_up_and_the_others_are_read() -> None:
    container = a_container(
        "--max-num-seqs=$(SEQS)",
        "--max-model-len=8192",
        env=[{"name": "SEQS", "valueFrom": FROM_MAP}],
    )

    view = read_flags(container, an_engine())

    assert isinstance(view, FlagsView)
    assert view.values() == {"max_model_len": 8192}
    assert [(each.flag.dest, each.why.reason) for each in view.unknown] == [
        ("max_num_seqs", ErrorReason.FROM_VARIABLE)
    ]


def test_an_unresolved_variable_blocks_its_own_flag_alone() -> None:
    container = a_container(
        "--max-num-seqs=$(SEQS)",
        "--max-model-len=8192",
        env=[{"name": "SEQS", "valueFrom": FROM_MAP}],
    )

    own, other = (
        edit(container, 0, a_setting(name, 16), an_engine()) for name in ("max_num_seqs", "max_model_len")
    )

    assert isinstance(own, ManifestError)
    assert "max_num_seqs comes from $(SEQS) (args[1])" in own.message
    assert isinstance(other, TokenEdit)
    assert (other.before, other.after) == ("--max-model-len=8192", "--max-model-len=16")


def test_none_reads_as_not_set() -> None:
    view = read_flags(a_container("--kv-cache-memory-bytes=None", "--kv-offloading-size", "4"), an_engine())

    assert isinstance(view, FlagsView)
    assert view.values() == {"kv_cache_memory_bytes": None, "kv_offloading_size": 4.0}
