"""A ConfigMap and its copy: one value differs, and the name follows from what is in it and whose it is."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmedic.model.config_edits import NAME_LENGTH, Contents, FileEdit, copy_name, names_in
from worlds.config_maps import CONTENTS, SECRET, an_edit

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", fullmatch=True)


def test_the_copy_differs_in_the_one_value() -> None:
    assert an_edit().make_copy(CONTENTS) == Contents(
        {**CONTENTS.data, "engine.yaml": CONTENTS.data["engine.yaml"].replace("64", "16")}, CONTENTS.binary
    )


@pytest.mark.parametrize(
    "moved",
    [
        Contents({**CONTENTS.data, "engine.yaml": "max-num-seqs: 32\n"}, CONTENTS.binary),
        Contents({**CONTENTS.data, "other": "y"}, CONTENTS.binary),
        Contents(CONTENTS.data),
    ],
    ids=["the file", "another key", "a binary key"],
)
def test_no_copy_is_made_of_contents_that_were_not_planned_on(moved: Contents) -> None:
    with pytest.raises(ValueError, match="limits is not what the edit was made for"):
        an_edit().make_copy(moved)


def test_a_copy_that_would_not_be_the_planned_one_is_none() -> None:
    edit = FileEdit("limits", "c", "engine.yaml", 15, "6", "1", CONTENTS.digest, an_edit().after_content)

    with pytest.raises(ValueError, match="does not give the copy that was planned"):
        edit.make_copy(CONTENTS)


def test_what_a_config_map_holds_is_never_printed() -> None:
    assert SECRET not in repr(CONTENTS)
    assert SECRET not in repr(an_edit())
    with pytest.raises(ValueError, match="limits") as error:
        an_edit().make_copy(Contents({"engine.yaml": SECRET}))
    assert SECRET not in str(error.value)


@settings(deadline=None)
@given(st.dictionaries(TEXTS, TEXTS, max_size=4), st.dictionaries(TEXTS, TEXTS, max_size=2))
def test_the_digest_distinguishes_keys_values_and_kinds(data: dict[str, str], binary: dict[str, str]) -> None:
    contents = Contents(data, binary)

    assert Contents(dict(reversed(data.items())), binary).digest == contents.digest
    assert Contents({**data, "one more": ""}, binary).digest != contents.digest
    assert (Contents(binary, data).digest == contents.digest) == (data == binary)
    assert re.fullmatch(r"[0-9a-f]{32}", contents.digest)


@settings(deadline=None)
@given(NAMES)
def test_a_copys_name_is_a_name_and_a_copy_of_a_copy_has_one_hash(name: str) -> None:
    first = copy_name(name, CONTENTS, "uid")
    second = copy_name(first, Contents({}), "uid")

    assert len(first) <= NAME_LENGTH
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", first)
    assert first[:-11] == second[:-11]
    assert first != second


def test_another_target_has_a_copy_of_its_own_and_the_same_change_gives_the_same_name() -> None:
    names = [copy_name("limits", CONTENTS, uid) for uid in ("a", "b", "a")]

    assert names[0] == names[2] != names[1]


def test_sizes_are_counted_in_bytes_and_binary_values_decoded() -> None:
    assert Contents({"a": "é" * 10}, {"b": "AAAA" * 10}).size == 20 + 30


def test_every_way_to_refer_to_a_config_map_is_found() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "no"}}],
        "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "b", "key": "k"}}}],
    }
    volumes = [
        {"name": "v", "configMap": {"name": "c"}},
        {"name": "w", "projected": {"sources": [{"configMap": {"name": "d"}}, {"secret": {"name": "no"}}]}},
    ]
    template = {"spec": {"template": {"spec": {"initContainers": [container], "volumes": volumes}}}}

    assert names_in(template) == {"a", "b", "c", "d"}
    assert names_in({}) == frozenset()
