"""When a frozen rollout may begin: every row refused, and what lies next to it allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmedic.model.fleet import Fleet, ObjectRef, OrphanDrain, Owner, Pod
from kvmedic.model.plan import ReplaceStep, ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.rollout.draining import choose_pod
from kvmedic.rollout.preconditions import (
    Purpose,
    find_replacement_blocker,
    find_rollout_blocker,
    find_scaling_blocker,
)
from run_builder import NOW
from worlds.model_controller import OWN_FIELDS, Model

HEALTHY = Model.healthy(3).fleet()


def with_pod(**changes: object) -> Fleet:
    """The healthy fleet with its first pod changed."""
    first, *others = HEALTHY.pods
    return replace(HEALTHY, pods=(replace(first, **changes), *others))


def with_set(**changes: object) -> Fleet:
    """The healthy fleet with its ReplicaSet changed."""
    return replace(HEALTHY, replica_sets=(replace(HEALTHY.replica_sets[0], **changes),))


def another_revision(fleet: Fleet, **changes: object) -> Fleet:
    """The fleet with one more ReplicaSet."""
    other = replace(fleet.replica_sets[0], name="llm-other", revision="other", **changes)
    return replace(fleet, replica_sets=(*fleet.replica_sets, other))


def test_a_fleet_that_stands_still_and_serves_is_allowed() -> None:
    assert find_rollout_blocker(HEALTHY) is None
    assert find_rollout_blocker(another_revision(HEALTHY, desired=0, available=0)) is None


def test_a_fleet_that_is_recreated_is_allowed_as_the_walk_changes_its_strategy() -> None:
    assert find_rollout_blocker(replace(HEALTHY, strategy="Recreate")) is None


OWNER = Owner(Reason.MANAGED_BY_GITOPS, "Argo CD application llm")
ROWS: list[tuple[str, Fleet, Reason, str]] = [
    ("an owner", replace(HEALTHY, owner=OWNER), Reason.MANAGED_BY_GITOPS, "Argo CD application llm"),
    (
        "the label in the selector",
        replace(HEALTHY, rotation=replace(HEALTHY.rotation, in_selector=True)),
        Reason.ROTATION_LABEL_UNUSABLE,
        "spec.rollout.rotationLabel.key",
    ),
    (
        "a Service of what drains",
        replace(HEALTHY, rotation=replace(HEALTHY.rotation, effective=False, rivals=("trap",))),
        Reason.ROTATION_LABEL_UNUSABLE,
        "Service trap selects pods by serving=draining",
    ),
    (
        "a Service that does not look at the label",
        replace(HEALTHY, rotation=replace(HEALTHY.rotation, effective=False)),
        Reason.ROTATION_LABEL_WITHOUT_EFFECT,
        "llm selects the pods without label serving",
    ),
    (
        "no Service",
        replace(HEALTHY, rotation=replace(HEALTHY.rotation, effective=False, services=())),
        Reason.ROTATION_LABEL_WITHOUT_EFFECT,
        "no Service",
    ),
    ("no replicas", replace(HEALTHY, replicas=0), Reason.NO_REPLICAS, "nothing serves"),
    (
        "paused",
        replace(HEALTHY, fields=replace(OWN_FIELDS, paused=True)),
        Reason.TARGET_PAUSED,
        "kubectl rollout resume deployment/llm",
    ),
    (
        "unseen by its controller",
        replace(HEALTHY, observed=False),
        Reason.TARGET_NOT_SETTLED,
        "has not seen the newest spec",
    ),
    ("a pod on its way out", with_pod(terminating=True), Reason.TARGET_NOT_SETTLED, "terminating"),
    (
        "another revision that is to have pods",
        another_revision(HEALTHY, desired=1, available=0),
        Reason.TARGET_NOT_SETTLED,
        "more than one revision",
    ),
    ("a pod of another revision", with_pod(revision="other"), Reason.TARGET_NOT_SETTLED, "more than one"),
    (
        "fewer pods than desired",
        replace(HEALTHY, replicas=4),
        Reason.TARGET_NOT_SETTLED,
        "3 of 4 replicas exist",
    ),
    (
        "one of three not Ready, and nobody says why",
        with_pod(ready_at=None, unready_at=NOW),
        Reason.TARGET_NOT_SETTLED,
        "2 of 3 replicas are Ready: see why",
    ),
    (
        "a replica without a place",
        with_pod(ready_at=None, unschedulable=True),
        Reason.TARGET_NOT_SETTLED,
        "no room for a spare",
    ),
    ("one not Available yet", with_set(available=2), Reason.TARGET_NOT_SETTLED, "Available"),
    ("a cordoned replica", with_pod(cordoned=True), Reason.TARGET_NOT_SETTLED, "draining label"),
    (
        "a replica that somebody took out of rotation",
        with_pod(in_rotation=False),
        Reason.TARGET_NOT_SETTLED,
        "2 of 3 replicas are in a Service's EndpointSlices",
    ),
]


@pytest.mark.parametrize(
    ("fleet", "reason", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_it_is_refused_and_the_reason_says_what_to_do(fleet: Fleet, reason: Reason, words: str) -> None:
    refused = find_rollout_blocker(fleet)

    assert refused.reason is reason
    assert words in refused.message


@pytest.mark.parametrize("change", [{"ready_at": None}, {"in_rotation": False}])
def test_on_the_way_back_and_to_mend_it_the_fleet_need_not_be_whole(change: dict[str, object]) -> None:
    assert find_rollout_blocker(with_pod(**change), Purpose.RETURN) is None
    assert find_rollout_blocker(with_pod(**change), Purpose.MENDING) is None


def test_on_the_way_back_an_owner_that_came_meanwhile_keeps_nobody() -> None:
    assert find_rollout_blocker(replace(HEALTHY, owner=OWNER), Purpose.RETURN) is None


@pytest.mark.parametrize("purpose", [Purpose.RELIEF, Purpose.MENDING])
def test_an_owner_of_the_template_is_not_fought_though_replicas_cannot_stay_up(purpose: Purpose) -> None:
    refused = find_rollout_blocker(replace(with_pod(ready_at=None), owner=OWNER), purpose)

    assert refused.reason is OWNER.reason


HELM = Owner(Reason.MANAGED_BY_HELM, "Helm release chat")
KSERVE = Owner(Reason.OWNED_BY_CONTROLLER, "KServe InferenceService chat")
REPLACE = ReplaceStep(ObjectRef("Deployment", "llm"), "vllm", "p00", "p00", 3, "old", Reason.HEALTHY)
MORE = ReplicasStep(ObjectRef("Deployment", "llm"), "vllm", 3, 4, "old", Reason.HEALTHY)


def refused_by(fleet: Fleet) -> tuple[Reason | None, ...]:
    """What stands against another template, a new replica in one's place, and one replica more."""
    found = (
        find_rollout_blocker(fleet),
        find_replacement_blocker(fleet, REPLACE),
        find_scaling_blocker(fleet, MORE),
    )
    return tuple(each and each.reason for each in found)


@pytest.mark.parametrize(
    ("owner", "gives_way", "refused"),
    [
        (HELM, False, (Reason.MANAGED_BY_HELM, None, None)),
        (HELM, True, (None, None, None)),
        (OWNER, False, (Reason.MANAGED_BY_GITOPS,) * 3),
        (OWNER, True, (None, None, None)),
        (KSERVE, False, (Reason.OWNED_BY_CONTROLLER,) * 3),
    ],
)
def test_what_an_owner_stands_against(
    owner: Owner, gives_way: bool, refused: tuple[Reason | None, ...]
) -> None:
    fleet = replace(HEALTHY, owner=replace(owner, gives_way=gives_way))

    assert refused_by(fleet) == refused


@pytest.mark.parametrize("owner", [HELM, OWNER, KSERVE])
def test_a_replica_that_is_released_changes_nothing_that_anybody_could_own(owner: Owner) -> None:
    scaler = Owner(Reason.REPLICAS_AUTOSCALED, "HorizontalPodAutoscaler llm")
    rotation = replace(HEALTHY.rotation, effective=False, orphan=OrphanDrain(("app",)))
    fleet = replace(HEALTHY, owner=owner, scaler=scaler, rotation=rotation)

    assert find_replacement_blocker(fleet, REPLACE) is None
    assert find_scaling_blocker(fleet, MORE).reason is Reason.REPLICAS_AUTOSCALED
    assert find_replacement_blocker(replace(fleet, rotation=HEALTHY.rotation), REPLACE) is not None


def test_only_an_owner_that_may_give_way_sees_the_field_that_says_so() -> None:
    messages = [
        find_rollout_blocker(replace(HEALTHY, owner=owner)).message for owner in (HELM, OWNER, KSERVE)
    ]

    assert ["spec.ownership" in message for message in messages] == [True, True, False]


def test_the_way_back_waits_for_a_fleet_that_is_still_moving() -> None:
    assert find_rollout_blocker(with_pod(terminating=True), Purpose.RETURN) is not None


def test_a_pod_that_takes_no_requests_is_taken_before_one_that_does() -> None:
    first, second, third = HEALTHY.pods
    idle: Pod = replace(third, in_rotation=False)

    assert choose_pod((first, second, idle), None) == idle


def test_the_label_goes_into_the_template_before_any_selector() -> None:
    fleet = replace(HEALTHY, rotation=replace(HEALTHY.rotation, effective=False, services=("llm",)))

    refused = find_rollout_blocker(fleet)

    template, undrained, after = (
        refused.message.index(words) for words in ("pod template", "undrained", "once every pod has it")
    )
    assert template < undrained < after < refused.message.rindex("select")


def test_where_no_service_leads_to_the_replicas_the_routers_are_to_be_named() -> None:
    fleet = replace(HEALTHY, rotation=replace(HEALTHY.rotation, effective=False, services=()))

    assert "spec.rollout.routers" in find_rollout_blocker(fleet).message
