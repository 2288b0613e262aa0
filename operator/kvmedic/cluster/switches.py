"""Words of people to the operator as a whole, which it reads and never writes.

Stop:       `kubectl -n kvmedic-system create configmap kvmedic-stop`; delete it to go on.
Storm over: `kubectl -n kvmedic-system create configmap kvmedic-storm-over`; make it anew for the next storm.

A ConfigMap's existence, or its age, is the whole message: there is no key to misspell at three in the
morning. While the stop exists no forward move is made; ways back stay open. Runs that ended badly before the
storm was over do not count any more. The third word is a KVApproval.
The fourth is a label on a namespace, where the configuration asks for one (`namespaces.requireLabel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kvmedic.api.resource import APPROVAL_PLURAL, GROUP, VERSION, SpecInvalid, approval_from_wire
from kvmedic.kube.errors import ApiError, Refused
from kvmedic.kube.objects import CONFIG_MAPS, NAMESPACES, Ref, Resource, labels_of, moment, section, uid_of
from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.rollout.gates.approval import Approval
from kvmedic.rollout.gates.opening import Stop

if TYPE_CHECKING:
    from kvmedic.kube.client import Client


async def read_stop(client: Client, namespace: str, name: str) -> Stop:
    """Return whether the operator-wide stop is on. Never raises: not knowing is an answer."""
    try:
        found = await client.get(Ref(CONFIG_MAPS, namespace, name))
    except ApiError:
        return Stop.UNREADABLE
    return Stop.OFF if found is None else Stop.ON


async def read_storm_end(client: Client, namespace: str, name: str) -> datetime | None:
    """Return when an administrator said that the last storm is over, or None.

    Never raises: an answer that is not had means that nobody said so.
    """
    try:
        found = await client.get(Ref(CONFIG_MAPS, namespace, name))
    except ApiError:
        return None
    stamp = section(found or {}, "metadata").get("creationTimestamp")
    return moment(str(stamp)) if stamp else None


@dataclass(frozen=True, slots=True)
class NamespaceLabel:
    """The label by which the people of a namespace let its fleets be changed."""

    client: Client
    label: str
    """As `key=value`; empty: none is asked for, and nothing is read."""

    async def refuse_unlabelled(self, namespace: str) -> Blocked | None:
        """Return what the namespace lacks, with the command that adds it; unreadable lacks it too."""
        if not self.label:
            return None
        try:
            return await self.find_missing(namespace)
        except Refused as error:
            why = f"the label {self.label} of namespace {namespace} cannot be read ({error})"
            return Blocked(Reason.NAMESPACE_NOT_LABELLED, f"{why}: let the operator get namespaces")

    async def find_missing(self, namespace: str) -> Blocked | None:
        """Return what the namespace lacks, with the command that adds it.

        Raises:
            Refused: the caller may not read namespaces.
        """
        key, _, value = self.label.partition("=")
        body = await self.client.get(Ref(NAMESPACES, "", namespace))
        found = labels_of(body or {}).get(key)
        if found == value:
            return None
        lacks = f"has no label {key}" if found is None else f"has {key}={found}"
        command = f"kubectl label {'' if found is None else '--overwrite '}namespace {namespace} {self.label}"
        return Blocked(
            Reason.NAMESPACE_NOT_LABELLED,
            f"namespace {namespace} {lacks}, so its fleets are only diagnosed: {command}",
        )


OPERATORS = "app.kubernetes.io/name=kvmedic"
CONFIGURATION = "config.yaml"
"""Key of the operator's configuration in its ConfigMap (`charts/kvmedic/templates/config.yaml`)."""


async def read_required_label(client: Client, namespace: str) -> str:
    """Return the label that the operator of a namespace asks of others, as `key=value`.

    Empty: it asks for none, or the caller may not see its configuration. Never raises.
    """
    try:
        found = await client.list(CONFIG_MAPS, namespace, OPERATORS)
        texts = [str(section(each, "data").get(CONFIGURATION, "")) for each in found]
        read = [YAML(typ="safe", pure=True).load(text) for text in texts if text]
    except (ApiError, YAMLError):
        return ""
    asked = (section(each, "namespaces").get("requireLabel") for each in read if isinstance(each, dict))
    return next((str(label) for label in asked if label), "")


APPROVALS = Resource(f"{GROUP}/{VERSION}", APPROVAL_PLURAL)
ADVICE = (
    f"approvals cannot be read: install the CustomResourceDefinition {APPROVAL_PLURAL}.{GROUP} "
    "(`kvmedic crd` prints it) and let the operator list it"
)


@dataclass(frozen=True, slots=True)
class StoredApprovals:
    """Approvals of one cluster."""

    client: Client

    async def list_approvals(self, namespace: str, name: str) -> Sequence[Approval] | Blocked:
        """Return the approvals for a resource; without the kind or the right to list it that is a value.

        One that is being deleted is withdrawn, and one that cannot be read approves nothing.
        """
        try:
            bodies = await self.client.list(APPROVALS, namespace)
        except Refused as error:
            return Blocked(Reason.APPROVALS_UNREADABLE, f"{ADVICE} ({error})")
        found: list[Approval] = []
        for body in bodies:
            metadata = section(body, "metadata")
            try:
                spec = approval_from_wire(body.get("spec"))
            except SpecInvalid:
                continue
            if spec.remediation == name and not metadata.get("deletionTimestamp"):
                made = Approval(
                    name=str(metadata["name"]),
                    uid=uid_of(body),
                    digest=spec.digest,
                    made_at=moment(metadata["creationTimestamp"]),
                    expires_at=datetime.fromisoformat(spec.expires_at) if spec.expires_at else None,
                    resource_uid=spec.remediation_uid or "",
                )
                found.append(made)
        return tuple(found)
