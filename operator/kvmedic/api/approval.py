"""What a person writes to approve a plan: `KVApproval`, its CustomResourceDefinition and reference page.

It is its own kind so that RBAC grants approving apart from editing
(`docs/decisions/0010-approvals-are-objects.md`). The operator reads it and never writes it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from kvmedic.api.resource import GROUP, KIND, VERSION, Metadata, SpecInvalid, problems_of
from kvmedic.api.rules import Rule, Wire, pattern
from kvmedic.api.schema import (
    HEADER,
    Column,
    Names,
    Schema,
    columns,
    definition,
    sections,
    structural,
    whole_schema,
    yaml_text,
)

APPROVAL_KIND = "KVApproval"
APPROVAL_PLURAL = "kvapprovals"
APPROVAL_SINGULAR = "kvapproval"
APPROVAL_SHORT_NAMES = ("kvapp",)
APPROVAL_CATEGORIES = ("kvmedic",)


def _is_time(text: str) -> bool:
    """Return whether a text is a time with its zone, as CEL's `timestamp` reads it."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


class KVApprovalSpec(Wire):
    """Which plan is approved, of which KVRemediation in the same namespace, and until when."""

    remediation: Annotated[
        str,
        Field(max_length=253),
        pattern(
            "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            "use the KVRemediation's name: lower-case letters, digits, dashes and dots",
        ),
    ]
    """Name of the KVRemediation whose plan is approved, in this object's own namespace."""
    remediation_uid: (
        Annotated[
            str,
            Field(max_length=36),
            pattern(
                "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
                "use metadata.uid of the KVRemediation, or remove the field",
            ),
        ]
        | None
    ) = Field(default=None, alias="remediationUID")
    """Its metadata.uid: an approval with it does not count for another one that is made under the name
    later. `kvmedic approve` fills it in."""
    digest: Annotated[
        str,
        Field(max_length=16),
        pattern("^[0-9a-f]{16}$", "use the digest in status.plan.digest: 16 of 0-9 and a-f"),
    ]
    """Digest of the plan, as the KVRemediation shows it in status.plan.digest. It stands for the change with
    its values before and after, the workload, its pod template and the generation of the spec: where any
    of them moves on, the plan gets another digest."""
    expires_at: (
        Annotated[
            str,
            Field(max_length=32),
            Rule(
                cel="self.matches('^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:"
                "[0-9]{2})$') && timestamp(self) > timestamp('1970-01-01T00:00:00Z')",
                message="use a time such as 2026-01-31T18:00:00Z",
                holds=_is_time,
            ),
        ]
        | None
    ) = None
    """From when on the approval does not count (RFC 3339). spec.limits.approvalMaxAge of the KVRemediation
    holds in any case."""


class KVApproval(Wire):
    """Approves one plan of one KVRemediation, once.

    Who may create it is a matter of RBAC alone, apart from who may edit a KVRemediation. It counts for
    one run, and only while the plan is the one that its digest names.
    """

    api_version: Literal["kvmedic.io/v1alpha1"]
    """Version of the resource."""
    kind: Literal["KVApproval"]
    """Kind of the resource."""
    metadata: Metadata
    """Name and namespace."""
    spec: Annotated[
        KVApprovalSpec,
        Rule(
            cel="self == oldSelf",
            message="an approval is immutable: delete it to withdraw it, and create a new one",
            holds=None,
        ),
    ]
    """Which plan is approved, and until when. Immutable."""


def approval_from_wire(spec: object) -> KVApprovalSpec:
    """Return the spec of a stored object (the value of its `spec`).

    Raises:
        SpecInvalid: a field has a value that this version does not accept.
    """
    try:
        return KVApprovalSpec.model_validate(spec)
    except ValidationError as error:
        raise SpecInvalid(problems_of(error, "spec")) from error


def approval_manifest(name: str, uid: str, namespace: str, digest: str) -> dict[str, Any]:
    """Return the object that approves a plan of a resource; the API server gives it a name.

    The resource owns it, so that it goes when the resource goes.
    """
    version = f"{GROUP}/{VERSION}"
    owner = {"apiVersion": version, "kind": KIND, "name": name, "uid": uid}
    return {
        "apiVersion": version,
        "kind": APPROVAL_KIND,
        "metadata": {"generateName": f"{name}-", "namespace": namespace, "ownerReferences": [owner]},
        "spec": {"remediation": name, "remediationUID": uid, "digest": digest},
    }


APPROVAL_NAMES = Names(
    APPROVAL_KIND, APPROVAL_PLURAL, APPROVAL_SINGULAR, APPROVAL_SHORT_NAMES, APPROVAL_CATEGORIES
)
APPROVAL_COLUMNS: tuple[Column, ...] = (
    ("Remediation", "string", ".spec.remediation", 0, "The KVRemediation whose plan is approved."),
    ("Digest", "string", ".spec.digest", 0, "The plan that is approved."),
    ("Expires", "string", ".spec.expiresAt", 0, "From when on it does not count, where it says so itself."),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Since when it exists."),
)
INTRODUCTION = f"""<!-- Generated by `make crd` from operator/kvmedic/api. Do not edit. -->
# {APPROVAL_KIND}

`{GROUP}/{VERSION}`, namespaced; short name `{", ".join(APPROVAL_SHORT_NAMES)}`, category `kvmedic`.
Approves one plan of one [KVRemediation](kvremediation.md), once: [how to](../howto/approve-a-plan.md),
[why it is an object](../decisions/0010-approvals-are-objects.md). The operator reads it and never writes it,
so it has no status; which run used it stands in the KVRemediation's `status.history`.
"""


def approval_schema() -> Schema:
    """Return the structural schema of the whole kind."""
    written = KVApproval.model_json_schema(by_alias=True)
    schema = structural(written["properties"]["spec"], written["$defs"])
    return whole_schema(KVApproval.__doc__ or "", {"spec": schema})


def approval_definition() -> Schema:
    """Return the CustomResourceDefinition."""
    return definition(APPROVAL_NAMES, APPROVAL_COLUMNS, approval_schema())


def approval_text() -> str:
    """Return the content of `crds/kvmedic.io_kvapprovals.yaml`."""
    return HEADER + yaml_text(approval_definition())


def approval_page() -> str:
    """Return the reference page as Markdown."""
    shown = columns(APPROVAL_SHORT_NAMES[0], APPROVAL_COLUMNS)
    return "\n".join([INTRODUCTION, shown, *sections(approval_schema(), "spec")])
