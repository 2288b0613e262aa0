"""Assignments to a Deployment on a real API server: what they change, and when they change nothing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from kvmedic.cluster.ownership import RECORDED, RUN, notes_on
from kvmedic.cluster.workloads import assign, field_operations, guards, unclaim
from kvmedic.kube.client import Client
from kvmedic.kube.errors import Conflict
from kvmedic.kube.objects import DEPLOYMENTS, JsonObject, Ref
from kvmedic.model.edits import BundleEdit, BundlePart, EnvEdit, Field, PatchOperation, TokenEdit
from kvmedic.model.fleet import Fleet, RolloutFields, freeze_fields, template_hash
from kvmedic.rollout.moves import (
    DeploymentMove,
    Freeze,
    Pause,
    Pulse,
    Release,
    Restore,
    Retarget,
    Revert,
    ScaleIn,
    ScaleOut,
)
from worlds.live_fleet import ARGS, EDIT, NAME, POLL_SECONDS, LiveFleet, deployment, is_whole, service, walker
from worlds.model_controller import Model

FROZEN = freeze_fields(max_unavailable=0, paused=False)
HELD = freeze_fields(max_unavailable=0, paused=True)
OWN = RolloutFields(False, "25%", "25%", 0, 600)


class LateReads:
    """A client that answers reads with what was read before somebody else wrote."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen: dict[Ref, JsonObject | None] = {}

    async def get(self, ref: Ref) -> JsonObject | None:
        if ref not in self.seen:
            self.seen[ref] = await self.client.get(ref)
        return self.seen[ref]

    async def json_patch(
        self, ref: Ref, operations: list[PatchOperation], *, dry_run: bool = False
    ) -> JsonObject:
        return await self.client.json_patch(ref, operations, dry_run=dry_run)


async def quiet(live: LiveFleet, **spec: Any) -> Fleet:
    """A Deployment that its controller leaves alone, because somebody paused it before it had pods."""
    live.light.api.create(service(), live.namespace)
    live.light.api.create(deployment(2, paused=True, **spec), live.namespace)
    return await live.until(lambda fleet: fleet.observed, "the controller has seen it")


def spec_of(live: LiveFleet) -> str:
    return json.dumps(live.deployment()["spec"], sort_keys=True)


async def claim(live: LiveFleet, move: DeploymentMove, fence: str) -> None:
    """Carry out a first move: where there is no claim yet, a status that moves on is a conflict, too."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await assign(live.client, await live.fleet(), move, fence, {})
            except Conflict:
                await asyncio.sleep(POLL_SECONDS)


def written(live: LiveFleet) -> tuple[Any, Any]:
    """What people and operators write, without what the controllers report."""
    body = live.deployment()
    return body["spec"], body["metadata"].get("annotations")


class TestNumbers:
    async def test_one_more_and_the_number_before_change_nothing_else(self, live: LiveFleet) -> None:
        fleet = await live.serving(2)
        before = live.deployment()["spec"]

        await claim(live, ScaleOut(2, 3, fleet.pods[0].name), "r/1/1")
        more = await live.until(lambda seen: seen.in_rotation == 3, "three replicas in rotation")
        surged = live.deployment()["spec"]
        await claim(live, ScaleIn(3, 2, more.pods[0].name, 3), "r/1/2")

        assert surged == {**before, "replicas": 3}
        assert live.deployment()["spec"] == before

    @pytest.mark.parametrize(
        "move",
        [ScaleOut(1, 2, "x"), ScaleIn(3, 2, "x", None), ScaleIn(2, 1, "x", 3)],
        ids=["another number", "a number that is not there", "fewer are Ready than expected"],
    )
    async def test_what_is_not_as_expected_is_a_conflict_that_changes_nothing(
        self, live: LiveFleet, move: ScaleOut | ScaleIn
    ) -> None:
        fleet = await quiet(live)
        before = written(live)

        with pytest.raises(Conflict):
            await assign(live.client, fleet, move, "r/1/1", {})

        assert written(live) == before


class TestAssignments:
    async def test_freezing_changes_one_token_and_the_temporary_fields(self, live: LiveFleet) -> None:
        fleet = await quiet(live)
        before = live.deployment()["spec"]

        await assign(live.client, fleet, Freeze(EDIT, HELD), "r/1/1", {})

        after = live.deployment()["spec"]
        assert after.pop("minReadySeconds") == 2147483646
        assert after.pop("progressDeadlineSeconds") == 2147483647
        assert after["strategy"].pop("rollingUpdate") == {"maxSurge": 1, "maxUnavailable": 0}
        assert after["template"]["spec"]["containers"][0].pop("args") == [*ARGS[:2], EDIT.after, *ARGS[3:]]
        before.pop("progressDeadlineSeconds")
        before["strategy"].pop("rollingUpdate")
        before["template"]["spec"]["containers"][0].pop("args")
        assert after == before

    @pytest.mark.parametrize(
        ("edit", "item"),
        [
            pytest.param(
                TokenEdit("vllm", 0, Field.ARGS, 0, "--max-num-seqs=64", "--max-num-seqs=16", 13),
                "vllm serve m --max-num-seqs=16 --api-key=$(KEY) $MORE",
                id="a word of a script",
            ),
            pytest.param(
                TokenEdit("vllm", 0, Field.ARGS, 0, None, " --watermark=0.1", 12),
                "vllm serve m --watermark=0.1 --max-num-seqs=64 --api-key=$(KEY) $MORE",
                id="a word added to a script",
            ),
            pytest.param(TokenEdit("vllm", 0, Field.ENV, 1, "80", "81", 7), "--port=81", id="a variable"),
            pytest.param(TokenEdit("vllm", 0, Field.ENV, 1, "--port=80", "x"), "x", id="all of a variable"),
        ],
    )
    async def test_a_part_of_a_text_changes_and_goes_back(
        self, live: LiveFleet, edit: TokenEdit, item: str
    ) -> None:
        script = "vllm serve m --max-num-seqs=64 --api-key=$(KEY) $MORE"
        key = {"secretKeyRef": {"name": "keys", "key": "api"}}
        body = deployment(2, paused=True)
        container = body["spec"]["template"]["spec"]["containers"][0]
        container |= {"command": ["sh", "-c"], "args": [script]}
        container["env"] = [{"name": "KEY", "valueFrom": key}, {"name": "MORE", "value": "--port=80"}]
        live.light.api.create(service(), live.namespace)
        live.light.api.create(body, live.namespace)
        fleet = await live.until(lambda seen: seen.observed, "the controller has seen it")
        before = live.deployment()["spec"]["template"]

        await assign(live.client, fleet, Freeze(edit, HELD), "r/1/1", {})
        after = live.deployment()["spec"]["template"]
        await assign(live.client, await live.fleet(), Retarget(edit.inverse(), HELD), "r/1/2", {})

        there = after["spec"]["containers"][0][edit.field][edit.index]
        assert item == (there["value"] if edit.field is Field.ENV else there)
        assert edit.inverse().apply(after) == before
        assert live.deployment()["spec"]["template"] == before

    async def test_a_text_that_somebody_changed_is_not_edited(self, live: LiveFleet) -> None:
        edit = TokenEdit("vllm", 0, Field.ARGS, 2, "64", "16", 15)
        fleet = await quiet(live)
        client: Any = LateReads(live.client)
        await client.get(Ref(DEPLOYMENTS, live.namespace, NAME))
        other = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": [*ARGS[:3], "--port=1"]}
        live.patch({"spec": {"template": {"spec": {"containers": [other]}}}})
        before = spec_of(live)

        with pytest.raises(Conflict):
            await assign(client, fleet, Freeze(edit, HELD), "r/1/1", {})

        assert spec_of(live) == before

    async def test_the_claim_is_set_with_the_assignment_and_only_ours_is_added(self, live: LiveFleet) -> None:
        fleet = await quiet(live)
        assert "annotations" not in live.deployment()["metadata"]

        await assign(live.client, fleet, Pause(HELD), "r/1/0", {})
        first = live.deployment()["metadata"]["annotations"]
        live.patch({"metadata": {"annotations": {"team": "serving"}}})
        await assign(live.client, await live.fleet(), Pause(HELD), "r/1/1", {RECORDED: "note"})

        assert first == {RUN: "r/1/0"}
        assert live.deployment()["metadata"]["annotations"] == {
            "team": "serving",
            RUN: "r/1/1",
            RECORDED: "note",
        }
        seen = await live.fleet()
        assert seen.fence == "r/1/1"
        assert seen.recorded == {RECORDED: "note"}

    async def test_there_and_back_absent_fields_are_absent_and_others_keep_their_type(
        self, live: LiveFleet
    ) -> None:
        fleet = await quiet(live, strategy={"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 1}})
        before = spec_of(live)

        await assign(live.client, fleet, Freeze(EDIT, HELD), "r/1/1", {})
        await assign(live.client, await live.fleet(), Revert(EDIT.inverse(), fleet.fields), "r/1/2", {})

        assert spec_of(live) == before
        assert "minReadySeconds" not in live.deployment()["spec"]

    async def test_releasing_never_touches_the_template_and_retargeting_only_the_token(
        self, live: LiveFleet
    ) -> None:
        fleet = await quiet(live)
        await assign(live.client, fleet, Freeze(EDIT, HELD), "r/1/1", {})
        changed = (await live.fleet()).revision

        await assign(live.client, await live.fleet(), Release(fleet.fields), "r/1/2", {})
        released = await live.fleet()
        await assign(live.client, released, Retarget(EDIT.inverse(), HELD), "r/1/3", {})
        after = await live.fleet()

        assert (released.revision, released.fields) == (changed, fleet.fields)
        assert (after.revision, after.fields) == (fleet.revision, HELD)

    async def test_a_strategy_that_somebody_changed_to_recreate_is_left_alone(self, live: LiveFleet) -> None:
        fleet = await quiet(live)
        await assign(live.client, fleet, Freeze(EDIT, HELD), "r/1/1", {})
        live.patch({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}})

        await assign(live.client, await live.fleet(), Release(replace(OWN, strategy="Recreate")), "r/1/2", {})

        after = live.deployment()["spec"]
        assert after["strategy"] == {"type": "Recreate"}
        assert "minReadySeconds" not in after


class TestGuards:
    MOVES: tuple[DeploymentMove, ...] = (
        Freeze(EDIT, FROZEN),
        Pause(HELD),
        Pulse(("some-pod",), freeze_fields(max_unavailable=1, paused=False)),
        Release(OWN),
        Restore(OWN, 0),
    )

    @pytest.mark.parametrize(
        ("move", "edit"),
        [*((move, "edited") for move in MOVES), (Pause(HELD), "scaled")],
        ids=lambda row: row if isinstance(row, str) else type(row).__name__,
    )
    @pytest.mark.parametrize("reads", ["fresh", "late"])
    async def test_after_a_persons_edit_nothing_is_changed(
        self, live: LiveFleet, move: DeploymentMove, edit: str, reads: str
    ) -> None:
        fleet = await quiet(live)
        client = await self.reader(live, reads)
        if edit == "scaled":
            live.light.api.patch("Deployment", NAME, {"spec": {"replicas": 5}}, live.namespace, "scale")
        else:
            live.patch({"spec": {"template": {"metadata": {"annotations": {"edited": "by hand"}}}}})
        before = written(live)

        with pytest.raises(Conflict):
            await assign(client, fleet, move, "r/1/1", {})

        assert written(live) == before

    @pytest.mark.parametrize("reads", ["fresh", "late"])
    async def test_of_two_first_claims_one_wins(self, live: LiveFleet, reads: str) -> None:
        fleet = await quiet(live)
        client = await self.reader(live, reads)
        await assign(live.client, fleet, Pause(HELD), "theirs/1/1", {})

        with pytest.raises(Conflict):
            await assign(client, fleet, Freeze(EDIT, HELD), "ours/1/1", {})

        assert (await live.fleet()).fence == "theirs/1/1"

    async def test_of_two_who_saw_the_same_claim_one_wins(self, live: LiveFleet) -> None:
        await assign(live.client, await quiet(live), Pause(HELD), "r/1/1", {})
        fleet = await live.fleet()
        moves = (Freeze(EDIT, HELD), Release(OWN))

        ends = await asyncio.gather(
            *(assign(live.client, fleet, move, f"r/{n}/2", {}) for n, move in enumerate(moves)),
            return_exceptions=True,
        )

        assert sorted(type(end).__name__ for end in ends) == ["Conflict", "NoneType"]

    async def test_a_claim_that_came_back_by_another_way_is_still_an_edit(self, live: LiveFleet) -> None:
        """From A to B and back to A: the claim reads the same, the generation does not."""
        await assign(live.client, await quiet(live), Pause(HELD), "r/1/1", {})
        fleet = await live.fleet()
        client = await self.reader(live, "late")
        live.patch({"metadata": {"annotations": {RUN: "r/2/1"}}})
        live.patch({"metadata": {"annotations": {RUN: "r/1/1"}}})

        with pytest.raises(Conflict):
            await assign(client, fleet, Freeze(EDIT, HELD), "r/1/2", {})

    async def test_another_deployment_of_the_same_name_is_left_alone(self, live: LiveFleet) -> None:
        fleet = await quiet(live)
        client = await self.reader(live, "late")
        live.light.api.delete("Deployment", NAME, live.namespace)
        live.light.api.create(deployment(2, paused=True), live.namespace)
        before = await live.until(lambda seen: seen.observed, "seen")

        with pytest.raises(Conflict):
            await assign(client, replace(fleet, generation=before.generation), Pause(HELD), "r/1/1", {})
        live.light.api.delete("Deployment", NAME, live.namespace)
        with pytest.raises(Conflict):
            await assign(live.client, fleet, Pause(HELD), "r/1/1", {})

    async def test_the_status_moving_on_is_no_edit(self, live: LiveFleet) -> None:
        await live.serving(1)
        await claim(live, Pause(replace(OWN, paused=True)), "r/1/1")
        fleet = await live.until(lambda seen: seen.observed, "seen")
        pod = fleet.pods[0]
        live.light.api.delete("Pod", pod.name, live.namespace)
        await live.until(lambda seen: is_whole(seen) and seen.pods[0].uid != pod.uid, "another pod")

        await assign(live.client, fleet, Pause(HELD), "r/1/2", {})

        assert (await live.fleet()).fields == HELD

    async def test_restoring_with_old_replicas_left_changes_nothing(self, live: LiveFleet) -> None:
        await live.serving(2)
        forward = walker(live, await live.look())
        while forward.effects() != ["Freeze", "Pause"]:
            await forward.step()
        fleet = await live.until(lambda seen: seen.status_replicas == 3, "the canary")
        before = live.deployment()

        with pytest.raises(Conflict):
            await assign(live.client, fleet, Restore(OWN, 2), "r/1/9", {})

        assert live.deployment()["spec"] == before["spec"]
        assert [pod.name for pod in (await live.fleet()).pods] == [pod.name for pod in fleet.pods]

    async def test_restoring_at_no_replicas_finds_no_counts(self, live: LiveFleet) -> None:
        fleet = await quiet(live)
        assert live.deployment()["status"].get("replicas") is None

        await assign(live.client, fleet, Restore(replace(OWN, min_ready_seconds=7), 0), "r/1/1", {})

        assert live.deployment()["spec"]["minReadySeconds"] == 7

    async def test_restoring_at_no_replicas_while_one_is_left_changes_nothing(self, live: LiveFleet) -> None:
        fleet = await live.serving(1)

        with pytest.raises(Conflict):
            await assign(live.client, fleet, Restore(replace(OWN, min_ready_seconds=7), 0), "r/1/1", {})

    async def test_an_edit_that_does_not_fit_is_a_mistake_of_ours(self, live: LiveFleet) -> None:
        fleet = await quiet(live)

        with pytest.raises(ValueError, match="not what the edit expects"):
            await assign(live.client, fleet, Freeze(EDIT.inverse(), HELD), "r/1/1", {})

    async def reader(self, live: LiveFleet, reads: str) -> Any:
        """With late reads only the tests in the patch itself are left to notice."""
        if reads == "fresh":
            return live.client
        client = LateReads(live.client)
        await client.get(Ref(DEPLOYMENTS, live.namespace, NAME))
        return client


class TestUnclaiming:
    async def test_our_annotations_go_and_others_stay(self, live: LiveFleet) -> None:
        fleet = await quiet(live)
        await assign(live.client, fleet, Pause(HELD), "r/1/1", {RECORDED: "note"})
        live.patch({"metadata": {"annotations": {"team": "serving"}}})

        await unclaim(live.client, await live.fleet())

        assert live.deployment()["metadata"]["annotations"] == {"team": "serving"}

    async def test_another_claim_is_left_alone(self, live: LiveFleet) -> None:
        fleet = await quiet(live)
        await assign(live.client, fleet, Pause(HELD), "r/1/1", {})
        fleet = await live.fleet()
        live.patch({"metadata": {"annotations": {RUN: "theirs/1/1"}}})

        with pytest.raises(Conflict):
            await unclaim(live.client, fleet)

        assert (await live.fleet()).fence == "theirs/1/1"

    async def test_twice_is_the_same_as_once_and_writes_once(self, live: LiveFleet) -> None:
        fleet = await quiet(live)
        await assign(live.client, fleet, Pause(HELD), "r/1/1", {})
        fleet = await live.fleet()

        await unclaim(live.client, fleet)
        await live.until(lambda fleet: fleet.observed, "its controller has written what it saw")
        version = live.deployment()["metadata"]["resourceVersion"]
        await unclaim(live.client, fleet)

        assert live.deployment()["metadata"]["resourceVersion"] == version

    async def test_a_deployment_that_is_gone_has_no_claim(self, live: LiveFleet) -> None:
        fleet = await quiet(live)
        live.light.api.delete("Deployment", NAME, live.namespace)

        await unclaim(live.client, fleet)


class TestOperations:
    def test_fields_that_are_as_desired_are_not_written(self) -> None:
        spec = {"progressDeadlineSeconds": 600, "strategy": {"type": "Recreate"}}

        assert field_operations({"spec": spec}, RolloutFields(False, 0, 0, 0, 600, "Recreate")) == ()

    def test_another_type_of_strategy_is_put_with_its_numbers_or_without(self) -> None:
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
        fields = RolloutFields(False, 1, 0, 0, None)
        recreated = RolloutFields(False, 0, 0, 0, None, "Recreate")

        assert field_operations({"spec": {"strategy": {"type": "Recreate"}}}, fields) == (
            PatchOperation("add", "/spec/strategy", rolling),
        )
        assert field_operations({"spec": {"strategy": rolling}}, recreated) == (
            PatchOperation("add", "/spec/strategy", {"type": "Recreate"}),
        )

    def test_a_field_that_was_absent_is_removed(self) -> None:
        spec = {"paused": True, "minReadySeconds": 9, "progressDeadlineSeconds": 1}

        assert field_operations({"spec": spec}, RolloutFields(False, 0, 0, 0, None)) == (
            PatchOperation("remove", "/spec/paused"),
            PatchOperation("remove", "/spec/minReadySeconds"),
            PatchOperation("remove", "/spec/progressDeadlineSeconds"),
        )

    def test_a_first_claim_is_tested_by_version_and_a_later_one_by_its_value(self, a_fleet: Fleet) -> None:
        first = guards(a_fleet, Pause(HELD))
        later = guards(replace(a_fleet, fence="r/1/1"), Pause(HELD))

        assert first[-1] == PatchOperation("test", "/metadata/resourceVersion", a_fleet.resource_version)
        assert later[-1] == PatchOperation("test", "/metadata/annotations/kvmedic.io~1run", "r/1/1")

    def test_only_the_first_freeze_leaves_a_note(self, a_fleet: Fleet) -> None:
        note = notes_on(a_fleet, Freeze(EDIT, FROZEN))

        assert json.loads(note[RECORDED]) == {
            "paused": False,
            "maxSurge": "25%",
            "maxUnavailable": "25%",
            "minReadySeconds": 0,
            "progressDeadlineSeconds": 600,
            "container": "vllm",
            "containerIndex": 0,
            "field": "args",
            "index": 2,
            "before": "--max-num-seqs=64",
            "after": "--max-num-seqs=16",
            "rotationLabel": "serving",
            "draining": "draining",
            "rotation": "Label",
        }
        part = json.loads(notes_on(a_fleet, Freeze(replace(EDIT, at=7), FROZEN))[RECORDED])
        assert part["at"] == 7
        assert notes_on(replace(a_fleet, fields=HELD), Freeze(EDIT, FROZEN)) == {}
        assert notes_on(a_fleet, Pause(HELD)) == {}

    def test_a_spare_leaves_a_note_of_the_number_and_of_who_is_to_go(self, a_fleet: Fleet) -> None:
        note = notes_on(a_fleet, ScaleOut(2, 3, "p01"))

        assert json.loads(note[RECORDED]) == {"replicas": 2, "pod": "p01"}
        assert notes_on(a_fleet, ScaleIn(3, 2, "p01", 3)) == {}

    def test_a_number_is_tested_and_where_it_matters_how_many_are_ready(self, a_fleet: Fleet) -> None:
        before = PatchOperation("test", "/spec/replicas", 3)

        assert guards(a_fleet, ScaleOut(3, 4, "p01"))[-1] == before
        assert guards(a_fleet, ScaleIn(3, 2, "", None))[-1] == before
        assert guards(a_fleet, ScaleIn(3, 2, "p01", 3))[-2:] == (
            before,
            PatchOperation("test", "/status/readyReplicas", 3),
        )


@pytest.fixture
def a_fleet() -> Fleet:
    return Model.healthy(2).fleet()


ONLY = EnvEdit("vllm", 0, "A", 0, "1", None)
BUNDLES: dict[str, tuple[list[dict[str, Any]], tuple[BundlePart, ...]]] = {
    "the only variable goes": ([{"name": "A", "value": "1"}], (ONLY,)),
    "the first variable comes": ([], (ONLY.inverse(),)),
    "a value becomes empty": ([{"name": "A", "value": "1"}], (replace(ONLY, after=""),)),
    "several": (
        [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}],
        (
            replace(ONLY, index=1, after="0"),
            EnvEdit("vllm", 0, "B", 0, "2", None),
            TokenEdit("vllm", 0, Field.ARGS, 2, "--max-num-seqs=64", None),
        ),
    ),
}


async def put(live: LiveFleet, edit: BundleEdit, fence: str) -> dict[str, Any]:
    """Assign a bundle and return the template that the API server made of it."""
    while True:
        try:
            await assign(live.client, await live.fleet(), Freeze(edit, HELD), fence, {})
        except Conflict:
            continue
        template: dict[str, Any] = live.deployment()["spec"]["template"]
        return template


@pytest.mark.parametrize(("env", "parts"), BUNDLES.values(), ids=BUNDLES)
async def test_the_template_is_the_one_that_was_predicted(
    live: LiveFleet, env: list[dict[str, Any]], parts: tuple[BundlePart, ...]
) -> None:
    made = deployment(1, paused=True)
    made["spec"]["template"]["spec"]["containers"][0]["env"] = env
    live.light.api.create(made, live.namespace)
    await live.until(lambda fleet: fleet.observed, "the controller has seen it")
    before, bundle = live.deployment()["spec"]["template"], BundleEdit(parts)

    after = await put(live, bundle, "r/1/1")
    again = await put(live, bundle.inverse(), "r/1/2")

    assert template_hash(after) == template_hash(bundle.apply(before)) != template_hash(before)
    assert (after, again) == (bundle.apply(before), before)
