"""The key that an engine's pod template gives in plain text, and none where it is kept elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.trial_pod import api_key_of

KEY = "hunter2"
SECRET = {"secretKeyRef": {"name": "keys", "key": "vllm"}}


def env(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"command": ["vllm", "serve", "m"], "env": list(entries)}


def args(*words: str, **more: Any) -> dict[str, Any]:
    return {"command": ["vllm", "serve", "m"], "args": list(words), **more}


@pytest.mark.parametrize(
    ("container", "key"),
    [
        pytest.param(args("--api-key", KEY), KEY, id="two items"),
        pytest.param(args(f"--api-key={KEY}", "--port=1"), KEY, id="one item"),
        pytest.param(args(f"--api_key={KEY}"), KEY, id="with underscores"),
        pytest.param(args("--api-key", KEY, "another", "--port=1"), KEY, id="several: the first"),
        pytest.param({"command": ["vllm", "serve", "m", "--api-key", KEY]}, KEY, id="in the command"),
        pytest.param(
            {"command": ["sh", "-c", f"exec vllm serve m --api-key '{KEY}'"]}, KEY, id="in a shell's script"
        ),
        pytest.param(
            {"image": "vllm/vllm-openai", "args": ["--model=m", f"--api-key={KEY}"]}, KEY, id="args alone"
        ),
        pytest.param(env({"name": "VLLM_API_KEY", "value": KEY}), KEY, id="the variable"),
        pytest.param(
            env({"name": "K", "value": KEY}, {"name": "VLLM_API_KEY", "value": "$(K)"}), KEY, id="by another"
        ),
        pytest.param(
            args(f"--api-key={KEY}", env=[{"name": "VLLM_API_KEY", "value": "other"}]),
            KEY,
            id="the flag wins",
        ),
        pytest.param(
            args("--api-key=$(K)", env=[{"name": "K", "value": KEY}]), KEY, id="the flag by a variable"
        ),
        pytest.param(
            args(
                "--api-key=$(K)",
                env=[{"name": "K", "valueFrom": SECRET}, {"name": "VLLM_API_KEY", "value": "other"}],
            ),
            "",
            id="a flag from a Secret: the variable does not count",
        ),
        pytest.param(env({"name": "VLLM_API_KEY", "valueFrom": SECRET}), "", id="a variable from a Secret"),
        pytest.param(env({"name": "VLLM_API_KEY"}), "", id="an empty variable"),
        pytest.param(env(), "", id="none"),
        pytest.param(args("--no-such-option"), "", id="a command line that is not followed"),
        pytest.param({"image": "nginx"}, "", id="no engine"),
    ],
)
def test_a_key_in_plain_text_is_found(container: dict[str, Any], key: str) -> None:
    sidecar = {"name": "proxy", "image": "envoy", "args": ["--api-key", "of-the-proxy"]}

    assert api_key_of({"spec": {"containers": [sidecar, {"name": "vllm", **container}]}}, VLLM) == key


@pytest.mark.parametrize("template", [{}, {"spec": None}, {"spec": {}}, {"spec": {"containers": [None]}}])
def test_a_template_without_containers_has_no_key(template: dict[str, Any]) -> None:
    assert api_key_of(template, VLLM) == ""
