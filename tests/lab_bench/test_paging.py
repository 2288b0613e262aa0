"""The benchmark of pages: when a rule pages, what that is worth, and one fleet from end to end."""

import numpy as np
import pytest

from lab.bench.paging import WINDOWS, Course, Rule, main, score

pytestmark = pytest.mark.xdist_group("world")
RULE = Rule(0.7, (5, 30))


def course(seen: list[float], lost: list[float], *, slow: list[float] | None = None) -> Course:
    """Return a course whose short windows show one thing and whose longest may show another."""
    windows = [np.array(seen if each < max(WINDOWS) or slow is None else slow) for each in WINDOWS]
    return Course(1, "constant", tuple(windows), np.array(lost), 1 - np.array(seen))


@pytest.mark.parametrize(
    ("seen", "slow", "pages"),
    [
        pytest.param(0.69, 0.69, True, id="both windows are under it"),
        pytest.param(0.7, 0.69, False, id="the short one is at it"),
        pytest.param(0.69, 0.7, False, id="the long one is at it"),
        pytest.param(0.69, np.nan, False, id="nothing is known of the long one"),
    ],
)
def test_a_rule_pages_while_every_window_is_under_its_limit(seen: float, slow: float, *, pages: bool):
    assert RULE.pages(course([seen], [0.0], slow=[slow])).tolist() == [pages]


def test_a_page_counts_by_what_comes_after_it():
    lasting = course([1.0, 0.5, 0.5, 0.5], [0.0, 0.6, 0.6, 0.6])
    passing = course([1.0, 0.5, 1.0, 1.0], [0.0, 0.01, 0.0, 0.0])
    quiet = course([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0])

    found = score(RULE, [lasting, passing, quiet])

    assert (found.needed, found.paged, found.minutes) == (1, 1, 0.0)
    assert (found.began, found.began_paged) == (1, 1)
    assert (found.pages, found.recovered) == (2, 1)
    assert (found.quiet, found.quiet_paged) == (1, 0)


def test_a_page_that_comes_too_late_does_not_count():
    late = course([0.75] * 31 + [0.5], [0.6] * 32)

    found = score(RULE, [late])

    assert (found.needed, found.paged, found.pages) == (1, 0, 1)
    assert (found.began, found.began_paged) == (0, 0)


def test_a_fleet_from_end_to_end(capsys: pytest.CaptureFixture[str]):
    assert main(["--fleets", "1", "--first", "20006", "--workers", "1"]) == 0

    assert "under 0.70 over 5 and 30 min" in capsys.readouterr().out
