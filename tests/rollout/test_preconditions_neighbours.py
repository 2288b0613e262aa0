"""Beside whom a run begins, and what a person sees of the others."""

from __future__ import annotations

import pytest

from kvmedic.model.reasons import Reason
from kvmedic.rollout.preconditions import Autoscaler, Neighbours, VerticalAutoscaler, find_blocker, remarks
from run_builder import a_fleet

HPA = "HorizontalPodAutoscaler"


@pytest.mark.parametrize(
    ("neighbours", "reason"),
    [
        (Neighbours(), None),
        (Neighbours(autoscalers=(Autoscaler(HPA, "llm", 1, 8),)), None),
        (Neighbours(autoscalers=(Autoscaler(HPA, "llm", 1, 8, desired=3),)), None),
        (Neighbours(autoscalers=(Autoscaler(HPA, "llm", 1, 8, desired=4),)), Reason.AUTOSCALER_ACTIVE),
        (Neighbours(vertical=(VerticalAutoscaler("llm", "Off"),)), None),
        (Neighbours(vertical=(VerticalAutoscaler("llm", "Initial"),)), None),
        (Neighbours(vertical=(VerticalAutoscaler("llm", "Recreate"),)), Reason.MANAGED_BY_VPA),
        (Neighbours(vertical=(VerticalAutoscaler("llm", "Auto"),)), Reason.MANAGED_BY_VPA),
        (Neighbours(vertical=(VerticalAutoscaler("llm", "InPlaceOrRecreate"),)), Reason.MANAGED_BY_VPA),
        (Neighbours(vertical=(VerticalAutoscaler("llm", "Tomorrows"),)), Reason.MANAGED_BY_VPA),
        (Neighbours(disruption_budgets=("llm",)), None),
        (Neighbours(of_draining=("NetworkPolicy n",)), Reason.ROTATION_LABEL_UNUSABLE),
    ],
    ids=[
        "nobody",
        "an autoscaler that does not know",
        "an autoscaler at rest",
        "an autoscaler that is scaling",
        "a VPA that recommends",
        "a VPA that sizes new pods",
        "a VPA that recreates",
        "a VPA of old",
        "a VPA that resizes or evicts",
        "a VPA in a mode of tomorrow",
        "a disruption budget",
        "a policy for what drains",
    ],
)
def test_beside_whom_a_run_begins(neighbours: Neighbours, reason: Reason | None) -> None:
    found = find_blocker(neighbours, a_fleet())

    assert (found.reason if found else None) is reason


def test_what_to_do_about_a_vpa_is_said() -> None:
    found = find_blocker(Neighbours(vertical=(VerticalAutoscaler("chat", "Auto"),)), a_fleet())

    assert "VerticalPodAutoscaler chat" in found.message
    assert 'spec.updatePolicy.updateMode to "Off"' in found.message


def test_both_ways_out_of_a_policy_for_what_drains_are_said() -> None:
    found = find_blocker(Neighbours(of_draining=("NetworkPolicy n", "PodDisruptionBudget p")), a_fleet())

    assert found is not None
    for words in (
        "NetworkPolicy n, PodDisruptionBudget p",
        "serving=draining",
        "rotationLabel.draining",
        "take",
    ):
        assert words in found.message


def test_the_plan_names_who_else_has_a_say() -> None:
    lines = remarks(
        Neighbours(
            autoscalers=(
                Autoscaler("ScaledObject", "k", 0, 4),
                Autoscaler(HPA, "h", 2, 8),
                Autoscaler(HPA, "fixed", 2, 2),
                Autoscaler("ScaledObject", "held", 1, 2, paused=True),
            ),
            disruption_budgets=("one", "two"),
        )
    )

    assert list(lines) == [
        "ScaledObject k goes on setting the replicas (0 to 4; at 0 a run ends)",
        "HorizontalPodAutoscaler h goes on setting the replicas (2 to 8)",
        "PodDisruptionBudget one, two does not limit a rollout; kvmedic keeps the count itself",
    ]
