"""The corpus of fleet shapes: what is let in, what is answered, and that no edit is wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lab.bench.adoption import RIGHT, Outcome, missed_goals, table, try_shapes
from lab.bench.fleet_shapes import Changed, Expected, Shape, cap_in, changes_between, read_shapes
from manifests.shell_oracle import ShellOracle

SHAPES = read_shapes()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    return try_shapes(SHAPES, ShellOracle(tmp_path_factory.mktemp("adoption")))


def test_there_are_enough_shapes_each_with_a_name_of_its_own() -> None:
    names = Counter(shape.name for shape in SHAPES)

    assert len(SHAPES) >= 120
    assert max(names.values()) == 1
    assert len({shape.manifest for shape in SHAPES}) == len(SHAPES)


def test_the_shares_are_those_that_were_counted_over_public_manifests() -> None:
    fleets = [shape for shape in SHAPES for each in shape.expected if each.is_deployment]

    def share(*marks: str) -> float:
        return sum(any(mark in shape.manifest for mark in marks) for shape in fleets) / len(fleets)

    assert share("managed-by: Helm", "helm-release-name") == pytest.approx(39 / 98, abs=0.06)
    assert share("kv-transfer-config") == pytest.approx(24 / 149, abs=0.05)
    assert share("type: Recreate") == pytest.approx(14 / 149, abs=0.06)
    assert share("kind: Service\n", '"kind": "Service"') == pytest.approx(123 / 149, abs=0.1)


def test_no_edit_is_wrong(outcomes: list[Outcome]) -> None:
    assert {f"{each.shape} {each.expected.key}": each.wrong for each in outcomes if each.wrong} == {}
    assert sum(each.edits for each in outcomes) > len(SHAPES)


def test_nearly_every_answer_is_the_one_that_was_expected(outcomes: list[Outcome]) -> None:
    faulty = {f"{each.shape} {each.expected.key}": each.faults for each in outcomes if each.faults}

    assert len(faulty) <= (1 - RIGHT) * len(outcomes), faulty


def test_most_fleets_are_let_in_by_what_init_writes(
    outcomes: list[Outcome],
) -> None:
    assert missed_goals(outcomes) == []


def test_the_table_counts_each_deployment_once(outcomes: list[Outcome]) -> None:
    lines = table(outcomes, len(SHAPES)).splitlines()
    rows = dict(line.rsplit(maxsplit=2)[:2] for line in lines if line.endswith("%"))

    assert int(rows["let in (mode Auto)"]) == sum(each.is_let_in for each in outcomes)


def a_shape(expected: Expected, args: str) -> Shape:
    manifest = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
        f"spec: {{containers: [{{name: c, command: [vllm, serve, m], args: [{args}]}}]}}\n"
    )
    return Shape("a pod", "", manifest, (expected,))


@pytest.mark.parametrize(
    ("expected", "fault"),
    [
        (Expected(key="Pod/p", at="args[1]", was=64), ""),
        (Expected(key="Pod/p", at="args[0]", was=64), "the text is edited at args[1], args[0] was expected"),
        (Expected(key="Pod/p", at="args[1]", was=32), "the cap goes from 64 to 16; it was 32"),
        (Expected(key="Pod/p", refused="some reason"), "the text is edited, and a refusal was expected"),
        (Expected(key="Pod/q", at="args[1]", was=64), "the text is not edited"),
        (Expected(key="Pod/q", at="args[1]", was=64), "'Pod/q' is not in doctor's answer (1): -: kvmedic"),
    ],
)
def test_what_is_not_as_expected_is_noticed(tmp_path: Path, expected: Expected, fault: str) -> None:
    (found,) = try_shapes([a_shape(expected, '--max-num-seqs, "64"')], ShellOracle(tmp_path))

    assert fault in " ".join([*found.wrong, *found.faults])
    assert bool(found.wrong or found.faults) is bool(fault)


def test_the_last_cap_counts_and_the_rest_stays() -> None:
    assert cap_in(["m", "--max-num-seqs", "8", "--x", "--max_num_seqs=4"]) == (
        4,
        ["m", "--max-num-seqs", "8", "--x"],
    )
    assert cap_in(["m", "--max-num-seqs-ish=4"]) == (None, ["m", "--max-num-seqs-ish=4"])


def test_each_leaf_that_differs_is_found() -> None:
    found = list(changes_between({"args": ["a", "b"], "x": 1}, {"args": ["a", "c", "d"], "x": 1}))

    assert found == [Changed(("args", 1), "b", "c"), Changed(("args", 2), None, "d")]
    assert [each.place for each in found] == ["args[1]", "args[2]"]
