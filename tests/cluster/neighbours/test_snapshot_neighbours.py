"""Who has a say in a target's replicas and pods, on a real API server with and without the definitions."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.cluster.neighbours.appliers import neighbours_of
from kvmedic.kube.client import Client, Limits, connect
from kvmedic.kube.errors import Call, Refused
from kvmedic.kube.objects import AUTOSCALERS, Resource
from kvmedic.rollout.preconditions import Autoscaler, Neighbours, VerticalAutoscaler
from lab.cluster.light import LightCluster
from run_builder import a_fleet
from worlds.neighbours import DEFINITIONS, REF, hpa, network, pdb, scaled, vpa

TEMPLATE = {"metadata": {"labels": {"app": "llm", "tier": "gold"}}}


NEVER_UP = {"scaleUp": {"selectPolicy": "Disabled"}}


async def read(client: Any, namespace: str = "default") -> Neighbours:
    return await neighbours_of(client, a_fleet(namespace=namespace), TEMPLATE)


async def test_everybody_who_has_a_say_is_found_and_nobody_else(
    light: LightCluster, client: Client, namespace: str
) -> None:
    create_everybody(light, namespace)

    found = await read(client, namespace)

    assert found == Neighbours(
        autoscalers=(
            Autoscaler("ScaledObject", "held", 1, 3, paused=True),
            Autoscaler("ScaledObject", "k", 0, 100),
            Autoscaler("ScaledObject", "let-go", 0, 100),
            Autoscaler("ScaledObject", "never-less", 0, 100),
            Autoscaler("ScaledObject", "never-more", 0, 100, may_add=False),
            Autoscaler("ScaledObject", "no-policy", 0, 100, may_add=False),
            Autoscaler("HorizontalPodAutoscaler", "mine", 2, 5),
            Autoscaler("HorizontalPodAutoscaler", "only-less", 1, 5, may_add=False),
        ),
        vertical=(VerticalAutoscaler("off", "Off"), VerticalAutoscaler("silent", "Recreate")),
        disruption_budgets=("chosen", "expressions"),
        of_draining=("NetworkPolicy trap",),
    )


def create_everybody(cluster: LightCluster, namespace: str) -> None:
    for each in DEFINITIONS:
        cluster.apply(each)
        cluster.kubectl(
            "wait", "--for=condition=Established", f"crd/{each['metadata']['name']}", "--timeout=10s"
        )
    of_keda = hpa("keda-hpa-k")
    of_keda["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "name": "k",
            "uid": "u",
            "controller": True,
        }
    ]
    not_in = pdb("expressions")
    not_in["spec"]["selector"] = {
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["gold"]},
            {"key": "app", "operator": "Exists"},
            {"key": "tier", "operator": "NotIn", "values": ["lead"]},
            {"key": "draining", "operator": "DoesNotExist"},
        ]
    }
    wrong = pdb("wrong")
    wrong["spec"]["selector"] = {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}
    for each in (
        hpa("mine", minReplicas=2),
        hpa("only-less", behavior=NEVER_UP),
        hpa("elsewhere", {**REF, "name": "other"}),
        hpa("of-a-set", {**REF, "kind": "StatefulSet"}),
        hpa("of-a-rollout", {**REF, "apiVersion": "argoproj.io/v1alpha1"}),
        of_keda,
        scaled("k"),
        scaled("held", {"autoscaling.keda.sh/paused": "true"}, minReplicaCount=1, maxReplicaCount=3),
        scaled("let-go", {"autoscaling.keda.sh/paused": "false"}),
        scaled("never-more", {"autoscaling.keda.sh/paused-scale-out": "true"}),
        scaled("never-less", {"autoscaling.keda.sh/paused-scale-in": "true"}),
        scaled("no-policy", advanced={"horizontalPodAutoscalerConfig": {"behavior": NEVER_UP}}),
        scaled("theirs", scaleTargetRef={"name": "other"}),
        vpa("silent"),
        vpa("off", updateMode="Off"),
        pdb("chosen", app="llm"),
        pdb("other", app="other"),
        not_in,
        wrong,
        network("trap", {"matchLabels": {"serving": "draining"}}),
        network("everywhere", {}),
    ):
        cluster.api.create(each, namespace)


class Listed:
    """A server that has autoscalers, and answers to any other kind what it answers where that is unknown."""

    def __init__(self, *autoscalers: dict[str, Any]) -> None:
        self._autoscalers = list(autoscalers)

    async def list(self, resource: Resource, namespace: str) -> list[dict[str, Any]]:
        if resource != AUTOSCALERS:
            raise Refused(Call("list", resource.path(namespace)), 404, "NotFound")
        return self._autoscalers


async def test_where_nobody_installed_them_nobody_is_there() -> None:
    assert await read(Listed()) == Neighbours()


@pytest.mark.parametrize(
    ("active", "able", "desired"), [("True", "True", 4), ("False", "True", None), ("True", "False", None)]
)
async def test_what_an_autoscaler_wants_counts_while_it_is_able_to_scale(
    active: str, able: str, desired: int | None
) -> None:
    conditions = [{"type": "ScalingActive", "status": active}, {"type": "AbleToScale", "status": able}]
    mine = hpa("mine") | {"status": {"desiredReplicas": 4, "conditions": conditions}}

    (found,) = (await read(Listed(mine))).autoscalers

    assert found.desired == desired


async def test_without_the_right_to_look_it_is_an_error(
    light: LightCluster, namespace: str, tmp_path: Any
) -> None:
    kubeconfig = light.impersonate("default", namespace).write_kubeconfig(tmp_path / "config")
    async with await connect(kubeconfig, Limits()) as nobody:
        with pytest.raises(Refused, match="403"):
            await read(nobody, namespace)
