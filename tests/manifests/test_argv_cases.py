"""Every recorded argument list reads as vLLM's own parser read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.flags import FlagsView, edit, read_flags, setting_of
from kvmedic.model.edits import Field, TokenEdit
from kvmedic.model.engine import Engine, Version

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "vllm" / "argv_cases.json").read_text()
)
ENGINE = Engine(VLLM, Version.parse("0.32.0"))
DEFAULTS: dict[str, Any] = CASES[0]["parsed"]


def label(case: dict[str, Any]) -> str:
    return " ".join(case["argv"][2:]) or "bare"


def a_container(argv: list[str], layout: str) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "vllm", "image": "registry.local/serving:1"}
    match layout:
        case "command":
            return {**container, "command": argv}
        case "split":
            return {**container, "command": argv[:2], "args": argv[2:]}
        case _:
            return {**container, "args": argv}


# A configuration file is read inside the container: what is in it can't be seen in a manifest.
NO_FILE = [case for case in CASES if "--config" not in case["argv"]]
WITH_FILE = [case for case in CASES if "--config" in case["argv"]]
PARSED = [case for case in NO_FILE if "parsed" in case]
BROKEN = [case for case in NO_FILE if "error" in case]


def test_the_cases_are_all_there() -> None:
    assert (len(PARSED), len(BROKEN), len(WITH_FILE)) == (32, 20, 4)


@pytest.mark.parametrize("layout", ["command", "split", "args"])
@pytest.mark.parametrize("case", PARSED, ids=label)
def test_what_vllm_read_is_what_is_shown(case: dict[str, Any], layout: str) -> None:
    view = read_flags(a_container(case["argv"], layout), ENGINE)

    assert isinstance(view, FlagsView)
    shown = view.values()
    assert shown == {dest: case["parsed"][dest] for dest in shown}
    changed = {dest for dest, value in case["parsed"].items() if value != DEFAULTS[dest]} - {"model"}
    assert changed <= set(shown)
    spelled = " ".join(case["argv"]).replace("_", "-")
    assert all(dest.replace("_", "-")[:11] in spelled for dest in shown), "only what is given is shown"


@pytest.mark.parametrize("case", BROKEN, ids=label)
def test_what_vllm_refused_is_refused_and_never_edited(case: dict[str, Any]) -> None:
    container = a_container(case["argv"], "split")
    setting = setting_of(VLLM.by_dest()["max_num_seqs"], 4, ENGINE)
    assert not isinstance(setting, ManifestError)

    for outcome in (read_flags(container, ENGINE), edit(container, 0, setting, ENGINE)):
        assert isinstance(outcome, ManifestError)
        assert outcome.reason is ErrorReason.WOULD_NOT_START
        assert "args[" in outcome.message or "command[" in outcome.message, "the token is named"


@pytest.mark.parametrize("case", WITH_FILE, ids=label)
def test_of_a_list_with_a_file_the_list_is_shown_and_the_file_is_named(case: dict[str, Any]) -> None:
    argv = case["argv"]

    view = read_flags(a_container(argv, "split"), ENGINE)

    assert isinstance(view, FlagsView)
    assert view.config == argv[argv.index("--config") + 1]
    given = {"max_num_seqs": int(argv[argv.index("--max-num-seqs") + 1])} if "--max-num-seqs" in argv else {}
    assert view.values() == given


@pytest.mark.parametrize("case", PARSED, ids=label)
def test_an_edit_changes_one_token_and_this_one_value(case: dict[str, Any]) -> None:
    argv: list[str] = case["argv"]
    container = a_container(argv, "command")
    setting = setting_of(VLLM.by_dest()["max_num_seqs"], 4, ENGINE)
    before = read_flags(container, ENGINE)
    assert not isinstance(setting, ManifestError)
    assert not isinstance(before, ManifestError)

    outcome = edit(container, 0, setting, ENGINE)

    assert isinstance(outcome, TokenEdit)
    assert outcome.field is Field.COMMAND
    kept = argv[: outcome.index], argv[outcome.index + (outcome.before is not None) :]
    edited = [*kept[0], str(outcome.after), *kept[1]]
    after = read_flags({**container, "command": edited}, ENGINE)
    assert isinstance(after, FlagsView)
    assert after.values() == {**before.values(), "max_num_seqs": 4}
