"""A flag in a configuration file: healed by a copy of its ConfigMap, on the real controllers, and people."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lab.scripted.proxy import Write
from worlds.configured import (
    CHANGED,
    NAME,
    SECRET,
    TEXT,
    config_map,
    configure,
    copies,
    edit_file,
    point_at,
    referred,
    text_of,
)
from worlds.deploying import ALLOWED, settle
from worlds.phases import PATIENCE_SECONDS, Phase, conditions, let_go, reach
from worlds.unlabelled import make_unlabelled, orphans, stands_still
from worlds.world import Eye, World, is_cordoned, remediation


def settled(world: World) -> None:
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
    world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")


def is_asked_for_the_config_map(world: World) -> bool:
    return world.condition("ActionRequired") == ("True", "ConfigMapUnavailable")


def make_again(world: World, config_map: dict[str, Any]) -> None:
    """Have a person make the ConfigMap that was deleted again."""
    world.cluster.api.create({**config_map, "metadata": {"name": NAME}}, world.namespace)


def mounted_by(pod: dict[str, Any]) -> str:
    """Return the ConfigMap that a replica reads."""
    return str(pod["spec"]["volumes"][0]["configMap"]["name"])


def test_a_change_that_did_not_help_is_taken_back_and_its_copy_goes_with_its_replica_set(a_world):
    world = a_world(2)
    configure(world)
    before, original = world.deployment()["spec"], config_map(world)
    world.rewrite(new="worse")

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        settled(world)

    (copy,) = copies(world)
    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert config_map(world) == original
    assert (eye.lost, eye.fewest >= 2) == ([], True)

    world.kubectl("rollout", "undo", "deployment/llm")
    world.wait(world.is_settled, PATIENCE_SECONDS, "a person's undo finds the copy")
    assert referred(world) == copy["metadata"]["name"]
    world.kubectl("rollout", "undo", "deployment/llm")
    world.wait(world.is_settled, PATIENCE_SECONDS, "and back")
    world.kubectl("patch", "deployment", "llm", "-p", '{"spec":{"revisionHistoryLimit":0}}')
    world.wait(
        lambda: copies(world) == [], PATIENCE_SECONDS, "nothing refers to the copy any more, and it goes"
    )
    world.wait(lambda: "copies" not in world.status(), PATIENCE_SECONDS, "the record is clean")
    assert config_map(world) == original


def test_a_file_that_raised_the_cap_is_rolled_back_to_the_one_before(a_world):
    world = a_world(2, spec=ALLOWED)
    configure(world)
    before = world.deployment()["spec"]
    point_at(world, "more", TEXT.replace("64", "256"))
    settle(world)
    world.write_script(old="thrash", new="recovered", before="recovered", revision=world.revision())

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        settled(world)

    run = world.status()["history"][0]
    assert (run["reason"], run["outcome"]) == ("DeployCorrelated", "Recovered")
    assert world.deployment()["spec"] == before
    assert referred(world) == NAME
    assert (copies(world), world.traces()) == ([], [])
    assert (eye.lost, eye.fewest >= 2) == ([], True)


@pytest.mark.parametrize("phase", [Phase.DRAIN, Phase.VERIFY])
def test_who_edits_the_file_in_the_middle_has_their_way(a_world, phase):
    world = a_world(2, **conditions(phase))
    configure(world)
    before = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, phase)
        edit_file(world)
        let_go(world)
        settled(world)

    assert world.outcomes() == ["ConfigMapChanged"]
    assert world.deployment()["spec"] == before
    assert text_of(world, NAME) == TEXT.replace("64", "32")
    assert world.traces() == []
    assert (eye.lost, eye.fewest >= 2) == ([], True)


def test_a_file_that_is_edited_between_plan_and_act_ends_the_run_before_anything_is_done(a_world):
    world = a_world(2)
    configure(world)
    generation = world.deployment()["metadata"]["generation"]
    edited: list[bool] = []

    def opened(write: object) -> None:
        if "Pending" in str(write) and not edited:
            edited.append(True)
            edit_file(world)

    world.proxy.committed = opened
    world.start()
    settled(world)

    assert edited
    assert world.outcomes() == ["ConfigMapChanged"]
    assert world.deployment()["metadata"]["generation"] == generation
    assert referred(world) == NAME
    assert world.traces() == []
    assert copies(world) == []


def test_a_copy_that_somebody_deletes_is_made_again(a_world):
    world = a_world(2)
    configure(world)

    reach(world, Phase.DRAIN)
    (copy,) = copies(world)
    world.kubectl("delete", "configmap", copy["metadata"]["name"])
    world.wait(lambda: len(copies(world)) == 1, PATIENCE_SECONDS, "it is made again")
    let_go(world)
    settled(world)

    (again,) = copies(world)
    assert again["metadata"]["uid"] != copy["metadata"]["uid"]
    assert again["data"] == copy["data"]
    assert world.outcomes() == ["Recovered"]


def test_without_a_config_map_to_go_back_to_the_fleet_stands_still_and_says_so(a_world):
    world = a_world(2)
    configure(world)
    before, original = world.deployment()["spec"], config_map(world)

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, Phase.WAY_BACK)
        world.kubectl("delete", "configmap", NAME)
        let_go(world)
        world.wait(lambda: is_asked_for_the_config_map(world), PATIENCE_SECONDS, "a person is asked")
        assert world.step_state() == "RollingBack"
        make_again(world, original)
        settled(world)

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert world.traces() == []
    assert (eye.lost, eye.fewest >= 2) == ([], True)


def reach_first_return(world: World) -> None:
    """Start the operator and wait until the first replica without the change is made on the way back."""
    world.rewrite(new="worse")
    world.start()
    world.wait(lambda: world.step_state() == "RollingBack", PATIENCE_SECONDS, "the change is taken back")
    world.wait(lambda: NAME in map(mounted_by, world.pods()), PATIENCE_SECONDS, "a replica is made for it")


def test_a_fleet_without_a_label_releases_nobody_while_there_is_no_config_map_to_go_back_to(a_world):
    """The replica that is made for a released one would have to go for one that cannot start."""
    world = make_unlabelled(a_world, 2)
    configure(world)
    before, original = world.deployment()["spec"], config_map(world)

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach_first_return(world)
        world.kubectl("delete", "configmap", NAME)
        world.wait(lambda: is_asked_for_the_config_map(world), PATIENCE_SECONDS, "a person is asked")
        stands_still(world)
        assert is_asked_for_the_config_map(world)
        assert (world.step_state(), orphans(world)) == ("RollingBack", [])
        make_again(world, original)
        settled(world)

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert (world.traces(), orphans(world)) == ([], [])
    assert (eye.lost, eye.fewest >= 2) == ([], True)


def test_without_a_spare_a_released_replica_serves_on_while_there_is_no_config_map_to_go_back_to(a_world):
    """The one to come in its place cannot start, so the fleet would be one short until a person acts."""
    rollout = {**remediation()["spec"]["rollout"], "spare": "None", "rotation": "Orphan", "settle": "1s"}
    world = make_unlabelled(a_world, 2, spec={"rollout": rollout})
    configure(world)
    before, original = world.deployment()["spec"], config_map(world)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two"}}
    world.cluster.api.create({**quota, "spec": {"hard": {"pods": "2"}}}, world.namespace)
    deleted: list[bool] = []

    def lets_go(write: Write) -> None:
        text = str(write)
        if write.object == "deployments" and "RollingBack" in text and "Pulse" in text and not deleted:
            deleted.append(True)
            world.cluster.api.delete("ConfigMap", NAME, world.namespace)

    world.proxy.committed = lets_go
    world.rewrite(new="worse")
    world.start()
    world.wait(lambda: is_asked_for_the_config_map(world), PATIENCE_SECONDS, "a person is asked")
    stands_still(world)
    (released,) = orphans(world)
    assert (is_cordoned(released), world.endpoints(), world.step_state()) == (False, 2, "RollingBack")
    make_again(world, original)
    settled(world)

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert (world.traces(), orphans(world)) == ([], [])


def test_a_change_is_not_even_begun_to_be_taken_back_while_there_is_no_config_map_to_go_back_to(a_world):
    world = a_world(2)
    configure(world)
    before, original = world.deployment()["spec"], config_map(world)

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.rewrite(new="worse")
        world.start()
        world.wait(lambda: world.step_state() == "Verifying", PATIENCE_SECONDS, "the window opens")
        world.kubectl("delete", "configmap", NAME)
        generation = world.deployment()["metadata"]["generation"]
        world.wait(lambda: world.step_state() == "RollingBack", PATIENCE_SECONDS, "it did not help")
        world.wait(lambda: is_asked_for_the_config_map(world), PATIENCE_SECONDS, "a person is asked")
        stands_still(world)
        assert world.deployment()["metadata"]["generation"] == generation
        make_again(world, original)
        settled(world)

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert world.traces() == []
    assert (eye.lost, eye.fewest >= 2) == ([], True)


def test_a_flag_in_a_file_is_changed_in_a_copy_that_goes_with_the_deployment_and_nothing_of_it_is_shown(
    a_world,
):
    """The API server takes no change of an immutable ConfigMap."""
    world = a_world(2)
    configure(world, immutable=True)
    original, pods = config_map(world), {p["metadata"]["name"] for p in world.pods()}
    before = world.deployment()

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        settled(world)

    (copy,) = copies(world)
    (run,) = world.status()["history"]
    assert run["outcome"] == "Recovered"
    assert run["steps"] == ["Deployment/llm: maxNumSeqs 64 -> 14 (ConfigMap/limits, engine.yaml): Kept"]
    assert referred(world) == copy["metadata"]["name"]
    assert copy["data"] == {**original["data"], "engine.yaml": CHANGED}
    assert copy["immutable"] is True
    (owner,) = copy["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Deployment", before["metadata"]["uid"])
    assert [each["name"] for each in world.status()["copies"]] == [copy["metadata"]["name"]]
    assert world.args() == before["spec"]["template"]["spec"]["containers"][0]["args"]
    assert config_map(world) == original
    events = world.kubectl("get", "events", "-o", "yaml")
    shown = json.dumps(world.resource()) + json.dumps(world.deployment()["metadata"]) + world.log + events
    assert SECRET not in shown
    assert "limits of the fleet" not in shown
    assert world.traces() == []
    assert (eye.lost, eye.fewest >= 2) == ([], True)
    assert len(eye.seen - pods) == 2, "each replica was replaced once"

    world.kubectl("delete", "deployment", "llm", "--wait=false")

    world.wait(lambda: copies(world) == [], PATIENCE_SECONDS, "the copy is collected")
    assert text_of(world, NAME) == TEXT


def test_something_else_of_the_copys_name_ends_the_run_before_anything_is_done(a_world):
    world = a_world(2, spec={"mode": "Observe"})
    configure(world)
    world.start()
    world.wait(lambda: "plan" in world.status(), PATIENCE_SECONDS, "a plan is shown")
    name = world.status()["plan"]["exact"]["steps"][0]["fileOf"]["copy"]
    world.kubectl("create", "configmap", name, "--from-literal=a=b")
    generation = world.deployment()["metadata"]["generation"]

    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"mode": "Auto"}}, world.namespace)
    world.wait(lambda: bool(world.outcomes()), PATIENCE_SECONDS, "the run ends")

    assert world.outcomes() == ["ConfigMapUnavailable"]
    assert name in world.status()["history"][0]["message"]
    assert world.deployment()["metadata"]["generation"] == generation
    assert config_map(world, name)["data"] == {"a": "b"}
    assert copies(world) == []


def test_a_quota_for_config_maps_ends_the_run_before_anything_is_done(a_world):
    world = a_world(2)
    configure(world)
    count = len(world.cluster.api.list("ConfigMap", world.namespace))
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    world.cluster.api.create({**quota, "spec": {"hard": {"count/configmaps": str(count)}}}, world.namespace)

    def used() -> object:
        return world.cluster.api.get("ResourceQuota", "few", world.namespace).get("status", {}).get("used")

    world.wait(lambda: bool(used()), PATIENCE_SECONDS, "the quota is counted")
    generation = world.deployment()["metadata"]["generation"]

    world.start()
    world.wait(lambda: bool(world.outcomes()), PATIENCE_SECONDS, "the run ends")

    assert world.outcomes() == ["ConfigMapUnavailable"]
    assert "quota" in world.status()["history"][0]["message"]
    assert world.condition("ActionRequired") == ("True", "ConfigMapUnavailable")
    assert world.deployment()["metadata"]["generation"] == generation


def test_a_config_map_that_somebody_owns_is_not_copied_and_they_get_the_value(a_world):
    world = a_world(2)
    marks = {"annotations": {"argocd.argoproj.io/tracking-id": "prod:/ConfigMap:ns/limits"}}
    configure(world, metadata=marks)
    generation = world.deployment()["metadata"]["generation"]

    world.start()
    asked = lambda: world.condition("ActionRequired") == ("True", "ManagedByGitOps")  # noqa: E731
    world.wait(asked, PATIENCE_SECONDS, "a person is asked")

    (message,) = [c["message"] for c in world.status()["conditions"] if c["type"] == "ActionRequired"]
    assert 'max_num_seqs in engine.yaml of ConfigMap/limits: "64" -> "14"' in message
    assert "argocd app sync prod" in message
    assert (world.deployment()["metadata"]["generation"], world.outcomes()) == (generation, [])
    assert copies(world) == []


def test_a_config_map_that_is_missing_is_named(a_world):
    world = a_world(2)
    configure(world, history=0)
    world.kubectl("delete", "configmap", NAME)

    world.start()
    asked = lambda: world.condition("ActionRequired") == ("True", "FlagNotEditable")  # noqa: E731
    world.wait(asked, PATIENCE_SECONDS, "a person is asked")

    (message,) = [c["message"] for c in world.status()["conditions"] if c["type"] == "ActionRequired"]
    assert "ConfigMap/limits, which does not exist" in message


def test_replicas_that_are_older_than_the_file_are_noted_and_nothing_is_done_about_it(a_world):
    world = a_world(2, spec={"mode": "Observe"})
    configure(world)
    time.sleep(1.1)  # the API server notes edits in whole seconds
    edit_file(world, new="48")
    generation = world.deployment()["metadata"]["generation"]

    world.start()
    world.wait(lambda: "plan" in world.status(), PATIENCE_SECONDS, "a plan is shown")

    plan = world.status()["plan"]
    assert plan["steps"] == ["Deployment/llm: maxNumSeqs 48 -> 14 (ConfigMap/limits, engine.yaml)"]
    assert "ConfigMap limits was edited at " in plan["message"]
    assert all(pod["metadata"]["name"] in plan["message"] for pod in world.pods())
    assert world.deployment()["metadata"]["generation"] == generation
