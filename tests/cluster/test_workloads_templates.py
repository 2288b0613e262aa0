"""What becomes of a pod template: read from its ReplicaSet right before it is put, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kvmedic.cluster.fronts import reaches
from kvmedic.cluster.ownership import note_of
from kvmedic.cluster.workloads import template_of, template_operations
from kvmedic.kube.errors import Conflict
from kvmedic.kube.objects import REPLICA_SETS, Ref
from kvmedic.model.config_edits import Revision, TemplateSwap
from kvmedic.model.edits import BundleEdit, PatchOperation
from kvmedic.model.fleet import freeze_fields, own_template, template_hash
from kvmedic.rollout.moves import DeploymentMove, Freeze, Pause, Retarget, Revert
from run_builder import BUNDLE, EDIT, OWN_FIELDS, a_fleet

HELD = freeze_fields(max_unavailable=0, paused=True)


def template(cap: str, **labels: str) -> dict[str, Any]:
    container = {"name": "vllm", "args": ["serve", "m", "-x", f"--max-num-seqs={cap}"]}
    return {"metadata": {"labels": {"app": "llm", **labels}}, "spec": {"containers": [container]}}


KEPT, PRESENT = template("16", **{"pod-template-hash": "6f"}), template("64")
SWAP = TemplateSwap(Revision(7, "llm-7c", template_hash(PRESENT)), Revision(6, "llm-6f", template_hash(KEPT)))


@dataclass
class Server:
    """One ReplicaSet, or none, and what was asked for."""

    body: dict[str, Any] | None
    asked: list[Ref]

    async def get(self, ref: Ref) -> dict[str, Any] | None:
        self.asked.append(ref)
        return self.body


def server(kept: dict[str, Any] = KEPT, owner: str = "uid-1") -> Any:
    owners = [{"controller": True, "uid": owner}]
    return Server({"metadata": {"ownerReferences": owners}, "spec": {"template": kept}}, [])


@pytest.mark.parametrize("move", [Freeze(SWAP, HELD), Retarget(SWAP, HELD), Revert(SWAP, OWN_FIELDS)])
async def test_the_template_comes_from_the_named_replica_set_without_its_own_label(
    move: DeploymentMove,
) -> None:
    client = server()

    found = await template_of(client, a_fleet(), move, {})

    assert found == template("16")
    assert client.asked == [Ref(REPLICA_SETS, "serving", "llm-6f")]


@pytest.mark.parametrize("move", [Freeze(EDIT, HELD), Pause(HELD)])
async def test_a_move_that_puts_no_template_reads_none(move: DeploymentMove) -> None:
    client = server()

    assert await template_of(client, a_fleet(), move, {}) is None
    assert client.asked == []


@pytest.mark.parametrize(
    ("client", "words"),
    [
        pytest.param(Server(None, []), "revision 6 is gone", id="gone"),
        pytest.param(server(owner="uid-2"), "revision 6 is gone", id="another Deployment's"),
        pytest.param(server(template("17")), "does not keep pod template", id="edited"),
    ],
)
async def test_what_is_not_the_recorded_template_is_a_conflict(client: Any, words: str) -> None:
    with pytest.raises(Conflict, match=words) as raised:
        await template_of(client, a_fleet(), Freeze(SWAP, HELD), {})

    assert "max-num-seqs" not in str(raised.value), "nothing of a template is in a message"


def test_the_whole_template_is_replaced_and_nothing_else() -> None:
    operations = template_operations(SWAP, PRESENT, own_template(KEPT))

    assert operations == (PatchOperation("replace", "/spec/template", template("16")),)


@pytest.mark.parametrize(("present", "kept"), [(template("65"), KEPT), (PRESENT, None)])
def test_another_template_than_the_one_that_is_left_is_refused(
    present: dict[str, Any], kept: dict[str, Any] | None
) -> None:
    with pytest.raises(ValueError, match="not that of revision 7"):
        template_operations(SWAP, present, kept)


def test_the_note_for_people_names_what_keeps_the_template_of_before() -> None:
    assert note_of(SWAP) == {"replicaSet": "llm-7c", "template": template_hash(PRESENT)}


def test_a_bundle_is_one_patch_and_its_note_names_each_part_in_order() -> None:
    variables = [{"name": "X"}, {"name": "ENABLE_TRIATTENTION", "value": "1"}]
    present = {"spec": {"containers": [{"name": "vllm", "env": variables}]}}
    one = BundleEdit(BUNDLE.edit.parts[:1])

    operations = template_operations(one, present, None)

    assert operations == one.patch(present)
    assert note_of(BUNDLE.edit) == {
        "parts": (
            {
                "container": "vllm",
                "containerIndex": 0,
                "env": "ENABLE_TRIATTENTION",
                "index": 1,
                "before": "1",
                "after": "0",
            },
            {
                "container": "vllm",
                "containerIndex": 0,
                "env": "TRIATTN_RUNTIME_KV_BUDGET",
                "index": 0,
                "before": "4096",
                "after": None,
            },
            {
                "container": "vllm",
                "containerIndex": 0,
                "field": "args",
                "index": 3,
                "before": "--no-enable-prefix-caching",
                "after": None,
            },
        )
    }


def a_service(**selector: str) -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "spec": {"selector": selector}}


@pytest.mark.parametrize(
    ("services", "labels", "expected"),
    [
        ([a_service(app="llm", serving="on")], {"app": "llm", "serving": "on", "version": "1"}, True),
        ([a_service(app="llm", serving="on")], {"app": "llm"}, False),
        ([a_service(app="llm"), a_service(serving="on")], {"app": "llm", "serving": "off"}, False),
        ([a_service(app="other")], {}, True),
        ([a_service()], {}, True),
        ([], {}, True),
    ],
    ids=["more labels", "one is missing", "one of two", "not in front of it", "without selector", "none"],
)
def test_every_service_in_front_must_reach_the_other_revisions_pods(
    services: list[dict[str, Any]], labels: dict[str, str], *, expected: bool
) -> None:
    own = template("64", serving="on")
    deployment = {"spec": {"template": own}}

    assert reaches(services, deployment, labels) is expected
