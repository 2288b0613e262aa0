"""Remedies say what they cost."""

from __future__ import annotations

import re

import pytest

from kvmedic.model.reasons import Reason

REMEDIES = {reason: reason.remedy for reason in Reason if reason.remedy is not None}
ROLLS_OUT = re.compile(
    r"\bset (?:image|env|resources)\b|\brollout (?:undo|restart|resume)\b|\b(?:edit|apply|replace) deployment"
    r"|\bdelete (?:pod|deployment)|spec\":{\"template"
)
"""Commands after which a Deployment's controller may replace replicas, and nobody drains them."""


@pytest.mark.parametrize(
    "reason", [reason for reason, each in REMEDIES.items() if ROLLS_OUT.search(each.command)]
)
def test_a_command_that_replaces_replicas_without_a_drain_says_so(reason: Reason) -> None:
    assert "undrained" in REMEDIES[reason].purpose


def test_some_remedies_replace_replicas() -> None:
    assert sum(bool(ROLLS_OUT.search(each.command)) for each in REMEDIES.values()) >= 3
