"""What the operator may do: what it needs is what the chart grants, and a rule grants what it names."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from kvmedic.cluster.looks import watched_kinds
from kvmedic.cluster.rights import (
    CONFIG_FILE,
    GROUPED,
    NEEDED,
    OWNER_FIELD,
    STATEFUL,
    Right,
    find_lacking_rights,
)
from kvmedic.doctor.checks import Result, rights_check
from kvmedic.rollout.preconditions import WRITTEN

ROWS = YAML(typ="safe", pure=True).load(Path("charts/kvmedic/files/permissions.yaml").read_text())
NAMES = {"namespace": "serving", "operator": "kvmedic-system"}
PODS = Right("", "pods", "list")


def granted(row: dict[str, object]) -> list[Right]:
    grants = row["grants"]
    assert isinstance(grants, list)
    return [Right(str(row["group"]), str(row["resource"]), each["verb"]) for each in grants]


def test_every_right_that_is_asked_for_is_granted_by_the_chart():
    whole = {
        right for row in ROWS if row["scope"] == "watched" and "only" not in row for right in granted(row)
    }

    by_switch = {right for row in ROWS if row.get("only") == "rbac.ownerFields" for right in granted(row)}
    in_files = {right for row in ROWS if row.get("only") == "rbac.configFiles" for right in granted(row)}
    assert {*NEEDED} <= whole
    assert {*CONFIG_FILE} == in_files
    assert {right for rights in OWNER_FIELD.values() for right in rights} == by_switch
    assert OWNER_FIELD.keys() == WRITTEN


def test_every_right_of_the_chart_that_a_change_of_a_setting_always_needs_is_asked_for():
    sometimes = {"inferencepools", "scaledobjects", "verticalpodautoscalers", "namespaces", "kvapprovals"}
    sometimes |= {"nodes", "resourcequotas", "persistentvolumeclaims"}
    sometimes |= {"applications", "kustomizations", "helmreleases"}
    always = {
        right
        for row in ROWS
        if row["scope"] == "watched" and not {"only", "names"} & row.keys()
        for right in granted(row)
        if right.resource not in sometimes
    }
    of_other_steps = {("horizontalpodautoscalers", "get"), ("horizontalpodautoscalers", "patch")}

    # Where a kind may not be watched, calm looks list it.
    spares_lists = {(each.resource.plural, "watch") for each in watched_kinds()}
    spares_lists -= {(kind, "watch") for kind in ("deployments", "statefulsets", "leaderworkersets")}

    found = {each for each in always if (each.resource, each.verb) not in of_other_steps | spares_lists}
    assert found == {*NEEDED, *STATEFUL, *GROUPED}


@pytest.mark.parametrize(
    ("rule", "is_granted"),
    [
        ({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}, True),
        ({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, True),
        ({"apiGroups": ["apps"], "resources": ["pods"], "verbs": ["list"]}, False),
        ({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["list"]}, False),
        ({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}, False),
        ({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"], "resourceNames": ["a"]}, False),
        ({}, False),
    ],
)
def test_a_rule_grants_what_it_names(rule, is_granted):
    assert (find_lacking_rights([rule], [PODS]) == ()) is is_granted


@pytest.mark.parametrize(
    ("lacking", "result", "said"),
    [
        ((), Result.PASS, "may do all"),
        ((PODS, Right("apps", "deployments", "patch")), Result.FAIL, "list pods, patch deployments.apps"),
        ("you may not ask", Result.UNKNOWN, "you may not ask"),
    ],
)
def test_rights_that_lack_are_listed_and_unknown_ones_never_pass(lacking, result, said):
    found = rights_check(lacking, NAMES)

    assert (found.result, said in found.saw) == (result, True)
    assert (found.fix == "") is (result is Result.PASS)
