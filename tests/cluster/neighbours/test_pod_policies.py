"""Which budgets and policies treat a replica differently while it drains."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.cluster.neighbours.pod_policies import policies_of_draining
from worlds.neighbours import network, pdb

SERVES, ANY_VALUE = (
    {"matchLabels": {"serving": "true"}},
    {"matchExpressions": [{"key": "serving", "operator": "Exists"}]},
)
DRAINS = {"matchExpressions": [{"key": "serving", "operator": "In", "values": ["draining", "off"]}]}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (network("n", DRAINS), ["NetworkPolicy n"]),
        (network("n", SERVES), ["NetworkPolicy n"]),
        (network("n", {}, ingress=[{"from": [{"podSelector": SERVES}]}]), ["NetworkPolicy n"]),
        (
            network("n", {}, egress=[{}, {"to": [{"ipBlock": {}}, {"podSelector": DRAINS}]}]),
            ["NetworkPolicy n"],
        ),
        (network("n", ANY_VALUE, ingress=None), []),
        (network("n", {"matchLabels": {"app": "other"}}), []),
        (pdb("p", serving="draining"), ["PodDisruptionBudget p"]),
        (pdb("p", serving="true"), []),
        (pdb("p", app="llm"), []),
        (pdb("p", app="other", serving="draining"), []),
    ],
    ids=[
        "a policy of what drains",
        "a policy that stops with it",
        "a peer that lets only serving ones in",
        "a peer of what drains",
        "a policy for any value",
        "a policy of others",
        "a budget that starts with it",
        "a budget that stops with it",
        "a budget of all",
        "a budget of others",
    ],
)
def test_who_treats_a_replica_differently_while_it_drains(body: dict[str, Any], names: list[str]) -> None:
    budgets, networks = ([body], []) if body["kind"] == "PodDisruptionBudget" else ([], [body])
    labels = {"app": "llm", "serving": "true"}

    found = policies_of_draining(budgets, networks, labels, {**labels, "serving": "draining"})

    assert list(found) == names
