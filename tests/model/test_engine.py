from __future__ import annotations

import pytest

from kvmedic.model.engine import Bounds, Version


def v(text: str) -> Version:
    return Version.parse(text)


ASCENDING = [
    "0.6.6",
    "0.6.6.post1",
    "0.9.0.1",
    "0.10.2.dev3",
    "0.10.2a1",
    "0.10.2b1",
    "0.10.2rc1.dev1",
    "0.10.2rc1",
]
ASCENDING += ["0.10.2rc2", "0.10.2", "0.10.2.post1.dev1", "0.10.2.post1", "0.32", "1"]


def test_versions_are_ordered_as_packages_are() -> None:
    assert sorted(map(v, reversed(ASCENDING))) == list(map(v, ASCENDING))


@pytest.mark.parametrize(
    ("one", "other"), [("0.9", "0.9.0"), ("v0.32.0", "0.32.0"), ("0.32.0+cpu", "0.32.0")]
)
def test_versions_that_mean_the_same_are_equal(one: str, other: str) -> None:
    assert v(one) == v(other)
    assert hash(v(one)) == hash(v(other))


@pytest.mark.parametrize("text", ["", "latest", "0.9-x86", "v", "0..1", "nightly-abc"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version"):
        v(text)


def test_a_version_prints_as_it_was_written_and_equals_no_text() -> None:
    assert str(v("v0.10.2rc1")) == "0.10.2rc1"
    assert v("0.9") != "0.9"


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "text"),
    [
        (Bounds(), [0, -5, 1e9], [], ""),
        (Bounds(minimum=1), [1, 2], [0], "at least 1"),
        (Bounds(0, 1, minimum_open=True), [0.01, 1], [0, 1.01], "over 0 and at most 1"),
        (Bounds(0, 1, maximum_open=True), [0, 0.99], [1], "at least 0 and under 1"),
        (Bounds(minimum=1, also=(-1,)), [1, -1], [0, -2], "at least 1, or -1"),
    ],
)
def test_bounds_hold_what_the_engine_accepts(
    bounds: Bounds, inside: list[float], outside: list[float], text: str
) -> None:
    assert all(bounds.holds(value) for value in inside)
    assert not any(bounds.holds(value) for value in outside)
    assert str(bounds) == text
