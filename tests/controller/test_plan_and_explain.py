"""`kvmedic plan` and `kvmedic explain` against a real API server: they read, and write nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest

from worlds.command_line import kvmedic
from worlds.world import World

Kvmedic = Callable[..., "subprocess.CompletedProcess[str]"]
NOWHERE = ("--prometheus", "http://127.0.0.1:9")


@pytest.fixture
def observing(a_world: Callable[..., World]) -> World:
    """A thrashing fleet whose resource only observes; the operator has looked and is gone."""
    world = a_world(spec={"mode": "Observe"})
    world.start()
    world.wait(lambda: bool(world.status().get("plan")), 60, "a plan")
    world.kill()
    return world


@pytest.fixture
def walking(a_world: Callable[..., World]) -> World:
    """A thrashing fleet with an open run; the operator died in the middle of it."""
    world = a_world()
    world.start()
    world.wait(lambda: world.step_state() == "RollingOut", 60, "an open run")
    world.kill()
    return world


def test_a_plan_that_waits_is_explained_with_what_to_type(observing):
    version = observing.resource()["metadata"]["resourceVersion"]

    done = kvmedic(observing, "explain", "llm")

    digest = observing.status()["plan"]["digest"]
    assert done.returncode == 0, done.stderr
    assert "watches Deployment llm in mode Observe" in done.stdout
    assert "It sees FleetWideDemand" in done.stdout
    assert f"(digest {digest})" in done.stdout
    assert "It does not act: ObserveOnly" in done.stdout
    patch = f'kubectl -n {observing.namespace} patch kvr llm --type=merge -p \'{{"spec":{{"mode":"Auto"}}}}\''
    assert patch in done.stdout
    assert observing.resource()["metadata"]["resourceVersion"] == version


def test_what_the_operator_wrote_is_shown_where_metrics_do_not_answer(observing):
    done = kvmedic(observing, "plan", "llm", *NOWHERE, "-o", "json")

    found = json.loads(done.stdout)
    assert done.returncode == 3
    assert (found["reason"], found["plan"], found["digest"]) == ("SourceUnavailable", [], None)
    assert found["recorded"]["digest"] == observing.status()["plan"]["digest"]


def test_an_open_run_is_shown_with_before_after_and_state(walking):
    done = kvmedic(walking, "plan", "llm", "-o", "json")

    found, run = json.loads(done.stdout), walking.status()["run"]
    assert done.returncode == 0, done.stderr
    assert (found["run"], found["digest"]) == (run["id"], run["digest"])
    [change] = found["plan"]
    assert (change["knob"], change["before"], change["state"]) == ("maxNumSeqs", "64", "RollingOut")
    assert int(change["after"]) < 64


def test_an_open_run_is_explained_with_the_way_back(walking):
    done = kvmedic(walking, "explain", "llm")

    run = walking.status()["run"]["id"]
    assert f"Run {run} is open" in done.stdout
    assert f"kvmedic rollback llm -n {walking.namespace} --run {run}" in done.stdout


def test_a_resource_that_nobody_looked_at_asks_after_the_operator(a_world):
    done = kvmedic(a_world(), "explain", "llm")

    assert "The operator has not looked at the fleet yet." in done.stdout
    assert "kubectl -n kvmedic-system logs deployment/kvmedic" in done.stdout


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_a_resource_that_is_not_there_exits_4(a_world, command):
    done = kvmedic(a_world(), command, "nobody")

    assert done.returncode == 4
    assert "nobody does not exist" in done.stderr


def test_the_cluster_is_found_as_kubectl_finds_it(a_world, tmp_path):
    world = a_world()
    home, empty = tmp_path / "home", tmp_path / "empty"
    empty.mkdir()
    (home / ".kube").mkdir(parents=True)
    (home / ".kube" / "config").write_text(world.cluster.kubeconfig.read_text())
    several = os.pathsep.join([str(world.cluster.kubeconfig), str(tmp_path / "nowhere")])

    at_home = kvmedic(world, "explain", "llm", HOME=str(home))
    listed = kvmedic(world, "explain", "llm", KUBECONFIG=several, HOME=str(empty))
    nowhere = kvmedic(world, "explain", "llm", HOME=str(empty))

    assert (at_home.returncode, listed.returncode) == (0, 0), (at_home.stderr, listed.stderr)
    assert nowhere.returncode == 2
    assert "set KUBECONFIG" in nowhere.stderr
