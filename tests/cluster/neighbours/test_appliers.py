"""What the objects of Argo CD and Flux say about a change, read from a real API server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvmedic.cluster.neighbours.appliers import (
    APPLICATIONS,
    HELM_RELEASES,
    KUSTOMIZATIONS,
    owner_field_of,
    owner_object,
    reversion_of,
    set_owner_field,
)
from kvmedic.kube.client import Client
from kvmedic.kube.errors import Conflict
from kvmedic.kube.objects import FIELD_MANAGER
from kvmedic.model.config_edits import OwnerField
from kvmedic.model.edits import EditState, Field, TokenEdit
from kvmedic.model.engine import Knob
from kvmedic.model.fleet import ObjectRef, Owner, OwnerKind, TemplateOwner
from kvmedic.model.plan import FlagStep
from kvmedic.model.reasons import Reason
from kvmedic.rollout.moves import SetOwnerField
from kvmedic.rollout.owners.reversion import Reversion
from kvmedic.runbooks.workload import View
from lab.cluster.light import LightCluster
from run_builder import a_fleet
from worlds.neighbours import definition
from worlds.rendered import define
from worlds.world import deployment

DEFINITIONS = [
    definition("argoproj.io", "v1alpha1", "Application", "applications"),
    definition("kustomize.toolkit.fluxcd.io", "v1", "Kustomization", "kustomizations"),
    definition("helm.toolkit.fluxcd.io", "v2", "HelmRelease", "helmreleases"),
]
EDIT = TokenEdit("vllm", 0, Field.ARGS, 2, "--max-num-seqs=64", "--max-num-seqs=14")
STEP = FlagStep(
    ObjectRef("Deployment", "llm"), "vllm", EDIT, "64", "14", "old", "new", Reason.FLEET_WIDE_DEMAND,
    knob=Knob.MAX_NUM_SEQS,
)  # fmt: skip
ARGO = TemplateOwner(OwnerKind.ARGO_CD, "prod")
BY_MANAGER = TemplateOwner(OwnerKind.APPLIER, "Argo CD (field manager argocd-controller)")
FLUX = TemplateOwner(OwnerKind.FLUX_KUSTOMIZATION, "apps")
FLUX_HELM = TemplateOwner(OwnerKind.FLUX_HELM, "chat")
HELM = TemplateOwner(OwnerKind.HELM, "chat")


def test_the_kinds_are_those_that_are_defined() -> None:
    named = [f"{each['spec']['names']['plural']}.{each['spec']['group']}" for each in DEFINITIONS]

    assert [each["metadata"]["name"] for each in DEFINITIONS] == named
    assert [one.plural for one in (APPLICATIONS, KUSTOMIZATIONS, HELM_RELEASES)] == [
        each["spec"]["names"]["plural"] for each in DEFINITIONS
    ]


@pytest.fixture
def defined(light: LightCluster, namespace: str) -> str:
    light.apply(DEFINITIONS, "")
    for each in DEFINITIONS:
        light.kubectl(
            "wait", "--for=condition=Established", f"crd/{each['metadata']['name']}", "--timeout=30s"
        )
    light.api.create(deployment(1), namespace)
    return namespace


def application(light: LightCluster, namespace: str, *rules: dict[str, Any]) -> None:
    """Make an Application that heals itself; its controller's status is written as that does."""
    applied = {"group": "apps", "version": "v1", "kind": "Deployment", "namespace": namespace, "name": "llm"}
    spec = {
        "ignoreDifferences": list(rules),
        "syncPolicy": {
            "automated": {"selfHeal": True},
            "syncOptions": ["RespectIgnoreDifferences=true"],
        },
    }
    body = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {"name": "prod"},
        "spec": spec,
    }
    light.api.create(body, namespace)
    light.api.patch("Application", "prod", {"status": {"resources": [applied]}}, namespace, "status")


async def read(client: Client, namespace: str, who: TemplateOwner, **owner: Any) -> Reversion | None:
    reason = Reason.MANAGED_BY_HELM if who is HELM else Reason.MANAGED_BY_GITOPS
    known = Owner(reason, str(who), who, gives_way=owner.get("gives_way", True))
    template = deployment(1)["spec"]["template"]
    return await reversion_of(client, a_fleet(namespace=namespace, owner=known), template, STEP)


async def test_an_application_that_heals_itself_is_read_by_what_it_applies(
    light: LightCluster, client: Client, defined: str
) -> None:
    application(light, defined)

    named = await read(client, defined, ARGO)
    behind = await read(client, defined, replace(ARGO, name=f"{defined}_prod"))
    other = await read(client, defined, replace(ARGO, name="staging"))

    assert named is not None
    assert named.at_once
    assert named.message.startswith("Argo CD Application prod heals itself")
    assert behind == named
    assert other is not None
    assert (
        other.message
        == "whether Argo CD Application staging leaves it alone cannot be read; one revert ends it"
    )


async def test_one_that_applies_another_deployment_of_its_name_is_not_it(
    light: LightCluster, client: Client, defined: str
) -> None:
    application(light, defined)
    light.api.patch("Application", "prod", {"status": {"resources": []}}, defined, "status")

    found = await read(client, defined, ARGO)

    assert found is not None
    assert (found.at_once, "cannot be read" in found.message) == (False, True)


async def test_an_application_that_shows_as_a_field_manager_alone_is_found_by_the_instance(
    light: LightCluster, client: Client, defined: str
) -> None:
    application(light, defined)

    before = await read(client, defined, BY_MANAGER)
    labels = {"metadata": {"labels": {"app.kubernetes.io/instance": "prod"}}}
    light.api.patch("Deployment", "llm", labels, defined)
    after = await read(client, defined, BY_MANAGER)

    assert before is not None
    assert after is not None
    assert (before.at_once, after.at_once) == (False, True)


async def test_a_rule_of_the_application_or_of_the_whole_argo_cd_is_enough(
    light: LightCluster, client: Client, defined: str
) -> None:
    application(light, defined)
    key = "resource.customizations.ignoreDifferences.apps_Deployment"
    common = {key: f"managedFieldsManagers: [{FIELD_MANAGER}]"}
    broken = {"resource.customizations.ignoreDifferences.all": "managedFieldsManagers: ["}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-cm"}}

    light.api.create({**config, "data": broken}, defined)
    without = await read(client, defined, ARGO)
    light.api.patch("ConfigMap", "argocd-cm", {"data": common}, defined)
    whole = await read(client, defined, ARGO)
    light.api.delete("ConfigMap", "argocd-cm", defined)
    rules = {
        "spec": {"ignoreDifferences": [{"kind": "*", "group": "*", "managedFieldsManagers": [FIELD_MANAGER]}]}
    }
    light.api.patch("Application", "prod", rules, defined)
    own = await read(client, defined, ARGO)

    assert without is not None
    assert without.at_once
    ignored = Reversion(False, "Argo CD Application prod ignores the fields of a run")
    assert (whole, own) == (ignored, ignored)


async def test_flux_is_read_by_the_object_that_the_marks_name(
    light: LightCluster, client: Client, defined: str
) -> None:
    unknown = [await read(client, defined, each) for each in (FLUX, FLUX_HELM)]
    kinds = {
        "Kustomization": ("kustomize.toolkit.fluxcd.io/v1", "apps"),
        "HelmRelease": ("helm.toolkit.fluxcd.io/v2", "chat"),
    }
    for kind, (version, name) in kinds.items():
        spec = {"interval": "5m", "driftDetection": {"mode": "enabled"}}
        light.api.create(
            {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}, defined
        )
    known = [await read(client, defined, each) for each in (FLUX, FLUX_HELM)]
    light.kubectl(
        "-n", defined, "annotate", "deployment", "llm",
        "kustomize.toolkit.fluxcd.io/ssa=IfNotPresent", "helm.toolkit.fluxcd.io/driftDetection=disabled",
    )  # fmt: skip
    marked = [await read(client, defined, each) for each in (FLUX, FLUX_HELM)]

    assert [each and (each.at_once, "cannot be read" in each.message) for each in unknown] == [
        (False, True)
    ] * 2
    assert [each and each.at_once for each in known] == [True, True]
    assert [each and each.at_once for each in marked] == [False, False]


async def test_nobody_is_asked_where_nothing_is_changed(client: Client, namespace: str) -> None:
    assert await read(client, namespace, ARGO, gives_way=False) is None
    helm = await read(client, namespace, HELM)

    assert helm == Reversion(
        False, "the next upgrade of Helm release chat puts it back unless its values have it"
    )


async def test_a_cluster_without_these_kinds_says_nothing_of_them(client: Client, namespace: str) -> None:
    class Without:
        async def get(self, ref: Any) -> None:
            return await client.get(
                replace(ref, resource=replace(ref.resource, group_version="nobody.example/v1"))
            )

        async def list(self, resource: Any, place: str, label_selector: str = "") -> list[Any]:
            return await client.list(
                replace(resource, group_version="nobody.example/v1"), place, label_selector
            )

    for who in (ARGO, FLUX, FLUX_HELM):
        known = Owner(Reason.MANAGED_BY_GITOPS, str(who), who, gives_way=True)
        found = await reversion_of(Without(), a_fleet(namespace=namespace, owner=known), {}, STEP)
        assert found is not None
        assert "cannot be read" in found.message


RUNTIME = {
    "apiVersion": "production-stack.vllm.ai/v1alpha1",
    "kind": "VLLMRuntime",
    "metadata": {"name": "llm"},
    "spec": {"deploymentConfig": {}, "vllmConfig": {}, "model": {"modelURL": "m", "maxNumSeqs": 64}},
}


async def test_a_field_of_the_owners_object_is_found_rehearsed_and_set_once(
    light: LightCluster, client: Client, namespace: str
) -> None:
    define(light, "vllmruntimes.production-stack.vllm.ai")
    made = light.api.create(RUNTIME, namespace)
    body = deployment(1)
    body["spec"]["template"]["spec"]["containers"][0]["args"] = ["m", "--max-num-seqs", "64"]
    body["metadata"]["ownerReferences"] = [
        {key: made[key] for key in ("apiVersion", "kind")}
        | {"name": "llm", "uid": made["metadata"]["uid"], "controller": True}
    ]
    live = light.api.create(body, namespace)
    fleet, template = a_fleet(namespace=namespace), live["spec"]["template"]
    view = View(fleet=fleet, template=template)
    edit = TokenEdit("vllm", 0, Field.ARGS, 2, "64", "16")

    found = await owner_field_of(client, fleet, template, replace(STEP, edit=edit))
    unfit = await owner_field_of(client, fleet, template, replace(STEP, edit=replace(edit, after="9" * 12)))

    assert isinstance(found, OwnerField)
    assert (found.path, found.uid) == ("/spec/model/maxNumSeqs", made["metadata"]["uid"])
    assert "422 Invalid" in str(unfit), "the definition takes no such number"
    assert light.api.get("VLLMRuntime", "llm", namespace)["spec"]["model"]["maxNumSeqs"] == 64
    seen = (await owner_object(client, view, found)).fleet.rendered_from
    assert seen is not None
    assert (seen.state, seen.generation, seen.owner) == (EditState.BEFORE, 1, None)
    await set_owner_field(client, namespace, SetOwnerField(found, seen))
    changed = light.api.get("VLLMRuntime", "llm", namespace)
    assert (changed["spec"]["model"]["maxNumSeqs"], changed["metadata"]["generation"]) == (16, 2)
    assert "annotations" not in changed["metadata"]
    with pytest.raises(Conflict):
        await set_owner_field(client, namespace, SetOwnerField(found, seen))
    light.api.delete("VLLMRuntime", "llm", namespace)
    assert "is not there" in str(await owner_field_of(client, fleet, template, replace(STEP, edit=edit)))
