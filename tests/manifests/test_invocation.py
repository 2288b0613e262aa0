from __future__ import annotations

from typing import Any

import pytest

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.argument_parser import CommandLine
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.invocation import NotAnEngine, image_name, invocation_of, version_of
from kvmedic.model.engine import Version

API_SERVER = "vllm.entrypoints.openai.api_server"
OURS = "vllm/vllm-openai:v0.32.0"


def a_container(
    *command: str, args: list[Any] | None = None, image: str = "team/serving:7"
) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "c", "image": image}
    if command:
        container["command"] = list(command)
    if args is not None:
        container["args"] = args
    return container


STARTS = [
    pytest.param(a_container("vllm", "serve", "m"), True, id="vllm serve"),
    pytest.param(a_container("/opt/venv/bin/vllm", "serve", "m"), True, id="by its path"),
    pytest.param(a_container("vllm", args=["serve", "m"]), True, id="over command and args"),
    pytest.param(a_container("python3", "-m", API_SERVER, "m"), False, id="module"),
    pytest.param(
        a_container("/usr/bin/python3.12", "-u", "-X", "dev", "-m", API_SERVER, "m"), False, id="options"
    ),
    pytest.param(a_container("python", f"-m{API_SERVER}", "m"), False, id="module glued"),
    pytest.param(a_container("python3", "/app/vllm/entrypoints/openai/api_server.py", "m"), False, id="file"),
    pytest.param(a_container("python3", "/usr/local/bin/vllm", "serve", "m"), True, id="script by python"),
    pytest.param(
        a_container("python3", "-m", "vllm.entrypoints.cli.main", "serve", "m"), True, id="main module"
    ),
    pytest.param(a_container("/usr/bin/env", "A=1", "vllm", "serve", "m"), True, id="env"),
    pytest.param(a_container("tini", "--", "vllm", "serve", "m"), True, id="tini"),
    pytest.param(a_container("numactl", "-N", "0", "python3", "-m", API_SERVER, "m"), False, id="numactl"),
    pytest.param(a_container(args=["vllm", "serve", "m"]), True, id="args with the whole command"),
    pytest.param(a_container(args=["m"], image=OURS), False, id="args of the server's image"),
    pytest.param(a_container("/bin/sh", "-c", "exec vllm serve m"), True, id="sh -c"),
    pytest.param(
        a_container("bash", "-lc", args=[f"python3 -m {API_SERVER} m"]),
        False,
        id="bash with its script in args",
    ),
    pytest.param(
        a_container("sh", "-c", 'exec "$@"', "sh", "vllm", "serve", "m"), True, id="sh with arguments"
    ),
    pytest.param(
        a_container(args=["bash", "-c", "vllm serve m"], image=OURS),
        True,
        id="script for the image's entry point",
    ),
    pytest.param(a_container(args=["serve", "m"], image=OURS), True, id="subcommand for the server's image"),
]


@pytest.mark.parametrize(("container", "subcommand"), STARTS)
def test_these_start_the_engine_with_one_argument(container: dict[str, Any], subcommand: object) -> None:
    line = invocation_of(container, VLLM)

    assert isinstance(line, CommandLine)
    assert [token.text for token in line.tokens] == ["m"]
    assert line.subcommand is subcommand


@pytest.mark.parametrize(
    ("container", "reason", "said"),
    [
        pytest.param(
            a_container("sh", "-c", "vllm", "serve", "m"),
            ErrorReason.SHELL_SCRIPT,
            "the shell `sh`",
            id="sh with words that it does not run",
        ),
        pytest.param(
            a_container("vllm serve m"),
            ErrorReason.SHELL_SCRIPT,
            "command[0] holds a whole command",
            id="one item",
        ),
        pytest.param(
            a_container("su", "-c", "vllm serve m"),
            ErrorReason.SHELL_SCRIPT,
            "command[2] holds",
            id="su -c",
        ),
        pytest.param(
            a_container("launch.sh", "vllm", "serve", "m"),
            ErrorReason.UNKNOWN_WRAPPER,
            "`launch.sh` (command[0]) starts vLLM",
            id="wrapper",
        ),
        pytest.param(
            a_container("vllm", "serve", args=["m", 8]),
            ErrorReason.NOT_TEXT,
            "args[1] is the number 8",
            id="number",
        ),
    ],
)
def test_these_start_it_in_a_way_that_is_not_followed(
    container: dict[str, Any], reason: ErrorReason, said: str
) -> None:
    error = invocation_of(container, VLLM)

    assert isinstance(error, ManifestError)
    assert error.reason is reason
    assert said in error.message


@pytest.mark.parametrize(
    ("container", "doubt"),
    [
        pytest.param(a_container("nginx"), "", id="another program"),
        pytest.param(a_container(args=["--port", "80"]), "", id="args of another image"),
        pytest.param(a_container(), "", id="nothing"),
        pytest.param(a_container("vllm", "bench", "serve"), "", id="another subcommand"),
        pytest.param(a_container("vllm"), "", id="no subcommand"),
        pytest.param(a_container("python3"), "", id="bare python"),
        pytest.param(a_container("python3", "-m"), "", id="no module"),
        pytest.param(a_container("python3", "app.py", "--x"), "", id="another script"),
        pytest.param(a_container("sh", "-c", "curl localhost:8000/metrics | grep vllm:"), "", id="a probe"),
        pytest.param(a_container("envoy", args=[1]), "", id="numbers in a sidecar"),
        pytest.param(
            a_container(image=OURS), "it has neither command nor args", id="the image's own command"
        ),
        pytest.param(
            a_container("sh", "-c", "/start.sh", image=OURS), "`sh` (command[0]) runs", id="a hidden script"
        ),
        pytest.param(
            a_container("python3", "-m", "vllm.entrypoints.grpc_server", image=OURS, args=["--port", "1"]),
            "`python3 -m vllm.entrypoints.grpc_server` (command[0]) runs",
            id="another module",
        ),
        pytest.param(
            a_container("python3", "/hook.py", image=OURS, args=["--x"]), "`python3 /hook.py` (c", id="a hook"
        ),
    ],
)
def test_these_are_no_engines_as_far_as_can_be_seen(container: dict[str, Any], doubt: str) -> None:
    answer = invocation_of(container, VLLM)

    assert isinstance(answer, NotAnEngine)
    assert doubt in answer.doubt
    assert bool(doubt) == bool(answer.doubt)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("vllm/vllm-openai:v0.10.2rc1", "0.10.2rc1"),
        ("vllm/vllm-openai:v0.8.5.post1", "0.8.5.post1"),
        ("registry:5000/vllm/vllm-openai:v0.9.2-x86_64@sha256:0a", "0.9.2"),
        ("vllm:0.32", "0.32"),
        ("rocm/vllm:rocm6.2_mi300_ubuntu20.04_py3.9_vllm_0.6.4", "0.6.4"),
        ("rocm/vllm:rocm6.4.1_vllm_0.9.0.1_20250605", "0.9.0.1"),
        ("rocm/vllm:rocm6.3.1_vllm0.8.5_20250521", "0.8.5"),
        ("rednotehilab/dots.ocr:vllm-openai-v0.9.1", "0.9.1"),
        ("rocm/vllm:rocm7.14.0", None),
        ("team/serving:tvllm-0.9.1", None),
        ("team/serving:vllm-0.9.1x", None),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai", None),
        ("vllm/vllm-openai@sha256:0a", None),
        ("vllm/vllm-openai:nightly-0.32.0", None),
        ("lmcache/vllm-openai:v0.9.2", None),
        ("nvcr.io/nvidia/vllm:25.09-py3", None),
        ("team/vllm:0.1.7", None),
        ("team/serving:0.32.0", None),
        (None, None),
    ],
)
def test_a_tag_names_the_version_only_where_it_is_the_engines(image: object, version: str | None) -> None:
    expected = Version.parse(version) if version else None

    assert version_of({"image": image}, VLLM) == expected


def test_an_images_name_is_without_tag_and_digest() -> None:
    assert image_name({"image": "host:5000/a/b:tag@sha256:0a"}) == "host:5000/a/b"
