"""What people approved, as the API server has it now. It is read and never written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from kvmedic.api.approval import APPROVAL_PLURAL, approval_from_wire
from kvmedic.api.problems import SpecInvalid
from kvmedic.api.resource import GROUP, VERSION
from kvmedic.core.approval import Approval, Unreadable
from kvmedic.kube.client import Client
from kvmedic.kube.errors import Refused
from kvmedic.kube.objects import JsonObject, Resource, moment, section, uid_of

APPROVALS = Resource(f"{GROUP}/{VERSION}", APPROVAL_PLURAL)
ADVICE = (
    f"approvals cannot be read: install the CustomResourceDefinition {APPROVAL_PLURAL}.{GROUP} "
    "(`kvmedic crd` prints it) and let the operator list it"
)


@dataclass(frozen=True, slots=True)
class StoredApprovals:
    """Approvals of one cluster."""

    client: Client

    async def of(self, namespace: str, name: str) -> Sequence[Approval] | Unreadable:
        """Return the approvals for a resource; without the kind or the right to list it that is a value.

        One that is being deleted is withdrawn, and one that cannot be read approves nothing.

        Raises:
            Unavailable: the API did not answer.
        """
        try:
            bodies = await self.client.list(APPROVALS, namespace)
        except Refused as error:
            return Unreadable(f"{ADVICE} ({error})")
        return tuple(_for(name, bodies))


def _for(name: str, bodies: Sequence[JsonObject]) -> Iterator[Approval]:
    for body in bodies:
        metadata = section(body, "metadata")
        try:
            spec = approval_from_wire(body.get("spec"))
        except SpecInvalid:
            continue
        if spec.remediation == name and not metadata.get("deletionTimestamp"):
            yield Approval(
                name=str(metadata["name"]),
                uid=uid_of(body),
                digest=spec.digest,
                made_at=moment(metadata["creationTimestamp"]),
                expires_at=datetime.fromisoformat(spec.expires_at) if spec.expires_at else None,
                resource_uid=spec.remediation_uid or "",
            )
