"""Switches of the runbooks on a real API server: each is on record once, however often it is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from kvmedic.api.status import record_to_wire
from kvmedic.model.status import Record
from kvmedic.model.trial import Answer, Question, Reclaim
from worlds.command_line import kvmedic
from worlds.trying import evicting, spec
from worlds.world import World

SECONDS = 60


def reclaims(world: World) -> None:
    """Put on record that a trial of the present pod template showed that blocks come back."""
    answer = Answer(
        Question.RECLAMATION, world.revision(), "blocks come back", datetime.now(UTC), 1, Reclaim.RECLAIMS
    )
    status = record_to_wire(Record(answers=(answer,)), "")
    world.cluster.api.patch("KVRemediation", "llm", {"status": status}, world.namespace, subresource="status")


def given(world: World) -> list[dict[str, Any]]:
    return list(world.status().get("runbookSwitches", []))


def events(world: World) -> list[dict[str, Any]]:
    found = json.loads(
        world.kubectl("get", "events", "-o", "json", "--field-selector=reason=RunbookSwitched")
    )
    return list(found["items"])


def sees(world: World, reason: str) -> None:
    world.wait(lambda: world.status().get("diagnosis", {}).get("reason") == reason, SECONDS, reason)


@pytest.fixture
def observed(a_world: Callable[..., World]) -> World:
    """A thrashing fleet whose method does what it can; the operator looks and changes nothing."""
    world = a_world(replicas=2, spec={**spec(), "mode": "Observe"}, change=evicting)
    reclaims(world)
    world.start()
    sees(world, "FleetWideDemand")
    return world


def test_the_same_switch_is_on_record_and_reported_once_after_many_looks(observed):
    first = given(observed)
    before = json.loads(observed.script.read_text())
    observed.rewrite(old="recovered", new="recovered")
    sees(observed, "Healthy")
    observed.kill()
    observed.write_script(**before)

    observed.wait(lambda: observed.starts > 1, SECONDS, "the next process looks")
    sees(observed, "FleetWideDemand")
    output = kvmedic(observed, "explain", "llm")
    facts = json.loads(kvmedic(observed, "explain", "llm", "-o", "json").stdout)["runbookSwitch"]

    assert [(each["fromRunbook"], each["toRunbook"]) for each in first] == [
        ("CompressionWithoutSavings", "PreemptionThrash")
    ]
    assert first[0]["reason"] == "PressedThoughCompressed"
    assert given(observed) == first
    assert "CompressionWithoutSavings handed the fleet to PreemptionThrash" in output.stdout, output.stderr
    assert facts["template"] == first[0]["template"] == observed.revision()


def test_a_switch_is_reported_as_an_event_and_one_for_an_edited_spec_as_another(observed):
    observed.wait(lambda: len(events(observed)) == 1, SECONDS, "it is reported")

    observed.kubectl("patch", "kvr", "llm", "--type=merge", "-p", '{"spec": {"limits": {"cooldown": "23h"}}}')

    observed.wait(lambda: len(given(observed)) == 2, SECONDS, "the spec was edited")
    observed.wait(lambda: len(events(observed)) == 2, SECONDS, "and is reported")
    assert [each["generation"] for each in given(observed)] == [2, 1]
    assert {each["type"] for each in events(observed)} == {"Normal"}
