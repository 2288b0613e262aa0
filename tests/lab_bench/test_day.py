"""The benchmark of a day: what each controller makes of what it sees, and a few hours from end to end."""

from __future__ import annotations

import numpy as np
import pytest

from lab.bench.day import day_of, main, turning

pytestmark = pytest.mark.xdist_group("world")


@pytest.mark.parametrize(
    ("hour", "share"), [(0, 0), (10.9, 0), (12, 0.5), (13, 1), (22, 1), (24, 0.5), (29, 0)]
)
def test_it_is_night_once_in_a_day(hour: float, share: float):
    assert day_of(np.array([hour]))[0] == pytest.approx(share)


def test_the_other_mix_turns_every_90_minutes():
    assert turning(np.array([0, 1.4, 1.5, 2.9, 3.0])).tolist() == [0, 0, 1, 1, 0]


def test_a_few_hours_from_end_to_end(capsys: pytest.CaptureFixture[str]):
    assert main(["--hours", "1", "--mix", "turning every 90 min"]) == 0

    rows = capsys.readouterr().out.splitlines()
    names = [row[:28].strip() for row in rows[2:]]
    assert names[0] == "best setting of each hour"
    assert names[-2:] == ["only lowered", "both ways"]
    assert "no cap" in names
    assert float(rows[2].split()[-3].rstrip("%")) == 0
