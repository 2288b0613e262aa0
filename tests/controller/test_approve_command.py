"""`kvmedic approve` against a real API server: the plan that is shown, and no other, by anyone who may."""

from __future__ import annotations

import os
import pty
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from chart.rendering import render
from lab.cluster.light import LightCluster
from worlds.approving import APPROVE, digest, has_run, waiting
from worlds.command_line import kvmedic
from worlds.world import Maker, World

MEANT = "--digest"
pytestmark = pytest.mark.xdist_group("kvmedic approve")
"""One worker has them all, as they share a plan."""


@pytest.fixture(scope="module")
def planned(light: LightCluster, crd: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A plan that waits for approval; the operator that showed it is gone."""
    namespace = light.create_namespace(f"test-{uuid.uuid4().hex[:10]}")
    with ExitStack() as stack:
        stack.callback(light.api.delete, "Namespace", namespace)
        maker = Maker(light, namespace, tmp_path_factory.mktemp("approve"), stack)
        world = waiting(maker.make(spec=APPROVE))
        world.kill()
        yield world


@pytest.fixture
def asking(planned: World) -> Iterator[World]:
    """The plan, without an approval; those that a test made go with it."""
    yield planned
    for made in approvals(planned):
        planned.cluster.api.delete("KVApproval", made["metadata"]["name"], planned.namespace)


def approvals(world: World) -> list[dict[str, Any]]:
    return world.cluster.api.list("KVApproval", world.namespace)


def test_a_digest_that_was_looked_at_is_approved(a_world):
    world = waiting(a_world(spec=APPROVE))
    shown = digest(world)

    done = kvmedic(world, "approve", "llm", MEANT, shown)

    [made] = approvals(world)
    uid = world.resource()["metadata"]["uid"]
    assert done.returncode == 0, done.stderr
    assert f"digest     {shown}, shown since" in done.stdout
    assert "plan       Deployment/llm: maxNumSeqs 64 -> 14" in done.stdout
    assert "waits for  AwaitingApproval" in done.stdout
    assert f"approved   KVApproval {made['metadata']['name']}; it counts for one run" in done.stdout
    assert made["spec"] == {"remediation": "llm", "remediationUID": uid, "digest": shown}
    assert made["metadata"]["name"].startswith("llm-")
    assert made["metadata"]["ownerReferences"][0]["uid"] == uid
    world.wait(lambda: has_run(world), 60, "the run opens")


REFUSED = {
    "another plan": (("llm", MEANT, "f" * 16), 3, "not ffffffffffffffff; nothing was approved"),
    "no digest and nobody to ask": (("llm",), 2, "give --digest"),
    "nothing to read": (("llm", "--print"), 2, "give --digest"),
    "no such resource": (("nobody", MEANT, "f" * 16), 4, "nobody does not exist"),
    "no name": ((), 2, "Missing argument"),
}


@pytest.mark.parametrize(("arguments", "code", "says"), REFUSED.values(), ids=REFUSED)
def test_nothing_is_approved_by_mistake(asking, arguments, code, says):
    done = kvmedic(asking, "approve", *arguments)

    assert done.returncode == code, done.stderr
    assert says in " ".join(done.stderr.split())
    assert approvals(asking) == []


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 3), ("\n", 3)], ids=["yes", "no", "enter"])
def test_at_a_terminal_it_shows_the_plan_and_asks(asking, typed, code):
    leader, follower = pty.openpty()
    os.write(leader, typed.encode())

    done = kvmedic(asking, "approve", "llm", typed=os.ttyname(follower))
    os.close(leader)
    os.close(follower)

    assert done.returncode == code, done.stderr
    assert "maxNumSeqs 64 -> 14" in done.stdout
    assert "Approve this plan? [y/N]" in done.stderr
    assert len(approvals(asking)) == (code == 0)


def test_it_prints_what_another_person_may_create(asking, tmp_path):
    done = kvmedic(asking, "approve", "llm", MEANT, digest(asking), "--print")

    assert done.returncode == 0, done.stderr
    assert "maxNumSeqs 64 -> 14" in done.stderr
    assert approvals(asking) == []
    manifest = tmp_path / "approval.yaml"
    manifest.write_text(done.stdout)
    asking.cluster.kubectl("create", "--validate=strict", "-f", str(manifest))
    assert [each["spec"]["digest"] for each in approvals(asking)] == [digest(asking)]


OTHERS = {
    "one that only observes": ({"mode": "Observe"}, "spec.mode is Observe, not Approve"),
    "one that nobody looked at yet": ({"mode": "Approve"}, "shows no plan to approve"),
}


@pytest.mark.parametrize(("spec", "says"), OTHERS.values(), ids=OTHERS)
def test_a_resource_that_waits_for_nothing_says_so(a_world, spec, says):
    world = a_world(spec=spec)

    done = kvmedic(world, "approve", "llm", MEANT, "f" * 16)

    assert done.returncode == 3
    assert says in done.stderr
    assert approvals(world) == []


def test_a_plan_that_waits_is_explained_with_the_command(asking):
    done = kvmedic(asking, "explain", "llm")

    command = f"kvmedic approve llm -n {asking.namespace} --digest {digest(asking)}"
    assert f"To approve the plan:  {command}" in done.stdout
    assert "It does not act: AwaitingApproval" in done.stdout


@pytest.fixture
def as_person(light: LightCluster, tmp_path: Path) -> Callable[[World, str, str], dict[str, str]]:
    """Gives the environment of a person who has one of the chart's roles."""

    def make(world: World, person: str, role: str) -> dict[str, str]:
        found = render()["ClusterRole", role]
        light.apply({**found, "metadata": {"name": role}})
        subject = f"--serviceaccount={world.namespace}:{person}"
        world.kubectl("create", "serviceaccount", person)
        world.kubectl("create", "rolebinding", person, f"--clusterrole={role}", subject)
        path = tmp_path / person
        return {"KUBECONFIG": str(light.impersonate(person, world.namespace).write_kubeconfig(path))}

    return make


def test_the_approvers_role_is_all_that_it_takes_and_no_less_does(asking, as_person):
    approver = as_person(asking, "approver", "kvmedic-approver")
    viewer = as_person(asking, "viewer", "kvmedic-view")

    forbidden = kvmedic(asking, "approve", "llm", MEANT, digest(asking), **viewer)
    allowed = kvmedic(asking, "approve", "llm", MEANT, digest(asking), **approver)

    assert forbidden.returncode == 4
    assert "nothing was approved: create" in forbidden.stderr
    assert "bind the ClusterRole kvmedic-approver" in forbidden.stderr
    assert allowed.returncode == 0, allowed.stderr
    assert len(approvals(asking)) == 1
