from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.invocation import tokens_of as tokens_within
from kvmedic.manifests.size_limits import Budget
from kvmedic.manifests.tokens import (
    Place,
    Spot,
    Token,
    Traced,
    Unquoted,
    as_one,
    connect_pieces,
    join_spots,
    stand_in,
    trace_unwritten_text,
    write_text,
)
from kvmedic.manifests.variables import Environment, Expanded, read_environment
from kvmedic.manifests.variables import expand as expand_within
from kvmedic.model.edits import Field


def environment_of(container: dict[str, Any]) -> Environment:
    return read_environment(container, Budget())


def expand(text: str, environment: Environment) -> Expanded:
    return expand_within(text, environment, Budget())


def tokens_of(container: dict[str, Any]) -> tuple[Token, ...] | ManifestError:
    return tokens_within(container, environment_of(container), Budget())


FROM_MAP = {"configMapKeyRef": {"name": "limits", "key": "seqs"}}


def test_command_comes_before_args() -> None:
    tokens = tokens_of({"args": ["m"], "command": ["vllm", "serve"]})

    assert isinstance(tokens, tuple)
    assert [(token.text, str(token.place)) for token in tokens] == [
        ("vllm", "command[0]"),
        ("serve", "command[1]"),
        ("m", "args[0]"),
    ]


@pytest.mark.parametrize(
    ("text", "expanded", "variables", "unresolved"),
    [
        ("plain", "plain", (), ()),
        ("$(SEQS)", "8", ("SEQS",), ()),
        ("--max-num-seqs=$(SEQS)", "--max-num-seqs=8", ("SEQS",), ()),
        ("$$(SEQS)", "$(SEQS)", (), ()),
        ("$$$(SEQS)", "$8", ("SEQS",), ()),
        ("$SEQS", "$SEQS", (), ()),
        ("$(SEQS", "$(SEQS", (), ()),
        ("$(NOWHERE)", "$(NOWHERE)", ("NOWHERE",), ()),
        ("$(FAR)", "$(FAR)", ("FAR",), ("FAR",)),
        ("$(REDIS_SERVICE_PORT)", "$(REDIS_SERVICE_PORT)", ("REDIS_SERVICE_PORT",), ("REDIS_SERVICE_PORT",)),
        ("", "", (), ()),
    ],
)
def test_variables_are_replaced_as_kubernetes_does_it(
    text: str, expanded: str, variables: tuple[str, ...], unresolved: tuple[str, ...]
) -> None:
    result = expand(text, Environment({"SEQS": "8"}, {"FAR": ""}))

    assert (result.text, result.variables, result.unresolved) == (expanded, variables, unresolved)


@pytest.mark.parametrize(
    ("container", "values", "elsewhere"),
    [
        pytest.param({}, {}, set(), id="none"),
        pytest.param({"env": [{"name": "A", "value": "1"}]}, {"A": "1"}, set(), id="literal"),
        pytest.param({"env": [{"name": "A"}]}, {"A": ""}, set(), id="empty"),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)0"}]},
            {"A": "1", "B": "10"},
            set(),
            id="by an earlier one",
        ),
        pytest.param(
            {"env": [{"name": "B", "value": "$(A)"}, {"name": "A", "value": "1"}]},
            {"A": "1", "B": "$(A)"},
            set(),
            id="not by a later one",
        ),
        pytest.param({"env": [{"name": "A", "valueFrom": FROM_MAP}]}, {}, {"A"}, id="elsewhere"),
        pytest.param(
            {"env": [{"name": "A", "valueFrom": FROM_MAP}, {"name": "B", "value": "$(A)"}]},
            {},
            {"A", "B"},
            id="by one from elsewhere",
        ),
        pytest.param(
            {"env": [{"name": "A", "valueFrom": FROM_MAP}, {"name": "A", "value": "2"}]},
            {"A": "2"},
            set(),
            id="the last of a name wins",
        ),
        pytest.param({"env": ["odd", {"value": "1"}]}, {}, set(), id="malformed entries"),
    ],
)
def test_the_environment_is_what_the_manifest_says(
    container: dict[str, Any], values: dict[str, str], elsewhere: set[str]
) -> None:
    environment = environment_of(container)

    assert dict(environment.values) == values
    assert set(environment.elsewhere) == elsewhere


SECRET = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"env": [SECRET]}, "key k of Secret s"),
        (
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]},
            "key k of ConfigMap c",
        ),
        ({"env": [{**SECRET, "name": "B"}, {"name": "A", "value": "$(B)$(B)"}]}, "key k of Secret s"),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]},
            "the pod's own field spec.x",
        ),
        ({"env": [{"name": "A", "valueFrom": 7}]}, ""),
        (
            {"envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}]},
            "ConfigMap c or Secret s",
        ),
        (
            {"envFrom": [{"configMapRef": {"name": "c"}, "prefix": "X_"}, {"secretRef": {"name": "s"}}]},
            "Secret s",
        ),
        ({"envFrom": [{"secretRef": {"name": "s"}, "prefix": "A"}]}, "Secret s (key )"),
        ({"envFrom": ["odd", {"more": {"name": "c"}}]}, "envFrom"),
        ({"env": [{"name": "A", "value": "1"}]}, ""),
    ],
)
def test_what_sets_a_variable_is_named_by_object_and_key(fields: dict[str, Any], source: str) -> None:
    assert environment_of(fields).source_of("A") == source


def test_a_whole_object_taken_in_may_set_any_name() -> None:
    environment = environment_of(
        {"env": [{"name": "A", "value": "1"}], "envFrom": [{"configMapRef": {"name": "x"}}]}
    )

    assert environment.knows_nothing_of("B")
    assert not environment.knows_nothing_of("A")


def test_a_token_names_its_variables() -> None:
    tokens = tokens_of({"args": ["$(A)"], "env": [{"name": "A", "valueFrom": FROM_MAP}]})

    assert tokens == (Token("$(A)", "$(A)", Place(Field.ARGS, 0), ("A",), ("A",)),)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (8, "args[1] is the number 8"),
        (0.9, "args[1] is the number 0.9"),
        (True, "args[1] is the boolean True"),
        (None, "args[1] is empty"),
        ([], "args[1] is a list or a mapping"),
        ({}, "args[1] is a list or a mapping"),
        (Unquoted("1_0", "number"), "args[1] is the number 1_0"),
    ],
)
def test_what_is_not_text_is_named(item: object, said: str) -> None:
    error = tokens_of({"args": ["m", item]})

    assert isinstance(error, ManifestError)
    assert error.reason is ErrorReason.NOT_TEXT
    assert error.message.startswith(said)


def test_a_command_that_is_no_list_is_refused() -> None:
    error = tokens_of({"name": "vllm", "command": "vllm serve"})

    assert error == ManifestError(ErrorReason.NOT_TEXT, "command of container vllm is not a list")


ITEM = write_text("0123456789", Field.ARGS, 0)
REFERENCE = Spot(Field.ARGS, 1, 3, 7)


@st.composite
def pieces(draw: st.DrawFn) -> Traced:
    """Return a part of an item, as it is or after something that a shell does to it."""
    start, length = draw(st.integers(0, 9)), draw(st.integers(0, 4))
    part = ITEM.piece(start, start + length)
    made = [
        part,
        part.through("A", REFERENCE),
        trace_unwritten_text(part.text),
        stand_in(part.text, "B", REFERENCE),
    ]
    return draw(st.sampled_from([*made, as_one("x", ITEM.piece(start, start + 2))]))


@given(st.lists(pieces(), max_size=5), st.integers(0, 20), st.integers(0, 20))
def test_a_part_of_a_text_of_several_pieces_is_known_by_its_characters(
    parts: list[Traced], start: int, stop: int
) -> None:
    characters = [part.piece(at, at + 1) for part in parts for at in range(len(part.text))]

    whole = connect_pieces(parts)
    part, expected = whole.piece(start, stop), characters[start:stop]

    assert [whole.piece(at, at + 1) for at in range(len(whole.text))] == characters
    assert part.text == "".join(each.text for each in expected)
    assert part.origin == join_spots(each.origin for each in expected)
    assert part.variables == tuple(dict.fromkeys(name for each in expected for name in each.variables))
    assert part.depth == max((each.depth for each in expected), default=0)
    assert part.hide_unknown() == "".join("?" if each.unknown else each.text for each in expected)


@given(st.text(max_size=20), st.integers(0, 20))
def test_each_character_that_is_written_stands_for_itself(text: str, at: int) -> None:
    part = write_text(text, Field.ENV, 2).piece(at, at + 1)

    spot = Spot(Field.ENV, 2, at, at + 1) if at < len(text) else None
    assert (part.origin, part.site) == (spot, spot)


def test_characters_of_a_variable_stand_for_its_reference_together() -> None:
    value = ITEM.through("A", REFERENCE)

    assert value.piece(2, 5).site == REFERENCE
    assert as_one("x", value.piece(2, 4)).site is None
    assert as_one("x", ITEM.piece(2, 4)).site == Spot(Field.ARGS, 0, 2, 4)
