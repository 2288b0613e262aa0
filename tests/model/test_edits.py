from __future__ import annotations

from dataclasses import asdict
from typing import Any

import jsonpatch
import pytest

from kvmedic.model.edits import DIGITS, EARLIER_DIGITS, Digest, EditState, Field, TokenEdit


def a_template(*args: str, name: str = "vllm") -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "proxy"}, {"name": name, "args": list(args)}]}}


def an_edit(index: int, before: str | None, after: str | None) -> TokenEdit:
    return TokenEdit("vllm", 1, Field.ARGS, index, before, after)


REPLACE = an_edit(1, "64", "16")
INSERT = an_edit(2, None, "--watermark=0.1")
REMOVE = an_edit(2, "--watermark=0.1", None)

CHANGES = [
    pytest.param(
        TokenEdit("vllm", 1, Field.ARGS, 0, "64", "6", 21),
        ["serve --max-num-seqs 64 x"],
        ["serve --max-num-seqs 6 x"],
        id="replace within a text, with the beginning of what was there",
    ),
    pytest.param(
        TokenEdit("vllm", 1, Field.ARGS, 0, None, " --port=1", 5),
        ["serve | tee"],
        ["serve --port=1 | tee"],
        id="insert within a text",
    ),
    pytest.param(
        TokenEdit("vllm", 1, Field.ARGS, 0, " --port=1", None, 5),
        ["serve --port=1 | tee"],
        ["serve | tee"],
        id="remove within a text",
    ),
    pytest.param(REPLACE, ["--max-num-seqs", "64"], ["--max-num-seqs", "16"], id="replace"),
    pytest.param(INSERT, ["--port", "80"], ["--port", "80", "--watermark=0.1"], id="insert at the end"),
    pytest.param(
        INSERT,
        ["--port", "80", "--", "m"],
        ["--port", "80", "--watermark=0.1", "--", "m"],
        id="insert within",
    ),
    pytest.param(REMOVE, ["--port", "80", "--watermark=0.1"], ["--port", "80"], id="remove"),
]


@pytest.mark.parametrize(("edit", "old", "new"), CHANGES)
def test_applying_changes_one_token_and_leaves_the_original_alone(
    edit: TokenEdit, old: list[str], new: list[str]
) -> None:
    template = a_template(*old)

    changed = edit.apply(template)

    assert changed == a_template(*new)
    assert template == a_template(*old)


@pytest.mark.parametrize(("edit", "old", "new"), CHANGES)
def test_the_inverse_puts_the_list_back(edit: TokenEdit, old: list[str], new: list[str]) -> None:
    assert edit.inverse().apply(a_template(*new)) == a_template(*old)
    assert edit.inverse().inverse() == edit


@pytest.mark.parametrize(("edit", "old", "new"), CHANGES)
def test_the_patch_does_what_applying_does(edit: TokenEdit, old: list[str], new: list[str]) -> None:
    template = a_template(*old)

    operations = [operation.as_json() for operation in edit.patch(template)]

    patched = jsonpatch.apply_patch({"spec": {"template": template}}, operations)
    assert patched == {"spec": {"template": edit.apply(template)}}


def with_env(*values: object) -> dict[str, Any]:
    env = [
        {"name": f"N{index}", "value": value}
        if isinstance(value, str)
        else {"name": f"N{index}", "valueFrom": {}}
        for index, value in enumerate(values)
    ]
    return {"spec": {"containers": [{"name": "proxy"}, {"name": "vllm", "env": env}]}}


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        pytest.param(
            TokenEdit("vllm", 1, Field.ENV, 1, "64", "16"), (None, "64"), (None, "16"), id="all of it"
        ),
        pytest.param(
            TokenEdit("vllm", 1, Field.ENV, 0, "64", "16", 3), ("-n=64 x",), ("-n=16 x",), id="a part"
        ),
        pytest.param(TokenEdit("vllm", 1, Field.ENV, 0, None, " -n", 1), ("x",), ("x -n",), id="more"),
    ],
)
def test_a_variables_value_changes_there_and_back_and_by_patch(
    edit: TokenEdit, old: tuple[object, ...], new: tuple[object, ...]
) -> None:
    template = with_env(*old)

    operations = [operation.as_json() for operation in edit.patch(template)]

    assert edit.apply(template) == with_env(*new)
    assert edit.inverse().apply(with_env(*new)) == template
    assert jsonpatch.apply_patch({"spec": {"template": template}}, operations) == {
        "spec": {"template": with_env(*new)}
    }


@pytest.mark.parametrize(
    ("edit", "template"),
    [
        (TokenEdit("vllm", 1, Field.ENV, 0, "64", "16"), with_env(None)),
        (TokenEdit("vllm", 1, Field.ENV, 1, "64", "16"), with_env("64")),
        (TokenEdit("vllm", 1, Field.ARGS, 0, "64", "16", 90), a_template("64")),
        (TokenEdit("vllm", 1, Field.ARGS, 2, "64", "16", 0), a_template("64")),
        (TokenEdit("vllm", 1, Field.ARGS, 0, "65", "16", 0), a_template("64")),
    ],
)
def test_a_text_that_is_not_there_is_not_edited(edit: TokenEdit, template: dict[str, Any]) -> None:
    assert edit.state(template) is EditState.OTHER


def test_a_variable_is_neither_added_nor_removed() -> None:
    with pytest.raises(ValueError, match="adds and removes no variable"):
        TokenEdit("vllm", 1, Field.ENV, 0, None, "16")


def test_the_patch_fails_where_the_list_has_moved_since_it_was_read() -> None:
    operations = [
        operation.as_json() for operation in REPLACE.patch(a_template("--max-num-seqs", "64", "-tp", "64"))
    ]
    moved = {"spec": {"template": a_template("-tp", "64")}}

    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(moved, operations)


def test_applying_twice_is_applying_once() -> None:
    once = REPLACE.apply(a_template("--max-num-seqs", "64"))

    assert REPLACE.apply(once) == once


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(a_template("--max-num-seqs", "32"), id="another value"),
        pytest.param(a_template("--max-num-seqs"), id="a shorter list"),
        pytest.param(a_template("--max-num-seqs", "64", name="other"), id="another container"),
        pytest.param({"spec": {"containers": []}}, id="no container"),
        pytest.param({}, id="no pod spec"),
        pytest.param({"spec": {"containers": [{}, {"name": "vllm", "args": ["a", 64]}]}}, id="not text"),
        pytest.param({"spec": {"containers": [{}, {"name": "vllm"}]}}, id="no list"),
    ],
)
def test_a_template_that_shows_neither_is_left_alone(template: dict[str, Any]) -> None:
    assert REPLACE.state(template) is EditState.OTHER
    with pytest.raises(ValueError, match=r"args\[1\] of container vllm"):
        REPLACE.apply(template)
    with pytest.raises(ValueError, match=r"args\[1\] of container vllm"):
        REPLACE.patch(template)


def test_an_insertion_beyond_the_end_fits_nowhere() -> None:
    assert INSERT.state(a_template("--port")) is EditState.OTHER
    assert REMOVE.state(a_template("--port")) is EditState.OTHER


def test_an_edit_that_was_applied_has_no_patch() -> None:
    with pytest.raises(ValueError, match="not what the edit expects"):
        REPLACE.patch(a_template("--max-num-seqs", "16"))


def test_an_edit_holds_no_token_but_its_own() -> None:
    assert set(asdict(REPLACE).values()) == {"vllm", 1, "args", "64", "16", None}


@pytest.mark.parametrize(("index", "before", "after"), [(0, None, None), (-1, "a", "b")])
def test_an_edit_that_says_nothing_is_refused(index: int, before: str | None, after: str | None) -> None:
    with pytest.raises(ValueError, match="an edit"):
        an_edit(index, before, after)


WHOLE = Digest.of({"a": 1})
EARLIER = WHOLE[:EARLIER_DIGITS]
NEAR = Digest(EARLIER + "0" * (DIGITS - EARLIER_DIGITS))


def test_a_digest_is_128_bits_and_one_of_an_earlier_version_is_compared_by_what_it_has():
    assert len(WHOLE) == DIGITS
    assert Digest.of({"a": 1}) == WHOLE != Digest.of({"a": 2})
    assert WHOLE == EARLIER == WHOLE
    assert not WHOLE != EARLIER  # noqa: SIM202 - both operators are our own
    assert {Digest(EARLIER), WHOLE, "other"} == {"other", WHOLE}
    assert {Digest(EARLIER): "known"}[WHOLE] == "known"


def test_two_whole_digests_are_equal_only_as_a_whole_and_other_texts_as_ever():
    assert NEAR != WHOLE
    assert len({NEAR, WHOLE}) == 2
    assert EARLIER[:-1] != WHOLE
    assert WHOLE[:-1] != WHOLE
    assert Digest("") != WHOLE
    assert WHOLE != 16
