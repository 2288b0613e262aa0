"""Several settings changed at once: there, back to the byte, and never a half of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.model.edits import BundleEdit, BundlePart, EditState, EnvEdit, Field, TokenEdit, literal_of

SECRET = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
NAMES = ("A", "B", "C", "D")
VALUES = st.sampled_from(["", "0", "1", "4096"])


def a_template(args: list[str], env: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a pod template as an API server keeps it: without empty lists."""
    engine = {"name": "vllm", "args": args, "env": env}
    filled = {key: value for key, value in engine.items() if value != []}
    return {"spec": {"containers": [{"name": "proxy", "env": [SECRET]}, filled]}}


def variable(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value} if value else {"name": name}


def an_env(name: str, index: int, before: str | None, after: str | None) -> EnvEdit:
    return EnvEdit("vllm", 1, name, index, before, after)


def a_token(index: int, before: str | None, after: str | None) -> TokenEdit:
    return TokenEdit("vllm", 1, Field.ARGS, index, before, after)


ARGS = ["--port=80", "--no-enable-prefix-caching", "--block-size=32"]
ENV = [variable("BUDGET", "4096"), SECRET, variable("ENABLE", "1")]
BUNDLE = BundleEdit(
    (
        an_env("ENABLE", 2, "1", "0"),
        an_env("BUDGET", 0, "4096", None),
        a_token(1, "--no-enable-prefix-caching", None),
    )
)
ON = a_template(ARGS, ENV)
OFF = a_template(["--port=80", "--block-size=32"], [SECRET, variable("ENABLE", "0")])


def patched(template: dict[str, Any], edit: BundleEdit | BundlePart) -> dict[str, Any]:
    operations = json.loads(json.dumps([operation.as_json() for operation in edit.patch(template)]))
    return jsonpatch.apply_patch({"spec": {"template": template}}, operations)["spec"]["template"]


def test_a_whole_bundle_changes_there_and_back_and_by_one_patch() -> None:
    before = a_template(list(ARGS), list(ENV))

    after = BUNDLE.apply(before)

    assert after == OFF
    assert before == ON, "the original is left alone"
    assert patched(before, BUNDLE) == OFF
    assert BUNDLE.inverse().apply(OFF) == ON
    assert patched(OFF, BUNDLE.inverse()) == ON
    assert BUNDLE.inverse().inverse() == BUNDLE


def test_what_is_changed_already_stays_as_it_is() -> None:
    assert (BUNDLE.state(ON), BUNDLE.state(OFF)) == (EditState.BEFORE, EditState.AFTER)
    assert BUNDLE.apply(OFF) == OFF


HALVES = {
    "the variable is off, the budget stays": a_template(ARGS, [ENV[0], SECRET, variable("ENABLE", "0")]),
    "the budget is gone": a_template(ARGS, [SECRET, variable("ENABLE", "1")]),
    "the flag is gone": a_template(["--port=80", "--block-size=32"], ENV),
    "the budget is another": a_template(ARGS, [variable("BUDGET", "512"), SECRET, ENV[2]]),
    "the budget comes from elsewhere": a_template(ARGS, [{**SECRET, "name": "BUDGET"}, SECRET, ENV[2]]),
    "the budget is given twice": a_template(ARGS, [*ENV, ENV[0]]),
    "a variable came before them": a_template(ARGS, [variable("NEW", "1"), *ENV]),
    "a flag came before it": a_template(["--new", *ARGS], ENV),
    "another container": {"spec": {"containers": [ON["spec"]["containers"][1]]}},
    "another name": a_template(ARGS, ENV)
    | {"spec": {"containers": [{}, {**ON["spec"]["containers"][1], "name": "engine"}]}},
    "no list": {"spec": {"containers": [{}, {"name": "vllm", "args": ARGS, "env": "A=1"}]}},
    "no variables": a_template(ARGS, []),
}


@pytest.mark.parametrize("template", HALVES.values(), ids=HALVES)
def test_a_half_of_it_or_somebody_elses_change_is_neither_before_nor_after(template: dict[str, Any]) -> None:
    assert BUNDLE.state(template) is EditState.OTHER
    for refused in (BUNDLE.apply, BUNDLE.patch):
        with pytest.raises(ValueError, match="3 settings of container vllm are not what the bundle expects"):
            refused(template)


def test_the_patch_is_refused_by_a_deployment_that_somebody_changed_meanwhile() -> None:
    operations = [operation.as_json() for operation in BUNDLE.patch(ON)]

    for touched in (a_template([*ARGS, "--new"], ENV), a_template(ARGS, [*ENV, variable("NEW", "1")])):
        with pytest.raises(jsonpatch.JsonPatchTestFailed):
            jsonpatch.apply_patch({"spec": {"template": touched}}, operations)


def test_only_the_patch_has_the_lists() -> None:
    assert "secretKeyRef" in str(BUNDLE.patch(ON))
    assert "secretKeyRef" not in str(asdict(BUNDLE))
    assert "--port=80" not in str(asdict(BUNDLE))


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        (an_env("A", 0, "1", None), [variable("A", "1")], []),
        (an_env("A", 0, "", "1"), [variable("A", "")], [variable("A", "1")]),
        (an_env("A", 1, None, "1"), [SECRET], [SECRET, variable("A", "1")]),
        (an_env("A", 0, "1", None), [variable("A", "1"), SECRET], [SECRET]),
        (an_env("A", 0, "1", "2"), [{**variable("A", "1"), "x": 1}], [{**variable("A", "2"), "x": 1}]),
    ],
    ids=["the only one goes", "an empty one", "one more at the end", "the first goes", "others stay"],
)
def test_a_variable_changes_there_and_back_and_by_patch(
    edit: EnvEdit, old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> None:
    before, after = a_template(["m"], old), a_template(["m"], new)

    assert (edit.apply(before), patched(before, edit)) == (after, after)
    assert (edit.inverse().apply(after), patched(after, edit.inverse())) == (before, before)
    assert (edit.state(before), edit.state(after)) == (EditState.BEFORE, EditState.AFTER)
    assert edit.apply(after) == after


@pytest.mark.parametrize("refused", [EnvEdit.apply, EnvEdit.patch], ids=["apply", "patch"])
def test_a_variable_that_somebody_else_changed_is_refused(refused: Callable[[EnvEdit, Any], Any]) -> None:
    with pytest.raises(ValueError, match="variable A of container vllm is not what the edit expects"):
        refused(an_env("A", 0, "1", "0"), a_template(["m"], [variable("B", "1")]))


@pytest.mark.parametrize(
    "impossible",
    [
        lambda: an_env("A", 0, None, None),
        lambda: an_env("A", 0, "1", "1"),
        lambda: an_env("", 0, "1", None),
        lambda: an_env("A", -1, "1", None),
        lambda: replace(an_env("A", 0, "1", None), container_index=-1),
        lambda: BundleEdit(()),
    ],
    ids=["nothing", "the same", "no name", "before the first", "no container", "no parts"],
)
def test_an_edit_that_says_nothing_is_refused(impossible: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"an edit|a bundle"):
        impossible()


def test_a_bundle_of_additions_alone_is_known_by_what_it_added() -> None:
    added = BundleEdit((a_token(0, None, "--a"), a_token(0, None, "--b")))
    before, after = a_template(["m"], []), a_template(["--b", "--a", "m"], [])

    assert (added.state(before), added.state(after)) == (EditState.BEFORE, EditState.AFTER)
    assert (added.inverse().state(before), added.inverse().state(after)) == (
        EditState.AFTER,
        EditState.BEFORE,
    )


@pytest.mark.parametrize(
    "item", [SECRET, "A=1", {"name": "A", "value": 1}], ids=["elsewhere", "text", "number"]
)
def test_a_value_that_is_not_in_the_template_is_no_literal(item: object) -> None:
    assert literal_of(item) is None


@st.composite
def templates(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    env = [variable(name, draw(VALUES)) for name in names]
    if draw(st.booleans()):
        env.insert(draw(st.integers(0, len(env))), SECRET)
    return a_template(
        [f"--{letter}" for letter in draw(st.lists(st.sampled_from("uvwxyz"), min_size=2, unique=True))], env
    )


@st.composite
def parts(draw: st.DrawFn, template: dict[str, Any], number: int) -> BundlePart:
    """Return an edit that a template allows."""
    engine = template["spec"]["containers"][1]
    args, env = engine["args"], engine.get("env", [])
    if draw(st.booleans()):
        at = draw(st.integers(0, len(args) - 1))
        after = draw(st.sampled_from([f"--new-{number}"] + [None] * (len(args) > 1)))
        before = draw(st.sampled_from([args[at]] + [None] * (after is not None)))
        return a_token(at, before, after)
    given_names = [item["name"] for item in env]
    name = draw(st.sampled_from(NAMES))
    if name not in given_names:
        return an_env(name, draw(st.integers(0, len(env))), None, draw(VALUES))
    at = given_names.index(name)
    before = env[at].get("value", "")
    return an_env(name, at, before, draw((st.none() | VALUES).filter(lambda value: value != before)))


@st.composite
def bundles(draw: st.DrawFn) -> tuple[dict[str, Any], BundleEdit]:
    template = draw(templates())
    made: list[BundlePart] = []
    present: Any = template
    for number in range(draw(st.integers(1, 5))):
        made.append(draw(parts(present, number)))
        present = made[-1].apply(present)
    return template, BundleEdit(tuple(made))


@given(bundles())
def test_any_bundle_comes_back_to_the_byte_and_its_patch_says_the_same(
    made: tuple[dict[str, Any], BundleEdit],
) -> None:
    before, bundle = made

    after = patched(before, bundle)

    assert bundle.inverse().inverse() == bundle
    assert patched(after, bundle.inverse()) == before
    if before != after:
        assert bundle.apply(before) == after
        assert bundle.inverse().apply(after) == before
