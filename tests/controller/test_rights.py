"""A fleet is healed with nothing but the rights that the chart gives, and each of these rights is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from aiohttp import ClientSession, web

from chart.generated import permissions
from lab.cluster.light import LightCluster
from lab.scripted.proxy import Proxy
from worlds.approving import APPROVE, approve, waits_as
from worlds.autoscaled import HPA, SCALED_OBJECT, behind, minimum
from worlds.configured import configure, copies
from worlds.deploying import ALLOWED, deploy
from worlds.fenced import rights_in
from worlds.people import delete_resource, is_gone
from worlds.scaling import MORE, REPLICAS, press, spec
from worlds.unlabelled import make_unlabelled
from worlds.world import World, no_harm

Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
THROUGH_AUTOSCALERS = {
    (group, resource, verb)
    for group, resource in (
        ("autoscaling", "horizontalpodautoscalers"),
        ("keda.sh", "scaledobjects"),
    )
    for verb in ("get", "patch")
}
WITHOUT_A_LABEL = {
    (group, "inferencepools", "list")
    for group in ("inference.networking.k8s.io", "inference.networking.x-k8s.io")
}
OF_OWNERS = {
    ("argoproj.io", "applications", "list"),
    ("kustomize.toolkit.fluxcd.io", "kustomizations", "get"),
    ("helm.toolkit.fluxcd.io", "helmreleases", "get"),
}
OF_STATEFUL_SETS = {
    ("apps", "statefulsets", "get"),
    ("apps", "statefulsets", "patch"),
    ("apps", "controllerrevisions", "get"),
    ("apps", "controllerrevisions", "list"),
}
OF_GROUPS = {("leaderworkerset.x-k8s.io", "leaderworkersets", verb) for verb in ("get", "watch", "patch")}
RARE = (
    OF_OWNERS
    | OF_GROUPS
    | OF_STATEFUL_SETS
    | THROUGH_AUTOSCALERS
    | WITHOUT_A_LABEL
    | {
        ("", "pods", "delete"),
        ("", "pods/log", "get"),
        ("apps", "controllerrevisions", "watch"),
        ("inference.networking.k8s.io", "inferencepools", "watch"),
        ("inference.networking.x-k8s.io", "inferencepools", "watch"),
        ("apps", "replicasets", "get"),
        ("coordination.k8s.io", "leases", "list"),
        ("kvmedic.io", "kvapprovals", "list"),
        ("", "namespaces", "get"),
        ("", "nodes", "list"),
        ("", "nodes", "watch"),
        ("", "persistentvolumeclaims", "get"),
    }
)
"""Asked for only where the rights are a ClusterRole's, or a replica has claims, so that the room of a spare
is computed; where the target is a StatefulSet or a LeaderWorkerSet; where an applier owns it and gives way;
where replicas are added through an autoscaler; where no label takes replicas out of rotation; while a peer of
the drained replica is not Ready; after a restart; before a revision is put back; in mode Approve; where a
flag stands in a configuration file; while a resource is being deleted."""


BEYOND_A_ROLE = {"/api/v1/nodes"}
"""What is asked of the whole cluster, and is not known where a Role forbids it: a spare is tried then."""


@dataclass(slots=True)
class Ledger(Proxy):
    """A proxy that notes which rights were asked for, and what was forbidden."""

    used: set[Right] = field(default_factory=set)
    forbidden: list[str] = field(default_factory=list)

    async def _forward(self, request: web.Request, body: bytes, up: ClientSession) -> web.StreamResponse:
        right = right_of(request.method, request.path, request.query_string)
        if right:
            self.used.add(right)
        # Not super(): a dataclass with slots is made anew, and its methods don't see the new class.
        answer = await Proxy._forward(self, request, body, up)
        if answer.status in (401, 403) and request.path not in BEYOND_A_ROLE:
            self.forbidden.append(f"{request.method} {request.path_qs}")
        return answer


def right_of(method: str, path: str, query: str) -> Right | None:
    """Return the right that a request needs; None for discovery, which everybody may do."""
    prefix, _, rest = path.partition("/namespaces/")
    parts = rest.split("/")[1:]
    if not parts:
        return None
    group = "" if prefix.startswith("/api/") else prefix.split("/")[2]
    named = len(parts) > 1
    read = "get" if named else "watch" if "watch=true" in query else "list"
    return group, "/".join([parts[0], *parts[2:]]), VERBS.get(method, read)


@pytest.fixture
def with_rights_of_the_chart(light: LightCluster) -> Iterator[Callable[[World], Ledger]]:
    """Installs the chart's account, Roles and fence for a world's namespace; gives a proxy with its token."""
    with ExitStack() as stack:

        def make(world: World) -> Ledger:
            account = stack.enter_context(rights_in(light, world.namespace))
            return stack.enter_context(Ledger(light.url, account.access.token, no_harm))

        yield make


@pytest.mark.parametrize(
    ("method", "path", "query", "right"),
    [
        ("GET", "/apis/apps/v1/namespaces/a/deployments/x", "", ("apps", "deployments", "get")),
        ("GET", "/api/v1/namespaces/a/pods", "limit=500", ("", "pods", "list")),
        ("GET", "/api/v1/namespaces/a/pods", "watch=true", ("", "pods", "watch")),
        ("PUT", "/apis/g/v1/namespaces/a/things/x/status", "", ("g", "things/status", "update")),
        ("POST", "/apis/g/v1/namespaces/a/things", "", ("g", "things", "create")),
        ("GET", "/apis/apps/v1", "", None),
    ],
)
def test_a_request_is_read_as_the_right_it_needs(method, path, query, right):
    assert right_of(method, path, query) == right


def test_the_charts_rights_suffice_and_none_is_idle(a_world, with_rights_of_the_chart):
    world = a_world(replicas=2)
    proxy = with_rights_of_the_chart(world)

    world.start(proxy=proxy)
    world.wait(world.is_closed, 90, "the run closes")

    by_default = [row for row in permissions() if not row.only]
    given = {(row.group, row.resource, grant.verb) for row in by_default for grant in row.grants}
    assert proxy.forbidden == []
    assert world.outcomes() == ["Recovered"]
    assert proxy.used - given == set()
    assert given - proxy.used == RARE


def test_the_charts_rights_suffice_where_no_label_takes_replicas_out(a_world, with_rights_of_the_chart):
    world = make_unlabelled(a_world, 2)
    proxy = with_rights_of_the_chart(world)

    world.start(proxy=proxy)
    world.wait(world.is_closed, 120, "the run closes")

    assert proxy.forbidden == []
    assert world.outcomes() == ["Recovered"]
    assert {*WITHOUT_A_LABEL, ("", "pods", "delete")} <= proxy.used


@pytest.mark.parametrize("kind", [HPA, SCALED_OBJECT])
def test_the_charts_rights_suffice_for_an_autoscalers_minimum(a_world, with_rights_of_the_chart, kind):
    world = a_world(spec=spec(verify={"for": "30m"}))
    behind(world, kind)
    proxy = with_rights_of_the_chart(world)
    press(world)

    world.start(proxy=proxy)
    world.wait(lambda: minimum(world, kind) == MORE, 90, "the minimum is raised")
    delete_resource(world)
    world.wait(lambda: is_gone(world), 90, "it is put back")

    resource = "horizontalpodautoscalers" if kind == HPA else "scaledobjects"
    used = {right for right in proxy.used if right[1] == resource}
    assert proxy.forbidden == []
    # It is watched from the first quick look on, where there was one.
    assert {verb for _, _, verb in used} - {"watch"} == {"list", "get", "patch"}
    assert minimum(world, kind) in (REPLICAS, None)


def test_the_charts_rights_suffice_for_a_plan_that_a_person_approves(a_world, with_rights_of_the_chart):
    world = a_world(spec=APPROVE)
    proxy = with_rights_of_the_chart(world)
    world.speed = 1.0

    world.start(proxy=proxy)
    world.wait(lambda: waits_as(world, "AwaitingApproval"), 60, "a plan waits")
    approve(world)
    world.wait(lambda: world.args()[2] == "--max-num-seqs=14", 60, "the change is on its way")

    assert proxy.forbidden == []
    assert ("kvmedic.io", "kvapprovals", "list") in proxy.used
    assert {right for right in proxy.used if right[1] == "kvapprovals"} == {
        ("kvmedic.io", "kvapprovals", "list")
    }


def test_the_charts_rights_suffice_to_roll_a_revision_back(a_world, with_rights_of_the_chart):
    world = a_world(replicas=2, spec=ALLOWED)
    deploy(world)
    proxy = with_rights_of_the_chart(world)

    world.start(proxy=proxy)
    world.wait(world.is_closed, 90, "the run closes")

    assert proxy.forbidden == []
    assert world.outcomes() == ["Recovered"]
    assert ("apps", "replicasets", "get") in proxy.used


def test_a_revision_whose_image_is_of_another_repository_is_not_put_back(a_world, with_rights_of_the_chart):
    world = a_world(replicas=2, spec=ALLOWED)
    deploy(world, image="vllm/another:v0.32.0")
    proxy = with_rights_of_the_chart(world)
    before = world.deployment()["spec"]

    world.start(proxy=proxy)
    refused = lambda: world.condition("ActionRequired") == ("True", "ChangeRefused")  # noqa: E731
    world.wait(refused, 90, "the fence refuses it")

    said = [each["message"] for each in world.status()["conditions"]]
    assert any("goes back to no revision with other containers, image repositories" in each for each in said)
    assert any("the fleet stands as it is" in each for each in said)
    assert world.deployment()["spec"] == before


def test_the_charts_rights_suffice_for_a_flag_in_a_file_there_and_back(a_world, with_rights_of_the_chart):
    world = a_world()
    configure(world, history=0)
    world.rewrite(new="worse")
    proxy = with_rights_of_the_chart(world)

    world.start(proxy=proxy)
    world.wait(world.is_closed, 120, "the run closes")
    world.wait(lambda: copies(world) == [], 60, "the copy goes")

    assert proxy.forbidden == []
    assert world.outcomes() == ["NotRecovered"]
    assert {verb for _, resource, verb in proxy.used if resource == "configmaps"} == {
        "get",
        "create",
        "delete",
    }


def test_without_the_right_to_read_config_maps_a_file_counts_as_unseen(a_world, with_rights_of_the_chart):
    world = a_world()
    configure(world, history=0)
    proxy = with_rights_of_the_chart(world)
    role = world.cluster.api.get("Role", world.namespace, world.namespace)
    rules = [rule for rule in role["rules"] if rule["resources"] != ["configmaps"]]
    world.cluster.api.patch("Role", world.namespace, {"rules": rules}, world.namespace)

    world.start(proxy=proxy)
    asked = lambda: world.condition("ActionRequired") == ("True", "FlagNotEditable")  # noqa: E731
    world.wait(asked, 90, "a person is asked")

    (message,) = [c["message"] for c in world.status()["conditions"] if c["type"] == "ActionRequired"]
    assert "ConfigMap/limits, which may not be read by the operator" in message
    assert {line.partition("?")[0].rpartition("/")[2] for line in proxy.forbidden} == {"limits"}
