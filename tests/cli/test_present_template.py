"""How a command finds the present pod template of a resource's target."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from kvmedic.api.resource import policy_of, spec_from_wire
from kvmedic.cli.plan import template_of
from kvmedic.kube.errors import Call, Refused
from kvmedic.kube.objects import Ref
from kvmedic.model.fleet import template_hash
from kvmedic.model.status import Record, Resource, Wish
from run_builder import UID

TEMPLATE = {"spec": {"containers": [{"name": "vllm", "image": "vllm"}]}}
DEPLOYMENT = {"spec": {"template": TEMPLATE}}
POLICY = policy_of(spec_from_wire({"targetRef": {"name": "llm"}}))
RESOURCE = Resource("serving", "chat", UID, "1", 1, Wish.NONE, False, POLICY, None, Record())


@dataclass
class World:
    """An API server with at most one Deployment, which may be kept from us."""

    there: dict[str, Any] | None
    is_kept: bool = False

    @property
    def client(self):
        return self

    async def get(self, ref: Ref) -> dict[str, Any] | None:
        assert (ref.namespace, ref.name) == ("serving", "llm")
        if self.is_kept:
            raise Refused(Call("get", "deployments/llm"), 403, "Forbidden")
        return self.there


async def found(world: World, resource: Resource = RESOURCE) -> str:
    return await template_of(world, resource)  # type: ignore[arg-type]


async def test_it_is_the_hash_by_which_a_trial_remembers_it():
    assert await found(World(DEPLOYMENT)) == template_hash(TEMPLATE)


@pytest.mark.parametrize("resource", [RESOURCE, replace(RESOURCE, policy=None)], ids=["gone", "nobody knows"])
async def test_without_a_deployment_there_is_none(resource):
    assert await found(World(None), resource) == ""


async def test_who_may_not_read_deployments_is_told_and_gets_the_rest(capsys):
    assert await found(World(DEPLOYMENT, is_kept=True)) == ""
    assert "the present pod template is not known: get deployments/llm: 403" in capsys.readouterr().err
