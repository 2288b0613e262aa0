"""The pictures of the docs: drawn from what benchmarks printed, the same bytes each time."""

from pathlib import Path

import pytest

from lab import plots


def draw(place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    monkeypatch.setattr(plots, "ASSETS", place)
    assert plots.main([]) == 0
    return {each.name: each.read_bytes() for each in place.iterdir()}


def test_pictures_are_small_and_say_nothing_of_where_and_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    drawn = draw(tmp_path / "once", monkeypatch)

    assert set(drawn) == {"verdict-rules.svg", "day-loss.svg", "caps-open-closed.svg"}
    assert all(len(each) < 100_000 and b"dc:date" not in each for each in drawn.values())
    assert draw(tmp_path / "again", monkeypatch) == drawn


def test_the_pictures_of_the_docs_show_what_the_benchmarks_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, drawn in draw(tmp_path / "fresh", monkeypatch).items():
        kept = (plots.ROOT / "docs" / "assets" / name).read_text()
        assert [line for line in kept.splitlines() if "<text" in line] == [
            line for line in drawn.decode().splitlines() if "<text" in line
        ]
