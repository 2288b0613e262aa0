"""The report on a run in a real browser: on a telephone and on a screen, by day and by night, by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chart.dashboards import DASHBOARDS
from kvmedic import __version__
from kvmedic.cli.live.report_page import report_as_page
from lab.browser import LARGEST_PICTURE, PICTURES, SCHEMES, Looked, look_at, started_browser
from lab.pictures import NAMES, terminal_page
from worlds.reported import an_example_report

WIDTHS = (380, 1440)
pytestmark = pytest.mark.xdist_group("report-in-browser")
"""One browser for all."""


@pytest.fixture(scope="module")
def looked(tmp_path_factory) -> Iterator[dict[tuple[int, str], Looked]]:
    """What a browser finds on the whole report, by width and scheme of colours."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_as_page(an_example_report()), encoding="utf-8")
    with started_browser() as browser:
        yield {
            (width, scheme): look_at(browser, file, width, scheme) for width in WIDTHS for scheme in SCHEMES
        }


def test_the_console_stays_empty_and_nothing_but_the_page_is_fetched(looked):
    assert {at: each.problems for at, each in looked.items() if each.problems} == {}


def test_nothing_leaves_the_page_or_its_plot(looked):
    assert {at: each.too_wide for at, each in looked.items() if each.too_wide} == {}


def test_every_text_and_line_stands_out_from_what_is_behind_it(looked):
    faint: list[dict[str, Any]] = [
        {"at": at, **one}
        for at, each in looked.items()
        for one in each.contrasts
        if one["ratio"] < one["least"]
    ]

    assert faint == []
    assert all(len(each.contrasts) > 100 for each in looked.values())
    bright, dark = (looked[1440, scheme].contrasts[0]["ratio"] for scheme in SCHEMES)
    assert bright != dark


def test_the_keyboard_reaches_all_that_scrolls_from_top_to_bottom_and_shows_where_it_is(looked):
    for each in looked.values():
        tops = [one["top"] for one in each.focused]
        assert len(tops) >= 4
        assert tops == sorted(tops)
        assert all(one["outline"] >= 2 for one in each.focused)
        assert set(each.scroll_tab_indices) <= {0}


@pytest.mark.parametrize("name", [*NAMES, *(f"dashboard-{each}" for each in DASHBOARDS)])
def test_a_picture_of_what_people_see_is_kept(name):
    assert 20_000 < (PICTURES / f"{name}.png").stat().st_size < LARGEST_PICTURE


def test_the_terminal_is_pictured_with_what_a_command_prints_there():
    page = terminal_page(("kvmedic", "version"), 60)

    assert "$ kvmedic version" in page
    assert f"kvmedic {__version__}, API " in page


def test_the_readme_shows_the_light_picture():
    readme = (Path(__file__).parents[2] / "README.md").read_text()

    assert "](docs/assets/report-light.png)" in readme
