"""A person undoes a rollout at the worst moments: the run ends, and the person's will stays.

`kubectl rollout undo` puts the template of an older ReplicaSet back, and with it all annotations that
the Deployment had when that ReplicaSet was its newest: a claim may go, or one of long ago comes back.
kubectl refuses on a paused Deployment, so the moments are those between two assignments.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from lab.scripted.proxy import Fate, Write
from worlds.people import NEW, OLD, cap, is_gone, untouched
from worlds.phases import PATIENCE_SECONDS, Phase, let_go, reach
from worlds.world import Eye, World, remediation

STRANGER = "99999999-0000-0000-0000-000000000000/20250101-000000/9"
"""The claim of a resource that is long gone."""
DEEDS_SECONDS = 10


@dataclass(slots=True)
class Undo:
    """Undoes the rollout once, when a move was written down (`before`) or committed (`after`)."""

    moment: str
    move: str
    state: str
    world: World | None = None
    done: list[str] = field(default_factory=list)

    def decide(self, write: Write) -> Fate:
        if self.moment == "before":
            self._look(write)
        return Fate.PASS

    def committed(self, write: Write) -> None:
        if self.moment == "after":
            self._look(write)

    def _look(self, write: Write) -> None:
        fits = write.object == "deployments" and self.move in write.step and self.state in write.step
        if self.done or not fits or self.world is None:
            return
        world, deadline = self.world, time.monotonic() + DEEDS_SECONDS
        while not has_newest_set(world):
            assert time.monotonic() < deadline, "the controller made no ReplicaSet for the newest template"
            time.sleep(0.02)
        self.done.append(cap(world))
        world.kubectl("rollout", "undo", "deployment/llm")
        self.done.append(cap(world))


def has_newest_set(world: World) -> bool:
    """Return whether the controller has acted on the newest template, so that there is one to go back to."""
    deployment = world.deployment()
    return deployment["status"].get("observedGeneration") == deployment["metadata"]["generation"]


def remember(world: World, claim: str, *, on_deployment: bool) -> None:
    """Leave a claim of long ago in the ReplicaSet of the present template, and perhaps on the Deployment."""
    notes = {"kvmedic.io/run": claim, "kvmedic.io/recorded": "{}"}
    patch_annotations(world, notes)
    world.wait(lambda: set_remembers(world, claim), DEEDS_SECONDS, "the controller copies the annotations")
    if not on_deployment:
        patch_annotations(world, dict.fromkeys(notes))


def patch_annotations(world: World, notes: dict[str, Any]) -> None:
    world.kubectl("patch", "deployment", "llm", "-p", json.dumps({"metadata": {"annotations": notes}}))


def set_remembers(world: World, claim: str) -> bool:
    sets = world.cluster.api.list("ReplicaSet", world.namespace)
    return [each["metadata"]["annotations"].get("kvmedic.io/run") for each in sets] == [claim]


def own_claim(world: World) -> str:
    return f"{world.resource()['metadata']['uid']}/20250101-000000/9"


PASTS: dict[str, Callable[[World], str]] = {
    "no past": lambda _: "",
    "an earlier run": own_claim,
    "a resource that is gone": lambda _: STRANGER,
}
MOMENTS = {
    "between freeze and pause": ("after", "Freeze", "RollingOut"),
    "as the pause is sent": ("before", "#2 Pause", "RollingOut"),
    "inside a pulse": ("after", "Pulse", "RollingOut"),
    "after the restore": ("after", "Restore", "RollingOut"),
    "between freeze and pause of the way back": ("after", "Freeze", "RollingBack"),
    "inside a pulse of the way back": ("after", "Pulse", "RollingBack"),
    "after the way back": ("after", "Re", "RollingBack"),
}
CASES = [
    pytest.param(moment, past, id=f"{moment}, {past}")
    for moment in MOMENTS
    for past in (PASTS if moment == "between freeze and pause" else ["no past"])
]


@pytest.mark.parametrize(("moment", "past"), CASES)
def test_an_undo_ends_the_run_and_stays(a_world, moment, past):
    undo = Undo(*MOMENTS[moment])
    world = a_world(2, decide=undo.decide)
    before = world.deployment()["spec"]
    if claim := PASTS[past](world):
        remember(world, claim, on_deployment=False)
    undo.world, world.proxy.committed = world, undo.committed

    world.rewrite(new="worse" if "way back" in moment else "recovered")
    world.start()
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
    world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert len(undo.done) == 2, "nobody undid anything"
    assert {*undo.done} == {OLD, NEW}
    assert cap(world) == undo.done[1], "what the person set last stays"
    assert world.outcomes() == ["ChangeReverted" if undo.done[1] == OLD else "FlagDrifted"]
    assert untouched(world.deployment()["spec"]) == untouched(before)
    assert world.traces() == []


@pytest.mark.parametrize("past", [past for past in PASTS if past != "no past"])
def test_a_claim_of_long_ago_does_not_keep_the_next_run_away(a_world, past):
    world = a_world(2)
    remember(world, PASTS[past](world), on_deployment=True)

    world.start()
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert world.traces() == []


def test_a_claim_ahead_of_the_record_is_caught_up_with(a_world):
    world = a_world(2)
    reach(world, Phase.DRAIN)
    claim = world.deployment()["metadata"]["annotations"]["kvmedic.io/run"]
    begun, _, number = claim.rpartition("/")
    patch_annotations(world, {"kvmedic.io/run": f"{begun}/{int(number) + 5}"})
    let_go(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert cap(world) == NEW
    assert world.traces() == []


def edit_status(world: World, **change: Any) -> None:
    patch = json.dumps([{"path": f"/status/{change.pop('path')}", **change}])
    world.kubectl("patch", "kvr", "llm", "--subresource=status", "--type=json", "-p", patch)


def remove_run_and_delete(world: World) -> None:
    edit_status(world, op="remove", path="run")
    world.kubectl("delete", "kvr", "llm", "--wait=false")


def empty_steps(world: World) -> None:
    edit_status(world, op="replace", path="run/steps", value=[])


def name_another_target(world: World) -> None:
    edit_status(world, op="replace", path="run/targetUid", value="another")


def delete_by_force(world: World, meanwhile: Callable[[], object] = bool) -> None:
    """While no operator runs that would put its finalizer back."""
    world.operators.pop().kill()
    world.kubectl("delete", "kvr", "llm", "--wait=false")
    world.kubectl("patch", "kvr", "llm", "--type=merge", "-p", json.dumps({"metadata": {"finalizers": None}}))
    meanwhile()
    world.start("operator-1")


def delete_by_force_and_die_on_the_way_back(world: World) -> None:
    delete_by_force(world)
    let_go(world)
    world.wait(lambda: cap(world) == OLD, PATIENCE_SECONDS, "the template is put back")
    world.operators.pop().kill()
    world.start("operator-2")


def delete_by_force_and_make_anew(world: World) -> None:
    """In mode Observe."""
    delete_by_force(world)
    world.cluster.apply(remediation(mode="Observe"), world.namespace)


@pytest.mark.parametrize(
    ("deed", "outcomes"),
    [
        (remove_run_and_delete, []),
        (delete_by_force, []),
        (delete_by_force_and_die_on_the_way_back, []),
        (empty_steps, ["FleetGivenBack"]),
        (name_another_target, ["FleetGivenBack", "TargetDeleted"]),
        (delete_by_force_and_make_anew, ["FleetGivenBack"]),
    ],
)
def test_a_frozen_fleet_that_no_record_knows_is_given_back_by_its_note(a_world, deed, outcomes):
    world = a_world(2)
    before = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, Phase.DRAIN)
        deed(world)
        let_go(world)
        is_over = (lambda: is_closed_as(world, outcomes)) if outcomes else (lambda: is_gone(world))
        world.wait(is_over, PATIENCE_SECONDS, "the run closes")
        world.wait(lambda: world.is_settled() and world.traces() == [], PATIENCE_SECONDS, "nothing is left")

    assert world.deployment()["spec"] == before
    assert eye.lost == []
    assert eye.fewest >= 2


def test_a_fleet_of_two_settings_whose_template_a_person_edited_stays_and_says_what_to_type(a_world):
    """Nobody keeps the template of before as such, so each way on is a rollout that a person has to want."""
    world = a_world(2)

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, Phase.DRAIN)
        delete_by_force(world, lambda: world.kubectl("set", "env", "deployment/llm", "ANOTHER=1"))
        world.wait(lambda: bool(event_notes(world)), PATIENCE_SECONDS, "an Event says why the fleet stays")

    assert "kubectl -n " + world.namespace + " get deployment llm" in event_notes(world)[0]
    spec = world.deployment()["spec"]
    assert (spec["minReadySeconds"], spec["progressDeadlineSeconds"]) == HELD
    assert {"name": "ANOTHER", "value": "1"} in spec["template"]["spec"]["containers"][0]["env"]
    assert (eye.lost, eye.fewest) == ([], 2)


HELD = (2147483646, 2147483647)
"""`minReadySeconds` and `progressDeadlineSeconds` of a rollout that a run holds frozen."""


def event_notes(world: World) -> list[str]:
    """Return what Events say of a fleet whose resource is gone."""
    found = json.loads(world.kubectl("get", "events.events.k8s.io", "-o", "json"))["items"]
    return [each["note"] for each in found if each["reason"] == "ClaimedByAnother"]


def is_closed_as(world: World, outcomes: list[str]) -> bool:
    return world.is_closed() and world.outcomes() == outcomes


FORCED = (
    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: llm}\nspec:\n  minReadySeconds: 0\n"
    "  progressDeadlineSeconds: 21600\n  strategy: {rollingUpdate: {maxSurge: 50%, maxUnavailable: 25%}}\n"
)
"""What a tool sets by server-side apply: every field that a run changes for a while."""


def test_fields_that_are_set_by_force_and_a_pruned_claim_end_nothing_and_cut_nobody(a_world):
    world = a_world(3)
    manifest = world.directory / "forced.yaml"
    manifest.write_text(FORCED)

    with Eye(world.cluster, world.namespace, 3) as eye:
        reach(world, Phase.DRAIN)
        patch_annotations(world, {"kvmedic.io/run": None, "kvmedic.io/recorded": None})
        world.kubectl(
            "apply", "--server-side", "--force-conflicts", "--field-manager=tool", "-f", str(manifest)
        )
        let_go(world)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert world.outcomes() == ["Recovered"]
    assert cap(world) == NEW
    assert world.deployment()["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": "50%",
        "maxUnavailable": "25%",
    }
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 3
