"""What an owner is given so that a whole revision is taken back."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.proposals import Operation, Reverted, operations_between, revert_for
from kvmedic.model.config_edits import Difference, Revision
from kvmedic.model.fleet import OwnerKind, TemplateOwner
from kvmedic.runbooks.revisions import options_of_interest

LEAVING, DESIRED = Revision(7, "llm-7c", "b" * 16), Revision(6, "llm-6f", "a" * 16)
CHANGED = (Difference("maxNumSeqs", "16", "256"), Difference("image", "v:1", "v:2"))
NAMES = options_of_interest(VLLM)
WORDS = "Deployment/llm, revision 7 back to 6: maxNumSeqs 256 -> 16, image v:2 -> v:1"


def template(*args: str, image: str = "v:1", name: str = "vllm", command: list[str] | None = None) -> Any:
    container = {"name": name, "image": image, "args": list(args)}
    return {"spec": {"containers": [container | ({"command": command} if command else {})]}}


def applied(present: Any, operations: tuple[Operation, ...]) -> Any:
    """Return a template after a JSON patch (RFC 6902) on its Deployment."""
    body = {"spec": {"template": json.loads(json.dumps(present))}}
    for operation in operations:
        *path, last = str(operation["path"]).strip("/").split("/")
        at: Any = body
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at[part]
        key: Any = int(last) if isinstance(at, list) else last
        match operation["op"]:
            case "test":
                assert at[key] == operation["value"], operation
            case "remove":
                del at[key]
            case "add" if isinstance(at, list):
                at.insert(key, operation["value"])
            case _:
                at[key] = operation["value"]
    return body["spec"]["template"]


EXACT = [
    pytest.param(("-x", "--max-num-seqs=256"), ("-x", "--max-num-seqs=16"), id="a value"),
    pytest.param(("--max-num-seqs", "256", "-x"), ("--max-num-seqs", "16", "-x"), id="a value of its own"),
    pytest.param(("-x", "--max_num_seqs=256"), ("-x", "--max-num-seqs=16"), id="written otherwise"),
    pytest.param(("-x",), ("-x", "--max-num-seqs=16"), id="a flag that was removed"),
    pytest.param(("-x", "--kv-cache-dtype=fp8"), ("-x",), id="a flag that was added"),
    pytest.param(
        ("--dtype", "float32", "-x", "--max-num-seqs=256", "-y"),
        ("-x", "--max-num-seqs=16", "-y", "--max-model-len=1024"),
        id="several at once",
    ),
]


@pytest.mark.parametrize(("now", "then"), EXACT)
def test_the_patch_makes_the_earlier_container(now: tuple[str, ...], then: tuple[str, ...]) -> None:
    present, desired = template(*now, image="v:2"), template(*then)

    operations = operations_between(present, desired, 0, NAMES)

    assert operations is not None
    assert applied(present, operations) == desired


KEPT_BACK = [
    pytest.param(template("--api-key=old-secret"), template("--api-key=secret"), id="a secret's flag"),
    pytest.param(template("--api-key", "old-secret"), template("--api-key", "secret"), id="a secret's value"),
    pytest.param(
        template("--max-num-seqs=1", "--api-key=a"), template("--max-num-seqs=2", "--api-key=b"), id="both"
    ),
    pytest.param(
        template("a", command=["sh", "-c", "vllm serve m --max-num-seqs=16"]),
        template("a", command=["sh", "-c", "KEY=b vllm serve m --max-num-seqs=64"]),
        id="a whole script",
    ),
    pytest.param(template("--max-num-seqs=1"), template(), id="no list any more"),
    pytest.param(template("-x"), template("-x", name="other"), id="another container"),
    pytest.param({"spec": {"containers": []}}, template("-x"), id="no such container"),
]


@pytest.mark.parametrize(("then", "now"), KEPT_BACK)
def test_what_may_hold_secrets_is_given_in_words(then: Any, now: Any) -> None:
    assert operations_between(now, then, 0, NAMES) is None


def reverted(operations: tuple[Operation, ...] | None) -> Reverted:
    return Reverted("Deployment", "prod", "llm", LEAVING, DESIRED, CHANGED, operations)


def test_a_repository_gets_a_patch() -> None:
    operations = operations_between(template("--max-num-seqs=256"), template("--max-num-seqs=16"), 0, NAMES)

    proposal = revert_for(TemplateOwner(OwnerKind.ARGO_CD, "chat"), reverted(operations))

    (entry,) = yaml.safe_load(proposal.text)["patches"]
    assert "argocd app sync chat" in proposal.how
    assert entry["target"] == {"kind": "Deployment", "name": "llm", "namespace": "prod"}
    assert yaml.safe_load(entry["patch"]) == list(operations or ())


@pytest.mark.parametrize(
    ("owner", "how", "text"),
    [
        (
            TemplateOwner(OwnerKind.FLUX_KUSTOMIZATION, "apps", "flux-system"),
            "flux reconcile kustomization apps --namespace flux-system --with-source",
            WORDS,
        ),
        (TemplateOwner(OwnerKind.FLUX_HELM, "chat"), "HelmRelease chat", WORDS),
        (TemplateOwner(OwnerKind.APPLIER, "field manager ci"), "what is applied", WORDS),
        (
            TemplateOwner(OwnerKind.HELM, "chat", "prod"),
            "brought revision 7",
            "helm rollback chat --namespace prod",
        ),
        (TemplateOwner(OwnerKind.PRODUCTION_STACK, "stack"), "brought revision 7", "helm rollback stack\n"),
        (TemplateOwner(OwnerKind.INFERENCE_SERVICE, "chat"), "what revision 7 changed", WORDS),
        (TemplateOwner(OwnerKind.CONTROLLER, "chat", part="Widget"), "what revision 7 changed", WORDS),
    ],
    ids=lambda value: str(getattr(value, "kind", "")),
)
def test_every_owner_gets_a_way(owner: TemplateOwner, how: str, text: str) -> None:
    proposal = revert_for(owner, reverted(None))

    assert how in proposal.how
    assert text in proposal.text
    assert "maxNumSeqs 256 -> 16" in proposal.text


@pytest.mark.parametrize("kind", list(OwnerKind))
def test_no_owner_is_forgotten(kind: OwnerKind) -> None:
    assert revert_for(TemplateOwner(kind, "chat"), reverted(None)).text
