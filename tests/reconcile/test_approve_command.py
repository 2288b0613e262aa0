"""`kvmedic approve` against a real API server: the plan that is shown, and no other, by whoever may."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chart.rendering import render
from lab.cluster.light import LightCluster
from reconcile.approving import APPROVE, digest, has_run, waiting
from reconcile.test_plan_and_explain import kvmedic
from reconcile.world import World

MEANT = "--digest"


@pytest.fixture
def asking(a_world: Callable[..., World]) -> World:
    """A plan that waits for approval; the operator that showed it is gone."""
    world = waiting(a_world(spec=APPROVE))
    world.kill()
    return world


def approvals(world: World) -> list[dict[str, Any]]:
    return world.cluster.api.list("KVApproval", world.namespace)


def test_a_digest_that_was_looked_at_is_approved(asking: World) -> None:
    shown = digest(asking)

    done = kvmedic(asking, "approve", "llm", MEANT, shown)

    [made] = approvals(asking)
    uid = asking.resource()["metadata"]["uid"]
    assert done.returncode == 0, done.stderr
    assert f"digest     {shown}, shown since" in done.stdout
    assert "plan       Deployment/llm: maxNumSeqs 64 -> 14" in done.stdout
    assert "waits for  AwaitingApproval" in done.stdout
    assert f"approved   KVApproval {made['metadata']['name']}; it counts for one run" in done.stdout
    assert made["spec"] == {"remediation": "llm", "remediationUID": uid, "digest": shown}
    assert made["metadata"]["name"].startswith("llm-")
    assert made["metadata"]["ownerReferences"][0]["uid"] == uid
    asking.start()
    asking.wait(lambda: has_run(asking), 60, "the run opens")


REFUSED = {
    "another plan": (("llm", MEANT, "f" * 16), 3, "not ffffffffffffffff; nothing was approved"),
    "no digest and nobody to ask": (("llm",), 2, "give --digest"),
    "nothing to read": (("llm", "--print"), 2, "give --digest"),
    "no such resource": (("nobody", MEANT, "f" * 16), 4, "nobody does not exist"),
    "no name": ((), 2, "Missing argument"),
}


@pytest.mark.parametrize(("arguments", "code", "says"), REFUSED.values(), ids=REFUSED)
def test_nothing_is_approved_by_mistake(
    asking: World, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = kvmedic(asking, "approve", *arguments)

    assert done.returncode == code, done.stderr
    assert says in " ".join(done.stderr.split())
    assert approvals(asking) == []


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 3), ("\n", 3)], ids=["yes", "no", "enter"])
def test_at_a_terminal_it_shows_the_plan_and_asks(asking: World, typed: str, code: int) -> None:
    leader, follower = pty.openpty()
    os.write(leader, typed.encode())

    done = subprocess.run(
        [sys.executable, "-m", "kvmedic", "approve", "llm", "-n", asking.namespace],
        stdin=follower,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": "operator:tests", "KUBECONFIG": str(asking.cluster.kubeconfig)},
    )
    os.close(leader)
    os.close(follower)

    assert done.returncode == code, done.stderr
    assert "maxNumSeqs 64 -> 14" in done.stdout
    assert "Approve this plan? [y/N]" in done.stderr
    assert len(approvals(asking)) == (code == 0)


def test_it_prints_what_another_person_may_create(asking: World, tmp_path: Path) -> None:
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
def test_a_resource_that_waits_for_nothing_says_so(
    a_world: Callable[..., World], spec: dict[str, Any], says: str
) -> None:
    world = a_world(spec=spec)

    done = kvmedic(world, "approve", "llm", MEANT, "f" * 16)

    assert done.returncode == 3
    assert says in done.stderr
    assert approvals(world) == []


def test_a_plan_that_waits_is_explained_with_the_command(asking: World) -> None:
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


def test_the_approvers_role_is_all_that_it_takes_and_no_less_does(
    asking: World, as_person: Callable[[World, str, str], dict[str, str]]
) -> None:
    approver = as_person(asking, "approver", "kvmedic-approver")
    viewer = as_person(asking, "viewer", "kvmedic-view")

    forbidden = kvmedic(asking, "approve", "llm", MEANT, digest(asking), **viewer)
    allowed = kvmedic(asking, "approve", "llm", MEANT, digest(asking), **approver)

    assert forbidden.returncode == 4
    assert "nothing was approved: create" in forbidden.stderr
    assert "bind the ClusterRole kvmedic-approver" in forbidden.stderr
    assert allowed.returncode == 0, allowed.stderr
    assert len(approvals(asking)) == 1
