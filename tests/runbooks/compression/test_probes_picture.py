"""The picture of a trial, character by character."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from builders import NOW
from kvmedic.model.compression import Compacted, Keep, Pattern, PerHead, Scattered, used_blocks
from kvmedic.model.trial import Answer, Question, Sample
from kvmedic.runbooks.compression.probes import Size, Trace, numbers, picture_of, trace_of

SMALL = Size(32, 6)
TENTH = Keep(share=0.1)


def a_trace(pattern: Pattern | None, tokens: int = 16_384, readings: int = 6, keep: Keep = TENTH) -> Trace:
    """The course of a request under a method, or where nothing is evicted, in even steps."""
    counts = [tokens * (number + 1) // readings for number in range(readings)]
    seen = tuple(Sample(c, used_blocks(c, 16, keep, pattern) if pattern else c / 16) for c in counts)
    return Trace(seen, 16, keep)


def test_a_whole_picture_has_its_key_its_scales_and_its_numbers() -> None:
    assert picture_of(a_trace(Scattered()), SMALL) == (
        "blocks that came back (o seen on the trial pod, . predicted by class)",
        "   921 |                            .... Reclaims 921",
        "       |                      ......",
        "       |                ......",
        "       |         .......",
        "       |   ......      o.....o....o....o Scattered 190",
        "     0 |.....o....o..................... None 0",
        "       +--------------------------------",
        "       0     16384 tokens of the request",
        "16384 tokens fill 1024 blocks: 190 came back; predicted: Reclaims 921, Scattered 190, None 0",
    )


ROWS = {
    "survivors are moved together": (
        a_trace(Compacted(), keep=Keep(2048)),
        [
            "   896 |                             ..o Reclaims 896",
            "       |                       ...o..",
            "       |                  ...o.",
            "       |            ...o..",
            "       |      ....o.                 ... Scattered 121",
            "     0 |.....o.......................... None 0",
        ],
    ),
    "nothing is evicted": (
        a_trace(None),
        [
            "   921 |                            .... Reclaims 921",
            "       |                      ......",
            "       |                ......",
            "       |         .......",
            "       |   ......      ................. Scattered 190",
            "     0 |.....o....o....o.....o....o....o None 0",
        ],
    ),
    "one reading": (
        a_trace(Scattered(), readings=1),
        [
            "   921 |                            .... Reclaims 921",
            "       |                      ......",
            "       |                ......",
            "       |         .......",
            "       |   ......      ................o Scattered 190",
            "     0 |................................ None 0",
        ],
    ),
    "a long request, and so few are kept that blocks come back though each head has its own": (
        a_trace(PerHead(8), tokens=131_072, keep=Keep(share=0.01)),
        [
            "  8110 |                            .... Reclaims 8110",
            "       |                      .......... Scattered 6975",
            "       |                ..........",
            "       |         .........",
            "       |   ............o.....o....o....o PerHead 2262",
            "     0 |.....o....o..................... None 0",
        ],
    ),
    "names that would stand above the highest row": (
        a_trace(Scattered(), keep=Keep(share=0.001)),
        [
            "  1023 |                            ...o Reclaims 1023",
            "       |                      ....o..... Scattered 1008",
            "       |                .....o...        PerHead 904",
            "       |         .o....o..",
            "       |   ..o....",
            "     0 |................................ None 0",
        ],
    ),
    "a request of one block": (
        a_trace(None, tokens=16, keep=Keep(2048)),
        [
            "     1 |",
            "       |",
            "       |",
            "       |                                 Reclaims 0",
            "       |                                 Scattered 0",
            "     0 |...o.....o.....o...o.....o.....o None 0",
        ],
    ),
}


@pytest.mark.parametrize(("trace", "rows"), ROWS.values(), ids=ROWS)
def test_readings_are_drawn_on_what_is_predicted(trace: Trace, rows: list[str]) -> None:
    assert list(picture_of(trace, SMALL)[1:7]) == rows


@pytest.mark.parametrize("tokens", [24, 16_384, 1_048_576])
def test_it_fits_a_terminal_and_is_plain(tokens: int) -> None:
    lines = picture_of(a_trace(PerHead(8), tokens, readings=24, keep=Keep(share=0.01)))

    assert len(lines) <= 24
    assert max(map(len, lines[:-1])) <= 80
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_readings_of_more_blocks_than_tokens_fill_stand_on_the_ground() -> None:
    trace = Trace((Sample(0, 1.0), Sample(800, 52.0)), 16, TENTH)

    assert picture_of(trace, SMALL)[6] == "     0 |o..............................o None 0"
    assert numbers(trace).startswith("800 tokens fill 50 blocks: 0 came back")


def test_where_more_comes_back_than_anything_predicts_the_scale_follows() -> None:
    trace = Trace((Sample(1600, 10.0),), 16, Keep(share=0.5))

    assert picture_of(trace, SMALL)[1] == "    90 |                               o"


@pytest.mark.parametrize(
    "missing",
    [{"seen": ()}, {"seen": (Sample(16, nan),)}, {"block_tokens": None}, {"keep": None}],
    ids=["no reading", "no number", "an unknown block", "nobody knows what is kept"],
)
def test_an_answer_without_readings_has_no_picture(missing: dict[str, object]) -> None:
    whole = Answer(Question.RECLAMATION, "0123", "", NOW, 1, None, (Sample(16, 1.0),), 16, TENTH)

    assert trace_of(whole) == Trace((Sample(16, 1.0),), 16, TENTH)
    assert trace_of(replace(whole, **missing)) is None  # type: ignore[arg-type]
