"""`KVApproval`: what the real API server and Python make of it, and who may make it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from api.rules_of import causes, nodes, rules
from chart.rendering import render
from kvmedic.api.crd import APPROVAL as KIND
from kvmedic.api.crd import approval_schema
from kvmedic.api.resource import (
    KVApproval,
    KVApprovalSpec,
    SpecInvalid,
    approval_from_wire,
    approval_manifest,
)
from lab.cluster.api import Api, ApiError, until
from lab.cluster.light import LightCluster

ROOT = Path(__file__).parents[2]
DIGEST = "0123456789abcdef"
UID = "11111111-2222-3333-4444-555555555555"
GOOD = {"remediation": "chat", "digest": DIGEST}
FULL = {**GOOD, "remediationUID": UID, "expiresAt": "2026-01-31T18:00:00+01:00"}
SCHEMA = approval_schema()
COLLECTION = "/apis/kvmedic.io/v1alpha1/namespaces/{namespace}/kvapprovals"
ABSENT = object()


@dataclass(frozen=True)
class Row:
    claim: str
    change: dict[str, Any]
    field: str
    says: str
    says_in_python: str = ""

    def spec(self) -> dict[str, Any]:
        return {key: value for key, value in {**GOOD, **self.change}.items() if value is not ABSENT}


REQUIRED, LONG = "Required value", "may not be more than"
NAME, PLAN, TIME = (
    "use the KVRemediation's name",
    "use the digest in status.plan.digest",
    "use a time such as",
)
ROWS = [
    Row("of nothing", {"remediation": ABSENT}, "spec.remediation", REQUIRED, "required, add it"),
    Row("of no name", {"remediation": ""}, "spec.remediation", NAME),
    Row("of a name in capitals", {"remediation": "Chat"}, "spec.remediation", NAME),
    Row("of another namespace", {"remediation": "serving/chat"}, "spec.remediation", NAME),
    Row("of a name with a line break", {"remediation": "chat\n"}, "spec.remediation", NAME),
    Row("of a name that is none", {"remediation": "x" * 254}, "spec.remediation", LONG, "at most 253"),
    Row("of a number", {"remediation": 7}, "spec.remediation", "must be of type string", "valid string"),
    Row("of no plan", {"digest": ABSENT}, "spec.digest", REQUIRED, "required, add it"),
    Row("of an empty plan", {"digest": ""}, "spec.digest", PLAN),
    Row("of any plan", {"digest": "*"}, "spec.digest", PLAN),
    Row("of half a plan", {"digest": DIGEST[:8]}, "spec.digest", PLAN),
    Row("of a plan and a half", {"digest": DIGEST + DIGEST[:8]}, "spec.digest", PLAN),
    Row("of a plan in capitals", {"digest": DIGEST.upper()}, "spec.digest", PLAN),
    Row("of more than a plan", {"digest": f"{DIGEST * 2}0"}, "spec.digest", LONG, "at most 32"),
    Row("for no uid", {"remediationUID": ""}, "spec.remediationUID", "use metadata.uid"),
    Row("for a name as uid", {"remediationUID": "chat"}, "spec.remediationUID", "use metadata.uid"),
    Row("for a long uid", {"remediationUID": f"{UID}0"}, "spec.remediationUID", LONG, "at most 36"),
    Row("until a date", {"expiresAt": "2026-01-31"}, "spec.expiresAt", TIME),
    Row("until a time of no zone", {"expiresAt": "2026-01-31T18:00:00"}, "spec.expiresAt", TIME),
    Row("for a while", {"expiresAt": "1h"}, "spec.expiresAt", TIME),
    Row("until a long time", {"expiresAt": "2" * 33}, "spec.expiresAt", LONG, "at most 32"),
    Row("until a day that is none", {"expiresAt": "2026-02-30T18:00:00Z"}, "spec.expiresAt", TIME),
]


def claim_of(row: Row) -> str:
    return f"an approval {row.claim}"


@pytest.mark.parametrize("rule", [r for r in rules(SCHEMA, "spec") if r.path != "spec"], ids=lambda r: r.path)
def test_every_rule_has_a_bad_spec_and_says_what_to_do(rule: Any) -> None:
    message = rule.value["message"]

    assert [row for row in ROWS if row.field == rule.path and row.says in message]
    assert re.search(r"\buse\b", message)


def test_every_field_is_described_and_every_text_is_bounded() -> None:
    assert [path for path, node in nodes(SCHEMA, "spec") if not node.get("description")] == []
    texts = [node for _, node in nodes(SCHEMA, "spec") if node.get("type") == "string"]
    assert all("maxLength" in node for node in texts)


@pytest.mark.parametrize("row", ROWS, ids=claim_of)
def test_python_refuses_what_the_api_server_refuses(row: Row) -> None:
    with pytest.raises(SpecInvalid) as caught:
        approval_from_wire(row.spec())

    assert [
        text
        for text in caught.value.problems
        if text.startswith(f"{row.field}: ") and (row.says_in_python or row.says) in text
    ]


def test_what_the_command_makes_is_an_approval() -> None:
    made = approval_manifest("chat", UID, "serving", DIGEST)
    made["metadata"]["name"] = "chat-x7"

    read = KVApproval.model_validate(made)

    assert read.spec == KVApprovalSpec(remediation="chat", remediation_uid=UID, digest=DIGEST)


@dataclass(frozen=True)
class Approvals:
    """KVApprovals of one namespace, as one identity."""

    http: httpx.Client
    path: str

    def create(self, spec: object, **more: Any) -> httpx.Response:
        body = {
            "apiVersion": "kvmedic.io/v1alpha1",
            "kind": "KVApproval",
            "metadata": {"generateName": "chat-"},
            **({} if spec is ABSENT else {"spec": spec}),
            **more,
        }
        return self.http.post(self.path, json=body, params={"fieldValidation": "Strict"})


@pytest.fixture(scope="session")
def with_approvals(defined: LightCluster) -> LightCluster:
    """The shared light cluster with both CustomResourceDefinitions established."""
    defined.apply(KIND.definition())
    path = COLLECTION.format(namespace="default")
    until(lambda: defined.api.http.get(path).is_success, 20, "kvapprovals")
    return defined


@pytest.fixture
def approvals(with_approvals: LightCluster, namespace: str) -> Approvals:
    return Approvals(with_approvals.api.http, COLLECTION.format(namespace=namespace))


@pytest.mark.parametrize("row", ROWS, ids=claim_of)
def test_a_bad_approval_is_refused_with_the_field_and_the_fix(row: Row, approvals: Approvals) -> None:
    response = approvals.create(row.spec())

    assert response.status_code == httpx.codes.UNPROCESSABLE_ENTITY, response.text
    said = [message for field, message in causes(response) if field == row.field]
    assert [message for message in said if row.says in message], response.text


@pytest.mark.parametrize("spec", [GOOD, FULL], ids=["the least", "everything"])
def test_a_good_approval_is_taken_as_it_is(spec: dict[str, Any], approvals: Approvals) -> None:
    response = approvals.create(spec)

    assert response.is_success, response.text
    assert response.json()["spec"] == spec
    assert approval_from_wire(spec).model_dump(by_alias=True, exclude_none=True) == spec


@pytest.mark.parametrize("spec", [ABSENT, {}], ids=["no spec", "an empty spec"])
def test_an_approval_of_nothing_is_refused(spec: object, approvals: Approvals) -> None:
    assert approvals.create(spec).status_code == httpx.codes.UNPROCESSABLE_ENTITY


def test_an_unknown_field_is_refused_by_name_as_kubectl_asks(approvals: Approvals) -> None:
    response = approvals.create({**GOOD, "approver": "somebody else"})

    assert response.status_code == httpx.codes.BAD_REQUEST
    assert 'unknown field "spec.approver"' in response.json()["message"]


@pytest.mark.parametrize("change", [{"digest": "f" * 16}, {"expiresAt": "2030-01-01T00:00:00Z"}], ids=str)
def test_an_approval_never_becomes_another(change: dict[str, Any], approvals: Approvals) -> None:
    name = approvals.create(FULL).json()["metadata"]["name"]
    headers = {"Content-Type": "application/merge-patch+json"}

    response = approvals.http.patch(f"{approvals.path}/{name}", json={"spec": change}, headers=headers)

    assert response.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    [(field, message)] = causes(response)
    assert field == "spec"
    assert "delete it to withdraw it, and create a new one" in message


def test_kubectl_shows_what_was_approved(with_approvals: LightCluster, namespace: str) -> None:
    Approvals(with_approvals.api.http, COLLECTION.format(namespace=namespace)).create(FULL)

    head, line = with_approvals.kubectl("get", "kvapp", "-n", namespace).splitlines()

    assert head.split() == ["NAME", "REMEDIATION", "DIGEST", "EXPIRES", "AGE"]
    assert f"chat          {DIGEST}" in line


REMEDIATION: dict[str, Any] = {
    "apiVersion": "kvmedic.io/v1alpha1",
    "kind": "KVRemediation",
    "metadata": {"name": "chat"},
    "spec": {"targetRef": {"name": "llm"}, "mode": "Approve"},
}
APPROVAL: dict[str, Any] = {
    "apiVersion": "kvmedic.io/v1alpha1",
    "kind": "KVApproval",
    "metadata": {"name": "chat-x7"},
    "spec": GOOD,
}


@pytest.fixture
def bound(with_approvals: LightCluster, namespace: str) -> Iterator[Callable[..., Api]]:
    """Gives one more person, who has some of the chart's roles for people and no other right."""
    made = render({"rbac": {"aggregateToDefaultRoles": True}})
    for role in ("kvmedic-approver", "kvmedic-edit", "kvmedic-view"):
        # Without labels: what aggregates would reach other tests' roles.
        with_approvals.apply({**made["ClusterRole", role], "metadata": {"name": role}})
    clients: list[Api] = []

    def bind(person: str, *roles: str) -> Api:
        with_approvals.kubectl("-n", namespace, "create", "serviceaccount", person)
        for role in roles:
            subject = f"--serviceaccount={namespace}:{person}"
            with_approvals.kubectl(
                "-n", namespace, "create", "rolebinding", f"{person}-{role}", f"--clusterrole={role}", subject
            )
        clients.append(Api(with_approvals.impersonate(person, namespace)))
        return clients[-1]

    yield bind
    for client in clients:
        client.close()


def refused(act: Callable[[], object]) -> bool:
    """Whether the API server's authorizer forbids it; any other refusal is an error."""
    try:
        act()
    except ApiError as error:
        if error.code != httpx.codes.FORBIDDEN:
            raise
        return True
    return False


def test_who_only_approves_cannot_edit(
    with_approvals: LightCluster, bound: Callable[..., Api], namespace: str
) -> None:
    with_approvals.apply(REMEDIATION, namespace)
    approver = bound("approver", "kvmedic-approver")

    approver.create(APPROVAL, namespace)

    auto = {"spec": {"mode": "Auto"}}
    assert approver.get("KVRemediation", "chat", namespace)["spec"]["mode"] == "Approve"
    assert refused(lambda: approver.patch("KVRemediation", "chat", auto, namespace))
    assert refused(lambda: approver.delete("KVRemediation", "chat", namespace))
    other = {**REMEDIATION, "metadata": {"name": "other"}}
    assert refused(lambda: approver.create(other, namespace))
    assert refused(lambda: approver.patch("KVApproval", "chat-x7", {"metadata": {}}, namespace))
    approver.delete("KVApproval", "chat-x7", namespace)


def test_who_edits_cannot_approve(
    with_approvals: LightCluster, bound: Callable[..., Api], namespace: str
) -> None:
    editor = bound("editor", "kvmedic-edit", "kvmedic-view")

    editor.create(REMEDIATION, namespace)
    editor.patch("KVRemediation", "chat", {"spec": {"suspend": True}}, namespace)

    assert refused(lambda: editor.create(APPROVAL, namespace))
    with_approvals.apply(APPROVAL, namespace)
    assert editor.get("KVApproval", "chat-x7", namespace)["spec"] == GOOD
    assert refused(lambda: editor.delete("KVApproval", "chat-x7", namespace))


def test_mode_auto_can_be_kept_for_those_who_approve(
    with_approvals: LightCluster, bound: Callable[..., Api], namespace: str
) -> None:
    """The policy of the page on approving, for this namespace alone."""
    policy, binding = yaml.safe_load_all(fenced("tested: auto"))
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    policy["spec"]["matchConstraints"]["namespaceSelector"] = here
    with_approvals.apply([policy, binding])
    editor = bound("editor", "kvmedic-edit", "kvmedic-view")
    lead = bound("lead", "kvmedic-edit", "kvmedic-view", "kvmedic-approver")
    auto = {"spec": {"mode": "Auto"}}
    editor.create(REMEDIATION, namespace)

    until(lambda: is_denied(editor, auto, namespace), 30, "the policy is in force")

    assert is_denied(editor, auto, namespace)
    editor.patch("KVRemediation", "chat", {"spec": {"mode": "Observe"}}, namespace)
    lead.patch("KVRemediation", "chat", auto, namespace)
    editor.patch("KVRemediation", "chat", {"metadata": {"finalizers": ["kvmedic.io/run"]}}, namespace)
    editor.patch("KVRemediation", "chat", {"metadata": {"finalizers": None}}, namespace)
    for each in (binding, policy):
        with_approvals.api.delete(each["kind"], each["metadata"]["name"])


def fenced(mark: str) -> str:
    page = (ROOT / "docs" / "howto" / "approve-a-plan.md").read_text()
    found = re.search(rf"<!-- {mark} -->\n```yaml\n(.*?)```", page, re.DOTALL)
    assert found
    return found.group(1)


def is_denied(person: Api, change: dict[str, Any], namespace: str) -> bool:
    """Whether the API server's admission refuses a change that it would not even store."""
    path = f"{person.resource('KVRemediation').path(namespace, 'chat')}?dryRun=All"
    headers = {"Content-Type": "application/merge-patch+json"}
    try:
        person.request("PATCH", path, json=change, headers=headers)
    except ApiError as error:
        return "use Approve or Observe" in str(error)
    return False


def test_what_aggregates_to_kubernetes_own_roles_approves_nothing() -> None:
    given = [
        verb
        for (kind, _), role in render().items()
        if kind == "ClusterRole" and any("aggregate" in key for key in role["metadata"].get("labels", {}))
        for rule in role["rules"]
        if "kvapprovals" in rule["resources"]
        for verb in rule["verbs"]
    ]

    assert set(given) == {"get", "list", "watch"}
