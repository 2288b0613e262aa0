"""Lengths are drawn as their tables say, and the same seed draws the same."""

import json
from random import Random

import pytest

from lab.loadgen import lengths
from lab.loadgen.lengths import Fixed, Quantiles

TABLES = json.loads(lengths.TABLES.read_text())


@pytest.mark.parametrize("name", TABLES)
def test_every_table_names_its_source_and_licence(name):
    assert {"source", "licence", "mean", "prompt", "output"} == set(TABLES[name])


@pytest.mark.parametrize("name", TABLES)
def test_the_mean_of_a_table_is_near_the_published_mean(name):
    table = lengths.table(name)

    for side in ("prompt", "output"):
        # Linear between quantiles: the ends of a long tail come out a little heavy.
        assert getattr(table, side).mean == pytest.approx(TABLES[name]["mean"][side], rel=0.12)


@pytest.mark.parametrize("name", TABLES)
def test_draws_follow_the_quantiles(name):
    table, random = lengths.table(name), Random(1)
    outputs = sorted(table.draw(random)[1] for _ in range(4000))

    for share, tokens in TABLES[name]["output"][1:-2]:
        below = sum(output <= tokens for output in outputs) / len(outputs)
        assert below == pytest.approx(share, abs=0.03)


def test_the_same_seed_draws_the_same():
    table = lengths.table("spread")

    draws = [[table.draw(random) for _ in range(50)] for random in (Random(7), Random(7), Random(8))]

    assert draws[0] == draws[1] != draws[2]


def test_the_longest_bounds_prompt_and_output_together():
    table, random = lengths.table("azure-2023-conversation", longest=600), Random(1)

    sums = [sum(table.draw(random)) for _ in range(500)]

    assert max(sums) <= 600
    assert min(sums) >= 2


def test_a_scale_shrinks_a_trace():
    whole, tenth = (
        lengths.table("azure-2023-conversation"),
        lengths.table("azure-2023-conversation", scale=0.1),
    )

    assert tenth.output.mean == pytest.approx(whole.output.mean / 10)


def test_fixed_lengths_are_written_with_a_plus():
    assert lengths.parse("64+512") == Fixed(64, 512)
    assert lengths.parse("64+512").draw(Random(1)) == (64, 512)


def test_an_unknown_table_is_answered_with_those_there_are():
    with pytest.raises(
        ValueError, match="no lengths named 'sharegpt'; there are azure-2023-conversation, prompts, spread"
    ):
        lengths.parse("sharegpt")


@pytest.mark.parametrize("points", [((0.1, 1), (1.0, 2)), ((0.0, 1), (0.9, 2)), ((0.0, 5), (1.0, 2))])
def test_quantiles_that_do_not_rise_from_0_to_1_are_refused(points):
    with pytest.raises(ValueError, match="quantiles must rise"):
        Quantiles(points)
