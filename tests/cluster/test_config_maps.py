"""Copies of ConfigMaps on a real API server: made of what was planned on, removed when nobody needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kvmedic.cluster.config_maps import StoredCopies, config_maps_of, read_config_map
from kvmedic.kube.client import Client
from kvmedic.kube.errors import Conflict
from kvmedic.model.config_edits import ConfigMap, FileEdit, Unseen, copy_name
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import TargetRef
from kvmedic.model.status import ConfigCopy
from kvmedic.rollout.config_copy import CopyState, Files, SourceState
from kvmedic.runbooks.workload import EngineLine, View
from lab.cluster.light import LightCluster
from run_builder import a_fleet
from worlds.config_maps import CONTENTS, SECRET, an_edit
from worlds.live_fleet import deployment


@dataclass
class Place:
    """A namespace with a ConfigMap and a Deployment of no replicas."""

    light: LightCluster
    client: Client
    namespace: str

    def fleet(self) -> Fleet:
        uid = self.light.api.get("Deployment", "llm", self.namespace)["metadata"]["uid"]
        return a_fleet(namespace=self.namespace, uid=uid)

    def edit(self, value: str = "16") -> FileEdit:
        plain = an_edit(value=value)
        name = copy_name("limits", plain.make_copy(CONTENTS), self.fleet().uid)
        return FileEdit("limits", name, *(getattr(plain, each) for each in FIELDS))

    def get(self, name: str) -> dict[str, Any]:
        return self.light.api.get("ConfigMap", name, self.namespace)

    def names(self) -> set[str]:
        found = self.light.api.list("ConfigMap", self.namespace)
        return {each["metadata"]["name"] for each in found} - {"kube-root-ca.crt"}


FIELDS = ("key", "at", "before", "after", "before_content", "after_content")


@pytest.fixture
def place(light: LightCluster, client: Client, namespace: str) -> Place:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "limits", "labels": {"app": "chat"}},
    }
    light.api.create({**body, "data": CONTENTS.data, "binaryData": CONTENTS.binary}, namespace)
    light.api.create(deployment(0), namespace)
    return Place(light, client, namespace)


async def test_a_copy_holds_everything_but_the_one_value_and_belongs_to_the_deployment(place: Place) -> None:
    copies, edit, before = StoredCopies(place.client), place.edit(), place.get("limits")

    assert await copies.stand(place.fleet(), edit) == Files(SourceState.AS_PLANNED, CopyState.ABSENT)
    assert await copies.make(place.fleet(), edit) == ""

    copy = place.get(edit.copy)
    assert await copies.stand(place.fleet(), edit) == Files(SourceState.AS_PLANNED, CopyState.READY)
    changed = edit.make_copy(CONTENTS)
    assert (copy["data"], copy["binaryData"]) == (changed.data, changed.binary)
    assert copy["immutable"] is True
    assert copy["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "kvmedic",
        "kvmedic.io/target": place.fleet().uid,
    }
    assert SECRET not in str(copy["metadata"].get("annotations"))
    assert place.get("limits") == before


async def test_a_copy_is_not_made_twice_and_not_of_other_contents(place: Place) -> None:
    copies, edit = StoredCopies(place.client), place.edit()
    await copies.make(place.fleet(), edit)
    first = place.get(edit.copy)

    with pytest.raises(Conflict):
        await copies.make(place.fleet(), edit)
    place.light.api.patch("ConfigMap", "limits", {"data": {"other": "y"}}, place.namespace)
    with pytest.raises(Conflict):
        await copies.make(place.fleet(), place.edit("8"))

    assert place.get(edit.copy) == first
    assert place.names() == {"limits", edit.copy}
    stand = await copies.stand(place.fleet(), edit)
    assert stand == Files(SourceState.CHANGED, CopyState.READY)


async def test_what_the_api_server_will_not_have_is_a_value_with_its_words(place: Place) -> None:
    edit = FileEdit("limits", "Not-A-Name", *(getattr(place.edit(), each) for each in FIELDS))

    why = await StoredCopies(place.client).make(place.fleet(), edit)

    assert "metadata.name" in why
    assert SECRET not in why
    assert place.names() == {"limits"}


async def test_a_config_map_that_is_gone_or_forbidden_is_a_value(place: Place) -> None:
    assert await read_config_map(place.client, place.namespace, "another") is Unseen.GONE
    access = place.light.impersonate("default", place.namespace)
    place.client._api.configuration.api_key["BearerToken"] = f"Bearer {access.token}"

    assert await read_config_map(place.client, place.namespace, "limits") is Unseen.UNREADABLE


async def test_whose_a_config_map_is_and_when_it_was_edited_is_known(place: Place) -> None:
    mark = {"metadata": {"annotations": {"meta.helm.sh/release-name": "chat"}}}
    place.light.api.patch("ConfigMap", "limits", mark, place.namespace)

    seen = await read_config_map(place.client, place.namespace, "limits")

    assert isinstance(seen, ConfigMap)
    assert seen.contents == CONTENTS
    assert seen.owner.reason is Reason.MANAGED_BY_HELM
    assert seen.edited_at is not None
    assert (seen.copy_of, seen.for_target) == ("", "")


def template(name: str, *args: str) -> dict[str, Any]:
    mounts = [{"name": "c", "mountPath": "/etc/vllm"}]
    engine = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "volumeMounts": mounts, "args": list(args)}
    volumes = [{"name": "c", "configMap": {"name": name}}]
    return {"spec": {"containers": [{"name": "proxy", "image": "envoy"}, engine], "volumes": volumes}}


def line(name: str, *args: str, container: str | None = None) -> EngineLine | Blocked:
    return View(a_fleet(), template(name, *args)).engine_line(TargetRef("Deployment", "llm", container))


FILE = ("--config", "/etc/vllm/engine.yaml")


async def test_only_the_file_of_the_engine_is_read_and_what_it_is_a_copy_of(place: Place) -> None:
    edit = place.edit()
    await StoredCopies(place.client).make(place.fleet(), edit)

    async def read(name: str, *args: str, container: str | None = None) -> set[str]:
        return set(
            await config_maps_of(place.client, place.namespace, [line(name, *args, container=container)])
        )

    assert await read("limits", *FILE) == {"limits"}
    assert await read("limits", *FILE, container="vllm") == {"limits"}
    assert await read("limits", *FILE, container="proxy") == set()
    assert await read("limits", "--port=80") == set()
    assert await read("limits", "--config", "/elsewhere/engine.yaml") == set()
    assert await read(edit.copy, *FILE) == {"limits", edit.copy}
    found = await config_maps_of(place.client, place.namespace, [line(edit.copy, *FILE)])
    copy = found[edit.copy]
    assert isinstance(copy, ConfigMap)
    assert (copy.copy_of, copy.copied_content) == ("limits", CONTENTS.digest)


async def delete_unused(place: Place, *copies: ConfigCopy) -> tuple[ConfigCopy, ...]:
    return await StoredCopies(place.client).delete_unused(place.fleet(), copies)


async def test_a_copy_goes_when_nothing_refers_to_it(place: Place) -> None:
    edit = place.edit()
    await StoredCopies(place.client).make(place.fleet(), edit)
    copy = ConfigCopy(edit.copy, "f" * 16)

    assert await delete_unused(place, ConfigCopy(edit.copy, place.fleet().revision)) != ()
    assert edit.copy in place.names(), "the template needs it"
    assert await delete_unused(place, copy) == ()

    assert place.names() == {"limits"}
    assert await delete_unused(place, copy) == (), "again changes nothing more"


@pytest.mark.parametrize("kind", ["Deployment", "Pod", "Pod's variable"])
async def test_a_copy_that_anybody_refers_to_stays(place: Place, kind: str) -> None:
    edit = place.edit()
    await StoredCopies(place.client).make(place.fleet(), edit)
    copy = ConfigCopy(edit.copy, "f" * 16)
    spec = template(edit.copy)["spec"]
    if kind == "Pod's variable":
        source = {"valueFrom": {"configMapKeyRef": {"name": edit.copy, "key": "other"}}}
        spec = {"containers": [{"name": "a", "image": "a", "env": [{"name": "X", **source}]}]}
    if kind == "Deployment":
        other = deployment(0)
        other["metadata"]["name"] = "theirs"
        other["spec"]["template"]["spec"] = spec
        place.light.api.create(other, place.namespace)
    else:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs"}, "spec": spec}
        place.light.api.create(pod, place.namespace)

    assert await delete_unused(place, copy) == (copy,)

    assert edit.copy in place.names()


async def test_only_copies_of_this_fleet_are_ever_removed(place: Place) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"labels": {"kvmedic.io/target": "another"}},
    }
    for name, body in (("limits-0000000001", theirs), ("limits-0000000002", {**theirs, "metadata": {}})):
        named = {**body, "metadata": {**body["metadata"], "name": name}}
        place.light.api.create(named, place.namespace)
    copies = [ConfigCopy(name, "f" * 16) for name in ("limits", "limits-0000000001", "limits-0000000002")]

    assert await delete_unused(place, *copies) == ()

    assert place.names() == {copy.name for copy in copies}


async def test_the_copy_is_collected_with_its_deployment(place: Place) -> None:
    edit = place.edit()
    await StoredCopies(place.client).make(place.fleet(), edit)

    place.light.kubectl("-n", place.namespace, "delete", "deployment", "llm")
    place.light.kubectl(
        "-n", place.namespace, "wait", "--for=delete", f"configmap/{edit.copy}", "--timeout=60s"
    )

    assert place.names() == {"limits"}
