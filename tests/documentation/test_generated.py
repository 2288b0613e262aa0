"""The generated parts of the documentation hold what the code says, and all of it."""

import re

import pytest

from documentation.generated import GROUPS, NAMES, REFUSALS, move_of, pages, runbook_page, with_part
from kvmedic.model.reasons import Reason, Trait, reasons_with
from kvmedic.runbooks import RUNBOOKS
from worlds.reported_problems import REPORTED_PROBLEMS

REMEDIES = {reason: reason.remedy for reason in Reason if reason.remedy is not None}


def rows(text: str, name: str) -> list[str]:
    """Return the rows of a generated table, its head left out."""
    part = text.partition(f"<!-- generated: {name} -->")[2].partition(f"<!-- end: {name} -->")[0]
    return part.strip().splitlines()[2:]


def test_no_page_is_stale():
    assert {path: path.read_text() for path in pages()} == pages(), "run `make manifests`"


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_each_branch_has_one_row_with_its_move(runbook):
    table = rows(pages()[runbook_page(runbook)], "decision table")

    assert len(table) == len(RUNBOOKS[runbook])
    for row, branch in zip(table, RUNBOOKS[runbook], strict=True):
        assert f"[`{branch.reason}`]" in row
        assert f"| {move_of(branch)} |" in row
        assert all(f"`{signal}`" in row for signal in branch.signals)


@pytest.mark.parametrize("group", GROUPS)
def test_each_reason_of_a_group_has_one_row_with_what_to_type(group):
    table = rows(REFUSALS.read_text(), group)

    assert [row.split("`")[1] for row in table] == [one for one in Reason if one in GROUPS[group]]
    assert all(re.search(r": `(kubectl|kvmedic) [^`]+` \|$", row) for row in table)


def test_no_reason_is_in_two_groups_and_none_that_stops_a_fleet_is_left_out():
    listed = [reason for group in GROUPS.values() for reason in group]

    assert len(listed) == len(set(listed))
    assert set(listed) == reasons_with(Trait.NEEDS_A_PERSON) | reasons_with(Trait.NO_METRICS) | set(REMEDIES)


def test_each_problem_is_listed_with_a_reason_that_has_a_remedy():
    table = rows(REFUSALS.read_text(), "bad input")

    assert [row.split(" | ")[0].removeprefix("| ") for row in table] == list(REPORTED_PROBLEMS)
    assert {one.reason for one in REPORTED_PROBLEMS.values()} <= set(REMEDIES)


@pytest.mark.parametrize("reason", REMEDIES)
def test_a_remedy_uses_no_name_that_is_not_given(reason):
    typed = REMEDIES[reason].write_command(NAMES)

    assert "$" not in typed
    assert typed.startswith(("kubectl ", "kvmedic "))
    assert REMEDIES[reason].purpose.startswith("to ")


def test_a_page_without_a_place_for_its_part_is_refused_with_what_to_add():
    with pytest.raises(ValueError, match="<!-- generated: decision table -->"):
        with_part("# A page\n", "decision table", "| a |")
