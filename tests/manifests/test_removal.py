"""A flag that was added, taken off again: the inverse of adding it, or a refusal."""

from __future__ import annotations

import pytest

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.errors import ManifestError
from kvmedic.manifests.flags import Setting, edit, remove_flag, setting_of
from kvmedic.model.edits import TokenEdit
from kvmedic.model.engine import Engine, Knob, Version

ENGINE = Engine(VLLM, Version.parse("0.32.0"))
FOUND = VLLM.flag(Knob.KV_OFFLOADING_SIZE)
assert FOUND is not None
FLAG = FOUND


def container(*args: str, **fields: object) -> dict[str, object]:
    return {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": list(args), **fields}


def script(text: str) -> dict[str, object]:
    return {"name": "vllm", "image": "i", "command": ["sh", "-c"], "args": [text]}


def template(of: dict[str, object]) -> dict[str, object]:
    return {"spec": {"containers": [{"name": "sidecar"}, of]}}


@pytest.mark.parametrize(
    "before",
    [
        container("--model=m", "--max-num-seqs=64"),
        container("serve", "m", command=["vllm"]),
        {"name": "vllm", "image": "i", "command": ["vllm", "serve", "m"]},
        script("exec vllm serve m --max-num-seqs=64"),
        script("set -e\nvllm serve m \\\n  --max-num-seqs=64\necho done"),
    ],
    ids=["arguments", "a command and arguments", "a command", "a script", "a script of several lines"],
)
def test_what_was_added_is_taken_off_to_the_byte(before):
    setting = setting_of(FLAG, 32, ENGINE)
    assert isinstance(setting, Setting)
    added = edit(before, 1, setting, ENGINE)
    assert isinstance(added, TokenEdit)
    changed = added.apply(template(before))

    back = remove_flag(changed["spec"]["containers"][1], 1, FLAG, ENGINE)

    assert isinstance(back, TokenEdit), back
    assert back.apply(changed) == template(before)
    assert back.inverse().apply(template(before)) == changed


def test_what_others_changed_since_stays():
    changed = container("--model=m", "--kv-offloading-size=32", "--max-num-seqs=16")

    back = remove_flag(changed, 0, FLAG, ENGINE)

    assert isinstance(back, TokenEdit)
    [left] = back.apply({"spec": {"containers": [changed]}})["spec"]["containers"]
    assert left["args"] == ["--model=m", "--max-num-seqs=16"]


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (container("--model=m"), "is not on the command line"),
        (container("--model=m", "--kv-offloading-size", "32"), "is not one word"),
        (
            container("--model=m", "--kv-offloading-size=8", "--kv-offloading-size=32"),
            "without changing how other flags are read",
        ),
        (
            container("--model=m", "--kv-offloading-size=$(SIZE)", env=[{"name": "SIZE", "value": "32"}]),
            "without changing how other flags are read",
        ),
        (script("vllm serve m\t--kv-offloading-size=32"), "without changing how other flags are read"),
        ({"name": "vllm", "image": "i", "args": ["sleep"], "command": ["sh"]}, ""),
    ],
    ids=["not there", "two words", "given twice", "from a variable", "behind a tab", "no engine"],
)
def test_what_cannot_be_taken_off_for_sure_is_refused(of, words):
    found = remove_flag(of, 0, FLAG, ENGINE)

    assert isinstance(found, ManifestError)
    assert words in found.message
