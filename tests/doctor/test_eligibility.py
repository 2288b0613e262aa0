"""The condition `Eligible`: examined now and then, written when it changed, and never from half a look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from kvmedic.api.resource import policy_of
from kvmedic.cluster.looks import TargetSurroundings, read_target
from kvmedic.cluster.rights import CONFIG_FILE, Lacking, Right
from kvmedic.doctor.checks import Check, Examination, Result, Topic
from kvmedic.doctor.documents import as_served
from kvmedic.doctor.eligibility import EVERY, MESSAGE_BYTES, Examiner, claim_of
from kvmedic.doctor.examine import default_spec
from kvmedic.kube.errors import Call, Refused, Unavailable
from kvmedic.kube.objects import AUTOSCALERS, JsonObject, Ref
from kvmedic.kube.objects import Resource as Kind
from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.reasons import Reason
from kvmedic.model.status import Condition, ConditionType, Record, Resource, Truth
from kvmedic.runbooks.workload import View
from run_builder import NOW
from worlds.asked import a_resource
from worlds.documents import a_deployment, a_service, an_engine, an_object

FRESH = Inconclusive(Reason.TOO_FEW_REQUESTS, "nobody asks anything")
CALL = Call("list", "/apis/policy/v1/poddisruptionbudgets")
POLICY = policy_of(default_spec("llm"))
MINUTE = timedelta(minutes=1)


@dataclass
class Namespace:
    """A target, its neighbours, and how often these were asked for."""

    documents: Sequence[dict[str, Any]] = (a_deployment(), a_service())
    fault: Exception | None = None
    asked: int = 0

    async def view(self) -> View:
        found = await read_target(as_served(self.documents, "serving"), "serving", POLICY)
        assert found is not None
        return found

    async def get(self, ref: Ref) -> JsonObject | None:
        return await as_served(self.documents, "serving").get(ref)

    async def list(
        self, resource: Kind, namespace: str, label_selector: str = "", fields: str = ""
    ) -> list[JsonObject]:
        if resource == AUTOSCALERS:
            self.asked += 1
            if self.fault:
                raise self.fault
        return await as_served(self.documents, "serving").list(resource, namespace, label_selector, fields)

    async def read_each(self, *asked: Any, **fields: str) -> AsyncIterator[JsonObject]:
        for each in await self.list(*asked, **fields):
            yield each


@dataclass
class Office:
    """Knows our rights."""

    lacking: Lacking | str = ()
    asked: Sequence[Right] = ()

    async def ask(self, namespace: str, needed: Sequence[Right]) -> Lacking | str:
        self.asked = needed
        return self.lacking


def resource_with(record: Record | None = None) -> Resource:
    return replace(a_resource(), policy=POLICY, record=record or Record())


async def looked(
    examiner: Examiner,
    town: Namespace,
    record: Record | None = None,
    now: datetime = NOW,
    diagnosis: Inconclusive = FRESH,
) -> Record:
    """What one look leaves in the record."""
    resource, view = resource_with(record), await town.view()
    before = record or Record()
    if not examiner.is_due(resource, view, now):
        return before
    found = await examiner.examine(resource, view, diagnosis, now)
    return before if found is None else examiner.note(before, found, resource, view, now)


def condition_of(record: Record) -> Condition | None:
    return record.condition(ConditionType.ELIGIBLE)


async def test_a_fit_fleet_is_eligible_and_its_condition_is_written_once() -> None:
    town = Namespace()
    examiner = Examiner(Office().ask, TargetSurroundings(town))

    first = await looked(examiner, town)
    again = await looked(examiner, town, first, NOW + EVERY)

    condition = condition_of(first)
    assert condition is not None
    assert (condition.status, condition.reason) == (Truth.TRUE, Reason.ELIGIBLE)
    assert again == first
    assert town.asked == 2


async def test_a_look_before_the_time_costs_nothing() -> None:
    town = Namespace()
    examiner = Examiner(Office().ask, TargetSurroundings(town))
    first = await looked(examiner, town)

    await looked(examiner, town, first, NOW + EVERY - MINUTE)

    assert town.asked == 1


@pytest.mark.parametrize("now", [NOW + EVERY, NOW - MINUTE], ids=["it is time", "the clock was put back"])
async def test_it_is_looked_at_again_in_time(now) -> None:
    town = Namespace()
    examiner = Examiner(Office().ask, TargetSurroundings(town))
    first = await looked(examiner, town)

    await looked(examiner, town, first, now)

    assert town.asked == 2


async def test_where_metrics_were_missing_it_is_looked_at_again_within_a_minute() -> None:
    town = Namespace()
    examiner = Examiner(Office().ask, TargetSurroundings(town))
    missing = Inconclusive(Reason.METRICS_MISSING, "llm-1: preemptions: the source has no series for it")
    first = await looked(examiner, town, diagnosis=missing)

    found = await looked(examiner, town, first, NOW + MINUTE)

    conditions = [condition_of(record) for record in (first, found)]
    assert [each and each.reason for each in conditions] == [Reason.NOT_ELIGIBLE, Reason.ELIGIBLE]


async def test_an_edit_of_the_deployment_is_examined_at_the_next_look() -> None:
    town = Namespace()
    examiner = Examiner(Office().ask, TargetSurroundings(town))
    first = await looked(examiner, town)
    edited = a_deployment(paused=True)
    edited["metadata"]["generation"] = 2
    town.documents = (edited, a_service())

    condition = condition_of(await looked(examiner, town, first, NOW + MINUTE))

    assert condition is not None
    assert (condition.status, condition.reason) == (Truth.FALSE, Reason.NOT_ELIGIBLE)
    assert "rollout: someone paused it" in condition.message


async def test_a_condition_that_was_not_saved_is_written_again_at_the_next_look() -> None:
    town = Namespace()
    examiner = Examiner(Office().ask, TargetSurroundings(town))
    await looked(examiner, town)

    again = await looked(examiner, town, Record(), NOW + MINUTE)

    assert condition_of(again) is not None


async def test_every_reason_is_in_the_message() -> None:
    town = Namespace([a_deployment(paused=True, strategy={"type": "Recreate"}, replicas=0)])
    office = Office((Right("apps", "deployments", "patch"),))

    condition = condition_of(await looked(Examiner(office.ask, TargetSurroundings(town)), town))

    assert condition is not None
    for part in ("front: ", "rollout: ", "replicas: ", "rights: the operator may not patch deployments.apps"):
        assert part in condition.message
    assert "kvmedic doctor deploy/llm -n serving" in condition.message
    assert len(condition.message.encode()) <= MESSAGE_BYTES


async def test_a_fit_fleet_in_a_namespace_without_the_label_is_not_eligible_and_gets_the_command() -> None:
    async def unlabelled(namespace: str) -> Blocked:
        return Blocked(
            Reason.NAMESPACE_NOT_LABELLED, f"kubectl label namespace {namespace} kvmedic.io/heal=true"
        )

    town = Namespace()
    condition = condition_of(await looked(Examiner(Office().ask, TargetSurroundings(town), unlabelled), town))

    assert condition is not None
    assert (condition.status, condition.reason) == (Truth.FALSE, Reason.NOT_ELIGIBLE)
    assert condition.message.startswith("namespace: kubectl label namespace serving kvmedic.io/heal=true; ")


def test_the_command_names_a_stateful_set_by_its_kind() -> None:
    check = Check(Topic.ROLLOUT, Result.FAIL, "a pod is terminating")

    claim = claim_of(Examination("serving", "StatefulSet/llm", (check,)))

    assert claim.message.endswith("kvmedic doctor statefulset/llm -n serving has all, with fixes")


async def test_a_message_that_is_too_long_has_whole_reasons_and_how_many_more() -> None:
    lacking = tuple(Right("a-group-of-some-length.example", f"things-{each}", "list") for each in range(30))
    town = Namespace([a_deployment(paused=True), a_service()])

    condition = condition_of(await looked(Examiner(Office(lacking).ask, TargetSurroundings(town)), town))

    assert condition is not None
    assert "someone paused it" in condition.message
    assert "; and 1 more; kvmedic doctor" in condition.message
    assert len(condition.message.encode()) <= MESSAGE_BYTES


@pytest.mark.parametrize(
    ("town", "lacking", "said"),
    [
        (Namespace(), "an authorizer does not show", "rights: an authorizer does not show"),
        (Namespace(fault=Refused(CALL, 403, "Forbidden")), (), "autoscaler: not readable"),
    ],
    ids=["rights", "neighbours"],
)
async def test_what_cannot_be_determined_is_unknown_and_never_eligible(town, lacking, said) -> None:
    condition = condition_of(await looked(Examiner(Office(lacking).ask, TargetSurroundings(town)), town))

    assert condition is not None
    assert (condition.status, condition.reason) == (Truth.UNKNOWN, Reason.ELIGIBILITY_UNKNOWN)
    assert said in condition.message


async def test_an_api_that_does_not_answer_changes_nothing_and_is_asked_again_at_the_next_look() -> None:
    town = Namespace()
    examiner = Examiner(Office().ask, TargetSurroundings(town))
    first = await looked(examiner, town)
    town.fault = Unavailable(CALL, None, "no answer")

    later = await looked(examiner, town, first, NOW + EVERY)
    town.fault = None
    await looked(examiner, town, later, NOW + EVERY + MINUTE)

    assert later == first
    assert town.asked == 3


ROLLING = [
    {**each, "status": {**each["status"], "observedGeneration": 0}} if each["kind"] == "Deployment" else each
    for each in as_served([a_deployment(), a_service()], "serving").bodies
]


async def test_a_rollout_under_way_counts_only_where_the_next_examination_sees_one_too() -> None:
    town = Namespace(ROLLING)
    examiner = Examiner(Office().ask, TargetSurroundings(town))

    first = await looked(examiner, town)
    later = await looked(examiner, town, first, NOW + EVERY)
    town.documents = (a_deployment(), a_service())
    settled = await looked(examiner, town, later, NOW + EVERY + EVERY)

    assert condition_of(first) is None
    conditions = [condition_of(each) for each in (later, settled)]
    assert [each.status for each in conditions if each] == [Truth.FALSE, Truth.TRUE]


async def test_a_source_that_stays_silent_does_not_hide_what_keeps_a_change_from_beginning() -> None:
    town = Namespace(ROLLING)
    examiner = Examiner(Office().ask, TargetSurroundings(town))
    silent = Inconclusive(Reason.SOURCE_UNAVAILABLE, "Prometheus does not answer")

    first = await looked(examiner, town, diagnosis=silent)
    later = await looked(examiner, town, first, NOW + MINUTE, silent)

    assert condition_of(first) is None
    condition = condition_of(later)
    assert condition is not None
    assert (condition.status, condition.reason) == (Truth.FALSE, Reason.NOT_ELIGIBLE)


def a_node(gpus: int) -> dict[str, Any]:
    return {
        **an_object("v1", "Node", "gpu-01"),
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus), "pods": "110", "cpu": "64", "memory": "1Ti"}},
    }


async def test_no_room_for_a_spare_counts_where_it_is_still_so_at_the_next_examination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvmedic.cluster.looks.SURROUNDINGS_LAST", timedelta(0))  # much less than EVERY
    pinned = a_deployment(pod={"nodeName": "gpu-01"})
    town = Namespace([pinned, a_service(), a_node(2)])
    examiner = Examiner(Office().ask, TargetSurroundings(town))

    first = await looked(examiner, town)
    later = await looked(examiner, town, first, NOW + EVERY)
    await asyncio.sleep(0.01)
    town.documents = (pinned, a_service(), a_node(3))
    roomy = await looked(examiner, town, later, NOW + EVERY + EVERY)

    assert condition_of(first) is None
    conditions = [condition_of(each) for each in (later, roomy)]
    assert [each.status for each in conditions if each] == [Truth.FALSE, Truth.TRUE]
    assert "spare: " in (conditions[0].message if conditions[0] else "")
    assert "nvidia.com/gpu" in (conditions[0].message if conditions[0] else "")


async def test_rights_on_config_maps_are_asked_for_where_the_engine_reads_a_file() -> None:
    office = Office()
    engine = an_engine("--config", "/etc/vllm/c.yaml")

    town = Namespace([a_deployment(engine), a_service()])
    await looked(Examiner(office.ask, TargetSurroundings(town)), town)

    assert {*CONFIG_FILE} <= {*office.asked}


async def test_a_resource_that_is_gone_is_forgotten() -> None:
    town = Namespace()
    examiner = Examiner(Office().ask, TargetSurroundings(town))
    first = await looked(examiner, town)

    examiner.forget(resource_with().uid)

    assert examiner.is_due(resource_with(first), await town.view(), NOW)
