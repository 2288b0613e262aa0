"""Host memory that is added for a while, from look to look: asked when due, noted, forgotten. No cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from api.records import holding_record
from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import SurveyInput
from kvmedic.controller.survey import survey
from kvmedic.controller.temporary import note_temporary, why_not_restored
from kvmedic.model.fleet import Fleet, Owner, template_hash
from kvmedic.model.plan import FlagStep, Goal
from kvmedic.model.reasons import Reason
from kvmedic.model.status import Record, Resource, TemporaryChange
from kvmedic.record.events import notes
from kvmedic.runbooks.workload import View
from lab.scripted.readings import State
from run_builder import NOW
from worlds.asked import Asked, a_resource
from worlds.settled import a_settled_fleet
from worlds.world import deployment


def template(*args: str) -> dict[str, Any]:
    body: dict[str, Any] = deployment(3)["spec"]["template"]
    container = body["spec"]["containers"][0]
    return {
        **body,
        "spec": {**body["spec"], "containers": [{**container, "args": [*container["args"], *args]}]},
    }


WITH = template("--kv-offloading-size=32")
REVISION = template_hash(WITH)
[_, HOST_MEMORY] = holding_record().temporary
HOST_MEMORY = replace(
    HOST_MEMORY,
    step=replace(HOST_MEMORY.step, after_template=REVISION),
    target_uid=a_settled_fleet().uid,
)


def fleet(of: dict[str, Any], **changes: Any) -> Fleet:
    found, revision = a_settled_fleet(), template_hash(of)
    pods = tuple(replace(pod, revision=revision) for pod in found.pods)
    sets = tuple(replace(each, revision=revision) for each in found.replica_sets)
    return replace(found, revision=revision, pods=pods, replica_sets=sets, **changes)


def resource_with(change: TemporaryChange | None) -> Resource:
    resource = a_resource(good=REVISION)
    assert resource.record is not None
    return replace(resource, record=replace(resource.record, temporary=(change,) if change else ()))


async def looked(
    state: State, change: TemporaryChange | None = HOST_MEMORY, of: dict[str, Any] = WITH, **changes: Any
) -> Survey:
    resource, metrics = resource_with(change), Asked(state)
    view: Any = View(fleet=fleet(of, **changes), template=of)
    return await survey(resource, resource.policy, view, SurveyInput(metrics, metrics, NOW))


def after(found: Survey, change: TemporaryChange = HOST_MEMORY) -> Record:
    resource = resource_with(change)
    assert resource.record is not None
    return note_temporary(resource.record, found, resource.policy, NOW)


async def test_a_calm_fleet_is_asked_whether_it_does_without_once_it_is_due() -> None:
    due = await looked(State.IDLE)
    early = await looked(State.IDLE, replace(HOST_MEMORY, calm_since=NOW - timedelta(minutes=59)))

    [step] = due.plan.steps
    assert isinstance(step, FlagStep)
    assert (step.before, step.after, step.after_template) == ("32", None, template_hash(template()))
    assert (due.goal, due.blocked) == (Goal.CALM, None)
    assert (early.plan, early.outlook) == (None, "")


async def test_a_load_that_did_not_fall_keeps_it_and_is_reported() -> None:
    found = await looked(State.RECOVERED)

    assert found.plan is None
    assert found.outlook
    assert [change.outlook for change in after(found, replace(HOST_MEMORY, looked_at=None)).temporary] == [
        found.outlook
    ]


@pytest.mark.parametrize("state", [State.MISSING, State.STALE, State.NAN, State.DOWN])
async def test_a_look_that_says_nothing_ends_the_calm_and_gives_nothing_back(state: State) -> None:
    found = await looked(state)

    assert found.plan is None
    assert [(change.calm_since, change.step.after) for change in after(found).temporary] == [(None, "32")]


async def test_trouble_ends_the_calm() -> None:
    found = await looked(State.THRASH)

    assert not [step for step in (found.plan.steps if found.plan else ()) if step.after is None]  # type: ignore[union-attr]
    assert [change.calm_since for change in after(found).temporary] == [None]


async def test_an_owner_who_came_meanwhile_stands_in_the_way() -> None:
    argo = Owner(Reason.MANAGED_BY_GITOPS, "Argo CD Application prod")

    found = await looked(State.IDLE, owner=argo)

    assert found.blocked.reason is Reason.MANAGED_BY_GITOPS


@pytest.mark.parametrize(
    ("of", "changes"),
    [
        (template("--kv-offloading-size=16"), {}),
        (template(), {}),
        (WITH, {"uid": "another"}),
    ],
    ids=["another value", "removed", "another Deployment"],
)
async def test_what_is_somebody_elses_now_is_forgotten_with_an_event(
    of: dict[str, Any], changes: dict[str, Any]
) -> None:
    found = await looked(State.IDLE, of=of, **changes)
    before = resource_with(HOST_MEMORY).record

    done = after(found)

    assert (found.plan, done.temporary) == (None, ())
    [note] = [each for each in notes(before, done) if each.reason is Reason.TEMPORARY_CHANGE_FORGOTTEN]
    assert "kvOffloadingSize (engine default) -> 32" in note.message


async def test_an_engine_that_is_not_recognised_keeps_the_change_and_was_not_calm() -> None:
    body = template()
    hidden = {**body, "spec": {**body["spec"], "containers": [{"name": "vllm", "image": "sidecar"}]}}

    found = await looked(State.IDLE, of=hidden)

    assert found.plan is None
    assert [(change.step.after, change.calm_since) for change in after(found).temporary] == [("32", None)]


async def test_nothing_new_is_worth_no_write() -> None:
    found = await looked(State.IDLE, replace(HOST_MEMORY, calm_since=NOW))

    assert (
        after(found, replace(HOST_MEMORY, calm_since=NOW))
        == resource_with(replace(HOST_MEMORY, calm_since=NOW)).record
    )


def test_why_it_is_still_there_is_said() -> None:
    resource = resource_with(HOST_MEMORY)
    assert resource.record is not None

    said = why_not_restored(resource.record, resource.policy)

    assert said.reason is Reason.TEMPORARY_CHANGE_HELD
    assert "after 60 minutes of calm" in said.message
